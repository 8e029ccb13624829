// Atomics through a box that replaces them, on real packets in virtual time: losses on every side, clients that die, boxes that are lost.
// Every operation takes effect once, in one order that agrees with time, and nobody is told anything else.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>

#include "base/effort_test.h"
#include "tests/scenario/swordbox_star.h"
#include "tests/scenario/ticket_book.h"
#include "wire/text.h"

namespace sluice::scenario {
namespace {

using remote::RemoteAddress;
using remote::Status;
using remote::Task;

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t clients = 8;
  std::uint32_t operations = 150;  // of each
  std::uint32_t words = 4;
  std::uint32_t in_flight = 1;
  std::uint32_t kills = 0;
  std::uint32_t box_restarts = 0;
  std::uint32_t node_restarts = 0;
  bool off_and_on = false;
  std::uint32_t switches = 0;    // of the box, off or on again, at random
  std::size_t unlock_bytes = 8;  // of a WRITE that unlocks: more go beyond the word
  StarOptions star{.steer = false};
};

// A word's operation as its client saw it.
struct Event {
  std::uint32_t word = 0;
  Time begin{};
  Time end = Time::never();
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;  // a value that comes but once, or what is added
  std::uint64_t prior = 0;
  bool known = false;

  bool succeeded() const { return known && prior == compare; }
};

// A world of clients, whatever each of them does.
class World {
 public:
  explicit World(const Scenario& scenario)
      : scenario_(scenario), rng_(Rng(scenario.seed).fork("words")), star_(scheduler_, star_options(scenario)) {}
  virtual ~World() = default;

  void run() {
    running_ = scenario_.clients * scenario_.in_flight;
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      for (std::uint32_t lane = 0; lane < scenario_.in_flight; ++lane) scheduler_.spawn(work(i, lane));
    }
    const std::uint64_t all = std::uint64_t{scenario_.clients} * scenario_.operations;
    plan(all);
    run_until([&] { return running_ == 0; });
    const Time settle = star_.now + Duration::milliseconds(800);
    run_until([&] { return star_.now >= settle; });
    if (star_.box() != nullptr) {
      EXPECT_EQ(star_.box()->held(), 0u) << "packets wait for ever, seed " << scenario_.seed;
      EXPECT_EQ(star_.box()->multiplexer()->open(), 0u) << "operations are never done, seed " << scenario_.seed;
    }
    judge();
    judge_the_rest();
  }
  std::uint64_t replaced() const { return star_.count(swordbox::Verdict::kAtomicReplaced); }
  void show() {
    fmt::print("seed {}: {} operations in {} us, {} not known, {} reconnects\n", scenario_.seed, done_,
               star_.now.since_start().microseconds(), unknown_, star_.reconnects());

    if (star_.box() != nullptr) {
      star_.box()->counters().for_each([](std::string_view name, std::string_view, std::uint64_t value) {
        if (value != 0) fmt::print("  {:>8} {}\n", value, name);
      });
    }
  }

 protected:
  static constexpr std::uint64_t kData = 64 * 64;  // behind the words: what locks protect

  virtual Task<void> one(std::uint32_t who, Rng& rng) = 0;
  // A client that will not be heard of again.
  virtual void on_death(std::uint32_t) {}
  virtual void judge() = 0;

  RemoteAddress word(std::uint32_t i) const { return star_.base() + std::uint64_t{i} * 64; }
  std::uint64_t& memory_word(std::uint64_t offset) {
    return reinterpret_cast<std::uint64_t*>(star_.memory().data())[offset / 8];
  }
  rc::RemoteRc& memory(std::uint32_t who) { return *star_.client(who).memory; }
  bool dead(std::uint32_t who) { return star_.client(who).dead; }

  Scenario scenario_;
  Rng rng_;
  remote::Scheduler scheduler_;
  Star star_;
  std::uint64_t done_ = 0;
  std::uint64_t unknown_ = 0;
  std::uint32_t running_ = 0;  // coroutines that the end waits for

