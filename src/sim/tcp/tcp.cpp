#include "sim/tcp/tcp.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr std::size_t kDuplicates = 3;                    // RFC 5681 and 6675: DupThresh
constexpr Duration kFirstTimeout = Duration::seconds(1);  // RFC 6298 §2
constexpr Duration kMostTimeout = Duration::seconds(60);

}  // namespace

// What one ACK has brought.
struct TcpSender::Arrivals {
  bool any = false;
  std::uint64_t order = 0;  // of the latest one whose round trip is known
  Duration round_trip{};
};

TcpSender::TcpSender(const TcpParameters& parameters)
    : parameters_(parameters),
      mss_(parameters.mss),
      cubic_(parameters.mss, std::uint64_t{parameters.initial_segments} * parameters.mss),
      window_end_(parameters.receive_window),
      timeout_(kFirstTimeout) {}

// -------------------------------------------------------------------------------------------------------------- sending

std::optional<std::uint64_t> TcpSender::poll_transmit(Time now) {
  if (in_flight() + mss_ > cubic_.window() && !send_one_) return std::nullopt;
  if (lost_ != 0) {
    auto place = static_cast<std::size_t>((std::max(lost_from_, first_) - first_) / mss_);
    while (!segments_[place].lost) ++place;
    lost_from_ = first_ + (place + 1) * mss_;
    segments_[place].lost = false;
    segments_[place].repaired = true;
    --lost_;
    ++counters_.repairs;
    return send(now, place);
  }
  if (next() + mss_ > window_end_) return std::nullopt;
  segments_.emplace_back();
  return send(now, segments_.size() - 1);
}

std::uint64_t TcpSender::send(Time now, std::size_t place) {
  send_one_ = false;
  segments_[place].order = ++order_;
  segments_[place].sent = now;
  ++counters_.segments;
  if (timeout_at_ == Time::never()) timeout_at_ = now + timeout_;
  return first_ + place * mss_;
}

// ----------------------------------------------------------------------------------------------------------------- ACKs

void TcpSender::on_ack(Time now, const TcpAck& ack) {
  if (ack.next < first_ || ack.next > next()) return;
  window_end_ = std::max(window_end_, ack.next + ack.window);
  // A window that was not full says nothing about the path (RFC 9438 §5.8); in slow start half of it is enough, as in Linux.
  const bool limited = (in_flight() + mss_) * (cubic_.in_slow_start() ? 2 : 1) > cubic_.window();
  const bool held = hold_window_;
  const std::uint64_t before = first_;
  Arrivals arrivals;
  take_cumulative(now, ack.next, arrivals);
  take_blocks(now, ack, arrivals);
  if (arrivals.order != 0) sample(arrivals.round_trip);
  if (!is_repairing()) hold_window_ = false;
  if (first_ != before) {
    timeout_at_ = segments_.empty() ? Time::never() : now + timeout_;
    // After a time-out one ACK may tell of all that had come before it: no burst for that (RFC 3465 §2.3).
    const std::uint64_t bytes = is_repairing() ? std::min(first_ - before, 2 * mss_) : first_ - before;
    if (!held && limited) cubic_.on_ack(now, bytes, smoothed_);
  }
  if (arrivals.any) find_losses();
}

void TcpSender::take_cumulative(Time now, std::uint64_t to, Arrivals& arrivals) {
  for (; first_ < to; first_ += mss_) {
    const Segment& segment = segments_.front();
    if (segment.arrived) {
      --arrived_;
    } else {
      note(now, segment, arrivals);
    }
    if (segment.lost) --lost_;
    segments_.pop_front();
  }
}

void TcpSender::take_blocks(Time now, const TcpAck& ack, Arrivals& arrivals) {
  for (std::uint32_t i = 0; i < ack.block_count; ++i) {
    const std::uint64_t from = std::max(ack.blocks.at(i).from, first_), to = std::min(ack.blocks.at(i).to, next());
    for (std::uint64_t at = from; at < to; at += mss_) {
      Segment& segment = segments_[(at - first_) / mss_];
      if (segment.arrived) continue;
      note(now, segment, arrivals);
      segment.arrived = true;
      ++arrived_;
      if (segment.lost) --lost_;
      segment.lost = false;
    }
  }
}

