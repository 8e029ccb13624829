#include "clover/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/effort_test.h"
#include "clover/kept_journal.h"
#include "clover/test_world.h"

namespace sluice::clover {
namespace {

using remote::LocalMode;
using remote::Task;

// Time passes although nothing else happens.
Task<void> keep_time(remote::Scheduler& scheduler) {
  for (;;) co_await scheduler.sleep_for(Duration::microseconds(500));
}

class Replicated : public testing::TestWithParam<std::uint32_t> {
 protected:
  WorldConfig config() const { return {.nodes = 3, .replication = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Clover, Replicated, testing::Values(1, 2, 3));

TEST_P(Replicated, ReadsBackReplacesErasesAndInserts) {
  World w(config());
  auto& a = w.add_client();
  auto& b = w.add_client();
  const auto one = value_of(1, 40);
  const auto two = value_of(2, 17);
  EXPECT_EQ(read(w, *a.client, 5), std::nullopt);
  EXPECT_EQ(w.wait_for(a->erase(5)), Outcome::kNotFound);
  EXPECT_EQ(w.wait_for(a->put(5, one)), Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, 5), one);
  EXPECT_EQ(read(w, *b.client, 5), one);
  EXPECT_EQ(w.wait_for(b->put(5, two)), Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, 5), two);
  EXPECT_EQ(w.wait_for(a->insert(5, one)), Outcome::kExists);
  EXPECT_EQ(w.wait_for(b->erase(5)), Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, 5), std::nullopt);
  EXPECT_EQ(w.wait_for(a->erase(5)), Outcome::kNotFound);
  EXPECT_EQ(w.wait_for(a->insert(5, one)), Outcome::kOk);
  EXPECT_EQ(w.wait_for(b->insert(5, two)), Outcome::kExists);
  EXPECT_EQ(read(w, *b.client, 5), one);
}

TEST_P(Replicated, KeepsEveryReplicaOfAChainEqual) {
  World w(config());
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (std::uint64_t i = 0; i < 50; ++i) w.wait_for((i % 2 != 0 ? a : b)->put(i % 5, value_of(i, 40)));
  const auto& volumes = w.server_config.volumes;
  for (const auto& volume : volumes) {
    for (std::size_t j = 1; j < volume.count; ++j) {
      const auto stretch = [&](std::size_t k) {
        const auto& base = volume.replicas[k];
        return w.fabric.region_bytes(base).subspan(base.address - w.memory[base.node.value].base.address,
                                                   volume.length);
      };
      EXPECT_TRUE(std::ranges::equal(stretch(0), stretch(j)));
    }
  }
}

TEST(Clover, CostsAReadAGetAndAWriteAndASwapAPut) {
  World w({});
  auto& a = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  const auto before = a->counters();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(read(w, *a.client, 1));
  const auto after_gets = a->counters();
  EXPECT_EQ(after_gets.round_trips - before.round_trips, 10u);
  EXPECT_EQ(after_gets.bytes - before.bytes, 10 * NodeLayout(40).node_bytes());
  EXPECT_EQ(after_gets.lookups, before.lookups);
  for (std::uint64_t i = 0; i < 10; ++i) w.wait_for(a->put(1, value_of(i, 40)));
  const auto after_puts = a->counters();
  EXPECT_EQ(after_puts.writes - after_gets.writes, 10u);
  EXPECT_EQ(after_puts.swaps - after_gets.swaps, 10u);
  EXPECT_EQ(after_puts.round_trips - after_gets.round_trips, 20u);
}

TEST(Clover, WalksFromAStaleCursorAndRemembersTheTail) {
  World w({});
  auto& a = w.add_client();
  auto& b = w.add_client();
  w.wait_for(a->put(1, value_of(0, 40)));
  EXPECT_EQ(read(w, *b.client, 1), value_of(0, 40));
  for (std::uint64_t i = 1; i <= 3; ++i) w.wait_for(a->put(1, value_of(i, 40)));
  const auto before = b->counters();
  EXPECT_EQ(read(w, *b.client, 1), value_of(3, 40));
  EXPECT_EQ(b->counters().walks - before.walks, 3u);
  EXPECT_EQ(b->counters().lookups, before.lookups);
  EXPECT_EQ(read(w, *b.client, 1), value_of(3, 40));
  EXPECT_EQ(b->counters().walks - before.walks, 3u);
}

TEST(Clover, TakesSlotsOfAVolumeWhileThereAreAnyAndThenOfTheFullest) {
  SlotStock stock;
  NodePointer slot;
  EXPECT_FALSE(stock.take(0, slot));
  for (std::uint32_t i = 0; i < 3; ++i) stock.add(NodePointer::make(1, 1, 0x1000 + std::uint64_t{64} * i));
  stock.add(NodePointer::make(0, 1, 0x2000));
  stock.put_back(NodePointer::make(2, 1, 0x3000));
  EXPECT_EQ(stock.size(), 5u);
  EXPECT_TRUE(stock.take(2, slot));
  EXPECT_EQ(slot.volume(), 2u);
  EXPECT_TRUE(stock.take(2, slot));
  EXPECT_EQ(slot.volume(), 1u);
  EXPECT_EQ(slot.address(), 0x1000u);
  EXPECT_TRUE(stock.take(7, slot));
  EXPECT_EQ(slot.address(), 0x1040u);
  EXPECT_EQ(stock.take_all().size(), 2u);
  EXPECT_EQ(stock.size(), 0u);
}

TEST(Clover, WaitsForSlotsOfAKeysVolumeAndTakesAnothersWhenThatIsFull) {
  World w({.nodes = 3, .node_memory = 1u << 16});
  auto& a = w.add_client();
  std::array<Outcome, 96> outcomes;
  outcomes.fill(Outcome::kUnknown);
  // All at once, before the client has slots of any volume.
  for (std::uint64_t key = 0; key < outcomes.size(); ++key) {
    w.scheduler.spawn(put_later(*a.client, key, value_of(1, 40), outcomes[key]));
  }
  w.run_until([&] { return std::ranges::all_of(outcomes, [](Outcome o) { return o == Outcome::kOk; }); });
  EXPECT_EQ(a->counters().strays, 0u);
  // The first volume that is full sends its keys to the others, and nothing fails.
  for (std::uint64_t key = outcomes.size(); a->counters().strays == 0 && key < 10'000; ++key) {
    ASSERT_EQ(w.wait_for(a->put(key, value_of(1, 40))), Outcome::kOk) << key;
  }
  EXPECT_GT(a->counters().strays, 0u);
}

TEST(Clover, RefusesAValueThatIsTooLong) {
  World w({});
  auto& a = w.add_client();
  EXPECT_EQ(a->value_bytes(), 40u);
  EXPECT_EQ(w.wait_for(a->put(1, value_of(1, 41))), Outcome::kTooLong);
}

WorldConfig seeded(std::uint32_t replication = 1) {
  WorldConfig c{.nodes = 3, .replication = replication};
  c.local.mode = LocalMode::kSeeded;
  c.client.timeout = Duration::milliseconds(1);
  c.client.space_timeout = Duration::milliseconds(1);
  c.client.backoff_first = Duration::microseconds(1);
  c.client.backoff_most = Duration::microseconds(20);
  c.client.suspect_after = Duration::microseconds(50);
  return c;
}

// The memory nodes that hold the key's newest version as the server knows it: primary first.
std::vector<remote::NodeId> nodes_of(World& w, std::uint32_t volume) {
  const auto& v = w.server_config.volumes.at(volume);
  std::vector<remote::NodeId> nodes;
  for (std::size_t j = 0; j < v.count; ++j) nodes.push_back(v.replicas[j].node);
  return nodes;
}

// A's version of key 1 stands behind the first one on the primary alone: A cannot reach the mirror.
struct HalfLinked {
  explicit HalfLinked(World& world) : w(world), a(w.add_client()), b(w.add_client()) {
    EXPECT_EQ(w.wait_for(a->put(1, value_of(0, 40))), Outcome::kOk);
    EXPECT_EQ(w.wait_for(b->put(1, value_of(1, 40))), Outcome::kOk);
    // The slots go round the volumes; the tail's is found by looking for its key.
    for (std::uint32_t v = 0; v < w.server_config.volumes.size(); ++v) {
      const auto& base = w.server_config.volumes[v].replicas[0];
      const auto bytes = w.fabric.region_bytes(base).subspan(base.address - w.memory[base.node.value].base.address);
      const NodeLayout layout(40);
      for (std::size_t at = 0; at + layout.slot_bytes() <= w.server_config.volumes[v].length;
           at += layout.slot_bytes()) {
        const auto seen = parse_node(layout, bytes.subspan(at, layout.node_bytes()));
        if (seen.next == free_word(1, NodeKind::kValue) && seen.key == 1) nodes = nodes_of(w, v);
      }
    }
    EXPECT_EQ(nodes.size(), 2u);
    EXPECT_EQ(read(w, *a.client, 1), value_of(1, 40));
    w.scheduler.spawn(put_later(*a.client, 1, value_of(2, 40), a_put));
    // Up to where its swap on the primary has happened; the next things it does are those on the mirror.
    const auto swaps = a->counters().swaps;
    while (a->counters().swaps < swaps + 2) w.step();
    a.memory->cut(nodes.at(1));
  }
  World& w;
  World::Member& a;
  World::Member& b;
  std::vector<remote::NodeId> nodes;
  Outcome a_put = Outcome::kUnavailable;
};

TEST(CloverMirrors, AReaderThatReturnsAVersionMakesItSurviveThePrimary) {
  World w(seeded(2));
  HalfLinked half(w);
  const auto first = read(w, *half.b.client, 1);
  ASSERT_EQ(first, value_of(2, 40));
  half.a.kill();
  w.fabric.kill_node(half.nodes.at(0));
  EXPECT_EQ(read(w, *half.b.client, 1), first);
  EXPECT_EQ(w.server->view_number(), 2u);
}

TEST(CloverMirrors, AWriterThatAppendsToAVersionMakesItSurviveThePrimary) {
  World w(seeded(2));
  HalfLinked half(w);
  ASSERT_EQ(w.wait_for(half.b->put(1, value_of(3, 40))), Outcome::kOk);
  EXPECT_GT(half.b->counters().swaps_lost, 0u);
  half.a.kill();
  w.fabric.kill_node(half.nodes.at(0));
  EXPECT_EQ(read(w, *half.b.client, 1), value_of(3, 40));
}

TEST(CloverMirrors, AWriterThatCannotReachAMirrorSaysUnknownAndWorksOnInTheViewWithoutIt) {
  World w(seeded(2));
  HalfLinked half(w);
  w.run_until([&] { return half.a_put != Outcome::kUnavailable; });
  EXPECT_EQ(half.a_put, Outcome::kUnknown);
  w.run_until([&] { return w.server->view_number() == 2; });
  const auto seen = read(w, *half.b.client, 1);
  EXPECT_TRUE(seen == value_of(1, 40) || seen == value_of(2, 40));
  EXPECT_EQ(w.wait_for(half.a->put(1, value_of(3, 40))), Outcome::kOk);
  EXPECT_EQ(read(w, *half.b.client, 1), value_of(3, 40));
}

TEST(CloverMirrors, OperationsOutlastAChangeOfViewHoweverLongItsLeasesAre) {
  auto c = seeded(2);
  c.lifetime = c.client.timeout * 8;
  World w(c);
  auto& a = w.add_client();
  for (Key key = 0; key < 10; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
  w.fabric.kill_node(remote::NodeId(0));
  for (Key key = 0; key < 10; ++key) EXPECT_EQ(w.wait_for(a->put(key, value_of(key + 1, 40))), Outcome::kOk) << key;
  EXPECT_EQ(w.server->view_number(), 2u);
}

Task<void> put_on_and_on(Client& client, Key first, const bool& stop, std::map<Outcome, int>& ends, int& running) {
  const auto value = value_of(first, 40);
  Key i = 0;
  while (!stop) {
    const Outcome end = co_await client.put(first + i++ % 7, value);
    ++ends[end];
  }
  --running;
}

// The view changes, and nothing has failed: whose swap is on its way meanwhile learns what came of it under the next.
TEST(CloverMirrors, ANodeThatComesBackLeavesNoPutInDoubt) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    auto c = seeded(2);
    c.local.seed = seed;
    c.client.timeout = c.client.space_timeout = Duration::milliseconds(4);
    World w(c);
    w.start_repairing();
    auto& a = w.add_client();
    auto& b = w.add_client();
    bool stop = false;
    int running = 16;
    std::map<Outcome, int> ends;
    for (Key i = 0; i < 16; ++i)
      w.scheduler.spawn(put_on_and_on(i % 2 == 0 ? *a.client : *b.client, i * 1000, stop, ends, running));
    w.run_for(c.lifetime * 4);
    w.kill_node(1);
    w.run_until([&] { return w.server->missing() == 2; });
    w.run_for(c.lifetime * 4);
    ends.clear();
    w.restart_node(1);
    w.run_until([&] { return w.server->missing() == 0 && w.server->joining() == 0; });
    w.run_for(c.lifetime);
    EXPECT_GT(ends[Outcome::kOk], 100);
    EXPECT_EQ(ends[Outcome::kUnknown], 0) << "seed " << seed;
    stop = true;
    w.run_until([&] { return running == 0; });
  }
}

