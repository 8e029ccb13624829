// What a client has left, one that has died or has gone in good order: changes half done, blocks, objects that nobody refers to.

#include <algorithm>
#include <array>
#include <utility>

#include "fusee/client.h"
#include "remote/at_once.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Task;

namespace {
constexpr std::uint32_t kOwnersAtOnce = 64;  // read
constexpr std::size_t kShares = 4;           // into so many goes what was left behind, and an audit takes one
constexpr std::size_t kExaminedAtOnce = 32;  // objects: each takes some round trips, one after another
constexpr std::size_t kMostLookedUp = 64;    // objects of a block, before it is taken over for the room that it has

// The slots of a key's two choices as they were read: the primary's, then each backup's.
struct SlotsRead {
  static constexpr std::size_t kSlots = 2 * kSlotsAChoice;  // of one replica

  Choices choices;
  std::array<std::uint8_t, kSlots * 8 * kMostReplicas> bytes;

  MutableBytes primary() { return MutableBytes(bytes).first(kSlots * 8); }
  MutableBytes backups() { return MutableBytes(bytes).subspan(kSlots * 8); }
  Place place(std::size_t slot) const { return choices.run[slot / kSlotsAChoice] + slot % kSlotsAChoice * 8; }
  Word word(std::size_t replica, std::size_t slot) const {
    return {load_le<std::uint64_t>(bytes.data() + (replica * kSlots + slot) * 8)};
  }

  struct Reference {
    Place slot;
    Word word{};  // raw 0: none
  };
  // The first in replicas [first, last).
  Reference reference(Place object, std::size_t first, std::size_t last) const {
    for (std::size_t replica = first; replica < last; ++replica) {
      for (std::size_t i = 0; i < kSlots; ++i) {
        if (word(replica, i).raw != 0 && word(replica, i).object() == object) return {place(i), word(replica, i)};
      }
    }
    return {};
  }
  // Does a backup hold something else in that slot?
  bool differs(const Reference& found, std::size_t replicas) const {
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (place(i) != found.slot) continue;
      for (std::size_t replica = 1; replica < replicas; ++replica) {
        if (word(replica, i).raw != found.word.raw) return true;
      }
    }
    return false;
  }
  bool all_frozen() const {  // in the primary
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (!word(0, i).frozen()) return false;
    }
    return true;
  }
};
}  // namespace

Task<bool> Client::read_choices(const Choices& choices, std::uint32_t first, std::uint32_t last, MutableBytes into,
                                Time deadline) {
  std::array<Operation, 2 * kMostReplicas> reads;
  std::size_t count = 0;
  for (std::uint32_t replica = first; replica < last; ++replica) {
    for (std::size_t run = 0; run < choices.run.size(); ++run) {
      const Place place = choices.run[run];
      const MutableBytes slots = into.subspan(((replica - first) * 2 + run) * kChoiceBytes, kChoiceBytes);
      if (replica < c_.map.word_replicas(place)) {
        reads[count++] = remote::read_operation(c_.map.word_at(place, replica), slots);
      } else {
        std::ranges::fill(slots, std::uint8_t{0});
      }
    }
  }
  co_return co_await c_.read_all(std::span(reads).first(count), deadline);
}

// The backups first: a word that they held goes, if at all, into the primary, and is found there, or has been replaced for good.
Task<bool> Client::find_reference(Key key, Place object, Time deadline, Entry& found) {
  SlotsRead slots;
  while (c_.now() < deadline) {
    found = Entry{};
    const Table table = growth_.table(key);
    const Choices choices = slots.choices = c_.map.choices(key, table);
    const std::uint32_t view = c_.view;
    const std::uint32_t most = std::max(c_.map.word_replicas(choices.run[0]), c_.map.word_replicas(choices.run[1]));
    bool read = most == 1;
    if (!read) read = co_await read_choices(choices, 1, most, slots.backups(), deadline);
    if (read && view == c_.view) {
      found.seen = c_.now();
      read = co_await read_choices(choices, 0, 1, slots.primary(), deadline);
    }
    bool again = read;
    if (!read) again = co_await c_.again(deadline);
    if (!again) co_return false;
    if (!read || view != c_.view) continue;
    if (slots.all_frozen()) {
      bool split = false;
      const bool known = co_await growth_.find_out(table, deadline, split);
      if (!known) again = co_await c_.again(deadline);
      if (!again) co_return false;
      if (!known || split) continue;
    }
    const SlotsRead::Reference its = slots.reference(object, 0, 1);
    if (its.word.raw != 0 && !slots.differs(its, c_.map.word_replicas(its.slot))) {
      found.word = its.word;
      found.slot = its.slot;
      co_return true;
    }
    SlotsRead::Reference half_done = its;
    if (its.word.raw == 0) half_done = slots.reference(object, 1, most);
    if (half_done.word.raw == 0) co_return true;
    // It is decided, then looked for again.
    const bool finished = co_await snapshot_.finish(WordKind::kEntry, half_done.slot, deadline);
    if (!finished) co_return false;
  }
  co_return false;
}

