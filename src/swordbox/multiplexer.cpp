#include "swordbox/multiplexer.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/bytes.h"
#include "base/check.h"
#include "base/prefetch.h"
#include "wire/frame_editor.h"
#include "wire/icrc.h"

namespace sluice::swordbox {

using wire::Kind;

namespace {

bool is_whole_word(const Judged& packet, const wire::Reth& reth) {
  return packet.parsed.opcode == wire::Opcode::kRcWriteOnly && reth.length == kWordBytes &&
         packet.parsed.payload_length == kWordBytes && reth.virtual_address % kWordBytes == 0;
}

}  // namespace

std::uint64_t Multiplexer::WordOperation::outcome(std::uint64_t prior) const {
  switch (kind) {
    case Kind::kCompareSwap: return prior == compare ? swap_or_add : prior;
    case Kind::kMaskedCompareSwap:
      return ((prior ^ compare) & compare_mask) == 0 ? (prior & ~swap_mask) | (swap_or_add & swap_mask) : prior;
    case Kind::kAdd: return prior + swap_or_add;
    case Kind::kWrite: return swap_or_add;
    case Kind::kUnknown: break;
  }
  return prior;
}

Multiplexer::Multiplexer(const MultiplexerConfig& config, Connections& connections, Counters& counters)
    : config_(config),
      connections_(connections),
      counters_(counters),
      words_(config.words),
      in_(connections.capacity(), config.ring),
      out_(connections.capacity(), config.ring),
      carrier_out_(config.carriers, config.carrier_ring),
      numbers_(connections.capacity()),
      carriers_(config.carriers),
      passes_(config.passes),
      writes_(config.long_writes),
      lines_(config.lines),
      late_(kMostLate),
      first_late_(connections.capacity() * 2),
      room_(first_late_ + kMostLate) {
  SLUICE_CHECK(config.ring <= InEntry::kMostPackets);
  regions_.reserve(kMaxRegions);  // lines in them stay where they are
  for (const WordRegion& region : config.regions) {
    const bool added = add_region({.region = region, .server = NetAddress::from(region.server)});
    SLUICE_CHECK(added);
  }
  for (const wire::Gid& server : config.servers) servers_.push_back(NetAddress::from(server));
  for (std::uint32_t i = config.passes; i-- > 0;) free_passes_.push_back(i);
  for (Carrier& carrier : carriers_) carrier.regions.reserve(kMaxRegions);
  ready_.reserve(std::size_t{connections.capacity()} * 4 + kMostLate);
}

void Multiplexer::account(std::vector<MemoryUse>& uses) const {
  const auto add = [&](std::string_view table, std::size_t entries, std::size_t bytes, bool lazy = false) {
    uses.push_back({Feature::kReplacing, table, entries, bytes, lazy});
  };
  add("words with their values", words_.capacity(), words_.bytes());
  add("clients' numbers and headers", numbers_.size(), bytes_of(numbers_));
  add("operations by the client's PSN", numbers_.size(), in_.bytes(), true);
  add("operations by the server's PSN", numbers_.size(), out_.bytes(), true);
  add("the same of shared connections", carriers_.size(), carrier_out_.bytes() + bytes_of(carriers_), true);
  add("operations that pass by themselves", passes_.size(), bytes_of(passes_) + bytes_of(free_passes_));
  add("WRITEs that may touch words", writes_.size(), bytes_of(writes_) + bytes_of(lines_) + bytes_of(late_));
  add("who waits", numbers_.size(), room_.bytes());
}

std::size_t Multiplexer::set_regions(Time now, std::span<const WordRegion> regions) {
  const auto same = [](const KnownRegion& known, const WordRegion& region) {
    return known.region.server == region.server && known.region.rkey == region.rkey &&
           known.region.address == region.address && known.region.length == region.length;
  };
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const KnownRegion& r = regions_[i];
    const bool is_named = std::ranges::any_of(regions, [&](const WordRegion& named) { return same(r, named); });
    if (!r.discovered && !r.leaving && !is_named) leave_region(static_cast<std::uint16_t>(i));
  }
  std::size_t too_many = 0;
  for (const WordRegion& region : regions) {
    const auto is_known = [&](const KnownRegion& r) { return !r.leaving && same(r, region); };
    if (std::ranges::any_of(regions_, is_known)) continue;
    const bool added = add_region({.region = region,
                                   .server = NetAddress::from(region.server),
                                   .quiet_until = may_have_written_ ? now + config_.flight : Time()});
    too_many += static_cast<std::size_t>(!added);
  }
  return too_many;
}

