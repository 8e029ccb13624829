#include "fusee/snapshot.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {

constexpr int kLongestWalk = 32;

// It was refused: nothing has happened.
bool refused(Status status) { return status != Status::kOk && status != Status::kUnknown; }

}  // namespace

std::optional<std::uint64_t> decide(std::span<const std::uint64_t> backups, std::uint64_t old) {
  std::uint64_t smallest = ~std::uint64_t{0};
  bool open = false;
  for (const std::uint64_t word : backups) {
    if (word == old) {
      open = true;
      continue;
    }
    smallest = std::min(smallest, word);
    if (2 * std::ranges::count(backups, word) > static_cast<std::ptrdiff_t>(backups.size())) return word;
  }
  if (open) return std::nullopt;
  return smallest;
}

Task<std::optional<std::uint64_t>> Snapshot::primary(Place at) {
  std::array<std::uint8_t, 8> bytes;
  const Status status = co_await c_.read(c_.map.word_at(at, 0), bytes);
  if (status == Status::kOk) co_return load_le<std::uint64_t>(bytes.data());
  c_.trouble(c_.map.word_at(at, 0).node);
  co_return std::nullopt;
}

void Snapshot::enter(Epoch& epoch) const {
  epoch.view = c_.view;
  epoch.count = c_.map.word_replicas(epoch.at) - 1;
}

Task<Snapshot::Turn> Snapshot::hold_view(Epoch& epoch) {
  if (holds(epoch)) co_return Turn::kGo;
  const bool have = co_await c_.ensure_view(epoch.deadline);
  if (!have) co_return Turn::kNone;
  if (epoch.view == c_.view) co_return Turn::kGo;
  enter(epoch);
  epoch.moved = true;
  epoch.backups_read = false;
  epoch.winner.reset();
  co_return Turn::kAnew;
}

Task<bool> Snapshot::read_backups(Epoch& epoch) {
  std::array<std::uint8_t, 8 * kMostReplicas> bytes;
  std::array<Operation, kMostReplicas> reads;
  for (std::uint32_t i = 0; i < epoch.count; ++i) {
    reads[i] =
        remote::read_operation(c_.map.word_at(epoch.at, i + 1), MutableBytes(bytes).subspan(std::size_t{8} * i, 8));
  }
  co_await c_.all(std::span(reads).first(epoch.count));
  bool whole = true;
  for (std::uint32_t i = 0; i < epoch.count; ++i) {
    whole = whole && reads[i].status == Status::kOk;
    if (reads[i].status != Status::kOk) c_.trouble(reads[i].remote.node);
    epoch.backups[i] = load_le<std::uint64_t>(bytes.data() + std::size_t{8} * i);
  }
  co_return whole;
}

// Gives what backups still hold `old` a word of this epoch: mine, or one that is proposed already. False: there is none.
Task<bool> Snapshot::propose(Epoch& epoch) {
  std::uint64_t word = proposable(epoch) ? epoch.mine : 0;
  for (std::uint32_t i = 0; i < epoch.count && word == 0; ++i) {
    if (epoch.backups[i] != epoch.old) word = epoch.backups[i];
  }
  if (word == 0) co_return false;
  std::array<Operation, kMostReplicas> swaps;
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < epoch.count; ++i) {
    if (epoch.backups[i] != epoch.old) continue;
    swaps[count++] = remote::swap_operation(c_.map.word_at(epoch.at, i + 1), epoch.old, word);
  }
  co_await c_.all(std::span(swaps).first(count));
  for (const auto& o : std::span(swaps).first(count)) {
    if (o.status != Status::kOk) c_.trouble(o.remote.node);
  }
  co_return true;
}

// Puts the winner into all backups. False: not surely.
Task<bool> Snapshot::enforce(Epoch& epoch) {
  std::array<Operation, kMostReplicas> swaps;
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < epoch.count; ++i) {
    if (epoch.backups[i] == *epoch.winner) continue;
    swaps[count++] = remote::swap_operation(c_.map.word_at(epoch.at, i + 1), epoch.backups[i], *epoch.winner);
  }
  if (count == 0) co_return true;
  co_await c_.all(std::span(swaps).first(count));
  bool done = true;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& o = swaps[i];
    if (o.status != Status::kOk) c_.trouble(o.remote.node);
    done = done && o.status == Status::kOk && (o.prior == o.compare || o.prior == *epoch.winner);
  }
  co_return done;
}

// Puts the winner into the primary. REQUIRES: all backups hold it, or it was over already. False: not surely.
Task<bool> Snapshot::commit(Epoch& epoch) {
  const remote::RemoteAddress at = c_.map.word_at(epoch.at, 0);
  const auto swapped = co_await c_.swap(at, epoch.old, *epoch.winner);
  if (swapped.status != Status::kOk) {
    c_.trouble(at.node);
    co_return false;
  }
  c_.counters.swaps_lost += swapped.prior != epoch.old;
  epoch.now = swapped.prior == epoch.old ? *epoch.winner : swapped.prior;
  co_return true;
}

