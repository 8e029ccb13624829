#include "fusee/snapshot.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/effort_test.h"
#include "base/rng.h"

namespace sluice::fusee {
namespace {

using remote::Operation;
using remote::OpKind;
using remote::Status;
using remote::Task;

TEST(Decide, FollowsThePapersThreeRules) {
  const auto of = [](std::vector<std::uint64_t> backups) { return decide(backups, 1); };
  EXPECT_EQ(of({7, 7}), 7u);     // all
  EXPECT_EQ(of({7, 7, 9}), 7u);  // more than half, though
  EXPECT_EQ(of({9, 9, 7}), 9u);  // it is not the smallest,
  EXPECT_EQ(of({9, 9, 1}), 9u);  // and though one is open
  EXPECT_EQ(of({9, 7}), 7u);     // the smallest
  EXPECT_EQ(of({9, 8, 7}), 7u);
  EXPECT_EQ(of({7, 1}), std::nullopt);  // half is not more than half
  EXPECT_EQ(of({9, 7, 1}), std::nullopt);
  EXPECT_EQ(of({1}), std::nullopt);
  EXPECT_EQ(of({7}), 7u);
}

// ---------------------------------------------------------------------------------------------- every interleaving

// Words of memory, and operations on them that wait until they are chosen to be executed.
struct Memory {
  struct Pending {
    std::uint32_t client = 0;
    Operation operation;             // as submitted
    Operation* submitted = nullptr;  // nullptr: nobody hears of it any more
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> words;
  std::vector<Pending> pending;
};

class ModelMemory : public remote::RemoteMemory {
 public:
  ModelMemory(remote::Scheduler& scheduler, Memory& memory, std::uint32_t client)
      : RemoteMemory(scheduler), memory_(memory), client_(client) {}
  remote::Capabilities capabilities() const override {
    return {.atomics = true, .ordered = false, .max_length = 1 << 20, .name = "model"};
  }
  void submit(Operation& operation) override { memory_.pending.push_back({client_, operation, &operation}); }
  void answer(Operation& operation, Status status) { complete(operation, status); }