TEST(CloverFaults, AnswersUnavailableAndDoesNotHangWhenTheOnlyReplicaIsDead) {
  World w(seeded());
  auto& a = w.add_client();
  for (Key key = 0; key < 30; ++key) w.wait_for(a->put(key, value_of(key, 40)));
  for (std::uint32_t i = 0; i < 3; ++i) w.fabric.kill_node(remote::NodeId(i));
  std::vector<std::uint8_t> into(40);
  const Time begun = w.now;
  for (Key key = 0; key < 30; ++key) EXPECT_EQ(w.wait_for(a->get(key, into)).outcome, Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(a->put(5, into)), Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(a->put(500, into)), Outcome::kUnavailable);
  // Only the first waits in vain; a node known to be away fails at once.
  EXPECT_LT(w.now - begun, Duration::milliseconds(6));
}

TEST(CloverFaults, NewKeysGoWhereMemoryIsWhenAVolumeIsLostForGood) {
  World w({.nodes = 3});
  w.scheduler.spawn(keep_time(w.scheduler));
  w.start_repairing();
  auto& a = w.add_client();
  for (Key key = 0; key < 60; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
  w.kill_node(1);
  Outcome under_way = Outcome::kUnknown;
  Key there = 100;  // a key of that node's
  while (key_hash(there) % 3 != 1) ++there;
  w.scheduler.spawn(put_later(*a.client, there, value_of(there, 40), under_way));
  w.run_for(Duration::milliseconds(5));
  EXPECT_EQ(under_way, Outcome::kUnknown) << "it may come back with what it had";
  w.restart_node(1);
  w.run_for(Duration::milliseconds(50));
  EXPECT_EQ(w.server->lost_volumes(), 1u);
  EXPECT_EQ(under_way, Outcome::kOk);
  auto& b = w.add_client();
  for (Key key = 1'000; key < 1'100; ++key) {
    ASSERT_EQ(w.wait_for((key % 2 == 0 ? a : b)->put(key, value_of(key, 40))), Outcome::kOk) << key;
    EXPECT_EQ(read(w, *b.client, key), value_of(key, 40));
  }
  // What was in it is neither there nor absent.
  std::array<std::size_t, 2> found{};
  for (Key key = 0; key < 60; ++key) {
    std::vector<std::uint8_t> into(40);
    const Outcome got = w.wait_for(b->get(key, into)).outcome;
    EXPECT_EQ(got, key_hash(key) % 3 == 1 ? Outcome::kUnavailable : Outcome::kOk) << key;
    ++found.at(got == Outcome::kOk ? 1 : 0);
  }
  EXPECT_GT(found[0], 10u);
  EXPECT_GT(found[1], 30u);
  EXPECT_LE(w.server->free_slots(), w.server->slots().capacity() / 3 * 2);
}

// A's process may have died meanwhile.
class LostVolume : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CloverFaults, LostVolume, testing::Bool());