bool Multiplexer::add_region(const KnownRegion& region) {
  const std::uint16_t place = place_for_region();
  if (place == kNoRegion) return false;
  regions_[place] = region;
  words_.rename_region(place, name_of(region.server, region.region.rkey));
  return true;
}

// One that is needed no more gives way.
std::uint16_t Multiplexer::place_for_region() {
  if (regions_.size() < kMaxRegions) {
    regions_.emplace_back();
    words_.add_region(0);
    return static_cast<std::uint16_t>(regions_.size() - 1);
  }
  for (std::uint16_t i = 0; i < kMaxRegions; ++i) {
    const KnownRegion& r = regions_[i];
    const bool is_needed = !r.leaving && (!r.discovered || r.answered);
    if (is_needed || r.recovering || !r.line.empty() || !drop_words(i)) continue;
    for (Carrier& carrier : carriers_) std::erase(carrier.regions, i);
    forget_rights(i);
    return i;
  }
  return kNoRegion;
}

void Multiplexer::leave_region(std::uint16_t region) {
  regions_[region].leaving = true;
  regions_[region].carrier = kNone;  // what is on its way there ends, nothing follows
  room_.wake(regions_[region].line, ready_);
  static_cast<void>(drop_words(region));
}

bool Multiplexer::drop_words(std::uint16_t region) {
  bool all = true;
  for (WordIndex i = 0; i < words_.capacity(); ++i) {
    if (words_[i].region != region) continue;
    if (words_[i].idle()) {
      words_.drop(i);
    } else {
      all = false;
    }
  }
  return all;
}

std::uint16_t Multiplexer::region_of(const NetAddress& server, wire::RKey rkey, std::uint64_t address) {
  const std::uint16_t known = known_region(server, rkey, address);
  if (known != kNoRegion || now_ < next_discovery_ || !discovers(server)) return known;
  const KnownRegion found{.region = {.server = server.gid(), .rkey = rkey},
                          .server = server,
                          .quiet_until = overflowed_until_,
                          .discovered = true};
  if (!add_region(found)) next_discovery_ = now_ + config_.flight;
  return known_region(server, rkey, address);
}

bool Multiplexer::discovers(const NetAddress& server) const {
  return config_.discover || std::ranges::find(servers_, server) != servers_.end();
}

bool Multiplexer::watches(const NetAddress& server) const {
  return discovers(server) || std::ranges::any_of(regions_, [&](const KnownRegion& r) { return r.server == server; });
}

// An atomic, or a WRITE of exactly one word.
std::optional<Multiplexer::WordOperation> Multiplexer::parse(const Judged& packet, std::uint64_t& address,
                                                             wire::RKey& rkey) const {
  const std::uint8_t* const at = packet.frame + packet.parsed.extended_offset();
  WordOperation operation;
  switch (packet.parsed.traits().kind) {
    case Kind::kCompareSwap:
    case Kind::kFetchAdd: {
      const auto eth = wire::AtomicEth::parse(at);
      address = eth.virtual_address;
      rkey = eth.rkey;
      const bool adds = packet.parsed.traits().kind == Kind::kFetchAdd;
      operation.kind = adds ? WordOperation::Kind::kAdd : WordOperation::Kind::kCompareSwap;
      operation.swap_or_add = eth.swap_or_add;
      operation.compare = eth.compare;
      return operation;
    }
    case Kind::kMaskedCompareSwap: {
      const auto eth = wire::MaskedAtomicEth::parse(at);
      address = eth.virtual_address;
      rkey = eth.rkey;
      operation = {WordOperation::Kind::kMaskedCompareSwap, eth.swap, eth.compare, eth.swap_mask, eth.compare_mask};
      return operation;
    }
    case Kind::kWrite: {
      if (!packet.parsed.traits().has(wire::Extended::kReth)) return std::nullopt;
      const auto reth = wire::Reth::parse(at);
      address = reth.virtual_address;
      rkey = reth.rkey;
      if (!is_whole_word(packet, reth)) return std::nullopt;
      operation.kind = WordOperation::Kind::kWrite;
      operation.swap_or_add = load_le<std::uint64_t>(wire::payload(packet.frame, packet.parsed).data());
      return operation;
    }
    default: return std::nullopt;
  }
}

