#include "swordbox/connections.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/check.h"
#include "swordbox/memory_use.h"
#include "wire/icrc.h"

namespace sluice::swordbox {

using wire::Kind;

namespace {

std::uint16_t mtu_of_code(std::uint8_t code) {
  return code >= 1 && code <= 5 ? static_cast<std::uint16_t>(128u << code) : std::uint16_t{0};
}

// The smallest path MTU that lets a payload of this length through.
std::uint16_t mtu_for(std::uint32_t length) {
  std::uint32_t mtu = 256;
  while (mtu < length && mtu < 4096) mtu *= 2;
  return static_cast<std::uint16_t>(mtu);
}

}  // namespace

NetAddress NetAddress::from(const wire::Gid& gid) { return v6(gid.bytes.data()); }
wire::Gid NetAddress::gid() const {
  wire::Gid out;
  store_be(out.bytes.data(), high);
  store_be(out.bytes.data() + 8, low);
  return out;
}

Connections::Connections(const ConnectionLimits& limits, Counters& counters, Observer& observer)
    : limits_(limits),
      counters_(counters),
      observer_(observer),
      table_(limits.connections),
      use_(limits.connections),
      by_end_(std::size_t{limits.connections} * 2),
      free_(limits.connections),
      handshakes_(kHandshakes) {
  candidates_.reserve(limits.connections);
}

std::size_t Connections::bytes() const {
  return bytes_of(table_) + bytes_of(use_) + by_end_.bytes() + bytes_of(free_) + bytes_of(candidates_) +
         bytes_of(handshakes_);
}

std::uint64_t Connections::hash_of(std::uint32_t number) const {
  const Connection& c = table_[number >> 1];
  const std::size_t end = number & 1;
  return hash(c.pair_to(end), c.qpn[end]);
}

ConnectionIndex Connections::add(Time now) {
  if (live_ == table_.size()) {
    ++counters_.connections_refused;
    return kNone;
  }
  ++version_;
  auto i = static_cast<ConnectionIndex>(used_);
  if (used_ - live_ > kRest || used_ == table_.size()) {
    i = free_[free_first_];
    free_first_ = (free_first_ + 1) % free_.size();
  } else {
    ++used_;
  }
  ++live_;
  Connection& c = table_[i];
  const std::uint32_t generation = c.generation + 1;
  c = Connection{};
  c.generation = generation;
  c.alive = true;
  use_[i] = {.last_seen = now};
  return i;
}

void Connections::index(ConnectionIndex connection, std::uint8_t end) {
  const std::uint32_t number = connection * 2 + end;
  by_end_.insert(hash_of(number), number);
}

void Connections::unindex(ConnectionIndex connection, std::uint8_t end) {
  if (table_[connection].qpn[end] == kUnknownQpn) return;
  const std::uint32_t number = connection * 2 + end;
  by_end_.erase(hash_of(number), number, [this](std::uint32_t n) { return hash_of(n); });
}

void Connections::close(ConnectionIndex connection) {
  Connection& c = table_[connection];
  SLUICE_CHECK(c.alive);
  ++version_;
  observer_.on_connection_gone(connection);
  unindex(connection, 0);
  unindex(connection, 1);
  std::erase(candidates_, connection);
  c.alive = false;
  --live_;
  free_[(free_first_ + used_ - live_ - 1) % free_.size()] = connection;
}

void Connections::make_room(Time now, bool for_announced) {
  if (live_ != table_.size()) return;
  const ConnectionIndex least = !candidates_.empty() ? candidates_.front() : for_announced ? find_silent(now) : kNone;
  if (least == kNone) return;
  ++counters_.connections_expired;
  close(least);
}

// Of those that are closing, or else were inferred, or else of all, the one that has been silent longest. kNone: nobody has been for long enough.
ConnectionIndex Connections::find_silent(Time now) const {
  const auto claim = [&](ConnectionIndex i) { return table_[i].closing ? 0 : table_[i].announced ? 2 : 1; };
  const std::array<Duration, 3> silent_for = {Duration(), limits_.candidate, limits_.gives_way};
  ConnectionIndex least = kNone;
  for (ConnectionIndex i = 0; i < capacity(); ++i) {
    const auto rank = [&](ConnectionIndex c) { return std::pair(claim(c), use_[c].last_seen); };
    if (!table_[i].alive || now - use_[i].last_seen < silent_for[static_cast<std::size_t>(claim(i))]) continue;
    if (least == kNone || rank(i) < rank(least)) least = i;
  }
  return least;
}

bool Connections::announce(Time now, const Announcement& announcement) {
  const std::array<NetAddress, 2> address = {NetAddress::from(announcement.address[0]),
                                             NetAddress::from(announcement.address[1])};
  for (std::uint8_t end = 0; end < 2; ++end) {
    const Crossing known = find(address[1 - end], address[end], announcement.qpn[end]);
    if (known) close(known.connection);
  }
  make_room(now, true);
  const ConnectionIndex i = add(now);
  if (i == kNone) return false;
  Connection& c = table_[i];
  c.set_addresses(address[0], address[1]);
  c.qpn = announcement.qpn;
  c.announced = true;
  c.mtu = announcement.mtu;
  for (std::uint8_t end = 0; end < 2; ++end) {
    c.to[end].expected = announcement.starting_psn[1 - end];
    c.to[end].acknowledged = c.to[end].expected - 1;
    c.to[end].started = true;
    index(i, end);
  }
  ++counters_.connections_announced;
  return true;
}

// ---------------------------------------------------------------------------------------------------------- inference

void Connections::infer_from_request(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  make_room(now, false);
  const ConnectionIndex i = add(now);
  if (i == kNone) return;
  Connection& c = table_[i];
  c.set_addresses(NetAddress::source_of(frame, parsed), NetAddress::destination_of(frame, parsed));
  c.qpn[1] = parsed.destination;
  c.mtu = limits_.assumed_mtu;
  c.to[1].expected = parsed.psn;
  c.to[1].acknowledged = parsed.psn - 1;
  c.to[1].started = true;
  index(i, 1);
  candidates_.push_back(i);
}

// Only answers that carry the PSN of the request itself tell anything.
Crossing Connections::infer_from_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  if (parsed.traits().kind == Kind::kReadResponse && !parsed.traits().starts_message()) return {};
  if (parsed.traits().has(wire::Extended::kAeth) && !wire::get<wire::Aeth>(frame, parsed).is_ack()) return {};
  const NetAddress responder = NetAddress::source_of(frame, parsed);
  const NetAddress requester = NetAddress::destination_of(frame, parsed);
  ConnectionIndex found = kNone;
  for (const ConnectionIndex i : candidates_) {
    const Connection& c = table_[i];
    if (c.address[0] != requester || c.address[1] != responder) continue;
    const bool fits = parsed.psn.since(c.to[1].acknowledged) > 0 && parsed.psn.since(c.to[1].expected) < 0;
    if (!fits) continue;
    if (found != kNone) {
      ++counters_.connections_ambiguous;
      return {};
    }
    found = i;
  }
  if (found == kNone) return {};
  std::erase(candidates_, found);
  Connection& c = table_[found];
  ++version_;
  c.qpn[0] = parsed.destination;
  use_[found].last_seen = now;
  index(found, 0);
  ++counters_.connections_inferred;
  return {found, 0};
}

