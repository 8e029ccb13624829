// Connection manager: RDMA-CM over QP1, so that peers (ours, Linux, hardware) connect queue pairs by IP address and port, and a box
// on the path learns of connections by reading along.
//
// Life:       active:  connect() -> REQ … REP -> RTU -> kEstablished        passive: listen() -> kRequest -> accept() -> RTU -> kEstablished
//             either:  disconnect() or the peer's DREQ -> kDisconnected; REJ -> kRejected; silence -> kUnreachable
// Invariant:  each MAD is sent again until answered, at most max_retries times; duplicates are answered again and otherwise ignored.
//             A queue pair that is given to connect() or accept() is in RTS when kEstablished is reported, and in ERR after kDisconnected.
// Errors:     events; malformed MADs are dropped and counted.
// Threads:    the adapter's owner.
// Limits:     kMaxConnections at once; private data 56 bytes out with a REQ (92 less the 36 of the IP header), 196 with a REP.
// Source:     IBTA vol. 1 ch. 12, annex A11 (RDMA IP CM service).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/time.h"
#include "port/port.h"
#include "rc/work.h"
#include "wire/address.h"

namespace sluice::rc {

class Adapter;
class QueuePair;

using ConnectionId = Strong<struct ConnectionIdTag, std::uint32_t>;  // our local communication id

struct ConnectionParameters {
  QueuePair* pair = nullptr;               // in RESET or INIT; the connection manager moves it on. May be null: then the caller does.
  Qpn qpn{};                               // when pair is null
  Psn psn{};                               // our first send PSN, when pair is null
  std::vector<std::uint8_t> private_data{};
  std::uint8_t responder_resources = 16;   // READs and atomics that we accept at once
  std::uint8_t initiator_depth = 16;       // … that we start at once
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;        // 7: for ever
  Duration response_timeout = Duration::milliseconds(200);
  std::uint8_t max_retries = 10;
};

struct ConnectionEvent {
  enum class Kind : std::uint8_t { kRequest, kEstablished, kRejected, kUnreachable, kDisconnected };
  Kind kind{};
  ConnectionId id{};
  wire::Gid remote{};
  std::uint16_t port = 0;                  // kRequest: the port listened on
  Qpn remote_qpn{};
  Psn remote_psn{};
  std::uint16_t reject_reason = 0;         // kRejected: IBTA table 111; 28 is the consumer's
  std::uint8_t responder_resources = 0;    // as the peer says
  std::uint8_t initiator_depth = 0;
  std::vector<std::uint8_t> private_data{};
};

class ConnectionManager {
 public:
  static constexpr std::size_t kMaxConnections = 65'536;

  ConnectionManager(Adapter& adapter, Rng rng);
  ~ConnectionManager();

  // --- passive ---
  Result<void> listen(std::uint16_t port);
  void stop_listening(std::uint16_t port);
  Result<void> accept(Time now, ConnectionId id, const ConnectionParameters& parameters);
  void reject(Time now, ConnectionId id, ByteView private_data);

  // --- active ---
  Result<ConnectionId> connect(Time now, const wire::Gid& remote, std::uint16_t port, const ConnectionParameters& parameters);
  // Only when `pair` was null: the caller has moved its queue pair to RTR and RTS after kEstablished's REP (active side).
  // --- either ---
  void disconnect(Time now, ConnectionId id);
  // Forgets a connection without telling the peer (after kDisconnected, kRejected, kUnreachable).
  void release(ConnectionId id);

  std::optional<ConnectionEvent> poll_event();

  // --- for the adapter ---
  // A MAD that came to QP1.
  void on_mad(Time now, const UdDestination& from, ByteView mad);
  // Writes one MAD to send, if any, and where to; returns false when there is none.
  bool poll_mad(Time now, UdDestination& to, std::span<std::uint8_t, 256> mad);
  Time next_deadline() const;
  void on_deadline(Time now);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::rc
