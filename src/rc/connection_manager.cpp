#include "rc/connection_manager.h"

#include <fmt/format.h>

#include <algorithm>

#include "rc/adapter.h"
#include "rc/cm_codes.h"
#include "rc/connection_machine.h"

namespace sluice::rc {
namespace {

using wire::CmMessageKind;
using wire::CmRejectReason;

constexpr std::uint8_t kMostRetries = 15;                 // a field of four bits
constexpr Duration kLongestWait = Duration::seconds(60);  // whatever a peer says of itself
constexpr Duration kShortestWait = Duration::milliseconds(1);
constexpr std::uint8_t kTargetAckDelay = 10;  // 4 ms: how late a busy software NIC may acknowledge
constexpr std::uint8_t kServiceTimeout = 20;  // 4.3 s, said anew whenever the peer asks again
constexpr std::uint16_t kFirstEphemeralPort = 0x8000;

template <std::size_t N>
void fill(std::array<std::uint8_t, N>& field, ByteView bytes, std::size_t from = 0) {
  std::copy_n(bytes.begin(), std::min(bytes.size(), N - from), field.begin() + static_cast<std::ptrdiff_t>(from));
}

// rdma_cm's flow label for a connection between these ports, which spreads connections over paths.
std::uint32_t flow_label_of(std::uint16_t source_port, std::uint16_t port) {
  return (std::uint32_t{source_port} * 31 + port) & 0xFFFFF;
}

}  // namespace

// --- set-up of queue pairs ---

std::uint64_t ConnectionManager::Machine::own_guid() const { return guid_of(adapter_.config().mac); }

std::uint8_t ConnectionManager::Machine::limit_reads(unsigned wanted) const {
  return static_cast<std::uint8_t>(std::min({wanted, adapter_.config().limits.max_reads_in_flight, 255u}));
}

Result<void> ConnectionManager::Machine::check_parameters(const ConnectionParameters& p,
                                                          std::size_t private_limit) const {
  if (p.private_data.size() > private_limit) {
    return sluice::fail(fmt::format("{} bytes of private data: at most {}", p.private_data.size(), private_limit));
  }
  if (p.max_retries > kMostRetries)
    return sluice::fail(fmt::format("{} retries: at most {}", p.max_retries, kMostRetries));
  if (p.retry_count > 7 || p.rnr_retry_count > 7) return sluice::fail("retry counts are 0 to 7");
  if (p.ack_timeout.value_or(0) > kLongestTimeoutCode) return sluice::fail("an ACK time-out is a code from 0 to 31");
  if (p.pair == nullptr) return {};
  if (p.pair->config().transport != Transport::kRc) return sluice::fail("only RC queue pairs are connected");
  if (p.pair->state() != QpState::kReset && p.pair->state() != QpState::kInit) {
    return sluice::fail(fmt::format("the queue pair is in {}: give one in RESET or INIT", to_string(p.pair->state())));
  }
  return {};
}

QueuePairAttributes ConnectionManager::Machine::attributes(const CmRecord& r, QpState state) {
  switch (state) {
    case QpState::kInit:
      return {.state = state, .access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic};
    case QpState::kReadyToReceive:
      return {.state = state,
              .remote_gid = r.peer.gid,
              .remote_mac = r.peer.mac,
              .source_gid_index = r.gid_index,
              .traffic_class = r.traffic_class,
              .hop_limit = r.hop_limit,
              .remote_qpn = r.remote_qpn,
              .path_mtu = r.path_mtu,
              .receive_psn = r.receive_psn,
              .max_reads_in = std::max<std::uint8_t>(r.responder_resources, 1)};
    case QpState::kReadyToSend:
      // With none at all a READ would wait for ever; with one the peer says what it thinks of it.
      return {.state = state,
              .send_psn = r.send_psn,
              .timeout = r.ack_timeout,
              .retry_count = r.retry_count,
              .rnr_retry_count = r.rnr_retry_count,
              .max_reads_out = std::max<std::uint8_t>(r.initiator_depth, 1)};
    default: return {.state = state};
  }
}

std::optional<QueuePairAttributes> ConnectionManager::Machine::attributes(ConnectionId id, QpState state) const {
  const CmRecord* record = find(id);
  if (record == nullptr) return std::nullopt;
  if (record->state == CmState::kRequestSent && state != QpState::kInit) return std::nullopt;
  return attributes(*record, state);
}

Result<void> ConnectionManager::Machine::prepare(Time now, const ConnectionParameters& p) {
  if (p.pair == nullptr || p.pair->state() == QpState::kInit) return {};
  return adapter_.modify(now, *p.pair, attributes(CmRecord{}, QpState::kInit));
}

Result<void> ConnectionManager::Machine::make_ready(Time now, const CmRecord& record) {
  if (!record.managed) return {};
  QueuePair* pair = adapter_.find(record.local_qpn);
  if (pair == nullptr) return sluice::fail("the queue pair has been destroyed");
  if (auto moved = adapter_.modify(now, *pair, attributes(record, QpState::kReadyToReceive)); !moved) return moved;
  return adapter_.modify(now, *pair, attributes(record, QpState::kReadyToSend));
}

// Once: from then on the caller may use it anew, whatever still comes of this connection.
void ConnectionManager::Machine::to_error(Time now, CmRecord& record) {
  if (!std::exchange(record.managed, false)) return;
  QueuePair* pair = adapter_.find(record.local_qpn);
  if (pair != nullptr && pair->state() != QpState::kReset) adapter_.modify(now, *pair, {.state = QpState::kError});
}

// --- records ---

Result<CmRecord*> ConnectionManager::Machine::make_record() {
  if (records_.size() >= kMaxConnections) return sluice::fail(fmt::format("at most {} connections", kMaxConnections));
  std::uint32_t id = 0;
  const std::uint8_t prefix = adapter_.config().communication_prefix;
  while (id == 0 || records_.contains(id)) {
    id = static_cast<std::uint32_t>(rng_.next());
    if (prefix != 0) id = std::uint32_t{prefix} << 24 | (id & 0xFF'FFFF);
  }
  CmRecord& record = records_[id];
  record.id = ConnectionId(id);
  return &record;
}

CmRecord* ConnectionManager::Machine::find(ConnectionId id) {
  const auto found = records_.find(id.value);
  return found == records_.end() ? nullptr : &found->second;
}

const CmRecord* ConnectionManager::Machine::find(ConnectionId id) const { return const_cast<Machine*>(this)->find(id); }

CmRecord* ConnectionManager::Machine::find(wire::CommId local, wire::CommId remote) {
  CmRecord* record = find(ConnectionId(local.value));
  return record != nullptr && record->remote_id == remote ? record : nullptr;
}

void ConnectionManager::Machine::set_deadline(CmRecord& record, Time when) {
  if (record.deadline != Time::never()) timers_.erase({record.deadline, record.id.value});
  record.deadline = when;
  if (when != Time::never()) timers_.insert({when, record.id.value});
}

void ConnectionManager::Machine::know_peer(CmRecord& record) {
  by_peer_[{record.peer.gid, record.remote_guid, record.remote_id.value}] = record.id.value;
  by_peer_qpn_[{record.peer.gid, record.remote_guid, record.remote_qpn.value}] = record.id.value;
}

void ConnectionManager::Machine::forget_queue_pair(CmRecord& record) {
  const auto found = by_peer_qpn_.find({record.peer.gid, record.remote_guid, record.remote_qpn.value});
  if (found != by_peer_qpn_.end() && found->second == record.id.value) by_peer_qpn_.erase(found);
}

void ConnectionManager::Machine::erase(CmRecord& record) {
  set_deadline(record, Time::never());
  forget_queue_pair(record);
  const auto awaited = awaiting_ready_.find(record.local_qpn.value);
  if (awaited != awaiting_ready_.end() && awaited->second == record.id.value) awaiting_ready_.erase(awaited);
  const auto found = by_peer_.find({record.peer.gid, record.remote_guid, record.remote_id.value});
  if (found != by_peer_.end() && found->second == record.id.value) by_peer_.erase(found);
  records_.erase(record.id.value);
}

void ConnectionManager::Machine::rest(Time now, CmRecord& record) {
  forget_queue_pair(record);
  record.state = CmState::kTimeWait;
  record.silent = true;
  // Twice the life of a packet, which is half of what the ACK time-out allows for (§12.9.8.4).
  set_deadline(record, now + std::min(wire::cm_timeout(record.ack_timeout), kLongestWait));
}

// --- events ---

void ConnectionManager::Machine::tell(const CmRecord& record, ConnectionEvent event) {
  if (record.silent) return;
  event.id = record.id;
  event.remote = record.peer.gid;
  event.local = record.peer.source;
  event.local_qpn = record.local_qpn;
  event.remote_qpn = record.remote_qpn;
  event.send_psn = record.send_psn;
  event.responder_resources = record.responder_resources;
  event.initiator_depth = record.initiator_depth;
  event.retry_count = record.retry_count;
  event.rnr_retry_count = record.rnr_retry_count;
  event.peer_has_srq = record.peer_has_srq;
  events.push_back(std::move(event));
}

void ConnectionManager::Machine::established(CmRecord& record, ByteView private_data) {
  record.state = CmState::kEstablished;
  set_deadline(record, Time::never());
  ++counters.established;
  tell(record,
       {.kind = ConnectionEvent::Kind::kEstablished, .private_data = {private_data.begin(), private_data.end()}});
}

// No connection comes of it.
void ConnectionManager::Machine::fail(Time now, CmRecord& record, ConnectionEvent event) {
  to_error(now, record);
  tell(record, std::move(event));
  erase(record);
}

void ConnectionManager::Machine::disconnected(Time now, CmRecord& record, ByteView private_data) {
  to_error(now, record);
  tell(record,
       {.kind = ConnectionEvent::Kind::kDisconnected, .private_data = {private_data.begin(), private_data.end()}});
  rest(now, record);
}

// --- messages out ---

bool ConnectionManager::Machine::has_room(std::size_t limit) {
  if (outgoing.size() < limit) return true;
  ++counters.dropped;
  return false;
}

// An answer, which is not repeated.
void ConnectionManager::Machine::send(const UdDestination& to, std::uint64_t transaction_id,
                                      const wire::CmMessage& message) {
  if (!has_room(kMaxAnswers)) return;
  outgoing.push_back({.to = to});
  wire::write_cm(outgoing.back().bytes.data(), {transaction_id, message});
}

void ConnectionManager::Machine::send_again(CmRecord& record, std::size_t limit) {
  if (!has_room(limit)) return;
  ++counters.resent;
  outgoing.push_back({record.peer, record.last});
}

// REQUIRES: record.wait and record.give_up_at are set.
void ConnectionManager::Machine::send_repeatedly(Time now, CmRecord& record, std::uint64_t transaction_id,
                                                 const wire::CmMessage& message) {
  wire::write_cm(record.last.data(), {transaction_id, message});
  if (has_room(kMaxOutgoing)) outgoing.push_back({record.peer, record.last});
  set_deadline(record, std::min(now + record.wait, record.give_up_at));
}

void ConnectionManager::Machine::send_request(Time now, CmRecord& r, const ConnectionParameters& p,
                                              std::uint16_t source_port) {
  wire::CmReq req{.local_comm_id = wire::CommId(r.id.value),
                  .service_id = r.service,
                  .local_ca_guid = own_guid(),
                  .local_qpn = r.local_qpn,
                  .responder_resources = r.responder_resources,
                  .initiator_depth = r.initiator_depth,
                  .remote_cm_response_timeout = r.peer_response_code,
                  .starting_psn = r.receive_psn,
                  .local_cm_response_timeout = r.peer_response_code,
                  .retry_count = p.retry_count,
                  .path_mtu = code_of_mtu(r.path_mtu),
                  .rnr_retry_count = p.rnr_retry_count,
                  .max_cm_retries = p.max_retries,
                  .srq = p.pair != nullptr && p.pair->config().shared_receives != nullptr};
  const wire::Gid& own = adapter_.config().gids[r.gid_index];
  req.primary = {.local_gid = own,
                 .remote_gid = r.peer.gid,
                 .flow_label = flow_label_of(source_port, static_cast<std::uint16_t>(r.service.value)),
                 .traffic_class = r.traffic_class,
                 .hop_limit = r.hop_limit,
                 .local_ack_timeout = r.ack_timeout};
  if (is_ip_service(r.service)) {
    wire::IpCmHeader{.source_port = source_port, .source = own, .destination = r.peer.gid}.write(
        req.private_data.data());
    fill(req.private_data, p.private_data, wire::IpCmHeader::kSize);
  } else {
    fill(req.private_data, p.private_data);
  }
  r.state = CmState::kRequestSent;
  r.give_up_at = now + r.wait * (r.max_retries + 1);
  r.patient_until = now + p.patience;
  send_repeatedly(now, r, r.transaction_id, req);
}

void ConnectionManager::Machine::send_reply(Time now, CmRecord& r, const ConnectionParameters& p) {
  wire::CmRep rep{.local_comm_id = wire::CommId(r.id.value),
                  .remote_comm_id = r.remote_id,
                  .local_qpn = r.local_qpn,
                  .starting_psn = r.receive_psn,
                  .responder_resources = r.responder_resources,
                  .initiator_depth = r.initiator_depth,
                  .target_ack_delay = kTargetAckDelay,
                  .rnr_retry_count = p.rnr_retry_count,
                  .srq = p.pair != nullptr && p.pair->config().shared_receives != nullptr,
                  .local_ca_guid = own_guid()};
  fill(rep.private_data, p.private_data);
  // The peer says how long it takes to answer, and how often one should ask. Asking more often than that does no harm and gets over
  // a lost RTU sooner; giving up earlier would.
  const Duration patience = std::min(wire::cm_timeout(r.peer_response_code), kLongestWait);
  r.give_up_at = now + std::max(patience, r.wait) * (r.peer_max_retries + 1);
  r.wait = std::max(std::min(r.wait, patience), kShortestWait);
  r.state = CmState::kReplySent;
  awaiting_ready_[r.local_qpn.value] = r.id.value;
  send_repeatedly(now, r, r.transaction_id, rep);
}

void ConnectionManager::Machine::send_ready(CmRecord& record) {
  send(record.peer, record.transaction_id,
       wire::CmRtu{.local_comm_id = wire::CommId(record.id.value), .remote_comm_id = record.remote_id});
}

void ConnectionManager::Machine::send_disconnect(Time now, CmRecord& record, ByteView private_data) {
  to_error(now, record);
  wire::CmDreq dreq{.local_comm_id = wire::CommId(record.id.value),
                    .remote_comm_id = record.remote_id,
                    .remote_qpn = record.remote_qpn};
  fill(dreq.private_data, private_data);
  record.state = CmState::kDisconnectSent;
  record.give_up_at = now + record.wait * (record.max_retries + 1);
  send_repeatedly(now, record, rng_.next(), dreq);
}

void ConnectionManager::Machine::send_reject(const CmRecord& record, CmMessageKind what, CmRejectReason why,
                                             ByteView private_data) {
  wire::CmRej rej{.local_comm_id = wire::CommId(record.id.value),
                  .remote_comm_id = record.remote_id,
                  .rejected = what,
                  .reason = why};
  fill(rej.private_data, private_data);
  if (why == CmRejectReason::kTimeout) {  // the peer may know us by GUID only (table 111)
    rej.info_length = 8;
    store_be(rej.info.data(), own_guid());
  }
  ++counters.rejected;
  send(record.peer, record.transaction_id, rej);
}

void ConnectionManager::Machine::send_wait(const CmRecord& record, CmMessageKind what) {
  send(record.peer, record.transaction_id,
       wire::CmMra{.local_comm_id = wire::CommId(record.id.value),
                   .remote_comm_id = record.remote_id,
                   .received = what,
                   .service_timeout = kServiceTimeout});
}

// The program may take its time, and the peer, asking again, is told to wait. One that has not asked for so long has given up, and its REJ is lost.
void ConnectionManager::Machine::await_decision(Time now, CmRecord& record) {
  const Duration patience = std::min(wire::cm_timeout(record.peer_response_code), kLongestWait);
  record.give_up_at = now + (patience + wire::cm_timeout(kServiceTimeout)) * (record.peer_max_retries + 1);
  set_deadline(record, record.give_up_at);
}

// --- what the program asks for ---

Result<ConnectionId> ConnectionManager::Machine::connect(Time now, const wire::Gid& remote, ServiceId service,
                                                         const ConnectionParameters& p) {
  const AdapterConfig& own = adapter_.config();
  const auto gid = std::ranges::find_if(
      own.gids, [&](const wire::Gid& g) { return g.is_v4() == remote.is_v4() && g == p.source.value_or(g); });
  if (gid == own.gids.end()) {
    return sluice::fail(fmt::format("cannot reach {}: this port has no {} address{}", remote.to_string(),
                                    remote.is_v4() ? "IPv4" : "IPv6", p.source ? " " + p.source->to_string() : ""));
  }
  const std::uint32_t mtu = p.path_mtu == 0 ? own.mtu : p.path_mtu;
  if (code_of_mtu(mtu) == 0 || mtu > own.mtu) {
    return sluice::fail(fmt::format("path MTU {}: must be 256, 512, 1024, 2048 or 4096 and at most {}", mtu, own.mtu));
  }
  const auto checked = check_parameters(p, is_ip_service(service) ? kPrivateIpRequest : kPrivateRequest);
  if (!checked) return tl::unexpected(checked.error());
  if (const auto ready = prepare(now, p); !ready) return tl::unexpected(ready.error());
  const auto made = make_record();
  if (!made) return tl::unexpected(made.error());

  CmRecord& r = **made;
  r.managed = p.pair != nullptr;
  r.transaction_id = rng_.next();
  r.service = service;
  r.peer = {
      .gid = remote, .source = *gid, .qpn = wire::kCmQpn, .qkey = wire::kCmQkey, .traffic_class = p.traffic_class};
  r.gid_index = static_cast<std::uint8_t>(gid - own.gids.begin());
  r.local_qpn = r.managed ? p.pair->qpn() : p.qpn;
  r.receive_psn = p.psn.value_or(Psn(static_cast<std::uint32_t>(rng_.next())));
  r.path_mtu = mtu;
  r.own_ack_timeout = p.ack_timeout.has_value();
  r.ack_timeout = p.ack_timeout.value_or(kDefaultAckTimeout);
  r.retry_count = p.retry_count;
  r.rnr_retry_count = p.rnr_retry_count;
  r.responder_resources = limit_reads(p.responder_resources);
  r.initiator_depth = limit_reads(p.initiator_depth);
  r.traffic_class = p.traffic_class;
  r.peer_response_code = code_of_duration(std::clamp(p.response_timeout, kShortestWait, kLongestWait));
  r.wait = wire::cm_timeout(r.peer_response_code);
  r.max_retries = p.max_retries;
  const auto any_port = static_cast<std::uint16_t>(kFirstEphemeralPort | rng_.next());
  send_request(now, r, p, p.source_port != 0 ? p.source_port : any_port);
  return r.id;
}

Result<void> ConnectionManager::Machine::accept(Time now, ConnectionId id, const ConnectionParameters& p) {
  CmRecord* r = find(id);
  if (r == nullptr || r->state != CmState::kRequestReceived) {
    return sluice::fail("there is no such request any more: the peer has given up");
  }
  if (auto checked = check_parameters(p, kPrivateReply); !checked) return checked;
  if (auto ready = prepare(now, p); !ready) return ready;
  r->managed = p.pair != nullptr;
  r->local_qpn = r->managed ? p.pair->qpn() : p.qpn;
  r->receive_psn = p.psn.value_or(r->receive_psn);
  r->ack_timeout = p.ack_timeout.value_or(r->ack_timeout);
  r->responder_resources = std::min(r->responder_resources, limit_reads(p.responder_resources));
  r->initiator_depth = std::min(r->initiator_depth, limit_reads(p.initiator_depth));
  r->traffic_class = p.traffic_class != 0 ? p.traffic_class : r->traffic_class;
  r->wait = wire::cm_timeout(code_of_duration(std::clamp(p.response_timeout, kShortestWait, kLongestWait)));
  r->max_retries = p.max_retries;
  if (auto ready = make_ready(now, *r); !ready) {
    to_error(now, *r);
    return ready;
  }
  send_reply(now, *r, p);
  return {};
}

Result<void> ConnectionManager::Machine::establish(Time, ConnectionId id) {
  CmRecord* record = find(id);
  if (record == nullptr || record->state != CmState::kReplyReceived) {
    return sluice::fail("no reply waits to be confirmed: the peer has given up");
  }
  record->state = CmState::kEstablished;
  ++counters.established;
  send_ready(*record);
  return {};
}

bool ConnectionManager::Machine::reject(Time now, ConnectionId id, ByteView private_data) {
  CmRecord* record = find(id);
  if (record == nullptr) return false;
  if (record->state == CmState::kReplyReceived) {
    send_reject(*record, CmMessageKind::kRep, CmRejectReason::kConsumerDefined, private_data);
    rest(now, *record);
    return true;
  }
  if (record->state != CmState::kRequestReceived) return false;
  send_reject(*record, CmMessageKind::kReq, CmRejectReason::kConsumerDefined, private_data);
  erase(*record);
  return true;
}

void ConnectionManager::Machine::disconnect(Time now, ConnectionId id, ByteView private_data) {
  CmRecord* record = find(id);
  if (record == nullptr) return;
  switch (record->state) {
    case CmState::kRequestReceived: reject(now, id, private_data); return;
    case CmState::kRequestSent:
      send_reject(*record, CmMessageKind::kReq, CmRejectReason::kTimeout);
      return fail(now, *record, {.kind = ConnectionEvent::Kind::kDisconnected});
    case CmState::kReplyReceived:
      send_reject(*record, CmMessageKind::kRep, CmRejectReason::kConsumerDefined);
      return disconnected(now, *record);
    case CmState::kReplySent:
    case CmState::kEstablished: return send_disconnect(now, *record, private_data);
    case CmState::kDisconnectSent:
    case CmState::kTimeWait: return;
  }
}

void ConnectionManager::Machine::release(Time now, ConnectionId id) {
  CmRecord* record = find(id);
  if (record == nullptr) return;
  record->silent = true;
  disconnect(now, id, {});
}

void ConnectionManager::Machine::forget_pair(ConnectionId id) {
  CmRecord* const record = find(id);
  // Before the reply its absence is found when it is to be moved, and the peer told.
  if (record != nullptr && record->state != CmState::kRequestSent) record->managed = false;
}

void ConnectionManager::Machine::on_communication_established(Time, Qpn local) {
  const auto found = awaiting_ready_.find(local.value);
  if (found == awaiting_ready_.end()) return;
  CmRecord* record = find(ConnectionId(found->second));
  awaiting_ready_.erase(found);
  if (record != nullptr && record->local_qpn == local && record->state == CmState::kReplySent) established(*record);
}

void ConnectionManager::Machine::on_deadline(Time now) {
  while (next_deadline() <= now) {
    CmRecord& record = records_.at(timers_.begin()->second);
    if (record.state == CmState::kTimeWait) {
      erase(record);
      continue;
    }
    if (now < record.give_up_at) {
      send_again(record, kMaxOutgoing);
      set_deadline(record, std::min(now + record.wait, record.give_up_at));
      continue;
    }
    ++counters.given_up;
    if (record.state == CmState::kDisconnectSent) {
      disconnected(now, record);
      continue;
    }
    if (record.state == CmState::kReplySent) send_reject(record, CmMessageKind::kRep, CmRejectReason::kTimeout);
    if (record.refused) {
      fail(now, record, {.kind = ConnectionEvent::Kind::kRejected, .reject_reason = record.refusal_reason});
    } else {
      fail(now, record, {.kind = ConnectionEvent::Kind::kUnreachable});
    }
  }
}

// --- the face ---

ConnectionManager::ConnectionManager(Adapter& adapter, Rng rng) : machine_(std::make_unique<Machine>(adapter, rng)) {}
ConnectionManager::~ConnectionManager() = default;

Result<void> ConnectionManager::listen(ServiceId service) {
  if (!machine_->services.insert(service).second) {
    return fail(
        fmt::format("service {:#x} (port {}) is being listened on already", service.value, service.value & 0xFFFF));
  }
  return {};
}
void ConnectionManager::stop_listening(ServiceId service) { machine_->services.erase(service); }

Result<void> ConnectionManager::accept(Time now, ConnectionId id, const ConnectionParameters& parameters) {
  return machine_->accept(now, id, parameters);
}
bool ConnectionManager::reject(Time now, ConnectionId id, ByteView private_data) {
  return machine_->reject(now, id, private_data);
}

Result<ConnectionId> ConnectionManager::connect(Time now, const wire::Gid& remote, ServiceId service,
                                                const ConnectionParameters& parameters) {
  return machine_->connect(now, remote, service, parameters);
}
Result<void> ConnectionManager::establish(Time now, ConnectionId id) { return machine_->establish(now, id); }

void ConnectionManager::disconnect(Time now, ConnectionId id, ByteView private_data) {
  machine_->disconnect(now, id, private_data);
}
void ConnectionManager::release(Time now, ConnectionId id) { machine_->release(now, id); }
void ConnectionManager::forget_pair(ConnectionId id) { machine_->forget_pair(id); }

std::optional<QueuePairAttributes> ConnectionManager::attributes(ConnectionId id, QpState state) const {
  return std::as_const(*machine_).attributes(id, state);
}
void ConnectionManager::on_communication_established(Time now, Qpn local) {
  machine_->on_communication_established(now, local);
}

std::optional<ConnectionEvent> ConnectionManager::poll_event() {
  if (machine_->events.empty()) return std::nullopt;
  ConnectionEvent event = std::move(machine_->events.front());
  machine_->events.pop_front();
  return event;
}

void ConnectionManager::on_mad(Time now, const UdDestination& from, ByteView mad) { machine_->on_mad(now, from, mad); }

bool ConnectionManager::poll_mad(Time, UdDestination& to, std::span<std::uint8_t, wire::kMadSize> mad) {
  const bool own = !machine_->outgoing.empty();
  if ((machine_->resolver_is_next || !own) && machine_->resolver.poll_mad(to, mad)) {
    machine_->resolver_is_next = false;
    return true;
  }
  if (!own) return false;
  machine_->resolver_is_next = true;
  const Machine::Outgoing& next = machine_->outgoing.front();
  to = next.to;
  std::ranges::copy(next.bytes, mad.begin());
  machine_->outgoing.pop_front();
  ++machine_->counters.sent;
  return true;
}

Time ConnectionManager::next_deadline() const {
  return std::min(machine_->next_deadline(), machine_->resolver.next_deadline());
}
void ConnectionManager::on_deadline(Time now) {
  machine_->on_deadline(now);
  machine_->resolver.on_deadline(now);
}
ServiceResolver& ConnectionManager::resolver() { return machine_->resolver; }
const ConnectionCounters& ConnectionManager::counters() const { return machine_->counters; }
std::size_t ConnectionManager::size() const { return machine_->size(); }

}  // namespace sluice::rc
