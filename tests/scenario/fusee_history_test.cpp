// FUSEE under an adversary: any interleaving, torn reads and writes, lost connections, stragglers and dying clients, all from one
// seed. What its clients see must be linearizable per key; once the dead are recovered, replicas agree and no memory is lost.
// Memory nodes die, too, or are missed by a client though they live; and come back while others die.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/effort_test.h"
#include "fusee/test_world.h"
#include "rack/clients/fusee_store.h"
#include "workload/linearizability.h"

namespace sluice {
namespace {

using fusee::World;
using fusee::WorldConfig;
using remote::Task;
using workload::EventKind;
using workload::History;
using workload::Key;
using workload::Outcome;

constexpr std::size_t kValueBytes = 40;

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t replicas = 3;
  std::uint32_t index_replicas = 0;  // as many
  std::uint32_t clients = 12;
  std::uint32_t lanes = 2;        // coroutines a client
  std::uint32_t operations = 30;  // a coroutine
  std::uint64_t keys = 30;
  std::uint32_t disconnect_per_million = 0;
  bool stragglers = false;
  bool torn = false;
  std::uint32_t clients_killed = 0;
  bool recover_at_once = false;  // while the others go on, some of whom do it, too
  bool leave = false;            // some, when they have done all they had to do
  bool impatient = false;        // operations give up after a few round trips
  Duration lease = Duration::microseconds(50);
  std::uint32_t nodes = 0;         // memory nodes; 0: a few
  std::uint32_t nodes_killed = 0;  // fewer than half
  std::uint32_t clients_cut = 0;   // of a memory node that lives
  std::uint32_t returns = 0;       // one after the other, a memory node dies, comes back and is whole again, under load
  bool keep_memory = false;        // it is only missed, and has what it had
  std::uint32_t stops =
      0;                // any memory nodes at once do not get on for a while, have other keys then, and what they had
  bool loses = false;   // and once in a while one of them, alone, has lost its memory
  bool sleepy = false;  // clients do not get on at all for a while, again and again
  bool grows = false;   // the index begins with one small table, and other keys fill it
  bool while_splitting = false;  // whoever is to die does so while a table is being split; of the clients, the splitter
};

WorldConfig world_config(const Scenario& s) {
  WorldConfig c;
  c.local = {.mode = remote::LocalMode::kSeeded,
             .seed = s.seed,
             .piece_bytes = s.torn ? 24u : 0u,
             .disconnect_per_million = s.disconnect_per_million,
             .straggler_lifetime = s.stragglers ? Duration::microseconds(40) : Duration{}};
  c.nodes = s.nodes != 0 ? s.nodes : s.replicas + static_cast<std::uint32_t>(s.seed % 3);
  c.node_memory = 1u << 20;
  // So few slots that entries of other keys are taken over all the time.
  c.geometry = {.replicas = s.replicas,
                .groups = 2,
                .value_bytes = kValueBytes,
                .block_bytes = 2048,
                .index_replicas = s.index_replicas};
  c.client = {.cached_keys = std::size_t{2} << s.seed % 5,
              .timeout = s.impatient ? Duration::microseconds(60) : Duration::milliseconds(200),
              // Short, so that memory is used again at once.
              .hold = s.impatient ? Duration::microseconds(60) : Duration::microseconds(200),
              .flight = Duration::microseconds(50),
              .suspect_after = Duration::microseconds(60),
              .lease = s.lease,
              .backoff_first = Duration::nanoseconds(500),
              .backoff_most = Duration::microseconds(20)};
  if (s.grows) c.geometry.doublings = 5;
  c.client.return_after = s.returns != 0 || s.stops != 0 ? Duration::microseconds(50 << s.seed % 3) : Duration{};
  if (s.nodes_killed != 0 || s.clients_cut != 0 || s.returns != 0 || s.stops != 0) {
    // Longer than what is under way may take, with all that is read to make replicas alike.
    c.client.hold = Duration::microseconds(s.impatient ? 200 : 800);
    c.client.flight = Duration::microseconds(s.impatient ? 50 : 200);
  }
  return c;
}

class FuseeUnderFault {
 public:
  explicit FuseeUnderFault(const Scenario& scenario)
      : scenario_(scenario), world_(world_config(scenario)), rng_(Rng(scenario.seed).fork("scenario")) {
    set_check_context(fmt::format("seed {}", scenario.seed));
  }

