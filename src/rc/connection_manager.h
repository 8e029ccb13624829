// Connection manager: RDMA-CM over QP1, so that peers (ours, Linux, hardware) connect queue pairs by IP address and port, and a box
// on the path learns of connections by reading along.
//
// Life:       active:  connect() -> REQ … REP -> RTU -> kEstablished        passive: listen() -> kRequest -> accept() -> RTU -> kEstablished
//             either:  disconnect() or the peer's DREQ -> kDisconnected; REJ -> kRejected; silence -> kUnreachable
//             Who moves the queue pair himself (parameters.pair is null) asks attributes() for what to set: active, he gets kResponse
//             when the REP is there, moves to RTR and RTS, and calls establish(); passive, he moves before accept().
// Invariant:  each MAD is sent again until answered or until its time is over; duplicates are answered again and otherwise ignored.
//             A queue pair that is given to connect() or accept() is in RTS when kEstablished is reported, and in ERR after
//             kRejected, kUnreachable and kDisconnected. After those three, and after release(), the id means nothing any more and
//             the queue pair is the caller's alone.
// Units:      time-outs on the wire are 4.096 us * 2^code.
// Errors:     events; malformed MADs are dropped and counted.
// Threads:    the adapter's owner.
// Limits:     kMaxConnections at once, those in time-wait included; private data: kPrivate… below. What arrives is always as long as
//             its field, zeros after what the peer wrote.
// Source:     IBTA vol. 1 ch. 12 (§12.9.7 states, §12.9.8.3 stale connections), annex A11 (RDMA IP CM service).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/strong.h"
#include "base/time.h"
#include "rc/queue_pair.h"
#include "rc/service_resolver.h"
#include "rc/work.h"
#include "wire/address.h"
#include "wire/cm.h"

namespace sluice::rc {

class Adapter;

using ConnectionId = Strong<struct ConnectionIdTag, std::uint32_t>;  // our local communication id
using wire::ServiceId;

struct ConnectionParameters {
  QueuePair* pair =
      nullptr;  // in RESET or INIT; the connection manager moves it on. May be null: then the caller does.
  Qpn qpn{};    // when pair is null
  // Where the peer shall begin to send, our first receive PSN; absent: random. Present when a null pair is already in RTR.
  std::optional<Psn> psn{};
  std::vector<std::uint8_t> private_data{};
  std::uint8_t responder_resources = 16;  // READs and atomics that we accept at once
  std::uint8_t initiator_depth = 16;      // … that we start at once; both are cut down to what the peer can do
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;  // 7: for ever
  std::optional<std::uint8_t>
      ack_timeout{};           // the queue pair's, as a code; absent: kDefaultAckTimeout, or what the REQ says
  std::uint32_t path_mtu = 0;  // connect(): 0 is the adapter's. accept() takes the REQ's.
  std::uint8_t traffic_class = 0;
  std::optional<wire::Gid> source{};  // connect(): which of our addresses; absent: the first of the peer's IP version
  std::uint16_t source_port = 0;      // connect(): ours, as the peer shall see it; 0: random
  Duration response_timeout = Duration::milliseconds(200);  // rounded up to a code
  std::uint8_t max_retries = 10;                            // at most 15
  Duration patience{};  // connect(): so long a peer where nobody listens is asked again; the time above ends it, too
};

struct ConnectionEvent {
  enum class Kind : std::uint8_t { kRequest, kResponse, kEstablished, kRejected, kUnreachable, kDisconnected };
  Kind kind{};
  ConnectionId id{};
  wire::Gid remote{};
  wire::Gid local{};              // which of our addresses
  ServiceId service{};            // kRequest: what it asks for
  std::uint16_t port = 0;         // kRequest: … as a port, 0 if it is none
  std::uint16_t remote_port = 0;  // kRequest: the peer's own
  Qpn local_qpn{};
  Qpn remote_qpn{};
  Psn send_psn{};                        // where the peer wants us to begin
  wire::CmRejectReason reject_reason{};  // kRejected
  // kRequest: the most that accept() can get; later: what has been agreed, from our side.
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t retry_count = 0;      // of our queue pair: what the REQ asks for
  std::uint8_t rnr_retry_count = 0;  // … and what the peer asks for
  bool peer_has_srq = false;
  std::vector<std::uint8_t> private_data{};
};

struct ConnectionCounters {
  std::uint64_t received = 0;
  std::uint64_t malformed = 0;   // no CM MAD, or one that contradicts itself
  std::uint64_t unexpected = 0;  // of no connection, or at the wrong time
  std::uint64_t duplicates = 0;  // answered again
  std::uint64_t stale = 0;       // peers that had forgotten a connection of ours
  std::uint64_t rejected = 0;    // REJs sent
  std::uint64_t sent = 0;
  std::uint64_t resent = 0;
  std::uint64_t established = 0;
  std::uint64_t given_up = 0;
  std::uint64_t dropped = 0;  // too much to send at once
};

class ConnectionManager {
 public:
  static constexpr std::size_t kMaxConnections = 65'536;
  static constexpr std::uint8_t kDefaultAckTimeout = 14;  // 67 ms
  // Private data that we may send.
  static constexpr std::size_t kPrivateRequest = 92;
  static constexpr std::size_t kPrivateIpRequest = 56;  // the 92 less the addresses
  static constexpr std::size_t kPrivateReply = 196;
  static constexpr std::size_t kPrivateReject = 148;
  static constexpr std::size_t kPrivateDisconnect = 220;

