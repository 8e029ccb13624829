// Clover under an adversary: any interleaving, lost connections, stragglers, dying clients, memory nodes and metadata server, all
// from one seed. What 64 clients see must be linearizable per key, and no memory may be lost for good.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/effort_test.h"
#include "clover/kept_journal.h"
#include "clover/test_world.h"
#include "rack/clients/clover_store.h"
#include "workload/linearizability.h"
#include "workload/recorder.h"

namespace sluice {
namespace {

using clover::World;
using clover::WorldConfig;
using remote::Task;
using workload::History;
using workload::Key;
using workload::Outcome;

constexpr std::size_t kValueBytes = 40;

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t replication = 1;
  std::uint32_t clients = 64;
  std::uint32_t operations = 60;  // a client
  std::uint64_t keys = 8;
  std::uint32_t disconnect_per_million = 0;
  bool stragglers = false;
  bool torn = false;
  std::uint32_t clients_killed = 0;
  bool node_killed = false;
  std::uint32_t restarts = 0;     // of memory nodes, one after the other, each when the one before is a replica again
  std::uint64_t away_us = 1000;   // at most, before they start anew
  bool breaks_others = false;     // with each of them half of all connections to the other nodes break
  std::uint32_t clients_cut = 0;  // from one memory node, which lives on
  bool taken_back = false;        // nodes that were left out although they live; the cut ones reach them again
  bool impatient = false;         // operations give up after a few round trips
  bool small_memory = true;
  std::uint32_t server_restarts = 0;  // of the metadata server, from what its journal tells
  bool clock_anew = false;            // each of them counts time from its own start
  std::uint32_t at_once = 1;          // operations of a client
  bool slow = false;                  // some that it asks of memory take long, on their way or back
};

// A metadata server in another process than the first, whose time began later.
class LaterServer : public remote::MessageService {
 public:
  LaterServer(clover::MetadataServer& server, Time born) : server_(server), born_(born) {}
  std::size_t handle(Time now, ByteView request, MutableBytes response) override {
    return server_.handle(Time() + (now - born_), request, response);
  }

 private:
  clover::MetadataServer& server_;
  Time born_;
};

WorldConfig world_config(const Scenario& s) {
  WorldConfig c;
  c.local = {.mode = remote::LocalMode::kSeeded,
             .seed = s.seed,
             .piece_bytes = s.torn ? 24u : 0u,
             .disconnect_per_million = s.disconnect_per_million,
             .straggler_lifetime = s.stragglers ? Duration::microseconds(40) : Duration{}};
  c.nodes = 3;
  c.replication = s.replication;
  c.value_bytes = kValueBytes;
  // Slots of 64 bytes: small memory makes them go round several times.
  c.node_memory = s.small_memory ? 64 * 700 * s.replication : 1u << 22;
  c.lifetime = Duration::microseconds(150);
  c.flight = Duration::microseconds(150);
  c.client = {.cursors = 64,
              .timeout = s.impatient ? Duration::microseconds(8) : Duration::milliseconds(2),
              .space_timeout = Duration::milliseconds(20),
              .backoff_first = Duration::nanoseconds(500),
              .backoff_most = Duration::microseconds(20),
              .suspect_after = Duration::microseconds(60),
              .slots_wanted = 8,
              .links_per_report = 8,
              .steps_before_lookup = 6};
  return c;
}

class CloverUnderFault {
 public:
  explicit CloverUnderFault(const Scenario& scenario)
      : scenario_(scenario), world_(world_config(scenario)), rng_(Rng(scenario.seed).fork("scenario")) {
    set_check_context(fmt::format("seed {}", scenario.seed));
    if (scenario.server_restarts != 0) {
      world_.server = std::make_unique<clover::MetadataServer>(world_.server_config, &journal_);
      journal_.append(world_.server->state(world_.now));
    }
    homes_ = world_.server_config.homes;
    life_ = homes_.size();
    world_.server->slots().on_free([this](clover::NodePointer node) { poison(node); });
  }

