// The inside of ConnectionManager: the connections, their timers and the MADs that wait to leave.
//
// Invariant:  a record is in `timers_` exactly when its deadline is not never(); in by_peer_ as long as it lives and knows the peer's
//             id; in by_peer_qpn_ while its queue pair may be in use, which two live records never share.
// Source:     IBTA vol. 1 §12.9.7 (states), §12.9.8.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "rc/connection_manager.h"

namespace sluice::rc {

enum class CmState : std::uint8_t {
  kRequestSent,      // active: REQ is out
  kRequestReceived,  // passive: the program decides
  kReplySent,        // passive: REP is out
  kReplyReceived,    // active: the program moves its queue pair
  kEstablished,
  kDisconnectSent,  // DREQ is out
  kTimeWait,        // over; answers what comes late
};

struct CmRecord {
  ConnectionId id{};
  CmState state{};
  bool managed = false;  // we move the queue pair, for the last time to ERR
  bool silent = false;   // released: its owner hears nothing more
  bool refused = false;  // by the last answer, which may change: try again until time is over
  bool own_ack_timeout = false;

  // The peer.
  wire::CommId remote_id{};
  std::uint64_t remote_guid = 0;
  std::uint64_t transaction_id = 0;  // of the REQ: REP, RTU, REJ and MRA carry it too
  ServiceId service{};
  UdDestination peer{};

  // The connection.
  std::uint8_t gid_index = 0;
  Qpn local_qpn{};
  Psn receive_psn{};  // where the peer begins: what our message says
  Qpn remote_qpn{};
  Psn send_psn{};  // where we begin: what the peer's message says
  std::uint32_t path_mtu = 0;
  std::uint8_t ack_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry_count = 0;
  std::uint8_t responder_resources = 0;  // READs and atomics that we accept at once
  std::uint8_t initiator_depth = 0;      // … that we start at once
  bool peer_has_srq = false;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;

  // Repetition of the MAD that waits for an answer.
  std::array<std::uint8_t, wire::kMadSize> last{};
  Duration wait{};
  std::uint8_t max_retries = 0;
  std::uint8_t peer_response_code = 0;  // how long the peer takes to answer
  std::uint8_t peer_max_retries = 0;
  Time deadline = Time::never();
  Time give_up_at = Time::never();
  Time patient_until{};                   // for a listener
  wire::CmRejectReason refusal_reason{};  // when refused
};

class ConnectionManager::Machine {
 public:
  Machine(Adapter& adapter, Rng rng) : resolver(adapter, rng.fork("resolver")), adapter_(adapter), rng_(rng) {}

  // What the program asks for (connection_manager.cpp).
  Result<ConnectionId> connect(Time now, const wire::Gid& remote, ServiceId service, const ConnectionParameters& p);
  Result<void> accept(Time now, ConnectionId id, const ConnectionParameters& p);
  Result<void> establish(Time now, ConnectionId id);
  bool reject(Time now, ConnectionId id, ByteView private_data);
  void disconnect(Time now, ConnectionId id, ByteView private_data);
  void release(Time now, ConnectionId id);
  void forget_pair(ConnectionId id);
  std::optional<QueuePairAttributes> attributes(ConnectionId id, QpState state) const;
  void on_communication_established(Time now, Qpn local);
  void on_deadline(Time now);

  // What comes in (connection_messages.cpp).
  void on_mad(Time now, const UdDestination& from, ByteView mad);

  ServiceResolver resolver;
  std::set<ServiceId> services;
  std::deque<ConnectionEvent> events;
  ConnectionCounters counters;

  struct Outgoing {
    UdDestination to{};
    std::array<std::uint8_t, wire::kMadSize> bytes{};
  };
  std::deque<Outgoing> outgoing;
  bool resolver_is_next = false;
  Time next_deadline() const { return timers_.empty() ? Time::never() : timers_.begin()->first; }
  std::size_t size() const { return records_.size(); }

 private:
  // MADs that wait. What is an answer its peer asks for again, so that no flood of questions is to stand before what others wait for.
  static constexpr std::size_t kMaxOutgoing = 65'536;
  static constexpr std::size_t kMaxAnswers = 8192;
  // Address, GUID, and communication id or QPN. A GUID and a QPN are easily guessed; only the peer has its address.
  using PeerKey = std::tuple<wire::Gid, std::uint64_t, std::uint32_t>;
  struct Incoming {
    const UdDestination& from;
    std::uint64_t transaction_id;
  };