 private:
  static StarOptions star_options(const Scenario& scenario) {
    StarOptions options = scenario.star;
    options.seed = scenario.seed;
    options.clients = scenario.clients;
    options.steer = false;
    options.agent = false;
    if (!options.words) options.words.emplace();
    options.words->repair_after = Duration::microseconds(100);
    options.words->give_up_after = Duration::milliseconds(3);
    options.words->flight = Duration::milliseconds(20);
    options.words->ring = 64;
    options.word_bytes = 64 * 64;
    return options;
  }
  Task<void> work(std::uint32_t who, std::uint32_t lane) {
    Rng rng = Rng(scenario_.seed).fork("work").fork(who * 100 + lane);
    for (std::uint32_t i = 0; i < scenario_.operations / scenario_.in_flight && !dead(who); ++i) {
      co_await one(who, rng);
      ++done_;
    }
    if (!dead(who)) --running_;
    ended_.insert(who * 100 + lane);
  }
  void plan(std::uint64_t all) {
    for (std::uint32_t k = 0; k < scenario_.kills; ++k) at_.emplace(rng_.below(all), 'k');
    for (std::uint32_t k = 0; k < scenario_.box_restarts; ++k) at_.emplace(rng_.below(all), 'b');
    for (std::uint32_t k = 0; k < scenario_.node_restarts; ++k) at_.emplace(rng_.below(all), 'n');
    for (std::uint32_t k = 0; k < scenario_.switches; ++k) at_.emplace(rng_.below(all), k % 2 == 0 ? '0' : '1');
    if (scenario_.off_and_on) {
      at_.emplace(all / 3, '0');
      at_.emplace(all / 2, '1');
    }
  }
  void happen() {
    while (!at_.empty() && at_.begin()->first <= done_) {
      const char what = at_.begin()->second;
      at_.erase(at_.begin());
      if (what == 'b') star_.restart_box(Duration::milliseconds(20));
      if (what == 'n') star_.restart_node(Duration::microseconds(static_cast<std::int64_t>(rng_.below(5000))));
      if (what == '0' || what == '1') star_.box()->switch_on(what == '1');
      if (what != 'k') continue;
      const auto who = static_cast<std::uint32_t>(rng_.below(scenario_.clients - 1));  // the last one lives
      if (dead(who)) continue;
      star_.kill(who);
      on_death(who);
      for (std::uint32_t lane = 0; lane < scenario_.in_flight; ++lane)
        running_ -= ended_.contains(who * 100 + lane) ? 0u : 1u;
    }
  }
  template <class Done>
  void run_until(Done done) {
    const Time limit = star_.now + Duration::seconds(20);
    while (!done()) {
      ASSERT_LT(star_.now, limit) << "nothing gets on, seed " << scenario_.seed;
      happen();
      scheduler_.run(star_.now);
      const bool moved = star_.round();
      const Time next = std::min(star_.next_deadline(), scheduler_.next_deadline());
      star_.now = moved || next <= star_.now + Star::kRound ? star_.now + Star::kRound : std::min(next, limit);
      if (!moved && next == Time::never()) star_.now = star_.now + Duration::milliseconds(1);
    }
  }

  // Nobody has written where nobody should.
  void judge_the_rest() {
    const std::uint64_t words = star_.memory().size() / 8;
    for (std::uint64_t i = 0; i < words; ++i) {
      const bool is_used =
          i % 8 == 0 && (i / 8 < scenario_.words || (i >= kData / 8 && i / 8 < kData / 64 + scenario_.words));
      if (is_used) continue;
      EXPECT_EQ(memory_word(i * 8), 0u) << "at " << i * 8 << ", seed " << scenario_.seed;
    }
  }

  std::multimap<std::uint64_t, char> at_;
  std::set<std::uint32_t> ended_;
};

// Everybody adds one: each value is handed out once, in the order of time.
class Tickets final : public World {
 public:
  using World::World;

 private:
  Task<void> one(std::uint32_t who, Rng& rng) override {
    const auto w = static_cast<std::uint32_t>(rng.below(scenario_.words));
    const std::size_t draw = book_.begin(w, star_.now);
    const auto result = co_await memory(who).fetch_and_add(word(w), 1);
    if (dead(who)) co_return;
    if (result.status == Status::kOk) {
      book_.end(draw, star_.now, result.prior);
    } else {
      ++unknown_;
    }
  }
  void judge() override {
    for (std::uint32_t w = 0; w < scenario_.words; ++w) book_.judge(w, memory_word(w * 64), scenario_.seed);
  }
  TicketBook book_;
};

