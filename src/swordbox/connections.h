// The reliable connections that cross the box: who they join, and how far each direction has come.
//
// Life:       announced (REQ and REP seen, or told by the control plane) or inferred (a request, then an answer that fits it) -> used ->
//             closed (DREQ), replaced (a new connection of the same queue pair), expired (silence) or, when the table is full, given up for
//             one that is announced (the one that has been silent longest).
// Invariant:  `expected` of a direction is the PSN after the newest request that the box has forwarded in order, or after the newest one
//             that the responder has acknowledged, whichever is later. Nothing is decided about requests beyond it.
// Invariant:  an inferred connection is complete only when exactly one candidate fits the answer; until then it is not used.
// Threads:    one owner. No allocation after construction.
// Limits:     ConnectionLimits; a connection is two cache lines, and half of one to count in.
// Source:     SwordBox §4.1 (connection tracking); IBTA vol. 1 §12.6 (REQ, REP, DREQ).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/prefetch.h"
#include "base/time.h"
#include "swordbox/flat_index.h"
#include "swordbox/verdict.h"
#include "wire/cm.h"
#include "wire/frame.h"

namespace sluice::swordbox {

using wire::Psn;
using wire::Qpn;

// An IP address in two words; IPv4 mapped into IPv6.
struct NetAddress {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  static NetAddress from(const wire::Gid& gid);
  static NetAddress source_of(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
    return parsed.is_v4 ? v4(frame + parsed.udp_offset() - 8) : v6(frame + parsed.udp_offset() - 32);
  }
  static NetAddress destination_of(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
    return parsed.is_v4 ? v4(frame + parsed.udp_offset() - 4) : v6(frame + parsed.udp_offset() - 16);
  }
  wire::Gid gid() const;
  bool is_v4() const { return high == 0 && low >> 32 == 0xFFFF; }
  friend bool operator==(const NetAddress& a, const NetAddress& b) {
    return ((a.high ^ b.high) | (a.low ^ b.low)) == 0;
  }
  static NetAddress v4(const std::uint8_t* p) { return {0, 0xFFFF'0000'0000u | load_be<std::uint32_t>(p)}; }
  static NetAddress v6(const std::uint8_t* p) { return {load_be<std::uint64_t>(p), load_be<std::uint64_t>(p + 8)}; }
};

// Two addresses in one word, the first in its upper half: of IPv4 themselves, of IPv6 their hashes.
inline std::uint64_t pair_of(const NetAddress& first, const NetAddress& second) {
  const auto half = [](const NetAddress& a) {
    return static_cast<std::uint32_t>(a.is_v4() ? a.low : mix(a.low * 3 + a.high));
  };
  return std::uint64_t{half(first)} << 32 | half(second);
}

using ConnectionIndex = std::uint32_t;
inline constexpr Qpn kUnknownQpn{0xFFFF'FFFF};

// One of the two directions of a connection, named after the end that packets go to.
struct Direction {
  Psn expected{};                   // of the next request to this end
  Psn acknowledged{};               // of requests to this end: the newest that this end has answered
  std::uint32_t held_last = kNone;  // of the packets to this end that wait
  Psn held_next{};                  // after the last request that waits
  std::uint16_t loose = 0;  // so many PSNs beyond `expected` the next request may be: a READ of unknown span came last
  bool started = false;     // a request has been seen, so that the PSNs are known
  bool holds_request = false;  // among what waits

  bool holds() const { return held_last != kNone; }
  bool under_way() const { return started && expected.since(acknowledged) != 1; }
};

// All that a packet over IPv4 is found and judged by lies in the first of its two cache lines.
struct alignas(64) Connection {
  std::array<Direction, 2> to{};
  std::array<Qpn, 2> qpn{kUnknownQpn, kUnknownQpn};
  std::uint64_t pair = 0;  // pair_of(address[0], address[1])
  std::uint16_t mtu = 0;   // 0: not known, but not less than mtu_floor
  std::uint16_t mtu_floor = 256;
  bool alive = false;
  bool closing = false;
  bool announced = false;
  bool is_v4 = false;  // both addresses
  std::array<NetAddress, 2> address{};
  std::uint32_t generation = 0;           // of this place in the table
  std::uint32_t origin = 0;               // of the PSNs that it began with, mixed; 0: not from a handshake
  std::array<wire::CommId, 2> comm_id{};  // of a handshake: what each end calls it
  bool doubtful = false;                  // it had something under way when the rule that knew of it went

  void set_addresses(const NetAddress& first, const NetAddress& second) {
    address = {first, second};
    pair = pair_of(first, second);
    is_v4 = first.is_v4() && second.is_v4();
  }
  // Nothing of it was under way with what a box, or rule, before this one knew.
  bool set_up_anew() const { return announced && !doubtful; }
  // As packets to this end have it: source, then destination.
  std::uint64_t pair_to(std::size_t end) const { return std::rotl(pair, end == 1 ? 0 : 32); }
};
static_assert(sizeof(Connection) == 128 && offsetof(Connection, address) == 64);

// What a connection has cost and got.
struct ConnectionUse {
  Time last_seen{};
  std::uint32_t requests = 0;
  std::uint32_t responses = 0;
  std::uint32_t changed = 0;  // packets that left otherwise than they came
  std::uint32_t delayed = 0;
  std::uint32_t dropped = 0;
};
static_assert(sizeof(ConnectionUse) == 32);

// A packet's connection, and the end that it goes to.
struct Crossing {
  ConnectionIndex connection = kNone;
  std::uint8_t end = 0;

  explicit operator bool() const { return connection != kNone; }
};

struct ConnectionLimits {
  std::uint32_t connections = 4096;
  Duration idle = Duration::seconds(600);
  Duration closing = Duration::milliseconds(200);
  Duration candidate = Duration::seconds(1);  // no answer has shown the other end for so long
  // When there is no room one that has been silent for so long gives way to one that is announced: longer than a queue pair's retries, mostly.
  Duration gives_way = Duration::seconds(10);
  std::uint16_t assumed_mtu = 0;  // of inferred connections; 0: found out
};

// What the control plane may tell about a connection.
struct Announcement {
  std::array<wire::Gid, 2> address{};
  std::array<Qpn, 2> qpn{};
  std::array<Psn, 2> starting_psn{};  // of the requests that end i sends
  std::uint16_t mtu = 0;
};

class Connections {
 public:
  // Told when a connection goes, before its place is used again.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void on_connection_gone(ConnectionIndex connection) = 0;
  };

  Connections(const ConnectionLimits& limits, Counters& counters, Observer& observer);

  Connection& operator[](ConnectionIndex i) { return table_[i]; }
  const Connection& operator[](ConnectionIndex i) const { return table_[i]; }
  ConnectionUse& use(ConnectionIndex i) { return use_[i]; }
  const ConnectionUse& use(ConnectionIndex i) const { return use_[i]; }
  std::size_t size() const { return live_; }
  // Changes whenever a Crossing found before might be another now.
  std::uint64_t version() const { return version_; }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(table_.size()); }