 private:
  Memory& memory_;
  std::uint32_t client_;
};

struct Program {
  std::uint32_t replicas = 3;
  std::uint32_t writers = 2;
  std::uint32_t rounds = 1;     // changes a writer
  std::uint32_t freezers = 0;   // so many of the writers, the last ones, freeze the slot (growth.h)
  std::uint32_t finishers = 0;  // so many others end what they find half done, as who recovers or audits does
  std::uint32_t deaths = 0;
  std::uint32_t losses = 0;      // answers that are lost; the operation may be executed later or never
  std::uint32_t nodes_lost = 0;  // memory nodes that die; the next view follows at once, as membership.h says it does
  std::uint32_t nodes_back = 0;  // of these, so many come back, blank; each then becomes whole at some time
  Duration lease{};
};

// One run, up to where the choices lead.
class Run : public Retirement {
 public:
  explicit Run(const Program& program)
      : program_(program),
        deaths_(program.deaths),
        losses_(program.losses),
        nodes_lost_(program.nodes_lost),
        nodes_back_(program.nodes_back) {
    std::vector<MemoryNode> nodes;
    for (std::uint32_t i = 0; i < program.replicas; ++i) {
      nodes.push_back({{remote::NodeId(i), remote::RegionKey(1), 0}, 1 << 20});
    }
    const Geometry geometry{.replicas = program.replicas, .groups = 2, .value_bytes = 8, .block_bytes = 4096};
    map_ = MemoryMap(nodes, geometry);
    slot_ = map_.slots({}, 0);
    for (std::uint32_t i = 0; i < program.writers + program.finishers; ++i) {
      auto& w = *writers_.emplace_back(std::make_unique<Writer>(memory_, i, *this));
      w.connection.geometry = geometry;
      w.connection.map = map_;
      w.connection.config.lease = program.lease;
      w.connection.config.timeout = Duration::seconds(1000);
      w.connection.config.hold = Duration::seconds(10'000);
      w.scheduler.spawn(i < program.writers - program.freezers ? write(w, i)
                        : i < program.writers                  ? freeze(w)
                                                               : end(w));
      w.scheduler.run(w.now);
    }
  }

  // How many ways there are to go on.
  std::size_t choices() {
    wake();
    std::size_t count = memory_.pending.size();
    if (losses_ > 0) count += memory_.pending.size();
    if (deaths_ > 0 && !all_done()) count += writers_.size();
    if (nodes_lost_ > 0 && !all_done()) count += alive();
    if (returns() && !all_done()) ++count;
    return count;
  }
  void choose(std::size_t which) {
    const std::size_t pending = memory_.pending.size();
    if (which < pending) return execute(which);
    which -= pending;
    if (losses_ > 0) {
      if (which < pending) return lose(which);
      which -= pending;
    }
    if (deaths_ > 0) {
      if (which < writers_.size()) return die(which);
      which -= writers_.size();
    }
    if (nodes_lost_ > 0) {
      if (which < alive()) return lose_replica(static_cast<std::uint32_t>(which));
      which -= alive();
    }
    bring_back();
  }
  void die(std::size_t which) {
    --deaths_;
    auto& w = *writers_[which];
    w.dead = true;
    for (auto& p : memory_.pending) {
      if (p.client == which) p.submitted = nullptr;
    }
  }

  bool all_done() const {
    return std::ranges::all_of(writers_, [](auto& w) { return w->dead || w->done; });
  }
  // Everything on which the rest depends.
  std::string state() const {
    std::string s;
    const auto add = [&s](std::uint64_t v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
    for (const auto& [at, word] : memory_.words) {
      add(at.first << 20 ^ at.second);
      add(word);
    }
    for (const auto& w : writers_) {
      add(w->dead ? 1 : 0);
      add(w->dead ? 0 : w->past);
    }
    // In no order: which of a client's operations they are shows in themselves.
    std::multiset<std::string> open;
    for (const auto& p : memory_.pending) {
      std::string one;
      for (const std::uint64_t v :
           {std::uint64_t{p.submitted == nullptr ? 99 : p.client}, std::uint64_t{p.operation.remote.node.value},
            p.operation.remote.address, static_cast<std::uint64_t>(p.operation.kind), p.operation.compare,
            p.operation.swap_or_add}) {
        one.append(reinterpret_cast<const char*>(&v), sizeof v);
      }
      open.insert(one);
    }
    for (const auto& one : open) s += one;
    add(nodes_back_ << 24 | nodes_lost_ << 16 | deaths_ << 8 | losses_);
    for (std::uint32_t node = 0; node < program_.replicas; ++node) add(static_cast<std::uint64_t>(map_.member(node)));
    add(everywhere_);
    for (const std::uint64_t word : past_) add(word);
    return s;
  }

  // All living are done: were they told the truth? Then somebody ends what is left, and it must be the truth still.
  void judge() {
    check();
    finish();
    check();
    while (!memory_.pending.empty()) execute(0);  // what comes late, and may begin anew what was not
    finish();
    check();
    for (std::uint32_t i = 1; i < alive(); ++i) EXPECT_EQ(word(i), word(0)) << "replicas differ";
    EXPECT_EQ(past_.empty() ? 0 : past_.back(), word(0));
    for (std::uint32_t i = program_.writers - program_.freezers; i < program_.writers; ++i)
      EXPECT_EQ(writers_[i]->froze && !frozen(), false) << "frozen, and not for ever";
  }

 private:
  struct Writer {
    Writer(Memory& m, std::uint32_t number, Retirement& retirement)
        : memory(scheduler, m, number), connection(memory, {}, Rng(number + 1)), snapshot(connection, retirement) {}
    remote::Scheduler scheduler;
    ModelMemory memory;
    Connection connection;
    Snapshot snapshot;
    Time now;
    std::uint64_t past = 14695981039346656037u;  // digest of all answers it has had
    struct Result {
      std::uint64_t old = 0;
      std::uint64_t mine = 0;
      Changed changed{};
    };
    std::vector<Result> results;
    bool done = false;
    bool dead = false;
    bool froze = false;
  };

  std::uint64_t& at(remote::RemoteAddress a) { return memory_.words[{a.node.value, a.address}]; }
  std::uint64_t word(std::uint32_t replica) { return at(map_.word_at(slot_, replica)); }
  Place object(std::uint32_t number) const { return map_.block(0, 0) + (kUnit * (1 + number) + 448); }
  std::uint32_t alive() const { return map_.word_replicas(slot_); }

  // The memory node with this replica dies. What is under way elsewhere is executed; the others are made alike, and then everybody is in the next view.
  void lose_replica(std::uint32_t which) {
    --nodes_lost_;
    const remote::NodeId node = map_.word_at(slot_, which).node;
    const bool primary = which == 0;
    next_view(
        node, [&](MemoryMap& map) { map.leave(node.value); }, primary);
  }
  bool returns() const {
    for (std::uint32_t node = 0; node < program_.replicas; ++node) {
      if (map_.member(node) == Member::kApprentice || (nodes_back_ > 0 && map_.has_left(node))) return true;
    }
    return false;
  }
  // An apprentice becomes whole, with all objects, or who has left joins, with none.
  void bring_back() {
    for (std::uint32_t node = 0; node < program_.replicas; ++node) {
      if (map_.member(node) != Member::kApprentice) continue;
      for (std::uint32_t i = 0; i < program_.rounds * program_.writers; ++i) {
        for (const std::uint64_t part : {kOldWordOffset, kSequenceOffset})
          at(*map_.on(node, object(i) + part)) = at(map_.at(object(i) + part, 0));
      }
      const std::uint32_t before = map_.primary(0);
      next_view(
          remote::NodeId(kNobody), [&](MemoryMap& map) { map.complete(node); }, node < before);
      return;
    }
    for (std::uint32_t node = 0; node < program_.replicas; ++node) {
      if (!map_.has_left(node)) continue;
      --nodes_back_;
      std::erase_if(memory_.words, [node](const auto& entry) { return entry.first.first == node; });
      const remote::RemoteAddress heap{remote::NodeId(node), remote::RegionKey(1), 0};
      next_view(
          remote::NodeId(kNobody), [&](MemoryMap& map) { map.join(node, heap); }, true);
      everywhere_ = word(0);
      for (const auto& w : writers_) w->connection.grown = w->connection.view;
      return;
    }
  }
  template <class Change>
  void next_view(remote::NodeId gone, Change change, bool repaired) {
    const auto dropped = [gone](const Memory::Pending& p) { return p.operation.remote.node == gone; };
    std::vector<std::uint64_t> found;
    for (const auto& p : memory_.pending) {
      found.push_back(at(p.operation.remote));
      if (!dropped(p) && p.operation.kind != OpKind::kRead && found.back() == p.operation.compare)
        set(p.operation.remote, p.operation.swap_or_add);
    }
    change(map_);
    if (repaired) {
      const std::uint64_t truth = word(0);
      for (std::uint32_t i = 1; i < alive(); ++i) at(map_.word_at(slot_, i)) = truth;
      if (truth != (past_.empty() ? 0 : past_.back())) {
        EXPECT_FALSE(frozen()) << "something has followed a frozen word";
        past_.push_back(truth);
      }
    }
    for (const auto& w : writers_) {
      change(w->connection.map);
      ++w->connection.view;
    }
    const auto pending = std::exchange(memory_.pending, {});
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const auto& p = pending[i];
      if (p.submitted == nullptr) continue;
      if (p.operation.kind == OpKind::kRead) store_le(p.operation.local.data(), found[i]);
      p.submitted->prior = found[i];
      answer(p, dropped(p) ? Status::kUnknown : Status::kOk, dropped(p) ? 0x10057 : found[i]);
    }
  }

  Task<void> freeze(Writer& w) {
    const std::uint32_t tries = 1 + program_.rounds * program_.writers;
    for (std::uint32_t i = 0; i < tries && !w.froze;) {
      std::array<std::uint8_t, 8> bytes;
      const Status status = co_await w.memory.read(w.connection.map.word_at(slot_, 0), bytes);
      if (status != Status::kOk) continue;
      ++i;
      const Word old{load_le<std::uint64_t>(bytes.data())};
      w.froze = old.frozen();
      if (w.froze) break;
      const Time now = w.connection.now();
      const Changed changed = co_await w.snapshot.change(WordKind::kEntry, slot_, old.raw, old.freeze().raw,
                                                         Snapshot::kEverywhere, now, now + w.connection.config.timeout);
      w.froze = changed == Changed::kWon;
    }
    w.done = true;
  }
  Task<void> end(Writer& w) {
    const bool ended =
        co_await w.snapshot.finish(WordKind::kEntry, slot_, w.connection.now() + w.connection.config.timeout);
    EXPECT_TRUE(ended);
    w.done = true;
  }
  bool frozen() const { return !past_.empty() && Word{past_.back()}.frozen(); }

  Task<void> write(Writer& w, std::uint32_t number) {
    for (std::uint32_t round = 0; round < program_.rounds; ++round) {
      std::array<std::uint8_t, 8> bytes;
      Status status = Status::kUnknown;
      while (status != Status::kOk) status = co_await w.memory.read(w.connection.map.word_at(slot_, 0), bytes);
      const auto old = load_le<std::uint64_t>(bytes.data());
      if (Word{old}.frozen()) break;
      // The object was written before; its log is in its place.
      const Place object = Run::object(round * program_.writers + number);
      const Word mine = Word::of(object, 7, 1, State::kLive);
      SLUICE_CHECK(map_.holds(mine));
      for (std::uint32_t i = 0; i < program_.replicas; ++i) {
        if (i >= w.connection.map.replicas(object)) continue;
        at(w.connection.map.at(object + kOldWordOffset, i)) = old;
        at(w.connection.map.at(object + kSequenceOffset, i)) = 1;
      }
      const std::uint32_t written = w.connection.view;
      const Time now = w.connection.now();
      const Changed changed = co_await w.snapshot.change(WordKind::kEntry, slot_, old, mine.raw, written, now,
                                                         now + w.connection.config.timeout);
      w.results.push_back({old, mine.raw, changed});
    }
    w.done = true;
  }

  void execute(std::size_t which) {
    const Memory::Pending p = take(which);
    Operation o = p.operation;
    std::uint64_t& there = at(o.remote);
    if (o.kind == OpKind::kRead) {
      if (p.submitted != nullptr) store_le(o.local.data(), there);
      o.prior = there;
    } else {
      o.prior = there;
      if (there == o.compare) set(o.remote, o.swap_or_add);
    }
    if (p.submitted == nullptr) return;
    p.submitted->prior = o.prior;
    answer(p, Status::kOk, o.prior);
  }
  void lose(std::size_t which) {
    --losses_;
    const Memory::Pending p = take(which);
    if (p.operation.kind != OpKind::kRead) memory_.pending.push_back({p.client, p.operation, nullptr});
    if (p.submitted != nullptr) answer(p, Status::kUnknown, 0x10057);
  }
  Memory::Pending take(std::size_t which) {
    const Memory::Pending p = memory_.pending[which];
    memory_.pending.erase(memory_.pending.begin() + static_cast<std::ptrdiff_t>(which));
    return p;
  }
  void answer(const Memory::Pending& p, Status status, std::uint64_t what) {
    auto& w = *writers_[p.client];
    // Answers to operations that wait together may come in any order; which is which is told by the address.
    const std::uint64_t told =
        (p.operation.remote.node.value * 31 + p.operation.remote.address) * 1099511628211u ^ what;
    w.past = (w.past ^ told) * 1099511628211u;
    w.memory.answer(*p.submitted, status);
    w.scheduler.run(w.now);
  }
  void set(remote::RemoteAddress a, std::uint64_t value) {
    at(a) = value;
    if (a != map_.word_at(slot_, 0)) return;
    EXPECT_FALSE(frozen()) << "something has followed a frozen word";
    past_.push_back(value);
    if (!map_.holds(Word{value})) return;
    const Place object = Word{value}.object();
    for (std::uint32_t i = 0; i < map_.replicas(object) && object != Word{everywhere_}.object(); ++i) {
      EXPECT_EQ(at(map_.at(object + kSequenceOffset, i)), 1u) << "a memory node that has joined lacks its object";
    }
    for (std::uint32_t i = 1; i < alive(); ++i) {
      EXPECT_EQ(word(i), value) << "the primary is ahead of a backup";
    }
  }
  // Who sleeps goes on when nobody else can.
  void wake() {
    for (int i = 0; i < 10'000; ++i) {
      const bool somebody = std::ranges::any_of(memory_.pending, [](auto& p) { return p.submitted != nullptr; });
      if (somebody || all_done()) return;
      Writer* first = nullptr;
      for (const auto& w : writers_) {
        if (w->dead || w->done) continue;
        if (first == nullptr || w->scheduler.next_deadline() < first->scheduler.next_deadline()) first = w.get();
      }
      first->now = std::max(first->now, first->scheduler.next_deadline());
      first->scheduler.run(first->now);
    }
    FAIL() << "nobody gets on";
  }
  void check() {
    for (const auto& w : writers_) {
      for (const auto& [old, mine, changed] : w->results) {
        const bool was = std::ranges::count(past_, mine) > 0;
        const bool again = changed == Changed::kStale && (program_.nodes_back > 0 || frozen());
        EXPECT_TRUE(changed == Changed::kWon || changed == Changed::kLost || again) << static_cast<int>(changed);
        EXPECT_EQ(changed == Changed::kWon, was) << "told " << static_cast<int>(changed);
        if (changed == Changed::kLost) {
          const bool frozen_at_once = std::ranges::count(past_, Word{old}.freeze().raw) > 0;
          EXPECT_FALSE(frozen_at_once) << "nothing was written over it";
        }
      }
    }
    EXPECT_EQ(std::set<std::uint64_t>(past_.begin(), past_.end()).size(), past_.size()) << "a word came twice";
  }
  void finish() {
    Writer helper(memory_, static_cast<std::uint32_t>(writers_.size()), *this);
    helper.connection.geometry = {.replicas = program_.replicas, .groups = 2, .block_bytes = 4096};
    helper.connection.map = map_;
    bool finished = false;
    const auto run = [](Snapshot& snapshot, Place slot, bool& done) -> Task<void> {
      const bool ended = co_await snapshot.finish(WordKind::kEntry, slot, Time::at(Duration::seconds(1)));
      done = ended;
    };
    helper.scheduler.spawn(run(helper.snapshot, slot_, finished));
    helper.scheduler.run(helper.now);
    for (int i = 0; i < 1000 && !finished; ++i) {
      const auto its = std::ranges::find_if(memory_.pending, [&](auto& p) { return p.client == writers_.size(); });
      ASSERT_NE(its, memory_.pending.end());
      const Memory::Pending p = take(static_cast<std::size_t>(its - memory_.pending.begin()));
      if (p.operation.kind == OpKind::kRead) {
        store_le(p.operation.local.data(), at(p.operation.remote));
      } else {
        p.submitted->prior = at(p.operation.remote);
        if (p.submitted->prior == p.operation.compare) set(p.operation.remote, p.operation.swap_or_add);
      }
      helper.memory.answer(*p.submitted, Status::kOk);
      helper.scheduler.run(helper.now);
    }
    EXPECT_TRUE(finished);
  }
  void on_replaced(Word, Time) override {}

  static constexpr std::uint32_t kNobody = 99;
  Program program_;
  std::uint64_t deaths_;
  std::uint64_t losses_;
  std::uint64_t nodes_lost_;
  std::uint64_t nodes_back_;
  std::uint64_t everywhere_ = 0;  // the word whose object a memory node that has joined is given
  MemoryMap map_;
  Place slot_;
  Memory memory_;
  std::vector<std::unique_ptr<Writer>> writers_;
  std::vector<std::uint64_t> past_;  // of the primary
};

struct Explored {
  std::uint64_t states = 0;
  std::uint64_t ends = 0;
};

void judge(Run& run, const Program& program, const std::vector<std::uint8_t>& path) {
  run.judge();
  if (!testing::Test::HasFailure()) return;
  std::string way;
  for (const auto choice : path) way += std::to_string(choice) + " ";
  ADD_FAILURE() << program.replicas << " replicas, lease " << (program.lease == Duration{} ? "none" : "some")
                << ", after " << way;
}

// Depth first, each state once; a state is reached by running its choices from the start.
Explored explore(const Program& program, std::uint64_t most = 3'000'000) {
  Explored seen;
  std::unordered_set<std::size_t> known;
  std::vector<std::vector<std::uint8_t>> open = {{}};
  while (!open.empty() && !testing::Test::HasFailure()) {
    const auto path = std::move(open.back());
    open.pop_back();
    Run run(program);
    for (const std::uint8_t choice : path) {
      run.choices();
      run.choose(choice);
    }
    const std::size_t choices = run.choices();
    if (!known.insert(std::hash<std::string>{}(run.state())).second) continue;
    ++seen.states;
    if (seen.states > most) {
      ADD_FAILURE() << "too many states";
      break;
    }
    if (run.all_done()) {
      ++seen.ends;
      judge(run, program, path);
      continue;
    }
    for (std::size_t i = 0; i < choices; ++i) {
      open.push_back(path);
      open.back().push_back(static_cast<std::uint8_t>(i));
    }
  }
  return seen;
}

// Some ways from the start to an end, drawn by chance.
Explored wander(const Program& program, std::uint64_t ways) {
  Explored seen;
  Rng chance(1);
  for (; seen.ends < ways && !testing::Test::HasFailure(); ++seen.ends) {
    Run run(program);
    std::vector<std::uint8_t> path;
    for (std::size_t choices = run.choices(); !run.all_done(); choices = run.choices()) {
      path.push_back(static_cast<std::uint8_t>(chance.below(choices)));
      run.choose(path.back());
      ++seen.states;
    }
    judge(run, program, path);
  }
  return seen;
}

class SnapshotModel : public testing::Test {
 protected:
  void every(const Program& program) {
    if (HasFailure()) return;
    // An address sanitizer makes all of it ten minutes, and finds what it looks for on any way.
    const auto seen = kAddressSanitizer ? wander(program, 1000) : explore(program);
    EXPECT_GT(seen.ends, 1u);
    states_ += seen.states;
  }
  void TearDown() override { RecordProperty("states", std::to_string(states_)); }

