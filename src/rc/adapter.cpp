#include "rc/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "rc/connection_manager.h"
#include "rc/neighbors.h"
#include "wire/bth.h"

namespace sluice::rc {
namespace {

constexpr std::uint32_t kQuantum = 16;  // packets that one queue pair may send before the next has its turn
constexpr Qpn kManagementQpn{1};
constexpr std::uint32_t kManagementQkey = 0x8001'0000;
constexpr std::size_t kMadSize = 256;
constexpr std::size_t kMaxUnresolvedMads = 256;

}  // namespace

Adapter::Adapter(const AdapterConfig& config) : config_(config), rng_(config.seed), regions_(config.regions) {
  SLUICE_CHECK(!config_.gids.empty());
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

SharedReceiveQueue* Adapter::create_shared_receive_queue(std::uint32_t depth, std::uint32_t max_sges) {
  shared_receives_.push_back(std::make_unique<SharedReceiveQueue>(memory::PdId{}, depth, max_sges));
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
  pairs_[place] = std::make_unique<QueuePair>(qpn, c, *regions_, counters_);
  pairs_[place]->connection_.coalesce_acks = config_.coalesce_acks;
  pairs_[place]->connection_.advertise_credits = config_.advertise_credits;
  pairs_[place]->connection_.max_unacked_packets = config_.max_unacked_packets;
  ++live_pairs_;
  return pairs_[place].get();
}

void Adapter::destroy(QueuePair* pair) {
  const std::uint32_t place = pair->qpn().value - config_.first_qpn.value;
  pair->reset();
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
  if (pair.state_ == QpState::kError) {  // taken, and flushed at once (§10.3.1)
    const PostError error = pair.is_datagram() ? pair.datagrams_->post(request) : pair.requester_->post(request);
    if (error == PostError::kNone) pair.flush();
    return error;
  }
  if (pair.state_ != QpState::kReadyToSend && pair.state_ != QpState::kSendQueueDrained) return PostError::kWrongState;
  const PostError error = pair.is_datagram() ? pair.datagrams_->post(request) : pair.requester_->post(request);
  if (error == PostError::kNone && !pair.is_active_ && pair.can_transmit(now)) activate(pair);
  return error;
}

PostError Adapter::post_receive(QueuePair& pair, const ReceiveRequest& request) {
  if (pair.state_ == QpState::kReset) return PostError::kWrongState;
  if (pair.config_.shared_receives != nullptr) return PostError::kUnsupportedOp;
  const PostError error = pair.own_receives_.queue.push(request);
  if (error == PostError::kNone && pair.state_ == QpState::kError) pair.flush();
  return error;
}

PostError Adapter::post_receive(SharedReceiveQueue& queue, const ReceiveRequest& request) {
  return queue.queue.push(request);
}

void Adapter::on_frame(Time now, port::Frame frame) {
  ++counters_.rx_frames;
  wire::ParsedFrame parsed;
  const wire::Verdict verdict = wire::parse_and_verify(frame.bytes(), parsed);
  if (verdict != wire::Verdict::kOk) {
    const bool other = verdict == wire::Verdict::kNotIp || verdict == wire::Verdict::kNotUdp;
    if (other && neighbors_->on_frame(now, frame.bytes())) return deliver_resolutions();
    return count_refusal(verdict);
  }
  if (!is_for_us(frame.data, parsed)) {
    ++counters_.rx_not_for_us;
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
    case wire::Verdict::kNotRoce: ++counters_.rx_not_for_us; return;
    default: ++counters_.rx_malformed; return;
  }
}

bool Adapter::is_for_us(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
  if (std::memcmp(frame, config_.mac.bytes.data(), config_.mac.bytes.size()) != 0) return false;
  const wire::Gid to = wire::destination_gid(frame, parsed);
  return std::ranges::find(config_.gids, to) != config_.gids.end();
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
  const wire::AddressVector back = wire::AddressVector::reply_to(frame, parsed);
  const UdDestination from{.gid = back.destination,
                           .mac = back.destination_mac,
                           .qpn = deth.source,
                           .qkey = deth.qkey,
                           .traffic_class = parsed.traffic_class};
  connections_->on_mad(now, from, wire::payload(frame, parsed));
}

void Adapter::dispatch(Time now, QueuePair& pair, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (pair.state_ != QpState::kReadyToReceive && pair.state_ != QpState::kReadyToSend &&
      pair.state_ != QpState::kSendQueueDrained) {
    ++counters_.rx_wrong_state;
    return;
  }
  if (traits.transport == wire::Transport::kCnp) {
    ++counters_.rx_cnp;
    if (pair.requester_) pair.requester_->on_congestion_notice(now);
    return;
  }
  if (traits.transport != pair.config_.transport) {
    ++counters_.rx_wrong_transport;
    return;
  }
  if (pair.is_datagram()) return pair.datagrams_->on_datagram(frame, parsed);
  if (wire::source_gid(frame, parsed) != pair.connection_.remote_gid) {
    ++counters_.rx_wrong_source;
    return;
  }
  if (parsed.ecn() == wire::Ecn::kCongestionExperienced) on_congestion(now, pair, parsed);
  if (traits.is_request) {
    pair.responder_->on_request(now, frame, parsed);
  } else if (pair.state_ != QpState::kReadyToReceive) {
    pair.requester_->on_response(now, frame, parsed);
  }
  if (!pair.is_active_ && pair.can_transmit(now)) activate(pair);
  settle(pair);
}

void Adapter::on_congestion(Time now, QueuePair& pair, const wire::ParsedFrame&) {
  ++counters_.rx_ecn_marked;
  if (!config_.dcqcn || !pair.congestion_.on_marked(now, dcqcn_parameters_)) return;
  pair.cnp_due_ = true;
  activate(pair);
}

void Adapter::activate(QueuePair& pair) {
  if (pair.is_active_) return;
  pair.is_active_ = true;
  active_.push_back(pair.qpn());
}

// After a queue pair has moved: into ERR if it broke, its deadline into the heap if that came nearer.
void Adapter::settle(QueuePair& pair) {
  if (pair.connection_.broken && pair.state_ != QpState::kError) return enter_error(pair);
  const Time next = pair.next_deadline();
  if (next < pair.queued_deadline_) {
    pair.queued_deadline_ = next;
    deadlines_.push({next, pair.qpn()});
  }
}

bool Adapter::poll_transmit(Time now, port::FrameSink& sink) {
  if (transmit_management(now, sink)) return true;
  while (!active_.empty()) {
    QueuePair* const pair = find(active_.front());
    if (pair == nullptr) {
      active_.pop_front();
      continue;
    }
    pair->connection_.sink_full = false;
    const std::uint32_t sent = transmit_quantum(now, *pair, sink);
    settle(*pair);
    if (pair->connection_.sink_full) return sent != 0;  // stays first in line
    active_.pop_front();
    pair->is_active_ = false;
    if (sent == kQuantum) activate(*pair);  // may have more: to the end of the line
    if (sent != 0) return true;
  }
  return false;
}

// Sends up to kQuantum packets of one queue pair; returns how many.
std::uint32_t Adapter::transmit_quantum(Time now, QueuePair& pair, port::FrameSink& sink) {
  std::uint32_t sent = 0;
  if (pair.cnp_due_ && transmit_cnp(pair, sink)) ++sent;
  if (!pair.can_transmit(now)) return sent;
  while (sent < kQuantum && pair.poll_transmit(now, sink)) ++sent;
  return sent;
}

bool Adapter::transmit_cnp(QueuePair& pair, port::FrameSink& sink) {
  constexpr std::size_t kCnpBody = 16;
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

// ARP, neighbour discovery and MADs.
bool Adapter::transmit_management(Time now, port::FrameSink& sink) {
  if (neighbors_->poll_transmit(now, sink)) return true;
  return connections_ && transmit_mad(now, sink);
}

bool Adapter::transmit_mad(Time now, port::FrameSink& sink) {
  constexpr std::size_t kBody = wire::Deth::kSize + kMadSize;
  if (ready_mads_.empty()) {
    PendingMad mad;
    if (!connections_->poll_mad(now, mad.to, mad.bytes)) return false;
    if (mad.to.mac == wire::MacAddress{}) {
      const auto mac = neighbors_->lookup(mad.to.gid);
      if (!mac) {
        // Waits for the address; beyond the limit the connection manager's own repetition has to do.
        neighbors_->resolve(now, mad.to.gid);
        if (unresolved_mads_.size() < kMaxUnresolvedMads) unresolved_mads_.push_back(mad);
        return neighbors_->poll_transmit(now, sink);
      }
      mad.to.mac = *mac;
    }
    ready_mads_.push_back(mad);
  }
  const PendingMad& mad = ready_mads_.front();
  const auto same_version = [&](const wire::Gid& gid) { return gid.is_v4() == mad.to.gid.is_v4(); };
  const auto source = std::ranges::find_if(config_.gids, same_version);
  if (source == config_.gids.end()) {
    ready_mads_.pop_front();  // no way to say anything there: the connection manager gives up in time
    return false;
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
  Time next = deadlines_.empty() ? Time::never() : deadlines_.top().when;
  next = std::min(next, neighbors_->next_deadline());
  return connections_ ? std::min(next, connections_->next_deadline()) : next;
}

void Adapter::on_deadline(Time now) {
  neighbors_->on_deadline(now);
  deliver_resolutions();
  if (connections_) connections_->on_deadline(now);
  while (!deadlines_.empty() && deadlines_.top().when <= now) {
    const Deadline due = deadlines_.top();
    deadlines_.pop();
    QueuePair* const pair = find(due.qpn);
    if (pair == nullptr || pair->queued_deadline_ != due.when) continue;
    pair->queued_deadline_ = Time::never();
    if (pair->state_ != QpState::kReadyToSend) continue;
    if (pair->next_deadline() <= now) {
      pair->on_deadline(now);
      activate(*pair);
    }
    // Its deadline is counted again when it has had its turn to send.
    if (pair->is_active_ && !pair->connection_.broken) continue;
    settle(*pair);
  }
}

}  // namespace sluice::rc