  // What a packet's connection is found by, with its hash.
  struct EndKey {
    std::uint64_t pair = 0;  // pair_of(source, destination)
    std::uint64_t hash = 0;
    Qpn to;
    bool is_v4 = false;
    NetAddress source;  // these two only of IPv6: an IPv4 pair says all
    NetAddress destination;

    // Fills this one in its place: what is written in parts and copied as a whole at once costs a stall.
    void assign(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
      is_v4 = parsed.is_v4;
      if (is_v4) {
        pair = load_be<std::uint64_t>(frame + parsed.udp_offset() - 8);
      } else {
        source = NetAddress::source_of(frame, parsed);
        destination = NetAddress::destination_of(frame, parsed);
        pair = pair_of(source, destination);
      }
      to = parsed.destination;
      hash = Connections::hash(pair, to);
    }
  };
  Crossing find(const EndKey& key) const {
    const std::uint32_t number = by_end_.find(key.hash, [&](std::uint32_t n) {
      const Connection& c = table_[n >> 1];
      const std::size_t end = n & 1;
      if (((c.qpn[end].value ^ key.to.value) | (c.pair_to(end) ^ key.pair)) != 0) return false;
      if (c.is_v4 && key.is_v4) return true;
      return c.is_v4 == key.is_v4 && c.address[end] == key.destination && c.address[1 - end] == key.source;
    });
    if (number == kNone) return {};
    return {number >> 1, static_cast<std::uint8_t>(number & 1)};
  }
  Crossing find(const NetAddress& source, const NetAddress& destination, Qpn to) const {
    const std::uint64_t pair = pair_of(source, destination);
    return find({pair, hash(pair, to), to, source.is_v4() && destination.is_v4(), source, destination});
  }
  // Brings the places that find() will look at nearer.
  void prefetch(const EndKey& key) const { by_end_.prefetch(key.hash); }
  // And of a connection how far it has come.
  void prefetch_progress(ConnectionIndex connection) const { sluice::prefetch(&table_[connection].to); }

