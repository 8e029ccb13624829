#include "fusee/client.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::fusee {

using remote::Buffer;
using remote::Operation;
using remote::Status;
using remote::Task;

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kNotFound: return "not found";
    case Outcome::kExists: return "exists";
    case Outcome::kNoSpace: return "no space";
    case Outcome::kUnavailable: return "unavailable";
    case Outcome::kTooLong: return "too long";
    case Outcome::kUnknown: return "unknown";
  }
  return "?";
}

// ----------------------------------------------------------------------------------------------------- create and join

namespace {
MutableBytes superblock_of(std::vector<std::uint8_t>& superblocks, std::size_t node) {
  return MutableBytes(superblocks).subspan(node * kSuperblockRead, kSuperblockRead);
}

// kOk: nobody else makes a store there.
Task<Outcome> claim_memory(remote::RemoteMemory& memory, std::span<const MemoryNode> nodes, Maker maker) {
  const Time give_up = memory.scheduler().now() + kMaking;
  std::vector<std::uint8_t> superblocks(nodes.size() * kSuperblockRead);
  while (true) {
    std::vector<Operation> reads;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      reads.push_back(remote::read_operation(nodes[i].heap, superblock_of(superblocks, i)));
    co_await memory.all(reads);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (reads[i].status != Status::kOk) co_return Outcome::kUnavailable;
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (superblock_taken(superblock_of(superblocks, i))) co_return Outcome::kExists;
    }
    auto holder = load_le<std::uint64_t>(superblocks.data() + kMadeOffset);
    if (holder == 0) {
      const auto claimed = co_await memory.compare_and_swap(nodes[0].heap + kMadeOffset, 0, maker.word());
      if (claimed.status != Status::kOk) co_return Outcome::kUnavailable;
      holder = claimed.prior == 0 ? maker.word() : claimed.prior;
    }
    if (holder == maker.word()) co_return Outcome::kOk;
    if (memory.scheduler().now() >= give_up) co_return Outcome::kUnknown;
    co_await memory.scheduler().sleep_for(kMaking / 200);
  }
}
}  // namespace

Task<Outcome> create_store(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, Geometry geometry,
                           Maker maker) {
  const bool fits = *geometry.refusal() == '\0' && geometry.replicas <= nodes.size() && nodes.size() <= 256;
  if (!fits) co_return Outcome::kTooLong;
  const MemoryMap map(nodes, geometry);
  if (map.blocks() < 1) co_return Outcome::kNoSpace;
  const Outcome claimed = co_await claim_memory(memory, nodes, maker);
  if (claimed != Outcome::kOk) co_return claimed;
  std::vector<Operation> operations;
  const auto done = [&operations] {
    return std::ranges::all_of(operations, [](const Operation& o) { return o.status == Status::kOk; });
  };
  // All else is zero, and that is an empty index and blocks of nobody.
  std::uint64_t heap = ~std::uint64_t{0};
  for (const auto& node : nodes) heap = std::min(heap, node.heap_bytes);
  std::vector<std::uint8_t> heads(nodes.size() * kSuperblockHead);
  for (std::uint32_t i = 0; i < map.partitions(); ++i) {
    const MutableBytes head = MutableBytes(heads).subspan(i * kSuperblockHead, kSuperblockHead);
    put_superblock(
        head,
        {.geometry = geometry, .nodes = map.partitions(), .index = i, .store_id = maker.number, .heap_bytes = heap});
    operations.push_back(remote::write_operation(nodes[i].heap, head));
  }
  co_await memory.all(operations);
  if (!done()) co_return Outcome::kUnavailable;
  // From the first of these on there is a store; a memory node without the geometry is then one that has lost its memory.
  std::array<std::uint8_t, 8> made;
  store_le<std::uint64_t>(made.data(), 1);
  operations.clear();
  for (const auto& node : nodes) operations.push_back(remote::write_operation(node.heap + kMadeOffset, made));
  co_await memory.all(operations);
  co_return done() ? Outcome::kOk : Outcome::kUnavailable;
}

Client::Client(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, const ClientConfig& config, Rng rng)
    : c_(memory, config, rng),
      nodes_(std::move(nodes)),
      snapshot_(c_, *this),
      space_(c_, snapshot_),
      growth_(c_, snapshot_, space_) {}

Client::~Client() = default;

