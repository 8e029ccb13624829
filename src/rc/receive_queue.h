// Receive queue, own or shared: buffers posted for incoming SENDs and for the notice of WRITEs with immediate.
//
// Invariant:  buffers are taken in posting order.
// Limits:     `depth` entries of `max_sges` pieces, allocated once.
// Source:     IBTA vol. 1 §10.8.3, §10.2.9 (shared receive queues).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "rc/local_memory.h"
#include "rc/work.h"

namespace sluice::rc {

class ReceiveQueue {
 public:
  ReceiveQueue(std::uint32_t depth, std::uint32_t max_sges)
      : depth_(depth),
        max_sges_(max_sges),
        mask_(std::bit_ceil(std::max(depth, 1u)) - 1),
        entries_(mask_ + 1),
        pieces_(std::size_t{mask_ + 1} * std::max(max_sges, 1u)) {}

  std::uint32_t size() const { return tail_ - head_; }
  bool empty() const { return head_ == tail_; }
  std::uint32_t depth() const { return depth_; }

  PostError push(const ReceiveRequest& request);
  // REQUIRES: not empty. Copies the pieces to `into`, which has room for max_sges.
  struct Taken {
    std::uint64_t id = 0;
    std::uint8_t sge_count = 0;
  };
  Taken take(std::span<LocalPiece> into);
  std::uint32_t max_sges() const { return max_sges_; }

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint8_t sge_count = 0;
  };
  std::uint32_t depth_;
  std::uint32_t max_sges_;
  std::uint32_t mask_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  std::vector<Entry> entries_;
  std::vector<LocalPiece> pieces_;
};

// One receive queue for many queue pairs. Its buffers lie in its own protection domain (§10.2.9.2).
class SharedReceiveQueue {
 public:
  SharedReceiveQueue(memory::PdId domain, std::uint32_t depth, std::uint32_t max_sges)
      : pd(domain), queue(depth, max_sges) {}
  memory::PdId pd;
  ReceiveQueue queue;
  std::uint32_t limit = 0;  // below this many buffers, tell once
  std::function<void()> on_limit{};

  // REQUIRES: not empty.
  ReceiveQueue::Taken take(std::span<LocalPiece> into) {
    const ReceiveQueue::Taken taken = queue.take(into);
    if (limit != 0 && queue.size() < limit) [[unlikely]] {
      limit = 0;
      if (on_limit) on_limit();
    }
    return taken;
  }
};

}  // namespace sluice::rc