  void run() {
    auto patient = world_.config_.client;
    patient.timeout = Duration::milliseconds(500);
    patient.hold = world_config(scenario_).client.hold;
    auto& witness = world_.add_client(patient);
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      auto& member = world_.add_client(patient, scenario_.sleepy);
      stores_.push_back(std::make_unique<rack::FuseeStore>(*member.client));
    }
    // Joining may take an impatient client several attempts: all begin as members.
    if (scenario_.impatient) be_impatient();
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      for (std::uint32_t lane = 0; lane < scenario_.lanes; ++lane) scheduler_of(i).spawn(client(i, lane));
    }
    if (scenario_.sleepy) world_.let_sleep(3000, world_.config_.client.hold);
    running_.assign(scenario_.clients, scenario_.lanes);
    const std::uint64_t steps = std::uint64_t{scenario_.clients} * scenario_.lanes * scenario_.operations * 30;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> deaths;
    if (scenario_.while_splitting) {
      splitters_to_die_ = scenario_.clients_killed;
      nodes_to_die_ = scenario_.nodes_killed;
    }
    for (std::uint32_t i = 0; i < scenario_.clients_killed && !scenario_.while_splitting; ++i) {
      deaths.push_back({rng_.below(steps), static_cast<std::uint32_t>(rng_.below(scenario_.clients))});
    }
    std::vector<std::pair<std::uint64_t, std::uint32_t>> losses;
    for (std::uint32_t i = 0; i < scenario_.nodes_killed && !scenario_.while_splitting; ++i)
      losses.push_back({rng_.below(steps), static_cast<std::uint32_t>(rng_.below(world_.memory.size()))});
    std::vector<std::pair<std::uint64_t, std::uint32_t>> cuts;
    for (std::uint32_t i = 0; i < scenario_.clients_cut; ++i)
      cuts.push_back({rng_.below(steps), static_cast<std::uint32_t>(rng_.below(scenario_.clients))});
    still_to_return_ = scenario_.returns + scenario_.stops;
    std::uint64_t step = 0;
    world_.run_until([&] {
      if (scenario_.returns != 0 || scenario_.stops != 0) tell(step);
      if (scenario_.returns != 0) turn_over(step, witness);
      if (scenario_.stops != 0) stop_some(step, witness);
      for (const auto& [when, who] : deaths) {
        if (step == when) kill(who, witness);
      }
      for (const auto& [when, who] : losses) {
        if (step == when) lose(who);
      }
      for (const auto& [when, who] : cuts) {
        if (step == when) cut(who);
      }
      if (scenario_.while_splitting && step % 16 == 0) die_while_splitting(step, witness);
      ++step;
      const bool told = stopped_.empty() && step > last_news_;
      return told && std::ranges::all_of(running_, [](auto n) { return n == 0; }) && recovering_ == 0;
    });
    if (testing::Test::HasFatalFailure()) return;
    world_.let_sleep(0, {});
    inspect(witness);
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.linearizable()) << "seed " << scenario_.seed << "\n" << verdict.explain();
    keys_judged += verdict.keys;
    keys_undecided += verdict.undecided;
  }

  std::uint64_t with(Outcome outcome) const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(history_.events(), [=](auto& e) { return e.outcome == outcome; }));
  }
  // Over all seeds of a test.
  static inline std::uint64_t keys_judged = 0;
  static inline std::uint64_t keys_undecided = 0;
  static inline std::uint64_t splitters_killed = 0;
  static inline std::uint64_t nodes_killed_while_splitting = 0;
  static inline std::uint64_t most_tables = 0;
  static inline std::uint64_t left = 0;
  static inline fusee::ClientCounters total;

  void account() {
    fusee::ClientCounters sum;
    for (const auto& m : world_.members) {
      const auto& c = m->client->counters();
      for (auto* const s : {&sum, &total}) {
        s->won_all += c.won_all;
        s->won_more += c.won_more;
        s->lost += c.lost;
        s->finished += c.finished;
        s->withdrawn += c.withdrawn;
        s->reused += c.reused;
        s->recovered += c.recovered;
        s->reclaimed += c.reclaimed;
        s->failures += c.failures;
        s->unknown += c.unknown;
        s->damaged += c.damaged;
        s->cache_hits += c.cache_hits;
        s->departures += c.departures;
        s->repaired += c.repaired;
        s->returns += c.returns;
        s->restored += c.restored;
        s->splits += c.splits;
      }
    }
    if (std::getenv("SLUICE_SHOW") == nullptr) return;
    fmt::print(
        "seed {}: {} ops, ok {}, unknown {}, unavailable {}; won {} + {}, lost {}, finished {}, withdrawn {}, reused "
        "{}, "
        "recovered {}, reclaimed {}, failures {}, in doubt {}, damaged {}, hits {}, departures {}, repaired {}, "
        "returns {}, "
        "restored {}, splits {}, tables {}, ends at {} us\n",
        scenario_.seed, history_.events().size(), with(Outcome::kOk), with(Outcome::kUnknown),
        with(Outcome::kUnavailable), sum.won_all, sum.won_more, sum.lost, sum.finished, sum.withdrawn, sum.reused,
        sum.recovered, sum.reclaimed, sum.failures, sum.unknown, sum.damaged, sum.cache_hits, sum.departures,
        sum.repaired, sum.returns, sum.restored, sum.splits, tables_, world_.now.since_start().microseconds());
  }

 private:
  void be_impatient() {
    stores_.clear();
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      auto& member = *world_.members.at(i + 1);
      const Rng rng = rng_.fork("impatient").fork(i);
      auto client = std::make_unique<fusee::Client>(*member.memory, world_.memory, world_.config_.client, rng);
      fusee::Outcome joined = fusee::Outcome::kUnavailable;
      while (joined != fusee::Outcome::kOk) joined = world_.wait_for(client->join());
      member.client = std::move(client);
      stores_.push_back(std::make_unique<rack::FuseeStore>(*member.client));
    }
  }

  remote::Scheduler& scheduler_of(std::uint32_t who) { return world_.scheduler_of(*world_.members.at(who + 1)); }

  void kill(std::uint32_t who, World::Member& witness) {
    auto& member = *world_.members.at(who + 1);
    if (member.dead || running_[who] == 0) return;
    member.kill();
    running_[who] = 0;
    if (!scenario_.recover_at_once) return;
    ++recovering_;
    world_.scheduler.spawn(recover(*witness.client, member->number()));
    for (std::uint64_t i = rng_.below(3); i > 0; --i) {
      const auto by = static_cast<std::uint32_t>(rng_.below(scenario_.clients));
      if (!world_.members.at(by + 1)->dead) scheduler_of(by).spawn(help_recover(by, member->number()));
    }
  }
  // Is a table being split? Then its splitter dies, or a memory node.
  void die_while_splitting(std::uint64_t step, World::Member& witness) {
    const std::uint32_t number = world_.splitter();
    if (number == 0) return;
    ++splitting_;
    if (splitters_to_die_ != 0 && rng_.below(40) == 0) {
      for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
        if ((*world_.members.at(i + 1))->number() != number || world_.members.at(i + 1)->dead) continue;
        --splitters_to_die_;
        ++splitters_killed;
        kill(i, witness);
      }
    }
    if (nodes_to_die_ != 0 && step > 3000 && rng_.below(60) == 0) {
      --nodes_to_die_;
      ++nodes_killed_while_splitting;
      lose(static_cast<std::uint32_t>(rng_.below(world_.memory.size())));
    }
  }
  void lose(std::uint32_t node) {
    if (!may_lose(node)) return;
    lost_.insert(node);
    world_.kill_node(node);
  }
  // One client does not reach a memory node any more, so that this leaves, though it lives. Which is a loss like others.
  void cut(std::uint32_t who) {
    auto& member = *world_.members.at(who + 1);
    const auto node = static_cast<std::uint32_t>(rng_.below(world_.memory.size()));
    if (member.dead || !may_lose(node)) return;
    lost_.insert(node);
    member.memory->cut(world_.memory[node].heap.node);
  }
  // Of those that live.
  const fusee::Client& newest(World::Member& witness) const {
    const fusee::Client* found = witness.client.get();
    for (const auto& m : world_.members) {
      if (!m->dead && (*m)->view() > found->view()) found = m->client.get();
    }
    return *found;
  }
  // A memory node dies, or a client that then dies does not reach it any more; it comes back, everybody is told of it at another time; once it is whole,
  // the next one dies.
  void turn_over(std::uint64_t step, World::Member& witness) {
    if (step < next_turn_) return;
    const fusee::Client& knows = newest(witness);
    const auto& map = knows.map();
    switch (turn_) {
      case Turn::kLives:
        if (still_to_return_ == 0) return;
        if (scenario_.while_splitting && world_.splitter() == 0 && step < next_turn_ + 20'000) return;
        victim_ = static_cast<std::uint32_t>(rng_.below(world_.memory.size()));
        if (!map.can_leave(victim_)) return;
        lost_.insert(victim_);
        view_before_ = knows.view();
        if (scenario_.keep_memory) {
          cutter_ = static_cast<std::uint32_t>(rng_.below(scenario_.clients));
          auto& member = *world_.members.at(cutter_ + 1);
          if (member.dead) return;
          member.memory->cut(world_.memory[victim_].heap.node);
          turn_ = Turn::kMissed;
        } else {
          world_.kill_node(victim_);
          turn_ = Turn::kDead;
          next_turn_ = step + rng_.below(20'000);  // it may be there again before it has been missed
        }
        return;
      case Turn::kMissed:
        if (!map.has_left(victim_) && running_[cutter_] != 0) return;
        kill(cutter_, witness);
        world_.members.at(cutter_ + 1)->kill();
        turn_ = Turn::kReturning;
        given_up_ = step + 100'000;
        return;
      case Turn::kDead:
        world_.restart_node(victim_);
        spread(step, victim_);
        turn_ = Turn::kReturning;
        return;
      case Turn::kReturning:
        // Its client may have ended before it was missed.
        if (map.member(victim_) != fusee::Member::kWhole || knows.view() == view_before_) {
          if (!scenario_.keep_memory || !map.can_leave(victim_) || step < given_up_) return;
        }
        --still_to_return_;
        turn_ = Turn::kLives;
        next_turn_ = step + rng_.below(3000);
    }
  }
  void tell(std::uint64_t step) {
    for (auto& [when, member, node] : news_) {
      if (step != when || world_.members[member]->dead) continue;
      (*world_.members[member])->moved(node, world_.memory[node]);
    }
  }
  void spread(std::uint64_t step, std::uint32_t node) {
    for (std::size_t i = 0; i < world_.members.size(); ++i) news_.push_back({step + 1 + rng_.below(5000), i, node});
    last_news_ = step + 5000;
  }
  // Any memory nodes do not get on for longer than their leases. They may have left meanwhile, and what they had is old; or nobody can do without them.
  void stop_some(std::uint64_t step, World::Member& witness) {
    if (step < next_turn_ || (stopped_.empty() && still_to_return_ == 0)) return;
    if (!stopped_.empty()) {
      for (const std::uint32_t node : stopped_) {
        if (turn_ == Turn::kDead) {
          world_.restart_node(node);
        } else {
          world_.resume_node(node);
        }
        spread(step, node);
      }
      stopped_.clear();
      turn_ = Turn::kLives;
      --still_to_return_;
      next_turn_ = step + rng_.below(60'000);
      settled_ = step + 60'000;
      return;
    }
    const auto nodes = static_cast<std::uint32_t>(world_.memory.size());
    next_turn_ = step + 1 + rng_.below(20'000);
    const auto& map = newest(witness).map();
    bool whole = true;
    for (std::uint32_t node = 0; node < nodes; ++node) whole = whole && map.member(node) == fusee::Member::kWhole;
    const auto alone = static_cast<std::uint32_t>(rng_.below(nodes));
    // What somebody has begun because of the last stop must have ended: it may be that another leaves.
    if (scenario_.loses && whole && step < settled_ && rng_.below(2) == 0) next_turn_ = settled_;
    if (next_turn_ == settled_) return;
    if (scenario_.loses && whole && step >= settled_) {
      world_.kill_node(alone);
      stopped_ = {alone};
      turn_ = Turn::kDead;
      return;
    }
    const std::uint64_t some = rng_.below(4) == 0 ? ~std::uint64_t{0} : rng_.below(std::uint64_t{1} << nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      if ((some >> node & 1) == 0 && node != alone) continue;
      world_.stop_node(node);
      stopped_.push_back(node);
    }
  }
  // Of the nodes less than half, and of a slot not the last replica.
  bool may_lose(std::uint32_t node) const {
    auto map = fusee::MemoryMap(world_.memory, world_.config_.geometry);
    for (const auto lost : lost_) map.leave(lost);
    return 2 * (lost_.size() + 1) < world_.memory.size() && map.can_leave(node);
  }
  Task<void> recover(fusee::Client& witness, std::uint32_t dead) {
    fusee::Outcome outcome = fusee::Outcome::kUnavailable;
    while (outcome != fusee::Outcome::kOk) outcome = co_await witness.recover(dead);
    --recovering_;
  }
  // By one who has other things to do, and may die or have left before it is done.
  Task<void> help_recover(std::uint32_t by, std::uint32_t dead) {
    ++helping_[by];
    co_await (*world_.members.at(by + 1))->recover(dead);
    --helping_[by];
  }

  Task<void> client(std::uint32_t index, std::uint32_t lane) {
    auto& store = *stores_[index];
    const std::uint32_t writer = index * scenario_.lanes + lane + 1;
    Rng rng = rng_.fork("client").fork(writer);
    std::vector<std::uint8_t> value(kValueBytes);
    // Whoever comes back needs others that have something to do.
    const auto enough = [&](std::uint32_t done) {
      return done >= scenario_.operations && (still_to_return_ == 0 || done >= 40 * scenario_.operations);
    };
    for (std::uint32_t i = 0; !enough(i); ++i) {
      if (i >= scenario_.operations) co_await world_.scheduler.sleep_for(Duration::microseconds(20));
      Key key = std::min(rng.below(scenario_.keys), rng.below(scenario_.keys));
      // What fills the index: keys that are mostly put and seldom taken out again.
      if (scenario_.grows && rng.below(3) != 0) {
        key = kFillers + rng.below(kMostFillers);
        if (rng.below(8) != 0) {
          const auto filler = workload::value_id(writer, i + 1);
          const MutableBytes filling = MutableBytes(value).first(24);
          workload::fill_value(key, filler, filling);
          const auto event = history_.begin(writer, EventKind::kInsert, key, filler);
          history_.end(event, co_await store.insert(key, filling));
          continue;
        }
      }
      const auto id = workload::value_id(writer, i + 1);
      const MutableBytes bytes = MutableBytes(value).first(rng.below(2) == 0 ? 24 : kValueBytes);
      workload::fill_value(key, id, bytes);
      switch (rng.below(10)) {
        case 0:
        case 1: {
          const auto event = history_.begin(writer, EventKind::kErase, key);
          history_.end(event, co_await store.erase(key));
          break;
        }
        case 2:
        case 3: {
          const auto event = history_.begin(writer, EventKind::kInsert, key, id);
          history_.end(event, co_await store.insert(key, bytes));
          break;
        }
        case 4:
        case 5:
        case 6: {
          const auto event = history_.begin(writer, EventKind::kPut, key, id);
          history_.end(event, co_await store.put(key, bytes));
          break;
        }
        default: co_await get(store, writer, key);
      }
    }
    auto& member = *world_.members.at(index + 1);
    if (scenario_.leave && running_[index] == 1 && helping_[index] == 0 && rng.below(2) == 0) {
      co_await member->leave();
      member.dead = true;  // or may be taken for dead
      ++left;
    }
    --running_[index];
  }

  Task<std::uint64_t> get(workload::Store& store, std::uint32_t writer, Key key) {
    std::vector<std::uint8_t> into(kValueBytes);
    const auto event = history_.begin(writer, EventKind::kGet, key);
    const auto result = co_await store.get(key, into);
    workload::ValueId read = 0;
    if (result.outcome == Outcome::kOk) {
      const auto id = workload::verify_value(key, ByteView(into).first(result.length));
      EXPECT_TRUE(id.has_value()) << "seed " << scenario_.seed << ": what was read of key " << key << " is no value";
      read = id.value_or(0);
    }
    history_.end(event, result.outcome, read);
    co_return read;
  }

  fusee::Outcome patiently(World::Member& member, bool recovery, std::uint32_t dead) {
    fusee::Outcome outcome = fusee::Outcome::kUnavailable;
    for (int i = 0; i < 1000 && outcome != fusee::Outcome::kOk; ++i)
      outcome = world_.wait_for(recovery ? member->recover(dead) : member->audit());
    return outcome;
  }

  // Who lives cleans up after the dead, then all is looked at.
  void inspect(World::Member& witness) {
    rack::FuseeStore store(*witness.client);
    for (const auto& m : world_.members) {
      if (m->dead) {
        EXPECT_EQ(patiently(witness, true, (*m)->number()), fusee::Outcome::kOk);
      }
    }
    for (Key key = 0; key < scenario_.keys; ++key) world_.wait_for(get(store, 1'000'000, key));
    for (Key key = kFillers; key < kFillers + kMostFillers && scenario_.grows; ++key)
      world_.wait_for(get(store, 1'000'000, key));
    // Whoever gave up may have left a tentative entry, or a change half done: as many as clients at most stand until somebody needs the slot.
    const auto& c = world_.config_.client;
    for (int i = 0; i < 2; ++i) {
      world_.run_for((c.hold + c.flight) * 2);
      for (const auto& m : world_.members) {
        if (!m->dead) {
          EXPECT_EQ(patiently(*m, false, 0), fusee::Outcome::kOk);
        }
      }
    }
    const fusee::Client& last = newest(witness);
    EXPECT_LE(last.view(), scenario_.returns == 0 && scenario_.stops == 0 ? lost_.size() : 3 * 40u)
        << "seed " << scenario_.seed << ": somebody has left that nobody missed";
    world_.follow(last);
    for (int i = 0; i < 50 && world_.left_behind() != 0; ++i) patiently(witness, false, 0);
    EXPECT_EQ(world_.left_behind(), 0u) << "seed " << scenario_.seed;
    const auto index = world_.index();
    EXPECT_EQ(index.differing, 0u) << "seed " << scenario_.seed;
    auto keys = index.keys;
    std::ranges::sort(keys);
    EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end()) << "seed " << scenario_.seed << ": a key is there twice";
    EXPECT_EQ(index.splitting, 0u) << "seed " << scenario_.seed << ": a split has no end";
    EXPECT_EQ(index.thawed, 0u) << "seed " << scenario_.seed;
    tables_ = index.tables;
    most_tables = std::max(most_tables, tables_);
    EXPECT_EQ(index.lacking, 0u) << "seed " << scenario_.seed << ": a replica has not all objects";
    EXPECT_EQ(world_.placed(), index.objects) << "seed " << scenario_.seed << ": memory is lost";
    const auto owners = world_.owners();
    for (const auto& m : world_.members) {
      if (m->dead) {
        EXPECT_FALSE(owners.contains((*m)->number())) << "seed " << scenario_.seed;
      }
    }
    // All keys can be written.
    std::vector<std::uint8_t> value(kValueBytes);
    for (Key key = 0; key < scenario_.keys; ++key) {
      const auto outcome = world_.wait_for(witness->put(key, value));
      EXPECT_TRUE(outcome != fusee::Outcome::kUnavailable) << "seed " << scenario_.seed;
    }
  }

  static constexpr Key kFillers = 1000;
  static constexpr Key kMostFillers = 700;

  Scenario scenario_;
  World world_;
  Rng rng_;
  std::uint32_t splitters_to_die_ = 0;
  std::uint32_t nodes_to_die_ = 0;
  std::uint64_t splitting_ = 0;  // times that a table was seen to be
  std::uint64_t tables_ = 0;
  std::vector<std::unique_ptr<rack::FuseeStore>> stores_;
  History history_;
  std::vector<std::uint32_t> running_;
  std::uint32_t recovering_ = 0;
  std::map<std::uint32_t, std::uint32_t> helping_;  // by whom
  std::set<std::uint32_t> lost_;                    // memory nodes
  enum class Turn : std::uint8_t { kLives, kMissed, kDead, kReturning };
  struct News {
    std::uint64_t when = 0;
    std::size_t member = 0;
    std::uint32_t node = 0;
  };
  std::vector<News> news_;
  Turn turn_ = Turn::kLives;
  std::uint64_t next_turn_ = 2000;
  std::uint32_t victim_ = 0;
  std::vector<std::uint32_t> stopped_;
  std::uint64_t settled_ = 0;
  std::uint64_t last_news_ = 0;
  std::uint32_t cutter_ = 0;
  std::uint32_t still_to_return_ = 0;
  std::uint32_t view_before_ = 0;
  std::uint64_t given_up_ = 0;
};

// More seeds: SLUICE_SEEDS=1000 fusee_history_test
class FuseeHistory : public testing::Test {
 protected:
  template <class Change>
  void over_seeds(std::uint64_t usual, Change change) {
    for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(usual); ++seed) {
      Scenario s{.seed = seed, .replicas = static_cast<std::uint32_t>(seed % 4 + 1)};
      if (seed % 3 == 0) s.index_replicas = (s.replicas + 1) / 2;
      change(s);
      FuseeUnderFault run(s);
      run.run();
      run.account();
      if (HasFailure()) FAIL() << "seed " << seed;
    }
  }
  void SetUp() override {
    FuseeUnderFault::keys_judged = FuseeUnderFault::keys_undecided = 0;
    FuseeUnderFault::splitters_killed = FuseeUnderFault::nodes_killed_while_splitting = 0;
    FuseeUnderFault::most_tables = 0;
    FuseeUnderFault::total = {};
  }
  void TearDown() override {
    EXPECT_LE(FuseeUnderFault::keys_undecided * 100, FuseeUnderFault::keys_judged) << "too little was judged whole";
    EXPECT_EQ(total().damaged, 0u);
    EXPECT_TRUE(total().lost > 0 || seeds(40) < 40);
    EXPECT_TRUE(total().reused > 0 || seeds(40) < 40);
  }
  const fusee::ClientCounters& total() const { return FuseeUnderFault::total; }
};

TEST_F(FuseeHistory, IsLinearizableWithoutFaults) {
  // Long enough that memory is used again.
  over_seeds(40, [](Scenario& s) { s.operations = 60; });
  EXPECT_TRUE(total().won_more > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().withdrawn > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableWhenReadsAndWritesAreTorn) {
  over_seeds(40, [](Scenario& s) {
    s.torn = true;
    s.keys = s.seed % 2 == 0 ? 4 : 30;
  });
}

TEST_F(FuseeHistory, IsLinearizableWhenConnectionsBreakAndStragglersArrive) {
  over_seeds(40, [](Scenario& s) {
    s.disconnect_per_million = 4000;
    s.stragglers = s.seed % 4 != 0;
    s.torn = s.seed % 3 == 0;
  });
  EXPECT_TRUE(total().failures > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableAndLosesNoMemoryWhenClientsDie) {
  over_seeds(40, [](Scenario& s) {
    s.clients_killed = 8;
    s.recover_at_once = s.seed % 2 == 0;
    s.leave = s.seed % 4 != 0;
    s.torn = s.seed % 3 == 0;
    s.stragglers = s.seed % 5 == 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 2000 : 0;
  });
  EXPECT_TRUE(total().recovered > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().finished > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableWhenEverybodyFinishesForEverybody) {
  over_seeds(40, [](Scenario& s) {
    s.lease = Duration{};
    s.keys = 3;
    s.disconnect_per_million = 5000;
    s.stragglers = true;
    s.clients_killed = s.seed % 3 == 0 ? 4 : 0;
  });
  EXPECT_TRUE(total().finished > 0 || seeds(40) < 40);
}

// What dies is primary of a part of the index and backup of others.
TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesDie) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = s.replicas == 4 && s.seed % 2 == 0 ? 3 : 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 4));
    s.nodes_killed = s.nodes / 2;
    s.operations = 60;
    s.torn = s.seed % 3 == 0;
    s.keys = s.seed % 2 == 0 ? 3 : 30;
    s.lanes = 3;
    s.lease = s.seed % 5 == 0 ? Duration{} : Duration::microseconds(50);
  });
  EXPECT_TRUE(total().departures > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().repaired > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableWhenMemoryNodesAndClientsDieAndConnectionsBreak) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 4));
    s.nodes_killed = s.nodes / 2;
    s.clients_cut = s.seed % 2 == 0 ? 2 : 0;
    s.clients_killed = 6;
    s.recover_at_once = s.seed % 2 == 0;
    s.leave = s.seed % 5 < 2;
    s.disconnect_per_million = s.seed % 3 == 0 ? 0 : 2000;
    s.stragglers = s.seed % 3 == 1;
    s.operations = 60;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
  });
  EXPECT_TRUE(total().departures > 0 || seeds(40) < 40);
  EXPECT_TRUE(total().recovered > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableWhenMemoryNodesAreMissedThatLive) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 2 + 2);
    s.index_replicas = 0;
    s.nodes = 3 + static_cast<std::uint32_t>(s.seed % 4);
    s.clients_cut = 4;
    s.impatient = s.seed % 3 == 0;
    s.stragglers = s.seed % 2 == 0;
    s.disconnect_per_million = 2000;
    s.operations = 60;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
  });
  EXPECT_TRUE(total().departures > 0 || seeds(40) < 40);
}