// What the object was to replace: if it is in its slot no more, it is free, and whoever replaced it may have died before saying so.
Task<bool> Client::examine_log(Key key, const Log& log, Time deadline) {
  if (log.old_sequence == 0 || !c_.map.holds(log.old)) co_return true;
  Entry stands;
  const bool known = co_await find_reference(key, log.old.object(), deadline, stands);
  if (!known) co_return false;
  if (stands.word.raw != 0) co_return true;
  // However long ago that was: if another object is there now, its mark is not to be written over.
  std::array<std::uint8_t, 8> sequence;
  std::array<Operation, 1> read = {remote::read_operation(c_.map.at(log.old.object() + kSequenceOffset, 0), sequence)};
  const bool got = co_await c_.read_all(read, deadline);
  if (got && load_le<std::uint64_t>(sequence.data()) == log.old_sequence)
    co_await space_.retire(log.old, log.old_sequence);
  co_return got;
}

// Frees what nobody refers to. Of a block that was taken over, nothing is known of an item but what is written in it.
Task<bool> Client::examine(Block& block, std::uint32_t& next, Time deadline) {
  const BlockShape shape = block.shape;
  std::vector<std::uint8_t> bytes(shape.first + std::size_t{shape.objects} * shape.units * kUnit);
  std::array<Operation, 1> read = {remote::read_operation(c_.map.at(block.at, 0), bytes)};
  const Time began = c_.now();
  const bool got = co_await c_.read_all(read, deadline);
  if (!got) co_return false;
  std::vector<InBlock> found;
  for (std::uint32_t i = std::exchange(next, shape.objects); i < shape.objects; ++i) {
    const auto& item = block.items[i];
    const Time settled = item.since + (c_.config.hold + c_.config.flight);
    const bool taken_over = item.sequence == 0;
    if (item.use != Block::Use::kPlaced || (!taken_over && settled >= c_.now())) continue;
    const std::size_t offset = shape.first + std::size_t{i} * shape.units * kUnit;
    const auto mark = load_le<std::uint64_t>(bytes.data() + std::size_t{8} * i);
    Object object;
    const bool parsed =
        parse_object(ByteView(bytes).subspan(offset, std::size_t{shape.units} * kUnit), block.object(i), object);
    // Never written, or not to its end, so it was never proposed; or it is not on a memory node that came back, so nothing referred to it.
    if (!parsed || (!taken_over && object.sequence != item.sequence)) {
      if (taken_over || settled < began) space_.free_later(block, i);
    } else if (taken_over && mark == object.sequence) {
      space_.free_later(block, i);
    } else {
      found.push_back({i, taken_over, object});
    }
  }
  bool all_known = true;
  remote::AtOnce all(c_.scheduler, found.size(), kExaminedAtOnce,
                     [&](std::size_t i) { return examine_one(block, found[i], next, deadline, all_known); });
  co_await all;
  co_return all_known;
}

// False: there is no time for it, nor for those after it.
Task<bool> Client::examine_one(Block& block, const InBlock& found, std::uint32_t& next, Time deadline,
                               bool& all_known) {
  if (c_.now() >= deadline) {
    next = std::min(next, found.index);
    co_return false;
  }
  const Object& object = found.object;
  bool known = true;
  if (found.taken_over) known = co_await examine_log(object.key, object.log, deadline);
  if (known && c_.now() >= deadline) {
    next = std::min(next, found.index);
    co_return false;
  }
  Entry stands;
  if (known) known = co_await find_reference(object.key, block.object(found.index), deadline, stands);
  all_known = all_known && known;
  auto& item = block.items[found.index];
  const bool same = item.sequence == (found.taken_over ? 0 : object.sequence) && item.use == Block::Use::kPlaced;
  if (!known || !same) co_return true;
  item.sequence = object.sequence;
  if (stands.word.raw == 0) {
    ++c_.counters.reclaimed;
    space_.free_later(block, found.index);
    co_return true;
  }
  if (!stands.word.tentative()) {
    item.since = c_.now();
    co_return true;
  }
  // Whoever put it there has given up. Until it is gone it is looked at each time.
  const bool gone = co_await withdraw(stands, deadline);
  all_known = all_known && gone;
  if (gone && item.sequence == object.sequence && item.use == Block::Use::kPlaced) item.since = c_.now();
  co_return true;
}

