#include "fusee/restoration.h"

#include <algorithm>
#include <array>

#include "fusee/membership.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {

constexpr std::size_t kCleanedAtOnce = 32 << 10;  // bytes of words
constexpr std::size_t kSlotsAtOnce = 1024;
constexpr std::size_t kCopiedAtOnce = 16;  // objects: others want to get on, too
constexpr std::int64_t kStandsStill = 4;   // times suspect_after
constexpr int kAttempts = 16;              // at some slots, before all is left for later
constexpr int kAttemptsAtBroken = 3;       // at an object that is not whole

bool all_done(std::span<const Operation> operations) {
  return std::ranges::all_of(operations, [](const Operation& o) { return o.status == Status::kOk; });
}

}  // namespace

std::optional<std::uint32_t> Restoration::target() const {
  for (std::uint32_t node = 0; node < membership_.nodes(); ++node) {
    if (apprentice(node)) return node;
  }
  for (std::uint32_t node = 0; node < membership_.nodes(); ++node) {
    if (membership_.awaited(node)) return node;
  }
  return std::nullopt;
}

void Restoration::tend() {
  if (working_ || c_.now() < next_ || c_.config.return_after == Duration{}) return;
  next_ = c_.now() + c_.config.suspect_after;
  if (!target()) return;
  working_ = true;
  c_.scheduler.spawn(work());
}

Task<void> Restoration::work() {
  for (bool done = true; done;) {
    const auto node = target();
    if (!node) break;
    const bool joined = apprentice(*node);
    done = joined ? co_await complete(*node) : co_await invite(*node);
  }
  next_ = c_.now() + c_.config.suspect_after;
  working_ = false;
}

Task<bool> Restoration::proposed(const Change& change) {
  const std::uint32_t view = c_.view;
  const Time give_up = c_.now() + (c_.config.suspect_after + c_.config.view_lease() + c_.config.flight) * 2;
  Duration backoff{};
  membership_.wish(change);
  while (c_.view == view && c_.now() < give_up) {
    co_await c_.back_off(backoff);
    if (c_.view == view) membership_.wish(change);
  }
  co_return c_.view != view;
}

// ------------------------------------------------------------------------------------------------------------ restorer

Task<bool> Restoration::elected(std::uint32_t node) {
  std::array<std::uint8_t, 8> bytes;
  const remote::RemoteAddress at = membership_.heap(node) + kRestorerOffset;
  const Status status = co_await c_.read(at, bytes);
  if (status != Status::kOk) co_return false;
  const auto word = load_le<std::uint64_t>(bytes.data());
  const bool own = word != 0 && word >> 40 == c_.client;
  if (word != 0 && !own) {
    if (word != watched_) {
      watched_ = word;
      watched_since_ = c_.now();
    }
    if (c_.now() < watched_since_ + c_.config.suspect_after * kStandsStill) co_return false;
  }
  word_ = own ? word : std::uint64_t{c_.client} << 40;
  next_beat_ = Time();
  if (own) co_return co_await beat(node);
  ++word_;
  const auto swapped = co_await c_.swap(at, word, word_);
  co_return swapped.status == Status::kOk&& swapped.prior == word;
}

// False: another has taken over, or the memory node is out of reach.
Task<bool> Restoration::beat(std::uint32_t node) {
  if (c_.now() < next_beat_) co_return true;
  next_beat_ = c_.now() + c_.config.suspect_after / 2;
  const auto swapped = co_await c_.swap(membership_.heap(node) + kRestorerOffset, word_, word_ + 1);
  if (swapped.status != Status::kOk || swapped.prior != word_) co_return false;
  ++word_;
  co_return true;
}

// -------------------------------------------------------------------------------------------------------------- invite

Task<bool> Restoration::probe(std::uint32_t node) {
  std::array<std::uint8_t, kSuperblockRead> bytes;
  const remote::RemoteAddress heap = membership_.heap(node);
  const Status status = co_await c_.read(heap, bytes);
  if (status != Status::kOk || membership_.heap(node) != heap || !c_.map.has_left(node)) co_return false;
  Superblock superblock;
  const bool whole = parse_superblock(bytes, superblock);
  // Somebody else's.
  if (!whole && superblock_taken(bytes)) co_return false;
  if (whole && (!c_.ours(superblock, node) || membership_.is_outlived(node, superblock))) co_return false;
  membership_.learned(node, {.blank = !whole, .votes_from = superblock.votes_from});
  co_return true;
}