 private:
  std::uint64_t states_ = 0;
};

constexpr Duration kWaiting = Duration::milliseconds(1);

TEST_F(SnapshotModel, TwoWriters) {
  for (const std::uint32_t replicas : {1u, 2u, 3u, 4u}) {
    every({.replicas = replicas, .writers = 2});
    every({.replicas = replicas, .writers = 2, .lease = kWaiting});
  }
}
TEST_F(SnapshotModel, TwoWritersOfWhomOneDiesAnywhere) {
  for (const std::uint32_t replicas : {2u, 3u, 4u}) {
    every({.replicas = replicas, .writers = 2, .deaths = 1});
    every({.replicas = replicas, .writers = 2, .deaths = 1, .lease = kWaiting});
  }
}
TEST_F(SnapshotModel, TwoWritersAndALostAnswer) {
  for (const std::uint32_t replicas : {1u, 2u, 3u}) {
    every({.replicas = replicas, .writers = 2, .losses = 1, .lease = kWaiting});
  }
}
TEST_F(SnapshotModel, TwoWritersOfWhomOneDiesAndALostAnswer) {
  every({.replicas = 3, .writers = 2, .deaths = 1, .losses = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, AWriterWhoseSlotIsFrozen) {
  every({.replicas = 4, .writers = 2, .freezers = 1, .lease = kWaiting});
  for (const std::uint32_t replicas : {1u, 2u, 3u}) {
    every({.replicas = replicas, .writers = 2, .freezers = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 2, .freezers = 1, .losses = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 2, .freezers = 1, .deaths = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 2, .rounds = 2, .freezers = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 3, .freezers = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 3, .freezers = 2, .lease = kWaiting});
  }
}
TEST_F(SnapshotModel, AWriterWhoseSlotIsFrozenAndAMemoryNodeThatDiesAnywhere) {
  for (const std::uint32_t replicas : {2u, 3u}) {
    every({.replicas = replicas, .writers = 2, .rounds = 2, .freezers = 1, .nodes_lost = 1, .lease = kWaiting});
    every({.replicas = replicas, .writers = 2, .freezers = 1, .deaths = 1, .nodes_lost = 1, .lease = kWaiting});
  }
  every({.replicas = 2, .writers = 2, .freezers = 1, .nodes_lost = 1, .nodes_back = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersAndOneWhoEndsWhatTheyHaveBegun) {
  every({.replicas = 2, .writers = 2, .finishers = 1});
  every({.replicas = 2, .writers = 2, .finishers = 1, .lease = kWaiting});
  every({.replicas = 2, .writers = 1, .finishers = 2, .deaths = 1, .lease = kWaiting});
  every({.replicas = 3, .writers = 1, .finishers = 1, .deaths = 1, .lease = kWaiting});
  every({.replicas = 3, .writers = 1, .finishers = 1, .nodes_lost = 1, .lease = kWaiting});
  if (from_environment("SLUICE_EVERY_WAY", 0) == 0) return;
  every({.replicas = 2, .writers = 2, .finishers = 1, .deaths = 1, .lease = kWaiting});
  every({.replicas = 3, .writers = 2, .finishers = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersTwice) {
  for (const std::uint32_t replicas : {1u, 2u, 3u}) every({.replicas = replicas, .writers = 2, .rounds = 2});
  every({.replicas = 3, .writers = 2, .rounds = 2, .deaths = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersAndAMemoryNodeThatDiesAnywhere) {
  for (const std::uint32_t replicas : {2u, 3u, 4u}) {
    every({.replicas = replicas, .writers = 2, .nodes_lost = 1});
    every({.replicas = replicas, .writers = 2, .nodes_lost = 1, .lease = kWaiting});
  }
  every({.replicas = 3, .writers = 2, .nodes_lost = 2, .lease = kWaiting});
  // Half a minute; nightly.
  if (from_environment("SLUICE_EVERY_WAY", 0) != 0)
    every({.replicas = 4, .writers = 2, .nodes_lost = 2, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersTwiceAndAMemoryNodeThatDiesAnywhere) {
  every({.replicas = 2, .writers = 2, .rounds = 2, .nodes_lost = 1, .lease = kWaiting});
  every({.replicas = 3, .writers = 2, .rounds = 2, .nodes_lost = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersOneOfWhomDiesAndAMemoryNodeToo) {
  for (const std::uint32_t replicas : {2u, 3u, 4u})
    every({.replicas = replicas, .writers = 2, .deaths = 1, .nodes_lost = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, ThreeWritersAndAMemoryNodeThatDiesAnywhere) {
  for (const std::uint32_t replicas : {2u, 3u})
    every({.replicas = replicas, .writers = 3, .nodes_lost = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, TwoWritersAndAMemoryNodeThatDiesAndComesBackAnywhere) {
  for (const std::uint32_t replicas : {2u, 3u})
    every({.replicas = replicas, .writers = 2, .nodes_lost = 1, .nodes_back = 1, .lease = kWaiting});
  every({.replicas = 2, .writers = 2, .deaths = 1, .nodes_lost = 1, .nodes_back = 1, .lease = kWaiting});
}
TEST_F(SnapshotModel, ThreeWriters) {
  for (const std::uint32_t replicas : {1u, 2u, 3u}) every({.replicas = replicas, .writers = 3, .lease = kWaiting});
}
TEST_F(SnapshotModel, ThreeWritersOfWhomOneDiesAnywhere) {
  every({.replicas = 3, .writers = 3, .deaths = 1, .lease = kWaiting});
}

}  // namespace
}  // namespace sluice::fusee
