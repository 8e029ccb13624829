// Service resolver: the datagram side of RDMA-CM (SIDR). Who asks learns the queue pair and Q_Key behind a service; no connection comes of it.
//
// Life:       active:  resolve() -> SIDR_REQ … SIDR_REP -> kResolved | kRefused; silence -> kUnreachable
//             passive: listen() -> kQuery -> answer() or refuse()
// Invariant:  a question is sent again until answered or until its time is over. Who asks again what has been answered gets the same
//             answer, until release(). After kRefused, kUnreachable, refuse() and release() the id means nothing any more.
// Errors:     events; what fits no question or service is counted.
// Threads:    the adapter's owner.
// Limits:     kMaxOpen at once, answered ones included; private data: kPrivate… below. What arrives is always as long as its field,
//             zeros after what the peer wrote.
// Source:     IBTA vol. 1 §12.11 (service ID resolution), annex A11 (RDMA IP CM service).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/strong.h"
#include "base/time.h"
#include "rc/work.h"
#include "wire/address.h"
#include "wire/cm.h"

namespace sluice::rc {

class Adapter;

using ResolutionId = Strong<struct ResolutionIdTag, std::uint32_t>;

struct ResolutionParameters {
  std::vector<std::uint8_t> private_data{};
  std::uint8_t traffic_class = 0;
  std::optional<wire::Gid> source{};  // which of our addresses; absent: the first of the peer's IP version
  Duration response_timeout = Duration::milliseconds(200);
  std::uint8_t max_retries = 10;
  Duration patience{};  // so long a peer that does not know the service is asked again; the time above ends it, too
};

struct ResolutionEvent {
  enum class Kind : std::uint8_t { kQuery, kResolved, kRefused, kUnreachable };
  Kind kind{};
  ResolutionId id{};
  wire::Gid remote{};
  wire::Gid local{};  // which of our addresses
  wire::ServiceId service{};
  std::uint16_t port = 0;     // of the service, 0 if it is none of rdma_cm's
  wire::SidrStatus status{};  // kRefused
  Qpn qpn{};                  // kResolved
  wire::QKey qkey{};          // kResolved
  std::vector<std::uint8_t> private_data{};
};

struct ResolverCounters {
  std::uint64_t unexpected = 0;  // answers to no question
  std::uint64_t duplicates = 0;  // questions that had been asked before
  std::uint64_t refused = 0;     // by us
  std::uint64_t resent = 0;
  std::uint64_t given_up = 0;
};

class ServiceResolver {
 public:
  static constexpr std::size_t kMaxOpen = 65'536;
  // Private data that we may send.
  static constexpr std::size_t kPrivateQuery = 216;
  static constexpr std::size_t kPrivateIpQuery = 180;  // the 216 less the addresses
  static constexpr std::size_t kPrivateAnswer = 136;

  ServiceResolver(Adapter& adapter, Rng rng) : adapter_(adapter), rng_(rng) {}

  // --- passive ---
  Result<void> listen(wire::ServiceId service);
  void stop_listening(wire::ServiceId service) { services_.erase(service); }
  Result<void> answer(ResolutionId id, Qpn qpn, wire::QKey qkey, ByteView private_data);
  void refuse(ResolutionId id, wire::SidrStatus why, ByteView private_data);

  // --- active ---
  Result<ResolutionId> resolve(Time now, const wire::Gid& remote, wire::ServiceId service,
                               const ResolutionParameters& parameters);

  // --- either ---
  void release(ResolutionId id);
  std::optional<ResolutionEvent> poll_event();

  // --- for the connection manager ---
  void on(Time now, const UdDestination& from, std::uint64_t transaction_id, const wire::CmSidrReq& req);
  void on(Time now, const wire::CmSidrRep& rep);
  bool poll_mad(UdDestination& to, std::span<std::uint8_t, wire::kMadSize> mad);
  Time next_deadline() const { return timers_.empty() ? Time::never() : timers_.begin()->first; }
  void on_deadline(Time now);

  const ResolverCounters& counters() const { return counters_; }
  std::size_t size() const { return records_.size(); }

 private:
  using Asked = std::pair<std::array<std::uint8_t, 16>, std::uint32_t>;  // the peer's GID and its name for the question
  struct Record {
    ResolutionId id{};
    bool ours = false;      // we ask
    bool answered = false;  // by us
    bool unknown = false;   // to the peer, so far
    UdDestination peer{};
    wire::SidrRequestId request_id{};  // the peer's, when it asks
    std::uint64_t transaction_id = 0;
    wire::ServiceId service{};
    std::array<std::uint8_t, wire::kMadSize> last{};
    Duration wait{};
    Time deadline = Time::never();
    Time give_up_at = Time::never();
    Time patient_until{};
  };
  struct Outgoing {
    UdDestination to{};
    std::array<std::uint8_t, wire::kMadSize> bytes{};
  };

  Result<Record*> make_record();
  Record* find(ResolutionId id);
  void erase(Record& record);
  void set_deadline(Record& record, Time when);
  void tell(const Record& record, ResolutionEvent event);
  void send(Record& record, const wire::CmMessage& message);
  void send_again(const Record& record);
  void push(const Record& record);
  static Asked key_of(const Record& record) { return {record.peer.gid.bytes, record.request_id.value}; }
  std::optional<wire::SidrStatus> judge(const wire::CmSidrReq& req) const;

  Adapter& adapter_;
  Rng rng_;
  ResolverCounters counters_;
  std::set<wire::ServiceId> services_;
  std::unordered_map<std::uint32_t, Record> records_;
  std::map<Asked, std::uint32_t> by_question_;  // the peers'
  std::set<std::pair<Time, std::uint32_t>> timers_;
  std::deque<ResolutionEvent> events_;
  std::deque<Outgoing> outgoing_;
};

}  // namespace sluice::rc