// Nothing of the store's is read there, or expected, in this view.
Task<bool> Restoration::clean(std::uint32_t node, std::uint32_t view) {
  std::vector<Extent> extents;
  const bool known = co_await c_.words_in_use(extents);
  if (!known || !c_.acts_in(view)) co_return false;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    if (!c_.map.has_words(node, partition)) continue;
    for (const Extent& extent : extents) {
      for (std::uint64_t done = 0; done < extent.length; done += kCleanedAtOnce) {
        const std::size_t length = std::min<std::uint64_t>(kCleanedAtOnce, extent.length - done);
        const bool cleaned = co_await clean_part(node, Place::at(partition, extent.offset + done), length);
        if (!cleaned || !c_.acts_in(view)) co_return false;
        const bool still = co_await beat(node);
        if (!still || !c_.acts_in(view)) co_return false;
      }
    }
  }
  co_return true;
}

// REQUIRES: a lease on a view in which it has left.
Task<bool> Restoration::clean_part(std::uint32_t node, Place first, std::size_t length) {
  words_.resize(kCleanedAtOnce);
  const std::uint32_t view = c_.view;
  const MutableBytes some = MutableBytes(words_).first(length);
  const auto at = c_.map.on(node, first);
  const Status read = co_await c_.read(*at, some);
  if (read != Status::kOk || !c_.acts_in(view)) co_return false;
  if (std::ranges::none_of(some, [](std::uint8_t byte) { return byte != 0; })) co_return true;
  std::ranges::fill(some, std::uint8_t{0});
  const Status written = co_await c_.write(*at, some);
  co_return written == Status::kOk;
}

Task<bool> Restoration::invite(std::uint32_t node) {
  const bool have = co_await c_.ensure_view(c_.now() + c_.config.suspect_after);
  if (!have || !c_.map.has_left(node)) co_return false;
  const std::uint32_t view = c_.view;
  const bool there = co_await probe(node);
  if (!there || !c_.acts_in(view)) co_return false;
  const remote::RemoteAddress heap = membership_.heap(node);
  c_.map.moved(node, heap);
  const bool mine = co_await elected(node);
  if (!mine) co_return false;
  const bool cleaned = co_await clean(node, view);
  if (!cleaned || membership_.heap(node) != heap) co_return false;
  co_return co_await proposed({ChangeKind::kJoin, node, heap.key});
}

// ------------------------------------------------------------------------------------------------------------ complete

Task<bool> Restoration::copy_objects(std::uint32_t node, std::uint32_t view, Time seen) {
  const std::size_t longest = std::size_t{c_.geometry.most_units()} * kUnit;
  objects_.resize(kCopiedAtOnce * longest);
  while (!wanted_.empty()) {
    const std::span<const Word> some = std::span(wanted_).last(std::min(kCopiedAtOnce, wanted_.size()));
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::size_t length = std::size_t{some[i].units()} * kUnit;
      operations.push_back(
          remote::read_operation(c_.map.at(some[i].object(), 0), MutableBytes(objects_).subspan(i * longest, length)));
    }
    if (!c_.acts_in(view)) co_return false;
    co_await c_.all(operations);
    for (const Operation& o : operations) {
      if (o.status != Status::kOk) c_.trouble(o.remote.node);
    }
    if (!all_done(operations) || !c_.fresh(seen)) co_return false;
    operations.clear();
    for (std::size_t i = 0; i < some.size(); ++i) {
      const MutableBytes bytes = MutableBytes(objects_).subspan(i * longest, std::size_t{some[i].units()} * kUnit);
      Object object;
      if (!parse_object(bytes, some[i].object(), object)) {
        broken_.push_back(some[i].object());
        if (std::ranges::count(broken_, some[i].object()) < kAttemptsAtBroken) co_return false;
        ++c_.counters.damaged;
        continue;
      }
      const auto at = c_.map.on(node, some[i].object());
      operations.push_back(remote::write_operation(*at, bytes.first(kObjectHeader + object.value.size())));
    }
    if (!c_.acts_in(view) || !apprentice(node)) co_return false;
    co_await c_.all(operations);
    for (const Operation& o : operations) {
      if (o.status != Status::kOk) c_.trouble(o.remote.node);
    }
    if (!all_done(operations)) co_return false;
    c_.counters.restored += operations.size();
    wanted_.resize(wanted_.size() - some.size());
  }
  co_return true;
}

std::vector<Word> Restoration::named(std::uint32_t node, std::size_t length) const {
  std::vector<Word> words;
  for (std::size_t at = 0; at < length; at += 8) {
    const Word word{load_le<std::uint64_t>(words_.data() + at)};
    if (word.raw != 0 && c_.map.holds(word) && c_.map.on(node, word.object())) words.push_back(word);
  }
  std::ranges::sort(words, {}, &Word::object);
  const auto one_object = [](Word a, Word b) { return a.object() == b.object(); };
  words.erase(std::unique(words.begin(), words.end(), one_object), words.end());
  return words;
}

