// Sherman through the box, on real packets in virtual time: the words of its lock table are what the box shares connections for. Losses on
// every side, clients that die, boxes that are lost. What anybody saw is linearizable per key, and no lock stays.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"
#include "base/effort_test.h"
#include "rack/clients/sherman_store.h"
#include "tests/scenario/swordbox_star.h"
#include "workload/linearizability.h"

namespace sluice::scenario {
namespace {

using remote::Task;
using sherman::Client;
using workload::EventKind;
using workload::History;
using workload::Key;
using workload::Outcome;

constexpr std::size_t kValueBytes = 40;
constexpr std::uint32_t kLocks = 64;
constexpr std::uint64_t kLockBytes = 8 * kLocks;  // at the end of the memory
constexpr Duration kLease = Duration::milliseconds(500);
constexpr Duration kFlight = Duration::milliseconds(100);

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t clients = 8;
  std::uint32_t operations = 40;  // a client
  std::uint32_t in_flight = 2;    // coroutines a client
  std::uint64_t keys = 30;
  std::uint32_t kills = 0;
  std::uint32_t box_restarts = 0;
  std::uint32_t node_restarts = 0;
  bool replace = true;  // else the box only forwards
  StarOptions star{};
};

class ShermanThroughBox {
 public:
  explicit ShermanThroughBox(const Scenario& s)
      : scenario_(s), rng_(Rng(s.seed).fork("scenario")), star_(scheduler_, star_options(s)) {
    set_check_context(fmt::format("seed {}", s.seed));
    const std::uint64_t heap = star_.memory().size() - kLockBytes;
    const std::vector<sherman::MemoryNode> nodes{{star_.base(), heap, star_.base() + heap}};
    for (std::uint32_t i = 0; i <= s.clients; ++i) {
      Member& m = *members_.emplace_back(std::make_unique<Member>());
      m.client = std::make_unique<Client>(*star_.client(i).memory, nodes,
                                          sherman::ClientConfig{.timeout = Duration::seconds(10),
                                                                .lease = kLease,
                                                                .flight = kFlight,
                                                                .backoff_first = Duration::microseconds(5),
                                                                .backoff_most = Duration::microseconds(200)},
                                          Rng(s.seed).fork("client").fork(i));
      m.store = std::make_unique<rack::ShermanStore>(*m.client);
    }
    const sherman::Geometry geometry{
        .node_bytes = 464, .value_bytes = kValueBytes, .locks = kLocks, .chunk_bytes = 464 * 4, .whole_bytes = 1024};
    auto created = sherman::Outcome::kUnavailable;
    while (created == sherman::Outcome::kUnavailable) {
      created = wait_for(sherman::create_tree(*star_.client(0).memory, nodes, geometry));
    }
    EXPECT_TRUE(created == sherman::Outcome::kOk || created == sherman::Outcome::kExists);  // by a lost attempt
    for (auto& m : members_) EXPECT_EQ(wait_for(m->client->join()), sherman::Outcome::kOk);
  }

