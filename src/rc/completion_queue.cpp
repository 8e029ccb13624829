#include "rc/completion_queue.h"

#include <algorithm>
#include <bit>
#include <new>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace sluice::rc {

CompletionQueue::Ring CompletionQueue::make_ring(std::uint32_t depth) {
  static_assert(std::is_trivially_copyable_v<Completion>);
  SLUICE_CHECK(depth > 0);
  Ring ring(static_cast<Completion*>(std::malloc(std::size_t{std::bit_ceil(depth)} * sizeof(Completion))));
  if (!ring) throw std::bad_alloc();
  return ring;
}

CompletionQueue::CompletionQueue(std::uint32_t depth)
    : ring_(make_ring(depth)), depth_(depth), mask_(std::bit_ceil(depth) - 1) {}

bool CompletionQueue::resize(std::uint32_t depth) {
  if (size() > depth) return false;
  Ring ring = make_ring(depth);
  const std::uint32_t kept = size();
  for (std::uint32_t i = 0; i < kept; ++i) ring[i] = ring_[(head_ + i) & mask_];
  ring_ = std::move(ring);
  depth_ = depth;
  mask_ = std::bit_ceil(depth) - 1;
  head_ = 0;
  tail_ = kept;
  return true;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  const auto n = std::min<std::size_t>(out.size(), size());
  for (std::size_t i = 0; i < n; ++i) out[i] = ring_[head_++ & mask_];
  if (head_ == tail_) head_ = tail_ = 0;
  return n;
}

void CompletionQueue::notify(const Completion& completion) {
  if (notify_ == Notify::kSolicited && !completion.solicited && completion.status == CompletionStatus::kSuccess) return;
  notify_ = Notify::kNone;
  if (on_event_) on_event_();
}

void CompletionQueue::remove_of(Qpn qpn) {
  std::uint32_t kept = head_;
  for (std::uint32_t i = head_; i != tail_; ++i) {
    if (ring_[i & mask_].qpn != qpn) ring_[kept++ & mask_] = ring_[i & mask_];
  }
  tail_ = kept;
}

}  // namespace sluice::rc