Task<Snapshot::End> Snapshot::settle(Epoch& epoch) {
  Duration backoff{};
  while (c_.now() < epoch.deadline && c_.fresh(epoch.seen)) {
    const Turn turn = co_await hold_view(epoch);
    if (turn == Turn::kNone) break;
    if (turn == Turn::kAnew) continue;
    const bool help = c_.now() >= epoch.help_from;
    if (help && !epoch.backups_read) epoch.backups_read = co_await read_backups(epoch);
    if (!holds(epoch)) continue;
    const Time asked = c_.now();
    const auto word = co_await primary(epoch.at);
    if (word && *word != epoch.old) {
      epoch.now = *word;
      co_return End::kOver;
    }
    const bool whole = word && epoch.backups_read && c_.fresh(epoch.seen);
    epoch.backups_read = false;
    if (word && c_.fresh(epoch.seen)) epoch.seen = asked;
    if (!whole || !help) {
      co_await c_.back_off(backoff);
      continue;
    }
    if (!holds(epoch)) continue;
    if (epoch.count == 0) {  // the backups have left: the primary decides
      if (!proposable(epoch)) co_return End::kIdle;
      epoch.winner = epoch.mine;
      const bool done = co_await commit(epoch);
      if (!done || epoch.now != epoch.mine) epoch.winner.reset();
      if (done) co_return End::kOver;
      continue;
    }
    // The primary held `old` before the backups were read, and after: they are of this epoch.
    const auto winner = decide(std::span(epoch.backups).first(epoch.count), epoch.old);
    if (!winner) {
      const bool proposed = co_await propose(epoch);
      if (!proposed) co_return End::kIdle;
      continue;
    }
    epoch.winner = winner;
    const bool all = co_await enforce(epoch);
    if (!all) {
      co_await c_.back_off(backoff);
      continue;
    }
    if (!holds(epoch) || !c_.fresh(epoch.seen)) continue;
    const Time seen = epoch.seen;
    const bool done = co_await commit(epoch);
    const Word old{epoch.old};
    if (*epoch.winner != epoch.mine) {
      // Whoever was the last to do so: the winner may be dead.
      ++c_.counters.finished;
      const bool freed = epoch.kind == WordKind::kEntry && old.raw != 0;
      if (done && freed && old.object() != Word{*epoch.winner}.object()) retirement_.on_replaced(old, seen);
    }
    if (done) co_return End::kOver;
  }
  co_return End::kNotOver;
}

Task<Changed> Snapshot::change(WordKind kind, Place at, std::uint64_t old, std::uint64_t mine, std::uint32_t written,
                               Time seen, Time deadline) {
  SLUICE_CHECK(kind != WordKind::kEntry || !Word{old}.frozen());
  Epoch epoch{.kind = kind, .at = at, .old = old, .mine = mine, .written = written, .seen = seen, .deadline = deadline};
  if (!c_.leased()) {
    const bool have = co_await c_.ensure_view(deadline);
    if (!have) co_return Changed::kUnavailable;
  }
  if (!c_.fresh(seen) || !proposable(epoch)) co_return Changed::kStale;
  enter(epoch);
  const std::uint32_t count = epoch.count;
  if (count == 0) co_return co_await change_alone(epoch);

  std::array<Operation, kMostReplicas> swaps;
  for (std::uint32_t i = 0; i < count; ++i) {
    swaps[i] = remote::swap_operation(c_.map.word_at(at, i + 1), old, mine);
  }
  co_await c_.all(std::span(swaps).first(count));
  std::uint32_t held = 0;
  std::uint32_t nothing = 0;
  bool known = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& o = swaps[i];
    known = known && o.status == Status::kOk;
    if (o.status != Status::kOk) c_.trouble(o.remote.node);
    nothing += refused(o.status);
    if (o.status != Status::kOk) continue;
    const bool got = o.prior == old || o.prior == mine;
    epoch.backups[i] = got ? mine : o.prior;
    held += got;
    c_.counters.swaps_lost += !got;
  }
  if (nothing == count) co_return Changed::kUnavailable;
  epoch.backups_read = known;
  epoch.help_from = c_.now();
  if (held == count && holds(epoch) && c_.fresh(epoch.seen)) {  // rule 1; later `old` may stand there again
    epoch.winner = mine;
    const bool done = co_await commit(epoch);
    if (done) {
      ++c_.counters.won_all;
      co_return Changed::kWon;
    }
  } else if (known) {
    const auto winner = decide(std::span(epoch.backups).first(count), old);
    if (winner != mine) epoch.help_from = c_.now() + c_.config.lease;
  }
  co_return co_await await_end(epoch, known && held == 0);
}

