#include "fusee/growth.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "remote/at_once.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Task;

namespace {

constexpr std::size_t kSlotsAtOnce = 256;
constexpr std::size_t kStepsAtOnce = 64;
constexpr std::size_t kPartBytes = kSlotsAtOnce * 8;
constexpr std::size_t kHeadersAtOnce = 512;

std::uint64_t word_in(ByteView words, std::size_t index) { return load_le<std::uint64_t>(words.data() + index * 8); }

}  // namespace

// One attempt at splitting a table.
struct Growth::Job {
  Table table;
  Owner claim{};
  bool claimed = true;  // as far as is known
  Time next_beat;
  Time deadline;
  std::vector<Left> left;  // words that are not moved
};

Table Growth::table(Key key) const {
  Table table = c_.map.table(key, 0);
  while (known(table)) table = c_.map.table(key, table.level + 1);
  return table;
}

Task<bool> Growth::read_header(Table table, Time deadline, Owner& header) {
  std::array<std::uint8_t, 8> bytes;
  std::array<Operation, 1> read = {remote::read_operation(c_.map.word_at(c_.map.header(table), 0), bytes)};
  const bool got = co_await c_.read_all(read, deadline);
  if (!got) co_return false;
  header = {load_le<std::uint64_t>(bytes.data())};
  if (header.units() == kTableSplit) split_[c_.map.number(table)] = true;
  co_return true;
}

Task<bool> Growth::find_out(Table table, Time deadline, bool& split) {
  split = known(table);
  if (split || !c_.map.may_split(table)) co_return true;
  Owner header;
  const bool read = co_await read_header(table, deadline, header);
  split = known(table);
  co_return read;
}

Task<bool> Growth::split(Table table, Time deadline) {
  SLUICE_CHECK(c_.map.may_split(table));
  const std::uint64_t number = c_.map.number(table);
  Duration backoff{};
  while (!known(table) && c_.now() < deadline) {
    if (std::ranges::find(work_, number) == work_.end()) {
      work_.push_back(number);
      c_.scheduler.spawn(work(table));
    }
    co_await c_.back_off(backoff);
  }
  co_return known(table);
}

// Whatever becomes of who wanted it.
Task<void> Growth::work(Table table) {
  const Duration change = c_.config.suspect_after + c_.config.view_lease() + c_.config.flight;
  const Time give_up = c_.now() + std::max(c_.config.timeout, change * 4);
  std::uint64_t watched = 0;
  Time since;
  Duration backoff{};
  while (!known(table) && c_.now() < give_up) {
    const Time seen = c_.now();
    Owner header;
    const bool read = co_await read_header(table, give_up, header);
    bool again = true;
    if (!read) again = co_await c_.again(give_up);
    if (!again) break;
    if (!read || known(table)) continue;
    if (header.raw != 0 && header.client() != c_.client) {
      if (header.raw != watched) {
        watched = header.raw;
        since = c_.now();
      }
      if (c_.now() < since + patience()) {
        co_await c_.back_off(backoff);
        continue;
      }
    }
    const Owner mine = Owner::of(c_.client, space_.next_claim(), kTableClaimed);
    const Changed claimed = co_await snapshot_.change(WordKind::kOwner, c_.map.header(table), header.raw, mine.raw,
                                                      Snapshot::kEverywhere, seen, give_up);
    if (claimed != Changed::kWon) {
      co_await c_.back_off(backoff);
      continue;
    }
    Job job{.table = table, .claim = mine, .next_beat = c_.now() + patience() / 4, .deadline = give_up, .left = {}};
    bool done = co_await freeze(job);
    if (done) done = co_await move(job);
    if (done) co_await open(job);
  }
  std::erase(work_, c_.map.number(table));
}

// Others see that the splitter lives.
Task<void> Growth::beat(Job& job) {
  if (!job.claimed || c_.now() < job.next_beat || c_.config.lease == Duration{}) co_return;
  job.next_beat = c_.now() + patience() / 4;
  const Owner next = Owner::of(c_.client, space_.next_claim(), kTableClaimed);
  const Changed changed = co_await snapshot_.change(WordKind::kOwner, c_.map.header(job.table), job.claim.raw, next.raw,
                                                    Snapshot::kEverywhere, c_.now(), job.deadline);
  // If another has taken over, both go on; it does no harm.
  job.claimed = changed == Changed::kWon;
  job.claim = next;
}

// --------------------------------------------------------------------------------------------------------------- steps