  void run() {
    // The witness does nothing until the end, when it looks at everything and does what the dead have left undone.
    auto& witness = world_.add_client();
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      auto& member = world_.add_client();
      stores_.push_back(std::make_unique<rack::CloverStore>(*member.client));
      if (scenario_.slow) slow_down(member, rng_.fork("slow").fork(i));
      busy_.push_back(scenario_.at_once);
      for (std::uint32_t lane = 0; lane < scenario_.at_once; ++lane) world_.scheduler.spawn(client(i, lane));
      running_ += scenario_.at_once;
    }
    const std::uint64_t steps = std::uint64_t{scenario_.clients} * scenario_.operations * 12;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> deaths;
    for (std::uint32_t i = 0; i < scenario_.clients_killed; ++i) {
      deaths.push_back({rng_.below(steps), static_cast<std::uint32_t>(rng_.below(scenario_.clients))});
    }
    const std::uint64_t cut_at = scenario_.clients_cut != 0 ? rng_.below(steps) : ~std::uint64_t{0};
    const std::uint64_t node_death = scenario_.node_killed ? rng_.below(steps) : ~std::uint64_t{0};
    if (scenario_.restarts != 0 || scenario_.taken_back) world_.start_repairing();
    if (scenario_.restarts != 0) {
      restarting_ = true;
      ++running_;
      world_.scheduler.spawn(restart_nodes());
    }
    std::set<std::uint64_t> server_deaths;
    for (std::uint32_t i = 0; i < scenario_.server_restarts; ++i) server_deaths.insert(rng_.below(steps));
    std::uint64_t step = 0;
    world_.run_until([&] {
      for (const auto& [when, who] : deaths) {
        if (step == when) kill(who);
      }
      if (server_deaths.contains(step)) restart_server();
      if (step == node_death) kill_node();
      if (step == cut_at) cut_some();
      if (scenario_.taken_back && step == cut_at + steps / 8) mend_all();
      ++step;
      return running_ == 0;
    });
    if (testing::Test::HasFatalFailure()) return;
    for (const auto& member : world_.members)
      EXPECT_LT(member->slow->longest_flight(), world_.config_.flight) << "the transport's promise was not kept";
    restored_ += world_.server->counters().restored;
    let_go_ += world_.server->counters().let_go;
    clean_up(witness);
    if (scenario_.restarts != 0 || scenario_.taken_back) check_replicas();
    judge();
  }