// Node 0 was left out although it lived; then node 1, which had all since, lost it. What node 0 holds is of no use to anybody.
TEST_P(LostVolume, IsUnavailableAtOnceThoughANodeThatWasLeftOutOfItIsThere) {
  World w({.nodes = 3, .replication = 2});
  w.scheduler.spawn(keep_time(w.scheduler));
  auto& a = w.add_client();
  auto& b = w.add_client();
  Key key = 1;
  while (key_hash(key) % 3 != 0) ++key;
  ASSERT_EQ(w.wait_for(a->put(key, value_of(1, 40))), Outcome::kOk);
  ASSERT_TRUE(w.server->lose(w.now, remote::NodeId(0)));
  w.run_until([&] { return w.server->missing() == 2; });
  ASSERT_EQ(w.wait_for(a->put(key, value_of(2, 40))), Outcome::kOk);
  ASSERT_EQ(read(w, *b.client, key), value_of(2, 40));
  if (GetParam()) a.kill();
  w.kill_node(1);
  w.restart_node(1);
  for (int i = 0; i < 10; ++i) {
    w.server->see(w.now, {w.memory[1], 77});
    w.run_for(Duration::milliseconds(1));
  }
  ASSERT_EQ(w.server->lost_volumes(), 1u);
  const Time begun = w.now;
  const auto before = b->counters();
  std::vector<std::uint8_t> into(40);
  EXPECT_EQ(w.wait_for(b->get(key, into)).outcome, Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(b->put(key, value_of(3, 40))), Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(b->insert(key, value_of(3, 40))), Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(b->erase(key)), Outcome::kUnavailable);
  EXPECT_LT(w.now - begun, Duration::milliseconds(2));
  EXPECT_EQ(b->counters().swaps, before.swaps);
  EXPECT_EQ(b->counters().writes, before.writes);
  EXPECT_LT(b->counters().lookups - before.lookups, 12u);
}

