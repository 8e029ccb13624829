// Adapter::modify: the state machine of IBTA vol. 1 figure 124, and what each state needs to be told (table 91).

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

Result<void> Adapter::check_transition(const QueuePair& pair, const QueuePairAttributes& a) const {
  const QpState to = a.state.value_or(pair.state_);
  if (!may_move(pair.state_, to)) {
    return fail(fmt::format("a queue pair cannot go from {} to {}", to_string(pair.state_), to_string(to)));
  }
  if (a.path_mtu && (!is_mtu(*a.path_mtu) || *a.path_mtu > config_.mtu)) {
    return fail(
        fmt::format("path MTU {}: must be 256, 512, 1024, 2048 or 4096 and at most {}", *a.path_mtu, config_.mtu));
  }
  if (a.source_gid_index && *a.source_gid_index >= config_.gids.size()) {
    return fail(fmt::format("GID index {}: this port has {}", *a.source_gid_index, config_.gids.size()));
  }
  for (const auto& reads : {a.max_reads_in, a.max_reads_out}) {
    if (reads && *reads > config_.limits.max_reads_in_flight) {
      return fail(fmt::format("{} READs in flight: at most {}", *reads, config_.limits.max_reads_in_flight));
    }
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
    pair.reset();
    pair.state_ = QpState::kReset;
    return {};
  }
  pair.apply(attributes);
  if (to == QpState::kError) {
    enter_error(pair);
    return {};
  }
  if (to == QpState::kReadyToReceive && from == QpState::kInit) {
    if (auto ready = enter_ready_to_receive(now, pair); !ready) return ready;
  }
  pair.state_ = to;
  if (to == QpState::kReadyToSend && from == QpState::kReadyToReceive) enter_ready_to_send(now, pair);
  if (to == QpState::kReadyToReceive || to == QpState::kReadyToSend) activate(pair);
  return {};
}

Result<void> Adapter::enter_ready_to_receive(Time now, QueuePair& pair) {
  const QueuePairAttributes& a = pair.attributes_;
  wire::AddressVector& route = pair.route_;
  route.source_mac = config_.mac;
  route.source = config_.gids[a.source_gid_index.value_or(0)];
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
  if (!a.remote_gid || !a.remote_qpn || !a.receive_psn) return fail("RTR needs the peer's GID, QPN and starting PSN");
  if (a.remote_gid->is_v4() != route.source.is_v4()) {
    return fail(fmt::format("the peer {} and GID index {} ({}) are of different IP versions: choose another GID index",
                            a.remote_gid->to_string(), a.source_gid_index.value_or(0), route.source.to_string()));
  }
  route.destination = *a.remote_gid;
  pair.responder_->start(*a.receive_psn);
  if (a.remote_mac && *a.remote_mac != wire::MacAddress{}) {
    set_route(pair, *a.remote_mac);
  } else if (const auto known = neighbors_->lookup(*a.remote_gid)) {
    set_route(pair, *known);
  } else {
    neighbors_->resolve(now, *a.remote_gid);
    unresolved_.push_back(pair.qpn());
  }
  return {};
}

void Adapter::set_route(QueuePair& pair, const wire::MacAddress& mac) {
  pair.route_.destination_mac = mac;
  pair.connection_.headers = wire::HeaderTemplate(pair.route_);
  pair.connection_.path_ready = true;
  activate(pair);
}

void Adapter::enter_ready_to_send(Time, QueuePair& pair) {
  const Psn first = pair.attributes_.send_psn.value_or(Psn());
  if (pair.is_datagram()) {
    pair.datagrams_->start(pair.route_, pair.attributes_.qkey.value_or(wire::QKey{}), first);
    pair.datagrams_->set_resolver([this](Time now, const wire::Gid& gid) {
      const auto mac = neighbors_->lookup(gid);
      if (!mac) neighbors_->resolve(now, gid);
      return mac;
    });
    return;
  }
  pair.requester_->start(first);
  if (config_.dcqcn) pair.requester_->enable_congestion_control(dcqcn_parameters_);
}

void Adapter::enter_error(QueuePair& pair) {
  if (pair.state_ == QpState::kError) return;
  pair.state_ = QpState::kError;
  pair.connection_.broken = true;
  pair.flush();
}

void Adapter::deliver_resolutions() {
  while (const auto resolution = neighbors_->poll_resolution()) {
    std::erase_if(unresolved_mads_, [&](PendingMad& mad) {
      if (mad.to.gid != resolution->gid) return false;
      mad.to.mac = resolution->mac.value_or(wire::MacAddress{});
      if (resolution->mac) ready_mads_.push_back(mad);
      return true;
    });
    if (!resolution->mac) continue;  // the queue pair's own time-outs tell its program
    for (const auto& pair : pairs_) {
      if (!pair || pair->is_datagram() || pair->state_ < QpState::kReadyToReceive || pair->state_ == QpState::kError)
        continue;
      const bool pinned = pair->attributes_.remote_mac && *pair->attributes_.remote_mac != wire::MacAddress{};
      if (!pinned && pair->connection_.remote_gid == resolution->gid) set_route(*pair, *resolution->mac);
    }
    std::erase_if(unresolved_, [&](Qpn qpn) {
      const QueuePair* const pair = find(qpn);
      return pair == nullptr || pair->connection_.path_ready;
    });
  }
}

}  // namespace sluice::rc