  ConnectionManager(Adapter& adapter, Rng rng);
  ~ConnectionManager();

  // --- passive ---
  Result<void> listen(ServiceId service);
  Result<void> listen(std::uint16_t port) { return listen(wire::rdma_service(port)); }
  void stop_listening(ServiceId service);
  void stop_listening(std::uint16_t port) { stop_listening(wire::rdma_service(port)); }
  // After a failure the request still waits for accept() or reject().
  Result<void> accept(Time now, ConnectionId id, const ConnectionParameters& parameters);
  // Also active, after kResponse. False: there is nothing that could be rejected.
  bool reject(Time now, ConnectionId id, ByteView private_data);

  // --- active ---
  Result<ConnectionId> connect(Time now, const wire::Gid& remote, ServiceId service,
                               const ConnectionParameters& parameters);
  Result<ConnectionId> connect(Time now, const wire::Gid& remote, std::uint16_t port,
                               const ConnectionParameters& parameters) {
    return connect(now, remote, wire::rdma_service(port), parameters);
  }
  // After kResponse: the caller's queue pair is in RTS. Sends the RTU; the connection is established, without an event.
  Result<void> establish(Time now, ConnectionId id);

  // --- either ---
  // Tells the peer that it is over; kDisconnected follows. The queue pair goes to ERR at once.
  void disconnect(Time now, ConnectionId id, ByteView private_data = {});
  // Ends it without another event: whatever its state, the peer is told as far as it needs to know.
  void release(Time now, ConnectionId id);
  // The queue pair is about to be destroyed; the connection stays until it is disconnected or released.
  void forget_pair(ConnectionId id);
  // What the caller's queue pair is to be given for INIT, RTR or RTS. Known after kRequest (passive) or kResponse (active).
  std::optional<QueuePairAttributes> attributes(ConnectionId id, QpState state) const;
  // A request has been executed on this queue pair, which waits for its RTU: that is as good (IBTA §12.9.7.2, "communication established").
  void on_communication_established(Time now, Qpn local);

  std::optional<ConnectionEvent> poll_event();

  // For datagrams, which need no connection.
  ServiceResolver& resolver();

  // --- for the adapter ---
  // A MAD that came to QP1.
  void on_mad(Time now, const UdDestination& from, ByteView mad);
  // Writes one MAD to send, if any, and where to (an unknown MAC is zero, for the adapter to resolve); returns false when there is none.
  bool poll_mad(Time now, UdDestination& to, std::span<std::uint8_t, wire::kMadSize> mad);
  Time next_deadline() const;
  void on_deadline(Time now);

  const ConnectionCounters& counters() const;
  std::size_t size() const;  // connections, those in time-wait included

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace sluice::rc