std::uint32_t Multiplexer::span_of(const Judged& packet) {
  if (packet.parsed.traits().kind != Kind::kReadRequest) return 1;
  return std::max(1u, read_span(packet.connection, packet.reth().length));
}

bool Multiplexer::under_way(const Judged& packet) const {
  const Direction& d = packet.connection.to[packet.end];
  const bool answers_wait = packet.connection.to[1 - packet.end].holds();
  return answers_wait || d.under_way();
}

bool Multiplexer::is_on_word(const Judged& packet) {
  std::uint64_t address = 0;
  wire::RKey rkey{};
  const auto operation = parse(packet, address, rkey);
  if (!operation) return false;
  const std::uint16_t region = known_region(packet.connection.address[packet.end], rkey, address);
  return region != kNoRegion && !regions_[region].leaving;
}

// REQUIRES: it is translated; nothing of the connection is under way, if the request has more packets than its ring.
bool Multiplexer::has_room(const Judged& packet, std::uint32_t span) const {
  const Numbering& n = numbers_[packet.index];
  const Direction& d = packet.connection.to[packet.end];
  const auto packets = static_cast<std::int32_t>(span);
  const auto ring = static_cast<std::int32_t>(config_.ring);
  const std::int32_t open = n.out_next.since(n.first_open);
  const bool in = packets > ring || d.expected.since(d.acknowledged) - 1 + packets <= ring;
  return in && (open == 0 || open + packets <= static_cast<std::int32_t>(out_ring(packet.index).size()));
}

// Whether a READ is under way that has more packets than the ring.
bool Multiplexer::reads_long(const Judged& packet) const {
  const Direction& d = packet.connection.to[packet.end];
  return d.expected.since(d.acknowledged) - 1 > static_cast<std::int32_t>(config_.ring);
}

Verdict Multiplexer::wait(WaitingLine& line, const Judged& packet) {
  if (!packet.can_hold) return Verdict::kHoldFull;
  room_.wait(line, token(packet.index, packet.end));
  return Verdict::kHeldRequest;
}

std::optional<Verdict> Multiplexer::on_request(Time now, const Judged& packet, bool on) {
  now_ = now;
  may_have_written_ |= packet.parsed.traits().kind != Kind::kReadRequest;
  Numbering& n = numbers_[packet.index];
  const bool other_way = n.member && n.server_end != packet.end;
  if (n.cut_off && !other_way) return Verdict::kCutOff;
  if (is_behind_withheld(now, packet)) return Verdict::kLate;
  std::uint64_t address = 0;
  wire::RKey rkey{};
  const auto operation = parse(packet, address, rkey);
  if (!operation) {
    if (packet.parsed.traits().kind == Kind::kWrite) {
      if (!packet.parsed.traits().starts_message()) {
        prolong_writes(now, packet);
      } else if (const auto verdict = on_long_write(now, packet)) {
        return verdict;
      }
    }
    return own_way(packet);
  }
  if (address % kWordBytes != 0) return own_way(packet);
  const NetAddress& server = packet.connection.address[packet.end];
  std::uint16_t region = known_region(server, rkey, address);
  if (region == kNoRegion && !discovers(server)) return own_way(packet);
  // What it says is acted upon, not only passed on.
  if (!wire::verify_icrc(packet.frame, packet.parsed)) return Verdict::kDamaged;
  if (region == kNoRegion) region = region_of(server, rkey, address);
  if (region == kNoRegion) return own_way(packet);
  WordIndex word = words_.find(region, address);
  if (regions_[region].leaving) {
    return word != kNone && words_[word].under_way() ? wait(words_[word].line, packet) : own_way(packet);
  }
  if (other_way) return Verdict::kWordNoRoom;  // a connection operates on words in one direction only
  if (word == kNone) {
    word = track(region, address);
    if (word == kNone) return Verdict::kWordNoRoom;
  }
  n.member = true;
  n.server_end = packet.end;
  return on_word(now, packet, word, *operation, on);
}