Task<Outcome> Client::audit() {
  if (!auditing_) round_left_ = 0;
  co_return co_await audit_until(c_.now() + c_.config.timeout);
}

Task<Outcome> Client::audit_until(Time deadline) {
  // Who comes meanwhile is served by the same.
  if (auditing_) {
    while (auditing_ && c_.now() < deadline) co_await c_.wait_for_another(c_.config.backoff_most);
    co_return auditing_ ? Outcome::kUnavailable : audit_outcome_;
  }
  auditing_ = true;
  // What a round looked at long ago may be nobody's by now. But one for which no operation has the time must get to its end: it may pause for as long as has
  // been spent on it.
  if (audited_ && c_.now() >= *audited_ + std::max(c_.config.hold, round_took_)) round_left_ = 0;
  const Time began = c_.now();
  bool whole = false;
  bool again = true;
  bool taken = false;
  while (!whole && again) {
    whole = co_await audit_once(taken, deadline);
    if (!whole) again = co_await c_.again(deadline);
  }
  audited_ = c_.now();
  round_took_ = round_took_ + (c_.now() - std::max(began, round_began_));
  if (whole) whole_round_began_ = round_began_;
  audit_outcome_ = whole ? Outcome::kOk : Outcome::kUnavailable;
  auditing_ = false;
  co_return audit_outcome_;
}

// Of blocks that others have left behind, some, for there is room in these; then its own. What brings the most for the least comes first: with many
// objects there may be no time for all.
Task<bool> Client::audit_once(bool& taken, Time deadline) {
  bool whole = co_await growth_.end_splits(c_.client, deadline);
  if (!taken) {
    const Outcome took = co_await take_over_blocks(kNobody, deadline);
    taken = took == Outcome::kOk;
  }
  whole = whole && taken;
  const bool scanned = co_await space_.scan_all(deadline);
  whole = whole && scanned;
  // Once round, in several audits if it must be. Blocks may be added meanwhile; what is in them is new.
  if (round_left_ == 0) {
    round_blocks_ = space_.blocks().size();
    round_left_ = round_blocks_ + (examined_item_ != 0);
    round_began_ = c_.now();
    round_took_ = {};
    round_whole_ = true;
  }
  while (round_left_ != 0) {
    examined_block_ %= round_blocks_;
    Block& block = *space_.blocks()[examined_block_];
    const std::uint32_t first = examined_item_;
    const bool known = co_await examine(block, examined_item_, deadline);
    // What could not even be read is not passed over: it is the first that is looked at when this goes on.
    round_whole_ = round_whole_ && (known || examined_item_ == first);
    if (examined_item_ < block.shape.objects) co_return false;
    examined_item_ = 0;
    ++examined_block_;
    --round_left_;
  }
  co_return whole&& round_whole_;
}

// Is it this client's, by a take-over of which it does not know the end, or whose outcome it had to give up as unknown?
bool Client::strays(Owner owner, Place block) const {
  return owner.client() == c_.client && !space_.owns(block) && !space_.claims_fresh(owner);
}

