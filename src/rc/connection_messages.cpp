// What a connection manager does with each message of its peers.

#include <algorithm>

#include "rc/adapter.h"
#include "rc/cm_codes.h"
#include "rc/connection_machine.h"

namespace sluice::rc {
namespace {

using wire::CmMessageKind;
using wire::CmRejectReason;
using Kind = ConnectionEvent::Kind;

constexpr Duration kLongestService = Duration::seconds(600);  // for a peer that asks for time

// The ACK time-out of a queue pair whose peer acknowledges only after a while: both are codes, the sum is rounded as Linux does
// (cm_ack_timeout).
std::uint8_t with_ack_delay(std::uint8_t ack_timeout, std::uint8_t delay) {
  if (ack_timeout == 0) return 0;  // never
  unsigned code = ack_timeout;
  if (code >= delay) {
    code += delay >= code - 1 ? 1 : 0;
  } else {
    code = delay + (code >= delay - 1u ? 1u : 0u);
  }
  return static_cast<std::uint8_t>(std::min<unsigned>(code, kLongestTimeoutCode));
}

}  // namespace

void ConnectionManager::Machine::on_mad(Time now, const UdDestination& from, ByteView mad) {
  ++counters.received;
  const auto parsed = wire::parse_cm(mad);
  if (!parsed) {
    ++counters.malformed;
    return;
  }
  const Incoming in{from, parsed->transaction_id};
  std::visit([&](const auto& message) { on(now, in, message); }, parsed->message);
}

// --- REQ ---

void ConnectionManager::Machine::on(Time now, const Incoming& in, const wire::CmReq& req) {
  bool stale = false;
  const auto known = by_peer_.find({in.from.gid, req.local_ca_guid, req.local_comm_id.value});
  if (known != by_peer_.end()) {
    CmRecord& record = records_.at(known->second);
    if (record.remote_qpn == req.local_qpn && record.send_psn == req.starting_psn) {
      return on_duplicate_request(now, record);
    }
    stale = end_stale(now, record);  // the peer uses the name for something else: it has started anew
  }
  CmRecord stranger{.remote_id = req.local_comm_id, .transaction_id = in.transaction_id, .peer = in.from};
  if (const auto refusal = judge(in, req)) return send_reject(stranger, CmMessageKind::kReq, *refusal);
  stale = end_stale(now, in.from.gid, req.local_ca_guid, req.local_qpn) || stale;
  if (stale) return send_reject(stranger, CmMessageKind::kReq, CmRejectReason::kStaleConnection);

  const auto made = make_record();
  if (!made) return send_reject(stranger, CmMessageKind::kReq, CmRejectReason::kNoResources);
  CmRecord& record = **made;
  take_request(record, in, req);
  await_decision(now, record);
  know_peer(record);
  const bool ip = is_ip_service(req.service_id);
  const auto header = ip ? wire::IpCmHeader::parse(req.private_data.data()) : std::nullopt;
  tell(record,
       {.kind = Kind::kRequest,
        .service = req.service_id,
        .port = static_cast<std::uint16_t>(ip ? req.service_id.value : 0),
        .remote_port = header ? header->source_port : std::uint16_t{0},
        .private_data = {req.private_data.begin() + (ip ? wire::IpCmHeader::kSize : 0), req.private_data.end()}});
}

void ConnectionManager::Machine::on_duplicate_request(Time now, CmRecord& record) {
  ++counters.duplicates;
  switch (record.state) {
    case CmState::kRequestReceived: await_decision(now, record); return send_wait(record, CmMessageKind::kReq);
    case CmState::kReplySent: return send_again(record, kMaxAnswers);
    case CmState::kTimeWait: return send_reject(record, CmMessageKind::kReq, CmRejectReason::kStaleConnection);
    default: return;  // as Linux: who is established has our REP
  }
}

std::optional<CmRejectReason> ConnectionManager::Machine::judge(const Incoming& in, const wire::CmReq& req) const {
  const AdapterConfig& own = adapter_.config();
  if (req.transport_service != 0 || req.extended_transport != 0) return CmRejectReason::kInvalidTransportType;
  if (!services.contains(req.service_id)) return CmRejectReason::kInvalidServiceId;
  if (std::ranges::find(own.gids, req.primary.remote_gid) == own.gids.end()) return CmRejectReason::kInvalidGid;
  // Without routing no honest peer asks for another: who is answered is who has asked.
  if (req.primary.local_gid != in.from.gid) return CmRejectReason::kInvalidGid;
  if (req.primary.local_gid.is_v4() != req.primary.remote_gid.is_v4()) return CmRejectReason::kInvalidGid;
  const std::uint32_t mtu = mtu_of_code(req.path_mtu);
  if (mtu == 0 || mtu > own.mtu) return CmRejectReason::kInvalidMtu;
  if (is_ip_service(req.service_id)) {
    const auto header = wire::IpCmHeader::parse(req.private_data.data());
    if (!header || header->version != 0) return CmRejectReason::kUnsupported;
  }
  return std::nullopt;
}

void ConnectionManager::Machine::take_request(CmRecord& record, const Incoming& in, const wire::CmReq& req) {
  const AdapterConfig& own = adapter_.config();
  const auto gid = std::ranges::find(own.gids, req.primary.remote_gid);
  record.state = CmState::kRequestReceived;
  record.remote_id = req.local_comm_id;
  record.remote_guid = req.local_ca_guid;
  record.transaction_id = in.transaction_id;
  record.service = req.service_id;
  record.peer = {.gid = in.from.gid,
                 .mac = in.from.mac,
                 .source = *gid,
                 .qpn = wire::kCmQpn,
                 .qkey = wire::kCmQkey,
                 .traffic_class = req.primary.traffic_class};
  record.gid_index = static_cast<std::uint8_t>(gid - own.gids.begin());
  record.remote_qpn = req.local_qpn;
  record.send_psn = req.starting_psn;
  record.receive_psn = Psn(static_cast<std::uint32_t>(rng_.next()));
  record.path_mtu = mtu_of_code(req.path_mtu);
  record.ack_timeout = req.primary.local_ack_timeout != 0 ? req.primary.local_ack_timeout : kDefaultAckTimeout;
  record.retry_count = req.retry_count;
  record.rnr_retry_count = req.rnr_retry_count;
  record.peer_has_srq = req.srq;
  record.responder_resources = limit_reads(req.initiator_depth);
  record.initiator_depth = limit_reads(req.responder_resources);
  record.traffic_class = req.primary.traffic_class;
  record.hop_limit = req.primary.hop_limit > 1 ? req.primary.hop_limit : record.hop_limit;
  record.peer_response_code = req.local_cm_response_timeout;
  record.peer_max_retries = req.max_cm_retries;
}

// True when the peer must be told that it is known here under another connection, which now ends (§12.9.8.3.1).
bool ConnectionManager::Machine::end_stale(Time now, CmRecord& record) {
  switch (record.state) {
    case CmState::kTimeWait: erase(record); return false;
    case CmState::kRequestReceived: fail(now, record, {.kind = Kind::kUnreachable}); return false;
    case CmState::kRequestSent: return false;
    case CmState::kDisconnectSent: return true;
    case CmState::kReplySent:
    case CmState::kReplyReceived:
    case CmState::kEstablished: break;
  }
  ++counters.stale;
  send_disconnect(now, record, {});
  return true;
}

bool ConnectionManager::Machine::end_stale(Time now, const wire::Gid& peer, std::uint64_t guid, Qpn qpn) {
  const auto found = by_peer_qpn_.find({peer, guid, qpn.value});
  return found != by_peer_qpn_.end() && end_stale(now, records_.at(found->second));
}

// --- REP, RTU ---

void ConnectionManager::Machine::on(Time now, const Incoming& in, const wire::CmRep& rep) {
  CmRecord* record = find(ConnectionId(rep.remote_comm_id.value));
  if (record == nullptr) {
    const CmRecord stranger{.id = ConnectionId(rep.remote_comm_id.value),  // as the peer knows it
                            .remote_id = rep.local_comm_id,
                            .transaction_id = in.transaction_id,
                            .peer = in.from};
    ++counters.unexpected;
    return send_reject(stranger, CmMessageKind::kRep, CmRejectReason::kInvalidCommId);
  }
  if (record->state == CmState::kRequestSent) return on_first_reply(now, *record, in, rep);
  const bool again = record->remote_id == rep.local_comm_id;
  if (again && record->state == CmState::kReplyReceived) {
    ++counters.duplicates;
    send_wait(*record, CmMessageKind::kRep);
  } else if (again && record->state == CmState::kEstablished) {
    ++counters.duplicates;
    send_ready(*record);
  } else {
    ++counters.unexpected;
  }
}

void ConnectionManager::Machine::on_first_reply(Time now, CmRecord& record, const Incoming& in,
                                                const wire::CmRep& rep) {
  record.remote_id = rep.local_comm_id;
  if (in.from.gid == record.peer.gid) record.peer.mac = in.from.mac;
  if (end_stale(now, record.peer.gid, rep.local_ca_guid, rep.local_qpn)) {
    send_reject(record, CmMessageKind::kRep, CmRejectReason::kStaleConnection);
    return try_again_soon(now, record, CmRejectReason::kStaleConnection);
  }
  record.remote_guid = rep.local_ca_guid;
  record.remote_qpn = rep.local_qpn;
  record.send_psn = rep.starting_psn;
  record.rnr_retry_count = rep.rnr_retry_count;
  record.peer_has_srq = rep.srq;
  record.responder_resources = std::min(record.responder_resources, rep.initiator_depth);
  record.initiator_depth = std::min(record.initiator_depth, rep.responder_resources);
  if (!record.own_ack_timeout) record.ack_timeout = with_ack_delay(record.ack_timeout, rep.target_ack_delay);
  know_peer(record);
  set_deadline(record, Time::never());
  if (!record.managed) {
    record.state = CmState::kReplyReceived;
    return tell(record, {.kind = Kind::kResponse, .private_data = {rep.private_data.begin(), rep.private_data.end()}});
  }
  if (!make_ready(now, record)) {
    send_reject(record, CmMessageKind::kRep, CmRejectReason::kNoQp);
    return fail(now, record, {.kind = Kind::kRejected, .reject_reason = CmRejectReason::kNoQp});
  }
  send_ready(record);
  established(record, rep.private_data);
}

void ConnectionManager::Machine::try_again_soon(Time now, CmRecord& record, CmRejectReason refusal) {
  record.refused = true;
  record.refusal_reason = refusal;
  set_deadline(record, std::min(now + record.wait / 8, record.give_up_at));
}

void ConnectionManager::Machine::on(Time, const Incoming&, const wire::CmRtu& rtu) {
  CmRecord* record = find(rtu.remote_comm_id, rtu.local_comm_id);
  if (record == nullptr || record->state != CmState::kReplySent) {
    ++(record != nullptr ? counters.duplicates : counters.unexpected);
    return;
  }
  established(*record, rtu.private_data);
}

// --- REJ, MRA ---

CmRecord* ConnectionManager::Machine::find_rejected(const Incoming& in, const wire::CmRej& rej) {
  if (rej.reason == CmRejectReason::kTimeout && rej.info_length >= 8) {
    // The peer never heard from us: it names itself instead.
    const auto known = by_peer_.find({in.from.gid, load_be<std::uint64_t>(rej.info.data()), rej.local_comm_id.value});
    if (known != by_peer_.end()) return &records_.at(known->second);
  }
  if (rej.rejected != CmMessageKind::kReq) return find(rej.remote_comm_id, rej.local_comm_id);
  CmRecord* record = find(ConnectionId(rej.remote_comm_id.value));
  return record != nullptr && record->state == CmState::kRequestSent ? record : nullptr;
}

void ConnectionManager::Machine::on(Time now, const Incoming& in, const wire::CmRej& rej) {
  CmRecord* record = find_rejected(in, rej);
  if (record == nullptr || record->state == CmState::kTimeWait) {
    ++counters.unexpected;
    return;
  }
  if (record->state == CmState::kEstablished || record->state == CmState::kDisconnectSent) {
    return disconnected(now, *record, rej.private_data);
  }
  const bool letting_go = rej.reason == CmRejectReason::kStaleConnection;  // of our predecessor
  const bool too_early = rej.reason == CmRejectReason::kInvalidServiceId && now < record->patient_until;
  if (record->state == CmState::kRequestSent && (letting_go || too_early)) {
    return try_again_soon(now, *record, rej.reason);
  }
  fail(now, *record,
       {.kind = Kind::kRejected,
        .reject_reason = rej.reason,
        .private_data = {rej.private_data.begin(), rej.private_data.end()}});
}

void ConnectionManager::Machine::on(Time now, const Incoming&, const wire::CmMra& mra) {
  CmRecord* record = find(ConnectionId(mra.remote_comm_id.value));
  const CmState state = mra.received == CmMessageKind::kReq ? CmState::kRequestSent : CmState::kReplySent;
  if (record == nullptr || mra.received == CmMessageKind::kOther || record->state != state) {
    ++counters.unexpected;
    return;
  }
  const std::uint8_t retries = state == CmState::kRequestSent ? record->max_retries : record->peer_max_retries;
  const Duration more = std::min(wire::cm_timeout(mra.service_timeout), kLongestService);
  // The peer lives: patience begins anew.
  record->give_up_at = now + more + record->wait * (retries + 1);
  set_deadline(*record, now + more + record->wait);
}

// --- DREQ, DREP ---

void ConnectionManager::Machine::on(Time now, const Incoming& in, const wire::CmDreq& dreq) {
  CmRecord* record = find(dreq.remote_comm_id, dreq.local_comm_id);
  if (record != nullptr && record->local_qpn != dreq.remote_qpn) {
    ++counters.unexpected;
    return;
  }
  send(record != nullptr ? record->peer : in.from, in.transaction_id,
       wire::CmDrep{.local_comm_id = dreq.remote_comm_id, .remote_comm_id = dreq.local_comm_id});
  if (record == nullptr || record->state == CmState::kTimeWait) {
    ++counters.duplicates;
    return;
  }
  if (record->state != CmState::kRequestReceived) disconnected(now, *record, dreq.private_data);
}

void ConnectionManager::Machine::on(Time now, const Incoming&, const wire::CmDrep& drep) {
  CmRecord* record = find(drep.remote_comm_id, drep.local_comm_id);
  if (record == nullptr || record->state != CmState::kDisconnectSent) {
    ++counters.unexpected;
    return;
  }
  disconnected(now, *record, drep.private_data);
}

}  // namespace sluice::rc