// Everybody swaps in values of their own: a chain without forks, from the first value to the one in memory.
class Chains final : public World {
 public:
  using World::World;

 private:
  Task<void> one(std::uint32_t who, Rng& rng) override {
    const auto w = static_cast<std::uint32_t>(rng.below(scenario_.words));
    const std::size_t event = events_.size();
    const std::uint64_t compare = last_seen_[{who, w}];
    events_.push_back({.word = w, .begin = star_.now, .compare = compare, .swap = ++next_value_});
    const std::uint64_t swap = next_value_;
    const auto result = co_await memory(who).compare_and_swap(word(w), compare, swap);
    if (dead(who)) co_return;
    if (result.status != Status::kOk) {
      ++unknown_;
      last_seen_[{who, w}] = 0;
      co_return;
    }
    events_[event].end = star_.now;
    events_[event].prior = result.prior;
    events_[event].known = true;
    last_seen_[{who, w}] = result.prior == compare ? swap : result.prior;
  }
  void judge() override {
    for (std::uint32_t w = 0; w < scenario_.words; ++w) judge_word(w);
  }
  void judge_word(std::uint32_t w) {
    std::map<std::uint64_t, const Event*> by_swap;
    std::multimap<std::uint64_t, const Event*> by_compare;
    for (const Event& e : events_) {
      if (e.word != w) continue;
      by_swap[e.swap] = &e;
      if (!e.known || e.succeeded()) by_compare.emplace(e.compare, &e);
    }
    // Walk back from what is in memory.
    std::vector<const Event*> chain;
    for (std::uint64_t value = memory_word(w * 64); value != 0;) {
      ASSERT_TRUE(by_swap.contains(value)) << "nobody wrote " << value << ", seed " << scenario_.seed;
      const Event* const e = by_swap[value];
      ASSERT_TRUE(!e->known || e->succeeded()) << "a refused swap took effect, seed " << scenario_.seed;
      ASSERT_LT(chain.size(), events_.size()) << "a ring, seed " << scenario_.seed;
      chain.push_back(e);
      value = e->compare;
    }
    std::reverse(chain.begin(), chain.end());
    const std::set<const Event*> in_chain(chain.begin(), chain.end());
    for (const Event& e : events_) {
      if (e.word == w && e.succeeded()) {
        EXPECT_TRUE(in_chain.contains(&e)) << "swap " << e.swap << " is lost, seed " << scenario_.seed;
      }
    }
    Time latest_begin{};
    std::map<std::uint64_t, std::pair<const Event*, const Event*>> life;  // of each value: by whom it came and went
    for (std::size_t i = 0; i < chain.size(); ++i) {
      EXPECT_LE(latest_begin, chain[i]->end) << "against time, seed " << scenario_.seed;
      latest_begin = std::max(latest_begin, chain[i]->begin);
      life[chain[i]->swap] = {chain[i], i + 1 < chain.size() ? chain[i + 1] : nullptr};
    }
    life[0] = {nullptr, chain.empty() ? nullptr : chain[0]};
    for (const Event& e : events_) {
      if (e.word != w || !e.known || e.succeeded()) continue;
      const auto seen = life.find(e.prior);
      ASSERT_TRUE(seen != life.end()) << "a value that never was: " << e.prior << ", seed " << scenario_.seed;
      if (seen->second.first != nullptr) {
        EXPECT_LE(seen->second.first->begin, e.end) << "seen too early, seed " << scenario_.seed;
      }
      if (seen->second.second != nullptr) {
        EXPECT_GE(seen->second.second->end, e.begin) << "seen too late, seed " << scenario_.seed;
      }
    }
  }
  std::vector<Event> events_;
  std::uint64_t next_value_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> last_seen_;
};

// Sherman's way: CAS takes the lock; what is written back and the unlock go out together. A counter behind each lock, changed without
// atomics, tells whether two ever held it at once.
class Locks final : public World {
 public:
  using World::World;

