// Sherman under an adversary: any interleaving, torn reads and writes, lost connections, stragglers and dying clients, all from one
// seed. What its clients see must be linearizable per key, no lock may stay, and a scan must agree with what is there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/effort_test.h"
#include "rack/clients/sherman_store.h"
#include "sherman/test_world.h"
#include "workload/linearizability.h"
#include "workload/recorder.h"

namespace sluice {
namespace {

using remote::Task;
using sherman::World;
using sherman::WorldConfig;
using workload::EventKind;
using workload::History;
using workload::Key;
using workload::Outcome;

constexpr std::size_t kValueBytes = 40;

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t clients = 16;
  std::uint32_t lanes = 2;        // coroutines a client
  std::uint32_t operations = 30;  // a coroutine
  std::uint64_t keys = 40;
  std::uint32_t disconnect_per_million = 0;
  bool stragglers = false;
  bool torn = false;
  std::uint32_t clients_killed = 0;
  bool impatient = false;  // operations give up after a few round trips
  bool far = false;        // values in blocks of their own
  bool recover = false;    // the dead, by one or two others that go on meanwhile, and audit themselves now and then
  bool leave = false;      // some, when they have done all they had to do
  Duration lease = Duration::microseconds(3000);
};

WorldConfig world_config(const Scenario& s) {
  WorldConfig c;
  c.local = {.mode = remote::LocalMode::kSeeded,
             .seed = s.seed,
             .piece_bytes = s.torn ? 24u : 0u,
             .disconnect_per_million = s.disconnect_per_million,
             .straggler_lifetime = s.stragglers ? Duration::microseconds(40) : Duration{},
             .stragglers_in_order = true};
  c.nodes = static_cast<std::uint32_t>(s.seed % 3 + 1);
  c.geometry = {.node_bytes = 464,  // six slots
                .value_bytes = kValueBytes,
                .locks = 8,
                .chunk_bytes = 464 * 4,
                .whole_bytes = s.torn ? 24u : 4096u};
  if (s.far) {
    c.geometry.value_bytes = sherman::kFarBytes;
    c.geometry.long_bytes = kValueBytes;
  }
  c.client = {.cached_nodes = 2 + s.seed % 40,
              .timeout = s.impatient ? Duration::microseconds(60) : Duration::milliseconds(200),
              .lease = s.lease,
              .flight = Duration::microseconds(300),
              .backoff_first = Duration::nanoseconds(500),
              .backoff_most = Duration::microseconds(20),
              .hand_overs = static_cast<std::uint32_t>(s.seed % 5),
              .torn_reads = 4,
              .scan_ahead = static_cast<std::uint32_t>(1 + s.seed % 4)};
  return c;
}

class ShermanUnderFault {
 public:
  explicit ShermanUnderFault(const Scenario& scenario)
      : scenario_(scenario), world_(world_config(scenario)), rng_(Rng(scenario.seed).fork("scenario")) {
    set_check_context(fmt::format("seed {}", scenario.seed));
  }