// The version that is known is there, and what follows it is lost; whoever linked that died before it told the server.
TEST(CloverFaults, WhatFollowsALostVersionIsUnavailableAtOnce) {
  WorldConfig config{.nodes = 3};
  config.lifetime = Duration::milliseconds(100);
  config.flight = Duration::milliseconds(1);
  World w(config);
  w.scheduler.spawn(keep_time(w.scheduler));
  auto& a = w.add_client();
  auto& b = w.add_client();
  const auto lose = [&](std::uint32_t node) {
    w.kill_node(node);
    w.restart_node(node);
    w.server->see(w.now, {w.memory[node], 77});
    w.run_for(config.lifetime / 3);
  };
  Key key = 1;  // at home in volume 0, and where volume 1 is lost in volume 2
  while (key_hash(key) % 3 != 0 || key_hash(key) % 2 != 1) ++key;
  ASSERT_EQ(w.wait_for(a->put(key, value_of(1, 40))), Outcome::kOk);
  lose(1);
  ASSERT_EQ(read(w, *b.client, key), value_of(1, 40));
  ASSERT_EQ(w.wait_for(a->put(key, value_of(2, 40))), Outcome::kOk);
  ASSERT_EQ(a->unreported(), 1u);
  a.kill();
  lose(2);
  ASSERT_EQ(w.server->lost_volumes(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Time begun = w.now;
    const auto before = b->counters();
    std::vector<std::uint8_t> into(40);
    EXPECT_EQ(w.wait_for(b->get(key, into)).outcome, Outcome::kUnavailable);
    EXPECT_EQ(w.wait_for(b->put(key, value_of(3, 40))), Outcome::kUnavailable);
    EXPECT_EQ(w.wait_for(b->insert(key, value_of(3, 40))), Outcome::kUnavailable);
    EXPECT_LT(w.now - begun, Duration::milliseconds(5));
    EXPECT_LT(b->counters().reads - before.reads, 10u);
    EXPECT_LT(b->counters().swaps - before.swaps, 5u);
    EXPECT_LT(b->counters().lookups - before.lookups, 10u);
  }
}

TEST(CloverFaults, BringsANodeThatDiesAgainAndAgainBackAtOnceEachTime) {
  WorldConfig config;
  config.replication = 2;
  World w(config);
  auto& client = w.add_client();
  w.start_repairing();
  ASSERT_EQ(w.wait_for(client->put(1, value_of(1, 40))), Outcome::kOk);
  for (std::uint64_t life = 1; life <= 8; ++life) {
    w.kill_node(1);
    w.run_for(config.lifetime / 8);
    w.restart_node(1);
    const Time died = w.now;
    w.run_until([&] { return w.server->counters().restored == 2 * life; });
    // The view without it, the view with it, and until nobody can act under the one before.
    EXPECT_LT(w.now - died, (config.lifetime + config.flight) * 3) << "death " << life;
  }
  EXPECT_EQ(w.server->counters().let_go, 8u);
}

// The directory was begun anew: nobody says that the old numbers are gone.
TEST(CloverFaults, ANodeWithAnotherNumberIsNoLongerThereUnderTheOldOne) {
  World w({.nodes = 3, .replication = 2});
  w.scheduler.spawn(keep_time(w.scheduler));
  for (std::uint32_t i = 0; i < 3; ++i) w.server_config.homes[i].name = "memory" + std::to_string(i);
  w.server = std::make_unique<MetadataServer>(w.server_config);
  w.start_repairing();
  w.run_for(Duration::milliseconds(1));
  ASSERT_EQ(w.server->view_number(), 1u);
  const auto number = [&](std::uint32_t i, std::uint32_t n) {
    Home home = w.server_config.homes[i];
    home.region.base.node = remote::NodeId(n);
    w.repairer->saw(w.now, home);
  };
  number(1, 9);
  w.run_for(Duration::milliseconds(1));
  EXPECT_EQ(w.server->view_number(), 2u);
  EXPECT_EQ(w.server->name_of(remote::NodeId(9)), "memory1");
  // A number that another had, who is told of later.
  number(1, 2);
  w.run_for(Duration::milliseconds(1));
  EXPECT_EQ(w.server->view_number(), 3u);
  number(2, 1);
  w.run_for(Duration::milliseconds(1));
  EXPECT_EQ(w.server->view_number(), 4u);
  EXPECT_EQ(w.server->name_of(remote::NodeId(1)), "memory2");
  EXPECT_EQ(w.server->name_of(remote::NodeId(2)), "memory1");
  EXPECT_EQ(w.server->missing(), 0u);
}

// A number is given again some time.
TEST(CloverFaults, AStrangerThatIsGoneTakesNobodysReplicasWithIt) {
  World w({.nodes = 3, .replication = 2});
  w.scheduler.spawn(keep_time(w.scheduler));
  for (std::uint32_t i = 0; i < 3; ++i) w.server_config.homes[i].name = "memory" + std::to_string(i);
  w.server = std::make_unique<MetadataServer>(w.server_config);
  w.repair_memory = std::make_unique<remote::LocalMemory>(w.scheduler, w.fabric);
  w.repairer = std::make_unique<Repairer>(*w.repair_memory, *w.server, w.config_.lifetime / 8);
  const auto pass = [&] {
    w.run_for(Duration::milliseconds(1));
    w.server->awake(w.now);
    return w.server->missing();
  };
  // Before anybody has been seen; then when the node is there under another number.
  w.repairer->gone(w.now, remote::NodeId(1), "memory7");
  EXPECT_EQ(pass(), 0u);
  for (const auto& home : w.server_config.homes) w.repairer->saw(w.now, home);
  Home renamed = w.server_config.homes[1];
  renamed.region.base.node = remote::NodeId(9);
  w.repairer->saw(w.now, renamed);
  w.repairer->gone(w.now, remote::NodeId(1), "memory1");
  EXPECT_EQ(pass(), 0u);
  w.scheduler.spawn(w.repairer->run());
  EXPECT_EQ(pass(), 0u);
  w.repairer->gone(w.now, remote::NodeId(9), "memory7");
  EXPECT_EQ(pass(), 0u);
  w.repairer->gone(w.now, remote::NodeId(9), "memory1");
  EXPECT_EQ(pass(), 2u);
}

TEST(CloverFaults, MemoryThatIsAnothersIsLeftAloneUntilItIsFree) {
  WorldConfig config;
  config.replication = 2;
  World w(config);
  auto& client = w.add_client();
  bool is_free = false;
  std::vector<remote::NodeId> asked;
  w.start_repairing({.is_free = [&](Home home) -> remote::Task<bool> {
    asked.push_back(home.region.base.node);
    co_return is_free;
  }});
  ASSERT_EQ(w.wait_for(client->put(1, value_of(1, 40))), Outcome::kOk);
  w.kill_node(1);
  w.run_for(config.lifetime / 8);
  w.restart_node(1);
  const auto bytes = w.fabric.region_bytes(w.memory[1].base);
  std::ranges::fill(bytes, 0xA5);
  w.run_for((config.lifetime + config.flight) * 4);
  EXPECT_EQ(w.server->missing(), 2u);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](auto byte) { return byte == 0xA5; })) << "not blanked, nor written to";
  EXPECT_EQ(read(w, *client.client, 1), value_of(1, 40));
  ASSERT_FALSE(asked.empty());
  EXPECT_TRUE(std::ranges::all_of(asked, [](auto node) { return node == remote::NodeId(1); }));
  std::ranges::fill(bytes, 0);
  is_free = true;
  w.run_until([&] { return w.server->counters().restored == 2; });
}

// One is suspected though it lives, the other dies: whenever that becomes known, and whichever was first.
TEST(CloverFaults, OfTwoThatLeaveTheDeadOneGoes) {
  enum class Order : std::uint8_t { kAtOnce, kAfterTheView, kDeadFirst };
  for (const Order order : {Order::kAtOnce, Order::kAfterTheView, Order::kDeadFirst}) {
    WorldConfig config{.nodes = 2, .replication = 2};
    World w(config);
    auto& a = w.add_client();
    w.start_repairing();
    for (Key key = 0; key < 50; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
    if (order == Order::kDeadFirst) w.kill_node(1);
    ASSERT_TRUE(w.server->lose(w.now, remote::NodeId(0)));  // it lives, and keeps its memory
    if (order != Order::kDeadFirst) w.kill_node(1);
    if (order == Order::kAfterTheView) w.run_until([&] { return w.server->view_number() == 2; });
    w.run_for(config.lifetime / 20);
    w.restart_node(1);
    w.run_until([&] { return w.server->missing() == 0 && w.server->joining() == 0; });
    for (Key key = 0; key < 50; ++key) EXPECT_EQ(read(w, *a.client, key), value_of(key, 40)) << key;
    for (const auto& volume : w.server->volumes()) EXPECT_EQ(volume.replicas[volume.first].node, remote::NodeId(0));
  }
}

TEST(CloverFaults, WhoWasSuspectedInVainWithAnotherIsSuspectedAgain) {
  auto config = seeded(2);
  config.nodes = 2;
  config.client.timeout = Duration::milliseconds(10);
  World w(config);
  auto& a = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1, 40))), Outcome::kOk);
  w.fabric.kill_node(remote::NodeId(1));  // for good, and nobody says so
  Outcome put = Outcome::kNoSpace;
  w.scheduler.spawn(put_later(*a.client, 1, value_of(2, 40), put));
  w.run_for(config.client.suspect_after * 2);
  ASSERT_TRUE(w.server->lose(w.now, remote::NodeId(0)));  // it lives
  w.run_until([&] { return w.server->view_number() == 2; });
  EXPECT_EQ(w.server->missing(), 0u) << "who is dead is not known";
  w.run_until([&] { return put != Outcome::kNoSpace; });
  EXPECT_EQ(put, Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, 1), value_of(2, 40));
  for (const auto& volume : w.server->volumes()) EXPECT_EQ(volume.replicas[volume.primary()].node, remote::NodeId(0));
}