  // Messages in.
  void on(Time now, const Incoming& in, const wire::CmReq& req);
  void on(Time now, const Incoming& in, const wire::CmRep& rep);
  void on(Time now, const Incoming& in, const wire::CmRtu& rtu);
  void on(Time now, const Incoming& in, const wire::CmRej& rej);
  void on(Time now, const Incoming& in, const wire::CmMra& mra);
  void on(Time now, const Incoming& in, const wire::CmDreq& dreq);
  void on(Time now, const Incoming& in, const wire::CmDrep& drep);
  void on(Time now, const Incoming& in, const wire::CmSidrReq& req) {
    resolver.on(now, in.from, in.transaction_id, req);
  }
  void on(Time now, const Incoming&, const wire::CmSidrRep& rep) { resolver.on(now, rep); }
  void on_duplicate_request(Time now, CmRecord& record);
  std::optional<wire::CmRejectReason> judge(const Incoming& in, const wire::CmReq& req) const;
  void take_request(CmRecord& record, const Incoming& in, const wire::CmReq& req);
  void await_decision(Time now, CmRecord& record);
  void on_first_reply(Time now, CmRecord& record, const Incoming& in, const wire::CmRep& rep);
  bool end_stale(Time now, CmRecord& record);
  bool end_stale(Time now, const wire::Gid& peer, std::uint64_t guid, Qpn qpn);
  void try_again_soon(Time now, CmRecord& record, wire::CmRejectReason refusal);
  CmRecord* find_rejected(const Incoming& in, const wire::CmRej& rej);

  // Messages out.
  bool has_room(std::size_t limit);
  void send(const UdDestination& to, std::uint64_t transaction_id, const wire::CmMessage& message);
  void send_repeatedly(Time now, CmRecord& record, std::uint64_t transaction_id, const wire::CmMessage& message);
  void send_again(CmRecord& record, std::size_t limit);
  void send_request(Time now, CmRecord& record, const ConnectionParameters& p, std::uint16_t source_port);
  void send_reply(Time now, CmRecord& record, const ConnectionParameters& p);
  void send_ready(CmRecord& record);
  void send_disconnect(Time now, CmRecord& record, ByteView private_data);
  void send_reject(const CmRecord& record, wire::CmMessageKind what, wire::CmRejectReason why,
                   ByteView private_data = {});
  void send_wait(const CmRecord& record, wire::CmMessageKind what);
  std::uint64_t own_guid() const;

  // Records.
  Result<CmRecord*> make_record();
  CmRecord* find(ConnectionId id);
  const CmRecord* find(ConnectionId id) const;
  CmRecord* find(wire::CommId local, wire::CommId remote);  // both sides' names must fit
  void set_deadline(CmRecord& record, Time when);
  void know_peer(CmRecord& record);
  void forget_queue_pair(CmRecord& record);
  void erase(CmRecord& record);
  void rest(Time now, CmRecord& record);  // time-wait

  // Ends and beginnings.
  void tell(const CmRecord& record, ConnectionEvent event);
  void established(CmRecord& record, ByteView private_data = {});
  void fail(Time now, CmRecord& record, ConnectionEvent event);
  void disconnected(Time now, CmRecord& record, ByteView private_data = {});

  // Queue pairs.
  Result<void> check_parameters(const ConnectionParameters& p, std::size_t private_limit) const;
  Result<void> prepare(Time now, const ConnectionParameters& p);
  Result<void> make_ready(Time now, const CmRecord& record);
  void to_error(Time now, CmRecord& record);
  static QueuePairAttributes attributes(const CmRecord& record, QpState state);
  std::uint8_t limit_reads(unsigned wanted) const;

  Adapter& adapter_;
  Rng rng_;
  std::unordered_map<std::uint32_t, CmRecord> records_;
  std::map<PeerKey, std::uint32_t> by_peer_;
  std::map<PeerKey, std::uint32_t> by_peer_qpn_;
  std::map<std::uint32_t, std::uint32_t> awaiting_ready_;  // by our QPN; may be out of date
  std::set<std::pair<Time, std::uint32_t>> timers_;
};

}  // namespace sluice::rc
