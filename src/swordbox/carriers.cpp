// Multiplexer: shared connections: made, sent over again, lost, replaced by others.
#include <algorithm>
#include <array>
#include <bit>

#include "base/bytes.h"
#include "base/check.h"
#include "swordbox/multiplexer.h"

namespace sluice::swordbox {

namespace {

constexpr std::uint32_t kSentAgainAtOnce = 128;
constexpr Duration kInstant = Duration::picoseconds(1);

}  // namespace

// The carrier that the connection is, or becomes. REQUIRES: it is translated. kNone: there are too many.
std::uint32_t Multiplexer::make_carrier(Time now, ConnectionIndex connection) {
  Numbering& n = numbers_[connection];
  if (n.carrier != kNone) return n.carrier;
  const auto free = std::ranges::find(carriers_, kNone, &Carrier::connection);
  if (free == carriers_.end()) return kNone;
  const auto index = static_cast<std::uint32_t>(free - carriers_.begin());
  carrier_out_.clear(index);
  const auto small = out_ring(connection);
  const auto large = carrier_out_.ring(index);
  for (std::uint32_t k = 0; k < small.size(); ++k) {
    const OutEntry& entry = small.place(Psn(k));
    if (entry.went != Went::kNowhere) large.place(Psn(entry.psn)) = entry;
  }
  n.carrier = index;
  free->connection = connection;
  free->open = 0;
  free->progress = now;
  free->due = now + config_.repair_after;
  free->server_qpn = connections_[connection].qpn[n.server_end];
  free->regions.clear();
  std::array<std::uint8_t, wire::Bth::kSize + wire::Reth::kSize + sizeof(std::uint64_t)> transport{};
  wire::Bth{.opcode = wire::Opcode::kRcWriteOnly, .destination = free->server_qpn}.write(transport.data());
  wire::Reth{.length = sizeof(std::uint64_t)}.write(transport.data() + wire::Bth::kSize);
  free->write = wire::PacketTemplate(n.request_headers, transport);
  ++counters_.carriers_chosen;
  return index;
}

// The WRITE that an entry stands for, as it goes to the server.
std::size_t Multiplexer::compose(const Carrier& carrier, const OutEntry& entry, std::uint8_t* out) const {
  const Word& word = words_[entry.word];
  const auto [psn_and_address, address_and_key, value] =
      word_write_fields(Psn(entry.psn), word.address, regions_[word.region].region.rkey, entry.value);
  const std::array<wire::PacketTemplate::Field, 3> fields = {
      {{psn_and_address, kPsnAndAddress}, {address_and_key, kAddressAndKey}, {value, kLastWord}}};
  carrier.write.write(out, fields);
  return carrier.write.frame_size();
}

// Sends what is open from there on, up to the next request of the owner's own: that one only the owner can send.
bool Multiplexer::send_again(Time now, std::uint32_t index, Psn from, port::FrameSink& outbox) {
  Carrier& carrier = carriers_[index];
  const Numbering& n = numbers_[carrier.connection];
  carrier.due = now + config_.repair_after;
  Psn p = from.since(n.first_open) < 0 ? n.first_open : from;
  for (std::uint32_t k = 0; k < kSentAgainAtOnce && p.since(n.out_next) < 0; ++k, ++p) {
    const OutEntry* const entry = carrier_out_.ring(index).find(p);
    if (entry == nullptr || entry->went == Went::kOwnWay) break;
    std::uint8_t* const out = outbox.reserve(carrier.write.frame_size());
    if (out == nullptr) return false;
    outbox.commit(compose(carrier, *entry, out));
    ++counters_.operations_sent_again;
  }
  return true;
}

// No more operations over it. REQUIRES: none is open.
void Multiplexer::retire(std::uint32_t index) {
  Carrier& carrier = carriers_[index];
  for (const std::uint16_t region : carrier.regions) regions_[region].carrier = kNone;
  Numbering& n = numbers_[carrier.connection];
  // It keeps its numbers: those of its own in the last turn of the small ring.
  const auto large = carrier_out_.ring(index);
  const auto small = out_.ring(carrier.connection);
  for (std::uint32_t back = small.size(); back-- > 0;) {
    const Psn p = n.out_next - (back + 1);
    OutEntry& place = small.place(p);
    place = OutEntry{};
    if (const OutEntry* const entry = large.find(p); entry != nullptr) place = *entry;
  }
  // And a READ that is longer, which is under way alone.
  if (n.out_next.since(n.first_open) > static_cast<std::int32_t>(small.size()))
    small.place(n.first_open) = large.place(n.first_open);
  n.carrier = kNone;
  carrier.connection = kNone;
  room_.wake(carrier.line, ready_);
}

// What is open on it may have been executed or may be yet. Nothing more may come behind.
void Multiplexer::lose(Time now, std::uint32_t index) {
  Carrier& carrier = carriers_[index];
  const ConnectionIndex connection = carrier.connection;
  Numbering& n = numbers_[connection];
  ++counters_.carriers_lost;
  const auto ring = carrier_out_.ring(index);
  for (Psn p = n.first_open; p.since(n.out_next) < 0; ++p) {
    const OutEntry* const entry = ring.find(p);
    if (entry == nullptr || entry->went == Went::kOwnWay) continue;
    if (entry->went == Went::kCarriedOver) {
      for (Orphan& orphan : orphans_) {
        if (orphan.word == entry->word) orphan.under_way = false;
      }
    } else {
      orphans_.push_back({entry->owner, entry->in, entry->word, words_[entry->word].region, false});
    }
  }
  cut_off(connection);
  for (const std::uint16_t region : carrier.regions) {
    regions_[region].carrier = kNone;
    regions_[region].recovering = true;
    regions_[region].recovering_until = now + config_.flight;
  }
  n.first_open = n.out_next;
  n.carrier = kNone;
  carrier.open = 0;
  carrier.connection = kNone;
  next_look_ = std::min(next_look_, now + config_.flight);
  room_.wake(carrier.line, ready_);
}

// Nothing of it reaches the server any more, so it shows nothing either.
void Multiplexer::cut_off(ConnectionIndex connection) {
  Numbering& n = numbers_[connection];
  n.cut_off = true;
  for (std::uint64_t showed = n.translated ? n.proven & n.proven_write : 0; showed != 0; showed &= showed - 1)
    --regions_[static_cast<std::size_t>(std::countr_zero(showed))].shown_by;
  n.proven = n.proven_write = 0;
}

// A connection that is translated already and may write where the region lies.
ConnectionIndex Multiplexer::find_carrier_for(std::uint16_t region) const {
  const bool writable = regions_[region].region.writable;
  ConnectionIndex latest = kNone;  // heard of: the likeliest to be alive. One that is amid a message of its own last.
  for (ConnectionIndex c = 0; c < connections_.capacity(); ++c) {
    const Numbering& n = numbers_[c];
    const bool may = (n.proven >> region & 1) != 0 && (writable || (n.proven_write >> region & 1) != 0);
    if (!may || !n.translated || n.cut_off || !connections_[c].alive || connections_[c].closing) continue;
    const auto rank = [&](ConnectionIndex i) {
      return std::pair(!numbers_[i].mid_message, connections_.use(i).last_seen);
    };
    if (latest == kNone || rank(c) > rank(latest)) latest = c;
  }
  return latest;
}

// The lost carrier's packets have been executed by now or never will be.
void Multiplexer::recover(Time now, std::uint16_t index, port::FrameSink& outbox) {
  KnownRegion& region = regions_[index];
  region.recovering = false;
  const bool needed = std::ranges::any_of(orphans_, [&](const Orphan& o) { return o.region == index; });
  if (needed) {
    const ConnectionIndex next = find_carrier_for(index);
    const std::uint32_t carrier = next != kNone ? make_carrier(now, next) : kNone;
    if (carrier != kNone && !numbers_[next].mid_message) {
      if (!region.leaving) region.carrier = carrier;
      auto& served = carriers_[carrier].regions;
      if (std::ranges::find(served, index) == served.end()) served.push_back(index);
      carry_over(now, index, carrier, outbox);
    } else if (carrier == kNone || is_silent(now, next)) {
      abandon(index);
    }
    // There was no room for all, or it is amid a message of its own: soon.
    if (std::ranges::any_of(orphans_, [&](const Orphan& o) { return o.region == index && !o.under_way; })) {
      region.recovering = true;
      region.recovering_until = now + config_.repair_after;
      return;
    }
  }
  room_.wake(region.line, ready_);
}

bool Multiplexer::is_silent(Time now, ConnectionIndex connection) const {
  return now - connections_.use(connection).last_seen > config_.give_up_after;
}

// Its owner began a message and does not end it: those who wait for that need another one. REQUIRES: somebody does.
void Multiplexer::leave_if_silent(Time now, std::uint32_t index) {
  if (is_silent(now, carriers_[index].connection)) retire(index);
}

void Multiplexer::carry_over(Time now, std::uint16_t region, std::uint32_t index, port::FrameSink& outbox) {
  Carrier& carrier = carriers_[index];
  Numbering& n = numbers_[carrier.connection];
  const auto ring = carrier_out_.ring(index);
  const Psn first = n.out_next;
  for (Orphan& orphan : orphans_) {
    if (orphan.region != region || orphan.under_way) continue;
    if (n.out_next.since(n.first_open) >= static_cast<std::int32_t>(ring.size())) break;
    for (Orphan& same : orphans_) {
      if (same.word == orphan.word) same.under_way = true;
    }
    const Psn out = n.out_next;
    ring.place(out) = {
        .psn = out.value(), .word = orphan.word, .value = words_[orphan.word].value, .went = Went::kCarriedOver};
    n.out_next = out + 1;
    ++carrier.open;
    ++counters_.operations_carried_over;
  }
  carrier.progress = now;
  send_again(now, index, first, outbox);
}

// Nobody can finish them: their clients hear nothing more, and what the words hold is asked anew.
void Multiplexer::abandon(std::uint16_t region) {
  for (Orphan& orphan : orphans_) {
    if (orphan.region != region) continue;
    Word& word = words_[orphan.word];
    --word.open;
    word.known = false;
    if (orphan.owner != kNone) cut_off(orphan.owner);
    if (word.open == 0) room_.wake(word.line, ready_);
    orphan.word = kNone;
    ++counters_.operations_abandoned;
  }
  std::erase_if(orphans_, [](const Orphan& orphan) { return orphan.word == kNone; });
}

// The key was withdrawn, or does not allow WRITEs: on no other connection would the box's WRITEs do better, and each would be lost by them.
void Multiplexer::close_region(std::uint16_t region) {
  abandon(region);
  forget_rights(region);
  regions_[region].region.writable = false;
}

void Multiplexer::forget_rights(std::uint16_t region) {
  const std::uint64_t others = ~(std::uint64_t{1} << region);
  for (ConnectionIndex c = 0; c < connections_.capacity(); ++c) {
    numbers_[c].proven &= others;
    numbers_[c].proven_write &= others;
  }
  regions_[region].shown_by = 0;
}

void Multiplexer::on_connection_gone(Time now, ConnectionIndex connection) {
  Numbering& n = numbers_[connection];
  forget_waiting(connection);
  if (n.member) forget_words_of_last(connection);
  if (n.carrier != kNone) {
    if (carriers_[n.carrier].open != 0) {
      lose(now, n.carrier);
    } else {
      retire(n.carrier);
    }
  }
  // What it had under way elsewhere goes on without it.
  for (std::uint32_t c = 0; c < carriers_.size(); ++c) {
    if (carriers_[c].connection == kNone) continue;
    const Numbering& shared = numbers_[carriers_[c].connection];
    for (Psn p = shared.first_open; p.since(shared.out_next) < 0; ++p) {
      OutEntry* const entry = carrier_out_.ring(c).find(p);
      if (entry != nullptr && entry->owner == connection) entry->owner = kNone;
    }
  }
  for (Orphan& orphan : orphans_) {
    if (orphan.owner == connection) orphan.owner = kNone;
  }
  for (std::uint32_t i = n.first_pass, next = kNone; i != kNone; i = next) {
    next = passes_[i].next;
    passes_[i].connection = kNone;  // until it expires
    passes_[i].next = kNone;
  }
  if (n.translated) {
    in_.clear(connection);
    out_.clear(connection);
  }
  cut_off(connection);
  n = Numbering{};
}

// With a server's last connection goes what its words were known to hold: it may come back with other memory behind the same names.
void Multiplexer::forget_words_of_last(ConnectionIndex connection) {
  const NetAddress& server = connections_[connection].address[numbers_[connection].server_end];
  for (ConnectionIndex c = 0; c < connections_.capacity(); ++c) {
    const Connection& other = connections_[c];
    if (c != connection && other.alive && (other.address[0] == server || other.address[1] == server)) return;
  }
  if (std::ranges::none_of(regions_, [&](const KnownRegion& r) { return r.server == server; })) return;
  for (WordIndex i = 0; i < words_.capacity(); ++i) {
    Word& word = words_[i];
    if (word.region != Word::kNoRegion && regions_[word.region].server == server && word.open == 0) word.known = false;
  }
}

Time Multiplexer::next_deadline() const {
  Time next = Time::never();
  for (const Carrier& carrier : carriers_) {
    if (carrier.connection == kNone) continue;
    if (carrier.open != 0) {
      next = std::min(next, carrier.due);
    } else if (waits_for_owner(carrier)) {
      next = std::min(next, connections_.use(carrier.connection).last_seen + config_.give_up_after + kInstant);
    }
  }
  const bool looks = free_passes_.size() != passes_.size() ||
                     std::ranges::any_of(regions_, [](const KnownRegion& r) { return r.recovering; });
  return looks ? std::min(next, next_look_) : next;
}

void Multiplexer::give_up_passes() {
  for (std::uint32_t i = 0; i < passes_.size(); ++i) {
    if (passes_[i].word != kNone) resolve(i);
  }
}

void Multiplexer::on_deadline(Time now, port::FrameSink& outbox) {
  now_ = now;
  for (std::uint32_t i = 0; i < carriers_.size(); ++i) {
    Carrier& carrier = carriers_[i];
    if (carrier.connection != kNone && waits_for_owner(carrier)) leave_if_silent(now, i);
    if (carrier.connection == kNone || carrier.open == 0 || carrier.due > now) continue;
    carrier.progress = carrier.progress + (now - carrier.due);  // while we had no turn nothing was sent again
    if (now - carrier.progress > config_.give_up_after) {
      lose(now, i);
    } else {
      send_again(now, i, numbers_[carrier.connection].first_open, outbox);
    }
  }
  if (now < next_look_) return;
  next_look_ = Time::never();
  for (std::uint32_t i = 0; i < passes_.size(); ++i) {
    if (passes_[i].word == kNone) continue;
    if (passes_[i].expires <= now) {
      resolve(i);
    } else {
      next_look_ = std::min(next_look_, passes_[i].expires);
    }
  }
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    if (!regions_[r].recovering) continue;
    if (regions_[r].recovering_until <= now) recover(now, static_cast<std::uint16_t>(r), outbox);
    if (regions_[r].recovering) next_look_ = std::min(next_look_, regions_[r].recovering_until);
  }
}

}  // namespace sluice::swordbox