  // A request to an end nobody knows: a candidate, until an answer comes.
  void infer_from_request(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  // An answer to an end nobody knows: completes the one candidate that it fits.
  Crossing infer_from_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  // REQ, REP, DREQ, REJ as they pass.
  void on_management(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  // From the control plane. False: no room.
  bool announce(Time now, const Announcement& announcement);
  void close(ConnectionIndex connection);

  std::size_t bytes() const;

  // Looks at a share of the table for connections that are closing or silent.
  void age(Time now);

 private:
  struct Handshake {
    bool used = false;
    NetAddress initiator{};
    NetAddress acceptor{};
    wire::CommId comm_id{};
    Qpn qpn{};
    Psn psn{};
    std::uint16_t mtu = 0;
    Time since{};
  };
  static constexpr std::size_t kHandshakes = 1024;  // a power of two
  static constexpr std::size_t kProbes = 8;

  static std::uint64_t hash(std::uint64_t pair, Qpn to) {
    const std::uint64_t h = (pair ^ to.value * std::uint64_t{0x9E3779B97F4A7C15}) * 0xBF58476D1CE4E5B9;
    return h ^ h >> 32;
  }
  std::uint64_t hash_of(std::uint32_t number) const;
  ConnectionIndex add(Time now);
  // The table is full: whoever will be missed least goes, if anybody may. For an announced connection that may be any that is silent.
  void make_room(Time now, bool for_announced);
  ConnectionIndex find_silent(Time now) const;
  void index(ConnectionIndex connection, std::uint8_t end);
  void unindex(ConnectionIndex connection, std::uint8_t end);
  void remember(Time now, const wire::CmReq& req, const NetAddress& from, const NetAddress& to);
  Handshake* recall(const NetAddress& initiator, wire::CommId comm_id);
  void complete(Time now, const wire::CmRep& rep, const NetAddress& from, const NetAddress& to);

  ConnectionLimits limits_;
  Counters& counters_;
  Observer& observer_;
  Table<Connection> table_;
  Table<ConnectionUse> use_;
  FlatIndex by_end_;  // connection * 2 + end
  // Places that were used, a ring, oldest first: kRest of them rest before one is used again, and as long as there are fewer a fresh one is
  // taken. So the memory that is touched follows the most connections at a time, not all that there have been.
  static constexpr std::size_t kRest = 256;
  std::vector<ConnectionIndex> free_;
  std::size_t free_first_ = 0;
  std::size_t used_ = 0;  // places, ever
  std::size_t live_ = 0;
  std::uint64_t version_ = 0;
  std::vector<ConnectionIndex> candidates_;  // inferred, not complete; oldest first
  std::vector<Handshake> handshakes_;
  ConnectionIndex hand_ = 0;
};

// How many PSNs a READ of `length` bytes takes; 0 when the path MTU is not known well enough.
inline std::uint32_t read_span(const Connection& connection, std::uint32_t length) {
  if (length <= connection.mtu_floor) return 1;
  if (connection.mtu == 0) return 0;
  return (length + connection.mtu - 1) / connection.mtu;
}
// Learns from a packet what the path MTU is, or at least is.
void observe_payload(Connection& connection, const wire::ParsedFrame& parsed);
inline void observe_mtu(Connection& connection, const wire::ParsedFrame& parsed) {
  if (parsed.payload_length > connection.mtu_floor || connection.mtu == 0) observe_payload(connection, parsed);
}

}  // namespace sluice::swordbox