// Each time after some of what it is to blank; all of it never takes so short a time.
TEST(CloverFaults, ANodeIsBlankedThoughTheConnectionToItIsLostAgainAndAgain) {
  WorldConfig config{.nodes = 2, .replication = 2};
  config.local.mode = LocalMode::kSeeded;
  World w(config);
  auto& a = w.add_client();
  for (std::uint64_t i = 0; i < 300; ++i) ASSERT_EQ(w.wait_for(a->put(i, value_of(i, 40))), Outcome::kOk);
  w.start_repairing();
  ASSERT_TRUE(w.server->lose(w.now, remote::NodeId(1)));  // it lives, and keeps its memory
  w.run_until([&] { return w.server->missing() == 2; });
  for (std::uint64_t i = 0; w.server->missing() != 0; ++i) {
    ASSERT_LT(i, 3'000'000u) << w.server->summary();
    if (i % 400 == 0) w.repair_memory->disconnect(remote::NodeId(1));
    w.step();
  }
  w.run_until([&] { return w.server->joining() == 0; });
  for (std::uint64_t i = 0; i < 300; ++i) EXPECT_TRUE(read(w, *a.client, i).has_value());
}

TEST(CloverFaults, ANodeThatIsBlankComesBackOnlyWhenNoZeroIsUnderWayToItAnyMore) {
  WorldConfig config{.nodes = 2, .replication = 2};
  config.local.mode = LocalMode::kSeeded;
  World w(config);
  auto& a = w.add_client();
  for (std::uint64_t i = 0; i < 300; ++i) ASSERT_EQ(w.wait_for(a->put(i, value_of(i, 40))), Outcome::kOk);
  w.start_repairing();
  ASSERT_TRUE(w.server->lose(w.now, remote::NodeId(1)));  // it lives, and keeps its memory
  w.run_until([&] { return w.server->missing() == 2; });
  const auto bytes = w.fabric.region_bytes(w.memory[1].base);
  const std::vector<std::uint8_t> before(bytes.begin(), bytes.end());
  w.run_until([&] { return !std::ranges::equal(bytes, before); });  // the first has arrived, others are under way
  w.repair_memory->disconnect(remote::NodeId(1));
  const Time doubtful = w.now;
  w.run_until([&] { return w.server->missing() == 0; });
  EXPECT_GE(w.now, doubtful + config.flight);
}

TEST(CloverFaults, AnswersUnavailableWhenTheMetadataServerIsGoneAndWorksOnWhenItIsBack) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  a.channel->set_service(nullptr);
  // On cursors, until the lease ends.
  EXPECT_EQ(read(w, *a.client, 1), value_of(1, 40));
  w.run_for(c.lifetime * 2);
  std::vector<std::uint8_t> into(40);
  EXPECT_EQ(w.wait_for(a->get(1, into)).outcome, Outcome::kUnavailable);
  EXPECT_EQ(w.wait_for(a->put(1, into)), Outcome::kUnavailable);
  a.channel->set_service(w.server.get());
  EXPECT_EQ(read(w, *a.client, 1), value_of(1, 40));
  EXPECT_EQ(w.wait_for(a->put(1, value_of(2, 40))), Outcome::kOk);
}

TEST(CloverFaults, LosesNothingWhenTheMetadataServerStartsAgainFromItsJournal) {
  World w(seeded(2));
  KeptJournal journal;
  w.server = std::make_unique<MetadataServer>(w.server_config, &journal);
  auto& a = w.add_client();
  std::map<Key, std::vector<std::uint8_t>> model;
  const auto write_some = [&](std::uint64_t round) {
    for (std::uint64_t i = 0; i < 60; ++i) {
      const Key key = (i * 7 + round) % 40;
      if (i % 9 == 0) {
        w.wait_for(a->erase(key));
        model.erase(key);
      } else {
        ASSERT_EQ(w.wait_for(a->put(key, value_of(i + round * 100, 40))), Outcome::kOk);
        model[key] = value_of(i + round * 100, 40);
      }
    }
  };
  for (std::uint64_t round = 0; round < 5; ++round) {
    write_some(round);
    auto again = std::make_unique<MetadataServer>(w.server_config, &journal);
    const auto records = journal.records;
    for (const auto& record : records) ASSERT_TRUE(again->replay(record));
    EXPECT_EQ(journal.records.size(), records.size());
    again->restart(w.now);
    a.channel->set_service(again.get());
    w.server = std::move(again);
  }
  for (Key key = 0; key < 40; ++key) {
    const auto there = model.find(key);
    EXPECT_EQ(read(w, *a.client, key), there == model.end() ? std::nullopt : std::optional(there->second)) << key;
  }
}

TEST(CloverFaults, LosesNothingWhenTheMetadataServerStartsAgainWithAShorterLifetime) {
  auto c = seeded(2);
  c.lifetime = Duration::seconds(60);
  c.flight = Duration::seconds(1);
  World w(c);
  KeptJournal journal;
  w.server = std::make_unique<MetadataServer>(w.server_config, &journal);
  journal.append(w.server->state(w.now));
  w.scheduler.spawn(keep_time(w.scheduler));
  auto& a = w.add_client();
  auto& b = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1, 40))), Outcome::kOk);
  w.run_for(Duration::seconds(9));
  EXPECT_EQ(read(w, *a.client, 1), value_of(1, 40));
  auto config = w.server_config;
  config.cursor_lifetime = Duration::seconds(1);
  auto again = std::make_unique<MetadataServer>(config);
  for (const auto& record : journal.records) ASSERT_TRUE(again->replay(record));
  again->restart(w.now);
  for (auto* const member : {&a, &b}) member->channel->set_service(again.get());
  std::swap(w.server, again);
  w.run_for(Duration::milliseconds(100));
  // The key's primary lives, and is left out: one client hears of that at once, the other goes on as before.
  const std::uint32_t before = w.server->view_number();
  const auto& volumes = w.server->volumes();
  w.server->lose(w.now, volumes[key_hash(1) % volumes.size()].replicas[0].node);
  w.run_until([&] {
    w.server->awake(w.now);
    return w.server->view_number() != before;
  });
  EXPECT_EQ(read(w, *b.client, 777), std::nullopt);
  ASSERT_EQ(w.wait_for(b->put(1, value_of(2, 40))), Outcome::kOk);
  EXPECT_EQ(read(w, *b.client, 1), value_of(2, 40));
  EXPECT_EQ(read(w, *a.client, 1), value_of(2, 40));
  ASSERT_EQ(w.wait_for(a->put(1, value_of(3, 40))), Outcome::kOk);
  for (auto* const member : {&a, &b}) EXPECT_EQ(read(w, *member->client, 1), value_of(3, 40));
}

