#include "port/impaired.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace sluice::port {
namespace {

constexpr Duration kFullRetry = Duration::microseconds(10);
constexpr std::size_t kTakeIn = 32;

}  // namespace

ImpairedPort::ImpairedPort(std::unique_ptr<Port> inner, const ImpairmentSpec& spec)
    : inner_(std::move(inner)),
      tx_impaired_(spec.tx.any()),
      rx_impaired_(spec.rx.any()),
      tx_(spec.tx, Rng(spec.seed).fork("tx")),
      rx_(spec.rx, Rng(spec.seed).fork("rx")),
      cut_after_(spec.cut_after),
      frames_left_(spec.cut_after_frames == 0 ? ~std::uint64_t{0} : spec.cut_after_frames) {}

bool ImpairedPort::look_at_cable(Time now) {
  if (began_ == Time::never()) began_ = now;
  if (cut_after_ > Duration() && now - began_ >= cut_after_) cut();
  return cut_;
}

void ImpairedPort::cut() {
  cut_ = true;
  tx_lost_to_cut_ += tx_.drop_waiting() + (stuck_.data != nullptr ? 1 : 0);
  rx_lost_to_cut_ += rx_.drop_waiting();
  stuck_ = Frame();
  tx_.give_back();
  tx_retry_ = Time::never();
}

std::unique_ptr<ImpairedPort> impaired(std::unique_ptr<Port> inner, const ImpairmentSpec& spec) {
  return std::make_unique<ImpairedPort>(std::move(inner), spec);
}

std::uint8_t* ImpairedPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= kMaxFrame);
  std::uint8_t* room = tx_impaired_ ? tx_.slot() : inner_->reserve(length);
  if (room == nullptr) ++counters_.tx_full;
  return room;
}

void ImpairedPort::commit(std::size_t length) {
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
  if (frames_left_ == 0) cut();
  if (cut_) {
    ++tx_lost_to_cut_;
    return;
  }
  --frames_left_;
  if (tx_impaired_) {
    tx_.push(length);
  } else {
    inner_->commit(length);
  }
}

bool ImpairedPort::flush_some(Time now) {
  last_now_ = now;
  look_at_cable(now);
  if (tx_impaired_) {
    tx_.stamp(now);
    send_what_is_due(now);
  }
  return inner_->flush_some(now);
}

void ImpairedPort::discard() {
  tx_discarded_ += tx_.drop_unstamped();
  inner_->discard();
}

void ImpairedPort::send_what_is_due(Time now) {
  tx_retry_ = Time::never();
  for (;;) {
    if (stuck_.data == nullptr) {
      const auto frame = tx_.next(now);
      if (!frame) break;
      stuck_ = *frame;
    }
    std::uint8_t* room = inner_->reserve(stuck_.length);
    if (room == nullptr) {
      tx_retry_ = now + kFullRetry;
      return;  // the stuck frame keeps its slot
    }
    std::memcpy(room, stuck_.data, stuck_.length);
    inner_->commit(stuck_.length);
    stuck_ = Frame();
  }
  tx_.give_back();
}

std::size_t ImpairedPort::receive(Time now, std::span<Frame> burst) {
  last_now_ = now;
  look_at_cable(now);
  // Delayed frames leave in time even when their owner only receives.
  if (tx_impaired_ && (tx_.next_deadline() <= now || tx_retry_ <= now)) {
    send_what_is_due(now);
    inner_->flush(now);
  }
  if (cut_) {
    rx_lost_to_cut_ += inner_->receive(now, burst);
    return 0;
  }
  std::size_t count = 0;
  if (rx_impaired_) {
    rx_.give_back();
    take_in(now, burst.size());
    for (; count < burst.size(); ++count) {
      const auto frame = rx_.next(now);
      if (!frame) break;
      burst[count] = *frame;
    }
  } else {
    count = inner_->receive(now, burst);
  }
  if (count > frames_left_) {
    cut();
    rx_lost_to_cut_ += count - frames_left_;
    count = static_cast<std::size_t>(frames_left_);
  }
  frames_left_ -= count;
  for (const auto& frame : burst.first(count)) counters_.rx_bytes += frame.length;
  counters_.rx_frames += count;
  return count;
}

void ImpairedPort::take_in(Time now, std::size_t at_most) {
  std::array<Frame, kTakeIn> burst;
  const std::size_t room = std::min({at_most, kTakeIn, rx_.room()});
  const std::size_t count = inner_->receive(now, std::span(burst).first(room));
  for (const auto& frame : std::span(burst).first(count)) {
    std::memcpy(rx_.slot(), frame.data, frame.length);
    rx_.push(frame.length);
  }
  rx_.stamp(now);
}

Time ImpairedPort::next_deadline() const {
  if (cut_) return inner_->next_deadline();
  const bool to_be_cut = cut_after_ > Duration() && began_ != Time::never();
  return std::min({inner_->next_deadline(), tx_.next_deadline(), rx_.next_deadline(), tx_retry_,
                   to_be_cut ? began_ + cut_after_ : Time::never()});
}

bool ImpairedPort::arm() {
  if (!cut_ && rx_.next_deadline() <= last_now_) return false;  // the burst was too small for all that is due
  return inner_->arm();
}

const PortCounters& ImpairedPort::counters() const {
  const PortCounters& inner = inner_->counters();
  counters_.rx_malformed = inner.rx_malformed;
  counters_.tx_dropped = inner.tx_dropped + tx_lost_to_cut_;
  counters_.tx_discarded = inner.tx_discarded + tx_discarded_;
  counters_.rx_lost = inner.rx_lost + rx_lost_to_cut_;
  counters_.resets = inner.resets;
  return counters_;
}

}  // namespace sluice::port
