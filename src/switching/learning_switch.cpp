#include "switching/learning_switch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "wire/ethernet.h"
#include "wire/frame.h"

namespace sluice::switching {

using wire::EthernetHeader;
using wire::MacAddress;

std::string_view to_string(DropReason reason) {
  switch (reason) {
    case DropReason::kRunt: return "runt";
    case DropReason::kBadSource: return "bad source";
    case DropReason::kSamePort: return "same port";
    case DropReason::kFloodLimit: return "flood limit";
    case DropReason::kQueueFull: return "queue full";
    case DropReason::kStage: return "taken by stage";
    case DropReason::kRouterUnknown: return "no route";
    case DropReason::kRouterTtl: return "hops used up";
    case DropReason::kRouterMalformed: return "not routable";
  }
  return "?";
}

LearningSwitch::LearningSwitch(SwitchConfig config)
    : config_(std::move(config)),
      strays_{{}, Time(), config_.flood_burst},
      macs_(config_.mac_slots, config_.mac_age, config_.seed),
      router_(config_.router) {}

LearningSwitch::~LearningSwitch() = default;

std::optional<PortNumber> LearningSwitch::attach(Time now, port::FrameSink& out) {
  if (attached_ == config_.max_ports) return std::nullopt;
  const auto free = std::find(ports_.begin(), ports_.end(), nullptr);
  const auto number = static_cast<std::uint16_t>(free - ports_.begin());
  auto state = std::make_unique<PortState>(
      PortState{{{}, now, config_.flood_burst}, PortNumber{number}, &out, EgressQueue(config_.queue_bytes)});
  if (free == ports_.end()) {
    ports_.push_back(std::move(state));
  } else {
    *free = std::move(state);
  }
  ++attached_;
  return PortNumber{number};
}

void LearningSwitch::detach(PortNumber port) {
  SLUICE_CHECK(find(port) != nullptr);
  std::erase(waiting_, find(port));
  macs_.forget(port);
  if (tap_ != nullptr) tap_->detached(port);
  ports_[port.value].reset();
  --attached_;
}

inline bool LearningSwitch::is_refused(port::Frame frame, Ingress& in) const {
  if (frame.length < EthernetHeader::kSize) {
    ++in.statistics.dropped(DropReason::kRunt);
    return true;
  }
  const std::uint8_t* const source = frame.data + 6;
  const bool is_multicast = (*source & 1) != 0;
  if (!is_multicast && !(router_.enabled() && std::memcmp(source, router_.mac().bytes.data(), 6) == 0)) return false;
  ++in.statistics.dropped(DropReason::kBadSource);
  return true;
}

void LearningSwitch::process(Time now, PortNumber port, std::span<port::Frame> burst) {
  PortState* in = find(port);
  SLUICE_CHECK(in != nullptr && burst.size() <= kBurst);
  in->statistics.rx_frames += burst.size();
  for (const port::Frame& frame : burst) in->statistics.rx_bytes += frame.length;
  if (probe_ != nullptr) {
    for (const port::Frame& frame : burst) probe_->comes(now, frame);
  }
  if (tap_ != nullptr) {
    for (const port::Frame& frame : burst) tap_->sees(port, Direction::kIn, frame.bytes());
  }
  if (stage_ == nullptr) {
    for (const port::Frame& frame : burst) {
      if (!is_refused(frame, *in)) forward(now, frame, *in);
    }
    return;
  }
  if (!outbox_) outbox_ = std::make_unique<FrameBuffer>();
  std::array<Packet, kBurst> room;
  std::size_t count = 0;
  for (const port::Frame& frame : burst) {
    if (!is_refused(frame, *in)) room[count++] = {frame, port, Packet::Action::kForward};
  }
  if (count == 0) return;
  const auto packets = std::span(room).first(count);
  stage_->process(now, packets, *outbox_);
  for (const Packet& packet : packets) {
    if (packet.action == Packet::Action::kForward) {
      forward(now, packet.frame, *in);
    } else {
      learn_source(now, packet.frame, port);
      ++in->statistics.dropped(DropReason::kStage);
    }
  }
  forward_outbox(now);
}

void LearningSwitch::on_deadline(Time now) {
  if (stage_ == nullptr || now < stage_->next_deadline()) return;
  if (!outbox_) outbox_ = std::make_unique<FrameBuffer>();
  stage_->on_deadline(now, *outbox_);
  forward_outbox(now);
}

void LearningSwitch::offer_spare(Time now) {
  if (stage_ == nullptr) return;
  if (!outbox_) outbox_ = std::make_unique<FrameBuffer>();
  stage_->on_spare(now, *this, *outbox_);
  if (outbox_->size() != 0) forward_outbox(now);
}

// Of an address that is not known nothing waits.
bool LearningSwitch::is_idle(Time now, const wire::MacAddress& to) const {
  const auto port = macs_.find(now, to);
  return !port || ports_[port->value]->queue.empty();
}

void LearningSwitch::forward_outbox(Time now) {
  for (std::size_t i = 0; i < outbox_->size(); ++i) forward_made(now, outbox_->frame(i));
  outbox_->clear();
}

// It teaches nothing.
void LearningSwitch::forward_made(Time now, port::Frame frame) {
  if (frame.length < EthernetHeader::kSize) {
    ++strays_.statistics.dropped(DropReason::kRunt);
    return;
  }
  if (probe_ != nullptr) probe_->leaves(now, frame.bytes());
  MacAddress destination;
  MacAddress source;
  std::memcpy(destination.bytes.data(), frame.data, 6);
  std::memcpy(source.bytes.data(), frame.data + 6, 6);
  const auto from = macs_.find(now, source);
  Ingress* const in = from ? ports_[from->value].get() : &strays_;
  const bool is_routed = router_.enabled() && destination == router_.mac();
  if (is_routed) {
    if (!pass_router(now, frame, *in)) return;
    std::memcpy(destination.bytes.data(), frame.data, 6);
  }
  const auto out = destination.is_multicast() ? std::nullopt : macs_.find(now, destination);
  if (!out) return flood(now, frame.bytes(), *in);
  if (out == from && !is_routed && destination != source) {
    ++in->statistics.dropped(DropReason::kSamePort);
    return;
  }
  send(*ports_[out->value], frame.bytes());
}

// From a frame that the stage has taken: it may come back by forward_made(), which teaches nothing.
void LearningSwitch::learn_source(Time now, port::Frame frame, PortNumber in) {
  MacAddress source;
  std::memcpy(source.bytes.data(), frame.data + 6, 6);
  macs_.learn(now, source, in);
}

void LearningSwitch::forward(Time now, port::Frame frame, PortState& in) {
  if (probe_ != nullptr) probe_->leaves(now, frame.bytes());
  MacAddress destination;
  MacAddress source;
  std::memcpy(destination.bytes.data(), frame.data, 6);
  std::memcpy(source.bytes.data(), frame.data + 6, 6);
  macs_.learn(now, source, in.number);
  if (destination.is_multicast()) {
    if (router_.enabled()) {
      router_.snoop_arp(frame.bytes());
      if (const auto answer = router_.answer_arp(frame.bytes())) return send(in, *answer);
    }
    return flood(now, frame.bytes(), in);
  }
  if (router_.enabled() && destination == router_.mac()) return route(now, frame, in);
  const auto out = macs_.find(now, destination);
  if (!out) return flood(now, frame.bytes(), in);
  if (*out == in.number) {
    ++in.statistics.dropped(DropReason::kSamePort);
    return;
  }
  send(*ports_[out->value], frame.bytes());
}

void LearningSwitch::route(Time now, port::Frame frame, PortState& in) {
  router_.snoop_arp(frame.bytes());
  if (const auto answer = router_.answer_arp(frame.bytes())) return send(in, *answer);
  if (!pass_router(now, frame, in)) return;
  MacAddress destination;
  std::memcpy(destination.bytes.data(), frame.data, 6);
  const auto out = macs_.find(now, destination);
  if (!out) return flood(now, frame.bytes(), in);
  send(*ports_[out->value], frame.bytes());  // between two subnets on one port the way back is right
}

bool LearningSwitch::pass_router(Time now, port::Frame frame, Ingress& in) {
  std::optional<std::array<std::uint8_t, 42>> request;
  switch (router_.route(frame.mutable_bytes(), request)) {
    case Router::Outcome::kForward: return true;
    case Router::Outcome::kUnknown:
      ++in.statistics.dropped(DropReason::kRouterUnknown);
      if (request && take_flood_token(now, in)) send_to_all(*request, nullptr);
      break;
    case Router::Outcome::kTtlExceeded: ++in.statistics.dropped(DropReason::kRouterTtl); break;
    case Router::Outcome::kMalformed: ++in.statistics.dropped(DropReason::kRouterMalformed); break;
  }
  return false;
}

void LearningSwitch::flood(Time now, ByteView frame, Ingress& in) {
  if (!take_flood_token(now, in)) {
    ++in.statistics.dropped(DropReason::kFloodLimit);
    return;
  }
  ++in.statistics.flooded;
  send_to_all(frame, &in);
}

void LearningSwitch::send_to_all(ByteView frame, const Ingress* except) {
  for (const auto& out : ports_) {
    if (out && out.get() != except) send(*out, frame);
  }
}

bool LearningSwitch::take_flood_token(Time now, Ingress& in) const {
  const std::uint64_t earned =
      static_cast<std::uint64_t>((now - in.tokens_at).microseconds()) * config_.flood_rate / 1'000'000;
  if (earned != 0) {
    // What has been earned of the next one is kept, unless there is no room for it.
    const bool overflows = in.tokens + earned > config_.flood_burst;
    in.tokens_at =
        overflows ? now
                  : in.tokens_at +
                        Duration::nanoseconds(static_cast<std::int64_t>(earned * 1'000'000'000 / config_.flood_rate));
    in.tokens = std::min<std::uint64_t>(in.tokens + earned, config_.flood_burst);
  }
  if (in.tokens == 0) return false;
  --in.tokens;
  return true;
}

void LearningSwitch::send(PortState& out, ByteView frame) {
  if (out.queue.empty()) {
    if (std::uint8_t* const room = port::reserve_at_once(*out.out, frame.size())) {
      std::memcpy(room, frame.data(), frame.size());
      out.out->commit(frame.size());
      ++out.statistics.tx_frames;
      out.statistics.tx_bytes += frame.size();
      if (tap_ != nullptr) tap_->sees(out.number, Direction::kOut, frame);
      return;
    }
    waiting_.push_back(&out);
  }
  const MutableBytes copy = out.queue.push(frame);
  if (copy.empty()) {
    ++out.statistics.dropped(DropReason::kQueueFull);
    return;
  }
  ++out.statistics.queued;
  if (config_.ecn_threshold_bytes != 0 && out.queue.bytes() > config_.ecn_threshold_bytes) mark(out, copy);
  if (tap_ != nullptr) tap_->sees(out.number, Direction::kOut, copy);
}

void LearningSwitch::mark(PortState& out, MutableBytes frame) {
  wire::ParsedFrame parsed;
  if (wire::parse(frame, parsed) != wire::Verdict::kOk || parsed.ecn() == wire::Ecn::kNotCapable) return;
  wire::mark_congestion(frame.data(), parsed);
  ++out.statistics.ecn_marked;
}

std::size_t LearningSwitch::drain() {
  std::size_t left = 0;
  for (PortState* port : waiting_) {
    port->queue.drain(*port->out, [&](std::size_t length) {
      ++port->statistics.tx_frames;
      port->statistics.tx_bytes += length;
    });
    left += port->queue.frames();
  }
  std::erase_if(waiting_, [](const PortState* port) { return port->queue.empty(); });
  return left;
}

}  // namespace sluice::switching