TEST(CloverFaults, SaysNoSpaceWhenEverySlotHoldsAKeyAndTakesWritesAgainAfterErasing) {
  auto c = seeded();
  c.node_memory = 64 * 20;
  World w(c);
  auto& a = w.add_client();
  std::vector<Key> kept;
  Outcome outcome = Outcome::kOk;
  for (Key key = 0; outcome == Outcome::kOk && key < 100; ++key) {
    outcome = w.wait_for(a->put(key, value_of(key, 40)));
    if (outcome == Outcome::kOk) kept.push_back(key);
  }
  EXPECT_EQ(outcome, Outcome::kNoSpace);
  EXPECT_EQ(kept.size(), 59u);  // one slot is kept back, so that something can be erased
  EXPECT_EQ(w.wait_for(a->put(0, value_of(1, 40))), Outcome::kNoSpace);
  for (const Key key : kept) EXPECT_EQ(read(w, *a.client, key), value_of(key, 40));
  for (Key key = 0; key < 5; ++key) EXPECT_EQ(w.wait_for(a->erase(key)), Outcome::kOk) << key;
  for (Key key = 200; key < 203; ++key) EXPECT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk) << key;
}

TEST(CloverFaults, WhoGetsASlotLaterThanItsTimeOutBecauseThereWasNoSpaceStillWrites) {
  auto c = seeded();
  c.node_memory = 64 * 20;
  c.client.space_timeout = c.client.timeout * 8;
  World w(c);
  auto& a = w.add_client();
  for (Key key = 0; key < 59; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
  std::optional<Outcome> late;
  const auto put_when_there_is_room = [&]() -> Task<void> {
    const auto value = value_of(7, 40);
    late = co_await a->put(200, value);
  };
  w.scheduler.spawn(put_when_there_is_room());
  w.run_for(c.client.timeout * 3);
  ASSERT_FALSE(late);
  for (Key key = 0; key < 5; ++key) EXPECT_EQ(w.wait_for(a->erase(key)), Outcome::kOk) << key;
  w.run_until([&] { return late.has_value(); });
  EXPECT_EQ(late, Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, 200), value_of(7, 40));
}

// A metadata server that does not believe the first suspicions of a node.
class Unbelieving : public remote::MessageService {
 public:
  Unbelieving(MetadataServer& server, int refusals) : server_(server), refusals_(refusals) {}
  std::size_t handle(Time now, ByteView request, MutableBytes response) override {
    std::vector<std::uint8_t> asked(request.begin(), request.end());
    MessageReader in(asked);
    const auto header = take_request_header(in);
    // It cannot do without a node that it does not know.
    if (header && header->type == Request::kSuspect && refusals_ > 0 && refusals_-- > 0)
      store_le(asked.data() + asked.size() - 4, std::uint32_t{99});
    return server_.handle(now, asked, response);
  }
  bool has_refused() const { return refusals_ == 0; }

 private:
  MetadataServer& server_;
  int refusals_;
};

TEST(CloverMirrors, ASuspicionThatIsRefusedIsRaisedAgain) {
  World w(seeded(2));
  auto& a = w.add_client();
  Unbelieving server(*w.server, 3);
  a.channel->set_service(&server);
  for (Key key = 0; key < 10; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
  a.memory->cut(remote::NodeId(0));
  for (Key key = 0; key < 200 && w.server->view_number() == 1; ++key) w.wait_for(a->put(key % 10, value_of(key, 40)));
  EXPECT_TRUE(server.has_refused());
  EXPECT_EQ(w.server->view_number(), 2u);
  EXPECT_EQ(w.wait_for(a->put(1, value_of(1, 40))), Outcome::kOk);
}

// RemoteMemory of which one CAS is executed and nobody learns of it.
class Forgetful : public remote::RemoteMemory {
 public:
  Forgetful(remote::Scheduler& scheduler, remote::RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (!forgets || operation.kind != remote::OpKind::kCompareAndSwap) return under_.submit(operation);
    forgets = false;
    forgot_at = scheduler().now();
    lost_ = remote::swap_operation(operation.remote, operation.compare, operation.swap_or_add);
    lost_.on_complete = [](remote::Operation& o) { SLUICE_CHECK(o.status == Status::kOk); };
    under_.submit(lost_);
    complete(operation, Status::kUnknown);
  }
  bool forgets = false;
  Time forgot_at;

 private:
  using Status = remote::Status;
  remote::RemoteMemory& under_;
  remote::Operation lost_;
};

// Others may have gone on from a version since its first CAS, and its slot may be on its way to another key: a repeated CAS that finds it linked says
// nothing of now.
TEST(CloverFaults, ACursorToWhatASwapOfUnknownOutcomeLinkedIsAsOldAsThatSwap) {
  WorldConfig config;
  config.client.backoff_first = config.client.backoff_most = config.lifetime / 2;
  World w(config);
  remote::LocalMemory under(w.scheduler, w.fabric);
  remote::LocalChannel channel(w.scheduler, w.fabric, *w.server);
  Forgetful memory(w.scheduler, under);
  Client client(memory, channel, config.client, Rng(7));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  w.scheduler.spawn(client.maintain());
  ASSERT_EQ(w.wait_for(client.put(1, value_of(1, 40))), Outcome::kOk);
  memory.forgets = true;
  ASSERT_EQ(w.wait_for(client.put(1, value_of(2, 40))), Outcome::kOk);
  ASSERT_FALSE(memory.forgets);
  ASSERT_GT(w.now, memory.forgot_at + config.lifetime / 5);
  ASSERT_LT(w.now, memory.forgot_at + config.lifetime);
  const auto looked_up = client.counters().lookups;
  w.run_until([&] { return w.now >= memory.forgot_at + config.lifetime; });
  EXPECT_EQ(read(w, client, 1), value_of(2, 40));
  EXPECT_EQ(client.counters().lookups, looked_up + 1);
  bool left = false;
  const auto leave = [&]() -> Task<void> {
    co_await client.leave();
    left = true;
  };
  w.scheduler.spawn(leave());
  w.run_until([&] { return left; });
}

TEST(CloverFaults, AClientThatDiesBetweenWriteAndSwapLeavesNothingBehind) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  auto& b = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  Outcome outcome = Outcome::kUnavailable;
  const auto writes = a->counters().writes;
  w.scheduler.spawn(put_later(*a.client, 1, value_of(2, 40), outcome));
  while (a->counters().writes == writes) w.step();
  a.kill();
  EXPECT_EQ(read(w, *b.client, 1), value_of(1, 40));
  w.run_for((c.lifetime + c.flight) * 8);
  EXPECT_EQ(read(w, *b.client, 1), value_of(1, 40));
  EXPECT_EQ(w.server->clients(), 1u);
  EXPECT_EQ(w.server->slots().count(SlotState::kOrphan), 0u);
  EXPECT_EQ(w.server->slots().count(SlotState::kLive), 1u);
  EXPECT_EQ(w.server->slots().count(SlotState::kOwned), b->slots_in_hand());
}

