#include "rc/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "rc/connection_manager.h"
#include "rc/neighbors.h"
#include "wire/bth.h"

namespace sluice::rc {
namespace {

constexpr std::uint32_t kQuantum = 16;          // packets that one queue pair may send before the next has its turn
constexpr std::uint32_t kManagementEvery = 64;  // turns of queue pairs after which ARP and MADs have theirs
constexpr std::uint32_t kMaxWindow = 1u << 22;  // packets; a quarter of all PSNs
constexpr Qpn kManagementQpn{1};
constexpr std::uint32_t kManagementQkey = 0x8001'0000;
constexpr std::size_t kMadSize = 256;
constexpr std::size_t kMaxUnresolvedMads = 256;

}  // namespace

Adapter::Adapter(const AdapterConfig& config)
    : config_(config),
      rng_(config.seed),
      feigned_rnr_{config.feigned_rnr_ppm, Rng(config.seed).fork("rnr")},
      regions_(config.regions) {
  SLUICE_CHECK(!config_.gids.empty());
  for (const wire::Gid& gid : config_.gids) own_.emplace_back(gid);
  config_.max_unacked_packets = std::clamp(config_.max_unacked_packets, 1u, kMaxWindow);
  dcqcn_parameters_.line_rate = config_.line_rate;
  if (!regions_) regions_ = std::make_shared<memory::RegionTable>(rng_.fork("regions"));
  neighbors_ = std::make_unique<Neighbors>(NeighborsConfig{.mac = config_.mac, .own = config_.gids});
}

Adapter::~Adapter() = default;

memory::PdId Adapter::create_domain() { return memory::PdId{next_domain_++}; }

CompletionQueue* Adapter::create_completion_queue(std::uint32_t depth) {
  completion_queues_.push_back(std::make_unique<CompletionQueue>(depth));
  return completion_queues_.back().get();
}

void Adapter::destroy(CompletionQueue* queue) {
  std::erase_if(completion_queues_, [&](const auto& q) { return q.get() == queue; });
}

SharedReceiveQueue* Adapter::create_shared_receive_queue(memory::PdId domain, std::uint32_t depth,
                                                         std::uint32_t max_sges) {
  shared_receives_.push_back(std::make_unique<SharedReceiveQueue>(domain, depth, max_sges));
  return shared_receives_.back().get();
}

void Adapter::destroy(SharedReceiveQueue* queue) {
  std::erase_if(shared_receives_, [&](const auto& q) { return q.get() == queue; });
}

Result<QueuePair*> Adapter::create_queue_pair(const QueuePairConfig& c) {
  const AdapterLimits& limits = config_.limits;
  if (c.send_completions == nullptr || c.receive_completions == nullptr)
    return fail("a queue pair needs its completion queues");
  if (c.send_depth == 0 || c.send_depth > limits.max_send_depth || c.receive_depth > limits.max_receive_depth) {
    return fail(fmt::format("work queues hold 1 to {} sends and at most {} receives", limits.max_send_depth,
                            limits.max_receive_depth));
  }
  if (c.max_send_sges > limits.max_sges || c.max_receive_sges > limits.max_sges) {
    return fail(fmt::format("at most {} sges a work request", limits.max_sges));
  }
  if (c.max_inline > limits.max_inline) return fail(fmt::format("at most {} bytes inline", limits.max_inline));
  if (live_pairs_ == limits.max_queue_pairs) return fail(fmt::format("at most {} queue pairs", limits.max_queue_pairs));
  std::uint32_t place = 0;
  // A QPN rests as long as there are fresh ones, so that late packets do not meet its successor.
  if (pairs_.size() < limits.max_queue_pairs) {
    place = static_cast<std::uint32_t>(pairs_.size());
    pairs_.emplace_back();
  } else {
    place = free_places_.front();
    free_places_.pop_front();
  }
  const Qpn qpn{config_.first_qpn.value + place};
  const auto max_reads = static_cast<std::uint8_t>(std::min(limits.max_reads_in_flight, 255u));
  pairs_[place] = std::make_unique<QueuePair>(qpn, c, max_reads, *regions_, counters_);
  pairs_[place]->connection_.feigned_rnr = &feigned_rnr_;
  pairs_[place]->connection_.coalesce_acks = config_.coalesce_acks;
  pairs_[place]->connection_.advertise_credits = config_.advertise_credits;
  pairs_[place]->connection_.max_unacked_packets = config_.max_unacked_packets;
  deadlines_.reserve(++live_pairs_);
  return pairs_[place].get();
}

void Adapter::destroy(QueuePair* pair) {
  const std::uint32_t place = pair->qpn().value - config_.first_qpn.value;
  enter_reset(*pair);
  pairs_[place].reset();
  free_places_.push_back(place);
  --live_pairs_;
}

QueuePair* Adapter::find(Qpn qpn) const {
  const std::uint32_t place = qpn.value - config_.first_qpn.value;
  return place < pairs_.size() ? pairs_[place].get() : nullptr;
}

ConnectionManager& Adapter::connections() {
  if (!connections_) connections_ = std::make_unique<ConnectionManager>(*this, rng_.fork("connections"));
  return *connections_;
}

PostError Adapter::post_send(Time now, QueuePair& pair, const SendRequest& request) {
  if (pair.state_ != QpState::kReadyToSend) [[unlikely]]
    return post_elsewhere(pair, request);
  const PostError error = pair.post(request);
  if (error != PostError::kNone) return error;
  if (!pair.is_linked()) {
    if (pair.can_transmit(now)) {
      active_.push_back(pair);
    } else if (config_.dcqcn) {
      note_deadline(pair);  // its pace may be what it waits for
    }
  }
  if (!pair.connection_.path_ready) neighbors_->resolve(now, pair.connection_.remote_gid);
  return error;
}

// Outside of RTS: SQD keeps the work, the error states take it and flush it at once (§10.3.1).
PostError Adapter::post_elsewhere(QueuePair& pair, const SendRequest& request) {
  const PostError error = check_send(pair, request);
  if (error != PostError::kNone) return error;
  pair.post(request);
  if (pair.state_ == QpState::kSendQueueDrained) return error;
  pair.flush_sends();
  tell_overruns(pair);
  settle(pair);  // a completion that found no room ends the queue pair
  return error;
}

PostError Adapter::check_send(const QueuePair& pair, const SendRequest& request) const {
  const QpState state = pair.state_;
  const bool takes = state == QpState::kReadyToSend || state == QpState::kSendQueueDrained ||
                     state == QpState::kSendQueueError || state == QpState::kError;
  return takes ? pair.check(request) : PostError::kWrongState;
}

PostError Adapter::post_receive(QueuePair& pair, const ReceiveRequest& request) {
  if (pair.state_ == QpState::kReset) return PostError::kWrongState;
  if (pair.config_.shared_receives != nullptr) return PostError::kUnsupportedOp;
  const PostError error = pair.own_receives_.queue.push(request);
  if (error != PostError::kNone || pair.state_ != QpState::kError) return error;
  pair.flush_receives();
  tell_overruns(pair);
  return error;
}

PostError Adapter::post_receive(SharedReceiveQueue& queue, const ReceiveRequest& request) {
  return queue.queue.push(request);
}

[[gnu::always_inline]] inline void Adapter::dispatch(Time now, QueuePair& pair, const std::uint8_t* frame,
                                                     const wire::ParsedFrame& parsed) {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (!pair.is_open()) {
    ++counters_.rx_wrong_state;
    return;
  }
  if (!pair.is_datagram() && !pair.connection_.peer.is_source(frame, parsed)) {
    ++counters_.rx_wrong_source;
    return;
  }
  if (traits.transport != pair.config_.transport) {
    if (traits.transport != wire::Transport::kCnp || pair.is_datagram()) {
      ++counters_.rx_wrong_transport;
      return;
    }
    ++counters_.rx_cnp;
    if (pair.connection_.pace) pair.connection_.pace->on_cnp(now);
    return;
  }
  if (parsed.ecn() == wire::Ecn::kCongestionExperienced) on_congestion(now, pair);
  if (pair.is_datagram()) {
    pair.datagrams_->on_datagram(frame, parsed);
  } else if (traits.is_request) {
    const std::uint64_t executed = counters_.rx_requests;
    pair.responder_->on_request(now, frame, parsed);
    if (!pair.connection_.path_ready) [[unlikely]]
      neighbors_->resolve(now, pair.connection_.remote_gid);  // it may have been given up
    if (!pair.heard_) [[unlikely]]
      on_early_request(now, pair, executed);
  } else if (pair.sends()) {
    pair.requester_->on_response(now, frame, parsed);
  } else {
    ++counters_.rx_wrong_state;
    return;
  }
  if (!pair.is_linked() && pair.can_transmit(now)) active_.push_back(pair);
  settle(pair);
}

void Adapter::on_frame(Time now, port::Frame frame) {
  ++counters_.rx_frames;
  wire::ParsedFrame parsed;
  const wire::Verdict verdict = wire::parse_and_verify(frame.bytes(), parsed);
  if (verdict != wire::Verdict::kOk) {
    const bool other = verdict == wire::Verdict::kNotIp || verdict == wire::Verdict::kNotUdp;
    if (other && neighbors_->on_frame(now, frame.bytes())) {
      ++counters_.rx_neighbor;
      return deliver_resolutions(now);
    }
    return count_refusal(verdict);
  }
  if (!is_for_us(frame.data, parsed)) {
    ++counters_.rx_not_ours;
    return;
  }
  if ((parsed.pkey & 0x7FFF) != (wire::kDefaultPkey & 0x7FFF)) {
    ++counters_.rx_bad_pkey;
    return;
  }
  if (parsed.destination == kManagementQpn) return on_management_datagram(now, frame.data, parsed);
  QueuePair* const pair = find(parsed.destination);
  if (pair == nullptr) {
    ++counters_.rx_unknown_qp;
    return;
  }
  dispatch(now, *pair, frame.data, parsed);
}

void Adapter::count_refusal(wire::Verdict verdict) {
  switch (verdict) {
    case wire::Verdict::kBadIcrc: ++counters_.rx_bad_icrc; return;
    case wire::Verdict::kNotIp:
    case wire::Verdict::kNotUdp:
    case wire::Verdict::kNotRoce: ++counters_.rx_not_ours; return;
    default: ++counters_.rx_malformed; return;
  }
}

bool Adapter::is_for_us(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
  if (std::memcmp(frame, config_.mac.bytes.data(), config_.mac.bytes.size()) != 0) return false;
  for (const HeaderAddress& own : own_) {
    if (own.is_destination(frame, parsed)) return true;
  }
  return false;
}

void Adapter::on_management_datagram(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  if (parsed.opcode != wire::Opcode::kUdSendOnly || parsed.payload_length != kMadSize) {
    ++counters_.rx_wrong_transport;
    return;
  }
  const auto deth = wire::get<wire::Deth>(frame, parsed);
  if (deth.qkey.value != kManagementQkey || !connections_) {
    ++counters_.rx_ud_dropped;
    return;
  }
  ++counters_.rx_mads;
  const wire::AddressVector back = wire::AddressVector::reply_to(frame, parsed);
  const UdDestination from{.gid = back.destination,
                           .mac = back.destination_mac,
                           .source = back.source,
                           .qpn = deth.source,
                           .qkey = deth.qkey,
                           .traffic_class = parsed.traffic_class};
  connections_->on_mad(now, from, wire::payload(frame, parsed));
}

// A first packet of the peer's shows that it is connected only by being executed: one of another time does not have the PSN awaited.
void Adapter::on_early_request(Time now, QueuePair& pair, std::uint64_t executed_before) {
  if (counters_.rx_requests == executed_before) return;
  pair.heard_ = true;
  tell(AsyncEvent::Kind::kCommunicationEstablished, pair);
  if (connections_) connections_->on_communication_established(now, pair.qpn());
}

void Adapter::on_congestion(Time now, QueuePair& pair) {
  ++counters_.rx_ecn_marked;
  if (!config_.dcqcn || pair.is_datagram() || !pair.congestion_.on_marked(now, dcqcn_parameters_)) return;
  pair.cnp_due_ = true;
  activate(pair);
}

// What settle() seldom finds: a queue pair that broke goes into an error state, one that is drained says so.
void Adapter::settle_elsewhere(QueuePair& pair) {
  if (pair.connection_.breakage == Breakage::kAll) return enter_error(pair);
  if (pair.connection_.broken()) return enter_send_queue_error(pair);
  if (pair.state_ == QpState::kSendQueueDrained && !pair.drain_told_ && pair.is_drained()) {
    pair.drain_told_ = true;
    tell(AsyncEvent::Kind::kSendQueueDrained, pair);
  }
  note_deadline(pair);
}

bool Adapter::poll_transmit(Time now, port::FrameSink& sink) {
  if (active_.empty() && !connections_ && ready_mads_.empty() && neighbors_->idle()) return false;
  return transmit(now, sink);
}

[[gnu::noinline]] bool Adapter::transmit(Time now, port::FrameSink& sink) {
  if (++turns_ % kManagementEvery == 0 && transmit_management(now, sink)) return true;
  for (;;) {
    if (transmit_work(now, sink)) return true;
    if (!active_.empty()) return false;  // the sink is full
    if (transmit_management(now, sink)) return true;
    if (active_.empty()) return false;  // an address that came to be known may have woken somebody
  }
}

// One queue pair's turn.
bool Adapter::transmit_work(Time now, port::FrameSink& sink) {
  while (!active_.empty()) {
    QueuePair& pair = active_.front();
    pair.connection_.sink_full = false;
    const std::uint32_t sent = transmit_quantum(now, pair, sink);
    const bool full = pair.connection_.sink_full;
    settle(pair);
    if (full) return sent != 0;  // stays first in line, for what is left of its turn
    active_.pop_front();
    if (std::exchange(pair.sent_in_turn_, 0) == kQuantum) active_.push_back(pair);  // may have more: to the end
    if (sent != 0) return true;
  }
  return false;
}

// Sends what is left of a queue pair's kQuantum packets; returns how many have left now.
std::uint32_t Adapter::transmit_quantum(Time now, QueuePair& pair, port::FrameSink& sink) {
  const std::uint32_t left = kQuantum - pair.sent_in_turn_;
  std::uint32_t sent = 0;
  if (pair.cnp_due_ && transmit_cnp(pair, sink)) ++sent;
  if (pair.is_open()) {
    while (sent < left && pair.poll_transmit(now, sink)) ++sent;
  }
  pair.sent_in_turn_ += sent;
  return sent;
}

bool Adapter::transmit_cnp(QueuePair& pair, port::FrameSink& sink) {
  constexpr std::size_t kCnpBody = 16;
  if (!pair.is_open() || !pair.connection_.path_ready) {
    pair.cnp_due_ = false;
    return false;
  }
  const wire::Bth bth{.opcode = wire::Opcode::kCnp, .becn = true, .destination = pair.connection_.remote_qpn};
  PacketWriter packet(pair.connection_, pair.connection_.headers, sink, bth, kCnpBody);
  if (!packet.ok()) return false;
  std::fill_n(packet.body(), kCnpBody, std::uint8_t{0});
  packet.finish();
  pair.cnp_due_ = false;
  ++counters_.tx_packets;
  ++counters_.tx_cnp;
  return true;
}

// ARP and neighbour discovery, and MADs, by turns: who asks much of the one does not keep others from the other.
bool Adapter::transmit_management(Time now, port::FrameSink& sink) {
  deliver_resolutions(now);
  for (const bool mad : {mad_is_next_, !mad_is_next_}) {
    if (mad ? connections_ && transmit_mad(now, sink) : neighbors_->poll_transmit(now, sink)) {
      mad_is_next_ = !mad;
      return true;
    }
  }
  return false;
}

// Takes a MAD that may leave from the connection manager, and sets aside those whose destination is to be found first.
bool Adapter::fetch_mad(Time now) {
  PendingMad mad;
  while (connections_->poll_mad(now, mad.to, mad.bytes)) {
    const bool pinned = mad.to.mac != wire::MacAddress{};
    const auto mac = pinned ? mad.to.mac : neighbors_->lookup(mad.to.gid);
    if (mac) {
      mad.to.mac = *mac;
      ready_mads_.push_back(mad);
      return true;
    }
    // Beyond the limit the connection manager's own repetition has to do.
    neighbors_->resolve(now, mad.to.gid);
    if (unresolved_mads_.size() < kMaxUnresolvedMads) unresolved_mads_.push_back(mad);
  }
  return false;
}

bool Adapter::transmit_mad(Time now, port::FrameSink& sink) {
  constexpr std::size_t kBody = wire::Deth::kSize + kMadSize;
  if (ready_mads_.empty() && !fetch_mad(now)) return false;
  const PendingMad& mad = ready_mads_.front();
  const auto same_version = [&](const wire::Gid& gid) { return gid.is_v4() == mad.to.gid.is_v4(); };
  auto source = std::ranges::find(config_.gids, mad.to.source);
  if (source == config_.gids.end() || !same_version(*source)) source = std::ranges::find_if(config_.gids, same_version);
  if (source == config_.gids.end()) {
    ready_mads_.pop_front();  // no way to say anything there: the connection manager gives up in time
    return transmit_mad(now, sink);
  }
  const wire::HeaderTemplate headers(
      {.source_mac = config_.mac, .destination_mac = mad.to.mac, .source = *source, .destination = mad.to.gid});
  std::uint8_t* const frame = sink.reserve(headers.frame_size(wire::Bth::kSize + kBody));
  if (frame == nullptr) return false;
  std::uint8_t* at = frame + headers.write(frame, wire::Bth::kSize + kBody);
  wire::Bth{.opcode = wire::Opcode::kUdSendOnly, .destination = kManagementQpn, .psn = next_mad_psn_}.write(at);
  at += wire::Bth::kSize;
  wire::Deth{.qkey = wire::QKey{kManagementQkey}, .source = kManagementQpn}.write(at);
  std::ranges::copy(mad.bytes, at + wire::Deth::kSize);
  sink.commit(headers.seal(frame, headers.bth_offset() + wire::Bth::kSize + kBody));
  ready_mads_.pop_front();
  ++next_mad_psn_;
  ++counters_.tx_packets;
  return true;
}

Time Adapter::next_deadline() const {
  const Time next = std::min(deadlines_.next(), neighbors_->next_deadline());
  return connections_ ? std::min(next, connections_->next_deadline()) : next;
}

void Adapter::on_deadline(Time now) {
  neighbors_->on_deadline(now);
  deliver_resolutions(now);
  if (connections_) connections_->on_deadline(now);
  while (deadlines_.next() <= now) {
    // What stands in the heap may be out of date: the queue pair itself knows.
    QueuePair& pair = *find(deadlines_.first().qpn);
    deadlines_.remove(pair.deadline_);
    if (pair.next_deadline() <= now) {
      pair.on_deadline(now);
      activate(pair);
      SLUICE_CHECK(pair.connection_.broken() || pair.next_deadline() > now);
    }
    settle(pair);
  }
}

}  // namespace sluice::rc