  void run() {
    auto patient = world_.config_.client;
    patient.timeout = Duration::milliseconds(500);
    auto& witness = world_.add_client(patient);
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      // Joining may take an impatient client several attempts; here all begin as members.
      auto& member = world_.add_client();
      stores_.push_back(std::make_unique<rack::ShermanStore>(*member.client));
    }
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      for (std::uint32_t lane = 0; lane < scenario_.lanes; ++lane) world_.scheduler.spawn(client(i, lane));
    }
    running_.assign(scenario_.clients, scenario_.lanes);
    const std::uint64_t steps = std::uint64_t{scenario_.clients} * scenario_.lanes * scenario_.operations * 12;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> deaths;
    for (std::uint32_t i = 0; i < scenario_.clients_killed; ++i) {
      deaths.push_back({rng_.below(steps), static_cast<std::uint32_t>(rng_.below(scenario_.clients))});
    }
    std::uint64_t step = 0;
    world_.run_until([&] {
      for (const auto& [when, who] : deaths) {
        if (step == when) kill(who);
      }
      ++step;
      return std::ranges::all_of(running_, [](auto n) { return n == 0; });
    });
    if (testing::Test::HasFatalFailure()) return;
    inspect(witness);
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.linearizable()) << "seed " << scenario_.seed << "\n" << verdict.explain();
    keys_judged += verdict.keys;
    keys_undecided += verdict.undecided;
  }

  World& world() { return world_; }
  std::uint64_t with(Outcome outcome) const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(history_.events(), [=](auto& e) { return e.outcome == outcome; }));
  }
  // Over all seeds of a test.
  static inline std::uint64_t keys_judged = 0;
  static inline std::uint64_t keys_undecided = 0;
  static inline std::uint64_t left = 0;
  static inline sherman::ClientCounters total;

  void account() {
    sherman::ClientCounters sum;
    for (const auto& m : world_.members) {
      const auto& c = m->client->counters();
      for (auto* const s : {&sum, &total}) {
        s->torn += c.torn;
        s->hand_overs += c.hand_overs;
        s->combined += c.combined;
        s->splits += c.splits;
        s->failures += c.failures;
        s->resolved += c.resolved;
        s->abandoned += c.abandoned;
        s->recovered += c.recovered;
        s->redone += c.redone;
        s->damaged += c.damaged;
        s->locked_reads += c.locked_reads;
        s->nodes_doubtful += c.nodes_doubtful;
        s->far_reads += c.far_reads;
        s->blocks_doubtful += c.blocks_doubtful;
        s->taken_over += c.taken_over;
        s->reclaimed += c.reclaimed;
      }
    }
    if (std::getenv("SLUICE_SHOW") == nullptr) return;
    fmt::print(
        "seed {}: {} ops, ok {}, unknown {}, unavailable {}; torn {}, handed {}, splits {}, failures {}, resolved {}, "
        "abandoned {}, recovered {}, redone {}, locked reads {}, nodes doubtful {}, blocks doubtful {}, taken over {}, "
        "reclaimed {}, ends at {} us\n",
        scenario_.seed, history_.events().size(), with(Outcome::kOk), with(Outcome::kUnknown),
        with(Outcome::kUnavailable), sum.torn, sum.hand_overs, sum.splits, sum.failures, sum.resolved, sum.abandoned,
        sum.recovered, sum.redone, sum.locked_reads, sum.nodes_doubtful, sum.blocks_doubtful, sum.taken_over,
        sum.reclaimed, world_.now.since_start().microseconds());
  }

 private:
  void kill(std::uint32_t who) {
    auto& member = *world_.members.at(who + 1);
    if (member.dead || running_[who] == 0) return;
    member.kill();
    running_[who] = 0;
    if (!scenario_.recover) return;
    // One of them may be dead, or die.
    for (std::uint64_t i = rng_.below(3); i > 0; --i) {
      const auto by = static_cast<std::uint32_t>(rng_.below(scenario_.clients));
      if (!world_.members.at(by + 1)->dead) world_.scheduler.spawn(recover(by, member.client->number()));
    }
  }

  Task<void> recover(std::uint32_t by, std::uint32_t dead) {
    ++recovering_[by];
    const auto outcome = co_await world_.members.at(by + 1)->client->recover(dead);
    EXPECT_TRUE(outcome == sherman::Outcome::kOk || outcome == sherman::Outcome::kUnavailable);
    --recovering_[by];
  }

  Task<void> client(std::uint32_t index, std::uint32_t lane) {
    const std::uint32_t writer = index * scenario_.lanes + lane + 1;
    workload::Recorder store(*stores_[index], history_, writer);
    Rng rng = rng_.fork("client").fork(writer);
    std::vector<std::uint8_t> value(kValueBytes);
    World::Member& member = *world_.members[index + 1];
    for (std::uint32_t i = 0; i < scenario_.operations && !member.dead; ++i) {
      const Key key = std::min(rng.below(scenario_.keys), rng.below(scenario_.keys)) * 1000;
      const auto id = workload::value_id(writer, i + 1);
      workload::fill_value(key, id, value);
      switch (rng.below(10)) {
        case 0:
        case 1: co_await store.erase(key); break;
        case 2: co_await store.insert(key, value); break;
        case 3:
        case 4:
        case 5:
        case 6: co_await store.put(key, value); break;
        case 7: {
          if (i % 3 == 0) co_await scan(*member.client, writer, key);
          if (i % 5 == 1 && scenario_.recover) co_await member.client->audit();
          break;
        }
        default: co_await get(store, key);
      }
    }
    if (scenario_.leave && running_[index] == 1 && recovering_[index] == 0 && !member.dead && rng.below(2) == 0) {
      co_await member.client->leave();
      member.dead = true;  // or may be taken for dead
      ++left;
      running_[index] = 0;
    } else if (!member.dead) {
      --running_[index];
    }
  }

  // The number of the value read; 0: none.
  Task<workload::ValueId> get(workload::Recorder& store, Key key) {
    std::vector<std::uint8_t> into(kValueBytes);
    const auto result = co_await store.get(key, into);
    EXPECT_EQ(store.wrong(), 0u) << "seed " << scenario_.seed << ": what was read of key " << key << " is no value";
    if (result.outcome != Outcome::kOk) co_return 0;
    co_return workload::verify_value(key, ByteView(into).first(result.length)).value_or(0);
  }

  struct InOrder : sherman::ScanSink {
    std::vector<std::pair<Key, workload::ValueId>> pairs;
    std::uint64_t wrong = 0;
    void on_pair(Key key, ByteView value) override {
      const auto id = workload::verify_value(key, value);
      wrong += !id || (!pairs.empty() && pairs.back().first >= key);
      pairs.push_back({key, id.value_or(0)});
    }
  };
  // A scan is a get of every key that it passes.
  Task<void> scan(sherman::Client& client, std::uint32_t writer, Key first) {
    std::vector<History::Id> events;
    for (Key key = first; key < scenario_.keys * 1000; key += 1000) {
      events.push_back(history_.begin(writer, EventKind::kGet, key));
    }
    InOrder found;
    const auto result = co_await client.scan(first, 8, found);
    EXPECT_EQ(found.wrong, 0u) << "seed " << scenario_.seed;
    EXPECT_EQ(result.count, found.pairs.size());
    const bool all = result.outcome == sherman::Outcome::kOk && result.count < 8;
    auto at = found.pairs.begin();
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (at != found.pairs.end() && at->first == first + i * 1000) {
        history_.end(events[i], Outcome::kOk, at->second);
        ++at;
      } else {
        history_.end(events[i], all || at != found.pairs.end() ? Outcome::kNotFound : Outcome::kUnavailable);
      }
    }
    EXPECT_EQ(at, found.pairs.end()) << "seed " << scenario_.seed << ": keys that nobody put";
  }

  // One client that lives looks at everything, and writes everywhere.
  void inspect(World::Member& witness) {
    rack::ShermanStore unrecorded(*witness.client);
    workload::Recorder store(unrecorded, history_, 1'000'000);
    std::vector<std::pair<Key, workload::ValueId>> there;
    for (Key key = 0; key < scenario_.keys; ++key) {
      const auto read = world_.wait_for(get(store, key * 1000));
      if (read != 0) there.push_back({key * 1000, read});
    }
    InOrder all;
    const auto scanned = world_.wait_for(witness.client->scan(0, 100'000, all));
    EXPECT_EQ(scanned.outcome, sherman::Outcome::kOk) << "seed " << scenario_.seed;
    EXPECT_EQ(all.wrong, 0u);
    EXPECT_EQ(all.pairs, there) << "seed " << scenario_.seed;
    std::vector<std::uint8_t> value(kValueBytes);
    std::uint64_t failed = 0;
    for (Key key = 0; key < scenario_.keys * 1000; key += 97) {
      failed += world_.wait_for(witness.client->put(key + 1, value)) == sherman::Outcome::kUnavailable;
    }
    EXPECT_EQ(failed, 0u) << "seed " << scenario_.seed << ": a lock is held for ever";
    // Its own last chance to leave one is an abandoned one: let every lease run out and write once more.
    if (world_.locks_held() != 0) {
      world_.run_for(scenario_.lease * 3);
      for (Key key = 0; key < scenario_.keys * 1000; key += 61) {
        world_.wait_for(witness.client->put(key + 1, value));
      }
    }
    world_.run_for(scenario_.lease * 3);  // separators may be on their way
    if (scenario_.disconnect_per_million == 0) {
      EXPECT_EQ(world_.locks_held(), 0u) << "seed " << scenario_.seed;
    }
    EXPECT_EQ(witness.client->counters().damaged, 0u) << "seed " << scenario_.seed;
    account_for_memory(witness);
  }

  // Of the dead, each recovered by the witness or by another that lives, nothing is left: no lock, no piece of memory that nobody can use.
  void account_for_memory(World::Member& witness) {
    for (const auto& member : world_.members) {
      if (!member->dead) continue;
      sherman::Outcome recovered = sherman::Outcome::kUnavailable;
      for (int i = 0; i < 50 && recovered == sherman::Outcome::kUnavailable; ++i) {
        recovered = world_.wait_for(witness.client->recover(member->client->number()));
      }
      EXPECT_EQ(recovered, sherman::Outcome::kOk) << "seed " << scenario_.seed;
    }
    for (int i = 0; i < 50 && world_.left_behind() != 0; ++i) world_.wait_for(witness.client->audit());
    EXPECT_EQ(world_.left_behind(), 0u) << "seed " << scenario_.seed;
    world_.expect_no_memory_lost();
  }

  Scenario scenario_;
  World world_;
  Rng rng_;
  std::vector<std::unique_ptr<rack::ShermanStore>> stores_;
  History history_;
  std::vector<std::uint32_t> running_;
  std::map<std::uint32_t, std::uint32_t> recovering_;  // by whom
};

// More seeds: SLUICE_SEEDS=1000 sherman_history_test
class ShermanHistory : public testing::Test {
 protected:
  template <class Change>
  void over_seeds(std::uint64_t usual, Change change) {
    for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(usual); ++seed) {
      Scenario s{.seed = seed};
      change(s);
      ShermanUnderFault run(s);
      run.run();
      run.account();
      if (HasFailure()) FAIL() << "seed " << seed;
    }
  }
  void SetUp() override {
    ShermanUnderFault::keys_judged = ShermanUnderFault::keys_undecided = 0;
    ShermanUnderFault::total = {};
  }
  void TearDown() override {
    EXPECT_LE(ShermanUnderFault::keys_undecided * 100, ShermanUnderFault::keys_judged) << "too little was judged whole";
    EXPECT_EQ(ShermanUnderFault::total.damaged, 0u);
    EXPECT_GT(ShermanUnderFault::total.splits, 0u);
  }
  const sherman::ClientCounters& total() const { return ShermanUnderFault::total; }
};