Task<bool> Growth::take_one(Step step, Time seen, Time deadline) {
  Duration backoff{};
  while (c_.now() < deadline) {
    const Word mine = step.word.raw != 0 ? step.word : Word{step.there}.freeze();
    const Changed changed = co_await snapshot_.change(WordKind::kEntry, step.at, step.there, mine.raw,
                                                      Snapshot::kEverywhere, seen, deadline);
    if (changed == Changed::kWon) co_return true;
    std::array<std::uint8_t, 8> bytes;
    std::array<Operation, 1> read = {remote::read_operation(c_.map.word_at(step.at, 0), bytes)};
    seen = c_.now();
    const bool got = co_await c_.read_all(read, deadline);
    bool again = true;
    if (!got) again = co_await c_.again(deadline);
    if (!again) co_return false;
    if (!got) continue;
    const auto there = load_le<std::uint64_t>(bytes.data());
    if (step.word.raw != 0 ? there != 0 : Word{there}.frozen()) co_return true;
    step.there = there;
    if (changed == Changed::kUnavailable) co_await c_.back_off(backoff);
  }
  co_return false;
}

Task<bool> Growth::take(const std::vector<Step>& steps, Time seen, Time deadline) {
  remote::AtOnce taking(c_.scheduler, steps.size(), kStepsAtOnce,
                        [&](std::size_t i) { return take_one(steps[i], seen, deadline); });
  co_return co_await taking;
}

Task<bool> Growth::freeze(Job& job) {
  std::array<std::uint8_t, kPartBytes> bytes;
  std::vector<Step> steps;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    for (std::uint64_t offset = 0; offset < c_.map.table_bytes();) {
      const std::size_t length = std::min<std::uint64_t>(kPartBytes, c_.map.table_bytes() - offset);
      const Place first = c_.map.slots(job.table, partition) + offset;
      const Time seen = c_.now();
      std::array<Operation, 1> read = {
          remote::read_operation(c_.map.word_at(first, 0), MutableBytes(bytes).first(length))};
      const bool got = co_await c_.read_all(read, job.deadline);
      bool again = true;
      if (!got) again = co_await c_.again(job.deadline);
      if (!again) co_return false;
      if (!got) continue;
      steps.clear();
      for (std::size_t i = 0; i < length / 8; ++i) {
        const Word word{word_in(bytes, i)};
        if (!word.frozen()) steps.push_back({first + i * 8, word.raw, {}});
      }
      const bool taken = co_await take(steps, seen, job.deadline);
      if (!taken) co_return false;
      co_await beat(job);
      offset += length;
    }
  }
  co_return true;
}

Task<bool> Growth::move(Job& job) {
  Duration backoff{};
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    for (std::uint64_t offset = 0; offset < c_.map.table_bytes();) {
      if (c_.now() >= job.deadline || known(job.table)) co_return false;
      const std::size_t length = std::min<std::uint64_t>(kPartBytes, c_.map.table_bytes() - offset);
      const std::size_t left = job.left.size();
      const bool moved = co_await move_part(job, partition, offset, length);
      if (!moved) {
        job.left.resize(left);
        co_await c_.back_off(backoff);
        continue;
      }
      co_await beat(job);
      offset += length;
    }
  }
  co_return true;
}

// REQUIRES: all is frozen.
Task<bool> Growth::move_part(Job& job, std::uint32_t partition, std::uint64_t offset, std::size_t length) {
  std::array<std::uint8_t, kPartBytes> bytes;
  std::array<std::uint8_t, 2 * kPartBytes> halves;
  std::array<std::uint8_t, 8> header;
  const Place from = c_.map.slots(job.table, partition) + offset;
  const std::array<Place, 2> to = {c_.map.slots(job.table.half(0), partition) + offset,
                                   c_.map.slots(job.table.half(1), partition) + offset};
  const Time seen = c_.now();
  std::array<Operation, 4> reads = {
      remote::read_operation(c_.map.word_at(from, 0), MutableBytes(bytes).first(length)),
      remote::read_operation(c_.map.word_at(to[0], 0), MutableBytes(halves).first(length)),
      remote::read_operation(c_.map.word_at(to[1], 0), MutableBytes(halves).subspan(kPartBytes, length)),
      remote::read_operation(c_.map.word_at(c_.map.header(job.table), 0), header)};
  const bool read = co_await c_.read_all(reads, job.deadline);
  if (!read) co_return false;
  if (Owner{load_le<std::uint64_t>(header.data())}.units() == kTableSplit) {
    split_[c_.map.number(job.table)] = true;
    co_return false;
  }
  // What a frozen word names is its own for as long as the table is not split, and for `hold` after that.
  std::vector<std::size_t> named;
  for (std::size_t i = 0; i < length / 8; ++i) {
    const Word word{word_in(bytes, i)};
    SLUICE_CHECK(word.frozen());
    if (c_.map.holds(word)) named.push_back(i);
  }
  constexpr std::size_t kHead = kSequenceOffset + 8;
  std::vector<std::uint8_t> heads(named.size() * kHead);
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < named.size(); ++i) {
    operations.push_back(remote::read_operation(c_.map.at(Word{word_in(bytes, named[i])}.object(), 0),
                                                MutableBytes(heads).subspan(i * kHead, kHead)));
  }
  if (!operations.empty()) {
    const bool got = co_await c_.read_all(operations, job.deadline);
    if (!got || !c_.fresh(seen)) co_return false;
  }
  std::vector<Step> steps;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const Word word = Word{word_in(bytes, named[i])}.thaw();
    if (!word.live()) {
      job.left.push_back({word, load_le<std::uint64_t>(heads.data() + i * kHead + kSequenceOffset)});
      continue;
    }
    const std::uint32_t half = c_.map.half(load_le<std::uint64_t>(heads.data() + i * kHead), job.table.level);
    const std::uint64_t there = word_in(ByteView(halves).subspan(half * kPartBytes), named[i]);
    if (there == 0) steps.push_back({to[half] + named[i] * 8, 0, word});
  }
  co_return co_await take(steps, seen, job.deadline);
}