// They wake up in another view, at any point of what they did.
TEST_F(FuseeHistory, IsLinearizableWhenMemoryNodesDieWhileClientsSleep) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 4));
    s.nodes_killed = s.seed % 2 == 0 ? s.nodes / 2 : 0;
    s.clients_cut = s.seed % 2 == 0 ? 1 : 3;
    s.sleepy = true;
    s.operations = 60;
    s.keys = 1 + s.seed % 5;
    s.lease = s.seed % 5 == 0 ? Duration{} : Duration::microseconds(50);
  });
  EXPECT_TRUE(total().departures > 0 || seeds(40) < 40);
}

// So it goes with each of them: dead, back, given everything, primary again, before the next one dies.
TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesDieAndComeBackOneAfterTheOther) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = s.replicas == 4 && s.seed % 2 == 0 ? 3 : 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 3));
    s.returns = 4;
    s.operations = 60;
    s.torn = s.seed % 3 == 0;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
    s.lease = s.seed % 5 == 0 ? Duration{} : Duration::microseconds(50);
  });
  EXPECT_GT(total().returns, 0u);
  EXPECT_GT(total().restored, 0u);
}

TEST_F(FuseeHistory, IsLinearizableWhenMemoryNodesComeBackWhileClientsDieAndSleepAndConnectionsBreak) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 3));
    s.returns = 3;
    s.keep_memory = s.seed % 4 == 1;
    s.clients_killed = 4;
    s.recover_at_once = s.seed % 2 == 0;
    s.leave = s.seed % 5 == 3;
    s.disconnect_per_million = s.seed % 3 == 0 ? 0 : 1000;
    s.stragglers = s.seed % 3 == 1;
    s.sleepy = s.seed % 5 == 0;
    s.operations = 60;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
  });
  EXPECT_GT(total().returns, 0u);
}