TEST_F(ShermanHistory, IsLinearizableWithoutFaults) {
  over_seeds(40, [](Scenario&) {});
  EXPECT_TRUE(total().hand_overs > 0 || seeds(40) < 40);
  EXPECT_EQ(total().recovered, 0u) << "somebody alive was robbed";
}

TEST_F(ShermanHistory, IsLinearizableWhenReadsAndWritesAreTorn) {
  over_seeds(40, [](Scenario& s) {
    s.torn = true;
    s.keys = s.seed % 2 == 0 ? 4 : 40;
  });
  EXPECT_TRUE(total().torn > 0 || seeds(40) < 40);
}

TEST_F(ShermanHistory, IsLinearizableWhenConnectionsBreakAndStragglersArrive) {
  over_seeds(40, [](Scenario& s) {
    s.disconnect_per_million = 4000;
    s.stragglers = s.seed % 4 != 0;
    s.torn = s.seed % 3 == 0;
  });
  EXPECT_TRUE(total().resolved > 0 || seeds(40) < 40);
}

TEST_F(ShermanHistory, IsLinearizableAndFreesEveryLockWhenClientsDie) {
  over_seeds(40, [](Scenario& s) {
    s.clients_killed = 10;
    s.torn = s.seed % 2 == 0;
    s.stragglers = s.seed % 4 == 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 2000 : 0;
  });
  EXPECT_TRUE(total().recovered > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().redone > 0 || seeds(40) < 40);
}