// kOk: the geometry is known, and who has lost its memory.
Task<Outcome> Client::find_store(std::vector<Membership::Found>& all) {
  unseen_.clear();
  std::vector<std::uint8_t> superblocks(nodes_.size() * kSuperblockRead);
  std::vector<Operation> reads;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    reads.push_back(remote::read_operation(nodes_[i].heap, superblock_of(superblocks, i)));
  co_await c_.all(reads);
  if (!unseen_.empty()) co_return Outcome::kUnavailable;
  std::size_t answered = 0;
  bool found = false;
  bool made = false;
  std::vector<std::size_t> unsaid;
  all.assign(nodes_.size(), {});
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (reads[i].status != Status::kOk) {
      ++c_.counters.failures;
      all[i].known = false;
      continue;
    }
    ++answered;
    Superblock its;
    if (!parse_superblock(superblock_of(superblocks, i), its)) {
      all[i].blank = true;
      continue;
    }
    // Another store's, or in another place of this one: what lay there would be looked for elsewhere.
    const bool same = !found || (its.geometry == c_.geometry && its.store_id == c_.store_id);
    if (its.nodes != nodes_.size() || its.index != i || !same) co_return Outcome::kNotFound;
    c_.geometry = its.geometry;
    c_.heap_bytes = its.heap_bytes;
    c_.store_id = its.store_id;
    all[i].votes_from = its.votes_from;
    found = true;
    if (superblock_made(superblock_of(superblocks, i))) {
      made = true;
    } else {
      unsaid.push_back(i);
    }
  }
  if (made) {
    // Who made it died before all had heard; the one that has may be the next to lose its memory.
    co_await say_made(unsaid);
    co_return Outcome::kOk;
  }
  // A store that was ever made is known to all memory nodes but those that have lost their memory.
  const bool none = answered == nodes_.size() || (!found && answered > nodes_.size() / 2);
  co_return none ? Outcome::kNotFound : Outcome::kUnavailable;
}

// As far as they answer: whoever comes next says it again.
Task<void> Client::say_made(std::span<const std::size_t> nodes) {
  std::array<std::uint8_t, 8> made;
  store_le<std::uint64_t>(made.data(), 1);
  std::vector<Operation> writes;
  for (const std::size_t i : nodes) writes.push_back(remote::write_operation(nodes_[i].heap + kMadeOffset, made));
  if (!writes.empty()) co_await c_.all(writes);
}

// A number that no other client has, of any memory node's count: one that is lost with a connection is no loss.
Task<Outcome> Client::take_number(std::span<const Membership::Found> found) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!seen_whole(found, i)) continue;
    const auto counted = co_await c_.memory.fetch_and_add(nodes_[i].heap + kClientOffset, 1);
    if (counted.status == Status::kOk) {
      const std::uint64_t number = counted.prior * nodes_.size() + i + 1;
      if (number > kMostClients) co_return Outcome::kNoSpace;
      c_.client = static_cast<std::uint32_t>(number);
      if (!Membership::possible(nodes_.size(), c_.geometry)) co_return Outcome::kOk;
      const bool raised = co_await raise_counts(found, i, counted.prior + 1);
      co_return raised ? Outcome::kOk : Outcome::kUnavailable;
    }
    ++c_.counters.failures;
    // It will be back in a moment.
    if (counted.status == Status::kUnknown) break;
  }
  co_return Outcome::kUnavailable;
}

// A memory node that comes back without its memory goes on counting from what more than half of the others have (Membership::admit); so that must
// not be less than what it has given, and this it must have given before it lost its memory.
Task<bool> Client::raise_counts(std::span<const Membership::Found> found, std::size_t giver, std::uint64_t count) {
  std::size_t raised = 0;
  for (std::size_t i = 0; i <= nodes_.size(); ++i) {
    const std::size_t node = i == nodes_.size() ? giver : i;  // last of all, once more
    if (!seen_whole(found, node) || i == giver) continue;
    const remote::RemoteAddress at = nodes_[node].heap + kClientOffset;
    std::array<std::uint8_t, 8> bytes;
    const Status status = co_await c_.read(at, bytes);
    auto there = load_le<std::uint64_t>(bytes.data());
    bool known = status == Status::kOk;
    while (known && there < count) {
      const auto swapped = co_await c_.swap(at, there, count);
      known = swapped.status == Status::kOk;
      if (swapped.prior == there) break;
      there = swapped.prior;
    }
    if (!known && node == giver) co_return false;
    raised += known;
  }
  co_return raised > nodes_.size() / 2;
}