  void run() {
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      members_[i]->running = scenario_.in_flight;
      for (std::uint32_t lane = 0; lane < scenario_.in_flight; ++lane) scheduler_.spawn(work(i, lane));
    }
    const std::uint64_t all = std::uint64_t{scenario_.clients} * scenario_.operations;
    std::multimap<std::uint64_t, char> events;
    for (std::uint32_t i = 0; i < scenario_.kills; ++i) events.emplace(rng_.below(all), 'k');
    for (std::uint32_t i = 0; i < scenario_.box_restarts; ++i) events.emplace(rng_.below(all), 'b');
    for (std::uint32_t i = 0; i < scenario_.node_restarts; ++i) events.emplace(rng_.below(all), 'n');
    run_until([&] {
      while (!events.empty() && events.begin()->first <= done_) {
        const char what = events.begin()->second;
        events.erase(events.begin());
        if (what == 'k') kill(static_cast<std::uint32_t>(rng_.below(scenario_.clients)));
        if (what == 'b') star_.restart_box(Duration::milliseconds(20));
        if (what == 'n') star_.restart_node(Duration::microseconds(static_cast<std::int64_t>(rng_.below(5000))));
      }
      return std::ranges::all_of(members_, [](auto& m) { return m->running == 0; });
    });
    if (testing::Test::HasFatalFailure()) return;
    look_at_everything();
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.proven()) << "seed " << scenario_.seed << "\n" << verdict.explain();
  }

  std::uint64_t replaced() const { return star_.count(swordbox::Verdict::kAtomicReplaced); }
  std::uint64_t sum(std::uint64_t sherman::ClientCounters::*field) const {
    std::uint64_t n = 0;
    for (const auto& m : members_) n += m->client->counters().*field;
    return n;
  }
  void show() const {
    using C = sherman::ClientCounters;
    fmt::print(
        "seed {}: {} ops in {} us; swaps {} lost {}, replaced {}, splits {}, failures {}, resolved {}, abandoned {}, "
        "recovered {}, torn {}, reconnects {}\n",
        scenario_.seed, history_.events().size(), star_.now.since_start().microseconds(), sum(&C::swaps),
        sum(&C::swaps_lost), replaced(), sum(&C::splits), sum(&C::failures), sum(&C::resolved), sum(&C::abandoned),
        sum(&C::recovered), sum(&C::torn), star_.reconnects());
  }

 private:
  struct Member {
    std::unique_ptr<Client> client;
    std::unique_ptr<rack::ShermanStore> store;
    std::uint32_t running = 0;
    bool dead = false;
  };

  static StarOptions star_options(const Scenario& s) {
    StarOptions o = s.star;
    o.seed = s.seed;
    o.clients = s.clients + 1;  // the last one is the witness
    o.steer = false;
    o.agent = false;
    if (!s.replace) return o;
    o.words.emplace();
    o.words->repair_after = Duration::microseconds(100);
    o.words->give_up_after = Duration::milliseconds(3);
    o.words->flight = Duration::milliseconds(20);
    o.words->ring = 64;
    o.words_at = o.memory_bytes - kLockBytes;
    o.word_bytes = kLockBytes;
    return o;
  }

  void step() {
    scheduler_.run(star_.now);
    const bool moved = star_.round();
    scheduler_.run(star_.now);
    const Time next = std::min(star_.next_deadline(), scheduler_.next_deadline());
    star_.now = moved || next == Time::never() ? star_.now + Star::kRound
                                               : std::max(star_.now + Duration::picoseconds(1), next);
  }
  template <class Until>
  void run_until(Until until) {
    const Time limit = star_.now + Duration::seconds(60);
    while (!until()) {
      ASSERT_LT(star_.now, limit) << "nothing gets on, seed " << scenario_.seed;
      step();
    }
  }
  template <class T>
  T wait_for(Task<T> task) {
    T result{};
    bool done = false;
    scheduler_.spawn(keep(std::move(task), result, done));
    run_until([&] { return done; });
    return result;
  }
  template <class T>
  static Task<void> keep(Task<T> task, T& result, bool& done) {
    result = co_await std::move(task);
    done = true;
  }

  Task<void> put(std::uint32_t who, Key key) {
    std::uint8_t value[kValueBytes];
    const auto id = workload::value_id(who + 1, ++written_);
    workload::fill_value(key, id, value);
    const auto event = history_.begin(who, EventKind::kPut, key, id);
    const Outcome outcome = co_await members_[who]->store->put(key, value);
    history_.end(event, outcome);
  }
  Task<void> erase(std::uint32_t who, Key key) {
    const auto event = history_.begin(who, EventKind::kErase, key);
    const Outcome outcome = co_await members_[who]->store->erase(key);
    history_.end(event, outcome);
  }
  Task<bool> get(std::uint32_t who, Key key) {
    std::uint8_t value[kValueBytes];
    const auto event = history_.begin(who, EventKind::kGet, key);
    const auto result = co_await members_[who]->store->get(key, value);
    workload::ValueId read = 0;
    if (result.outcome == Outcome::kOk) {
      const auto id = workload::verify_value(key, {value, result.length});
      EXPECT_TRUE(id.has_value()) << "seed " << scenario_.seed << ": a value that nobody wrote, key " << key;
      read = id.value_or(0);
    }
    history_.end(event, result.outcome, read);
    co_return result.outcome == Outcome::kOk;
  }
  Task<void> work(std::uint32_t who, std::uint32_t lane) {
    Rng rng = Rng(scenario_.seed).fork("work").fork(who * 100 + lane);
    for (std::uint32_t i = 0; i < scenario_.operations / scenario_.in_flight && !members_[who]->dead; ++i) {
      const Key key = std::min(rng.below(scenario_.keys), rng.below(scenario_.keys)) * 1000;
      const auto what = rng.below(10);
      if (what < 5) {
        co_await put(who, key);
      } else if (what < 6) {
        co_await erase(who, key);
      } else {
        co_await get(who, key);
      }
      ++done_;
    }
    if (!members_[who]->dead) --members_[who]->running;
  }
  void kill(std::uint32_t who) {
    members_[who]->dead = true;
    members_[who]->running = 0;
    star_.kill(who);
  }

  struct InOrder : sherman::ScanSink {
    std::vector<Key> keys;
    void on_pair(Key key, ByteView) override { keys.push_back(key); }
  };
  void look_at_everything() {
    const std::uint32_t witness = scenario_.clients;
    std::vector<Key> there;
    for (Key key = 0; key < scenario_.keys; ++key) {
      if (wait_for(get(witness, key * 1000))) there.push_back(key * 1000);
    }
    InOrder all;
    const auto scanned = wait_for(members_[witness]->client->scan(0, 10'000, all));
    EXPECT_EQ(scanned.outcome, sherman::Outcome::kOk);
    EXPECT_EQ(all.keys, there) << "seed " << scenario_.seed;
    // New keys everywhere: every lock is taken, also of nodes above leaves.
    std::uint8_t value[kValueBytes] = {};
    for (Key key = 0; key < scenario_.keys * 1000; key += 97) {
      EXPECT_EQ(wait_for(members_[witness]->client->put(key + 1, value)), sherman::Outcome::kOk);
    }
    const Time settle = star_.now + Duration::milliseconds(50);
    run_until([&] { return star_.now >= settle; });
    if (star_.box() != nullptr && scenario_.replace) {
      EXPECT_EQ(star_.box()->multiplexer()->open(), 0u) << "operations are never done, seed " << scenario_.seed;
    }
    for (std::uint64_t i = 0; i < kLocks; ++i) {
      const auto at = star_.memory().subspan(star_.memory().size() - kLockBytes + 8 * i, 8);
      EXPECT_EQ(load_le<std::uint64_t>(at.data()), 0u) << "lock " << i << " is held for ever, seed " << scenario_.seed;
    }
    EXPECT_EQ(sum(&sherman::ClientCounters::damaged), 0u) << "seed " << scenario_.seed;
  }

  Scenario scenario_;
  Rng rng_;
  remote::Scheduler scheduler_;
  Star star_;
  std::vector<std::unique_ptr<Member>> members_;
  History history_;
  std::uint64_t written_ = 0;
  std::uint64_t done_ = 0;
};

struct Totals {
  std::uint64_t replaced = 0;
  std::uint64_t recovered = 0;
  std::uint64_t swaps_lost = 0;
  std::uint64_t failures = 0;
  bool enough = true;  // seeds for something of every kind to have happened
};

// More: SLUICE_SEEDS=500 SLUICE_SEED=1 SLUICE_SHOW=1
template <class Change>
Totals over_seeds(std::uint64_t usual, Change change) {
  const std::uint64_t first = first_seed();
  const std::uint64_t count = seeds(usual);
  Totals totals{.enough = count >= usual};
  for (std::uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    Scenario s{.seed = seed};
    change(s);
    ShermanThroughBox run(s);
    run.run();
    if (from_environment("SLUICE_SHOW", 0) != 0 || testing::Test::HasFailure()) run.show();
    totals.replaced += run.replaced();
    totals.recovered += run.sum(&sherman::ClientCounters::recovered);
    totals.swaps_lost += run.sum(&sherman::ClientCounters::swaps_lost);
    totals.failures += run.sum(&sherman::ClientCounters::failures);
  }
  return totals;
}

TEST(ShermanThroughBox, WithoutReplacementItIsLinearizable) {
  const Totals t = over_seeds(8, [](Scenario& s) { s.replace = false; });
  EXPECT_EQ(t.replaced, 0u);
  EXPECT_TRUE(t.swaps_lost > 0 || !t.enough) << t.swaps_lost;
}

TEST(ShermanThroughBox, WithReplacementItIsLinearizableToo) {
  const Totals t = over_seeds(8, [](Scenario& s) { s.keys = s.seed % 2 == 0 ? 3 : 30; });
  EXPECT_TRUE(t.replaced > 1000 || !t.enough) << t.replaced;
  EXPECT_EQ(t.recovered, 0u);
}

TEST(ShermanThroughBox, PacketsMayBeLostOnEverySide) {
  const Totals t = over_seeds(8, [](Scenario& s) {
    s.star.client_rate = 5'000;
    s.star.server_rate = 5'000;
  });
  EXPECT_TRUE(t.replaced > 1000 || !t.enough) << t.replaced;
}

TEST(ShermanThroughBox, TheLocksOfTheDeadComeBack) {
  const Totals t = over_seeds(12, [](Scenario& s) {
    s.kills = 4;
    s.keys = 6;
    s.star.client_rate = s.seed % 2 == 0 ? 2'000 : 0;
  });
  EXPECT_TRUE(t.recovered > 0 || !t.enough) << t.recovered;
}

TEST(ShermanThroughBox, BoxesAndConnectionsMayBeLost) {
  const Totals t = over_seeds(12, [](Scenario& s) {
    s.box_restarts = static_cast<std::uint32_t>(s.seed % 3);
    s.node_restarts = static_cast<std::uint32_t>(s.seed % 2 + 1);
    s.kills = s.seed % 4 == 0 ? 2 : 0;
  });
  EXPECT_TRUE(t.failures > 0 || !t.enough) << t.failures;
}

}  // namespace
}  // namespace sluice::scenario