TEST(CloverFaults, TheOrphansOfManyClientsAreLookedIntoAsFastAsTheyCome) {
  WorldConfig config{.nodes = 3};
  config.node_memory = 64 * 8192;
  World w(config);
  w.add_client();
  std::array<Outcome, 8 * 200> outcomes;
  outcomes.fill(Outcome::kUnknown);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (i % 200 == 0) w.add_client();
    w.scheduler.spawn(put_later(*w.members.back()->client, i, value_of(i, 40), outcomes[i]));
  }
  w.run_until([&] { return std::ranges::all_of(outcomes, [](Outcome o) { return o == Outcome::kOk; }); });
  for (std::size_t i = 1; i < w.members.size(); ++i) w.members[i]->kill();
  w.run_until([&] { return w.server->clients() == 1; });
  EXPECT_GT(w.server->slots().count(SlotState::kOrphan), 500u);
  const Time dead = w.now;
  w.run_until([&] { return w.server->slots().count(SlotState::kOrphan) == 0; });
  EXPECT_LT(w.now - dead, config.flight + config.lifetime);
}

Task<void> put_and_erase(World& w, Client& client, Key keys, Duration pause, bool& done) {
  for (Key key = 0; key < keys; ++key) {
    const Outcome put = co_await client.put(key, value_of(key, 40));
    EXPECT_EQ(put, Outcome::kOk);
    const Outcome erased = co_await client.erase(key);
    EXPECT_EQ(erased, Outcome::kOk);
    co_await w.scheduler.sleep_for(pause);
  }
  done = true;
}

TEST(Clover, TheKeysThatAreErasedAreForgottenAsFastAsTheyCome) {
  WorldConfig config{.nodes = 3};
  config.lifetime = Duration::milliseconds(20);
  config.node_memory = 64 * 8192;
  World w(config);
  auto& a = w.add_client();
  constexpr Key kKeys = 5'000;
  bool done = false;
  w.scheduler.spawn(put_and_erase(w, *a.client, kKeys, Duration::microseconds(20), done));
  w.run_until([&] { return done; });
  const Time erased = w.now;
  EXPECT_GT(w.server->keys(), 0u) << "not before their time";
  w.run_until([&] { return w.server->keys() == 0; });
  EXPECT_LT(w.now - erased, config.lifetime * 2);
  EXPECT_EQ(w.server->counters().sealed, kKeys);
}

TEST(Clover, IdleClientsLeaveTheSlotsToThoseWhoWrite) {
  WorldConfig config{.nodes = 3};
  config.node_memory = 64 * 2'000;
  config.lifetime = Duration::milliseconds(5);
  World w(config);
  w.scheduler.spawn(keep_time(w.scheduler));
  Key key = 0;
  const auto put = [&](World::Member& m) { return w.wait_for(m->put(++key, value_of(1, 40))); };
  // One that has written much, and many that have written little.
  auto& busy = w.add_client();
  for (int i = 0; i < 1'500; ++i) ASSERT_EQ(put(busy), Outcome::kOk);
  EXPECT_GT(busy->slots_in_hand(), 250u) << "it goes with what it uses";
  for (int i = 0; i < 60; ++i) {
    auto& idle = w.add_client();
    for (int k = 0; k < 8; ++k) ASSERT_EQ(put(idle), Outcome::kOk);
    EXPECT_LE(idle->slots_in_hand(), 60u);
  }
  auto& writer = w.add_client();
  while (put(writer) == Outcome::kOk) {
  }
  EXPECT_LE(busy->slots_in_hand(), 12u);
  EXPECT_GT(w.server->keys(), 6'000u - 61 * 12 - 10);
  EXPECT_EQ(w.server->clients(), 62u);
}

TEST(CloverFaults, AVersionLinkedByAClientThatDiedBeforeReportingItIsKept) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  auto& b = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  w.wait_for(a->put(1, value_of(2, 40)));
  EXPECT_EQ(a->unreported(), 1u);
  a.kill();
  w.run_for((c.lifetime + c.flight) * 8);
  EXPECT_EQ(read(w, *b.client, 1), value_of(2, 40));
  EXPECT_EQ(w.server->slots().count(SlotState::kOrphan), 0u);
  EXPECT_EQ(w.server->slots().count(SlotState::kLive), 1u) << w.server->summary();
}

TEST(CloverFaults, AClientThatSleptThroughItsLeaseGoesOnAsANewOne) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  auto& b = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  // Nothing of a's goes through for long.
  a.channel->set_service(nullptr);
  w.run_for((c.lifetime + c.flight) * 4);
  EXPECT_EQ(w.server->clients(), 1u);
  w.wait_for(b->put(1, value_of(2, 40)));
  a.channel->set_service(w.server.get());
  EXPECT_EQ(read(w, *a.client, 1), value_of(2, 40));
  EXPECT_EQ(w.wait_for(a->put(1, value_of(3, 40))), Outcome::kOk);
  EXPECT_EQ(read(w, *b.client, 1), value_of(3, 40));
  EXPECT_EQ(w.server->clients(), 2u);
}

// Long after its lease a slot may be somebody else's: what it linked before the server finds by itself.
TEST(CloverFaults, AClientThatSleptThroughItsLeaseReportsNothingFromBefore) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  w.wait_for(a->put(1, value_of(1, 40)));
  w.wait_for(a->put(1, value_of(2, 40)));
  ASSERT_EQ(a->unreported(), 1u);
  a.channel->set_service(nullptr);
  w.run_for(c.lifetime * 2);
  a.channel->set_service(w.server.get());
  bool out = false;
  w.run_until([&] {
    EXPECT_EQ(a->value_bytes(), c.value_bytes);
    out = out || !a->joined();
    return w.server->counters().expired_clients == 1 && w.server->clients() == 1;
  });
  EXPECT_TRUE(out);
  w.run_until([&] { return a->joined(); });
  EXPECT_EQ(a->unreported(), 0u);
  EXPECT_EQ(w.server->counters().links, 0u);
  EXPECT_EQ(w.wait_for(a->put(2, value_of(3, 40))), Outcome::kOk);
  EXPECT_EQ(w.wait_for(a->put(2, value_of(4, 40))), Outcome::kOk);
  w.run_for((c.lifetime + c.flight) * 8);
  EXPECT_EQ(read(w, *a.client, 1), value_of(2, 40));
  EXPECT_EQ(read(w, *a.client, 2), value_of(4, 40));
  EXPECT_EQ(w.server->slots().count(SlotState::kOrphan), 0u);
  EXPECT_EQ(w.server->slots().count(SlotState::kLive), 2u) << w.server->summary();
}

// The server of a new store, empty, in place of the one before; nobody hears of it yet.
std::unique_ptr<MetadataServer> begin_anew(World& w, std::uint32_t value_bytes = 40) {
  auto config = w.server_config;
  config.store = 2;
  config.value_bytes = value_bytes;
  for (const auto& m : w.members) m->channel->set_service(nullptr);
  return std::exchange(w.server, std::make_unique<MetadataServer>(config));
}