// REQUIRES: all is moved.
Task<bool> Growth::open(Job& job) {
  Owner done;
  while (c_.now() < job.deadline) {
    const Time seen = c_.now();
    Owner header;
    const bool read = co_await read_header(job.table, job.deadline, header);
    bool again = true;
    if (!read) again = co_await c_.again(job.deadline);
    if (!again) co_return false;
    if (!read) continue;
    if (known(job.table)) {
      if (header.raw != done.raw) co_return true;
      break;
    }
    done = Owner::of(c_.client, space_.next_claim(), kTableSplit);
    const Changed changed = co_await snapshot_.change(WordKind::kOwner, c_.map.header(job.table), header.raw, done.raw,
                                                      Snapshot::kEverywhere, seen, job.deadline);
    if (changed != Changed::kWon) continue;
    split_[c_.map.number(job.table)] = true;
    break;
  }
  if (!known(job.table)) co_return false;
  ++c_.counters.splits;
  c_.scheduler.spawn(retire(std::move(job.left)));
  co_return true;
}

// What is not marked, by whoever died before, is found by audit.
Task<void> Growth::retire(std::vector<Left> left) {
  for (const Left& one : left) co_await space_.retire(one.word, one.sequence);
}

// ------------------------------------------------------------------------------------------------------------ recovery

Task<bool> Growth::end_splits(std::uint32_t client, Time deadline) {
  if (!c_.map.grows()) co_return true;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    const std::uint64_t headers = (c_.map.tables() + c_.map.partitions() - 1 - partition) / c_.map.partitions();
    for (std::uint64_t first = 0; first < headers; first += kHeadersAtOnce) {
      const std::uint64_t count = std::min<std::uint64_t>(kHeadersAtOnce, headers - first);
      const bool ended = co_await end_some(client, partition, first, count, deadline);
      if (!ended) co_return false;
    }
  }
  co_return true;
}

Task<bool> Growth::end_some(std::uint32_t client, std::uint32_t partition, std::uint64_t first, std::uint64_t count,
                            Time deadline) {
  std::vector<std::uint8_t> headers(kMostReplicas * count * 8);
  std::array<Operation, kMostReplicas> reads;
  const Place place = Place::at(partition, first * 8);
  const std::uint32_t replicas = c_.map.word_replicas(place);
  for (std::uint32_t i = 0; i < replicas; ++i) {
    reads[i] =
        remote::read_operation(c_.map.word_at(place, i), MutableBytes(headers).subspan(i * count * 8, count * 8));
  }
  const bool read = co_await c_.read_all(std::span(reads).first(replicas), deadline);
  if (!read) co_return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    bool its = false;
    bool half_done = false;
    bool over = true;
    for (std::uint32_t replica = 0; replica < replicas; ++replica) {
      const Owner header{word_in(headers, replica * count + i)};
      its = its || (header.raw != 0 && header.client() == client);
      half_done = half_done || header.raw != word_in(headers, i);
      over = over && header.units() == kTableSplit;
    }
    if (!its || over) continue;
    if (half_done) {
      const bool finished = co_await snapshot_.finish(WordKind::kOwner, place + i * 8, deadline);
      if (!finished) co_return false;
    }
    const Table table = c_.map.table_of((first + i) * c_.map.partitions() + partition);
    Owner header;
    const bool got = co_await read_header(table, deadline, header);
    if (!got) co_return false;
    if (header.client() != client || header.units() != kTableClaimed) continue;
    const bool done = co_await split(table, deadline);
    if (!done) co_return false;
  }
  co_return true;
}

}  // namespace sluice::fusee