WordIndex Multiplexer::track(std::uint16_t region, std::uint64_t address) {
  const WordIndex index = words_.add(region, address, counters_.words_evicted);
  if (index != kNone) ++counters_.words_tracked;
  return index;
}

// A request that stays on its client's connection: not before everything under way elsewhere is answered. What was replaced and lies on this very
// connection stands before it there.
std::optional<Verdict> Multiplexer::own_way(const Judged& packet) {
  Numbering& n = numbers_[packet.index];
  if (!n.translated || n.server_end != packet.end) return std::nullopt;
  const std::uint32_t span = span_of(packet);
  if (span > InEntry::kMostPackets) return Verdict::kReadTooLong;
  const bool alone = span > config_.ring || reads_long(packet);
  const bool elsewhere = n.place != kNone && n.place != packet.index;
  if (under_way(packet) && (alone || elsewhere)) return wait(n.line, packet);
  if (!has_room(packet, span)) return Verdict::kWordNoRoom;
  return std::nullopt;
}

// Whether what this packet's connection does with words of the region may be done elsewhere. Amid a message of its own it does nothing that its
// server will not refuse.
bool Multiplexer::may_share(const Judged& packet, std::uint16_t region) const {
  const Numbering& n = numbers_[packet.index];
  return n.has_request_headers && n.has_answer_headers && !n.mid_message && (n.proven >> region & 1) != 0 &&
         packet.connection.mtu != 0 && packet.connection.to[packet.end].loose == 0 &&
         packet.connection.qpn[1 - packet.end] != kUnknownQpn && n.may_be_renumbered_from(packet.end, packet.psn());
}

Verdict Multiplexer::on_word(Time now, const Judged& packet, WordIndex index, const WordOperation& operation, bool on) {
  Word& word = words_[index];
  Numbering& n = numbers_[packet.index];
  KnownRegion& region = regions_[word.region];
  // Who waits already comes first, or a word that is always under way would never be idle for those who need it so.
  if (!word.line.empty()) return wait(word.line, packet);
  if (go_together(region, on)) {
    // What this client has shown counts from here on, and not before: else one that rests would make all the others wait for each other.
    const bool has_shown = (n.proven & n.proven_write) >> word.region & 1;
    const bool begins = on && has_shown && may_share(packet, word.region) && !packet.connection.closing;
    if (!begins) return pass_with_others(now, packet, index, operation);
    if (under_way(packet)) return wait(n.line, packet);
    begin_translation(packet);
  }
  if (word.pass != kNone) return wait(word.line, packet);
  if (!word.known || !may_share(packet, word.region)) return pass(now, packet, index, operation, 1);
  if (region.recovering) return wait(region.line, packet);

  if (region.carrier != kNone) {
    const Carrier& carrier = carriers_[region.carrier];
    const bool leaves = connections_[carrier.connection].closing;
    if (leaves && carrier.open != 0) return wait(carriers_[region.carrier].line, packet);
    if (leaves) retire(region.carrier);
  }
  if (region.carrier == kNone) {
    const bool is_writable = region.region.writable || (n.proven_write >> word.region & 1) != 0;
    // One that is closing would be left again at once.
    const bool may_carry = is_writable && !packet.connection.closing;
    const ConnectionIndex other = may_carry ? kNone : find_carrier_for(word.region);
    const bool none = other == kNone || numbers_[other].mid_message;
    if (!may_carry && none) return pass(now, packet, index, operation, 1);
    if (may_carry && under_way(packet) && (!n.translated || n.place != packet.index)) return wait(n.line, packet);
    if (may_carry && !n.translated) begin_translation(packet);
    region.carrier = make_carrier(now, may_carry ? packet.index : other);
    if (region.carrier == kNone) return pass(now, packet, index, operation, 1);
    auto& served = carriers_[region.carrier].regions;
    if (std::ranges::find(served, word.region) == served.end()) served.push_back(word.region);
  }
  const Carrier& carrier = carriers_[region.carrier];
  const bool same_headers = numbers_[carrier.connection].request_headers.bth_offset() == packet.parsed.bth_offset;
  if (!same_headers) return pass(now, packet, index, operation, 1);
  if (under_way(packet) && (!n.translated || n.place != carrier.connection)) return wait(n.line, packet);
  if (!n.translated) begin_translation(packet);
  return replace(now, packet, index, operation);
}

