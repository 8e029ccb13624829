#include "sim/world/pipe.h"

#include <algorithm>

#include "wire/frame.h"

namespace sluice::sim {
namespace {

__extension__ using Wide = unsigned __int128;

}  // namespace

Pipe::Pipe(EventLoop& loop, PacketPool& pool, const PipeParameters& parameters, Consumer& consumer, Rng rng)
    : loop_(loop), pool_(pool), parameters_(parameters), consumer_(consumer), rng_(rng) {}

Pipe::~Pipe() {
  for (PacketLine* line : {&flying_, &held_}) {
    while (!line->empty()) pool_.give_back(line->pop());
  }
}

Duration Pipe::wire_time(std::uint32_t length) const {
  const std::uint64_t bytes = std::max(length + kWireOverhead, kLeastOnWire);
  constexpr std::uint64_t kPerSecond = 1'000'000'000'000;
  return Duration::picoseconds(static_cast<std::int64_t>(bytes * 8 * kPerSecond / parameters_.bits_per_second));
}

std::uint64_t Pipe::queued_bytes(Time now) const {
  if (free_at_ <= now) return held_bytes_;
  const auto ps = static_cast<std::uint64_t>((free_at_ - now).picoseconds());
  return held_bytes_ + static_cast<std::uint64_t>(Wide{ps / 1'000} * parameters_.bits_per_second / 8'000'000'000);
}

void Pipe::send(Time now, Time ready, Packet* packet) {
  const std::uint64_t queued = queued_bytes(now);
  if (queued + packet->length > parameters_.queue_bytes) {
    ++counters_.overflows;
    return drop(now, packet);
  }
  if (parameters_.ecn_from != 0 && queued > parameters_.ecn_from) mark(queued, packet);
  ++counters_.packets;
  counters_.bytes += packet->length;
  packet->ready = ready;
  if (paused_) {
    held_bytes_ += packet->length;
    return held_.push(packet);
  }
  transmit(packet);
}

void Pipe::transmit(Packet* packet) {
  free_at_ = std::max(packet->ready, free_at_) + wire_time(packet->length);
  packet->when = free_at_ + parameters_.delay;
  if (flying_.empty()) loop_.schedule(*this, packet->when);
  flying_.push(packet);
}

void Pipe::send_low(Time now) {
  if (free_at_ > now) return loop_.schedule(low_turn_, free_at_);
  Packet* const packet = low_->next(now);
  if (packet == nullptr) return;
  low_sending_ = packet;
  packet->ready = now;
  transmit(packet);
  loop_.schedule(low_turn_, free_at_);
}

void Pipe::fire(Time now) {
  Packet* const packet = flying_.pop();
  if (!flying_.empty()) loop_.schedule(*this, flying_.front()->when);
  if (parameters_.loss_per_million != 0 && rng_.chance_per_million(parameters_.loss_per_million)) {
    ++counters_.lost;
    return drop(now, packet);
  }
  if (observer_ != nullptr) observer_->on_left(now, *packet);
  consumer_.on_packet(now, packet);
}

// What has not begun to leave is held back.
void Pipe::pause(Time now) {
  if (paused_) return;
  paused_ = true;
  ++counters_.pauses;
  PacketLine going;
  free_at_ = now;
  while (!flying_.empty()) {
    Packet* const packet = flying_.pop();
    const Time sent = packet->when - parameters_.delay;
    const Time began = sent - wire_time(packet->length);
    if (began < now || (began == now && packet == low_sending_)) {
      free_at_ = std::max(now, sent);
      going.push(packet);
    } else {
      held_bytes_ += packet->length;
      held_.push(packet);
    }
  }
  flying_ = going;
  if (flying_.empty()) loop_.cancel(*this);
  // What is held back is in nobody's way.
  if (low_turn_.scheduled()) loop_.schedule(low_turn_, free_at_);
}

void Pipe::resume(Time now) {
  if (!paused_) return;
  paused_ = false;
  held_bytes_ = 0;
  free_at_ = std::max(free_at_, now);
  while (!held_.empty()) transmit(held_.pop());
}

void Pipe::mark(std::uint64_t queued, Packet* packet) {
  if (queued < parameters_.ecn_to) {
    const std::uint64_t share = parameters_.ecn_most_per_million * (queued - parameters_.ecn_from) /
                                (parameters_.ecn_to - parameters_.ecn_from);
    if (!rng_.chance_per_million(static_cast<std::uint32_t>(share))) return;
  }
  wire::ParsedFrame parsed;
  if (wire::parse(packet->frame().bytes(), parsed) != wire::Verdict::kOk) return;
  if (parsed.ecn() == wire::Ecn::kNotCapable) return;
  wire::mark_congestion(packet->data, parsed);
  ++counters_.marked;
}

void Pipe::drop(Time now, Packet* packet) {
  if (observer_ != nullptr) observer_->on_left(now, *packet);
  pool_.give_back(packet);
}

}  // namespace sluice::sim