Task<Outcome> Client::join() {
  const Time deadline = c_.now() + c_.config.timeout;
  if (membership_ != nullptr) {  // it has its number, and waits for a view that it may work under
    const bool leased = co_await c_.ensure_view(deadline);
    co_return leased ? Outcome::kOk : Outcome::kUnavailable;
  }
  Duration backoff{};
  std::vector<Membership::Found> all;
  bool missed = false;
  while (c_.now() < deadline) {
    const Outcome found = co_await find_store(all);
    if (found == Outcome::kNotFound) co_return found;
    Outcome numbered = found;
    const bool possible = Membership::possible(nodes_.size(), c_.geometry);
    const bool misses = found == Outcome::kOk && !std::ranges::all_of(all, &Membership::Found::known);
    // What cannot leave is done without until it answers; but one READ may be lost with its connection.
    if (misses && !possible && !missed) numbered = Outcome::kUnavailable;
    missed = misses;
    if (numbered == Outcome::kOk) numbered = co_await take_number(all);
    if (numbered == Outcome::kNoSpace) co_return numbered;
    // What moved meanwhile may have been lost: all of this may have been asked of other memory than what is there now.
    if (numbered == Outcome::kOk && !unseen_.empty()) numbered = Outcome::kUnavailable;
    if (numbered == Outcome::kOk) {
      // Too little to hold what the store has there: as if it had lost everything.
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].heap_bytes < c_.heap_bytes) all[i].blank = true;
        nodes_[i].heap_bytes = c_.heap_bytes;
      }
      // A part of the store is lost.
      const bool lost = std::ranges::any_of(all, [](const auto& node) { return node.blank; });
      if (!possible && lost) co_return Outcome::kUnavailable;
      c_.map = MemoryMap(nodes_, c_.geometry);
      c_.buffers = std::make_shared<remote::Buffers>(std::size_t{c_.geometry.most_units()} * kUnit);
      growth_.begin();
      cache_ = std::make_unique<SlotCache>(c_.config.cached_keys);
      if (possible) {
        membership_ = std::make_unique<Membership>(c_, nodes_, all);
        c_.membership = membership_.get();
      } else {
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
          if (!all[i].known) forget_place(i);
        }
      }
      const bool leased = co_await c_.ensure_view(deadline);
      co_return leased ? Outcome::kOk : Outcome::kUnavailable;
    }
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return Outcome::kUnavailable;
}

void Client::moved(std::size_t node, const MemoryNode& memory) {
  const bool joined = c_.map.partitions() != 0;
  if (joined && memory.heap_bytes < c_.heap_bytes) return;
  if (membership_ != nullptr) {
    membership_->moved(static_cast<std::uint32_t>(node), memory.heap);
    return;
  }
  if (nodes_[node].heap == memory.heap) return;
  nodes_[node] = memory;
  if (joined) return forget_place(node);
  unseen_.insert(node);  // joining begins anew
}

// Whoever goes on with the old key breaks the connection that the new memory is to be looked into with.
void Client::forget_place(std::size_t node) {
  c_.map.moved(static_cast<std::uint32_t>(node), kNowhere);
  unseen_.insert(node);
  tend();
}

void Client::tend() {
  c_.tend();
  if (unseen_.empty() || looking_) return;
  looking_ = true;
  c_.scheduler.spawn(look_into_moved_memory());
}

Task<void> Client::look_into_moved_memory() {
  const Time give_up = c_.now() + c_.config.timeout;
  while (!unseen_.empty() && c_.now() < give_up) {
    const auto all = unseen_;
    for (const std::size_t node : all) {
      const remote::RemoteAddress heap = nodes_[node].heap;
      std::array<std::uint8_t, kSuperblockRead> bytes;
      const Status status = co_await c_.read(heap, bytes);
      if (status != Status::kOk || nodes_[node].heap != heap) continue;
      unseen_.erase(node);
      // Nothing ever takes the place of lost memory here. So what has our superblock was never lost.
      Superblock its;
      if (parse_superblock(bytes, its) && c_.ours(its, node)) c_.map.moved(static_cast<std::uint32_t>(node), heap);
    }
    if (!unseen_.empty()) co_await c_.scheduler.sleep_for(c_.config.suspect_after / 4);
  }
  looking_ = false;
}