  const History& history() const { return history_; }
  std::uint64_t foreign() const {
    std::uint64_t sum = 0;
    for (const auto& m : world_.members) sum += m->client->counters().foreign;
    return sum;
  }
  std::uint64_t with(Outcome outcome) const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(history_.events(), [=](auto& e) { return e.outcome == outcome; }));
  }
  // Over all seeds: of how many keys the conditions of inserts and erases took too long to judge.
  static inline std::uint64_t keys_judged = 0;
  static inline std::uint64_t keys_undecided = 0;
  static inline std::uint64_t restored_ = 0;
  static inline std::uint64_t let_go_ = 0;

  World& world() { return world_; }
  void show() const {
    clover::ClientCounters sum;
    for (const auto& m : world_.members) {
      const auto& c = m->client->counters();
      sum.swaps += c.swaps;
      sum.swaps_lost += c.swaps_lost;
      sum.walks += c.walks;
      sum.late += c.late;
      sum.foreign += c.foreign;
      sum.failures += c.failures;
      sum.orphans += c.orphans;
      sum.work += c.work;
      sum.lookups += c.lookups;
    }
    const auto& server = world_.server->counters();
    fmt::print(
        "seed {} x{}: {} ops, ok {}, unknown {}, unavailable {}, no space {}; swaps {} lost {}, walks {}, lookups {}, "
        "late {}, foreign {}, "
        "failures {}, orphans {}, work {}; retired {}, sealed {}, expired {}, views {}, ends at {} us\n",
        scenario_.seed, scenario_.replication, history_.events().size(), with(Outcome::kOk), with(Outcome::kUnknown),
        with(Outcome::kUnavailable), with(Outcome::kNoSpace), sum.swaps, sum.swaps_lost, sum.walks, sum.lookups,
        sum.late, sum.foreign, sum.failures, server.orphans, sum.work, server.retired, server.sealed,
        server.expired_clients, server.views, world_.now.since_start().microseconds());
  }

 private:
  void poison(clover::NodePointer node) {
    const auto& volume = world_.server->volumes()[node.volume()];
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (!world_.fabric.alive(volume.replicas[j].node) || !volume.is_live(j)) continue;
      const auto at = volume.locate(node, j);
      if (world_.memory.at(at.node.value).base.key != at.key) continue;  // it has started anew and is not back yet
      const auto bytes = world_.fabric.region_bytes(at);
      const auto base = world_.memory.at(at.node.value).base.address;
      std::ranges::fill(bytes.subspan(at.address - base, clover::NodeLayout(kValueBytes).node_bytes()), 0xDB);
    }
  }

  std::uint64_t restored() const { return restored_before_ + world_.server->counters().restored; }
  // The one before has answered for the last time when its journal is read; sometimes the journal begins again with all that is known. Its cursors' lifetime is
  // another, as a user may set it.
  void restart_server() {
    Rng rng = rng_.fork("server").fork(graves_.size());
    auto config = world_.server_config;
    config.cursor_lifetime = config.cursor_lifetime * static_cast<std::int64_t>(2 + rng.below(3)) / 2;
    auto again = std::make_unique<clover::MetadataServer>(config, &journal_);
    for (auto& m : world_.members) {
      if (!m->dead) m->channel->disconnect();
    }
    const auto records = journal_.records;
    for (const auto& record : records) ASSERT_TRUE(again->replay(record)) << "seed " << scenario_.seed;
    if (scenario_.clock_anew) begin_clock();
    again->restart(world_.server_now());
    if (rng.below(2) == 0) journal_.records = {again->state(world_.server_now())};
    again->slots().on_free([this](clover::NodePointer node) { poison(node); });
    restored_before_ = restored() - again->counters().restored;  // which counts what it was told of again
    if (world_.repairer) {
      world_.repairer->stop();
      world_.repair_memory->kill();
      old_repairers_.push_back(std::move(world_.repairer));
      old_memories_.push_back(std::move(world_.repair_memory));
    }
    graves_.push_back(std::move(world_.server));
    world_.server = std::move(again);
    services_.push_back(std::make_unique<LaterServer>(*world_.server, world_.server_born));
    for (auto& m : world_.members) {
      if (!m->dead) m->channel->set_service(services_.back().get());
    }
    if (old_repairers_.empty()) return;
    world_.repair_memory = std::make_unique<remote::LocalMemory>(*world_.server_scheduler, world_.fabric);
    world_.repairer =
        std::make_unique<clover::Repairer>(*world_.repair_memory, *world_.server, world_.config_.lifetime / 8);
    for (std::uint32_t i = 0; i < homes_.size(); ++i) {
      if (i != away_) world_.repairer->saw(world_.server_now(), homes_[i]);
    }
    world_.server_scheduler->spawn(world_.repairer->run());
  }
  // What the process before had under way never goes on.
  void begin_clock() {
    world_.server_born = world_.now;
    old_schedulers_.push_back(std::exchange(world_.server_scheduler, std::make_unique<remote::Scheduler>()));
  }

  // Within what is relied on: what is written takes effect within max_flight of its submission. Reads, and answers, may take longer.
  void slow_down(World::Member& member, Rng rng) {
    auto draw = [rng](Duration most) mutable {
      if (rng.below(40) != 0) return Duration{};
      return Duration::nanoseconds(
          static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most.nanoseconds()))));
    };
    const Duration flight = world_.config_.flight / 2;
    const Duration lifetimes = world_.config_.lifetime * 3;
    member.slow->plan = [=](const remote::Operation& operation) mutable {
      const bool reads = operation.kind == remote::OpKind::kRead;
      return remote::SlowMemory::Delay{.before = draw(reads ? lifetimes : flight), .after = draw(lifetimes)};
    };
  }

  void kill(std::uint32_t who) {
    auto& member = *world_.members.at(who + 1);
    if (member.dead || busy_[who] == 0) return;
    member.kill();
    running_ -= busy_[who];
  }
  void kill_node() { world_.fabric.kill_node(remote::NodeId(static_cast<std::uint32_t>(rng_.below(3)))); }

  // What is under way there may take effect later.
  void break_connections(Rng& rng, std::uint32_t but) {
    for (const auto& member : world_.members) {
      for (std::uint32_t node = 0; node < 3; ++node) {
        if (node != but && !member->dead && rng.below(2) == 0) member->memory->disconnect(remote::NodeId(node));
      }
    }
  }

  // Memory nodes die and come back blank while clients work.
  Task<void> restart_nodes() {
    Rng rng = rng_.fork("restarts");
    const auto some_time = [&rng](std::uint64_t most_us) {
      return Duration::nanoseconds(static_cast<std::int64_t>(rng.below(most_us * 1000)));
    };
    for (std::uint32_t i = 0; i < scenario_.restarts; ++i) {
      // Soon: what the one that has just come back lacks must be missed.
      co_await world_.scheduler.sleep_for(some_time(rng.below(2) == 0 ? 10 : 300));
      check_replicas();
      const auto node = static_cast<std::uint32_t>(rng.below(3));
      if (scenario_.breaks_others) break_connections(rng, node);
      away_ = node;
      world_.kill_node(node);
      co_await world_.scheduler.sleep_for(some_time(scenario_.away_us));
      world_.restart_node(node);
      homes_[node] = {world_.memory[node], ++life_};
      away_ = kNobody;
      // The node has a replica of so many volumes.
      const auto wanted = (i + 1) * scenario_.replication;
      const Time patience = world_.now + Duration::milliseconds(20);
      while (restored() < wanted && world_.now < patience)
        co_await world_.scheduler.sleep_for(Duration::microseconds(5));
      EXPECT_GE(restored(), wanted) << "seed " << scenario_.seed << ": node " << node << " is no replica again; "
                                    << world_.server->joining() << " joining, " << world_.server->missing()
                                    << " missing";
    }
    restarting_ = false;
    --running_;
  }

  // Every replica that counts has every live version, and every link to a version that the server has been told of.
  void check_replicas() {
    const clover::NodeLayout layout(kValueBytes);
    auto& slots = world_.server->slots();
    if (world_.server->joining() != 0) return;
    for (std::uint32_t v = 0; v < world_.server->volumes().size(); ++v) {
      const auto& volume = world_.server->volumes()[v];
      const auto bytes_of = [&](clover::NodePointer node, std::size_t j) {
        const auto at = volume.locate(node, j);
        const auto base = world_.memory.at(at.node.value).base.address;
        return world_.fabric.region_bytes(at).subspan(at.address - base, layout.node_bytes());
      };
      for (std::size_t index = 0; index < slots.touched(v); ++index) {
        const auto there = clover::NodePointer::make(v, 1, volume.base + std::uint64_t{index} * layout.slot_bytes());
        const auto first = clover::parse_node(layout, bytes_of(there, volume.primary()));
        const clover::NodePointer node = first.self(volume.base);
        const auto* const slot = node.address() == there.address() && node.volume() == v ? slots.find(node) : nullptr;
        if (slot == nullptr || slot->state != clover::SlotState::kLive) continue;
        const auto* const next = slots.find(clover::NodePointer{first.next}.as(clover::NodeKind::kValue));
        const bool told = next != nullptr && (next->state == clover::SlotState::kLive || next->is_spent());
        for (std::size_t j = 0; j < volume.count; ++j) {
          if (!volume.is_live(j) || !world_.fabric.alive(volume.replicas[j].node)) continue;
          const auto one = bytes_of(node, volume.primary());
          const auto other = bytes_of(node, j);
          const std::size_t from = told ? 0 : clover::kKeyOffset;
          EXPECT_TRUE(std::ranges::equal(one.subspan(from), other.subspan(from)))
              << "seed " << scenario_.seed << ": replica " << j << " of volume " << v << " lacks slot " << index;
        }
      }
    }
  }

  void cut_some() {
    const remote::NodeId node(static_cast<std::uint32_t>(rng_.below(3)));
    for (std::uint32_t i = 0; i < scenario_.clients_cut; ++i) {
      auto& member = *world_.members.at(rng_.below(scenario_.clients) + 1);
      if (!member.dead) member.memory->cut(node);
    }
  }

  void mend_all() {
    for (auto& member : world_.members) {
      for (std::uint32_t node = 0; node < 3; ++node) {
        if (!member->dead) member->memory->mend(remote::NodeId(node));
      }
    }
  }

  Task<void> client(std::uint32_t index, std::uint32_t lane) {
    const std::uint32_t name = index + lane * 100;
    workload::Recorder store(*stores_[index], history_, name);
    Rng rng = rng_.fork("client").fork(name);
    std::vector<std::uint8_t> value(kValueBytes);
    for (std::uint32_t i = 0; i < scenario_.operations || (restarting_ && i < 5000); ++i) {
      const Key key = std::min(rng.below(scenario_.keys), rng.below(scenario_.keys));
      const auto id = workload::value_id(name + 1, i + 1);
      workload::fill_value(key, id, value);
      switch (rng.below(10)) {
        case 0: co_await store.erase(key); break;
        case 1: co_await store.insert(key, value); break;
        case 2:
        case 3:
        case 4:
        case 5: co_await store.put(key, value); break;
        default: co_await get(store, key);
      }
    }
    --busy_[index];
    --running_;
  }

  Task<void> get(workload::Recorder& store, Key key) {
    std::vector<std::uint8_t> into(kValueBytes);
    co_await store.get(key, into);
    EXPECT_EQ(store.wrong(), 0u) << "seed " << scenario_.seed << ": what was read of key " << key << " is no value";
  }

  Task<void> look_at_all(workload::Recorder& store) {
    for (Key key = 0; key < scenario_.keys; ++key) co_await get(store, key);
    --running_;
  }

  // Everyone but the witness leaves; what the dead held comes back; the last values are read.
  void clean_up(World::Member& witness) {
    rack::CloverStore unrecorded(*witness.client);
    workload::Recorder store(unrecorded, history_, 1000);
    running_ = 1;
    world_.scheduler.spawn(look_at_all(store));
    world_.run_until([&] { return running_ == 0; });
    for (auto& m : world_.members) {
      if (m.get() != &witness && !m->dead) world_.scheduler.spawn(m->client->leave());
    }
    world_.run_for(Duration::milliseconds(4));
    running_ = 1;
    world_.scheduler.spawn(look_at_all(store));
    world_.run_until([&] { return running_ == 0; });
    const auto& server = *world_.server;
    EXPECT_EQ(server.clients(), 1u);
    if (lost_data()) return;
    EXPECT_EQ(server.slots().count(clover::SlotState::kOrphan), 0u) << server.summary();
    EXPECT_EQ(server.slots().count(clover::SlotState::kRetired), 0u) << server.summary();
    EXPECT_EQ(server.slots().count(clover::SlotState::kLive), server.keys()) << server.summary();
    EXPECT_EQ(server.slots().count(clover::SlotState::kOwned), witness->slots_in_hand()) << server.summary();
  }
  bool lost_data() const { return scenario_.node_killed && scenario_.replication == 1; }

  void judge() {
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.linearizable()) << "seed " << scenario_.seed << "\n" << verdict.explain();
    keys_judged += verdict.keys;
    keys_undecided += verdict.undecided;
  }

  static constexpr std::uint32_t kNobody = ~0u;
  clover::KeptJournal journal_;
  std::vector<clover::Home> homes_;
  std::uint64_t life_ = 0;
  std::uint64_t restored_before_ = 0;
  std::uint32_t away_ = kNobody;
  Scenario scenario_;
  World world_;
  // Of metadata servers that have died; in the world's order, which outlives them.
  std::vector<std::unique_ptr<clover::MetadataServer>> graves_;
  std::vector<std::unique_ptr<LaterServer>> services_;
  std::vector<std::unique_ptr<remote::LocalMemory>> old_memories_;
  std::vector<std::unique_ptr<clover::Repairer>> old_repairers_;
  std::vector<std::unique_ptr<remote::Scheduler>> old_schedulers_;
  Rng rng_;
  std::vector<std::unique_ptr<rack::CloverStore>> stores_;
  History history_;
  std::vector<std::uint32_t> busy_;  // operations of each client's that go on
  std::uint32_t running_ = 0;
  bool restarting_ = false;
};

