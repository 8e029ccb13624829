// Adapter::modify: the state machine of IBTA vol. 1 figure 124, and what each state needs to be told (table 91).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "rc/adapter.h"
#include "rc/neighbors.h"

namespace sluice::rc {
namespace {

bool may_move(QpState from, QpState to) {
  if (to == QpState::kReset || to == QpState::kError) return true;
  switch (from) {
    case QpState::kReset: return to == QpState::kInit;
    case QpState::kInit: return to == QpState::kInit || to == QpState::kReadyToReceive;
    case QpState::kReadyToReceive: return to == QpState::kReadyToSend;
    case QpState::kReadyToSend: return to == QpState::kReadyToSend || to == QpState::kSendQueueDrained;
    case QpState::kSendQueueDrained: return to == QpState::kReadyToSend || to == QpState::kSendQueueDrained;
    case QpState::kSendQueueError: return to == QpState::kReadyToSend;
    case QpState::kError: return false;
  }
  return false;
}

bool is_mtu(std::uint32_t mtu) { return mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096; }

// When a group of attributes may be set: on the way to a state, and again in which (table 91).
struct Group {
  std::string_view names;
  bool present;
  bool allowed;
};

std::array<Group, 5> groups_of(const QueuePairAttributes& a, QpState from, QpState to) {
  const bool to_receive = from == QpState::kInit && to == QpState::kReadyToReceive;
  const bool to_send = from == QpState::kReadyToReceive && to == QpState::kReadyToSend;
  const bool drained = from == QpState::kSendQueueDrained && to == QpState::kSendQueueDrained;
  const bool live = to != QpState::kReset && to != QpState::kError &&
                    !(from == QpState::kReadyToSend && to == QpState::kSendQueueDrained);
  return {Group{"access rights, Q_Key and RNR timer", a.access || a.qkey || a.min_rnr_timer, live},
          Group{"the peer's QPN, the path MTU and the receive PSN", a.remote_qpn || a.path_mtu || a.receive_psn,
                to_receive},
          Group{"the path", a.remote_gid || a.remote_mac || a.source_gid_index || a.traffic_class || a.hop_limit,
                to_receive || drained},
          Group{"the READs that are accepted", a.max_reads_in.has_value(), to_receive || drained},
          Group{"the send PSN", a.send_psn.has_value(), to_send}};
}

bool sets_retries(const QueuePairAttributes& a) {
  return a.timeout || a.retry_count || a.rnr_retry_count || a.max_reads_out;
}

}  // namespace

Result<void> Adapter::check_transition(const QueuePair& pair, const QueuePairAttributes& a) const {
  const QpState to = a.state.value_or(pair.state_);
  if (!may_move(pair.state_, to)) {
    return fail(fmt::format("a queue pair cannot go from {} to {}", to_string(pair.state_), to_string(to)));
  }
  for (const Group& group : groups_of(a, pair.state_, to)) {
    if (group.present && !group.allowed) {
      return fail(
          fmt::format("{} cannot be set on the way from {} to {}", group.names, to_string(pair.state_), to_string(to)));
    }
  }
  const bool to_send = pair.state_ == QpState::kReadyToReceive && to == QpState::kReadyToSend;
  const bool drained = pair.state_ == QpState::kSendQueueDrained && to == QpState::kSendQueueDrained;
  if (sets_retries(a) && !to_send && !drained) {
    return fail(fmt::format("time-outs, retries and the READs that are started cannot be set on the way from {} to {}",
                            to_string(pair.state_), to_string(to)));
  }
  if (a.path_mtu && (!is_mtu(*a.path_mtu) || *a.path_mtu > config_.mtu)) {
    return fail(
        fmt::format("path MTU {}: must be 256, 512, 1024, 2048 or 4096 and at most {}", *a.path_mtu, config_.mtu));
  }
  if (a.source_gid_index && *a.source_gid_index >= config_.gids.size()) {
    return fail(fmt::format("GID index {}: this port has {}", *a.source_gid_index, config_.gids.size()));
  }
  const std::uint32_t most_in = config_.limits.max_reads_in_flight;
  const std::uint32_t most_out = std::max(most_in, config_.limits.max_reads_started);
  for (const auto& [reads, most] : {std::pair(a.max_reads_in, most_in), std::pair(a.max_reads_out, most_out)}) {
    if (reads && *reads > most) return fail(fmt::format("{} READs in flight: at most {}", *reads, most));
  }
  if ((a.retry_count && *a.retry_count > 7) || (a.rnr_retry_count && *a.rnr_retry_count > 7)) {
    return fail("retry counts are 0 to 7");
  }
  if ((a.timeout && *a.timeout > 31) || (a.min_rnr_timer && *a.min_rnr_timer > 31))
    return fail("timers are codes from 0 to 31");
  return {};
}

Result<void> Adapter::modify(Time now, QueuePair& pair, const QueuePairAttributes& attributes) {
  if (auto checked = check_transition(pair, attributes); !checked) return checked;
  const QpState from = pair.state_;
  const QpState to = attributes.state.value_or(from);
  if (to == QpState::kReset) {
    enter_reset(pair);
    return {};
  }
  if (to == QpState::kError) {
    enter_error(pair);
    return {};
  }
  const QueuePairAttributes before = pair.attributes_;
  pair.apply(attributes);
  const bool new_path = attributes.remote_gid || attributes.remote_mac || attributes.source_gid_index ||
                        attributes.traffic_class || attributes.hop_limit;
  const bool begins = from == QpState::kInit && to == QpState::kReadyToReceive;
  if (begins || (new_path && to == QpState::kSendQueueDrained)) {
    if (auto found = find_path(now, pair); !found) {
      pair.attributes_ = before;  // a refusal changes nothing
      pair.apply({});
      return found;
    }
  }
  if (begins && !pair.is_datagram()) {
    pair.responder_->start(*pair.attributes_.receive_psn);
    if (config_.dcqcn) pair.connection_.pace = std::make_unique<ReactionPoint>(dcqcn_parameters_);
  }
  pair.state_ = to;
  if (from == QpState::kReadyToReceive && to == QpState::kReadyToSend) enter_ready_to_send(pair);
  if (pair.requester_) pair.requester_->set_draining(to == QpState::kSendQueueDrained);
  if (pair.requester_ && attributes.timeout) pair.requester_->restart_clock(now);
  if (to != QpState::kSendQueueDrained) pair.drain_told_ = false;
  if (pair.is_open()) {
    // Work that was posted meanwhile, and an address that was given up meanwhile.
    const bool has_work = pair.requester_ && pair.requester_->queue_length() != 0;
    if (has_work && !pair.connection_.path_ready) neighbors_->resolve(now, pair.connection_.remote_gid);
    activate(pair);
    settle(pair);
  }
  return {};
}

// Where the peer is and how to get there. Its MAC may be found later.
Result<void> Adapter::find_path(Time now, QueuePair& pair) {
  const QueuePairAttributes& a = pair.attributes_;
  const wire::Gid& source = config_.gids[a.source_gid_index.value_or(0)];
  if (!pair.is_datagram()) {
    if (!a.remote_gid || !a.remote_qpn || !a.receive_psn) return fail("RTR needs the peer's GID, QPN and starting PSN");
    if (a.remote_gid->is_v4() != source.is_v4()) {
      return fail(
          fmt::format("the peer {} and GID index {} ({}) are of different IP versions: choose another GID index",
                      a.remote_gid->to_string(), a.source_gid_index.value_or(0), source.to_string()));
    }
  }
  wire::AddressVector& route = pair.route_;
  route.source_mac = config_.mac;
  route.source = source;
  route.traffic_class = a.traffic_class.value_or(0);
  if (config_.dcqcn)
    route.traffic_class = static_cast<std::uint8_t>((route.traffic_class & ~3) | 2);  // ECN-capable: ECT(0)
  route.hop_limit = a.hop_limit.value_or(64);
  // A source port per queue pair, 0xC000 and above, spreads connections over paths (A17.3.1.3).
  route.source_port = static_cast<std::uint16_t>(0xC000 | ((pair.qpn().value * 2654435761u) >> 18));
  if (pair.is_datagram()) {
    pair.connection_.mtu = a.path_mtu.value_or(config_.mtu);
    pair.connection_.path_ready = true;
    return {};
  }
  route.destination = *a.remote_gid;
  pair.connection_.path_ready = false;
  if (a.remote_mac && *a.remote_mac != wire::MacAddress{}) {
    set_route(pair, *a.remote_mac);
  } else if (const auto known = neighbors_->lookup(*a.remote_gid)) {
    set_route(pair, *known);
  } else {
    neighbors_->resolve(now, *a.remote_gid);
  }
  return {};
}

void Adapter::set_route(QueuePair& pair, const wire::MacAddress& mac) {
  pair.route_.destination_mac = mac;
  Connection& connection = pair.connection_;
  connection.headers = wire::HeaderTemplate(pair.route_);
  std::array<std::uint8_t, wire::Bth::kSize + wire::Aeth::kSize> transport{};
  wire::Bth{.opcode = wire::Opcode::kRcAcknowledge, .destination = connection.remote_qpn}.write(transport.data());
  connection.acknowledge = wire::PacketTemplate(connection.headers, transport);
  connection.path_ready = true;
  activate(pair);
}

void Adapter::enter_ready_to_send(QueuePair& pair) {
  const Psn first = pair.attributes_.send_psn.value_or(Psn());
  if (pair.is_datagram()) {
    pair.datagrams_->start(pair.route_, first);
    pair.datagrams_->set_resolver([this](Time now, const wire::Gid& gid) {
      const auto mac = neighbors_->lookup(gid);
      if (!mac) neighbors_->resolve(now, gid);
      return mac;
    });
    return;
  }
  pair.requester_->start(first);
}

void Adapter::enter_send_queue_error(QueuePair& pair) {
  pair.connection_.breakage = Breakage::kNone;
  if (!pair.sends()) return;
  pair.state_ = QpState::kSendQueueError;
  pair.flush_sends();
  if (pair.connection_.broken()) enter_error(pair);  // not even room for that in the completion queue
}

void Adapter::enter_error(QueuePair& pair) {
  if (pair.state_ == QpState::kError) return;
  pair.state_ = QpState::kError;
  pair.connection_.breakage = Breakage::kAll;
  deadlines_.remove(pair.deadline_);
  pair.flush_sends();
  pair.flush_receives();
  tell_refusal(pair);
  tell_overruns(pair);
  if (pair.connection_.completion_lost) tell(AsyncEvent::Kind::kFatal, pair);
  if (pair.config_.shared_receives != nullptr) tell(AsyncEvent::Kind::kLastReceiveReached, pair);
}

void Adapter::enter_reset(QueuePair& pair) {
  pair.unlink();
  deadlines_.remove(pair.deadline_);
  pair.reset();
  pair.state_ = QpState::kReset;
}

// Nobody answers for the peer's address: what waits to be sent ends as if nobody had acknowledged it.
void Adapter::lose_path(QueuePair& pair) {
  if (pair.connection_.path_ready) return;
  if (pair.responder_->failing()) pair.connection_.break_off(Breakage::kAll);
  if (pair.sends()) pair.requester_->on_path_lost();
  settle(pair);
}

void Adapter::tell_overruns(QueuePair& pair) {
  for (CompletionQueue* const queue : {pair.config_.send_completions, pair.config_.receive_completions}) {
    if (queue->take_overrun()) tell(AsyncEvent::Kind::kCompletionQueueOverrun, pair, queue);
  }
}

// A program that receives nothing hears of it in no other way (§9.9.3, class C). What is wrong with a receive of its own, that says.
void Adapter::tell_refusal(QueuePair& pair) {
  const auto refusal = pair.responder_ ? pair.responder_->refusal() : std::nullopt;
  if (refusal == wire::NakCode::kRemoteAccessError) tell(AsyncEvent::Kind::kAccessError, pair);
  if (refusal == wire::NakCode::kInvalidRequest) tell(AsyncEvent::Kind::kInvalidRequest, pair);
}

void Adapter::tell(AsyncEvent::Kind kind, QueuePair& pair, CompletionQueue* completions) {
  if (on_event_) on_event_({kind, &pair, completions});
}

void Adapter::deliver_resolutions(Time now) {
  while (const auto resolution = neighbors_->poll_resolution()) {
    std::erase_if(unresolved_mads_, [&](PendingMad& mad) {
      if (mad.to.gid != resolution->gid) return false;
      mad.to.mac = resolution->mac.value_or(wire::MacAddress{});
      if (resolution->mac) ready_mads_.push_back(mad);
      return true;
    });
    for (const auto& pair : pairs_) {
      if (!pair || !pair->is_open()) continue;
      if (pair->is_datagram()) {
        if (pair->datagrams_->on_resolution(now, resolution->gid, resolution->mac.has_value())) activate(*pair);
        continue;
      }
      const bool pinned = pair->attributes_.remote_mac && *pair->attributes_.remote_mac != wire::MacAddress{};
      if (pinned || pair->connection_.remote_gid != resolution->gid) continue;
      if (resolution->mac) {
        set_route(*pair, *resolution->mac);
      } else {
        lose_path(*pair);
      }
    }
  }
}

}  // namespace sluice::rc