// ------------------------------------------------------------------------------------------------------------ reading

// Entries of the index that may be a key's.
struct Client::Candidates {
  std::array<Entry, 2 * kSlotsAChoice> entries;
  std::size_t count = 0;
  std::size_t frozen = 0;  // slots
  Entry vacant;
  Entry reusable;
  bool has_vacancy = false;
};

void Client::list(const Choices& choices, ByteView slots, Word own, Candidates& candidates) {
  std::size_t most = 0;
  for (std::size_t run = 0; run < 2; ++run) {
    std::size_t vacancies = 0;
    Entry vacant;
    // From somewhere on, so that clients seldom choose the same vacancy.
    const std::uint64_t start = c_.rng.below(kSlotsAChoice);
    for (std::uint64_t i = 0; i < kSlotsAChoice; ++i) {
      const std::uint64_t slot = (start + i) % kSlotsAChoice;
      const Word word{load_le<std::uint64_t>(slots.data() + run * kChoiceBytes + slot * 8)};
      const Entry entry{.slot = choices.run[run] + slot * 8, .word = word, .seen = candidates.vacant.seen};
      if (word.vacant()) {
        if (word.raw != 0) candidates.reusable = entry;
        // One that was never used needs no freeing.
        if (++vacancies == 1 || (vacant.word.raw != 0 && word.raw == 0)) vacant = entry;
        continue;
      }
      candidates.frozen += word.frozen();
      // It will never be live, or has not been for long.
      if (word.frozen() && !word.live()) continue;
      const bool same = word.fingerprint() == choices.fingerprint && (own.raw == 0 || word.object() != own.object());
      if (same) candidates.entries[candidates.count++] = entry;
    }
    if (vacancies <= most) continue;
    most = vacancies;
    candidates.vacant = vacant;
    candidates.has_vacancy = true;
  }
}

Task<Client::Seen> Client::read_object(Word word, Key key, Time seen, MutableBytes object, Time deadline,
                                       Object& parsed) {
  if (!c_.map.holds(word) || word.units() * kUnit > object.size()) co_return Seen::kBroken;
  const MutableBytes bytes = object.first(std::size_t{word.units()} * kUnit);
  std::array<Operation, 1> operation = {remote::read_operation(c_.map.at(word.object(), 0), bytes)};
  bool read = co_await c_.read_all(operation, deadline);
  // The other replicas have it, too.
  for (std::uint32_t i = 1; !read && i < c_.map.readable(word.object()) && c_.now() < deadline; ++i) {
    operation[0] = remote::read_operation(c_.map.at(word.object(), i), bytes);
    read = co_await c_.read_all(operation, deadline);
  }
  if (!read) co_return Seen::kUnreachable;
  if (!c_.fresh(seen)) co_return Seen::kBroken;
  if (!parse_object(bytes, word.object(), parsed)) {
    ++c_.counters.damaged;
    co_return Seen::kBroken;
  }
  co_return parsed.key == key ? Seen::kKey : Seen::kOther;
}

Task<bool> Client::look(Key key, Word own, MutableBytes object, Time deadline, Look& found) {
  std::array<std::uint8_t, 2 * kChoiceBytes> slots;
  Duration backoff{};
  while (true) {
    found = Look{};
    found.table = growth_.table(key);
    const Choices choices = c_.map.choices(key, found.table);
    const Time seen = c_.now();
    std::array<Operation, 2> reads = {
        remote::read_operation(c_.map.at(choices.run[0], 0), MutableBytes(slots).first(kChoiceBytes)),
        remote::read_operation(c_.map.at(choices.run[1], 0), MutableBytes(slots).subspan(kChoiceBytes))};
    const bool read = co_await c_.read_all(reads, deadline);
    if (!read) co_return false;
    Candidates candidates;
    candidates.vacant.seen = seen;
    list(choices, slots, own, candidates);
    found.frozen = candidates.frozen != 0;
    if (candidates.frozen == 2 * kSlotsAChoice) {
      bool split = false;
      const bool known = co_await growth_.find_out(found.table, deadline, split);
      if (!known) co_return false;
      if (split) continue;
    }
    found.vacant = candidates.vacant;
    found.reusable = candidates.reusable;
    found.has_vacancy = candidates.has_vacancy;
    bool whole = true;
    for (std::size_t i = 0; i < candidates.count && whole && found.live.word.raw == 0; ++i) {
      Entry& entry = candidates.entries[i];
      Object parsed;
      const Seen what = co_await read_object(entry.word, key, seen, object, deadline, parsed);
      if (what == Seen::kUnreachable) co_return false;
      whole = what != Seen::kBroken;
      if (what != Seen::kKey) continue;
      entry.sequence = parsed.sequence;
      if (!entry.word.live()) {
        found.rival = entry;
        continue;
      }
      found.live = entry;
      found.length = parsed.value.size();
    }
    if (whole) co_return true;
    if (c_.now() >= deadline) co_return false;
    co_await c_.back_off(backoff);
  }
}