Task<Outcome> Client::take_over(Place owner, Place block, std::uint32_t dead, Time deadline) {
  const bool finished = co_await snapshot_.finish(WordKind::kOwner, owner, deadline);
  if (!finished) co_return Outcome::kUnavailable;
  std::array<std::uint8_t, 8> bytes;
  std::array<Operation, 1> read = {remote::read_operation(c_.map.at(owner, 0), bytes)};
  const Time seen = c_.now();
  const bool got = co_await c_.read_all(read, deadline);
  if (!got) co_return Outcome::kUnavailable;
  const Owner was{load_le<std::uint64_t>(bytes.data())};
  if (was.raw == 0 || (was.client() != dead && !strays(was, block))) co_return Outcome::kOk;
  if (was.client() != c_.client) {
    const Owner mine = Owner::of(c_.client, space_.next_claim(), was.units());
    const Changed changed =
        co_await snapshot_.change(WordKind::kOwner, owner, was.raw, mine.raw, Snapshot::kEverywhere, seen, deadline);
    if (changed == Changed::kLost) co_return Outcome::kOk;
    if (changed != Changed::kWon) co_return Outcome::kUnavailable;
  }
  Block* const taken = space_.adopt_used(block, was.units());
  if (taken == nullptr) co_return Outcome::kOk;
  ++c_.counters.recovered;
  std::uint32_t first = 0;
  const bool known = co_await examine(*taken, first, deadline);
  co_return known&& first == taken->shape.objects ? Outcome::kOk : Outcome::kUnavailable;
}

Task<Outcome> Client::recover(std::uint32_t dead) {
  // What it has submitted has been executed after that.
  co_await c_.scheduler.sleep_for(c_.config.flight);
  const Time deadline = c_.now() + c_.config.timeout;
  Outcome outcome = Outcome::kUnavailable;
  bool again = true;
  while (outcome != Outcome::kOk && again) {
    outcome = co_await recover_once(dead, deadline);
    if (outcome != Outcome::kOk) again = co_await c_.again(deadline);
  }
  co_return outcome;
}

Task<Outcome> Client::recover_once(std::uint32_t dead, Time deadline) {
  const bool ended = co_await growth_.end_splits(dead, deadline);
  if (!ended) co_return Outcome::kUnavailable;
  co_return co_await take_over_blocks(dead, deadline);
}

// Reads the owners of some blocks, in all replicas.
Task<bool> Client::read_owners(std::uint32_t partition, std::uint32_t first, std::uint32_t count, MutableBytes into,
                               Time deadline) {
  std::array<Operation, kMostReplicas> reads;
  const std::uint32_t replicas = c_.map.word_replicas(Place::at(partition, 0));
  for (std::uint32_t i = 0; i < replicas; ++i) {
    reads[i] = remote::read_operation(c_.map.word_at(c_.map.owner(partition, first), i),
                                      into.subspan(std::size_t{8} * kOwnersAtOnce * i, std::size_t{8} * count));
  }
  co_return co_await c_.read_all(std::span(reads).first(replicas), deadline);
}

// Those that a client has left, and what is this client's without its knowing; and what was taken over before and not looked through to the end. Of what
// is nobody's, a part: others may need some, too.
Task<Outcome> Client::take_over_blocks(std::uint32_t owned_by, Time deadline) {
  std::array<std::uint8_t, std::size_t{8} * kOwnersAtOnce * kMostReplicas> owners;
  struct Found {
    Place owner;
    Place block;
  };
  std::vector<Found> found;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    for (std::uint32_t first = 0; first < c_.map.blocks(); first += kOwnersAtOnce) {
      const std::uint32_t some = std::min<std::uint32_t>(kOwnersAtOnce, c_.map.blocks() - first);
      const std::uint32_t replicas = c_.map.word_replicas(Place::at(partition, 0));
      const bool read = co_await read_owners(partition, first, some, owners, deadline);
      if (!read) co_return Outcome::kUnavailable;
      for (std::uint32_t i = 0; i < some; ++i) {
        const Place block = c_.map.block(partition, first + i);
        const bool kept = owned_by == kNobody && first + i >= c_.map.free_blocks();
        bool its = false;
        for (std::uint32_t replica = 0; replica < replicas; ++replica) {
          const Owner owner{load_le<std::uint64_t>(owners.data() + (std::size_t{kOwnersAtOnce} * replica + i) * 8)};
          its = its || (owner.raw != 0 && ((owner.client() == owned_by && !kept) || strays(owner, block)));
        }
        if (its) found.push_back({c_.map.owner(partition, first + i), block});
      }
    }
  }
  if (owned_by == kNobody) {
    const std::size_t share = (found.size() + kShares - 1) / kShares;
    some_left_behind_ = share < found.size();
    if (some_left_behind_) {
      const std::size_t first = c_.rng.below(found.size());
      std::rotate(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(first), found.end());
      found.resize(share);
    }
  }
  Outcome outcome = Outcome::kOk;
  for (const Found& one : found) {
    const Outcome taken = co_await take_over(one.owner, one.block, owned_by, deadline);
    if (taken != Outcome::kOk) outcome = taken;
  }
  for (std::size_t i = 0; i < space_.blocks().size(); ++i) {
    if (!space_.blocks()[i]->unexamined()) continue;
    std::uint32_t first = 0;
    Block& block = *space_.blocks()[i];
    const bool known = co_await examine(block, first, deadline);
    if (!known || first != block.shape.objects) outcome = Outcome::kUnavailable;
  }
  co_return outcome;
}