// A repair's round trip is not known (Karn's algorithm), and one that is shorter than any was answered before it came (RFC 8985 §6.2).
void TcpSender::note(Time now, const Segment& segment, Arrivals& arrivals) {
  arrivals.any = true;
  const Duration took = now - segment.sent;
  if (segment.repaired) {
    if (took >= least_) latest_ = std::max(latest_, segment.order);
    return;
  }
  latest_ = std::max(latest_, segment.order);
  if (segment.order < arrivals.order) return;
  arrivals.order = segment.order;
  arrivals.round_trip = took;
}

void TcpSender::find_losses() {
  if (arrived_ < kDuplicates && !is_repairing()) return;
  const std::size_t before = lost_;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].order < latest_) mark_lost(i);
  }
  if (lost_ == before || is_repairing()) return;
  cubic_.on_loss();
  ++counters_.losses;
  repaired_to_ = next();
  hold_window_ = true;
  send_one_ = true;
}

void TcpSender::mark_lost(std::size_t place) {
  Segment& segment = segments_[place];
  if (segment.arrived || segment.lost) return;
  segment.lost = true;
  const std::uint64_t sequence = first_ + place * mss_;
  lost_from_ = lost_++ == 0 ? sequence : std::min(lost_from_, sequence);
}

// RFC 6298 §2, in integers.
void TcpSender::sample(Duration round_trip) {
  if (smoothed_ == Duration{}) {
    smoothed_ = least_ = round_trip;
    variation_ = round_trip / 2;
  } else {
    const Duration off = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
    variation_ = (variation_ * 3 + off) / 4;
    smoothed_ = (smoothed_ * 7 + round_trip) / 8;
    least_ = std::min(least_, round_trip);
  }
  timeout_ = std::clamp(smoothed_ + variation_ * 4, parameters_.least_timeout, kMostTimeout);
}

void TcpSender::on_deadline(Time now) {
  if (now < timeout_at_) return;
  ++counters_.timeouts;
  cubic_.on_timeout(is_repairing());
  for (std::size_t i = 0; i < segments_.size(); ++i) mark_lost(i);
  repaired_to_ = next();
  hold_window_ = false;
  send_one_ = true;
  timeout_ = std::min(timeout_ * 2, kMostTimeout);
  timeout_at_ = now + timeout_;
}

// ------------------------------------------------------------------------------------------------------------- receiver

TcpReceiver::TcpReceiver(const TcpParameters& parameters) : parameters_(parameters) {}

void TcpReceiver::on_segment(Time now, std::uint64_t sequence) {
  ++owed_;
  if (sequence == next_) {
    ack_now_ |= !blocks_.empty();
    next_ += parameters_.mss;
    const auto joined = std::ranges::find(blocks_, next_, &TcpBlock::from);
    if (joined != blocks_.end()) {
      next_ = joined->to;
      blocks_.erase(joined);
    }
  } else {
    ack_now_ = true;
    if (sequence > next_) keep({sequence, sequence + parameters_.mss});
  }
  ack_now_ |= owed_ >= parameters_.ack_every;
  if (ack_at_ == Time::never()) ack_at_ = now + parameters_.ack_delay;
}

// Joins it with what it overlaps or touches.
void TcpReceiver::keep(TcpBlock block) {
  std::erase_if(blocks_, [&](const TcpBlock& old) {
    if (old.to < block.from || old.from > block.to) return false;
    block = {std::min(block.from, old.from), std::max(block.to, old.to)};
    return true;
  });
  blocks_.insert(blocks_.begin(), block);
}

std::optional<TcpAck> TcpReceiver::poll_transmit(Time) {
  if (!ack_now_) return std::nullopt;
  ack_now_ = false;
  owed_ = 0;
  ack_at_ = Time::never();
  TcpAck ack{.next = next_, .window = parameters_.receive_window};
  for (; ack.block_count < std::min(blocks_.size(), TcpAck::kMostBlocks); ++ack.block_count)
    ack.blocks.at(ack.block_count) = blocks_[ack.block_count];
  return ack;
}

void TcpReceiver::on_deadline(Time now) {
  if (now >= ack_at_) ack_now_ = true;
}

}  // namespace sluice::sim