 private:
  Task<void> one(std::uint32_t who, Rng& rng) override {
    const auto w = static_cast<std::uint32_t>(rng.below(scenario_.words));
    const std::uint64_t mine = std::uint64_t{who + 1} << 32 | ++turn_;
    if (!co_await take(who, w, mine)) co_return;
    EXPECT_EQ(holder_[w], 0u) << "two hold lock " << w << ", seed " << scenario_.seed;
    holder_[w] = mine;
    const RemoteAddress data = star_.base() + (kData + std::uint64_t{w} * 64);
    std::uint64_t value = 0;
    for (;;) {
      const Status read = co_await memory(who).read(data, as_bytes(value));
      if (read == Status::kOk) break;
      ++unknown_;
      co_await scheduler_.sleep_for(Duration::milliseconds(1));
    }
    EXPECT_EQ(value, expected_[w]) << "an update under lock " << w << " is lost, seed " << scenario_.seed;
    expected_[w] = ++value;
    holder_[w] = 0;  // from the moment of the unlock on
    co_await release(who, w, mine, data, value, rng.below(2) == 0);
  }
  static MutableBytes as_bytes(std::uint64_t& value) { return {reinterpret_cast<std::uint8_t*>(&value), sizeof value}; }

  Task<bool> take(std::uint32_t who, std::uint32_t w, std::uint64_t mine) {
    for (int tries = 0;; ++tries) {
      const auto result = co_await memory(who).compare_and_swap(word(w), 0, mine);
      if (result.status == Status::kOk && result.prior == 0) co_return true;
      if (result.status != Status::kOk) {
        // Did it? After a while the word tells.
        ++unknown_;
        co_await scheduler_.sleep_for(Duration::milliseconds(100));
        if (co_await holds(who, w, mine)) co_return true;
      }
      co_await scheduler_.sleep_for(Duration::microseconds(static_cast<std::int64_t>(2 + tries % 20)));
    }
  }
  Task<bool> holds(std::uint32_t who, std::uint32_t w, std::uint64_t mine) {
    for (;;) {
      std::uint64_t value = 0;
      const Status read = co_await memory(who).read(word(w), as_bytes(value));
      if (read == Status::kOk) co_return value == mine;
      ++unknown_;
      co_await scheduler_.sleep_for(Duration::milliseconds(1));
    }
  }
  Task<void> release(std::uint32_t who, std::uint32_t w, std::uint64_t mine, RemoteAddress data, std::uint64_t value,
                     bool by_write) {
    for (;;) {
      const std::array<std::uint8_t, 64> none{};
      auto write_back = memory(who).write(data, as_bytes(value));
      write_back.start();
      if (by_write) {
        auto unlock = memory(who).write(word(w), ByteView(none).first(scenario_.unlock_bytes));
        unlock.start();
        const Status wrote = co_await write_back;
        const Status unlocked = co_await unlock;
        if (wrote == Status::kOk && unlocked == Status::kOk) co_return;
      } else {
        auto unlock = memory(who).compare_and_swap(word(w), mine, 0);
        unlock.start();
        const Status wrote = co_await write_back;
        const auto unlocked = co_await unlock;
        if (wrote == Status::kOk && unlocked.status == Status::kOk) {
          EXPECT_EQ(unlocked.prior, mine) << "the lock was somebody else's, seed " << scenario_.seed;
          co_return;
        }
      }
      ++unknown_;
      co_await scheduler_.sleep_for(Duration::milliseconds(100));
      if (!co_await holds(who, w, mine)) co_return;  // it is released: so the data stands before it
    }
  }
  // What it held is let go by somebody else, when nothing that it has sent can be executed any more.
  void on_death(std::uint32_t who) override {
    ++running_;
    scheduler_.spawn(free_locks_of(who));
  }
  Task<void> free_locks_of(std::uint32_t dead) {
    const std::uint32_t heir = scenario_.clients - 1;
    co_await scheduler_.sleep_for(Duration::milliseconds(150));
    for (std::uint32_t w = 0; w < scenario_.words; ++w) {
      std::uint64_t value = 0;
      co_await read_surely(heir, word(w), value);
      if (value >> 32 != dead + 1) continue;
      // Of what it had under way the write-back may stand already; never the unlock without it.
      const RemoteAddress data = star_.base() + (kData + std::uint64_t{w} * 64);
      std::uint64_t stands = 0;
      co_await read_surely(heir, data, stands);
      const bool ended = holder_[w] == 0;
      EXPECT_TRUE(stands == expected_[w] || (ended && stands + 1 == expected_[w]))
          << "data of lock " << w << ", seed " << scenario_.seed;
      expected_[w] = stands;
      holder_[w] = 0;
      for (bool is_free = false; !is_free;) {
        const auto freed = co_await memory(heir).compare_and_swap(word(w), value, 0);
        is_free = freed.status == Status::kOk;
        if (is_free) continue;
        co_await scheduler_.sleep_for(Duration::milliseconds(100));
        is_free = !co_await holds(heir, w, value);
      }
    }
    --running_;
  }
  Task<void> read_surely(std::uint32_t who, RemoteAddress from, std::uint64_t& value) {
    for (;;) {
      const Status read = co_await memory(who).read(from, as_bytes(value));
      if (read == Status::kOk) co_return;
      co_await scheduler_.sleep_for(Duration::milliseconds(1));
    }
  }
  void judge() override {
    for (std::uint32_t w = 0; w < scenario_.words; ++w) {
      EXPECT_EQ(memory_word(w * 64), 0u) << "lock " << w << " is held for ever, seed " << scenario_.seed;
      EXPECT_EQ(memory_word(kData + w * 64), expected_[w]) << "data of lock " << w << ", seed " << scenario_.seed;
    }
  }
  std::map<std::uint32_t, std::uint64_t> holder_;
  std::map<std::uint32_t, std::uint64_t> expected_;
  std::uint64_t turn_ = 0;
};