Task<bool> Client::take_over_kept(std::uint32_t units, Time deadline) {
  // Who comes meanwhile looks first at what that brings.
  if (taking_kept_) {
    while (taking_kept_ && c_.now() < deadline) co_await c_.wait_for_another(c_.config.backoff_most);
    co_return c_.now() < deadline;
  }
  taking_kept_ = true;
  const bool taken = co_await take_one_kept(units, deadline);
  taking_kept_ = false;
  co_return taken;
}

// Of those that serve, those with the smallest places come first. One without room is of no use here, and would be of none to others.
Task<bool> Client::take_one_kept(std::uint32_t units, Time deadline) {
  struct Kept {
    Place owner;
    Place block;
    std::uint32_t units;
  };
  std::vector<Kept> found;
  const std::uint32_t partitions = c_.map.partitions();
  for (std::uint32_t turn = 0; turn < partitions; ++turn) {
    const std::uint32_t partition = (space_.first_partition() + turn) % partitions;
    for (std::uint32_t i = c_.map.free_blocks(); i < c_.map.blocks(); ++i) {
      const Kept kept{c_.map.owner(partition, i), c_.map.block(partition, i), 0};
      if (space_.owns(kept.block)) continue;
      std::array<std::uint8_t, 8> bytes;
      std::array<Operation, 1> read = {remote::read_operation(c_.map.at(kept.owner, 0), bytes)};
      const bool got = co_await c_.read_all(read, deadline);
      const Owner owner{load_le<std::uint64_t>(bytes.data())};
      if (!got || owner.raw == 0 || (owner.client() != kNobody && !strays(owner, kept.block))) continue;
      if (owner.units() >= class_of(units)) found.push_back({kept.owner, kept.block, owner.units()});
    }
  }
  std::ranges::stable_sort(found, {}, &Kept::units);
  for (const Kept& kept : found) {
    const bool room = co_await has_room(kept.block, kept.units, deadline);
    if (room) co_await take_over(kept.owner, kept.block, kNobody, deadline);
    if (space_.owns(kept.block)) co_return true;
  }
  co_return false;
}

Task<bool> Client::has_room(Place at, std::uint32_t units, Time deadline) {
  const BlockShape shape = shape_of(c_.geometry.block_bytes, units);
  std::vector<std::uint8_t> bytes(shape.first + std::size_t{shape.objects} * shape.units * kUnit);
  std::array<Operation, 1> read = {remote::read_operation(c_.map.at(at, 0), bytes)};
  const bool got = co_await c_.read_all(read, deadline);
  if (!got) co_return false;
  struct Written {
    Key key;
    Place object;
  };
  std::vector<Written> written;
  for (std::uint32_t i = 0; i < shape.objects; ++i) {
    const std::size_t offset = shape.first + std::size_t{i} * shape.units * kUnit;
    Object object;
    const bool parsed =
        parse_object(ByteView(bytes).subspan(offset, std::size_t{shape.units} * kUnit), at + offset, object);
    if (!parsed || load_le<std::uint64_t>(bytes.data() + std::size_t{8} * i) == object.sequence) co_return true;
    written.push_back({object.key, at + offset});
  }
  const std::size_t first = c_.rng.below(written.size());
  std::rotate(written.begin(), written.begin() + static_cast<std::ptrdiff_t>(first), written.end());
  remote::AtOnce all(c_.scheduler, std::min(written.size(), kMostLookedUp), kExaminedAtOnce,
                     [&](std::size_t i) { return is_referred(written[i].key, written[i].object, deadline); });
  const bool full = co_await all;
  co_return !full;
}

Task<bool> Client::is_referred(Key key, Place object, Time deadline) {
  Entry stands;
  const bool known = co_await find_reference(key, object, deadline, stands);
  co_return !known || stands.word.raw != 0;
}

// ------------------------------------------------------------------------------------------------------------- leaving

