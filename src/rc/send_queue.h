// Send queue: posted work in order, each entry with the PSNs it has been given once started.
//
// Invariant:  head <= tail; entries are completed in the order in which they were posted.
// Limits:     `depth` entries of `max_sges` pieces and `max_inline` bytes each, allocated once.
// Source:     IBTA vol. 1 §10.8.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "rc/local_memory.h"
#include "rc/work.h"

namespace sluice::rc {

// One cache line.
struct alignas(64) SendWqe {
  std::uint64_t id = 0;
  std::uint64_t remote_address = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_or_add = 0;
  memory::Key remote_key{};
  std::uint32_t length = 0;
  std::uint32_t immediate = 0;  // or the key to invalidate
  // Once started:
  Psn first_psn{};
  std::uint32_t packets = 0;   // PSNs it takes; of a READ, its response's
  std::uint32_t received = 0;  // READ: response packets that have come, in order
  SendOp op{};
  CompletionStatus status = CompletionStatus::kSuccess;  // kLocalProtectionError: its memory is not to be had
  std::uint8_t sge_count = 0;
  SendFlags flags{};
  std::uint32_t expires = 0;  // not_after in ticks; 0: never

  // About a millisecond. They begin anew after 53 days, which is far from where differences of two turn over.
  static std::uint32_t ticks(Time time) { return static_cast<std::uint32_t>(time.since_start().picoseconds() >> 30); }
  bool expired(Time now) const { return expires != 0 && static_cast<std::int32_t>(ticks(now) - expires) >= 0; }
  bool reads() const { return rc::reads(op); }
  bool is_atomic() const { return rc::is_atomic(op); }
  bool takes_receive() const {
    return op == SendOp::kSend || op == SendOp::kSendWithImmediate || op == SendOp::kSendWithInvalidate ||
           op == SendOp::kWriteWithImmediate;
  }
  Psn last_psn() const { return first_psn + (packets - 1); }
};
static_assert(sizeof(SendWqe) == 64);

class SendQueue {
 public:
  SendQueue(std::uint32_t depth, std::uint32_t max_sges, std::uint32_t max_inline)
      : depth_(depth),
        max_sges_(max_sges),
        max_inline_(max_inline),
        mask_(std::bit_ceil(depth) - 1),
        wqes_(mask_ + 1),
        pieces_(std::size_t{mask_ + 1} * std::max(max_sges, 1u)),
        inline_(std::size_t{mask_ + 1} * max_inline) {}

  std::uint32_t head() const { return head_; }
  std::uint32_t tail() const { return tail_; }
  std::uint32_t size() const { return tail_ - head_; }
  bool full() const { return size() == depth_; }
  SendWqe& operator[](std::uint32_t index) { return wqes_[index & mask_]; }
  const SendWqe& operator[](std::uint32_t index) const { return wqes_[index & mask_]; }
  std::span<LocalPiece> pieces(std::uint32_t index) {
    return {&pieces_[std::size_t{index & mask_} * std::max(max_sges_, 1u)], wqes_[index & mask_].sge_count};
  }

  // Copies the request in.
  PostError push(const SendRequest& request);
  // What that would return.
  PostError check(const SendRequest& request) const;
  void pop() { ++head_; }
  std::uint32_t depth() const { return depth_; }

 private:
  std::uint32_t depth_;
  std::uint32_t max_sges_;
  std::uint32_t max_inline_;
  std::uint32_t mask_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  std::vector<SendWqe> wqes_;
  std::vector<LocalPiece> pieces_;
  std::vector<std::uint8_t> inline_;
};

}  // namespace sluice::rc
