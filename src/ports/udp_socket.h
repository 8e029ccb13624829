// A UDP socket that sends trains of containers and receives bursts of them: the system calls of the UDP port, and no more.
//
// Sending:   equal datagrams that follow each other go as one train (UDP_SEGMENT) where the kernel can; else sendmmsg.
// Receiving: recvmmsg into buffers of 64 KiB; with UDP_GRO a buffer may hold a train, cut at `segment` bytes.
// Errors:    never throws after set-up; what the kernel reports comes back as a status.
// Threads:   one owner.
// Source:    udp(7), `struct udp_sock` GSO/GRO of Linux 5.0; costs: docs/performance.md.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "ports/descriptor.h"
#include "ports/udp_container.h"

namespace sluice::ports {

// An IPv4 or IPv6 address with its port, comparable.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr_storage& storage, socklen_t length);

  const sockaddr* get() const;
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  std::uint16_t port_number() const;
  std::string to_string() const;  // "127.0.0.1:7471", "[::1]:7471"
  std::string host() const;       // "127.0.0.1", "::1"
  std::strong_ordering operator<=>(const SocketAddress& other) const;
  bool operator==(const SocketAddress& other) const { return (*this <=> other) == 0; }

 private:
  std::array<std::uint8_t, 22> key() const;  // address, port, scope

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

struct HostPort {
  std::string host;  // name or address; no brackets
  std::uint16_t port = 0;
};

Result<SocketAddress> resolve(const HostPort& where);

class UdpSocket {
 public:
  static constexpr std::size_t kBuffer = 65536;
  static constexpr std::size_t kLargestDatagram = 60'000;

  // One buffer's worth of what arrived: one datagram, or a train of them, each `segment` bytes but the last.
  struct Arrival {
    std::size_t buffer = 0;  // index into the span given to receive()
    std::size_t length = 0;
    std::size_t segment = 0;
    SocketAddress source;  // not filled in on a connected socket
  };
  enum class SendStatus : std::uint8_t { kSent, kBusy, kRefused, kFailed };
  struct SendResult {
    std::size_t datagrams = 0;  // that need not be sent again
    SendStatus status = SendStatus::kSent;
  };

  static Result<UdpSocket> connect(const SocketAddress& peer);
  static Result<UdpSocket> bind(const SocketAddress& local);
  // A connected one keeps the address that its host had when it was connected; from now on it has the one that the host has now, if any.
  void connect_anew(const SocketAddress& peer);

  // Sends from the start of datagrams(), as many as go with one call of the kernel's. `to`: nullptr on a connected socket.
  SendResult send(ContainerTrain& train, const SocketAddress* to);
  SendStatus send_one(ByteView datagram, const SocketAddress* to);

  // Receives into `buffers`, kBuffer bytes each, without waiting.
  std::span<const Arrival> receive(std::span<std::uint8_t* const> buffers);
  // The last receive() has left nothing there.
  bool emptied() const { return emptied_; }
  // After receive() or send met an error: those whose host said that nobody is there. A connected socket names none: its
  // one peer is meant, and the answer holds one default address.
  std::vector<SocketAddress> take_refusals();
  bool error_seen() const { return error_seen_; }

  // The largest datagram that reaches `peer` in one packet, as far as this host knows; at most kLargestDatagram, which
  // loopback takes.
  static std::size_t datagram_limit(const SocketAddress& peer);
  // Datagrams that found the socket's buffer full, ever.
  std::uint64_t overruns() const;

  int descriptor() const { return socket_.get(); }
  const SocketAddress& local() const { return local_; }

 private:
  explicit UdpSocket(Descriptor socket);
  void set_up();
  std::size_t send_train(ContainerTrain& train, const SocketAddress* to, std::size_t count);
  std::size_t send_apart(ContainerTrain& train, const SocketAddress* to, std::size_t count);
  bool put(ByteView datagram, const SocketAddress* to) const;
  SendStatus status_of_error();

  static constexpr std::size_t kBatch = 16;
  struct Headers;

  Descriptor socket_;
  SocketAddress local_;
  bool connected_ = false;
  bool segmentation_ = true;
  bool error_seen_ = false;
  bool refused_seen_ = false;
  bool emptied_ = false;
  std::size_t next_batch_ = 1;  // datagrams to ask for
  std::vector<Arrival> arrivals_;
  std::shared_ptr<Headers> headers_;  // reused for each call
};

}  // namespace sluice::ports