Task<Outcome> Client::leave() {
  // As with the dead: what it has submitted has been executed after that.
  if (c_.counters.failures != 0) co_await c_.scheduler.sleep_for(c_.config.flight);
  const std::array<std::uint32_t, 1> self = {c_.client};
  co_return co_await leave_all(self);
}

Task<Outcome> Client::leave_for(std::vector<std::uint32_t> dead) {
  co_await c_.scheduler.sleep_for(c_.config.flight);
  for (const std::uint32_t client : dead) {
    const Time deadline = c_.now() + c_.config.timeout;
    bool ended = false;
    for (bool again = true; !ended && again;) {
      ended = co_await growth_.end_splits(client, deadline);
      if (!ended) again = co_await c_.again(deadline);
    }
    if (!ended) co_return Outcome::kUnavailable;
  }
  co_return co_await leave_all(dead);
}

Task<Outcome> Client::leave_all(std::span<const std::uint32_t> clients) {
  Time deadline = c_.now() + c_.config.timeout;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    for (std::uint32_t first = 0; first < c_.map.blocks();) {
      bool left = false;
      const std::uint32_t some = std::min<std::uint32_t>(kOwnersAtOnce, c_.map.blocks() - first);
      const bool reached = co_await leave_some(clients, partition, first, some, deadline, left);
      bool again = true;
      if (!reached) again = co_await c_.again(deadline);
      if (!again || c_.now() >= deadline) co_return Outcome::kUnavailable;
      if (!left) continue;
      first += some;
      c_.counters.left += some;
      // There may be many, and as long as it gets on all is well.
      deadline = c_.now() + c_.config.timeout;
    }
  }
  co_return Outcome::kOk;
}

// False: not all could be reached. `left`: none of these blocks is theirs any more.
Task<bool> Client::leave_some(std::span<const std::uint32_t> clients, std::uint32_t partition, std::uint32_t first,
                              std::uint32_t count, Time deadline, bool& left) {
  std::array<std::uint8_t, std::size_t{8} * kOwnersAtOnce * kMostReplicas> owners;
  const Time seen = c_.now();
  const bool read = co_await read_owners(partition, first, count, owners, deadline);
  if (!read) co_return false;
  struct Leaving {
    Place at;
    Owner word;
    bool half_done;
  };
  std::vector<Leaving> leaving;
  const auto is_theirs = [clients](Owner word) {
    return word.raw != 0 && std::ranges::find(clients, word.client()) != clients.end();
  };
  const std::uint32_t replicas = c_.map.word_replicas(Place::at(partition, 0));
  for (std::uint32_t i = 0; i < count; ++i) {
    const Owner word{load_le<std::uint64_t>(owners.data() + std::size_t{8} * i)};
    // A claim of unknown outcome, half done: somebody could end it later, for a client that is not there.
    bool half_done = false;
    for (std::uint32_t replica = 1; replica < replicas; ++replica) {
      const Owner other{load_le<std::uint64_t>(owners.data() + (std::size_t{kOwnersAtOnce} * replica + i) * 8)};
      half_done = half_done || (other.raw != word.raw && is_theirs(other));
    }
    if (half_done || is_theirs(word)) leaving.push_back({c_.map.owner(partition, first + i), word, half_done});
  }
  bool reached = true;
  remote::AtOnce all(c_.scheduler, leaving.size(), leaving.size(), [&](std::size_t i) {
    // Half done, it is looked at again.
    return leaving[i].half_done ? end_claim(leaving[i].at, deadline, reached)
                                : leave_one(leaving[i].at, leaving[i].word, seen, deadline, reached);
  });
  left = co_await all;
  co_return reached;
}

// False: its end is to be looked at.
Task<bool> Client::end_claim(Place at, Time deadline, bool& reached) {
  const bool ended = co_await snapshot_.finish(WordKind::kOwner, at, deadline);
  reached = reached && ended;
  co_return false;
}

// Nobody leaves a block twice, so the owner's number makes the word one that was never there. Others may do the same for one that has died.
Task<bool> Client::leave_one(Place at, Owner word, Time seen, Time deadline, bool& reached) {
  const Changed changed =
      co_await snapshot_.change(WordKind::kOwner, at, word.raw, Owner::of(kNobody, word.client(), word.units()).raw,
                                Snapshot::kEverywhere, seen, deadline);
  reached = reached && changed != Changed::kUnavailable;
  co_return changed == Changed::kWon;
}

}  // namespace sluice::fusee