Task<bool> Restoration::copy_part(std::uint32_t node, Table table, Place first, std::size_t length, bool& listed,
                                  bool& split) {
  const bool have = co_await c_.ensure_view(c_.now() + c_.config.timeout);
  if (!have || !apprentice(node)) co_return false;
  const std::uint32_t view = c_.view;
  const std::uint32_t replicas = c_.map.word_replicas(first);
  words_.resize(kMostReplicas * length);
  const Time seen = c_.now();
  std::array<Operation, kMostReplicas> reads;
  for (std::uint32_t i = 0; i < replicas; ++i)
    reads[i] = remote::read_operation(c_.map.word_at(first, i), MutableBytes(words_).subspan(i * length, length));
  const Time deadline = seen + c_.config.hold;
  bool read = true;
  if (replicas > 1) read = co_await c_.read_all(std::span(reads).subspan(1, replicas - 1), deadline);
  if (!read || !c_.acts_in(view)) co_return false;
  std::array<std::uint8_t, 8> header{};
  std::array<Operation, 2> last = {reads[0], remote::read_operation(c_.map.word_at(c_.map.header(table), 0), header)};
  const std::size_t count = c_.map.may_split(table) ? 2 : 1;
  read = co_await c_.read_all(std::span(last).first(count), deadline);
  if (!read || !c_.acts_in(view)) co_return false;
  // What stands in a table that is split may be anybody's by now.
  split = Owner{load_le<std::uint64_t>(header.data())}.units() == kTableSplit;
  if (split) co_return true;
  std::vector<Word> standing = named(node, replicas * length);
  if (listed) {
    std::erase_if(standing,
                  [this](Word word) { return !std::ranges::binary_search(wanted_, word.object(), {}, &Word::object); });
  }
  wanted_ = std::move(standing);
  listed = true;
  co_return co_await copy_objects(node, view, seen);
}

Task<bool> Restoration::copy(std::uint32_t node) {
  broken_.clear();
  std::vector<Table> open;
  for (std::uint64_t i = c_.geometry.tables; i > 0; --i) open.push_back({0, i - 1});
  while (!open.empty()) {
    const Table table = open.back();
    open.pop_back();
    bool split = false;
    const bool copied = co_await copy_table(node, table, split);
    if (!copied) co_return false;
    // The halves after it: a word is seen here before it is moved, or there after it was.
    if (split) open.insert(open.end(), {table.half(1), table.half(0)});
  }
  co_return true;
}

// Unless it is `split`: then its halves have all that it had.
Task<bool> Restoration::copy_table(std::uint32_t node, Table table, bool& split) {
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    for (std::uint64_t offset = 0; offset < c_.map.table_bytes(); offset += kSlotsAtOnce * 8) {
      const std::size_t length = std::min<std::uint64_t>(kSlotsAtOnce * 8, c_.map.table_bytes() - offset);
      const Place first = c_.map.slots(table, partition) + offset;
      bool done = false, listed = false;
      wanted_.clear();
      for (int vain = 0; vain < kAttempts && !done;) {
        if (vain > 0) co_await c_.scheduler.sleep_for(c_.config.backoff_most);
        const std::size_t left = wanted_.size();
        done = co_await copy_part(node, table, first, length, listed, split);
        if (!apprentice(node)) co_return false;
        const bool still = co_await beat(node);
        if (!still) co_return false;
        vain = wanted_.size() < left ? 0 : vain + 1;
      }
      if (!done) co_return false;
      if (split) co_return true;
    }
  }
  co_return true;
}

Task<bool> Restoration::complete(std::uint32_t node) {
  const bool have = co_await c_.ensure_view(c_.now() + c_.config.suspect_after);
  if (!have || !apprentice(node)) co_return false;
  const std::uint32_t joins = membership_.joins(node);
  const bool mine = co_await elected(node);
  if (!mine) co_return false;
  const bool copied = co_await copy(node);
  if (!copied) co_return false;
  const Time settled = c_.now() + (c_.config.hold + c_.config.flight);
  while (c_.now() < settled) {
    co_await c_.scheduler.sleep_for(std::min(c_.config.suspect_after, settled - c_.now()));
    const bool still = co_await beat(node);
    if (!still) co_return false;
  }
  if (!apprentice(node) || membership_.joins(node) != joins) co_return false;
  co_return co_await proposed({ChangeKind::kComplete, node, {}});
}

}  // namespace sluice::fusee