// --------------------------------------------------------------------------------------------- connection management

void Connections::on_management(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  // Rare, and believed: so its ICRC is checked, as on no other packet.
  if (!wire::verify_icrc(frame, parsed)) return;
  const auto mad = wire::parse_cm(frame, parsed);
  if (!mad) return;
  const NetAddress from = NetAddress::source_of(frame, parsed);
  const NetAddress to = NetAddress::destination_of(frame, parsed);
  if (const auto* req = std::get_if<wire::CmReq>(&mad->message)) {
    if (req->transport_service == 0) remember(now, *req, from, to);
  } else if (const auto* rep = std::get_if<wire::CmRep>(&mad->message)) {
    complete(now, *rep, from, to);
  } else if (const auto* rej = std::get_if<wire::CmRej>(&mad->message)) {
    if (Handshake* h = recall(to, rej->remote_comm_id)) h->used = false;
  } else if (const auto* dreq = std::get_if<wire::CmDreq>(&mad->message)) {
    const Crossing known = find(from, to, dreq->remote_qpn);
    if (!known) return;
    // One that comes again may name a queue pair that has another connection by now.
    Connection& c = table_[known.connection];
    const bool names_it =
        c.comm_id[known.end] == dreq->remote_comm_id && c.comm_id[1 - known.end] == dreq->local_comm_id;
    if (c.origin != 0 && !names_it) return;
    c.closing = true;
    use_[known.connection].last_seen = now;
  }
}