// Their keys are others then. Some have left, and come back; where too many were stopped for that, they are used on.
TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesAreStoppedForLongerThanTheirLeases) {
  over_seeds(40, [](Scenario& s) {
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = s.replicas == 4 && s.seed % 2 == 0 ? 3 : 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 3));
    s.stops = 8;
    s.loses = s.seed % 2 == 0;
    s.operations = 60;
    s.torn = s.seed % 3 == 0;
    s.disconnect_per_million = s.seed % 4 == 0 ? 1000 : 0;
    s.stragglers = s.seed % 4 == 0;
    s.sleepy = !s.loses && s.seed % 5 == 0;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
  });
  EXPECT_GT(total().departures, 0u);
  EXPECT_GT(total().returns, 0u);
}

// None can leave such a store.
TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesAreStoppedThatNobodyCanDoWithout) {
  over_seeds(40, [](Scenario& s) {
    s.nodes = static_cast<std::uint32_t>(s.seed % 2 + 1);
    s.replicas = s.seed % 4 < 2 ? 1 : s.nodes;
    s.index_replicas = 0;
    s.stops = 6;
    s.operations = 60;
    s.torn = s.seed % 3 == 0;
    s.sleepy = s.seed % 5 == 0;
    s.keys = s.seed % 4 == 0 ? 3 : 30;
  });
  EXPECT_EQ(total().departures, 0u);
}

TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhileTheIndexGrows) {
  over_seeds(40, [](Scenario& s) {
    s.grows = true;
    s.operations = 60;
    s.torn = s.seed % 3 == 0;
    s.disconnect_per_million = s.seed % 4 == 0 ? 3000 : 0;
    s.stragglers = s.seed % 8 == 0;
    s.impatient = s.seed % 11 == 0;
    s.sleepy = s.seed % 7 == 0;
    s.lease = s.seed % 5 == 0 ? Duration{} : Duration::microseconds(50);
  });
  EXPECT_GT(total().splits, seeds(40));
  EXPECT_GE(FuseeUnderFault::most_tables, 4u);
}

TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenClientsDieWhileTheIndexGrows) {
  over_seeds(40, [](Scenario& s) {
    s.grows = true;
    s.operations = 80;
    s.clients_killed = 8;
    s.while_splitting = s.seed % 4 != 0;
    s.recover_at_once = s.seed % 2 == 0;
    s.disconnect_per_million = s.seed % 3 == 0 ? 2000 : 0;
    s.stragglers = s.seed % 3 == 0;
    s.lease = s.seed % 5 == 0 ? Duration{} : Duration::microseconds(50);
  });
  EXPECT_GT(total().splits, seeds(40));
  EXPECT_TRUE(FuseeUnderFault::splitters_killed > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesAndClientsDieWhileTheIndexGrows) {
  over_seeds(40, [](Scenario& s) {
    s.grows = true;
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 2));
    s.nodes_killed = 1;
    s.clients_cut = s.seed % 6 == 0 ? 1 : 0;
    s.clients_killed = s.seed % 2 == 0 ? 4 : 0;
    s.while_splitting = true;
    s.recover_at_once = s.seed % 4 == 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 2000 : 0;
    s.stragglers = s.seed % 5 == 0;
    s.sleepy = s.seed % 7 == 0;
    s.operations = 80;
  });
  EXPECT_GT(total().splits, seeds(40));
  EXPECT_TRUE(total().departures > 0 || seeds(40) < 40);
  EXPECT_TRUE(FuseeUnderFault::nodes_killed_while_splitting > 0 || seeds(40) < 40);
}