// More seeds: SLUICE_SEEDS=1000 clover_history_test; from SLUICE_SEED on
template <class Change>
void over_seeds(std::uint64_t usual, Change change) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(usual); ++seed) {
    Scenario s{.seed = seed, .replication = static_cast<std::uint32_t>(seed % 3 + 1)};
    change(s);
    CloverUnderFault run(s);
    run.run();
    if (std::getenv("SLUICE_SHOW") != nullptr) run.show();
    if (testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << run.world().server->summary();
    }
  }
}

class CloverHistory : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_LE(CloverUnderFault::keys_undecided * 100, CloverUnderFault::keys_judged) << "too little was judged whole";
  }
};

TEST_F(CloverHistory, IsLinearizableAndNeverReadsReclaimedMemoryWithoutFaults) {
  over_seeds(60, [](Scenario&) {});
}

TEST_F(CloverHistory, IsLinearizableWhenConnectionsBreakAndStragglersArrive) {
  over_seeds(60, [](Scenario& s) {
    s.disconnect_per_million = 4000;
    s.stragglers = true;
    s.torn = s.seed % 2 == 0;
  });
}

TEST_F(CloverHistory, IsLinearizableAndLosesNoMemoryWhenClientsDie) {
  over_seeds(60, [](Scenario& s) {
    s.clients_killed = 20;
    s.keys = s.seed % 3 == 0 ? 8 : 150;
    s.disconnect_per_million = s.seed % 2 == 0 ? 2000 : 0;
    s.stragglers = s.seed % 4 == 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhenAMemoryNodeDies) {
  over_seeds(60, [](Scenario& s) {
    s.node_killed = true;
    s.clients_killed = s.seed % 2 == 0 ? 10 : 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 1000 : 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhenAMemoryNodeIsWronglyTakenForDead) {
  over_seeds(60, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.keys = 3;
    s.clients = 24;
    s.clients_cut = 6;
  });
}

TEST_F(CloverHistory, IsLinearizableWhenAMemoryNodeIsWronglyTakenForDeadAndTakenBackWithWhatItHad) {
  const std::uint64_t before = CloverUnderFault::restored_;
  over_seeds(30, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.keys = s.seed % 3 == 0 ? 2 : 20;
    s.clients = 16;
    s.operations = 400;
    s.clients_cut = 6;
    s.taken_back = true;
    s.clients_killed = s.seed % 4 == 0 ? 3 : 0;
  });
  EXPECT_GE(CloverUnderFault::restored_ - before, seeds(30)) << "replicas that came back";
}

TEST_F(CloverHistory, IsLinearizableOnAHotKeyWhosePrimaryDies) {
  over_seeds(200, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.keys = 1;
    s.clients = 12;
    s.operations = 40;
    s.node_killed = true;
    s.clients_killed = s.seed % 3 == 0 ? 2 : 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhileMemoryNodesDieOneAfterTheOtherAndComeBackBlank) {
  const std::uint64_t before = CloverUnderFault::restored_;
  over_seeds(30, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.restarts = 4;
    s.clients = 16;
    s.operations = 300;
    s.keys = s.seed % 3 == 0 ? 2 : 40;
    s.clients_killed = s.seed % 2 == 0 ? 4 : 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 1000 : 0;
    s.stragglers = s.seed % 4 == 1;
    s.torn = s.seed % 4 == 2;
  });
  EXPECT_GE(CloverUnderFault::restored_ - before, 2 * 4 * seeds(30)) << "replicas that came back";
}

// Views end as soon as all clients have let go of them.
TEST_F(CloverHistory, IsLinearizableWhileMemoryNodesAreSoonBackBlank) {
  const std::uint64_t restored = CloverUnderFault::restored_, let_go = CloverUnderFault::let_go_;
  over_seeds(60, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.restarts = 4;
    s.away_us = 10;
    s.clients = 16;
    s.operations = 300;
    s.keys = s.seed % 3 == 0 ? 2 : 20;
    s.clients_killed = s.seed % 4 == 0 ? 4 : 0;
    s.breaks_others = s.seed % 5 != 1;
    s.stragglers = s.seed % 5 != 0;
    s.torn = s.seed % 4 == 2;
  });
  EXPECT_GE(CloverUnderFault::restored_ - restored, 2 * 4 * seeds(60)) << "replicas that came back";
  EXPECT_GE(CloverUnderFault::let_go_ - let_go, seeds(60)) << "views that ended before their time was up";
}

TEST_F(CloverHistory, IsLinearizableWhenClientsGiveUpEarlyAndConnectionsBreakOften) {
  over_seeds(100, [](Scenario& s) {
    s.keys = 2;
    s.clients = 12;
    s.operations = 80;
    s.impatient = true;
    s.disconnect_per_million = 30'000;
    s.stragglers = true;
  });
}

// Several operations of each client at a time, of which some take longer than cursors and views live.
TEST_F(CloverHistory, IsLinearizableWhateverTakesLong) {
  over_seeds(60, [](Scenario& s) {
    s.clients = 16;
    s.at_once = 3;
    s.slow = true;
    s.operations = 60;
    s.keys = s.seed % 3 == 0 ? 3 : 20;
    s.clients_killed = s.seed % 4 == 0 ? 4 : 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 1000 : 0;
    s.clock_anew = true;
    s.server_restarts = s.seed % 2 == 0 ? 3 : 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhateverTakesLongWhileMemoryNodesDieAndComeBackOrAreWronglyTakenForDead) {
  over_seeds(60, [](Scenario& s) {
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.clients = 8;
    s.at_once = 3;
    s.slow = true;
    s.operations = 200;
    s.keys = s.seed % 3 == 0 ? 3 : 20;
    s.clients_killed = s.seed % 4 == 0 ? 3 : 0;
    s.clients_cut = s.seed % 4 == 1 ? 3 : 0;
    s.taken_back = s.clients_cut != 0;
    s.restarts = s.taken_back ? 0 : 4;
    s.away_us = s.seed % 3 == 0 ? 10 : 600;
    s.stragglers = s.seed % 5 == 0;
    s.breaks_others = s.stragglers;
    s.clock_anew = true;
    s.server_restarts = s.seed % 7 == 0 ? 4 : 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhileTheMetadataServerDiesAgainAndAgain) {
  over_seeds(60, [](Scenario& s) {
    s.server_restarts = 6;
    s.clock_anew = s.seed % 2 == 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhileTheMetadataServerAndClientsDie) {
  over_seeds(60, [](Scenario& s) {
    s.server_restarts = 6;
    s.clock_anew = s.seed % 2 == 0;
    s.clients_killed = 20;
    s.keys = s.seed % 3 == 0 ? 8 : 150;
    s.disconnect_per_million = s.seed % 2 == 0 ? 2000 : 0;
    s.stragglers = s.seed % 4 == 0;
  });
}

TEST_F(CloverHistory, IsLinearizableWhileTheMetadataServerDiesAndAMemoryNodeIsWronglyTakenForDead) {
  over_seeds(60, [](Scenario& s) {
    s.server_restarts = 6;
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.keys = 3;
    s.clients = 24;
    s.clients_cut = 6;
  });
}

TEST_F(CloverHistory, IsLinearizableWhileTheMetadataServerAndMemoryNodesDie) {
  over_seeds(30, [](Scenario& s) {
    s.server_restarts = 8;
    s.clock_anew = s.seed % 2 == 0;
    s.replication = s.seed % 2 == 0 ? 2 : 3;
    s.keys = s.seed % 3 == 0 ? 2 : 20;
    s.clients = 16;
    s.operations = 400;
    s.restarts = 4;
    s.away_us = 400;
    s.stragglers = s.seed % 2 == 0;
    s.breaks_others = s.seed % 2 == 0;
  });
}

}  // namespace
}  // namespace sluice
