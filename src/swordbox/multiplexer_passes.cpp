// What passes by itself, on its client's connection, and the words that it may still change: until its answer, or until it has been executed or never
// will be, none of these is judged.
#include <algorithm>

#include "swordbox/multiplexer.h"
#include "wire/icrc.h"

namespace sluice::swordbox {

namespace {

// The PSN of the last packet of a WRITE whose first one this is.
Psn last_of_write(const Judged& packet) {
  const std::uint32_t packet_bytes = std::max<std::uint32_t>(packet.parsed.payload_length, 1);
  const std::uint32_t length = packet.reth().length;
  return packet.psn() + (length == 0 ? 0 : (length - 1) / packet_bytes);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- what a WRITE covers

std::optional<Multiplexer::Stretch> Multiplexer::stretch_of(const wire::Reth& reth) {
  if (reth.length == 0) return std::nullopt;
  const Stretch where{reth.virtual_address, reth.virtual_address + (reth.length - 1)};
  if (where.last < where.first) return std::nullopt;  // the server refuses it
  return where;
}

Multiplexer::Stretch Multiplexer::stretch_of(const KnownRegion& region) {
  constexpr std::uint64_t kEnd = ~std::uint64_t{0};
  const std::uint64_t address = region.region.address;
  const std::uint64_t length = region.region.length;
  return {address, length == 0 || length - 1 > kEnd - address ? kEnd : address + (length - 1)};
}

bool Multiplexer::reaches_region(const NetAddress& server, wire::RKey rkey, const Stretch& where) const {
  if (discovers(server)) return true;
  return std::ranges::any_of(regions_, [&](const KnownRegion& r) {
    return r.region.rkey == rkey && r.server == server && stretch_of(r).meets(where);
  });
}

template <class F>
void Multiplexer::for_each_word(const NetAddress& server, wire::RKey rkey, const Stretch& where, F&& f) const {
  constexpr std::uint64_t kWordMask = ~std::uint64_t{kWordBytes - 1};
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const KnownRegion& r = regions_[i];
    const auto region = static_cast<std::uint16_t>(i);
    const Stretch all = stretch_of(r);
    if (r.region.rkey != rkey || r.server != server || !all.meets(where)) continue;
    // Of the first word to the last.
    const Stretch words{std::max(where.first, all.first) & kWordMask, std::min(where.last, all.last) & kWordMask};
    if ((words.last - words.first) / kWordBytes >= words_.capacity()) {
      for (WordIndex word = 0; word < words_.capacity(); ++word) {
        const bool in = words_[word].region == region && words.meets({words_[word].address, words_[word].address});
        if (in && !f(word)) return;
      }
      continue;
    }
    for (std::uint64_t page = words.first;;) {
      const std::uint64_t end = std::min(words.last, (page | (Words::kPageBytes - 1)) & kWordMask);
      for (std::uint64_t a = page; words_.may_be_on_page(region, page); a += kWordBytes) {
        const WordIndex word = words_.find(region, a);
        if (word != kNone && !f(word)) return;
        if (a == end) break;
      }
      if (end == words.last) break;
      page = end + kWordBytes;
    }
  }
}

// ---------------------------------------------------------------------------------------------------- operations on a word

// The word's value is not known, or this client cannot share: the operation passes by itself, and nothing else of the word meanwhile.
Verdict Multiplexer::pass(Time now, const Judged& packet, WordIndex index, const WordOperation& operation,
                          std::uint32_t packets) {
  Word& word = words_[index];
  if (word.under_way()) return wait(word.line, packet);
  if (const auto verdict = own_way(packet)) return *verdict;
  if (free_passes_.empty()) return Verdict::kWordNoRoom;
  Pass before{};
  if (!word.known && operation.kind != WordOperation::Kind::kUnknown && is_written_to(now, word, before)) {
    before.word = index;
    take_pass(before);
    return wait(word.line, packet);
  }
  let_pass(now, packet, {.word = index, .psn = (packet.psn() + (packets - 1)).value(), .operation = operation});
  return Verdict::kWordPassed;
}

// Several may be under way on the word: their answers tell what is allowed, but its value only when one was alone.
Verdict Multiplexer::pass_with_others(Time now, const Judged& packet, WordIndex index, const WordOperation& operation) {
  Word& word = words_[index];
  // With no room to watch one more it waits for those of this word, if there are any. The last places are for those who cannot go without.
  const bool too_many = free_passes_.size() <= passes_.size() / 8;
  if (word.open != 0 || (too_many && word.pass != kNone)) return wait(word.line, packet);
  if (const auto verdict = own_way(packet)) return *verdict;
  if (too_many) {
    let_pass_unwatched(now, index);
    return Verdict::kWordPassed;
  }
  Pass before{};
  const bool learns = word.known || !is_written_to(now, word, before);
  let_pass(now, packet, {.word = index, .psn = packet.psn().value(), .operation = operation, .learns = learns});
  return Verdict::kWordPassed;
}

// REQUIRES: there is a free one.
void Multiplexer::let_pass(Time now, const Judged& packet, const Pass& pass) {
  if (!numbers_[packet.index].has_request_headers) learn_request_headers(packet);
  Pass its = pass;
  its.connection = packet.index;
  its.expires = now + watched_for(packet);
  take_pass(its);
}

// There are too many to watch. As with WRITEs that are too many to follow: no word there is judged, nor its value learned, before this operation
// has been executed or never will be. REQUIRES: nothing is replaced on the word; the operation is one packet.
void Multiplexer::let_pass_unwatched(Time now, WordIndex index) {
  Word& word = words_[index];
  word.known = false;
  if (word.pass != kNone) passes_[word.pass].learns = false;  // of several none does anyway
  const Time expires = now + config_.flight;
  Time& until = lines_[line_of(word.region, word.address)];
  until = std::max(until, expires);
  overflowed_until_ = std::max(overflowed_until_, expires);
}

// An atomic that is not watched, or not any more, comes again: while nothing can be replaced it passes anew. False: it may not. REQUIRES: it is on
// a word.
bool Multiplexer::let_pass_again(Time now, const Judged& packet, bool on) {
  std::uint64_t address = 0;
  wire::RKey rkey{};
  const auto operation = parse(packet, address, rkey);
  const std::uint16_t region = known_region(packet.connection.address[packet.end], rkey, address);
  Numbering& n = numbers_[packet.index];
  if (!go_together(regions_[region], on) || (n.member && n.server_end != packet.end)) return false;
  if (address % kWordBytes != 0 || !wire::verify_icrc(packet.frame, packet.parsed)) return false;
  WordIndex word = words_.find(region, address);
  if (word == kNone) word = track(region, address);
  if (word == kNone || words_[word].open != 0) return false;
  n.member = true;
  n.server_end = packet.end;
  if (free_passes_.empty()) {
    let_pass_unwatched(now, word);
  } else {  // it may have been executed long ago, and others since
    let_pass(now, packet, {.word = word, .psn = packet.psn().value(), .operation = *operation, .learns = false});
  }
  return true;
}

// An operation on a word comes again. False: nobody watches for it.
bool Multiplexer::prolong_pass(Time now, const Judged& packet) {
  bool watched = false;
  for (std::uint32_t i = numbers_[packet.index].first_pass; i != kNone; i = passes_[i].next) {
    if (passes_[i].psn != packet.psn().value()) continue;
    watched = true;
    passes_[i].expires = std::max(passes_[i].expires, now + config_.flight);
  }
  return watched;
}

// REQUIRES: there is a free one.
void Multiplexer::take_pass(const Pass& pass) {
  const std::uint32_t i = free_passes_.back();
  free_passes_.pop_back();
  passes_[i] = pass;
  Word& word = words_[pass.word];
  passes_[i].earlier = word.pass;
  if (word.pass != kNone) {
    passes_[word.pass].later = i;
    passes_[word.pass].learns = passes_[i].learns = false;
  }
  word.pass = i;
  word.known = false;
  next_look_ = std::min(next_look_, pass.expires);
  if (pass.connection == kNone) return;
  passes_[i].next = numbers_[pass.connection].first_pass;
  numbers_[pass.connection].first_pass = i;
}

// ---------------------------------------------------------------------------------------------------- other WRITEs

bool Multiplexer::is_done(Time now, const LongWrite& write) const {
  if (write.expires <= now) return true;
  if (write.connection == kNone) return false;
  const Connection& connection = connections_[write.connection];
  const bool same = connection.alive && connection.generation == write.generation;
  return same && Psn(write.psn).since(connection.to[write.end].acknowledged) <= 0;
}

// Whether a WRITE that concerned no tracked word when it went by may still be executed there. `until`: what has to be waited for.
bool Multiplexer::is_written_to(Time now, const Word& word, Pass& until) const {
  const KnownRegion& region = regions_[word.region];
  for (std::size_t k = 0; k < writes_under_way_; ++k) {
    const LongWrite& write = writes_[(first_write_ + k) % writes_.size()];
    const bool meets = write.rkey == region.region.rkey && write.server == region.server &&
                       write.where.meets({word.address, word.address + (kWordBytes - 1)});
    if (!meets || is_done(now, write)) continue;
    const bool same = write.connection != kNone && connections_[write.connection].generation == write.generation;
    until = {
        .connection = same ? write.connection : kNone, .psn = write.psn, .expires = write.expires, .learns = false};
    return true;
  }
  until = {.expires = std::max(region.quiet_until, lines_[line_of(word.region, word.address)])};
  // The same memory as it was known before.
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    const KnownRegion& before = regions_[r];
    if (!before.leaving || before.region.rkey != region.region.rkey || before.server != region.server) continue;
    const WordIndex same = words_.find(static_cast<std::uint16_t>(r), word.address);
    if (same != kNone && words_[same].under_way()) until.expires = std::max(until.expires, now + config_.repair_after);
  }
  return until.expires > now;
}

void Multiplexer::follow_write(Time now, const LongWrite& write) {
  while (writes_under_way_ != 0 && is_done(now, writes_[first_write_])) {
    first_write_ = (first_write_ + 1) % writes_.size();
    --writes_under_way_;
  }
  if (writes_under_way_ == writes_.size()) {
    const LongWrite& oldest = writes_[first_write_];
    overflowed_until_ = std::max(overflowed_until_, oldest.expires);
    const std::uint64_t lines = oldest.where.last / kLineBytes - oldest.where.first / kLineBytes + 1;
    if (lines >= lines_.size()) {
      for (Time& until : lines_) until = std::max(until, oldest.expires);
    } else {
      for (std::size_t region = 0; region < regions_.size(); ++region) {
        for (std::uint64_t k = 0; k < lines; ++k) {
          Time& until = lines_[line_of(static_cast<std::uint16_t>(region), oldest.where.first + k * kLineBytes)];
          until = std::max(until, oldest.expires);
        }
      }
    }
    first_write_ = (first_write_ + 1) % writes_.size();
    --writes_under_way_;
  }
  writes_[(first_write_ + writes_under_way_++) % writes_.size()] = write;
}

// A WRITE of more or less than a word goes to memory where words may be tracked later.
void Multiplexer::note_write(Time now, const Judged& packet, wire::RKey rkey, const Stretch& where) {
  follow_write(now, {.connection = packet.index,
                     .generation = packet.connection.generation,
                     .psn = last_of_write(packet).value(),
                     .end = packet.end,
                     .server = packet.connection.address[packet.end],
                     .rkey = rkey,
                     .where = where,
                     .expires = now + watched_for(packet)});
  // So that its ACK is asked for, and noticed.
  Numbering& n = numbers_[packet.index];
  if (n.member) return;
  n.member = true;
  n.server_end = packet.end;
}

// A WRITE of more or less than a word: none of the words that it covers may be under way.
std::optional<Verdict> Multiplexer::on_long_write(Time now, const Judged& packet) {
  const auto reth = packet.reth();
  const auto where = stretch_of(reth);
  if (!where) return std::nullopt;
  const NetAddress& server = packet.connection.address[packet.end];
  std::uint32_t covered = 0;
  WordIndex busy = kNone;
  for_each_word(server, reth.rkey, *where, [&](WordIndex word) {
    ++covered;
    if (words_[word].under_way()) busy = word;
    return busy == kNone;
  });
  if (busy != kNone) return wait(words_[busy].line, packet);
  Numbering& n = numbers_[packet.index];
  const bool other_way = n.member && n.server_end != packet.end;
  if (covered > free_passes_.size() || (covered != 0 && other_way)) return Verdict::kWordNoRoom;
  if (const auto verdict = own_way(packet)) return verdict;
  if (reaches_region(server, reth.rkey, *where)) note_write(now, packet, reth.rkey, *where);
  if (covered == 0) return std::nullopt;
  n.member = true;
  n.server_end = packet.end;
  n.prolonged = now;
  const auto packets = static_cast<std::uint32_t>(last_of_write(packet).since(packet.psn())) + 1;
  for_each_word(server, reth.rkey, *where,
                [&](WordIndex word) { return pass(now, packet, word, {}, packets) == Verdict::kWordPassed; });
  return Verdict::kWordPassed;
}

// A WRITE of an unreliable connection: nothing tells when it has been executed, and it may be lost. So what it covers is not believed for a while.
bool Multiplexer::on_unreliable_write(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  now_ = now;
  may_have_written_ = true;
  const NetAddress server = NetAddress::destination_of(frame, parsed);
  if (!watches(server)) return true;
  const Time expires = now + config_.flight;
  if (!parsed.traits().has(wire::Extended::kReth)) {  // one of those that have begun goes on
    for (std::size_t k = 0; k < writes_under_way_; ++k) {
      LongWrite& write = writes_[(first_write_ + k) % writes_.size()];
      if (write.connection == kNone && write.server == server) write.expires = expires;
    }
    return true;
  }
  const auto reth = wire::get<wire::Reth>(frame, parsed);
  const auto where = stretch_of(reth);
  if (!where || !reaches_region(server, reth.rkey, *where) || !wire::verify_icrc(frame, parsed)) return true;
  std::size_t idle = 0;
  bool busy = false;
  for_each_word(server, reth.rkey, *where, [&](WordIndex i) {
    const Word& word = words_[i];
    idle += static_cast<std::size_t>(!word.under_way());
    // Beside what nobody follows it may go; but somebody who waits has his turn first.
    busy = word.open != 0 || !word.line.empty();
    for (std::uint32_t p = word.pass; p != kNone && !busy; p = passes_[p].earlier)
      busy = passes_[p].connection != kNone;
    return !busy;
  });
  if (busy || idle > free_passes_.size()) return false;
  follow_write(now, {.server = server, .rkey = reth.rkey, .where = *where, .expires = expires});
  for_each_word(server, reth.rkey, *where, [&](WordIndex i) {
    if (words_[i].pass == kNone) {
      take_pass({.word = i, .expires = expires});
    } else {
      Pass& before = passes_[words_[i].pass];
      before.expires = std::max(before.expires, expires);
    }
    return true;
  });
  return true;
}

// So long from now on a request may be executed, or what comes behind it of its message until prolong_writes() is asked next.
Duration Multiplexer::watched_for(const Judged& packet) const {
  return packet.parsed.traits().ends_message() ? config_.flight : config_.flight + prolonged_each();
}

// A WRITE goes on.
void Multiplexer::prolong_writes(Time now, const Judged& packet) {
  Numbering& n = numbers_[packet.index];
  if (!n.member || now < n.prolonged + prolonged_each()) return;
  n.prolonged = now;
  const Time expires = now + config_.flight + prolonged_each();
  for (std::uint32_t i = n.server_end == packet.end ? n.first_pass : kNone; i != kNone; i = passes_[i].next) {
    if (Psn(passes_[i].psn).since(packet.psn()) >= 0) passes_[i].expires = expires;
  }
  for (std::size_t k = 0; k < writes_under_way_; ++k) {
    LongWrite& write = writes_[(first_write_ + k) % writes_.size()];
    const bool is_its = write.connection == packet.index && write.generation == packet.connection.generation;
    // Of one the other way it is not known how far it is: one time serves both.
    const bool goes_on = write.end != packet.end || Psn(write.psn).since(packet.psn()) >= 0;
    if (is_its && goes_on) write.expires = expires;
  }
}

// ---------------------------------------------------------------------------------------------------- what comes again late

// How the words stand that the WRITE covers.
Multiplexer::Covered Multiplexer::look_at(const LateOperation& write, bool on) const {
  Covered covered;
  for_each_word(server_of(write.connection, write.end), write.rkey, write.where, [&](WordIndex i) {
    const Word& word = words_[i];
    ++covered.words;
    if (pass_of(word, write) != kNone) return true;
    ++covered.unwatched;
    if (word.open != 0 || (word.pass != kNone && !go_together(regions_[word.region], on))) covered.busy = i;
    return covered.busy == kNone;
  });
  return covered;
}

std::uint32_t Multiplexer::pass_of(const Word& word, const LateOperation& write) const {
  std::uint32_t i = word.pass;
  while (i != kNone && (passes_[i].connection != write.connection || passes_[i].psn != write.last))
    i = passes_[i].earlier;
  return i;
}

// From now on nothing is begun on the words that it covers before it is answered, or has expired. REQUIRES: they are not in use; there are as many
// free passes as are needed.
void Multiplexer::watch(Time now, const LateOperation& write) {
  const NetAddress& server = server_of(write.connection, write.end);
  const Time expires = now + write.watched_for;
  bool covers = false;
  for_each_word(server, write.rkey, write.where, [&](WordIndex i) {
    covers = true;
    if (const std::uint32_t own = pass_of(words_[i], write); own != kNone) {
      passes_[own].expires = std::max(passes_[own].expires, expires);
    } else {
      take_pass({.word = i,
                 .connection = write.connection,
                 .psn = write.last,
                 .operation = write.operation,
                 .expires = expires,
                 .learns = false});  // it may have been executed long ago, and others since
    }
    return true;
  });
  Numbering& n = numbers_[write.connection];
  n.prolonged = now;
  if (!n.member || covers) {  // so that its ACK is noticed
    n.member = true;
    n.server_end = write.end;
  }
  if (covers && write.operation.kind != WordOperation::Kind::kUnknown) return;
  const std::uint32_t generation = connections_[write.connection].generation;
  const auto noted = std::ranges::find_if(writes_, [&](const LongWrite& known) {
    return known.connection == write.connection && known.generation == generation && known.end == write.end &&
           known.psn == write.last && known.expires > now;
  });
  if (noted != writes_.end()) {
    noted->expires = expires;
    return;
  }
  follow_write(now, {.connection = write.connection,
                     .generation = generation,
                     .psn = write.last,
                     .end = write.end,
                     .server = server,
                     .rkey = write.rkey,
                     .where = write.where,
                     .expires = expires});
}

// A WRITE, or an atomic on a word, that was not answered begins again, perhaps so late that nobody has watched for it any more. Nothing: it may go on.
std::optional<Verdict> Multiplexer::watch_again(Time now, const Judged& packet, bool on) {
  Numbering& n = numbers_[packet.index];
  std::uint64_t address = 0;
  wire::RKey rkey{};
  const auto operation = parse(packet, address, rkey);
  const bool is_atomic = packet.parsed.traits().is_atomic();
  const auto reth = is_atomic ? wire::Reth{address, rkey, kWordBytes} : packet.reth();
  const auto where = stretch_of(reth);
  n.withheld_until = Time();
  n.withholds = false;
  if (!where || !reaches_region(packet.connection.address[packet.end], reth.rkey, *where)) return std::nullopt;
  const LateOperation late{.connection = packet.index,
                           .end = packet.end,
                           .psn = packet.psn().value(),
                           .last = (is_atomic ? packet.psn() : last_of_write(packet)).value(),
                           .rkey = reth.rkey,
                           .where = *where,
                           .operation = operation.value_or(WordOperation{}),
                           .watched_for = watched_for(packet)};
  const Covered covered = look_at(late, on);
  const bool other_way = covered.words != 0 && n.member && n.server_end != packet.end;
  if (covered.busy == kNone && !other_way && covered.unwatched <= free_passes_.size()) {
    watch(now, late);
    return std::nullopt;
  }
  n.withheld = late.last;
  n.withheld_until = now + config_.flight;
  n.withholds = true;
  return covered.busy == kNone || other_way ? Verdict::kStale : wait_for_turn(packet, late, covered.busy);
}

// The server does nothing that stands behind what is withheld. Were another operation let through, and watched for as long as it comes again, it could
// keep that one from the very word that both are on.
bool Multiplexer::is_behind_withheld(Time now, const Judged& packet) {
  Numbering& n = numbers_[packet.index];
  if (!n.withholds || n.server_end != packet.end) return false;
  const Psn withheld(n.withheld);
  n.withholds = now < n.withheld_until && withheld.since(packet.connection.to[packet.end].acknowledged) > 0;
  return n.withholds && packet.psn().since(withheld) > 0;
}

// Not the packet waits, which its client may send again before, and those behind it, but its turn: it stands in the word's line.
Verdict Multiplexer::wait_for_turn(const Judged& packet, const LateOperation& write, WordIndex word) {
  const auto same = [&](const LateOperation& known) {
    return known.connection == write.connection && known.end == write.end && known.psn == write.psn;
  };
  if (std::ranges::any_of(late_, same)) return Verdict::kLate;
  Numbering& n = numbers_[packet.index];
  const bool knows_msn = n.msn != 0 || connections_.use(packet.index).responses == 0;
  const auto free = std::ranges::find(late_, kNone, &LateOperation::connection);
  if (free == late_.end() || packet.connection.qpn[1 - packet.end] == kUnknownQpn || !knows_msn) return Verdict::kStale;
  if (!wire::verify_icrc(packet.frame, packet.parsed)) return Verdict::kDamaged;
  if (!n.has_answer_headers)
    n.answer_headers = wire::HeaderTemplate(wire::AddressVector::reply_to(packet.frame, packet.parsed));
  n.member = true;
  n.server_end = packet.end;
  *free = write;
  room_.wait(words_[word].line, first_late_ + static_cast<DirectionToken>(free - late_.begin()));
  return Verdict::kLate;
}

void Multiplexer::take_turn(Time now, DirectionToken token, bool on, port::FrameSink& outbox) {
  now_ = now;
  LateOperation& place = late_[token - first_late_];
  const LateOperation write = place;
  const Covered covered = look_at(write, on);
  if (covered.busy != kNone) return room_.wait(words_[covered.busy].line, token);
  place = LateOperation{};
  const Numbering& n = numbers_[write.connection];
  const bool is_over = n.cut_off || Psn(write.last).since(requests_of(write.connection).acknowledged) <= 0;
  // It has come meanwhile; or its client would take the question for the answer to what waits at a gate.
  if (is_over || covered.unwatched == 0 || answers_wait(write.connection)) return;
  if (covered.unwatched > free_passes_.size() || !ask_for_unanswered(write.connection, outbox)) return;
  watch(now, write);
}

void Multiplexer::forget_late(ConnectionIndex connection) {
  for (std::size_t i = 0; i < late_.size(); ++i) {
    if (late_[i].connection != connection) continue;
    late_[i] = LateOperation{};
    const DirectionToken token = first_late_ + static_cast<DirectionToken>(i);
    room_.leave(token);
    std::erase(ready_, token);
  }
}

}  // namespace sluice::swordbox