void Connections::remember(Time now, const wire::CmReq& req, const NetAddress& from, const NetAddress& to) {
  const std::size_t home = mix(from.low ^ req.local_comm_id.value) & (kHandshakes - 1);
  Handshake* place = nullptr;
  for (std::size_t k = 0; k < kProbes; ++k) {
    Handshake& h = handshakes_[(home + k) & (kHandshakes - 1)];
    const bool same = h.used && h.initiator == from && h.comm_id == req.local_comm_id;
    if (place == nullptr || same || (place->used && (!h.used || h.since < place->since))) place = &h;
    if (same) break;
  }
  *place = {.used = true,
            .initiator = from,
            .acceptor = to,
            .comm_id = req.local_comm_id,
            .qpn = req.local_qpn,
            .psn = req.starting_psn,
            .mtu = mtu_of_code(req.path_mtu),
            .since = now};
}

Connections::Handshake* Connections::recall(const NetAddress& initiator, wire::CommId comm_id) {
  const std::size_t home = mix(initiator.low ^ comm_id.value) & (kHandshakes - 1);
  for (std::size_t k = 0; k < kProbes; ++k) {
    Handshake& h = handshakes_[(home + k) & (kHandshakes - 1)];
    if (h.used && h.initiator == initiator && h.comm_id == comm_id) return &h;
  }
  return nullptr;
}

// REQ and REP tell at which PSN their receivers begin to send. Both may come again, late: then the connection is known, and has got on. What
// has the numbers of one that is closing, or its numbers but not its names, is another.
void Connections::complete(Time now, const wire::CmRep& rep, const NetAddress& from, const NetAddress& to) {
  Handshake* const h = recall(to, rep.remote_comm_id);
  if (h == nullptr || h->acceptor != from) return;
  h->used = false;
  const auto origin =
      static_cast<std::uint32_t>(mix(std::uint64_t{rep.starting_psn.value()} << 24 | h->psn.value())) | 1;
  const std::array<wire::CommId, 2> comm_id = {rep.remote_comm_id, rep.local_comm_id};
  if (const Crossing known = find(to, from, rep.local_qpn)) {
    const Connection& c = table_[known.connection];
    const bool same_ends = known.connection == find(from, to, h->qpn).connection;
    if (same_ends && c.origin == origin && c.comm_id == comm_id && !c.closing) return;
  }
  announce(now, {.address = {to.gid(), from.gid()},
                 .qpn = {h->qpn, rep.local_qpn},
                 .starting_psn = {rep.starting_psn, h->psn},
                 .mtu = h->mtu});
  if (const Crossing made = find(to, from, rep.local_qpn)) {
    table_[made.connection].origin = origin;
    table_[made.connection].comm_id = comm_id;
  }
}

// -------------------------------------------------------------------------------------------------------------- ageing

void Connections::age(Time now) {
  constexpr ConnectionIndex kShare = 256;
  const auto steps = std::min<ConnectionIndex>(kShare, capacity());
  for (ConnectionIndex k = 0; k < steps; ++k) {
    hand_ = (hand_ + 1) % capacity();
    const Connection& c = table_[hand_];
    if (!c.alive) continue;
    const Duration silent = now - use_[hand_].last_seen;
    const bool is_candidate = c.qpn[0] == kUnknownQpn || c.qpn[1] == kUnknownQpn;
    // Whoever has a request that waits here sends it again, as long as it lives.
    const bool waits = c.to[0].holds_request || c.to[1].holds_request;
    const Duration idle = waits ? std::min(limits_.gives_way, limits_.idle) : limits_.idle;
    if (silent >= (c.closing ? limits_.closing : is_candidate ? limits_.candidate : idle)) {
      ++(c.closing ? counters_.connections_closed : counters_.connections_expired);
      close(hand_);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------------- MTU

void observe_payload(Connection& connection, const wire::ParsedFrame& parsed) {
  if (parsed.payload_length > connection.mtu_floor) connection.mtu_floor = mtu_for(parsed.payload_length);
  const wire::Position position = parsed.traits().position;
  const bool full = position == wire::Position::kFirst || position == wire::Position::kMiddle;
  if (full && parsed.traits().has_payload && connection.mtu == 0) connection.mtu = mtu_for(parsed.payload_length);
}

}  // namespace sluice::swordbox
