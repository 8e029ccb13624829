// Two connection managers on a cable that loses, repeats and reorders, against a table: what each message and each call leads to, in each state.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "fuzz/cm_machine_properties.h"
#include "fuzz/script.h"
#include "rc/adapter.h"
#include "rc/connection_manager.h"

namespace sluice::fuzz {
namespace {

using namespace rc;
using Kind = ConnectionEvent::Kind;
using Mad = std::array<std::uint8_t, wire::kMadSize>;
using Bytes = std::vector<std::uint8_t>;
using wire::CmMessageKind;
using wire::CmRejectReason;
using wire::CommId;

constexpr std::uint16_t kPort = 7;
constexpr std::size_t kMostConnections = 24;
constexpr std::uint8_t kResponseCode = 16;  // the time-out that all ask with: 268 ms
constexpr std::uint8_t kServiceCode = 20;   // … that a MRA asks for
constexpr Duration kWait = wire::cm_timeout(kResponseCode);
constexpr unsigned kMostReads = 16;

// A connection at one of its ends, as the rules have it.
struct Record {
  enum class State : std::uint8_t { kRequesting, kAsked, kReplied, kResponded, kEstablished, kLeaving, kOver };
  State state{};
  CommId peer{};
  std::uint64_t transaction = 0;
  QueuePair* pair = nullptr;  // the manager moves it
  bool silent = false;
  bool refused = false;
  Qpn own_qpn{};
  Psn own_psn{};
  Qpn peer_qpn{};
  Psn peer_psn{};
  unsigned responds = 0;  // READs and atomics at once
  unsigned starts = 0;
  std::uint8_t retries = 0;
  std::uint8_t rnr_retries = 0;
  std::uint8_t ack_timeout = 14;
  std::uint8_t mad_retries = 0;
  std::uint8_t peer_mad_retries = 0;
  Mad last{};  // is sent again
  Time give_up = Time::never();
  Time due = Time::never();
};

Mad mad_of(std::uint64_t transaction, const wire::CmMessage& message) {
  Mad mad{};
  wire::write_cm(mad.data(), {transaction, message});
  return mad;
}

class Side {
 public:
  using State = Record::State;
  explicit Side(std::uint8_t number) {
    AdapterConfig config;
    config.mac = {{2, 0, 0, 0, 0, number}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A000000u + number})};
    config.seed = number;
    adapter_ = std::make_unique<Adapter>(config);
    domain_ = adapter_->create_domain();
    completions_ = adapter_->create_completion_queue(64);
    SLUICE_CHECK(manager().listen(kPort).has_value());
  }
  ConnectionManager& manager() { return adapter_->connections(); }
  const wire::Gid& gid() const { return adapter_->config().gids[0]; }
  std::uint64_t guid() const {  // the MAC with FFFE in its middle, its second bit turned
    const auto& m = adapter_->config().mac.bytes;
    const std::array<std::uint8_t, 8> guid{
        static_cast<std::uint8_t>(m[0] ^ 2u), m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]};
    return load_be<std::uint64_t>(guid.data());
  }

  // --- what the program asks for ---

  void connect(Time now, const Side& to, Script& script) {
    if (records_.size() >= kMostConnections) return;
    const ConnectionParameters p = parameters(script, 0x7000);
    const auto id = manager().connect(now, to.gid(), kPort, p);
    SLUICE_CHECK(id.has_value() && !records_.contains(id->value));
    Record& r = records_[id->value];
    r = {.state = State::kRequesting,
         .pair = p.pair,
         .own_qpn = p.pair != nullptr ? p.pair->qpn() : p.qpn,
         .responds = std::min<unsigned>(p.responder_resources, kMostReads),
         .starts = std::min<unsigned>(p.initiator_depth, kMostReads),
         .retries = p.retry_count,
         .rnr_retries = p.rnr_retry_count,
         .ack_timeout = p.ack_timeout.value_or(14),
         .mad_retries = p.max_retries};
    const auto sent = said<wire::CmReq>(to, r);
    SLUICE_CHECK(sent.local_comm_id.value == id->value && sent.service_id == wire::rdma_service(kPort));
    SLUICE_CHECK(sent.local_qpn == r.own_qpn && sent.local_ca_guid == guid());
    SLUICE_CHECK(sent.responder_resources == r.responds && sent.initiator_depth == r.starts);
    SLUICE_CHECK(sent.retry_count == p.retry_count && sent.rnr_retry_count == p.rnr_retry_count);
    SLUICE_CHECK(sent.max_cm_retries == p.max_retries && sent.local_cm_response_timeout == kResponseCode);
    SLUICE_CHECK(sent.primary.local_gid == gid() && sent.primary.remote_gid == to.gid());
    SLUICE_CHECK(sent.primary.local_ack_timeout == r.ack_timeout);
    SLUICE_CHECK(
        std::equal(p.private_data.begin(), p.private_data.end(), sent.private_data.begin() + wire::IpCmHeader::kSize));
    r.own_psn = sent.starting_psn;
    repeat(now, r, kWait * (p.max_retries + 1));
  }
  void accept(Time now, const Side& to, std::uint32_t id, Script& script) {
    Record& r = records_.at(id);
    ConnectionParameters p = parameters(script, 0x8000);
    const bool accepted = manager().accept(now, ConnectionId(id), p).has_value();
    SLUICE_CHECK(accepted == (r.state == State::kAsked));
    if (!accepted) return;
    r.state = State::kReplied;
    r.pair = p.pair;
    r.own_qpn = p.pair != nullptr ? p.pair->qpn() : p.qpn;
    r.responds = std::min<unsigned>(r.responds, p.responder_resources);
    r.starts = std::min<unsigned>(r.starts, p.initiator_depth);
    r.ack_timeout = p.ack_timeout.value_or(r.ack_timeout);
    r.mad_retries = p.max_retries;
    const std::uint64_t transaction = r.transaction;
    const auto sent = said<wire::CmRep>(to, r);
    SLUICE_CHECK(r.transaction == transaction && sent.local_comm_id.value == id && sent.remote_comm_id == r.peer);
    SLUICE_CHECK(sent.local_qpn == r.own_qpn && sent.local_ca_guid == guid());
    SLUICE_CHECK(sent.responder_resources == r.responds && sent.initiator_depth == r.starts);
    SLUICE_CHECK(sent.rnr_retry_count == p.rnr_retry_count && sent.target_ack_delay == 10);
    SLUICE_CHECK(std::equal(p.private_data.begin(), p.private_data.end(), sent.private_data.begin()));
    r.own_psn = sent.starting_psn;
    repeat(now, r, kWait * (r.peer_mad_retries + 1));
    if (r.pair != nullptr) check_pair(r);
  }
  void reject(Time now, std::uint32_t id, std::uint8_t word) {
    const Bytes data{word, 1};
    const State state = records_.at(id).state;
    const bool can = state == State::kAsked || state == State::kResponded;
    SLUICE_CHECK(manager().reject(now, ConnectionId(id), data) == can);
    if (can) refuse(now, id, data);
  }
  void disconnect(Time now, std::uint32_t id, const Side& to, std::uint8_t word) {
    const Bytes data{word, 2};
    manager().disconnect(now, ConnectionId(id), data);
    end(now, id, to, data);
  }
  void release(Time now, std::uint32_t id, const Side& to) {
    records_.at(id).silent = true;
    manager().release(now, ConnectionId(id));
    end(now, id, to, {});
  }
  void establish(Time now, std::uint32_t id) {
    Record& r = records_.at(id);
    const bool can = r.state == State::kResponded;
    SLUICE_CHECK(manager().establish(now, ConnectionId(id)).has_value() == can);
    if (!can) return;
    r.state = State::kEstablished;
    answer(r, wire::CmRtu{CommId(id), r.peer});
  }
  // A request has been executed on its queue pair.
  void begin(Time now, std::uint32_t id) {
    Record& r = records_.at(id);
    manager().on_communication_established(now, r.own_qpn);
    if (r.state == State::kReplied) established(id, r, {});
  }
  void listen() {
    if (listening_) {
      manager().stop_listening(kPort);
    } else {
      SLUICE_CHECK(manager().listen(kPort).has_value());
    }
    listening_ = !listening_;
  }

  // --- what comes in ---

  void take(Time now, const Side& from, const Mad& mad) {
    const auto parsed = wire::parse_cm(mad);
    SLUICE_CHECK(parsed.has_value());
    transaction_ = parsed->transaction_id;
    std::visit([&](const auto& message) { on(now, message); }, parsed->message);
    manager().on_mad(now,
                     {.gid = from.gid(),
                      .mac = from.adapter_->config().mac,
                      .source = gid(),
                      .qpn = wire::kCmQpn,
                      .qkey = wire::kCmQkey},
                     mad);
  }

  // --- time ---

  Time due() const {
    Time first = Time::never();
    for (const auto& [id, r] : records_) first = std::min(first, r.due);
    return first;
  }
  void on_deadline(Time now) {
    while (due() <= now) {
      std::uint32_t id = 0;
      for (const auto& [name, r] : records_) {  // the lower name of two
        if (id == 0 || r.due < records_.at(id).due) id = name;
      }
      time_out(now, id);
    }
    manager().on_deadline(now);
  }

  // What has come of the step: nothing else.
  void check(const Side& to) {
    while (collect(to)) {
    }
    while (const auto event = manager().poll_event()) {
      SLUICE_CHECK(!events_.empty());
      const ConnectionEvent due = std::exchange(events_.front(), {});
      events_.pop_front();
      SLUICE_CHECK(event->kind == due.kind && event->id == due.id && event->remote == to.gid() &&
                   event->local == gid());
      SLUICE_CHECK(event->private_data == due.private_data && event->reject_reason == due.reject_reason);
      SLUICE_CHECK(event->remote_qpn == due.remote_qpn && event->send_psn == due.send_psn);
      SLUICE_CHECK(event->responder_resources == due.responder_resources &&
                   event->initiator_depth == due.initiator_depth);
      SLUICE_CHECK(event->retry_count == due.retry_count && event->rnr_retry_count == due.rnr_retry_count);
      SLUICE_CHECK(event->kind != Kind::kRequest || event->port == kPort);
    }
    SLUICE_CHECK(events_.empty() && expected_.empty());
    SLUICE_CHECK(manager().size() == records_.size() && manager().next_deadline() == due());
    for (const QueuePair* pair : ended_) SLUICE_CHECK(pair->state() == QpState::kError);
    for (const auto& [id, r] : records_) {
      if (r.pair == nullptr) continue;
      if (r.state == State::kEstablished) check_pair(r);
      SLUICE_CHECK((r.state >= State::kLeaving) == (r.pair->state() == QpState::kError));
    }
  }
  std::optional<std::uint32_t> pick(std::uint8_t n) const {
    if (records_.empty()) return std::nullopt;
    return std::next(records_.begin(), n % static_cast<std::ptrdiff_t>(records_.size()))->first;
  }
  bool is_silent(std::uint32_t id) const { return records_.at(id).silent; }
  std::size_t size() const { return records_.size(); }

  std::deque<Mad> outgoing;

 private:
  // --- parameters, messages, events ---

  ConnectionParameters parameters(Script& script, std::uint32_t qpn) {
    const std::uint8_t how = script.next();
    ConnectionParameters p{.pair = (how & 1) != 0 ? &make_pair() : nullptr,
                           .qpn = Qpn(qpn + ++made_),
                           .max_retries = static_cast<std::uint8_t>(1 + (how >> 1 & 1))};
    p.responder_resources = script.next() % 20;
    p.initiator_depth = script.next() % 20;
    p.retry_count = how >> 2 & 7;
    p.rnr_retry_count = how >> 5;
    if (p.initiator_depth % 3 == 0) p.ack_timeout = static_cast<std::uint8_t>(10 + p.responder_resources % 9);
    p.private_data = {how, static_cast<std::uint8_t>(made_), 7};
    return p;
  }
  QueuePair& make_pair() {
    return **adapter_->create_queue_pair({.pd = domain_,
                                          .send_completions = completions_,
                                          .receive_completions = completions_,
                                          .send_depth = 1,
                                          .receive_depth = 1});
  }
  // One message. False: there is none.
  bool collect_one(const Side& to, Mad& mad) {
    UdDestination where;
    if (!manager().poll_mad(Time(), where, mad)) return false;
    SLUICE_CHECK(where.gid == to.gid() && where.source == gid() && where.qpn == wire::kCmQpn);
    outgoing.push_back(mad);
    return true;
  }
  bool collect(const Side& to) {
    Mad mad;
    if (!collect_one(to, mad)) return false;
    SLUICE_CHECK(!expected_.empty() && expected_.front() == mad);
    expected_.pop_front();
    return true;
  }
  // The message that the manager has just begun to send of this kind, whose numbers it chose.
  template <class Message>
  Message said(const Side& to, Record& r) {
    while (!expected_.empty()) SLUICE_CHECK(collect(to));
    SLUICE_CHECK(collect_one(to, r.last));
    const auto parsed = wire::parse_cm(r.last);
    SLUICE_CHECK(parsed.has_value() && std::holds_alternative<Message>(parsed->message));
    r.transaction = parsed->transaction_id;
    return std::get<Message>(parsed->message);
  }
  void repeat(Time now, Record& r, Duration patience) {
    r.give_up = now + patience;
    r.due = std::min(now + kWait, r.give_up);
  }
  void answer(const Record& r, const wire::CmMessage& message) { expected_.push_back(mad_of(r.transaction, message)); }
  void answer_reject(std::uint32_t id, const Record& r, CmMessageKind what, CmRejectReason why,
                     const Bytes& data = {}) {
    wire::CmRej rej{.local_comm_id = CommId(id), .remote_comm_id = r.peer, .rejected = what, .reason = why};
    std::ranges::copy(data, rej.private_data.begin());
    if (why == CmRejectReason::kTimeout) {
      rej.info_length = 8;
      store_be(rej.info.data(), guid());
    }
    answer(r, rej);
  }
  void answer_wait(std::uint32_t id, const Record& r, CmMessageKind what) {
    answer(
        r,
        wire::CmMra{
            .local_comm_id = CommId(id), .remote_comm_id = r.peer, .received = what, .service_timeout = kServiceCode});
  }
  void tell(std::uint32_t id, const Record& r, Kind kind, Bytes data = {}, CmRejectReason reason = {}) {
    if (r.silent) return;
    events_.push_back({.kind = kind,
                       .id = ConnectionId(id),
                       .remote_qpn = r.peer_qpn,
                       .send_psn = r.peer_psn,
                       .reject_reason = reason,
                       .responder_resources = static_cast<std::uint8_t>(r.responds),
                       .initiator_depth = static_cast<std::uint8_t>(r.starts),
                       .retry_count = r.retries,
                       .rnr_retry_count = r.rnr_retries,
                       .private_data = std::move(data)});
  }
  void established(std::uint32_t id, Record& r, Bytes data) {
    r.state = State::kEstablished;
    r.due = Time::never();
    tell(id, r, Kind::kEstablished, std::move(data));
  }
  void over(Time now, std::uint32_t id, Record& r, Bytes data) {
    tell(id, r, Kind::kDisconnected, std::move(data));
    rest(now, r);
  }
  static void rest(Time now, Record& r) {
    r.state = State::kOver;
    r.silent = true;
    r.due = now + wire::cm_timeout(r.ack_timeout);
  }
  void gone(std::uint32_t id) {
    if (QueuePair* const pair = records_.at(id).pair; pair != nullptr) ended_.push_back(pair);
    records_.erase(id);
  }

  void refuse(Time now, std::uint32_t id, const Bytes& data) {
    Record& r = records_.at(id);
    const bool asked = r.state == State::kAsked;
    answer_reject(id, r, asked ? CmMessageKind::kReq : CmMessageKind::kRep, CmRejectReason::kConsumerDefined, data);
    asked ? gone(id) : rest(now, r);
  }
  void end(Time now, std::uint32_t id, const Side& to, const Bytes& data) {
    Record& r = records_.at(id);
    switch (r.state) {
      case State::kAsked: return refuse(now, id, data);
      case State::kRequesting:
        answer_reject(id, r, CmMessageKind::kReq, CmRejectReason::kTimeout);
        tell(id, r, Kind::kDisconnected);
        return gone(id);
      case State::kResponded:
        answer_reject(id, r, CmMessageKind::kRep, CmRejectReason::kConsumerDefined);
        return over(now, id, r, {});
      case State::kReplied:
      case State::kEstablished: {
        const std::uint64_t transaction = r.transaction;
        const auto sent = said<wire::CmDreq>(to, r);
        r.transaction = transaction;
        SLUICE_CHECK(sent.local_comm_id.value == id && sent.remote_comm_id == r.peer && sent.remote_qpn == r.peer_qpn);
        SLUICE_CHECK(std::equal(data.begin(), data.end(), sent.private_data.begin()));
        r.state = State::kLeaving;
        return repeat(now, r, kWait * (r.mad_retries + 1));
      }
      default: return;
    }
  }

  // --- the table ---

  Record* find(CommId own) {
    const auto found = records_.find(own.value);
    return found == records_.end() ? nullptr : &found->second;
  }
  Record* find(CommId own, CommId peer) {
    Record* const r = find(own);
    return r != nullptr && r->peer == peer ? r : nullptr;
  }
  Record stranger(CommId peer) const { return {.peer = peer, .transaction = transaction_}; }

  void on(Time now, const wire::CmReq& req) {
    const auto known =
        std::ranges::find_if(records_, [&](const auto& entry) { return entry.second.peer == req.local_comm_id; });
    if (known != records_.end()) {
      Record& r = known->second;
      if (r.state == State::kAsked) {
        await_program(now, r);
        answer_wait(known->first, r, CmMessageKind::kReq);
      } else if (r.state == State::kReplied) {
        expected_.push_back(r.last);
      } else if (r.state == State::kOver) {
        answer_reject(known->first, r, CmMessageKind::kReq, CmRejectReason::kStaleConnection);
      }
      return;
    }
    if (!listening_) {
      return answer_reject(0, stranger(req.local_comm_id), CmMessageKind::kReq, CmRejectReason::kInvalidServiceId);
    }
    // The manager names it: the event will say how.
    request_ = Record{.state = State::kAsked,
                      .peer = req.local_comm_id,
                      .transaction = transaction_,
                      .peer_qpn = req.local_qpn,
                      .peer_psn = req.starting_psn,
                      .responds = std::min<unsigned>(req.initiator_depth, kMostReads),
                      .starts = std::min<unsigned>(req.responder_resources, kMostReads),
                      .retries = req.retry_count,
                      .rnr_retries = req.rnr_retry_count,
                      .ack_timeout = req.primary.local_ack_timeout,
                      .peer_mad_retries = req.max_cm_retries};
    await_program(now, *request_);
    request_data_ = {req.private_data.begin() + wire::IpCmHeader::kSize, req.private_data.end()};
  }
  static void await_program(Time now, Record& r) {
    r.give_up = r.due = now + (kWait + wire::cm_timeout(kServiceCode)) * (r.peer_mad_retries + 1);
  }
  void on(Time, const wire::CmRep& rep) {
    const std::uint32_t id = rep.remote_comm_id.value;
    Record* const r = find(rep.remote_comm_id);
    if (r == nullptr)
      return answer_reject(id, stranger(rep.local_comm_id), CmMessageKind::kRep, CmRejectReason::kInvalidCommId);
    if (r->state == State::kRequesting) {
      r->peer = rep.local_comm_id;
      r->peer_qpn = rep.local_qpn;
      r->peer_psn = rep.starting_psn;
      r->rnr_retries = rep.rnr_retry_count;
      r->responds = std::min<unsigned>(r->responds, rep.initiator_depth);
      r->starts = std::min<unsigned>(r->starts, rep.responder_resources);
      r->due = Time::never();
      const Bytes data(rep.private_data.begin(), rep.private_data.end());
      if (r->pair == nullptr) {
        r->state = State::kResponded;
        return tell(id, *r, Kind::kResponse, data);
      }
      answer(*r, wire::CmRtu{CommId(id), r->peer});
      return established(id, *r, data);
    }
    if (r->peer != rep.local_comm_id) return;
    if (r->state == State::kResponded) answer_wait(id, *r, CmMessageKind::kRep);
    if (r->state == State::kEstablished) answer(*r, wire::CmRtu{CommId(id), r->peer});
  }
  void on(Time, const wire::CmRtu& rtu) {
    Record* const r = find(rtu.remote_comm_id, rtu.local_comm_id);
    if (r != nullptr && r->state == State::kReplied)
      established(rtu.remote_comm_id.value, *r, {rtu.private_data.begin(), rtu.private_data.end()});
  }
  void on(Time now, const wire::CmRej& rej) {
    std::uint32_t id = rej.remote_comm_id.value;
    Record* r =
        rej.rejected == CmMessageKind::kReq ? find(rej.remote_comm_id) : find(rej.remote_comm_id, rej.local_comm_id);
    if (rej.rejected == CmMessageKind::kReq && r != nullptr && r->state != State::kRequesting) r = nullptr;
    if (rej.reason == CmRejectReason::kTimeout) {  // who gives up may not know our name
      for (auto& [name, record] : records_) {
        if (record.peer == rej.local_comm_id) {
          id = name;
          r = &record;
        }
      }
    }
    if (r == nullptr || r->state == State::kOver) return;
    const Bytes data(rej.private_data.begin(), rej.private_data.end());
    if (r->state == State::kEstablished || r->state == State::kLeaving) return over(now, id, *r, data);
    if (r->state == State::kRequesting && rej.reason == CmRejectReason::kStaleConnection) {
      r->refused = true;
      r->due = std::min(now + kWait / 8, r->give_up);
      return;
    }
    tell(id, *r, Kind::kRejected, data, rej.reason);
    gone(id);
  }
  void on(Time now, const wire::CmMra& mra) {
    Record* const r = find(mra.remote_comm_id);
    const bool of_req = mra.received == CmMessageKind::kReq;
    if (r == nullptr || r->state != (of_req ? State::kRequesting : State::kReplied)) return;
    const Duration more = wire::cm_timeout(mra.service_timeout);
    r->give_up = now + more + kWait * ((of_req ? r->mad_retries : r->peer_mad_retries) + 1);
    r->due = now + more + kWait;
  }
  void on(Time now, const wire::CmDreq& dreq) {
    Record* const r = find(dreq.remote_comm_id, dreq.local_comm_id);
    expected_.push_back(mad_of(transaction_, wire::CmDrep{dreq.remote_comm_id, dreq.local_comm_id}));
    if (r == nullptr || r->state == State::kOver) return;
    SLUICE_CHECK(r->state != State::kAsked && dreq.remote_qpn == r->own_qpn);
    over(now, dreq.remote_comm_id.value, *r, {dreq.private_data.begin(), dreq.private_data.end()});
  }
  void on(Time now, const wire::CmDrep& drep) {
    Record* const r = find(drep.remote_comm_id, drep.local_comm_id);
    if (r != nullptr && r->state == State::kLeaving)
      over(now, drep.remote_comm_id.value, *r, {drep.private_data.begin(), drep.private_data.end()});
  }
  void on(Time, const wire::CmSidrReq&) {}
  void on(Time, const wire::CmSidrRep&) {}

  void time_out(Time now, std::uint32_t id) {
    Record& r = records_.at(id);
    if (r.state == State::kOver) return gone(id);
    if (now < r.give_up) {
      expected_.push_back(r.last);
      r.due = std::min(now + kWait, r.give_up);
      return;
    }
    if (r.state == State::kLeaving) return over(now, id, r, {});
    if (r.state == State::kReplied) answer_reject(id, r, CmMessageKind::kRep, CmRejectReason::kTimeout);
    tell(id, r, r.refused ? Kind::kRejected : Kind::kUnreachable, {},
         r.refused ? CmRejectReason::kStaleConnection : CmRejectReason{});
    gone(id);
  }

  // What both ends have said is what the queue pair has been given.
  void check_pair(const Record& r) const {
    SLUICE_CHECK(r.pair->state() == QpState::kReadyToSend);
    const QueuePairAttributes& is = r.pair->attributes();
    SLUICE_CHECK(is.remote_qpn == r.peer_qpn && is.send_psn == r.peer_psn && is.receive_psn == r.own_psn);
    SLUICE_CHECK(is.timeout == r.ack_timeout && is.retry_count == r.retries && is.rnr_retry_count == r.rnr_retries);
    SLUICE_CHECK(is.max_reads_in == std::max(r.responds, 1u) && is.max_reads_out == std::max(r.starts, 1u));
    SLUICE_CHECK(is.path_mtu == adapter_->config().mtu);
  }

 public:
  // A REQ that is to be decided on: the next event names it.
  void name_request() {
    if (!request_) return;
    const auto event = manager().poll_event();
    SLUICE_CHECK(event.has_value() && event->kind == Kind::kRequest && !records_.contains(event->id.value));
    const std::uint32_t id = event->id.value;
    Record& r = records_[id] = *std::exchange(request_, std::nullopt);
    SLUICE_CHECK(event->remote_qpn == r.peer_qpn && event->send_psn == r.peer_psn && event->port == kPort);
    SLUICE_CHECK(event->private_data == request_data_);
    SLUICE_CHECK(event->responder_resources == r.responds && event->initiator_depth == r.starts);
    SLUICE_CHECK(event->retry_count == r.retries && event->rnr_retry_count == r.rnr_retries);
  }

 private:
  std::unique_ptr<Adapter> adapter_;
  memory::PdId domain_{};
  CompletionQueue* completions_ = nullptr;
  bool listening_ = true;
  std::uint32_t made_ = 0;
  std::uint64_t transaction_ = 0;  // of the message that has come
  std::map<std::uint32_t, Record> records_;
  std::optional<Record> request_;
  Bytes request_data_;
  std::vector<const QueuePair*> ended_;
  std::deque<Mad> expected_;
  std::deque<ConnectionEvent> events_;
};

