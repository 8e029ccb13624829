// What the parts of Client share among themselves; nobody else includes this.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "clover/client.h"

namespace sluice::clover {

// Node-sized buffers, used again. Shared, so that a coroutine frame may be destroyed after the Client.
class Client::Buffers {
 public:
  std::unique_ptr<std::uint8_t[]> take(std::size_t bytes) {
    if (bytes != bytes_) {
      idle_.clear();
      bytes_ = bytes;
    }
    if (idle_.empty()) return std::make_unique<std::uint8_t[]>(bytes);
    auto buffer = std::move(idle_.back());
    idle_.pop_back();
    return buffer;
  }
  void give(std::unique_ptr<std::uint8_t[]> buffer, std::size_t bytes) {
    if (bytes == bytes_) idle_.push_back(std::move(buffer));
  }

 private:
  std::size_t bytes_ = 0;
  std::vector<std::unique_ptr<std::uint8_t[]>> idle_;
};

class Client::Buffer {
 public:
  Buffer(const std::shared_ptr<Buffers>& buffers, std::size_t bytes)
      : buffers_(buffers), bytes_(bytes), memory_(buffers->take(bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { buffers_->give(std::move(memory_), bytes_); }
  MutableBytes bytes() { return {memory_.get(), bytes_}; }

 private:
  std::shared_ptr<Buffers> buffers_;
  std::size_t bytes_;
  std::unique_ptr<std::uint8_t[]> memory_;
};

// A put, insert or erase under way.
struct Client::Operation {
  Operation(const std::shared_ptr<Buffers>& buffers, std::size_t bytes) : node(buffers, bytes) {}

  Append how{};
  Key key = 0;
  ByteView value;
  std::uint32_t store = 0;  // that it began in, and that `node` is as long as nodes of
  Time deadline;            // moves on while it waits for a slot,
  Time latest;              // up to here
  Duration backoff;
  Buffer node;  // as it will be written

  NodePointer slot;   // where it will be; none yet: 0
  Membership member;  // that the slot was granted to
  bool written = false;
  std::uint32_t writing_view = 0;  // the view under which it was first written; 0: not yet
  bool have_cursor = false;
  Cursor at;                        // where it is to be appended
  std::uint32_t lost_in_a_row = 0;  // swaps
  bool led_to_lost = false;         // the tail was followed by a version in a volume that is lost
  // The slot may be linked, or may yet come to be: a CAS (at `at`) or a creation of unknown outcome is out.
  bool uncertain = false;
  // When the first of these was submitted: a later one may only find what that one did, and others have gone on from it since.
  Time tried;
  std::uint64_t stamp = 0;  // the server's clock when the first such CAS at `at` began

  Outcome outcome = Outcome::kOk;  // once kDone
  Step done(Outcome o) {
    outcome = o;
    return Step::kDone;
  }
};

// A request and its answer.
struct Client::Call {
  Call(Request type, std::size_t count, Membership asker, std::uint32_t sequence = 0)
      : member(asker), expected(static_cast<std::uint8_t>(static_cast<std::uint8_t>(type) | 0x80)) {
    put_header(body, RequestHeader{type, static_cast<std::uint16_t>(count), asker.client, sequence, asker.store});
  }
  Membership member;
  std::uint8_t expected;
  std::array<std::uint8_t, remote::kMaxMessage> request;
  std::array<std::uint8_t, remote::kMaxMessage> response;
  MessageWriter body{request};
  // Once answered:
  AnswerHeader header;
  MessageReader answer{ByteView{}};
  Time submitted;          // the answer tells of this time or later
  bool uncertain = false;  // some earlier try may have been served
};

}  // namespace sluice::clover