TEST_F(FuseeHistory, IsLinearizableAndLosesNothingWhenMemoryNodesComeBackWhileTheIndexGrows) {
  over_seeds(40, [](Scenario& s) {
    s.grows = true;
    s.replicas = static_cast<std::uint32_t>(s.seed % 3 + 2);
    s.index_replicas = 0;
    s.nodes = std::max(s.replicas, 3 + static_cast<std::uint32_t>(s.seed % 2));
    s.returns = 3;
    s.while_splitting = s.seed % 2 == 0;
    s.clients_killed = s.seed % 3 == 0 ? 3 : 0;
    s.recover_at_once = s.seed % 2 == 0;
    s.disconnect_per_million = s.seed % 5 == 0 ? 1000 : 0;
    s.stragglers = s.seed % 5 == 0;
    s.operations = 40;
  });
  EXPECT_GT(total().splits, seeds(40));
  EXPECT_GT(total().returns, 0u);
}

TEST_F(FuseeHistory, IsLinearizableOnOneHotKeyWhenClientsGiveUpEarly) {
  over_seeds(40, [](Scenario& s) {
    s.keys = 1 + s.seed % 3;
    s.impatient = true;
    s.disconnect_per_million = 5'000;
    s.stragglers = true;
    s.operations = 40;
  });
  EXPECT_TRUE(total().unknown > 0 || seeds(40) < 40);
}

}  // namespace
}  // namespace sluice