// Who comes first is given the number that another had.
TEST(CloverFaults, AClientThatOutlivesItsStoreIsAStrangerInTheNext) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < 40; ++key) {
    ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 40))), Outcome::kOk);
    ASSERT_EQ(w.wait_for(b->put(100 + key, value_of(key, 40))), Outcome::kOk);
  }
  const auto before = begin_anew(w);
  b.channel->set_service(w.server.get());
  w.run_for(c.lifetime);
  for (Key key = 0; key < 40; ++key) ASSERT_EQ(w.wait_for(b->put(1000 + key, value_of(key + 1, 40))), Outcome::kOk);
  a.channel->set_service(w.server.get());
  w.run_for(c.lifetime);
  EXPECT_EQ(w.server->clients(), 2u);
  EXPECT_EQ(read(w, *a.client, 5), std::nullopt) << "of the store before";
  for (Key key = 0; key < 200; ++key) ASSERT_EQ(w.wait_for(a->put(2000 + key, value_of(key, 40))), Outcome::kOk);
  for (Key key = 0; key < 40; ++key) EXPECT_EQ(read(w, *b.client, 1000 + key), value_of(key + 1, 40)) << key;
}

// By the clock of the store before, all that the server has been told of would come before all that they do.
TEST(CloverFaults, ClientsThatOutliveTheirStoreHaveTheClockOfTheNext) {
  auto c = seeded();
  World w(c);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < 3000; ++key) ASSERT_EQ(w.wait_for(a->put(key % 50, value_of(key, 40))), Outcome::kOk) << key;
  for (int i = 0; i < 4; ++i) w.wait_for(b->put(1, value_of(1, 40)));
  w.run_for(c.lifetime * 2);
  const auto before = begin_anew(w);
  a.channel->set_service(w.server.get());
  b.channel->set_service(w.server.get());
  w.run_until([&] { return w.server->clients() == 2 && a->joined() && b->joined(); });
  // What is free is another's.
  w.server->slots().on_free([&w](NodePointer slot) {
    const auto at = w.server_config.volumes.at(slot.volume()).locate(slot, 0);
    const auto& region = w.memory.at(at.node.value).base;
    std::ranges::fill(w.fabric.region_bytes(region).subspan(at.address - region.address, 64), 0xA5);
  });
  for (std::uint64_t round = 0; round < 60; ++round) {
    for (Key key = 0; key < 20; ++key) {
      auto& who = (round + key) % 2 == 0 ? a : b;
      ASSERT_EQ(w.wait_for(who->put(5000 + key, value_of(round, 40))), Outcome::kOk) << round << ": " << key;
    }
  }
  w.run_for((c.lifetime + c.flight) * 8);
  for (Key key = 0; key < 20; ++key) EXPECT_EQ(read(w, *b.client, 5000 + key), value_of(59, 40)) << key;
}

// The node that an operation has composed, and the room that it reads into, are not of the next store's length.
TEST(CloverFaults, WhatIsUnderWayWhenAStoreEndsEndsAsUnavailable) {
  for (const bool gets_longer : {false, true}) {
    auto c = seeded();
    c.value_bytes = gets_longer ? 40 : 1000;
    World w(c);
    auto& a = w.add_client();
    const auto value = value_of(1, c.value_bytes);
    ASSERT_EQ(w.wait_for(a->put(7, value)), Outcome::kOk);
    std::vector<std::optional<Outcome>> ends(4);
    std::vector<std::uint8_t> into(1000);
    const auto put = [&](std::optional<Outcome>& end) -> Task<void> { end = co_await a->put(7, value); };
    const auto get = [&](std::optional<Outcome>& end) -> Task<void> { end = (co_await a->get(7, into)).outcome; };
    const auto open = [&] { return std::ranges::count_if(ends, [](const auto& end) { return !end.has_value(); }); };
    for (std::uint32_t i = 0; i < c.nodes; ++i) a.memory->cut(remote::NodeId(i));
    w.scheduler.spawn(put(ends[0]));  // tries again and again,
    w.scheduler.spawn(get(ends[1]));
    w.run_for(c.lifetime / 20);
    const auto before = begin_anew(w, gets_longer ? 1000 : 40);
    w.run_for(c.lifetime);
    w.scheduler.spawn(put(ends[2]));  // or waits for a lease
    w.scheduler.spawn(get(ends[3]));
    w.run_for(c.lifetime / 4);
    EXPECT_EQ(open(), 4);
    for (std::uint32_t i = 0; i < c.nodes; ++i) a.memory->mend(remote::NodeId(i));
    a.channel->set_service(w.server.get());
    w.run_until([&] { return open() == 0; });
    EXPECT_EQ(ends[0], Outcome::kUnavailable);
    EXPECT_EQ(ends[1], Outcome::kUnavailable);
    EXPECT_EQ(ends[2], Outcome::kUnavailable);
    EXPECT_EQ(ends[3], Outcome::kNotFound);
    EXPECT_EQ(a->value_bytes(), gets_longer ? 1000u : 40u);
    const auto last = value_of(8, a->value_bytes());
    EXPECT_EQ(w.wait_for(a->put(7, last)), Outcome::kOk);
    EXPECT_EQ(read(w, *a.client, 7), last);
  }
}

Task<void> model_run(Client& client, std::uint64_t operations, Rng rng, std::map<Key, std::vector<std::uint8_t>>& model,
                     bool& done) {
  std::vector<std::uint8_t> into(client.value_bytes());
  for (std::uint64_t i = 0; i < operations; ++i) {
    const Key key = rng.below(200);
    const auto there = model.find(key);
    const auto value = value_of(i, rng.below(41));
    switch (rng.below(8)) {
      case 0: {
        const auto expected = there == model.end() ? Outcome::kNotFound : Outcome::kOk;
        SLUICE_CHECK(co_await client.erase(key) == expected);
        model.erase(key);
        break;
      }
      case 1: {
        const auto expected = there == model.end() ? Outcome::kOk : Outcome::kExists;
        SLUICE_CHECK(co_await client.insert(key, value) == expected);
        model.try_emplace(key, value);
        break;
      }
      case 2:
      case 3:
      case 4:
        SLUICE_CHECK(co_await client.put(key, value) == Outcome::kOk);
        model[key] = value;
        break;
      default: {
        const GetResult result = co_await client.get(key, into);
        SLUICE_CHECK(result.outcome == (there == model.end() ? Outcome::kNotFound : Outcome::kOk));
        if (there != model.end()) SLUICE_CHECK(std::ranges::equal(ByteView(into).first(result.length), there->second));
      }
    }
  }
  done = true;
}

TEST_P(Replicated, BehavesAsAMapForASingleClientOverAMillionOperations) {
  auto c = config();
  c.local.mode = LocalMode::kSeeded;
  c.node_memory = 1u << 17;  // so little that slots go round many times
  World w(c);
  auto& a = w.add_client();
  std::map<Key, std::vector<std::uint8_t>> model;
  bool done = false;
  const std::uint64_t operations = usual_effort(GetParam() == 1 ? 1'000'000 : 200'000);
  w.scheduler.spawn(model_run(*a.client, operations, Rng(7), model, done));
  w.run_until([&] { return done; });
  EXPECT_GT(w.server->counters().retired, usual_effort(100'000) / GetParam());
  EXPECT_GT(w.server->counters().sealed, 0u);
  std::map<Key, std::vector<std::uint8_t>> seen;
  for (Key key = 0; key < 200; ++key) {
    if (auto value = read(w, *a.client, key)) seen[key] = *value;
  }
  EXPECT_EQ(seen, model);
}

}  // namespace
}  // namespace sluice::clover