// `nowhere`: all backups have said that they did not take the word, in the view in which this began.
Task<Changed> Snapshot::await_end(Epoch& epoch, bool nowhere) {
  const End end = co_await settle(epoch);
  // Primary and backups hold `old`, in a view in which nobody may propose the word any more: it will never stand anywhere.
  if (end == End::kIdle) co_return Changed::kStale;
  if (end == End::kOver && frozen_instead(epoch)) co_return Changed::kStale;
  if (end == End::kOver) {
    // None of the backups took it, all have said so: it is nowhere.
    if (nowhere && !epoch.moved) {
      ++c_.counters.lost;
      co_return Changed::kLost;
    }
    co_return co_await judge(epoch);
  }
  if (nowhere && !epoch.moved) co_return Changed::kUnavailable;
  ++c_.counters.unknown;
  co_return Changed::kUnknown;
}

// Without backups the primary decides.
Task<Changed> Snapshot::change_alone(Epoch& epoch) {
  epoch.winner = epoch.mine;
  Duration backoff{};
  bool doubted = false;
  while (c_.now() < epoch.deadline && c_.fresh(epoch.seen)) {
    const Turn turn = co_await hold_view(epoch);
    if (turn == Turn::kNone) break;
    // A memory node has joined. What became of an attempt in the view before shows like any other's.
    if (epoch.count != 0 || !proposable(epoch)) {
      epoch.winner.reset();
      co_return co_await await_end(epoch, false);
    }
    epoch.winner = epoch.mine;
    if (!c_.fresh(epoch.seen)) break;
    const Time asked = c_.now();
    const bool done = co_await commit(epoch);
    if (done && epoch.now == epoch.mine) {
      ++c_.counters.won_all;
      co_return Changed::kWon;
    }
    if (done && frozen_instead(epoch)) co_return Changed::kStale;
    if (done && !doubted) {
      ++c_.counters.lost;
      co_return Changed::kLost;
    }
    if (done) {
      epoch.winner.reset();
      co_return co_await judge(epoch);
    }
    doubted = true;
    // The CAS is repeated only while the primary is known to hold `old`.
    const auto word = co_await primary(epoch.at);
    if (word && *word == epoch.old && c_.fresh(epoch.seen)) epoch.seen = asked;
    if (!word) co_await c_.back_off(backoff);
  }
  ++c_.counters.unknown;
  co_return Changed::kUnknown;
}

bool Snapshot::frozen_instead(const Epoch& epoch) {
  const Word frozen = Word{epoch.old}.freeze();
  return epoch.kind == WordKind::kEntry && epoch.now == frozen.raw && epoch.mine != frozen.raw;
}

// It is over: who has won?
Task<Changed> Snapshot::judge(Epoch& epoch) {
  std::optional<std::uint64_t> winner = epoch.winner;
  if (!winner && epoch.now == epoch.mine) winner = epoch.mine;
  bool mine = winner == epoch.mine;
  if (!winner && epoch.kind == WordKind::kEntry) {
    const auto next = co_await successor(epoch);
    if (!next) {
      ++c_.counters.unknown;
      co_return Changed::kUnknown;
    }
    const Word own{epoch.mine};
    mine = next->object() == own.object() && (own.object() != Word{epoch.old}.object() || next->raw == own.raw);
  }
  ++(mine ? c_.counters.won_more : c_.counters.lost);
  co_return mine ? Changed::kWon : Changed::kLost;
}

Task<std::optional<Word>> Snapshot::successor(const Epoch& epoch) {
  const Word old{epoch.old};
  Word at = Word{epoch.now}.thaw();
  for (int i = 0; i < kLongestWalk && c_.fresh(epoch.seen) && c_.map.holds(at); ++i) {
    if (old.raw != 0 && at.object() == old.object()) co_return at;  // only its state has changed
    ++c_.counters.walks;
    std::array<std::uint8_t, 8> bytes;
    const remote::RemoteAddress log = c_.map.at(at.object() + kOldWordOffset, 0);
    const Status status = co_await c_.read(log, bytes);
    if (status != Status::kOk) c_.trouble(log.node);
    if (status == Status::kUnknown) continue;
    if (status != Status::kOk || !c_.fresh(epoch.seen)) break;
    const Word before{load_le<std::uint64_t>(bytes.data())};
    if (before == old) co_return at;
    if (old.raw != 0 && before.object() == old.object()) co_return before;
    at = before;
  }
  co_return std::nullopt;
}

Task<bool> Snapshot::finish(WordKind kind, Place at, Time deadline) {
  Duration backoff{};
  while (c_.now() < deadline) {
    const bool have = co_await c_.ensure_view(deadline);
    if (!have) co_return false;
    Epoch epoch{.kind = kind, .at = at, .seen = c_.now(), .deadline = deadline, .help_from = c_.now()};
    enter(epoch);
    if (epoch.count == 0) co_return true;
    const auto word = co_await primary(at);
    if (!word) {
      co_await c_.back_off(backoff);
      continue;
    }
    epoch.old = *word;
    const End end = co_await settle(epoch);
    // Over: the next one may have begun meanwhile. Idle: there is nothing to end.
    if (end == End::kIdle) co_return true;
  }
  co_return false;
}

}  // namespace sluice::fusee