class World {
 public:
  void run(Script script) {
    while (!script.empty()) {
      step(script);
      a_.check(b_);
      b_.check(a_);
    }
    come_to_rest();
  }

 private:
  void step(Script& script) {
    const std::uint8_t byte = script.next();
    Side& side = (byte & 0x10) != 0 ? b_ : a_;
    Side& other = (byte & 0x10) != 0 ? a_ : b_;
    const std::uint8_t argument = script.next();
    const auto id = side.pick(argument);
    const bool known = id && !side.is_silent(*id);  // to its program
    switch (byte & 0x0F) {
      case 0:
      case 1: return side.connect(now_, other, script);
      case 2:
      case 3: return known ? side.accept(now_, other, *id, script) : void();
      case 4: return known && argument % 4 == 0 ? side.reject(now_, *id, argument) : void();
      case 5: return known && argument % 2 == 0 ? side.disconnect(now_, *id, other, argument) : void();
      case 6: return known && argument % 4 == 0 ? side.release(now_, *id, other) : void();
      case 7:
      case 8: return known ? side.establish(now_, *id) : void();
      case 9: return known && argument % 4 == 0 ? side.begin(now_, *id) : void();
      case 10: return deliver(side, other, argument, argument % 4 == 0);
      case 11:
        if (!side.outgoing.empty()) side.outgoing.pop_front();
        return;
      case 12: return wait(Duration::microseconds(std::int64_t{1} << argument % 24));
      case 13: return argument % 8 == 0 ? side.listen() : void();
      default: return deliver(side, other, 0, false);
    }
  }
  void deliver(Side& from, Side& to, std::uint8_t which, bool twice) {
    if (from.outgoing.empty()) return;
    const auto at = from.outgoing.begin() + which % static_cast<std::ptrdiff_t>(from.outgoing.size());
    const Mad mad = *at;
    if (!twice) from.outgoing.erase(at);  // else it comes again later
    to.take(now_, from, mad);
    to.name_request();
  }
  void wait(Duration time) {
    const Time until = now_ + time;
    while (std::min(a_.due(), b_.due()) <= until) {
      now_ = std::min(a_.due(), b_.due());
      a_.on_deadline(now_);
      b_.on_deadline(now_);
      a_.check(b_);
      b_.check(a_);
    }
    now_ = until;
  }
  void come_to_rest() {
    for (int i = 0; i < 2'000 && (a_.size() != 0 || b_.size() != 0 || !a_.outgoing.empty() || !b_.outgoing.empty());
         ++i) {
      deliver(a_, b_, 0, false);
      deliver(b_, a_, 0, false);
      a_.check(b_);
      b_.check(a_);
      for (Side* side : {&a_, &b_}) {
        Side& other = side == &a_ ? b_ : a_;
        for (std::size_t n = side->size(); n-- > 0;) {
          const auto id = side->pick(static_cast<std::uint8_t>(n));
          if (id && !side->is_silent(*id)) side->release(now_, *id, other);
        }
      }
      a_.check(b_);
      b_.check(a_);
      if (a_.outgoing.empty() && b_.outgoing.empty()) wait(Duration::milliseconds(500));
    }
    SLUICE_CHECK(a_.size() == 0 && b_.size() == 0);
  }

  Side a_{1};
  Side b_{2};
  Time now_;
};

}  // namespace

void check_connection_rules(ByteView input) { World().run(Script(input)); }

}  // namespace sluice::fuzz