Task<Client::Hit> Client::get_cached(Key key, MutableBytes object, Time deadline, Object& parsed) {
  const SlotCache::Entry* const known = cache_->find(key);
  if (known == nullptr) co_return Hit::kNo;
  const SlotCache::Entry entry = *known;
  const bool both = trusted(entry);
  std::array<std::uint8_t, 8> slot;
  const MutableBytes bytes = object.first(std::size_t{entry.word.units()} * kUnit);
  const Time seen = c_.now();
  std::array<Operation, 2> reads = {remote::read_operation(c_.map.at(entry.slot, 0), slot),
                                    remote::read_operation(c_.map.at(entry.word.object(), 0), bytes)};
  const bool read = co_await c_.read_all(std::span(reads).first(both ? 2 : 1), deadline);
  if (!read) co_return Hit::kNo;  // the object may be elsewhere, too
  const Word word{load_le<std::uint64_t>(slot.data())};
  const bool right = word == entry.word;
  if (SlotCache::Entry* const now = cache_->find(key)) SlotCache::note(*now, right);
  ++(right ? c_.counters.cache_hits : c_.counters.walks);
  // The object that was read is the word's if the word has not been used again since it was seen.
  const bool got = right && both && c_.fresh(entry.seen) && parse_object(bytes, word.object(), parsed);
  if (!got) {
    // Frozen: the key may have moved.
    if (!word.live() || word.frozen() || word.fingerprint() != entry.word.fingerprint()) co_return Hit::kNo;
    const Seen what = co_await read_object(word, key, seen, object, deadline, parsed);
    if (what == Seen::kUnreachable) co_return Hit::kUnreachable;
    if (what != Seen::kKey) co_return Hit::kNo;
  }
  if (parsed.key != key) co_return Hit::kNo;
  cache_->put(key, entry.slot, word, parsed.sequence, seen);
  co_return Hit::kYes;
}

Task<GetResult> Client::get(Key key, MutableBytes into) {
  ++c_.counters.gets;
  const Time deadline = c_.now() + c_.config.timeout;
  tend();
  Buffer object(c_.buffers);
  while (true) {
    const GetResult result = co_await get_once(key, object.bytes(), into, deadline);
    if (result.outcome != Outcome::kUnavailable) co_return result;
    const bool again = co_await c_.again(deadline);
    if (!again) co_return result;
  }
}

Task<GetResult> Client::get_once(Key key, MutableBytes object, MutableBytes into, Time deadline) {
  Object parsed;
  const Hit hit = co_await get_cached(key, object, deadline, parsed);
  if (hit == Hit::kUnreachable) co_return GetResult{Outcome::kUnavailable, 0};
  ByteView value = parsed.value;
  if (hit == Hit::kNo) {
    Look found;
    const bool looked = co_await look(key, Word{}, object, deadline, found);
    if (!looked) co_return GetResult{Outcome::kUnavailable, 0};
    if (found.live.word.raw == 0) {
      cache_->forget(key);
      co_return GetResult{Outcome::kNotFound, 0};
    }
    // A frozen word would be found there for ever.
    if (found.live.word.frozen()) {
      cache_->forget(key);
    } else {
      cache_->put(key, found.live.slot, found.live.word, found.live.sequence, found.live.seen);
    }
    value = object.subspan(kObjectHeader, found.length);
  }
  SLUICE_CHECK(into.size() >= value.size());
  std::ranges::copy(value, into.begin());
  co_return GetResult{Outcome::kOk, value.size()};
}

}  // namespace sluice::fusee
