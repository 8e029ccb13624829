#include "switching/egress_queue.h"

#include "base/check.h"

namespace sluice::switching {

EgressQueue::EgressQueue(std::size_t capacity) : capacity_(capacity / 4 * 4) {
  SLUICE_CHECK(capacity_ >= 2 * port::kMaxFrame);
}

MutableBytes EgressQueue::push(ByteView frame) {
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::uint8_t[]>(capacity_);
  if (frames_ == 0)
    head_ = tail_ = used_ = 0;  // else what is left behind the last frame could be too short for this one
  const std::size_t needed = record_size(frame.size());
  const std::size_t to_end = capacity_ - tail_;
  const std::size_t skipped = to_end < needed ? to_end : 0;
  if (used_ + skipped + needed > capacity_) return {};
  if (skipped != 0) {
    store_le(&buffer_[tail_], kWrap);
    used_ += skipped;
    tail_ = 0;
  }
  store_le(&buffer_[tail_], static_cast<std::uint32_t>(frame.size()));
  std::memcpy(&buffer_[tail_ + kHeader], frame.data(), frame.size());
  const MutableBytes copy{&buffer_[tail_ + kHeader], frame.size()};
  tail_ = (tail_ + needed) % capacity_;
  used_ += needed;
  ++frames_;
  return copy;
}

ByteView EgressQueue::front() {
  if (load_le<std::uint32_t>(&buffer_[head_]) == kWrap) {
    used_ -= capacity_ - head_;
    head_ = 0;
  }
  return {&buffer_[head_ + kHeader], load_le<std::uint32_t>(&buffer_[head_])};
}

void EgressQueue::pop() {
  const std::size_t size = record_size(front().size());
  head_ = (head_ + size) % capacity_;
  used_ -= size;
  --frames_;
}

}  // namespace sluice::switching