TEST_F(ShermanHistory, IsLinearizableWithLongValuesWhateverHappens) {
  over_seeds(40, [](Scenario& s) {
    s.far = true;
    s.keys = s.seed % 2 == 0 ? 4 : 40;
    s.torn = s.seed % 2 == 0;
    s.stragglers = s.seed % 3 == 0;
    s.disconnect_per_million = s.seed % 3 == 1 ? 3000 : 0;
    s.clients_killed = s.seed % 5 == 0 ? 6 : 0;
    s.lease = Duration::microseconds(s.seed % 7 == 0 ? 400 : 3000);
  });
  EXPECT_GT(total().far_reads, 0u);
}

// Memory changes hands, under way and at the end: what is used twice would be read as what it is not.
TEST_F(ShermanHistory, IsLinearizableAndLosesNoMemoryWhenTheDeadAreRecoveredMeanwhile) {
  over_seeds(80, [](Scenario& s) {
    s.recover = true;
    s.leave = s.seed % 2 == 1;
    s.far = s.seed % 3 != 0;
    s.keys = s.seed % 2 == 0 ? 6 : 40;
    s.clients_killed = static_cast<std::uint32_t>(s.seed % 11);
    s.torn = s.seed % 4 < 2;
    s.stragglers = s.seed % 5 < 2;
    s.disconnect_per_million = s.seed % 7 < 3 ? 3000 : s.seed % 7 == 3 ? 15'000 : 0;
    s.lease = Duration::microseconds(s.seed % 3 == 0 ? 400 : 1500);
    s.lanes = static_cast<std::uint32_t>(1 + s.seed % 5);
    s.impatient = s.seed % 9 == 0;
  });
  EXPECT_GT(total().taken_over, 0u);
  EXPECT_GT(total().reclaimed, 0u);
  EXPECT_GT(ShermanUnderFault::left, 0u);
}

// Leases so short that the living lose them, too.
TEST_F(ShermanHistory, IsLinearizableWhenLeasesRunOutUnderTheLiving) {
  over_seeds(40, [](Scenario& s) {
    s.lease = Duration::microseconds(400);
    s.disconnect_per_million = 10'000;
    s.stragglers = true;
    s.torn = s.seed % 2 == 0;
    s.clients_killed = s.seed % 3 == 0 ? 4 : 0;
  });
  EXPECT_TRUE(total().abandoned > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().recovered > 0 || seeds(40) < 40);
}

TEST_F(ShermanHistory, IsLinearizableOnOneHotKeyWhenClientsGiveUpEarly) {
  over_seeds(40, [](Scenario& s) {
    s.keys = 1 + s.seed % 3;
    s.impatient = true;
    s.disconnect_per_million = 5'000;
    s.stragglers = true;
    s.operations = 40;
  });
}

}  // namespace
}  // namespace sluice
