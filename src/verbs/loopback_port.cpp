#include "verbs/loopback_port.h"

#include <cstring>

#include "wire/frame.h"

namespace sluice::verbs {

using port::Frame;
using port::kMaxFrame;

LoopbackPort::LoopbackPort(const wire::MacAddress& own, std::uint8_t place, std::unique_ptr<port::Port> outside)
    : own_(own), place_(place), outside_(std::move(outside)), scrap_(kMaxFrame) {}

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
  if (!turns_round({reserved_, length})) {
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

bool LoopbackPort::turns_round(ByteView frame) const {
  if (std::memcmp(frame.data(), own_.bytes.data(), own_.bytes.size()) != 0) return false;
  if (place_ == 0) return true;
  wire::ParsedFrame parsed;
  return wire::parse(frame, parsed) == wire::Verdict::kOk && parsed.destination.value >> 16 == place_;
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

port::PortCounters LoopbackPort::totals() const {
  port::PortCounters all = counters_;
  if (!outside_) return all;
  const port::PortCounters& outside = outside_->counters();
  all.rx_malformed += outside.rx_malformed;
  all.tx_dropped += outside.tx_dropped;
  all.tx_discarded += outside.tx_discarded;
  all.rx_lost += outside.rx_lost;
  all.resets += outside.resets;
  return all;
}

Time LoopbackPort::next_deadline() const {
  if (tail_ != head_) return Time();
  return outside_ ? outside_->next_deadline() : Time::never();
}

}  // namespace sluice::verbs