void print_packet(Time now, const swordbox::Packet& packet) {
  fmt::print("{:.1f} us {}: {}\n", static_cast<double>(now.since_start().nanoseconds()) / 1000,
             swordbox::row(packet.verdict).name, wire::describe(packet.frame.bytes()));
}

template <class Kind>
void run_seeds(Scenario s, std::uint64_t few) {
  if (std::getenv("SLUICE_TRACE") != nullptr) s.star.trace = print_packet;
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(few); ++seed) {
    s.seed = seed;
    Kind world(s);
    world.run();
    if (std::getenv("SLUICE_SHOW") != nullptr) world.show();
    EXPECT_GT(world.replaced(), 0u);
    if (testing::Test::HasFailure()) return;
  }
}

Scenario with_loss(std::uint32_t rate, Scenario s = {}) {
  s.star.client_rate = s.star.server_rate = rate;
  return s;
}

TEST(SwordBoxWords, HandsOutEveryTicketOnce) { run_seeds<Tickets>({}, 5); }
TEST(SwordBoxWords, HandsOutEveryTicketOnceUnderLoss) { run_seeds<Tickets>(with_loss(10'000), 10); }
TEST(SwordBoxWords, HandsOutEveryTicketOnceUnderHeavyLoss) { run_seeds<Tickets>(with_loss(100'000), 10); }
TEST(SwordBoxWords, HandsOutEveryTicketOnceToClientsWithManyUnderWay) {
  run_seeds<Tickets>(with_loss(20'000, {.in_flight = 8}), 10);
}
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhenClientsDie) {
  run_seeds<Tickets>(with_loss(20'000, {.clients = 12, .kills = 5}), 10);
}
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhenBoxesAreLost) {
  run_seeds<Tickets>(with_loss(20'000, {.box_restarts = 2}), 10);
}
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhenClientsDieAndBoxesAreLost) {
  run_seeds<Tickets>(with_loss(50'000, {.clients = 12, .kills = 4, .box_restarts = 2}), 10);
}
// Clients, box and memory node, each at random moments: 1 % and 10 % of all packets dropped, as many doubled, as many overtaken.
const Scenario kAllDie{.clients = 12, .kills = 4, .box_restarts = 2, .node_restarts = 2};
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhoeverDiesUnderLoss) { run_seeds<Tickets>(with_loss(10'000, kAllDie), 10); }
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhoeverDiesUnderHeavyLoss) {
  run_seeds<Tickets>(with_loss(100'000, kAllDie), 10);
}
TEST(SwordBoxWords, SwapsFormAChainWhoeverDiesUnderLoss) { run_seeds<Chains>(with_loss(10'000, kAllDie), 10); }
TEST(SwordBoxWords, SwapsFormAChainWhoeverDiesUnderHeavyLoss) { run_seeds<Chains>(with_loss(100'000, kAllDie), 10); }
TEST(SwordBoxWords, LocksExcludeEachOtherWhoeverDiesUnderLoss) { run_seeds<Locks>(with_loss(10'000, kAllDie), 10); }
TEST(SwordBoxWords, LocksExcludeEachOtherWhoeverDiesUnderHeavyLoss) {
  run_seeds<Locks>(with_loss(100'000, kAllDie), 10);
}
TEST(SwordBoxWords, SwapsFormAChain) { run_seeds<Chains>({}, 5); }
TEST(SwordBoxWords, SwapsFormAChainUnderHeavyLoss) { run_seeds<Chains>(with_loss(100'000), 10); }
TEST(SwordBoxWords, SwapsFormAChainWhenClientsDieAndBoxesAreLost) {
  run_seeds<Chains>(with_loss(50'000, {.clients = 12, .kills = 4, .box_restarts = 2}), 10);
}
TEST(SwordBoxWords, SwapsFormAChainWhileTheBoxIsSwitchedOffAndOn) {
  run_seeds<Chains>(with_loss(20'000, {.in_flight = 4, .off_and_on = true}), 10);
}
TEST(SwordBoxWords, TicketsAreGivenOnceWhileTheBoxIsSwitchedOffAndOn) {
  run_seeds<Tickets>(with_loss(20'000, {.in_flight = 4, .off_and_on = true}), 10);
}
TEST(SwordBoxWords, LocksExcludeEachOtherWhileTheBoxIsSwitchedOffAndOn) {
  run_seeds<Locks>(with_loss(20'000, {.off_and_on = true}), 10);
}
// While the box is off.
TEST(SwordBoxWords, NothingIsDoneTwiceWhenThereAreMoreThanCanBeWatched) {
  Scenario many = with_loss(20'000, {.in_flight = 4, .switches = 40});
  many.star.words.emplace().passes = 2;
  run_seeds<Tickets>(many, 10);
  run_seeds<Chains>(many, 10);
  many.in_flight = 1;
  run_seeds<Locks>(many, 10);
}
TEST(SwordBoxWords, LocksExcludeEachOtherUntilWritesAreShownToBeAllowedAndAfterwards) {
  run_seeds<Locks>(with_loss(20'000, {.kills = 3, .star = {.steer = false, .words_writable = false}}), 10);
  run_seeds<Locks>(with_loss(20'000, {.off_and_on = true, .star = {.steer = false, .words_writable = false}}), 10);
}
// Clients that wait longer before they send again than anything is watched for.
const Scenario kSendLate{.kills = 2, .star = {.timeout = 13}};
TEST(SwordBoxWords, LocksExcludeEachOtherWhenClientsSendAgainLate) {
  run_seeds<Locks>(with_loss(20'000, kSendLate), 10);
  Scenario few = kSendLate;
  few.words = 1;
  few.operations = 30;
  few.unlock_bytes = 16;
  run_seeds<Locks>(with_loss(50'000, few), 10);
}
TEST(SwordBoxWords, HandsOutEveryTicketOnceWhenClientsSendAgainLate) {
  run_seeds<Tickets>(with_loss(20'000, kSendLate), 10);
}
TEST(SwordBoxWords, SwapsFormAChainWhenClientsSendAgainLate) { run_seeds<Chains>(with_loss(20'000, kSendLate), 10); }
TEST(SwordBoxWords, LocksExcludeEachOther) { run_seeds<Locks>({}, 5); }
TEST(SwordBoxWords, LocksExcludeEachOtherUnderLoss) { run_seeds<Locks>(with_loss(10'000), 10); }
TEST(SwordBoxWords, LocksExcludeEachOtherUnderHeavyLoss) { run_seeds<Locks>(with_loss(100'000), 10); }
TEST(SwordBoxWords, LocksExcludeEachOtherWhenBoxesAreLost) {
  run_seeds<Locks>(with_loss(20'000, {.box_restarts = 2}), 10);
}

}  // namespace
}  // namespace sluice::scenario
