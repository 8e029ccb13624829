// put, insert and erase.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "fusee/client.h"

namespace sluice::fusee {

using remote::Buffer;
using remote::Operation;
using remote::Task;

// An operation under way.
struct Client::Mutation {
  How how{};
  Key key = 0;
  ByteView value;
  Time deadline;
  Buffer read;
  Buffer written;
  std::uint32_t written_in = 0;  // the view whose replicas have what it has written
  Duration backoff{};
  // A tentative entry that is in the way, and since when.
  Word rival{};
  Time rival_since;
  // Waited for so long that what it was for had to be looked at again; nothing has been written to it.
  std::optional<Piece> spare{};
  Space::Purpose spare_for{};
  Outcome outcome = Outcome::kUnavailable;

  Kind kind() const { return how == How::kErase ? Kind::kTombstone : Kind::kValue; }
};

Task<Outcome> Client::put(Key key, ByteView value) {
  ++c_.counters.puts;
  co_return co_await change(How::kPut, key, value);
}
Task<Outcome> Client::insert(Key key, ByteView value) {
  ++c_.counters.inserts;
  co_return co_await change(How::kInsert, key, value);
}
Task<Outcome> Client::erase(Key key) {
  ++c_.counters.erases;
  co_return co_await change(How::kErase, key, {});
}

Task<Outcome> Client::change(How how, Key key, ByteView value) {
  if (value.size() > c_.geometry.value_bytes) co_return Outcome::kTooLong;
  Mutation op{.how = how,
              .key = key,
              .value = value,
              .deadline = c_.now() + c_.config.timeout,
              .read = Buffer(c_.buffers),
              .written = Buffer(c_.buffers),
              .rival_since = {}};
  tend();
  const Outcome outcome = co_await change_with(op);
  if (op.spare) space_.give_back(*op.spare);
  co_return outcome;
}

Task<Outcome> Client::change_with(Mutation& op) {
  const How how = op.how;
  const Key key = op.key;
  while (c_.now() < op.deadline) {
    const SlotCache::Entry* const known = how == How::kInsert ? nullptr : cache_->find(key);
    Step step{};
    if (known != nullptr && trusted(*known)) {
      const Entry entry{known->slot, known->word, known->sequence, known->seen};
      step = co_await replace(op, entry, true);
    } else {
      Look found;
      const bool looked = co_await look(key, Word{}, op.read.bytes(), op.deadline, found);
      if (!looked) {
        const bool again = co_await c_.again(op.deadline);
        if (!again) co_return Outcome::kUnavailable;
        continue;
      }
      const bool there = found.live.word.raw != 0;
      if (there && how == How::kInsert) co_return Outcome::kExists;
      if (!there && how == How::kErase) co_return Outcome::kNotFound;
      if (found.live.word.frozen()) {
        co_await growth_.split(found.table, op.deadline);
        continue;
      }
      if (there) {
        step = co_await replace(op, found.live, false);
      } else {
        step = co_await add(op, found);
      }
    }
    if (step == Step::kAgain) continue;
    if (op.outcome != Outcome::kUnavailable) co_return op.outcome;
    // Nothing has happened.
    const bool again = co_await c_.again(op.deadline);
    if (!again) co_return Outcome::kUnavailable;
  }
  co_return Outcome::kUnavailable;
}

Task<bool> Client::audit_for(const Mutation& op) {
  const bool was_whole = audit_outcome_ == Outcome::kOk && !some_left_behind_;
  if (!auditing_ && audited_ && c_.fresh(*audited_) && was_whole) co_return false;
  // The rest of its time is for who wants the room.
  co_await audit_until(c_.now() + (op.deadline - c_.now()) / 2);
  co_return c_.now() < op.deadline;
}

// Of what there is. Tombstones are small, and soon gone: a larger place will do.
Task<Space::Given> Client::take_now(const Mutation& op, Space::Purpose purpose, Piece& piece) {
  Space::Given given = co_await space_.take(units_for(op.value.size()), purpose, op.deadline, piece);
  if (given == Space::Given::kNoSpace && op.how == How::kErase) given = co_await take_larger(op, purpose, piece);
  co_return given;
}

Task<Space::Given> Client::take_larger(const Mutation& op, Space::Purpose purpose, Piece& piece) {
  co_return co_await space_.take_any(units_for(op.value.size()), purpose, op.deadline, piece);
}

Task<bool> Client::take(Mutation& op, Space::Purpose purpose, Piece& piece) {
  if (op.spare) {
    piece = *std::exchange(op.spare, std::nullopt);
    co_return true;
  }
  op.outcome = Outcome::kUnavailable;
  const bool last = purpose == Space::Purpose::kLast;
  const auto first = last ? Space::Purpose::kInstead : purpose;
  Space::Given given = co_await take_now(op, first, piece);
  // What else may be tried needs time, too.
  const auto has_time = [&] { return !last || c_.now() + c_.config.timeout / 4 < op.deadline; };
  for (bool audited = true; given == Space::Given::kNoSpace && audited && has_time();) {
    audited = co_await audit_for(op);
    if (audited) given = co_await take_now(op, first, piece);
    // Larger places are for larger values, while there may be others. An audit that was not through has had half of the time.
    const bool all_seen = !audited || audit_outcome_ != Outcome::kOk;
    if (given == Space::Given::kNoSpace && all_seen && c_.now() < op.deadline)
      given = co_await take_larger(op, first, piece);
  }
  if (given == Space::Given::kNoSpace && !has_time() && c_.now() < op.deadline)
    given = co_await take_larger(op, first, piece);
  if (last && given == Space::Given::kNoSpace) given = co_await take_now(op, purpose, piece);
  while (last && given == Space::Given::kNoSpace) {
    const bool taken = co_await take_over_kept(units_for(op.value.size()), op.deadline);
    if (!taken) break;
    given = co_await take_now(op, first, piece);
    if (given == Space::Given::kNoSpace) given = co_await take_larger(op, first, piece);
  }
  if (given != Space::Given::kOk)
    op.outcome = given == Space::Given::kNoSpace ? Outcome::kNoSpace : Outcome::kUnavailable;
  co_return given == Space::Given::kOk;
}

Word Client::word_of(const Mutation& op, const Piece& piece, State state) const {
  std::uint32_t units = units_for(op.value.size());
  // In a larger place than it needs: its mark and its block are found by the size of that.
  if (class_of(units) != piece.block->shape.units) units = std::min(piece.block->shape.units, c_.geometry.most_units());
  return Word::of(piece.place(), c_.map.fingerprint(op.key), units, state);
}

// The word is in its slot no more.
void Client::replaced(Word old, std::uint64_t sequence) {
  if (!space_.free_own(old, sequence)) c_.scheduler.spawn(space_.retire(old, sequence));
}

Task<bool> Client::write_object(Mutation& op, const Piece& piece, const Log& log, std::optional<Place> slot,
                                std::uint64_t& in_slot) {
  const Object object{.key = op.key, .sequence = piece.sequence, .log = log, .kind = op.kind(), .value = op.value};
  const ByteView bytes = put_object(op.written.bytes(), piece.place(), object);
  std::array<Operation, kMostReplicas + 1> operations;
  std::array<std::uint8_t, 8> word;
  std::size_t count = 0;
  op.written_in = c_.view;
  for (std::uint32_t i = 0; i < c_.map.replicas(piece.place()); ++i)
    operations[count++] = remote::write_operation(c_.map.at(piece.place(), i), bytes);
  if (slot) operations[count++] = remote::read_operation(c_.map.at(*slot, 0), word);
  // Writing the same bytes again does no harm.
  const bool done = co_await c_.read_all(std::span(operations).first(count), op.deadline);
  if (!done) op.outcome = Outcome::kUnavailable;
  if (slot && done) in_slot = load_le<std::uint64_t>(word.data());
  co_return done;
}

// Puts a value or a tombstone in the place of a live entry.
Task<Client::Step> Client::replace(Mutation& op, Entry entry, bool cached) {
  Piece piece;
  const bool taken = co_await take(op, Space::Purpose::kLast, piece);
  if (!taken) co_return Step::kDone;
  if (!c_.fresh(entry.seen)) {
    op.spare = piece;
    op.spare_for = Space::Purpose::kInstead;
    if (cached) cache_->forget(op.key);
    co_return Step::kAgain;
  }
  const Log log{entry.word, entry.sequence};
  std::uint64_t in_slot = entry.word.raw;
  Time asked = c_.now();
  const auto slot = cached ? std::optional<Place>(entry.slot) : std::nullopt;
  const bool written = co_await write_object(op, piece, log, slot, in_slot);
  if (!written) {
    space_.give_back(piece);
    co_return Step::kDone;
  }
  if (cached) {
    const bool right = in_slot == entry.word.raw && c_.fresh(entry.seen);
    if (SlotCache::Entry* const known = cache_->find(op.key)) SlotCache::note(*known, right);
    ++(right ? c_.counters.cache_hits : c_.counters.walks);
    if (!right) {
      space_.give_back(piece);
      cache_->forget(op.key);
      co_return Step::kAgain;
    }
    entry.seen = asked;
  }
  const bool erase = op.how == How::kErase;
  const Word mine = word_of(op, piece, erase ? State::kVoid : State::kLive);
  asked = c_.now();
  const Changed changed = co_await snapshot_.change(WordKind::kEntry, entry.slot, entry.word.raw, mine.raw,
                                                    op.written_in, entry.seen, op.deadline);
  if (changed == Changed::kWon || changed == Changed::kUnknown) {
    space_.placed(piece);
  } else {
    space_.give_back(piece);
  }
  if (changed == Changed::kWon) {
    replaced(entry.word, entry.sequence);
    if (!erase) cache_->put(op.key, entry.slot, mine, piece.sequence, asked);
  }
  if (changed != Changed::kWon || erase) cache_->forget(op.key);
  switch (changed) {
    case Changed::kWon: op.outcome = Outcome::kOk; break;
    case Changed::kLost:
      // Overwritten, or to be looked at again: what erase found may have been erased by another.
      if (erase) co_return Step::kAgain;
      op.outcome = Outcome::kOk;
      break;
    case Changed::kStale: co_return Step::kAgain;
    case Changed::kUnavailable: op.outcome = Outcome::kUnavailable; break;
    case Changed::kUnknown: op.outcome = Outcome::kUnknown; break;
  }
  co_return Step::kDone;
}

bool Client::expired(Mutation& op, Word rival) {
  if (op.rival != rival) {
    op.rival = rival;
    op.rival_since = c_.now();
  }
  return c_.now() - op.rival_since > c_.config.lease;
}

Task<bool> Client::withdraw(Entry entry, Time deadline) {
  ++c_.counters.withdrawn;
  const Changed changed =
      co_await snapshot_.change(WordKind::kEntry, entry.slot, entry.word.raw, entry.word.with(State::kVoid).raw,
                                Snapshot::kEverywhere, entry.seen, deadline);
  co_return changed == Changed::kWon || changed == Changed::kLost;
}

// An audit does not look at what has been there for less than hold + flight.
void Client::settle_tentative() {
  const Duration settled = c_.config.hold + c_.config.flight;
  if (left_tentative_ && whole_round_began_ && *left_tentative_ + settled < *whole_round_began_)
    left_tentative_.reset();
}

// A rival, or a table that is full, is in the way of a new entry.
Task<Client::Step> Client::make_way(Mutation& op, const Look& found) {
  if (found.rival.word.raw != 0) {
    if (expired(op, found.rival.word)) {
      co_await withdraw(found.rival, op.deadline);
    } else {
      co_await c_.back_off(op.backoff);
    }
    co_return Step::kAgain;
  }
  if (c_.map.may_split(found.table)) {
    co_await growth_.split(found.table, op.deadline);
    co_return Step::kAgain;
  }
  // Entries of its own that never became live may stand there.
  settle_tentative();
  if (left_tentative_) {
    const bool audited = co_await audit_for(op);
    if (audited) co_return Step::kAgain;
  }
  op.outcome = Outcome::kNoSpace;
  co_return Step::kDone;
}

// A piece for a new entry, and the slot where that goes. What a slot that was used before still names comes free.
// False: there is none, as `op.outcome` says.
Task<bool> Client::take_place(Mutation& op, const Look& found, Entry& vacant, Piece& piece) {
  vacant = found.vacant;
  if (op.spare && op.spare_for == Space::Purpose::kInstead) {
    if (found.reusable.word.raw != 0) vacant = found.reusable;
    if (vacant.word.raw == 0) space_.give_back(*std::exchange(op.spare, std::nullopt));
  }
  const auto purpose = vacant.word.raw == 0 ? Space::Purpose::kMore : Space::Purpose::kInstead;
  const bool taken = co_await take(op, purpose, piece);
  if (taken || op.outcome != Outcome::kNoSpace) co_return taken;
  if (vacant.word.raw != 0 || found.reusable.word.raw == 0) co_return false;
  vacant = found.reusable;
  co_return co_await take(op, Space::Purpose::kInstead, piece);
}

// Puts a new entry into the index.
Task<Client::Step> Client::add(Mutation& op, const Look& found) {
  if (found.rival.word.raw != 0 || !found.has_vacancy) co_return co_await make_way(op, found);
  Entry vacant;
  Piece piece;
  const bool taken = co_await take_place(op, found, vacant, piece);
  if (!taken) co_return Step::kDone;
  Log log{.old = vacant.word};
  bool fresh = c_.fresh(vacant.seen);
  if (fresh && log.old.raw != 0) {
    std::array<std::uint8_t, 8> sequence;
    std::array<Operation, 1> read = {
        remote::read_operation(c_.map.at(log.old.object() + kSequenceOffset, 0), sequence)};
    const bool got = co_await c_.read_all(read, op.deadline);
    if (!got) {
      space_.give_back(piece);
      co_return Step::kDone;
    }
    fresh = c_.fresh(vacant.seen);
    log.old_sequence = load_le<std::uint64_t>(sequence.data());
  }
  if (!fresh) {
    op.spare = piece;
    op.spare_for = vacant.word.raw == 0 ? Space::Purpose::kMore : Space::Purpose::kInstead;
    co_return Step::kAgain;
  }
  std::uint64_t none = 0;
  const bool written = co_await write_object(op, piece, log, std::nullopt, none);
  if (!written) {
    space_.give_back(piece);
    co_return Step::kDone;
  }
  const Entry mine{vacant.slot, word_of(op, piece, State::kTentative), piece.sequence, c_.now()};
  const Changed changed = co_await snapshot_.change(WordKind::kEntry, mine.slot, log.old.raw, mine.word.raw,
                                                    op.written_in, vacant.seen, op.deadline);
  if (changed == Changed::kWon || changed == Changed::kUnknown) {
    space_.placed(piece);
  } else {
    space_.give_back(piece);
  }
  switch (changed) {
    case Changed::kWon: break;
    case Changed::kLost: co_await c_.back_off(op.backoff); co_return Step::kAgain;
    case Changed::kStale: co_return Step::kAgain;
    // Should it stand there, it stays tentative: only this operation would have made it live.
    case Changed::kUnavailable:
    case Changed::kUnknown:
      left_tentative_ = c_.now();
      op.outcome = Outcome::kUnavailable;
      co_return Step::kDone;
  }
  if (log.old.raw != 0) replaced(log.old, log.old_sequence);
  const Step step = co_await confirm(op, mine);
  if (step == Step::kDone && op.outcome != Outcome::kOk) left_tentative_ = c_.now();
  co_return step;
}

// The entry is tentative: makes it live, or withdraws it.
Task<Client::Step> Client::confirm(Mutation& op, Entry mine) {
  while (true) {
    Look others;
    const bool looked = co_await look(op.key, mine.word, op.read.bytes(), op.deadline, others);
    if (!looked) co_return Step::kDone;  // nothing has happened
    if (others.live.word.raw != 0) {
      const bool gone = co_await withdraw(mine, op.deadline);
      if (!gone) left_tentative_ = c_.now();
      co_return Step::kAgain;
    }
    const Entry& rival = others.rival;
    if (rival.word.raw == 0) break;
    if (mine.word > rival.word) {
      const bool gone = co_await withdraw(mine, op.deadline);
      if (!gone) left_tentative_ = c_.now();
      co_await c_.back_off(op.backoff);
      co_return Step::kAgain;
    }
    if (expired(op, rival.word)) {
      co_await withdraw(rival, op.deadline);
    } else {
      co_await c_.back_off(op.backoff);
    }
    if (c_.now() >= op.deadline) co_return Step::kDone;
  }
  const Word live = mine.word.with(State::kLive);
  const Time asked = c_.now();
  const Changed changed = co_await snapshot_.change(WordKind::kEntry, mine.slot, mine.word.raw, live.raw,
                                                    Snapshot::kEverywhere, mine.seen, op.deadline);
  switch (changed) {
    case Changed::kWon:
      cache_->put(op.key, mine.slot, live, mine.sequence, asked);
      op.outcome = Outcome::kOk;
      co_return Step::kDone;
    case Changed::kLost:
    case Changed::kStale: co_return Step::kAgain;
    case Changed::kUnavailable: co_return Step::kDone;
    case Changed::kUnknown: op.outcome = Outcome::kUnknown; co_return Step::kDone;
  }
  co_return Step::kDone;
}

// An entry was replaced in somebody else's name; what it named is free.
void Client::on_replaced(Word old, Time seen) {
  if (c_.map.holds(old)) c_.scheduler.spawn(retire(old, seen));
}

Task<void> Client::retire(Word old, Time seen) {
  std::array<std::uint8_t, 8> sequence;
  std::array<Operation, 1> read = {remote::read_operation(c_.map.at(old.object() + kSequenceOffset, 0), sequence)};
  const bool got = co_await c_.read_all(read, c_.now() + c_.config.timeout);
  // Later the object may be another.
  if (!got || !c_.fresh(seen)) co_return;
  co_await space_.retire(old, load_le<std::uint64_t>(sequence.data()));
}

}  // namespace sluice::fusee