Verdict Multiplexer::replace(Time now, const Judged& packet, WordIndex index, const WordOperation& operation) {
  Word& word = words_[index];
  Numbering& n = numbers_[packet.index];
  Carrier& carrier = carriers_[regions_[word.region].carrier];
  Numbering& shared = numbers_[carrier.connection];
  const auto ring = out_ring(carrier.connection);
  if (word.open == Word::kMostOpen) return Verdict::kWordNoRoom;
  const bool full = shared.out_next.since(shared.first_open) >= static_cast<std::int32_t>(ring.size());
  if (shared.mid_message || full) return wait(carrier.line, packet);
  const Direction& d = packet.connection.to[packet.end];
  if (reads_long(packet)) return wait(n.line, packet);
  if (d.expected.since(d.acknowledged) > static_cast<std::int32_t>(config_.ring)) return Verdict::kWordNoRoom;

  const Psn out = shared.out_next;
  const Psn in = packet.psn();
  const bool is_write = operation.kind == WordOperation::Kind::kWrite;
  in_ring(packet.index).place(in) = InEntry::replaced(in, out, word.value, is_write);
  word.value = operation.outcome(word.value);
  ++word.open;
  OutEntry& entry = ring.place(out);
  const bool marked = packet.parsed.ecn() == wire::Ecn::kCongestionExperienced;
  entry = {out.value(), in.value(), packet.index, index, word.value, 1, Went::kReplaced, marked};
  shared.out_next = out + 1;
  shared.out_start = followed(shared.out_start, out);
  n.in_start = followed(n.in_start, in);
  n.place = carrier.connection;
  if (carrier.open++ == 0) {
    carrier.progress = now;
    carrier.due = now + config_.repair_after;
  }

  std::array<std::uint8_t, 6> mac{};
  std::copy_n(packet.frame + 6, 6, mac.begin());
  const std::size_t length = compose(carrier, entry, packet.frame);
  std::copy_n(mac.begin(), 6, packet.frame + 6);  // the frame comes from where it comes
  packet.parsed.length = static_cast<std::uint16_t>(length);
  packet.parsed.payload_offset =
      static_cast<std::uint16_t>(packet.parsed.bth_offset + wire::Bth::kSize + wire::Reth::kSize);
  packet.parsed.payload_length = kWordBytes;
  packet.parsed.opcode = wire::Opcode::kRcWriteOnly;
  packet.parsed.ack_request = true;
  packet.parsed.destination = carrier.server_qpn;
  packet.parsed.psn = out;
  const std::uint8_t* const ip = packet.frame + packet.parsed.ip_offset;
  packet.parsed.traffic_class =
      packet.parsed.is_v4 ? ip[1] : static_cast<std::uint8_t>(load_be<std::uint16_t>(ip) >> 4);
  if (marked && packet.parsed.ecn() != wire::Ecn::kNotCapable) wire::mark_congestion(packet.frame, packet.parsed);
  return is_write ? Verdict::kWriteMoved : Verdict::kAtomicReplaced;
}

void Multiplexer::learn_request_headers(const Judged& packet) {
  wire::AddressVector back = wire::AddressVector::reply_to(packet.frame, packet.parsed);
  std::swap(back.source_mac, back.destination_mac);
  std::swap(back.source, back.destination);
  Numbering& n = numbers_[packet.index];
  n.request_headers = wire::HeaderTemplate(back);
  n.has_request_headers = true;
}

