#include "verbs/loopback_port.h"

#include <cstring>

namespace sluice::verbs {

using port::Frame;
using port::kMaxFrame;

LoopbackPort::LoopbackPort(const wire::MacAddress& own, std::unique_ptr<port::Port> outside)
    : own_(own), outside_(std::move(outside)), scrap_(kMaxFrame) {}

// Where a frame goes is known only when it is written: so there must be room on both ways.
std::uint8_t* LoopbackPort::reserve(std::size_t length) {
  reserved_ = nullptr;
  if (tail_ - head_ < kSlots) reserved_ = outside_ ? outside_->reserve(length) : scrap_.data();
  if (reserved_ == nullptr) ++counters_.tx_full;
  return reserved_;
}

void LoopbackPort::commit(std::size_t length) {
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
  if (std::memcmp(reserved_, own_.bytes.data(), own_.bytes.size()) != 0) {
    if (outside_) return outside_->commit(length);
    ++counters_.tx_dropped;
    return;
  }
  if (slots_.empty()) {
    slots_.resize(kSlots * kMaxFrame);
    lengths_.resize(kSlots);
  }
  std::memcpy(slot(tail_), reserved_, length);
  lengths_[tail_ % kSlots] = static_cast<std::uint32_t>(length);
  ++tail_;
}

void LoopbackPort::flush(Time now) {
  if (outside_) outside_->flush(now);
}

std::size_t LoopbackPort::receive(Time now, std::span<Frame> burst) {
  head_ = next_;
  std::size_t count = 0;
  for (; count < burst.size() && next_ != tail_; ++count, ++next_) {
    burst[count] = {slot(next_), lengths_[next_ % kSlots]};
  }
  if (outside_) count += outside_->receive(now, burst.subspan(count));
  for (const Frame& frame : burst.first(count)) counters_.rx_bytes += frame.length;
  counters_.rx_frames += count;
  return count;
}

Time LoopbackPort::next_deadline() const {
  if (tail_ != head_) return Time();
  return outside_ ? outside_->next_deadline() : Time::never();
}

}  // namespace sluice::verbs
