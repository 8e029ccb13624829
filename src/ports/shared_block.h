// A block of memory that one process makes and hands to others of this machine, and messages over which it is handed.
//
// Block:      sealed memory (sealed_memory.h).
// Messages:   over a SOCK_SEQPACKET UNIX socket: whole messages of at most kMaxMessage bytes, each with a descriptor or without.
// Trust:      what comes from a peer is checked before it is mapped; message contents are the caller's to check.
// Threads:    any one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "ports/sealed_memory.h"

namespace sluice::ports {

class SharedBlock {
 public:
  SharedBlock() = default;
  static Result<SharedBlock> create(std::size_t bytes);
  // One that a peer made: of exactly this size, and sealed.
  static Result<SharedBlock> adopt(Descriptor memfd, std::size_t bytes);

  MutableBytes bytes() const { return {mapping_.start(), size_}; }
  int descriptor() const { return memfd_.get(); }

 private:
  static Result<SharedBlock> map(Descriptor memfd, std::size_t bytes);
  Descriptor memfd_;
  Mapping mapping_;
  std::size_t size_ = 0;
};

inline constexpr std::size_t kMaxMessage = 4096;

struct Message {
  std::string text;
  Descriptor descriptor{};  // handed over with it
};

// On sockets of UnixKind::kMessages (unix_socket.h). False: the peer is gone, or takes none now.
bool send_message(int socket, const std::string& text, int descriptor = -1);
enum class Arrival : std::uint8_t { kNothing, kMessage, kGone };
Arrival receive_message(int socket, Message& message);

}  // namespace sluice::ports