// REQUIRES: nothing of the connection is under way.
void Multiplexer::begin_translation(const Judged& packet) {
  Numbering& n = numbers_[packet.index];
  const Direction& d = packet.connection.to[packet.end];
  n.translated = true;
  n.server_end = packet.end;
  n.place = kNone;
  n.in_start = n.out_start = n.out_next = n.first_open = d.expected;
  for (std::uint64_t shown = n.proven & n.proven_write; shown != 0; shown &= shown - 1)
    ++regions_[static_cast<std::size_t>(std::countr_zero(shown))].shown_by;
}

void Multiplexer::number(const Judged& packet, Psn in, std::uint32_t span) {
  Numbering& n = numbers_[packet.index];
  if (n.server_end != packet.end) return;
  const wire::OpcodeTraits& traits = packet.parsed.traits();
  // What waits for this one's answer must not wait for ever.
  const bool ask = n.member && traits.ends_message() && (traits.kind == Kind::kWrite || traits.kind == Kind::kSend) &&
                   !packet.parsed.ack_request;
  if (!n.translated && !ask) return;
  wire::FrameEditor editor(packet.frame, packet.parsed);
  if (ask) editor.set_ack_request(true);
  if (n.translated) {
    const Psn out = n.out_next;
    in_ring(packet.index).place(in) = InEntry::own_way(in, out, span, traits.ends_message());
    out_ring(packet.index).place(out) = {.psn = out.value(),
                                         .in = in.value(),
                                         .owner = packet.index,
                                         .packets = static_cast<std::uint16_t>(span),
                                         .went = Went::kOwnWay,
                                         .asks_data = traits.kind == Kind::kReadRequest || traits.is_atomic()};
    if (span > 1) {
      in_ring(packet.index).clear_covered(in, span);
      out_ring(packet.index).clear_covered(out, span);
    }
    n.out_next = out + span;
    n.place = kNone;
    n.longest_read = std::max(n.longest_read, span);
    n.reading = kNone;
    n.in_start = followed(n.in_start, in);
    n.out_start = followed(n.out_start, out);
    if (traits.kind == Kind::kWrite || traits.kind == Kind::kSend) {
      n.mid_message = !traits.ends_message();
      if (!n.mid_message && n.carrier != kNone) room_.wake(carriers_[n.carrier].line, ready_);
    }
    if (out != in) {
      editor.set_psn(out);
      ++counters_.requests_renumbered;
    }
  }
  editor.commit();
}

std::optional<Verdict> Multiplexer::on_repeated_request(Time now, const Judged& packet, bool on,
                                                        port::FrameSink& outbox) {
  now_ = now;
  Numbering& n = numbers_[packet.index];
  if (n.cut_off && n.server_end == packet.end) return Verdict::kCutOff;
  const bool translated = n.translated && n.server_end == packet.end;
  const bool on_word = packet.parsed.traits().is_atomic() && is_on_word(packet);
  const bool writes = packet.parsed.traits().kind == Kind::kWrite;
  if ((on_word || writes) && is_behind_withheld(now, packet)) return Verdict::kLate;
  if (on_word) {
    // Not answered, and not under watch any more: it could still be executed, and must not be unseen.
    const auto* const entry = translated ? in_ring(packet.index).find(packet.psn()) : nullptr;
    const bool answered = packet.psn().since(packet.connection.to[packet.end].acknowledged) <= 0;
    const bool watched = prolong_pass(now, packet);
    const bool replaced = entry != nullptr && entry->went == Went::kReplaced;
    if (!answered && !watched && !replaced && !let_pass_again(now, packet, on)) {
      if (const auto verdict = watch_again(now, packet, on)) return verdict;
    }
  }
  if (writes) {
    const auto* const entry = translated ? in_ring(packet.index).find(packet.psn()) : nullptr;
    const bool answered = packet.psn().since(packet.connection.to[packet.end].acknowledged) <= 0;
    const bool replaced = entry != nullptr && entry->went == Went::kReplaced;
    if (!answered && !replaced) {
      if (packet.parsed.traits().starts_message()) {
        if (const auto verdict = watch_again(now, packet, on)) return verdict;
      } else if (now < n.withheld_until && Psn(n.withheld).since(packet.psn()) >= 0) {
        return Verdict::kLate;  // what it belongs to has not gone
      } else {
        prolong_writes(now, packet);
      }
    }
  }
  if (!translated || packet.psn().since(n.in_start) < 0) return std::nullopt;
  InEntry* const entry = in_ring(packet.index).find_covering(packet.psn(), n.longest_read);
  if (entry == nullptr) return Verdict::kStale;
  if (entry->went == Went::kReplaced) {
    if (!entry->answered) return Verdict::kStillUnderWay;
    return answer(packet.index, *entry, outbox) ? Verdict::kAnsweredAgain : Verdict::kHoldFull;
  }
  if (is_answered_write(now, packet, *entry)) {
    const wire::Aeth again{n.syndrome, n.msn & Psn::kMask};
    return acknowledge_to(packet.index, packet.psn(), again, outbox) ? Verdict::kAnsweredAgain : Verdict::kHoldFull;
  }
  // So many numbers ago that its answer would be taken for one of before translation.
  if (Psn(entry->out).since(n.out_start) < 0) return Verdict::kStale;
  const Psn out = Psn(entry->out) + static_cast<std::uint32_t>(packet.psn().since(Psn(entry->psn)));
  const auto& traits = packet.parsed.traits();
  if (traits.kind == Kind::kReadRequest || traits.is_atomic()) n.data_until = now + config_.flight;
  wire::FrameEditor editor(packet.frame, packet.parsed);
  if (n.member && traits.ends_message() && (traits.kind == Kind::kWrite || traits.kind == Kind::kSend))
    editor.set_ack_request(true);
  editor.set_psn(out);
  editor.commit();
  // What stands behind it on the shared connection was refused with it.
  if (n.carrier != kNone) send_again(now, n.carrier, out + entry->span(), outbox);
  return Verdict::kRepeatedRenumbered;
}

// A WRITE or SEND of the client's own whose ACK has been lost on the way to it. A server that gets it again acknowledges all that it has executed, by
// the newest number; on a shared connection that is mostly another's, and says nothing to the owner. False also while the ACK could overtake data.
bool Multiplexer::is_answered_write(Time now, const Judged& packet, const InEntry& entry) const {
  const Numbering& n = numbers_[packet.index];
  const wire::OpcodeTraits& traits = packet.parsed.traits();
  const bool writes = traits.kind == Kind::kWrite || traits.kind == Kind::kSend;
  const bool is_done = packet.psn().since(packet.connection.to[packet.end].acknowledged) <= 0;
  return writes && traits.ends_message() && entry.answered && is_done && n.has_answer_headers && n.data_until <= now &&
         !answers_wait(packet.index);
}

bool Multiplexer::may_pass_out_of_order(const Judged& packet) {
  if (!may_overtake(packet)) return false;
  numbers_[packet.index].note_passed_early(packet.end, packet.psn() + (span_of(packet) - 1));
  return true;
}

// Numbers are given to requests in order only, and nothing may overtake what the box has judged. Nor does a WRITE begin where words may be: it would be
// watched for anew as often as it came again, and keep others from the words that its own client's next request is waiting behind.
bool Multiplexer::may_overtake(const Judged& packet) const {
  const Numbering& n = numbers_[packet.index];
  if (n.translated && n.server_end == packet.end) return false;
  const wire::OpcodeTraits& traits = packet.parsed.traits();
  if (traits.is_atomic()) return false;
  if (traits.kind != Kind::kWrite || !traits.starts_message()) return true;
  const auto reth = packet.reth();
  const auto where = stretch_of(reth);
  return !where || !reaches_region(packet.connection.address[packet.end], reth.rkey, *where);
}

std::optional<std::uint64_t> Multiplexer::value_of(std::uint64_t address) const {
  for (std::size_t region = 0; region < regions_.size(); ++region) {
    const WordIndex word = words_.find(static_cast<std::uint16_t>(region), address);
    if (word != kNone && words_[word].known && !regions_[region].leaving) return words_[word].value;
  }
  return std::nullopt;
}

std::size_t Multiplexer::carriers() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(carriers_, [](const Carrier& c) { return c.connection != kNone; }));
}

std::size_t Multiplexer::open() const {
  std::size_t sum = orphans_.size();
  for (const Carrier& carrier : carriers_) sum += carrier.open;
  return sum;
}

}  // namespace sluice::swordbox
