#include "fusee/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/effort_test.h"
#include "fusee/test_world.h"

namespace sluice::fusee {
namespace {

using remote::LocalMode;
using remote::Task;

using Bytes = std::vector<std::uint8_t>;

Bytes value_of(std::uint64_t n, std::size_t size = 8) {
  Bytes value(size);
  for (std::size_t i = 0; i < size; ++i) value[i] = static_cast<std::uint8_t>(n * 31 + i * 7 + (n >> 8));
  return value;
}

std::optional<Bytes> read(World& w, Client& client, Key key) {
  Bytes into(client.value_bytes());
  const GetResult result = w.wait_for(client.get(key, into));
  if (result.outcome != Outcome::kOk) {
    EXPECT_EQ(result.outcome, Outcome::kNotFound);
    return std::nullopt;
  }
  into.resize(result.length);
  return into;
}

WorldConfig with_replicas(std::uint32_t replicas) {
  WorldConfig config;
  config.nodes = std::max(replicas, 2u);
  config.geometry.replicas = replicas;
  return config;
}

Task<void> count_put(Client& client, Key key, std::size_t bytes, std::uint64_t& ok, std::uint64_t& ended) {
  const Bytes value = value_of(key, bytes);
  ok += co_await client.put(key, value) == Outcome::kOk;
  ++ended;
}

// Every object that a client thinks placed stands in the index, and the other way round; all replicas agree.
void expect_no_memory_lost(World& w) {
  for (const auto& m : w.members) {
    if (m->dead) continue;
    ASSERT_EQ(w.wait_for(m->client->audit()), Outcome::kOk);
  }
  w.run_for(w.config_.client.hold + w.config_.client.flight);
  for (const auto& m : w.members) {
    if (m->dead) continue;
    ASSERT_EQ(w.wait_for(m->client->audit()), Outcome::kOk);
  }
  const auto index = w.index();
  EXPECT_EQ(index.differing, 0u);
  EXPECT_EQ(w.placed(), index.objects);
}

TEST(Fusee, ReadsBackReplacesErasesAndInserts) {
  for (std::uint32_t replicas = 1; replicas <= 4; ++replicas) {
    World w(with_replicas(replicas));
    auto& a = w.add_client();
    auto& b = w.add_client();
    EXPECT_EQ(read(w, *a.client, 5), std::nullopt);
    EXPECT_EQ(w.wait_for(a->erase(5)), Outcome::kNotFound);
    EXPECT_EQ(w.wait_for(a->put(5, value_of(1))), Outcome::kOk);
    EXPECT_EQ(read(w, *a.client, 5), value_of(1));
    EXPECT_EQ(read(w, *b.client, 5), value_of(1));
    EXPECT_EQ(w.wait_for(b->put(5, value_of(2, 3))), Outcome::kOk);
    EXPECT_EQ(read(w, *a.client, 5), value_of(2, 3));
    EXPECT_EQ(w.wait_for(a->insert(5, value_of(1))), Outcome::kExists);
    EXPECT_EQ(w.wait_for(b->erase(5)), Outcome::kOk);
    EXPECT_EQ(w.wait_for(a->erase(5)), Outcome::kNotFound);
    EXPECT_EQ(read(w, *a.client, 5), std::nullopt);
    EXPECT_EQ(w.wait_for(a->insert(5, value_of(3, 0))), Outcome::kOk);
    EXPECT_EQ(read(w, *b.client, 5), value_of(3, 0));
    EXPECT_EQ(w.wait_for(b->put(6, value_of(4, 9))), Outcome::kTooLong);
    expect_no_memory_lost(w);
  }
}

TEST(Fusee, ThereIsNoStoreInEmptyMemoryNorOneOfAnotherShape) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  auto fewer = w.memory;
  fewer.pop_back();
  Client client(memory, fewer, {}, Rng(1));
  EXPECT_EQ(w.wait_for(client.join()), Outcome::kNotFound);
  EXPECT_EQ(w.wait_for(create_store(memory, fewer, {.replicas = 3})), Outcome::kTooLong);
  EXPECT_EQ(w.wait_for(create_store(memory, w.memory, w.config_.geometry)), Outcome::kExists);
  // Half a superblock: of somebody who died while making a store.
  World half({});
  for (const auto& node : half.memory)
    std::ranges::fill(half.fabric.region_bytes(node.heap).subspan(24, 40), std::uint8_t{0});
  remote::LocalMemory founder(half.scheduler, half.fabric);
  EXPECT_EQ(half.wait_for(create_store(founder, half.memory, half.config_.geometry)), Outcome::kOk);
  EXPECT_EQ(half.wait_for(create_store(founder, half.memory, half.config_.geometry)), Outcome::kExists);
  EXPECT_EQ(w.wait_for(create_store(memory, w.memory, {.groups = 1u << 20})), Outcome::kNoSpace);
  EXPECT_EQ(w.wait_for(create_store(memory, w.memory, {.value_bytes = 20'000})), Outcome::kTooLong);
}

TEST(Fusee, AStoreWhoseMakerDiedBeforeAllHadHeardIsSaidToBeMadeByWhoComesNext) {
  World w({});
  const auto has_heard = [&w](std::size_t node) {
    return superblock_made(w.fabric.region_bytes(w.memory[node].heap).first(kSuperblockRead));
  };
  for (const std::size_t node : {1u, 2u})
    std::ranges::fill(w.fabric.region_bytes(w.memory[node].heap).subspan(kMadeOffset, 8), std::uint8_t{9});
  ASSERT_FALSE(has_heard(1) || has_heard(2));
  auto& a = w.add_client();
  EXPECT_TRUE(has_heard(1) && has_heard(2));
  ASSERT_EQ(w.wait_for(a->put(5, value_of(1))), Outcome::kOk);
}

TEST(Fusee, AStoreIsNotFoundOverItsNodesInAnotherOrder) {
  World w({});
  auto& a = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(5, value_of(1))), Outcome::kOk);
  remote::LocalMemory memory(w.scheduler, w.fabric);
  const std::vector<MemoryNode> turned{w.memory[1], w.memory[0], w.memory[2]};
  Client client(memory, turned, w.config_.client, Rng(1));
  EXPECT_EQ(w.wait_for(client.join()), Outcome::kNotFound);
  EXPECT_EQ(w.wait_for(create_store(memory, turned, w.config_.geometry, Maker{8})), Outcome::kExists);
  Geometry two = w.config_.geometry;
  two.replicas = 2;
  EXPECT_EQ(w.wait_for(create_store(memory, {w.memory[1], w.memory[2]}, two, Maker{8})), Outcome::kExists);
  // Another store's node of the same place.
  const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, w.config_.node_memory);
  put_superblock(
      w.fabric.region_bytes(heap),
      {.geometry = w.config_.geometry, .nodes = 3, .index = 2, .store_id = 9, .heap_bytes = w.config_.node_memory});
  Client mixed(memory, {w.memory[0], w.memory[1], {heap, w.config_.node_memory}}, w.config_.client, Rng(1));
  EXPECT_EQ(w.wait_for(mixed.join()), Outcome::kNotFound);
  EXPECT_EQ(read(w, *a.client, 5), value_of(1));
}

// Where no memory node can leave, nothing is waited for; but whoever goes on at once must let time get on, or nobody notices that it is back.
TEST(Fusee, OperationsThatFailAtOnceLetTimeGetOn) {
  for (std::uint32_t replicas = 1; replicas <= 2; ++replicas) {
    WorldConfig config = with_replicas(replicas);
    config.nodes = replicas;
    World w(config);
    auto& a = w.add_client();
    ASSERT_EQ(w.wait_for(a->put(5, value_of(1))), Outcome::kOk);
    for (std::uint32_t node = 0; node < config.nodes; ++node) w.kill_node(node);
    int ended = 0;
    const auto read_many = [&]() -> Task<void> {
      for (int i = 0; i < 100; ++i) {
        Bytes into(8);
        const GetResult result = co_await a->get(5, into);
        EXPECT_EQ(result.outcome, Outcome::kUnavailable);
        ++ended;
      }
    };
    const auto write_many = [&]() -> Task<void> {
      const Bytes value = value_of(2);
      for (int i = 0; i < 100; ++i) {
        const Outcome outcome = co_await a->put(5, value);
        EXPECT_EQ(outcome, Outcome::kUnavailable);
        ++ended;
      }
    };
    w.scheduler.spawn(read_many());
    w.scheduler.spawn(write_many());
    w.scheduler.run(w.now);
    EXPECT_EQ(ended, 0);
    EXPECT_GT(w.scheduler.next_deadline(), w.now);
    w.run_until([&] { return ended == 200; });
  }
}

std::vector<MemoryNode> blank_memory(World& w) {
  std::vector<MemoryNode> nodes;
  for (const auto& node : w.memory) {
    const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, node.heap_bytes);
    nodes.push_back({heap, node.heap_bytes});
  }
  return nodes;
}

TEST(Fusee, OfTwoWhoMakeAStoreAtOnceOneDoes) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  for (config.local.seed = 1; config.local.seed <= 20; ++config.local.seed) {
    World w(config);
    remote::LocalMemory memory(w.scheduler, w.fabric);
    const auto nodes = blank_memory(w);
    std::vector<Outcome> outcomes;
    const auto make = [&](std::uint32_t number) -> Task<void> {
      const Outcome made = co_await create_store(memory, nodes, w.config_.geometry, Maker{number});
      outcomes.push_back(made);
    };
    w.scheduler.spawn(make(1));
    w.scheduler.spawn(make(2));
    w.run_until([&] { return outcomes.size() == 2; });
    EXPECT_EQ(std::ranges::count(outcomes, Outcome::kOk), 1) << "seed " << config.local.seed;
    EXPECT_EQ(std::ranges::count(outcomes, Outcome::kExists), 1) << "seed " << config.local.seed;
  }
}

TEST(Fusee, WhoNeverEndsMakingAStoreIsNotedAfterAWhileAndMayGoOn) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  const auto nodes = blank_memory(w);
  store_le(w.fabric.region_bytes(nodes[0].heap).data() + kMadeOffset, Maker{7}.word());
  const Time begun = w.now;
  EXPECT_EQ(w.wait_for(create_store(memory, nodes, w.config_.geometry, Maker{8})), Outcome::kUnknown);
  EXPECT_GE(w.now - begun, kMaking);
  EXPECT_EQ(w.wait_for(create_store(memory, nodes, w.config_.geometry, Maker{7})), Outcome::kOk);
}

TEST(Fusee, AGetTakesOneRoundTripAndAPutThree) {
  World w({});
  auto& a = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1))), Outcome::kOk);  // also claims its first block
  const auto trips = [&](auto operation) {
    const auto before = a->counters();
    operation();
    return a->counters().round_trips - before.round_trips;
  };
  EXPECT_EQ(trips([&] { read(w, *a.client, 1); }), 1u);
  // The object with the slot, the backups, the primary. What was there was its own: no mark.
  EXPECT_EQ(trips([&] { w.wait_for(a->put(1, value_of(2))); }), 3u);
  EXPECT_EQ(trips([&] { w.wait_for(a->erase(1)); }), 3u);
  // Look; object; tentative in backups and primary; look again; live in backups and primary.
  EXPECT_EQ(trips([&] { w.wait_for(a->insert(2, value_of(2))); }), 7u);
}

TEST(Fusee, WhatAnotherHasReplacedIsFoundInTheNextRead) {
  World w({});
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < 20; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  for (Key key = 0; key < 20; ++key) EXPECT_EQ(read(w, *b.client, key), value_of(key));
  for (Key key = 0; key < 20; key += 2) ASSERT_EQ(w.wait_for(a->put(key, value_of(key + 100))), Outcome::kOk);
  for (Key key = 1; key < 20; key += 2) ASSERT_EQ(w.wait_for(a->erase(key)), Outcome::kOk);
  for (Key key = 0; key < 20; ++key) {
    const auto expected = key % 2 == 0 ? std::optional(value_of(key + 100)) : std::nullopt;
    EXPECT_EQ(read(w, *b.client, key), expected);
  }
  EXPECT_GT(b->counters().walks, 0u);
}

// A key whose word is always another is read in two steps: the slot, then the object that it names.
TEST(Fusee, ACacheThatIsOftenWrongIsDoubted) {
  World w({});
  auto& a = w.add_client();
  auto& b = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1))), Outcome::kOk);
  ASSERT_EQ(read(w, *b.client, 1), value_of(1));
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 12; ++i) {
    ASSERT_EQ(w.wait_for(a->put(1, value_of(i))), Outcome::kOk);
    const auto before = b->counters().bytes;
    ASSERT_EQ(read(w, *b.client, 1), value_of(i));
    bytes = b->counters().bytes - before;
    EXPECT_EQ(bytes, i < 9 ? 8u + 64 + 64 : 8u + 64) << i;
  }
}

void random_operations(World& w, Client& client, std::uint64_t count, std::uint64_t keys, std::uint64_t seed) {
  std::map<Key, Bytes> model;
  Rng rng = Rng(seed).fork("model");
  Bytes into(client.value_bytes());
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count && wrong == 0; ++i) {
    Key key = rng.below(keys);
    if (key % 3 == 0) key *= 0x0123'4567'89AB'CDEF;
    const bool there = model.contains(key);
    const Bytes value = value_of(i, rng.below(client.value_bytes() + 1));
    switch (rng.below(10)) {
      case 0:
      case 1:
      case 2: {
        wrong += w.wait_for(client.put(key, value)) != Outcome::kOk;
        model[key] = value;
        break;
      }
      case 3:
      case 4: {
        wrong += w.wait_for(client.insert(key, value)) != (there ? Outcome::kExists : Outcome::kOk);
        model.try_emplace(key, value);
        break;
      }
      case 5:
      case 6: {
        wrong += w.wait_for(client.erase(key)) != (there ? Outcome::kOk : Outcome::kNotFound);
        model.erase(key);
        break;
      }
      default: {
        const GetResult got = w.wait_for(client.get(key, into));
        wrong += got.outcome != (there ? Outcome::kOk : Outcome::kNotFound);
        if (there) wrong += !std::ranges::equal(ByteView(into).first(got.length), model[key]);
      }
    }
    ASSERT_EQ(wrong, 0u) << "seed " << seed << ", operation " << i << ", key " << key;
  }
  EXPECT_EQ(w.index().live, model.size());
}

TEST(Fusee, AgreesWithAMapOverRandomOperations) {
  WorldConfig config{.node_memory = 64u << 20};
  config.geometry.groups = 1024;
  config.geometry.block_bytes = 64 << 10;
  World w(config);
  auto& a = w.add_client();
  random_operations(w, *a.client, rounds(1'000'000), 20'000, 1);
  EXPECT_GT(a->counters().reused, 0u);
  expect_no_memory_lost(w);
}

TEST(Fusee, AgreesWithAMapWhateverItsGeometry) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    auto config = with_replicas(static_cast<std::uint32_t>(seed % 4 + 1));
    config.nodes += static_cast<std::uint32_t>(seed % 3);
    config.node_memory = 8u << 20;
    config.geometry.value_bytes = static_cast<std::uint32_t>(seed * seed * 10);
    if (seed % 3 == 0) config.geometry.index_replicas = (config.geometry.replicas + 1) / 2;
    config.geometry.block_bytes = seed % 2 == 0 ? 4096 : 16384;
    config.client.cached_keys = std::size_t{2} << seed % 8;
    World w(config);
    auto& a = w.add_client();
    random_operations(w, *a.client, 4000, 300, seed);
    expect_no_memory_lost(w);
  }
}

Task<void> own_keys(Client& client, std::uint64_t i, std::uint64_t clients, std::uint64_t count, std::uint64_t seed,
                    std::uint64_t& wrong, std::uint64_t& ended) {
  std::map<Key, Bytes> model;
  Rng rng = Rng(seed).fork("own keys").fork(i);
  Bytes into(client.value_bytes());
  for (std::uint64_t n = 0; n < count; ++n) {
    const Key key = rng.below(40) * clients + i;
    const bool there = model.contains(key);
    const Bytes value = value_of(n);
    switch (rng.below(4)) {
      case 0: {
        const Outcome outcome = co_await client.put(key, value);
        wrong += outcome != Outcome::kOk;
        model[key] = value;
        break;
      }
      case 1: {
        const Outcome outcome = co_await client.insert(key, value);
        wrong += outcome != (there ? Outcome::kExists : Outcome::kOk);
        model.try_emplace(key, value);
        break;
      }
      case 2: {
        const Outcome outcome = co_await client.erase(key);
        wrong += outcome != (there ? Outcome::kOk : Outcome::kNotFound);
        model.erase(key);
        break;
      }
      default: {
        const GetResult got = co_await client.get(key, into);
        wrong += got.outcome != (there ? Outcome::kOk : Outcome::kNotFound);
        wrong += there && !std::ranges::equal(ByteView(into).first(got.length), model[key]);
      }
    }
  }
  ++ended;
}

TEST(Fusee, SixteenClientsAgreeWithTheirMaps) {
  WorldConfig config{.node_memory = 64u << 20};
  config.geometry.groups = 128;
  config.local = {.mode = LocalMode::kSeeded, .seed = 7};
  World w(config);
  std::uint64_t wrong = 0;
  std::uint64_t ended = 0;
  for (std::uint64_t i = 0; i < 16; ++i) {
    auto& m = w.add_client();
    w.scheduler.spawn(own_keys(*m.client, i, 16, rounds(1'000'000) / 64, 3, wrong, ended));
  }
  w.run_until([&] { return ended == 16; }, ~0ull);
  EXPECT_EQ(wrong, 0u);
  expect_no_memory_lost(w);
}

// All clients insert and erase the same few keys: of those who insert at once exactly one is told ok.
Task<void> insert_same(Client& client, std::uint64_t who, std::uint64_t rounds, std::vector<int>& there,
                       std::uint64_t& wrong, std::uint64_t& running) {
  Rng rng = Rng(who).fork("same");
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const Key key = rng.below(there.size());
    const Bytes value = value_of(i);
    const bool erase = rng.below(2) == 0;
    Outcome outcome{};
    if (erase) {
      outcome = co_await client.erase(key);
      wrong += outcome != Outcome::kOk && outcome != Outcome::kNotFound;
    } else {
      outcome = co_await client.insert(key, value);
      wrong += outcome != Outcome::kOk && outcome != Outcome::kExists;
    }
    if (outcome == Outcome::kOk) there[key] += erase ? -1 : 1;
  }
  --running;
}

TEST(Fusee, AKeyIsNeverInTwoSlots) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    WorldConfig config = with_replicas(static_cast<std::uint32_t>(seed % 4 + 1));
    config.local = {.mode = LocalMode::kSeeded, .seed = seed};
    World w(config);
    std::vector<int> there(3);
    std::uint64_t wrong = 0;
    std::uint64_t running = 6;
    for (std::uint64_t i = 0; i < 6; ++i) {
      auto& m = w.add_client();
      w.scheduler.spawn(insert_same(*m.client, seed * 10 + i, 150, there, wrong, running));
    }
    w.run_until([&] { return running == 0; });
    EXPECT_EQ(wrong, 0u);
    for (Key key = 0; key < there.size(); ++key) {
      EXPECT_EQ(there[key], read(w, *w.members[0]->client, key) ? 1 : 0) << "seed " << seed << " key " << key;
    }
    const auto index = w.index();
    EXPECT_EQ(index.live, static_cast<std::uint64_t>(there[0] + there[1] + there[2])) << "seed " << seed;
    expect_no_memory_lost(w);
  }
}

TEST(Fusee, FullMemoryRefusesAndStillReadsReplacesAndErases) {
  for (const std::uint32_t bytes : {8u, 150u}) {
    WorldConfig config;
    config.node_memory = 124u << 10;
    config.geometry.groups = 32;
    config.geometry.value_bytes = bytes;
    World w(config);
    auto& a = w.add_client();
    Key key = 0;
    Outcome outcome = Outcome::kOk;
    for (; outcome == Outcome::kOk; ++key) outcome = w.wait_for(a->put(key, value_of(key + 1, bytes)));
    EXPECT_EQ(outcome, Outcome::kNoSpace);
    --key;
    EXPECT_GT(key, 100u);
    for (Key k = 0; k < key; ++k) ASSERT_EQ(read(w, *a.client, k), value_of(k + 1, bytes));
    for (Key k = 0; k < key; ++k) ASSERT_EQ(w.wait_for(a->put(k, value_of(k + 2, bytes))), Outcome::kOk) << k;
    EXPECT_EQ(w.wait_for(a->insert(key, value_of(1, bytes))), Outcome::kNoSpace);
    for (Key k = 0; k < key; ++k) ASSERT_EQ(read(w, *a.client, k), value_of(k + 2, bytes));
    std::uint64_t ok = 0;
    std::uint64_t ended = 0;
    for (Key k = 0; k < 16; ++k) w.scheduler.spawn(count_put(*a.client, k, bytes, ok, ended));
    w.run_until([&] { return ended == 16; });
    EXPECT_EQ(ok, 16u);
    for (Key k = 0; k < key; ++k) ASSERT_EQ(w.wait_for(a->erase(k)), Outcome::kOk) << k;
    // Where a tombstone is, among a key's slots, it gives way.
    std::uint64_t again = 0;
    for (Key k = 0; k < key; ++k) again += w.wait_for(a->insert(k, value_of(k, bytes))) == Outcome::kOk;
    EXPECT_GT(again, key / 2);
    expect_no_memory_lost(w);
  }
}

// Others have all memory, and live. One after the other comes, as a tool does, and goes again.
TEST(Fusee, WhoComesToAFullStoreCanReplaceAndErase) {
  WorldConfig config;
  config.node_memory = 256u << 10;
  World w(config);
  auto& a = w.add_client();
  Key key = 0;
  while (w.wait_for(a->put(key, value_of(key))) == Outcome::kOk) ++key;
  ASSERT_GT(key, 1000u);
  for (std::uint64_t i = 0; i < 10; ++i) {
    auto& b = w.add_client();
    const Key first = i * 4;
    EXPECT_EQ(w.wait_for(b->put(first, value_of(9))), Outcome::kOk) << i;
    EXPECT_EQ(w.wait_for(b->erase(first + 1)), Outcome::kOk) << i;
    EXPECT_EQ(w.wait_for(b->put(key + 1, value_of(9))), Outcome::kNoSpace) << i;
    EXPECT_EQ(read(w, *a.client, first), value_of(9));
    EXPECT_EQ(read(w, *a.client, first + 1), std::nullopt);
    // Who has the memory does not take theirs.
    EXPECT_EQ(w.wait_for(a->put(first + 2, value_of(8))), Outcome::kOk) << i;
    EXPECT_EQ(w.wait_for(a->audit()), Outcome::kOk);
    ASSERT_EQ(w.wait_for(b->leave()), Outcome::kOk);
    b.dead = true;
  }
  // What goes on beside: so many come as there are memory nodes.
  for (std::uint64_t i = 0; i < w.memory.size(); ++i) {
    auto& b = w.add_client();
    EXPECT_EQ(w.wait_for(b->erase(100 + i)), Outcome::kOk) << i;
  }
}

TEST(Fusee, WhereLongValuesHadAllMemoryShortOnesFindRoom) {
  for (const std::uint32_t most :
       {400u, 500u}) {  // longer than a place of the next smaller size, and either the longest that there are or not
    WorldConfig config;
    config.node_memory = 256u << 10;
    config.geometry.value_bytes = most;
    World w(config);
    auto& a = w.add_client();
    Key key = 0;
    while (w.wait_for(a->put(key, value_of(key, 400))) == Outcome::kOk) ++key;
    ASSERT_GT(key, 150u);
    // In the place of the long ones,
    for (Key k = 0; k < key; k += 2) ASSERT_EQ(w.wait_for(a->put(k, value_of(k))), Outcome::kOk) << k;
    for (Key k = 0; k < key; ++k) EXPECT_EQ(read(w, *a.client, k), value_of(k, k % 2 == 0 ? 8 : 400)) << k;
    // of tombstones,
    for (Key k = 0; k < key; ++k) ASSERT_EQ(w.wait_for(a->erase(k)), Outcome::kOk) << k;
    for (Key k = 0; k < 40; ++k) ASSERT_EQ(w.wait_for(a->put(k, value_of(k, 100))), Outcome::kOk) << k;
    // and many at once.
    std::uint64_t ok = 0;
    std::uint64_t ended = 0;
    for (Key k = 0; k < 40; ++k) w.scheduler.spawn(count_put(*a.client, k, 8, ok, ended));
    w.run_until([&] { return ended == 40; });
    EXPECT_EQ(ok, 40u);
    for (Key k = 0; k < 40; ++k) EXPECT_EQ(read(w, *a.client, k), value_of(k)) << k;
    // Others find them there, also what they were, when it has died.
    a.kill();
    auto& b = w.add_client();
    for (Key k = 0; k < 40; ++k) EXPECT_EQ(read(w, *b.client, k), value_of(k)) << k;
    EXPECT_EQ(w.wait_for(b->recover(a->number())), Outcome::kOk);
    for (Key k = 0; k < 40; ++k) EXPECT_EQ(read(w, *b.client, k), value_of(k)) << k;
    expect_no_memory_lost(w);
  }
}

TEST(Fusee, MemoryOfReplacedObjectsIsUsedAgain) {
  WorldConfig config;
  config.node_memory = 124u << 10;
  config.geometry.groups = 16;
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (std::uint64_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(w.wait_for((i % 2 == 0 ? a : b)->put(i % 7, value_of(i))), Outcome::kOk) << i;
  }
  EXPECT_GT(a->counters().reused, 500u);
  expect_no_memory_lost(w);
}

// A run after another, on one store, each with clients of its own.
TEST(Fusee, WhatClientsHaveLeftIsRoomForThoseWhoComeAfterThem) {
  WorldConfig config;
  config.node_memory = 160u << 10;
  config.geometry.groups = 16;
  World w(config);
  std::uint64_t blocks = 0;
  std::uint64_t recovered = 0;
  for (std::uint64_t generation = 0; generation < 20; ++generation) {
    auto& a = w.add_client();
    auto& b = w.add_client();
    for (std::uint64_t i = 0; i < 200; ++i) {
      auto& writer = i % 2 == 0 ? a : b;
      ASSERT_EQ(w.wait_for(writer->put(i % 20, value_of(generation * 200 + i))), Outcome::kOk) << generation;
    }
    for (Key key = 0; key < 20; ++key) ASSERT_EQ(read(w, *b.client, key), value_of(generation * 200 + 180 + key));
    for (auto* const m : {&a, &b}) {
      blocks += (*m)->counters().blocks;
      recovered += (*m)->counters().recovered;
      ASSERT_EQ(w.wait_for((*m)->leave()), Outcome::kOk);
      EXPECT_EQ(w.owners()[(*m)->number()], 0u);
      m->dead = true;
    }
  }
  EXPECT_GT(recovered, 10u);
  EXPECT_GT(blocks, recovered);
  w.add_client();
  for (int i = 0; i < 10 && w.left_behind() != 0; ++i)
    ASSERT_EQ(w.wait_for(w.members.back()->client->audit()), Outcome::kOk);
  expect_no_memory_lost(w);
}

// Of several that find no room at once one looks for some, and the others wait for what it finds.
TEST(Fusee, WhoFindsNoRoomWaitsForAnAuditThatIsUnderWay) {
  WorldConfig config;
  config.node_memory = 124u << 10;
  config.geometry.groups = 32;
  World w(config);
  auto& a = w.add_client();
  Key key = 0;
  for (Outcome outcome = Outcome::kOk; outcome == Outcome::kOk; ++key) outcome = w.wait_for(a->put(key, value_of(key)));
  ASSERT_GT(key, 100u);
  // All of it is nobody's: in no slot, and not marked either.
  for (std::uint32_t partition = 0; partition < w.map.partitions(); ++partition) {
    for (std::uint64_t at = 0; at < w.map.table_bytes(); at += 8) {
      for (std::uint32_t i = 0; i < 3; ++i) w.set_word(w.map.slots({}, partition) + at, i, 0);
    }
  }
  w.run_for((config.client.hold + config.client.flight) * 2);
  std::uint64_t ok = 0;
  std::uint64_t ended = 0;
  for (Key k = 1000; k < 1008; ++k) w.scheduler.spawn(count_put(*a.client, k, 8, ok, ended));
  w.run_until([&] { return ended == 8; });
  EXPECT_EQ(ok, 8u);
  EXPECT_GT(a->counters().reclaimed, 100u);
}

// ------------------------------------------------------------------------------------------------- dead memory nodes

constexpr Key kSomeKeys = 40;

void put_some(World& w, Client& client, std::uint64_t generation) {
  for (Key key = 0; key < kSomeKeys; ++key)
    ASSERT_EQ(w.wait_for(client.put(key, value_of(key + generation * 100))), Outcome::kOk) << key;
}
void expect_some(World& w, Client& client, std::uint64_t generation) {
  for (Key key = 0; key < kSomeKeys; ++key) EXPECT_EQ(read(w, client, key), value_of(key + generation * 100)) << key;
}

TEST(Fusee, WhenAMemoryNodeDiesBackupsBecomePrimaries) {
  for (std::uint32_t dead = 0; dead < 4; ++dead) {
    auto config = with_replicas(3);
    config.nodes = 4;
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    put_some(w, *a.client, 1);
    expect_some(w, *b.client, 1);
    w.kill_node(dead);
    expect_some(w, *b.client, 1);
    put_some(w, *b.client, 2);
    expect_some(w, *a.client, 2);
    EXPECT_EQ(a->view(), 1u);
    EXPECT_EQ(b->view(), 1u);
    EXPECT_TRUE(a->map().has_left(dead));
    // Who comes later finds all as it is.
    auto& c = w.add_client();
    EXPECT_EQ(c->view(), 1u);
    expect_some(w, *c.client, 2);
    ASSERT_EQ(w.wait_for(c->erase(1)), Outcome::kOk);
    EXPECT_EQ(read(w, *a.client, 1), std::nullopt);
    w.follow(*c.client);
    expect_no_memory_lost(w);
  }
}

// Who comes when it is gone, and nobody can say any more where it was.
TEST(Fusee, AMemoryNodeOfWhichNothingIsKnownIsDoneWithout) {
  World w({});
  auto& a = w.add_client();
  for (Key key = 0; key < 50; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  w.kill_node(1);
  const auto nowhere = w.fabric.add_node();
  w.fabric.kill_node(nowhere);
  auto nodes = w.memory;
  nodes[1] = {{nowhere, {}, 0}, ~std::uint64_t{0}};
  remote::LocalMemory memory(w.scheduler, w.fabric);
  Client client(memory, nodes, w.config_.client, Rng(9));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  for (Key key = 0; key < 50; ++key) EXPECT_EQ(read(w, client, key), value_of(key));
  for (Key key = 0; key < 50; ++key) EXPECT_EQ(w.wait_for(client.put(key, value_of(key + 1))), Outcome::kOk);
  for (Key key = 0; key < 50; ++key) EXPECT_EQ(read(w, *a.client, key), value_of(key + 1));
  EXPECT_EQ(client.counters().departures, 1u);
}

TEST(Fusee, FewerThanHalfOfTheMemoryNodesMayDieOneAfterTheOther) {
  auto config = with_replicas(3);
  config.nodes = 5;
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(3);
  put_some(w, *a.client, 2);
  w.kill_node(4);  // now partitions 2 and 3 have one and two replicas
  expect_some(w, *a.client, 2);
  put_some(w, *a.client, 3);
  auto& b = w.add_client();
  expect_some(w, *b.client, 3);
  EXPECT_EQ(b->view(), 2u);
  w.follow(*a.client);
  expect_no_memory_lost(w);
}

TEST(Fusee, WhatTheStoreCannotDoWithoutIsSaidToBeUnavailable) {
  // One replica of the index; two nodes, neither of which knows whether the other has died; more than half dead.
  for (const int which : {0, 1, 2}) {
    auto config = with_replicas(which == 1 ? 2 : 3);
    if (which == 0) config.geometry.index_replicas = 1;
    config.client.timeout = Duration::milliseconds(5);
    World w(config);
    auto& a = w.add_client();
    put_some(w, *a.client, 1);
    if (which == 2) w.kill_node(0);
    w.kill_node(1);
    std::map<Outcome, int> gets;
    std::map<Outcome, int> puts;
    Bytes into(8);
    for (Key key = 0; key < kSomeKeys; ++key) ++gets[w.wait_for(a->get(key, into)).outcome];
    for (Key key = 0; key < kSomeKeys; ++key) ++puts[w.wait_for(a->put(key, value_of(key)))];
    EXPECT_EQ(gets[Outcome::kOk] + gets[Outcome::kUnavailable], static_cast<int>(kSomeKeys)) << which;
    EXPECT_GT(gets[Outcome::kUnavailable], 0) << which;
    if (which != 2) {
      EXPECT_GT(gets[Outcome::kOk], 5) << which;  // whose slots are elsewhere
    }
    EXPECT_EQ(puts[Outcome::kOk], 0) << which;
    EXPECT_EQ(a->view(), 0u) << which;
  }
}

// The last replica of some slots is lost, though more than half of the memory nodes live: that is found out once.
TEST(Fusee, NotEveryOperationWaitsForWhatIsLostForGood) {
  auto config = with_replicas(2);
  config.nodes = 5;
  config.client.timeout = Duration::milliseconds(50);
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(0);
  put_some(w, *a.client, 2);
  w.kill_node(1);
  w.restart_node(1);
  a->moved(1, w.memory[1]);
  const Time begun = w.now;
  std::map<Outcome, std::uint64_t> puts;
  for (Key key = 0; key < kSomeKeys; ++key) ++puts[w.wait_for(a->put(key, value_of(key)))];
  EXPECT_GT(puts[Outcome::kUnavailable], kSomeKeys / 2);
  EXPECT_LT(w.now - begun, config.client.timeout * 2);
}

// It lives, and others reach it; but it is missed, so it leaves, and everybody is told in time.
TEST(Fusee, AMemoryNodeThatIsOutOfReachOfOneLeavesForAll) {
  for (std::uint32_t cut = 0; cut < 3; ++cut) {
    WorldConfig config;
    config.local = {.mode = LocalMode::kSeeded, .seed = cut + 1};
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    put_some(w, *a.client, 1);
    a.memory->cut(w.memory[cut].heap.node);
    put_some(w, *a.client, 2);
    expect_some(w, *b.client, 2);
    put_some(w, *b.client, 3);
    expect_some(w, *a.client, 3);
    EXPECT_EQ(a->view(), 1u);
    EXPECT_EQ(b->view(), 1u);
    w.follow(*a.client);
    expect_no_memory_lost(w);
  }
}

TEST(Fusee, AConnectionThatIsLostForAMomentCostsNoReplica) {
  auto config = with_replicas(3);
  config.local = {.mode = LocalMode::kSeeded, .seed = 5, .disconnect_per_million = 20'000};
  World w(config);
  auto& a = w.add_client();
  for (std::uint64_t i = 0; i < 10; ++i) put_some(w, *a.client, i);
  EXPECT_GT(a->counters().failures, 50u);
  EXPECT_EQ(a->view(), 0u);
}

// Started anew it has another key; whoever joins then sees that it has forgotten everything.
TEST(Fusee, AMemoryNodeThatComesBackBlankIsNotBelieved) {
  for (std::uint32_t dead = 0; dead < 3; ++dead) {
    World w({});
    auto& a = w.add_client();
    put_some(w, *a.client, 1);
    w.kill_node(dead);
    w.restart_node(dead);
    auto& b = w.add_client();
    expect_some(w, *b.client, 1);
    EXPECT_EQ(b->view(), 1u);
    put_some(w, *b.client, 2);
    expect_some(w, *a.client, 2);
    remote::LocalMemory memory(w.scheduler, w.fabric);
    EXPECT_EQ(w.wait_for(create_store(memory, w.memory, w.config_.geometry)), Outcome::kExists);
  }
}

// No operation has the time for a whole round.
WorldConfig with_rounds_longer_than_operations(Duration timeout) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = 3};
  config.node_memory = 256u << 10;
  config.geometry.groups = 64;
  config.client.hold = Duration::microseconds(100);
  config.client.flight = Duration::microseconds(20);
  config.client.backoff_most = Duration::microseconds(5);
  config.client.lease = Duration::microseconds(5);
  config.client.timeout = timeout;
  return config;
}

TEST(Fusee, ARoundOfAnAuditComesToItsEndThoughOperationsPause) {
  World w(with_rounds_longer_than_operations(Duration::microseconds(900)));
  auto& a = w.add_client();
  Key key = 0;
  while (w.wait_for(a->put(key, value_of(key))) == Outcome::kOk) ++key;
  ASSERT_GT(key, 1500u);
  // Who knows that there is no room says so at once.
  std::uint64_t at_once = 0;
  for (Key i = 0; i < 40; ++i) {
    w.run_for(w.config_.client.hold * 2);
    const Time began = w.now;
    EXPECT_EQ(w.wait_for(a->put(1'000'000 + i, value_of(1))), Outcome::kNoSpace);
    at_once += w.now < began + w.config_.client.timeout;
  }
  EXPECT_GT(at_once, 10u);
}

TEST(Fusee, WhoHasNoTimeForAWholeRoundHasTimeForALastBlock) {
  World w(with_rounds_longer_than_operations(Duration::microseconds(300)));
  auto& a = w.add_client();
  auto& b = w.add_client();
  Key key = 0;
  std::vector<Key> others;
  bool a_full = false;
  bool b_full = false;
  for (; !a_full || !b_full; ++key) {
    if (!a_full) a_full = w.wait_for(a->put(key, value_of(key))) != Outcome::kOk;
    if (b_full) continue;
    b_full = w.wait_for(b->put(10'000 + key, value_of(key))) != Outcome::kOk;
    if (!b_full) others.push_back(10'000 + key);
  }
  ASSERT_GT(key, 500u);
  // What comes free by this is b's.
  for (const Key k : std::span(others).first(10)) {
    w.run_for(Duration::milliseconds(5));
    EXPECT_EQ(w.wait_for(a->put(k, value_of(1))), Outcome::kOk) << k;
  }
}

Task<void> join(Client& client, std::optional<Outcome>& joined) { joined = co_await client.join(); }

// A memory node was started anew, and whoever joins learns of that, or reaches it, only after some steps. `nodes` 2: nobody can leave.
void join_beside_blank_memory(std::uint32_t nodes, std::uint32_t blank, int steps, bool is_told) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = static_cast<std::uint64_t>(steps + 1)};
  config.nodes = nodes;
  config.geometry.replicas = nodes;
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(blank);
  if (!is_told) w.restart_node(blank);
  remote::LocalMemory memory(w.scheduler, w.fabric);
  if (!is_told) memory.cut(w.memory[blank].heap.node);
  Client b(memory, w.memory, config.client, Rng(7));
  std::optional<Outcome> joined;
  w.scheduler.spawn(join(b, joined));
  for (int i = 0; i < steps && !joined; ++i) w.step();
  if (is_told) {
    w.restart_node(blank);
    b.moved(blank, w.memory[blank]);
  }
  memory.mend(w.memory[blank].heap.node);
  w.run_until([&] { return joined.has_value(); });
  if (nodes > 2) {
    EXPECT_EQ(*joined, Outcome::kOk);
  }
  if (*joined != Outcome::kOk) return;
  EXPECT_NE(b.number(), a->number());
  std::map<Outcome, std::uint64_t> gets;
  Bytes into(8);
  for (Key key = 0; key < kSomeKeys; ++key) ++gets[w.wait_for(b.get(key, into)).outcome];
  EXPECT_EQ(gets[Outcome::kNotFound], 0u);
  EXPECT_GE(gets[Outcome::kOk], nodes > 2 ? kSomeKeys : 1);
}

TEST(Fusee, WhoJoinsBelievesNoMemoryThatHasNotAnswered) {
  for (const std::uint32_t nodes : {3u, 2u}) {
    for (std::uint32_t blank = 0; blank < nodes; ++blank) {
      for (int steps = 0; steps < 20; ++steps) {
        for (const bool is_told : {false, true}) {
          join_beside_blank_memory(nodes, blank, steps, is_told);
          if (testing::Test::HasFailure())
            FAIL() << nodes << " nodes, blank " << blank << ", steps " << steps << ", told " << is_told;
        }
      }
    }
  }
}

// One has left, and the one beside it, which cannot leave any more, is out of reach, or was started anew.
TEST(Fusee, WhoJoinsDoesWithoutAMemoryNodeThatCannotLeave) {
  for (const bool comes_back : {false, true}) {
    WorldConfig config;
    config.nodes = 5;
    config.geometry.index_replicas = 2;
    config.client.return_after = {};
    World w(config);
    auto& a = w.add_client();
    put_some(w, *a.client, 1);
    w.kill_node(1);
    while (a->view() == 0) {
      static_cast<void>(w.wait_for(a->put(1000, value_of(1))));
      w.run_for(Duration::microseconds(100));
    }
    remote::LocalMemory memory(w.scheduler, w.fabric);
    w.kill_node(2);
    if (comes_back) {
      w.restart_node(2);
      memory.cut(w.memory[2].heap.node);
    }
    Client b(memory, w.memory, config.client, Rng(7));
    ASSERT_EQ(w.wait_for(b.join()), Outcome::kOk) << comes_back;
    std::map<Outcome, std::uint64_t> gets;
    std::map<Outcome, std::uint64_t> puts;
    Bytes into(8);
    for (Key key = 0; key < kSomeKeys; ++key) {
      ++gets[w.wait_for(b.get(key, into)).outcome];
      ++puts[w.wait_for(b.put(key, value_of(key)))];
    }
    EXPECT_GT(gets[Outcome::kOk], 0u) << comes_back;
    EXPECT_GT(puts[Outcome::kOk], 0u) << comes_back;
    EXPECT_EQ(gets[Outcome::kNotFound], 0u) << comes_back;
    if (!comes_back) continue;
    // Blank memory is believed no more than silent memory.
    memory.mend(w.memory[2].heap.node);
    for (int i = 0; i < 3; ++i) {
      for (Key key = 0; key < kSomeKeys; ++key) ++gets[w.wait_for(b.get(key, into)).outcome];
      w.run_for(config.client.suspect_after);
    }
    EXPECT_EQ(gets[Outcome::kNotFound], 0u);
  }
}

// The same, and it was only out of reach.
TEST(Fusee, WhatCannotLeaveIsUsedAgainOnceWhoJoinedReachesIt) {
  WorldConfig config;
  config.nodes = 5;
  config.geometry.index_replicas = 2;
  config.client.return_after = {};
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(1);
  while (a->view() == 0) {
    static_cast<void>(w.wait_for(a->put(1000, value_of(1))));
    w.run_for(Duration::microseconds(100));
  }
  remote::LocalMemory memory(w.scheduler, w.fabric);
  memory.cut(w.memory[2].heap.node);
  Client b(memory, w.memory, config.client, Rng(7));
  ASSERT_EQ(w.wait_for(b.join()), Outcome::kOk);
  memory.mend(w.memory[2].heap.node);
  w.run_for(config.client.hold);
  Bytes into(8);
  static_cast<void>(w.wait_for(b.get(0, into)));
  w.run_for(config.client.hold);
  expect_some(w, b, 1);
  for (Key key = 0; key < kSomeKeys; ++key) EXPECT_EQ(w.wait_for(b.put(key, value_of(2))), Outcome::kOk) << key;
}

// It is there, and whole: a READ that was lost costs neither a replica nor an answer.
TEST(Fusee, WhoJoinsLooksAgainWhereItHasMissedAnAnswer) {
  for (const std::uint32_t nodes : {3u, 2u}) {
    for (int steps = 1; steps < 12; ++steps) {
      auto config = with_replicas(nodes);
      World w(config);
      auto& a = w.add_client();
      put_some(w, *a.client, 1);
      remote::LocalMemory memory(w.scheduler, w.fabric);
      Client b(memory, w.memory, config.client, Rng(7));
      std::optional<Outcome> joined;
      memory.cut(w.memory[1].heap.node);
      w.scheduler.spawn(join(b, joined));
      for (int i = 0; i < steps && !joined; ++i) w.step();
      memory.mend(w.memory[1].heap.node);
      w.run_until([&] { return joined.has_value(); });
      ASSERT_EQ(*joined, Outcome::kOk) << nodes << " nodes, steps " << steps;
      w.run_for(config.client.suspect_after);
      expect_some(w, b, 1);
      EXPECT_EQ(b.view(), 0u) << nodes << " nodes, steps " << steps;
    }
  }
}

// Brings about that the memory node is whole again, with a client that has something to do. False: it does not come to that.
bool is_whole_again(World& w, Client& client, std::uint32_t node, std::uint64_t generation) {
  for (int i = 0; i < 400; ++i) {
    put_some(w, client, generation);
    if (client.map().member(node) == Member::kWhole && client.view() % 3 == 0) return true;
    w.run_for(Duration::microseconds(20));
  }
  return false;
}

TEST(Fusee, AMemoryNodeThatComesBackIsWholeAgainAndOthersMayDie) {
  for (const bool blank : {true, false}) {
    auto config = with_replicas(3);
    config.local = {.mode = LocalMode::kSeeded, .seed = blank ? 1u : 2u};
    config.client.return_after = Duration::microseconds(200);
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    put_some(w, *a.client, 1);
    for (std::uint32_t dead = 0; dead < 3; ++dead) {
      World::Member* cut = nullptr;
      if (blank) {
        w.kill_node(dead);
      } else {
        // It lives, and has what it had; so has to go what has become old.
        cut = &w.add_client();
        cut->memory->cut(w.memory[dead].heap.node);
        put_some(w, *cut->client, 10 * dead + 2);
        cut->kill();
        EXPECT_EQ(w.wait_for(a->recover((*cut)->number())), Outcome::kOk);
      }
      put_some(w, *a.client, 10 * dead + 3);
      EXPECT_EQ(a->view(), 3 * dead + 1);
      if (blank) {
        w.restart_node(dead);
        a->moved(dead, w.memory[dead]);
        b->moved(dead, w.memory[dead]);
      }
      ASSERT_TRUE(is_whole_again(w, *a.client, dead, 10 * dead + 4)) << dead << " of view " << a->view();
      EXPECT_EQ(a->view(), 3 * dead + 3);
      expect_some(w, *b.client, 10 * dead + 4);
      put_some(w, *b.client, 10 * dead + 5);
      EXPECT_EQ(b->view(), 3 * dead + 3);
      auto& c = w.add_client();
      EXPECT_EQ(c->view(), 3 * dead + 3);
      expect_some(w, *c.client, 10 * dead + 5);
      w.follow(*a.client);
      EXPECT_EQ(w.index().lacking, 0u);
      c.kill();
      EXPECT_EQ(w.wait_for(a->recover(c->number())), Outcome::kOk);
    }
    EXPECT_GT(a->counters().restored + b->counters().restored, 100u);
    const auto numbers = [&w] {
      std::set<std::uint32_t> all;
      for (const auto& m : w.members) all.insert((*m)->number());
      return all.size();
    }();
    EXPECT_EQ(numbers, w.members.size()) << "a number was given twice";
    Outcome audited = w.wait_for(a->audit());
    EXPECT_EQ(audited, Outcome::kOk);
    w.run_for((w.config_.client.hold + w.config_.client.flight) * 2);
    for (auto* const m : {&a, &b}) EXPECT_EQ(w.wait_for((*m)->audit()), Outcome::kOk);
    w.follow(*a.client);
    expect_no_memory_lost(w);
  }
}

TEST(Fusee, AMemoryNodeIsWholeAgainThoughItsObjectsTakeLongerToCopyThanAWordIsReliedOn) {
  auto config = with_replicas(3);
  config.local = {.mode = LocalMode::kSeeded, .seed = 3, .piece_bytes = 256};
  config.node_memory = 48u << 20;
  config.geometry = {.replicas = 3, .groups = 64, .value_bytes = 4000, .block_bytes = 64 << 10};
  config.client.return_after = Duration::microseconds(100);
  config.client.timeout = Duration::milliseconds(20);
  World w(config);
  auto& a = w.add_client();
  const std::vector<std::uint8_t> value(config.geometry.value_bytes, 7);
  constexpr std::uint64_t kKeys = 3000;
  for (std::uint64_t key = 0; key < kKeys; ++key) ASSERT_EQ(w.wait_for(a->put(key, value)), Outcome::kOk);
  w.kill_node(2);
  ASSERT_EQ(w.wait_for(a->put(0, value)), Outcome::kOk);
  w.restart_node(2);
  a->moved(2, w.memory[2]);
  std::vector<std::uint8_t> into(value.size());
  for (int i = 0; i < 100 && a->counters().returns == 0; ++i) {
    w.run_for(Duration::milliseconds(1));
    ASSERT_EQ(w.wait_for(a->get(1, into)).outcome, Outcome::kOk);
  }
  EXPECT_EQ(a->counters().returns, 1u);
  EXPECT_GE(a->counters().restored, kKeys - 1);
  EXPECT_LE(a->counters().restored, kKeys + kKeys / 8) << "what has been copied is copied once";
  w.follow(*a.client);
  EXPECT_EQ(w.index().lacking, 0u);
}

// Whoever has not been told where its memory is waits for that; who never is makes it leave again.
TEST(Fusee, WhoDoesNotKnowTheNewMemoryDoesWithoutIt) {
  auto config = with_replicas(3);
  config.client.return_after = Duration::microseconds(200);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(1);
  put_some(w, *a.client, 2);
  w.restart_node(1);
  a->moved(1, w.memory[1]);
  ASSERT_TRUE(is_whole_again(w, *a.client, 1, 3));
  expect_some(w, *b.client, 3);
  put_some(w, *b.client, 4);
  EXPECT_GE(b->view(), 4u);
  expect_some(w, *a.client, 4);
}

// Memory that is far away: what is submitted takes effect so long after, or up to twice as long.
class DistantMemory final : public remote::RemoteMemory {
 public:
  static constexpr Duration kFar = Duration::microseconds(10);
  DistantMemory(remote::LocalMemory& memory, Rng rng) : RemoteMemory(memory.scheduler()), memory_(memory), rng_(rng) {}
  remote::Capabilities capabilities() const override { return memory_.capabilities(); }
  void submit(remote::Operation& operation) override { scheduler().spawn(submit_later(operation)); }

 private:
  Task<void> submit_later(remote::Operation& operation) {
    co_await scheduler().sleep_for(kFar + Duration::nanoseconds(static_cast<std::int64_t>(rng_.below(10'000))));
    memory_.submit(operation);
  }
  remote::LocalMemory& memory_;
  Rng rng_;
};

Task<void> work_on(Client& client, remote::Scheduler& scheduler, Rng rng, const bool& stop) {
  Bytes into(8);
  while (!stop) {
    const Key key = rng.below(64);
    static_cast<void>(co_await client.get(key, into));
    const Bytes value = value_of(key);
    static_cast<void>(co_await client.put(key, value));
    co_await scheduler.sleep_for(Duration::microseconds(static_cast<std::int64_t>(1 + rng.below(50))));
  }
}

// A change of the view has 255 rounds, for all of them together.
TEST(Fusee, ManyWhoMissAMemoryNodeAtOnceAgreeInFewRounds) {
  struct Case {
    std::uint64_t clients;
    std::uint64_t seed;
  };
  for (const auto& [count, seed] : {Case{64, 1}, Case{64, 2}, Case{256, 3}}) {
    auto config = with_replicas(3);
    config.node_memory = 64u << 20;
    config.client.hold = Duration::milliseconds(16);
    config.client.flight = Duration::milliseconds(5);
    config.client.suspect_after = Duration::milliseconds(3);
    config.client.lease = Duration::microseconds(200);
    World w(config);
    std::vector<std::unique_ptr<remote::LocalMemory>> near;
    std::vector<std::unique_ptr<DistantMemory>> far;
    std::vector<std::unique_ptr<Client>> clients;
    bool stop = false;
    for (std::uint64_t i = 0; i < count; ++i) {
      const Rng rng = Rng(seed).fork(i);
      near.push_back(std::make_unique<remote::LocalMemory>(w.scheduler, w.fabric));
      far.push_back(std::make_unique<DistantMemory>(*near.back(), rng.fork(0)));
      clients.push_back(std::make_unique<Client>(*far.back(), w.memory, config.client, rng.fork(1)));
      ASSERT_EQ(w.wait_for(clients.back()->join()), Outcome::kOk);
      w.scheduler.spawn(work_on(*clients.back(), w.scheduler, rng.fork(2), stop));
    }
    w.run_for(Duration::milliseconds(1));
    w.kill_node(2);
    const Time killed = w.now;
    w.run_until([&] { return std::ranges::all_of(clients, [](const auto& client) { return client->view() == 1; }); });
    EXPECT_LT(w.now, killed + Duration::milliseconds(5)) << count << " of seed " << seed;
    for (const std::uint32_t node : {0u, 1u}) {
      const Ballot its{load_le<std::uint64_t>(w.fabric.region_bytes(w.memory[node].heap).data() + kChangeOffset)};
      EXPECT_LE(its.promised() >> 20, 4u) << count << " of seed " << seed;
    }
    stop = true;
  }
}

constexpr MemoryNode kMissing{{remote::NodeId(0xFFFF'FFFF), {}, 0}, ~std::uint64_t{0}};

// Two of three at once, so that nobody can do without them. They have another key then, and what they had.
TEST(Fusee, MemoryNodesThatWereStoppedForLongerThanTheirLeaseAreUsedOn) {
  for (std::uint32_t other = 0; other < 3; ++other) {
    auto config = with_replicas(3);
    config.local = {.mode = LocalMode::kSeeded, .seed = other + 1};
    config.client.timeout = Duration::milliseconds(5);
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    put_some(w, *a.client, 1);
    for (std::uint64_t times = 1; times < 4; ++times) {
      for (std::uint32_t node = 0; node < 3; ++node) {
        if (node != other) w.stop_node(node);
      }
      EXPECT_EQ(w.wait_for(a->put(2, value_of(202))), Outcome::kUnavailable);
      // That they are not where they were is known before where they are.
      for (std::uint32_t node = 0; node < 3; ++node) {
        if (node != other) a->moved(node, kMissing);
      }
      w.run_for(config.client.suspect_after * 3);
      for (std::uint32_t node = 0; node < 3; ++node) {
        if (node == other) continue;
        w.resume_node(node);
        a->moved(node, w.memory[node]);
      }
      expect_some(w, *a.client, times);
      put_some(w, *a.client, times + 1);
      // Who is told later refuses nothing but its own operations meanwhile.
      for (std::uint32_t node = 0; node < 3; ++node) b->moved(node, w.memory[node]);
      expect_some(w, *b.client, times + 1);
    }
    EXPECT_EQ(a->view(), 0u);
    EXPECT_EQ(b->view(), 0u);
    expect_no_memory_lost(w);
  }
}

// Two nodes, or one: none can leave.
TEST(Fusee, AStoreThatCanDoWithoutNobodyIsUsedOnWhenItsMemoryNodesWereStopped) {
  for (std::uint32_t nodes = 1; nodes <= 2; ++nodes) {
    auto config = with_replicas(nodes);
    config.nodes = nodes;
    config.local = {.mode = LocalMode::kSeeded, .seed = nodes};
    World w(config);
    auto& a = w.add_client();
    put_some(w, *a.client, 1);
    for (std::uint32_t stopped = 0; stopped < nodes; ++stopped) {
      w.stop_node(stopped);
      for (Key key = 0; key < kSomeKeys; ++key) w.wait_for(a->put(key, value_of(key + 100 * (stopped + 1))));
      a->moved(stopped, kMissing);
      w.run_for(Duration::microseconds(50));
      w.resume_node(stopped);
      // The first attempts to see what is there may fail.
      a.memory->cut(w.memory[stopped].heap.node);
      a->moved(stopped, w.memory[stopped]);
      w.run_for(Duration::microseconds(50));
      a.memory->mend(w.memory[stopped].heap.node);
      w.run_for(Duration::microseconds(200));
      expect_some(w, *a.client, stopped + 1);
      put_some(w, *a.client, stopped + 2);
    }
    expect_no_memory_lost(w);
    w.kill_node(0);
    w.restart_node(0);
    a->moved(0, w.memory[0]);
    w.run_for(Duration::microseconds(200));
    std::map<Outcome, int> gets;
    Bytes into(8);
    for (Key key = 0; key < kSomeKeys; ++key) ++gets[w.wait_for(a->get(key, into)).outcome];
    EXPECT_EQ(gets[Outcome::kNotFound], 0) << "lost memory was believed";
    EXPECT_GT(gets[Outcome::kUnavailable], 0);
  }
}

// It left and came back, its memory lost or not; then its key, which the others know it by, changes again. Also for who comes only then.
TEST(Fusee, AMemoryNodeThatCameBackIsKnownUnderEveryKey) {
  for (const bool blank : {true, false}) {
    auto config = with_replicas(3);
    config.client.return_after = Duration::microseconds(200);
    config.client.timeout = Duration::milliseconds(20);
    config.local = {.mode = LocalMode::kSeeded, .seed = blank ? 1u : 2u};
    World w(config);
    auto& a = w.add_client();
    auto& late = w.add_client();
    put_some(w, *a.client, 1);
    for (const std::uint32_t node : {1u, 2u}) {
      if (blank) {
        w.kill_node(node);
      } else {
        w.stop_node(node);
      }
      put_some(w, *a.client, 2);
      EXPECT_TRUE(a->map().has_left(node));
      if (blank) {
        w.restart_node(node);
      } else {
        w.resume_node(node);
      }
      a->moved(node, w.memory[node]);
      ASSERT_TRUE(is_whole_again(w, *a.client, node, 3));
    }
    for (const std::uint32_t node : {1u, 2u}) w.stop_node(node);
    EXPECT_EQ(w.wait_for(a->put(2, value_of(202))), Outcome::kUnavailable);
    for (const std::uint32_t node : {1u, 2u}) {
      w.resume_node(node);
      a->moved(node, w.memory[node]);
      late->moved(node, w.memory[node]);
    }
    expect_some(w, *a.client, 3);
    put_some(w, *a.client, 4);
    // Of views that they learn of here.
    auto& c = w.add_client();
    for (auto* const m : {&late, &c}) {
      expect_some(w, *m->client, 4);
      EXPECT_EQ((*m)->view(), 6u);
    }
    put_some(w, *late.client, 5);
    EXPECT_EQ(a->view(), 6u);
    w.follow(*a.client);
    expect_no_memory_lost(w);
  }
}

// With a view in which what was lost is still meant, what took its place is not believed: whatever it has been given since.
TEST(Fusee, WhatTookThePlaceOfLostMemoryIsNotTakenForIt) {
  auto config = with_replicas(3);
  config.client.return_after = Duration::microseconds(200);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  auto& c = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(1);
  w.restart_node(1);
  // Blank, and nobody has missed it yet.
  b->moved(1, w.memory[1]);
  expect_some(w, *b.client, 1);
  EXPECT_GE(b->view(), 1u);
  put_some(w, *b.client, 2);
  a->moved(1, w.memory[1]);
  ASSERT_TRUE(is_whole_again(w, *a.client, 1, 3));
  // Whole, for those who know all that has changed.
  EXPECT_EQ(c->view(), 0u);
  c->moved(1, w.memory[1]);
  expect_some(w, *c.client, 3);
  put_some(w, *c.client, 4);
  expect_some(w, *b.client, 4);
  EXPECT_EQ(b->view(), 3u);
  EXPECT_EQ(c->view(), 3u);
}

// What was believed lost is seen again, after what took its place is lost, too.
TEST(Fusee, LostMemoryThatIsSeenAgainIsNotBelieved) {
  auto config = with_replicas(3);
  config.client.return_after = Duration::microseconds(200);
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  const MutableBytes lost = w.fabric.region_bytes(w.memory[1].heap);
  const remote::RemoteAddress again =
      w.fabric.add_region(w.fabric.add_node(), w.memory[1].heap.address, config.node_memory);
  std::ranges::copy(lost, w.fabric.region_bytes(again).begin());
  w.kill_node(1);
  put_some(w, *a.client, 2);
  w.restart_node(1);
  a->moved(1, w.memory[1]);
  ASSERT_TRUE(is_whole_again(w, *a.client, 1, 3));
  w.kill_node(1);
  a->moved(1, {again, config.node_memory});
  expect_some(w, *a.client, 3);
  put_some(w, *a.client, 4);
  expect_some(w, *a.client, 4);
  w.run_for(Duration::milliseconds(20));
  put_some(w, *a.client, 5);
  expect_some(w, *a.client, 5);
  EXPECT_TRUE(a->map().has_left(1));
}

// A program that did not get on for a while, and whose connections have ended meanwhile.
TEST(Fusee, WhoWasStoppedInTheMiddleOfAReadingDoesNotGiveUpForThat) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    auto config = with_replicas(3);
    config.local = {.mode = LocalMode::kSeeded, .seed = seed};
    World w(config);
    auto& a = w.add_client(config.client, true);
    put_some(w, *a.client, 1);
    // The lease is over, so it is asked for anew.
    w.run_for(config.client.view_lease() * 2);
    std::vector<Outcome> outcomes;
    const auto get = [&](Key key) -> Task<void> {
      Bytes into(8);
      outcomes.push_back((co_await a->get(key, into)).outcome);
    };
    const std::uint64_t asked = a->counters().renewals;
    a.own->spawn(get(1));
    w.run_until([&] { return a->counters().renewals != asked; });
    a.asleep_until = w.now + Duration::milliseconds(20);
    for (const auto& node : w.memory) a.memory->disconnect(node.heap.node);
    // One reading fails; and that of this node three times, for less long than it takes to be missed.
    for (const auto& node : w.memory) a.memory->cut(node.heap.node);
    w.run_until([&] { return a->counters().renewals > asked + 1; });
    for (const auto& node : w.memory) {
      if (node.heap != w.memory[seed % 3].heap) a.memory->mend(node.heap.node);
    }
    w.run_until([&] { return a->counters().renewals > asked + 4; });
    a.memory->mend(w.memory[seed % 3].heap.node);
    w.run_until([&] { return !outcomes.empty(); });
    EXPECT_EQ(outcomes.front(), Outcome::kOk) << seed;
    w.run_for(config.client.view_lease());
    EXPECT_EQ(a->view(), 0u) << seed << ": a memory node has left that was missed for a moment";
  }
}

TEST(Fusee, WhatWasOutOfReachLongAgoIsLookedForAnew) {
  auto config = with_replicas(3);
  config.local = {.mode = LocalMode::kSeeded, .seed = 1};
  config.client.timeout = Duration::milliseconds(5);
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  for (const auto& node : w.memory) a.memory->cut(node.heap.node);
  EXPECT_EQ(w.wait_for(a->put(1, value_of(101))), Outcome::kUnavailable);
  // Until it has given up.
  w.run_for(config.client.timeout * 5);
  EXPECT_EQ(w.scheduler.live(), 0u);
  std::uint64_t ok = 0;
  std::uint64_t ended = 0;
  w.scheduler.spawn(count_put(*a.client, 1, 8, ok, ended));
  w.run_for(config.client.suspect_after / 2);
  EXPECT_EQ(ended, 0u);
  for (const auto& node : w.memory) a.memory->mend(node.heap.node);
  w.run_until([&] { return ended != 0; });
  EXPECT_EQ(ok, 1u);
}

TEST(Fusee, AMemoryNodeWithLessMemoryIsNotTakenBack) {
  auto config = with_replicas(3);
  config.client.return_after = Duration::microseconds(200);
  World w(config);
  auto& a = w.add_client();
  put_some(w, *a.client, 1);
  w.kill_node(2);
  put_some(w, *a.client, 2);
  w.restart_node(2);
  w.memory[2].heap_bytes -= 4096;
  a->moved(2, w.memory[2]);
  for (int i = 0; i < 20; ++i) {
    put_some(w, *a.client, 3);
    w.run_for(Duration::microseconds(500));
  }
  EXPECT_EQ(a->view(), 1u);
  auto& b = w.add_client();
  expect_some(w, *b.client, 3);
  EXPECT_EQ(b->view(), 1u);
}

// A memory node dies after so many steps of a client's operation: it is done, or was never begun; then the client dies as well, or not.
bool node_dies_after(std::uint64_t steps, std::uint32_t dead, bool client_too, std::uint64_t seed) {
  auto config = with_replicas(3);
  config.local = {.mode = LocalMode::kSeeded, .seed = seed};
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  EXPECT_EQ(w.wait_for(a->put(9, value_of(1))), Outcome::kOk);
  EXPECT_EQ(w.wait_for(b->put(10, value_of(2))), Outcome::kOk);
  Outcome outcome{};
  bool ended = false;
  const auto act = [](Client& client, Outcome& result, bool& done) -> Task<void> {
    const Bytes value = value_of(3);
    result = co_await client.put(9, value);
    done = true;
  };
  w.scheduler.spawn(act(*a.client, outcome, ended));
  for (std::uint64_t i = 0; i < steps && !ended; ++i) w.step();
  const bool before = ended;
  w.kill_node(dead);
  if (client_too) {
    for (std::uint64_t i = 0; i < seed % 50; ++i) w.step();
    a.kill();
  } else {
    w.run_until([&] { return ended; });
    EXPECT_EQ(outcome, Outcome::kOk);
  }
  const auto seen = read(w, *b.client, 9);
  if (ended) {
    EXPECT_EQ(seen, value_of(3)) << "after " << steps << " steps";
  } else {
    EXPECT_TRUE(seen == value_of(1) || seen == value_of(3));
  }
  EXPECT_EQ(read(w, *b.client, 10), value_of(2));
  if (client_too) {
    Outcome recovered = Outcome::kUnavailable;
    for (int i = 0; i < 10 && recovered != Outcome::kOk; ++i) recovered = w.wait_for(b->recover(a->number()));
    EXPECT_EQ(recovered, Outcome::kOk);
    if (seen == value_of(3)) {
      EXPECT_EQ(read(w, *b.client, 9), seen) << "what was read has gone";
    }
  }
  w.follow(*b.client);
  expect_no_memory_lost(w);
  return before;
}

TEST(Fusee, WheneverAMemoryNodeDiesWhatWasUnderWayIsDecided) {
  for (std::uint32_t dead = 0; dead < 3; ++dead) {
    for (const bool client_too : {false, true}) {
      std::uint64_t steps = 0;
      while (!node_dies_after(steps, dead, client_too, steps + 1) && !testing::Test::HasFailure()) ++steps;
      if (testing::Test::HasFailure()) FAIL() << "node " << dead << ", step " << steps << ", client " << client_too;
      EXPECT_GT(steps, 5u);
    }
  }
}

// ------------------------------------------------------------------------------------------------------ dead clients

// A client dies after so many steps of the fabric in its operation; what it did is all or nothing, and recover() leaves nothing of it.
enum class Doing : std::uint8_t { kPut, kInsert, kErase };

bool dies_after(Doing doing, std::uint32_t replicas, std::uint64_t steps, std::uint64_t seed) {
  auto config = with_replicas(replicas);
  config.local = {.mode = LocalMode::kSeeded, .seed = seed};
  World w(config);
  auto& victim = w.add_client();
  auto& other = w.add_client();
  const Bytes before = value_of(1);
  const Bytes after = value_of(2);
  if (doing != Doing::kInsert) {
    EXPECT_EQ(w.wait_for(other->put(9, before)), Outcome::kOk);
  }
  EXPECT_EQ(w.wait_for(victim->put(10, before)), Outcome::kOk);
  bool ended = false;
  const auto act = [](Client& client, Doing what, const Bytes& value, bool& done) -> Task<void> {
    Outcome outcome{};
    if (what == Doing::kPut) outcome = co_await client.put(9, value);
    if (what == Doing::kInsert) outcome = co_await client.insert(9, value);
    if (what == Doing::kErase) outcome = co_await client.erase(9);
    EXPECT_EQ(outcome, Outcome::kOk);
    done = true;
  };
  w.scheduler.spawn(act(*victim.client, doing, after, ended));
  for (std::uint64_t i = 0; i < steps && !ended; ++i) w.step();
  victim.kill();
  EXPECT_EQ(w.wait_for(other->recover(victim->number())), Outcome::kOk);
  const auto seen = read(w, *other.client, 9);
  const auto old = doing == Doing::kInsert ? std::nullopt : std::optional(before);
  const auto fresh = doing == Doing::kErase ? std::nullopt : std::optional(after);
  EXPECT_TRUE(seen == fresh || (!ended && seen == old)) << "after " << steps << " steps";
  EXPECT_EQ(w.index().tentative, 0u);
  EXPECT_EQ(w.owners()[victim->number()], 0u);
  expect_no_memory_lost(w);
  EXPECT_EQ(w.wait_for(other->put(9, value_of(3))), Outcome::kOk);
  EXPECT_EQ(read(w, *other.client, 10), before);
  return ended;
}

TEST(Fusee, WhereverAClientDiesOthersGoOnAndItsMemoryIsFound) {
  for (const Doing doing : {Doing::kPut, Doing::kInsert, Doing::kErase}) {
    for (std::uint32_t replicas = 1; replicas <= 4; ++replicas) {
      std::uint64_t steps = 0;
      while (!dies_after(doing, replicas, steps, steps + 1) && !testing::Test::HasFailure()) ++steps;
      if (testing::Test::HasFailure()) FAIL() << "replicas " << replicas << ", step " << steps;
      EXPECT_GT(steps, 5u);
    }
  }
}

// A take-over whose outcome was never learnt: the blocks are the client's, and full of what others have put there.
TEST(Fusee, BlocksThatWereTakenOverWithoutItsKnowingAreNotTakenForEmpty) {
  World w(WorldConfig{});
  auto& victim = w.add_client();
  auto& other = w.add_client();
  for (Key key = 0; key < 30; ++key) ASSERT_EQ(w.wait_for(victim->put(key, value_of(key))), Outcome::kOk);
  victim.kill();
  std::uint32_t turned = 0;
  for (std::uint32_t partition = 0; partition < w.map.partitions(); ++partition) {
    for (std::uint32_t i = 0; i < w.map.blocks(); ++i) {
      const Place at = w.map.owner(partition, i);
      const Owner owner{w.word(at, 0)};
      if (owner.raw == 0 || owner.client() != victim->number()) continue;
      for (std::uint32_t replica = 0; replica < w.map.word_replicas(at); ++replica)
        w.set_word(at, replica, Owner::of(other->number(), 1'000'000, owner.units()).raw);
      ++turned;
    }
  }
  ASSERT_GT(turned, 0u);
  for (Key key = 100; key < 400; ++key) ASSERT_EQ(w.wait_for(other->put(key, value_of(key))), Outcome::kOk);
  for (Key key = 0; key < 30; ++key) EXPECT_EQ(read(w, *other.client, key), value_of(key)) << key;
  EXPECT_EQ(w.wait_for(other->recover(victim->number())), Outcome::kOk);
  EXPECT_EQ(other->counters().recovered, turned);
  for (Key key = 0; key < 30; ++key) EXPECT_EQ(read(w, *other.client, key), value_of(key)) << key;
  expect_no_memory_lost(w);
}

TEST(Fusee, WithoutRecoveryOthersWriteOverWhatADeadClientLeftHalfDone) {
  std::uint64_t finished = 0;
  for (std::uint64_t steps = 0; steps < 60; ++steps) {
    auto config = with_replicas(3);
    config.local = {.mode = LocalMode::kSeeded, .seed = steps + 1};
    World w(config);
    auto& victim = w.add_client();
    auto& other = w.add_client();
    ASSERT_EQ(w.wait_for(other->put(9, value_of(1))), Outcome::kOk);
    const auto act = [](Client& client) -> Task<void> {
      const Bytes value = value_of(2);
      co_await client.put(9, value);
    };
    w.scheduler.spawn(act(*victim.client));
    for (std::uint64_t i = 0; i < steps; ++i) w.step();
    victim.kill();
    ASSERT_EQ(w.wait_for(other->put(9, value_of(3))), Outcome::kOk);
    // The dead one's may still win over it, as if it had been written after.
    const auto seen = read(w, *other.client, 9);
    EXPECT_TRUE(seen == value_of(3) || seen == value_of(2));
    ASSERT_EQ(w.wait_for(other->erase(9)), Outcome::kOk);
    EXPECT_EQ(read(w, *other.client, 9), std::nullopt);
    finished += other->counters().finished + other->counters().won_more;
  }
  EXPECT_GT(finished, 0u);
}

// A client with more objects than an operation has time to look at, when there is no room.
TEST(Fusee, AuditsThatHaveNoTimeForAllFindTheRoomThereIs) {
  constexpr Key kOthers = 1120;
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = 3};
  config.nodes = 3;
  config.node_memory = 512 << 10;
  config.geometry.groups = 128;
  config.client.hold = Duration::microseconds(100);
  config.client.flight = Duration::microseconds(20);
  config.client.timeout = Duration::microseconds(400);
  config.client.backoff_most = Duration::microseconds(5);
  config.client.lease = Duration::microseconds(5);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < kOthers; ++key) ASSERT_EQ(w.wait_for(b->put(key, value_of(key))), Outcome::kOk);
  w.run_for(Duration::microseconds(200));
  ASSERT_EQ(w.wait_for(b->leave()), Outcome::kOk);
  b.dead = true;
  for (Key key = 0; key < kOthers; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key + 1))), Outcome::kOk);
  Key more = 0;
  for (int refused = 0; refused < 40;) {
    const Outcome outcome = w.wait_for(a->put(1'000'000 + more, value_of(more)));
    if (outcome == Outcome::kOk) {
      ++more;
      continue;
    }
    ++refused;
    w.run_for(Duration::microseconds(300));
  }
  EXPECT_EQ(w.left_behind(), 0u);
  EXPECT_GT(more, 3900u) << "what the other one had was room, too";
}

// Entries that their operations had to give up before they were live.
TEST(Fusee, WhatNeverBecameLiveKeepsNoSlot) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = 5};
  config.nodes = 2;
  config.node_memory = 256 << 10;
  config.geometry = {.replicas = 2, .groups = 2, .value_bytes = 8, .block_bytes = 4096};
  config.client.timeout = Duration::microseconds(300);
  config.client.hold = Duration::microseconds(200);
  config.client.flight = Duration::microseconds(50);
  World w(config);
  auto& a = w.add_client();
  bool done = false;
  const auto insert = [&](Key key) -> Task<void> {
    static_cast<void>(co_await a->insert(key, value_of(key)));
    done = true;
  };
  for (Key key = 0; key < 200; ++key) {
    const std::uint64_t before = w.index().tentative;
    done = false;
    w.scheduler.spawn(insert(key));
    while (!done && w.index().tentative == before) w.step();
    for (const auto& m : w.memory) a.memory->cut(m.heap.node);
    while (!done) w.step();
    for (const auto& m : w.memory) a.memory->mend(m.heap.node);
    w.run_for(Duration::microseconds(100));
  }
  w.run_for(Duration::milliseconds(2));
  int taken = 0;
  for (Key key = 1000; key < 1100; ++key) taken += w.wait_for(a->put(key, value_of(key))) == Outcome::kOk;
  EXPECT_GT(taken, 90) << "of 96 slots";
  EXPECT_EQ(w.index().tentative, 0u);
}

// The same, when others need their slots before an audit may look at them.
TEST(Fusee, WhatNeverBecameLiveIsFoundThoughItIsLookedForTooSoon) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = 5};
  config.nodes = 2;
  config.node_memory = 256 << 10;
  config.geometry = {.replicas = 2, .groups = 2, .value_bytes = 8, .block_bytes = 4096};
  config.client.timeout = Duration::microseconds(300);
  config.client.hold = Duration::microseconds(200);
  config.client.flight = Duration::microseconds(50);
  World w(config);
  auto& a = w.add_client();
  const auto put_many = [&](Key first, Key last, Duration pause) {
    for (Key key = first; key < last; ++key) {
      static_cast<void>(w.wait_for(a->put(key, value_of(key))));
      w.run_for(pause);
    }
  };
  put_many(5000, 5070, {});
  std::size_t ended = 0;
  const auto insert = [&](Key key) -> Task<void> {
    static_cast<void>(co_await a->insert(key, value_of(key)));
    ++ended;
  };
  for (Key key = 0; key < 26; ++key) w.scheduler.spawn(insert(key));
  while (w.index().tentative < 12 && ended == 0) w.step();
  for (const auto& m : w.memory) a.memory->cut(m.heap.node);
  while (ended < 26) w.step();
  for (const auto& m : w.memory) a.memory->mend(m.heap.node);
  ASSERT_GT(w.index().tentative, 0u);
  put_many(900, 940, {});
  w.run_for(Duration::milliseconds(2));
  put_many(1000, 1100, Duration::microseconds(300));
  EXPECT_EQ(w.index().tentative, 0u);
}

// There is room of their own size in what others have left.
TEST(Fusee, ShortValuesLeaveLongPlacesAloneWhileThereAreOthers) {
  WorldConfig config;
  config.node_memory = 256u << 10;
  config.geometry.value_bytes = 400;
  World w(config);
  auto& a = w.add_client();
  for (Key i = 0; i < 15; ++i) {
    auto& b = w.add_client();
    ASSERT_EQ(w.wait_for(b->put(5000 + i, value_of(i))), Outcome::kOk);
    ASSERT_EQ(w.wait_for(b->leave()), Outcome::kOk);
    b.dead = true;
  }
  Key key = 0;
  for (; a->blocks().size() + 15 < std::size_t{3} * w.map.free_blocks(); ++key)
    ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 400))), Outcome::kOk) << key;
  ASSERT_EQ(a->counters().recovered, 0u);
  ASSERT_GT(key, 100u);
  for (Key k = 0; k < key / 2; ++k) ASSERT_EQ(w.wait_for(a->put(k, value_of(k))), Outcome::kOk) << k;
  for (Key k = 0; k < key / 2; ++k) ASSERT_EQ(w.wait_for(a->put(9000 + k, value_of(k, 400))), Outcome::kOk) << k;
  for (Key k = 0; k < key / 2; ++k) EXPECT_EQ(read(w, *a.client, k), value_of(k)) << k;
  EXPECT_EQ(w.index().lacking, 0u);
}

// For a time no CAS gets through.
class SwaplessMemory final : public remote::RemoteMemory {
 public:
  explicit SwaplessMemory(remote::LocalMemory& memory) : RemoteMemory(memory.scheduler()), memory_(memory) {}
  remote::Capabilities capabilities() const override { return memory_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (refuses && operation.kind == remote::OpKind::kCompareAndSwap)
      return complete(operation, remote::Status::kUnreachable);
    memory_.submit(operation);
  }
  bool refuses = false;

 private:
  remote::LocalMemory& memory_;
};

TEST(Fusee, AnAuditIsNotThroughBeforeWhatNeverBecameLiveIsGone) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  SwaplessMemory swapless(memory);
  auto config = w.config_.client;
  config.timeout = Duration::microseconds(500);
  Client client(swapless, w.memory, config, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  ASSERT_EQ(w.wait_for(client.put(5, value_of(5))), Outcome::kOk);
  for (std::uint32_t partition = 0; partition < w.map.partitions(); ++partition) {
    for (std::uint64_t at = 0; at < w.map.table_bytes(); at += 8) {
      const Place slot = w.map.slots({}, partition) + at;
      const Word word{w.word(slot, 0)};
      for (std::uint32_t i = 0; word.raw != 0 && i < w.config_.geometry.replicas; ++i)
        w.set_word(slot, i, word.with(State::kTentative).raw);
    }
  }
  ASSERT_EQ(w.index().tentative, 1u);
  w.run_for(config.hold + config.flight);
  swapless.refuses = true;
  EXPECT_EQ(w.wait_for(client.audit()), Outcome::kUnavailable);
  EXPECT_EQ(w.index().tentative, 1u);
  swapless.refuses = false;
  w.run_for(Duration::microseconds(100));
  EXPECT_EQ(w.wait_for(client.audit()), Outcome::kOk);
  EXPECT_EQ(w.index().tentative, 0u);
}

// A round of an audit that had no time for its end goes on with the next one; but not when that is long after.
TEST(Fusee, WhatAnAuditSawLongAgoSaysNothingOfTheRoomThatThereIsNow) {
  std::uint64_t refused = 0;
  for (int timeout = 500; timeout < 720; timeout += 8) {
    WorldConfig config;
    config.local = {.mode = LocalMode::kSeeded, .seed = 3};
    config.node_memory = 256u << 10;
    config.geometry.groups = 64;
    config.client.hold = Duration::microseconds(100);
    config.client.flight = Duration::microseconds(20);
    config.client.backoff_most = Duration::microseconds(5);
    config.client.lease = Duration::microseconds(5);
    config.client.timeout = Duration::microseconds(timeout);
    World w(config);
    auto& a = w.add_client();
    Key key = 0;
    while (w.wait_for(a->put(key, value_of(key))) == Outcome::kOk) ++key;
    ASSERT_GT(key, 1500u);
    // All but what is in its last blocks is nobody's from now on.
    std::set<std::uint64_t> kept;
    for (const auto& block : a->blocks().last(2)) {
      for (std::uint32_t i = 0; i < block->shape.objects; ++i) kept.insert(block->object(i).raw);
    }
    for (std::uint32_t partition = 0; partition < w.map.partitions(); ++partition) {
      for (std::uint64_t at = 0; at < w.map.table_bytes(); at += 8) {
        const Place slot = w.map.slots({}, partition) + at;
        if (kept.contains(Word{w.word(slot, 0)}.object().raw)) continue;
        for (std::uint32_t i = 0; i < config.geometry.replicas; ++i) w.set_word(slot, i, 0);
      }
    }
    w.run_for(Duration::milliseconds(5));
    refused += w.wait_for(a->put(1'000'000, value_of(1))) != Outcome::kOk;
  }
  EXPECT_EQ(refused, 0u);
}

// One after the other loads all keys and is killed.
TEST(Fusee, WhatKilledClientsHadIsRoomForOthersOnceSomebodyLeavesForThem) {
  constexpr Key kKeys = 3000;
  WorldConfig config;
  config.node_memory = 1u << 20;
  config.geometry.groups = 256;
  World w(config);
  std::vector<std::uint32_t> dead;
  for (std::uint64_t life = 0; life < 6; ++life) {
    auto& m = w.add_client();
    if (!dead.empty()) {
      ASSERT_EQ(w.wait_for(m->leave_for(std::exchange(dead, {}))), Outcome::kOk);
    }
    for (Key key = 0; key < kKeys; ++key)
      ASSERT_EQ(w.wait_for(m->put(key, value_of(key + life))), Outcome::kOk) << life;
    dead.push_back(m->number());
    m.kill();
  }
  auto& last = w.add_client();
  EXPECT_EQ(w.wait_for(last->leave_for({99, dead.front()})), Outcome::kOk);
  EXPECT_FALSE(w.owners().contains(dead.front()));
  for (Key key = 0; key < kKeys; ++key) ASSERT_EQ(read(w, *last.client, key), value_of(key + 5));
  for (int i = 0; i < 40 && w.left_behind() != 0; ++i) ASSERT_EQ(w.wait_for(last->audit()), Outcome::kOk);
  EXPECT_EQ(w.left_behind(), 0u);
  expect_no_memory_lost(w);
}

// What is free in there is found object by object, and they are far away.
TEST(Fusee, ThereIsTimeToLookThroughManyObjectsThatOthersHaveLeft) {
  constexpr Key kKeys = 4500;
  WorldConfig config;
  config.node_memory = 1u << 20;
  config.geometry.groups = 256;
  config.geometry.block_bytes = 32u << 10;
  config.client.timeout = Duration::milliseconds(6);  // some hundred round trips
  World w(config);
  std::vector<std::uint32_t> dead;
  for (std::uint64_t life = 0; life < 6; ++life) {
    auto& m = w.add_client();
    if (!dead.empty()) {
      ASSERT_EQ(w.wait_for(m->leave_for(std::exchange(dead, {}))), Outcome::kOk);
    }
    for (Key key = 0; key < kKeys; ++key)
      ASSERT_EQ(w.wait_for(m->put(key, value_of(key + life))), Outcome::kOk) << life;
    dead.push_back(m->number());
    m.kill();
  }
  remote::LocalMemory near(w.scheduler, w.fabric);
  DistantMemory far(near, Rng(2));
  Client client(far, w.memory, config.client, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  ASSERT_EQ(w.wait_for(client.leave_for(std::move(dead))), Outcome::kOk);
  std::uint64_t ok = 0;
  std::uint64_t ended = 0;
  for (Key key = 0; key < kKeys; ++key) {
    w.scheduler.spawn(count_put(client, key, 8, ok, ended));
    if (key % 8 == 7) w.run_until([&] { return ended == key + 1; });
  }
  w.run_until([&] { return ended == kKeys; });
  EXPECT_EQ(ok, kKeys);
}

TEST(Fusee, WhoLeavesGivesBackManyBlocksAtATime) {
  constexpr Key kKeys = 10'000;
  WorldConfig config;
  config.node_memory = 8u << 20;
  config.geometry.groups = 1024;
  World w(config);
  remote::LocalMemory near(w.scheduler, w.fabric);
  DistantMemory far(near, Rng(2));
  Client client(far, w.memory, config.client, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  std::uint64_t ok = 0;
  std::uint64_t ended = 0;
  for (Key key = 0; key < kKeys; ++key) {
    w.scheduler.spawn(count_put(client, key, 8, ok, ended));
    if (key % 64 == 63) w.run_until([&] { return ended == key + 1; });
  }
  w.run_until([&] { return ended == kKeys; });
  ASSERT_EQ(ok, kKeys);
  ASSERT_GT(client.counters().blocks, 150u);
  const Time begun = w.now;
  EXPECT_EQ(w.wait_for(client.leave()), Outcome::kOk);
  EXPECT_FALSE(w.owners().contains(client.number()));
  EXPECT_LT((w.now - begun) / DistantMemory::kFar, 200) << "round trips";
}

// From some time on it answers reads alone.
class ReadOnlyMemory final : public remote::RemoteMemory {
 public:
  explicit ReadOnlyMemory(remote::LocalMemory& memory) : RemoteMemory(memory.scheduler()), memory_(memory) {}
  remote::Capabilities capabilities() const override { return memory_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (refuses && operation.kind != remote::OpKind::kRead) return complete(operation, remote::Status::kUnreachable);
    memory_.submit(operation);
  }
  bool refuses = false;

 private:
  remote::LocalMemory& memory_;
};

Task<void> count_erase(Client& client, Key key, std::uint64_t& ok, std::uint64_t& ended) {
  ok += co_await client.erase(key) == Outcome::kOk;
  ++ended;
}

// The store is full, its writer lives, and of the last blocks of the partitions each was claimed by somebody who erased one key and left; one of them also
// replaced others until its block was full.
Key fill_and_leave_kept(World& w, std::size_t bytes, std::uint32_t full) {
  auto& a = w.add_client();
  Key key = 0;
  while (w.wait_for(a->put(key, value_of(key, bytes))) == Outcome::kOk) ++key;
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto& b = w.add_client();
    EXPECT_EQ(w.wait_for(b->erase(i)), Outcome::kOk);
    const std::uint32_t places = b->blocks()[0]->shape.objects;
    for (Key k = 1; i == full && k < places; ++k) EXPECT_EQ(w.wait_for(b->put(10 + k, value_of(k))), Outcome::kOk) << k;
    EXPECT_EQ(b->blocks().size(), 1u);
  }
  for (std::uint32_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(w.wait_for(w.members[i]->client->leave()), Outcome::kOk);
    w.members[i]->dead = true;
  }
  EXPECT_EQ(w.left_behind(), 3u);
  return key;
}

TEST(Fusee, WhoFindsNoRoomTakesNoLastBlockThatIsOfNoUseToIt) {
  WorldConfig config;
  config.node_memory = 256u << 10;
  config.geometry.value_bytes = 400;
  World w(config);
  fill_and_leave_kept(w, 400, 3);
  // All are of short places.
  auto& b = w.add_client();
  EXPECT_EQ(w.wait_for(b->put(20, value_of(9, 400))), Outcome::kNoSpace);
  EXPECT_EQ(b->blocks().size(), 0u);
  auto& c = w.add_client();
  for (Key key = 30; key < 33; ++key) EXPECT_EQ(w.wait_for(c->erase(key)), Outcome::kOk) << key;
  EXPECT_EQ(c->blocks().size(), 1u);
}

TEST(Fusee, WhoTakesALastBlockTakesOneWithRoom) {
  for (std::uint32_t full = 0; full < 3; ++full) {
    WorldConfig config;
    config.node_memory = 256u << 10;
    World w(config);
    const Key keys = fill_and_leave_kept(w, 8, full);
    ASSERT_GT(keys, 1000u);
    // Several at once need no more than one does; and there is one for another.
    for (Key first : {400u, 500u}) {
      auto& b = w.add_client();
      std::uint64_t ok = 0;
      std::uint64_t ended = 0;
      for (Key key = first; key < first + 4; ++key) w.scheduler.spawn(count_erase(*b.client, key, ok, ended));
      w.run_until([&] { return ended == 4; });
      EXPECT_EQ(ok, 4u) << full;
      EXPECT_EQ(b->blocks().size(), 1u) << full;
    }
    EXPECT_EQ(w.left_behind(), 1u) << full;
  }
}

// One long READ is lost.
class OneReadLess final : public remote::RemoteMemory {
 public:
  OneReadLess(remote::LocalMemory& memory, std::size_t length)
      : RemoteMemory(memory.scheduler()), memory_(memory), length_(length) {}
  remote::Capabilities capabilities() const override { return memory_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (operation.kind == remote::OpKind::kRead && operation.local.size() >= length_ && ++reads == lost)
      return complete(operation, remote::Status::kUnreachable);
    memory_.submit(operation);
  }
  std::uint64_t reads = 0;
  std::uint64_t lost = 0;  // the so manieth

 private:
  remote::LocalMemory& memory_;
  std::size_t length_;
};

TEST(Fusee, AnAuditGoesOnWhereItCouldNotReadABlock) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  OneReadLess lossy(memory, 3000);
  Client client(lossy, w.memory, w.config_.client, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  for (Key key = 0; key < 900; ++key) ASSERT_EQ(w.wait_for(client.put(key, value_of(key))), Outcome::kOk);
  w.run_for(w.config_.client.hold + w.config_.client.flight);
  const std::uint64_t blocks = client.blocks().size();
  ASSERT_GT(blocks, 10u);
  for (const std::uint64_t lost : {std::uint64_t{1}, blocks / 2, blocks}) {
    lossy.reads = 0;
    lossy.lost = lost;
    EXPECT_EQ(w.wait_for(client.audit()), Outcome::kOk);
    EXPECT_EQ(lossy.reads, blocks + 1) << "lost " << lost;
    w.run_for(w.config_.client.hold + w.config_.client.flight);
  }
}

TEST(Fusee, WhoCannotLeaveLetsTimeGetOnAndEnds) {
  World w(with_replicas(2));
  remote::LocalMemory near(w.scheduler, w.fabric);
  ReadOnlyMemory memory(near);
  Client client(memory, w.memory, w.config_.client, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  ASSERT_EQ(w.wait_for(client.put(1, value_of(1))), Outcome::kOk);
  memory.refuses = true;
  EXPECT_EQ(w.wait_for(client.leave()), Outcome::kUnavailable);
  memory.refuses = false;
  EXPECT_EQ(w.wait_for(client.leave()), Outcome::kOk);
  EXPECT_FALSE(w.owners().contains(client.number()));
}

// What the dead one's log tells of was reclaimed long ago, and something else is there, which has been marked, too.
TEST(Fusee, AnOldLogHidesNoNewerMark) {
  World w(with_replicas(3));
  auto& a = w.add_client();
  auto& b = w.add_client();
  auto& c = w.add_client();
  const auto word_of = [&](Key key) {
    Word found{};
    for (std::uint32_t partition = 0; partition < w.map.partitions(); ++partition) {
      for (std::uint64_t at = 0; at < w.map.table_bytes(); at += 8) {
        const Word word{w.word(w.map.slots({}, partition) + at, 0)};
        if (word.live() && w.key_of(word) == key) found = word;
      }
    }
    return found;
  };
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1))), Outcome::kOk);
  const Word first = word_of(1);
  ASSERT_EQ(w.wait_for(b->put(1, value_of(2))), Outcome::kOk);
  ASSERT_EQ(w.wait_for(a->audit()), Outcome::kOk);
  w.run_for(w.config_.client.hold + w.config_.client.flight);
  ASSERT_EQ(w.wait_for(a->put(2, value_of(3))), Outcome::kOk);
  ASSERT_EQ(word_of(2).object(), first.object());
  ASSERT_EQ(w.wait_for(c->put(2, value_of(4))), Outcome::kOk);
  w.run_for(Duration::microseconds(10));
  const std::uint64_t marked = w.object_word(w.map.mark(first));
  ASSERT_EQ(marked, w.object_word(first.object() + kSequenceOffset));
  b.kill();
  ASSERT_EQ(w.wait_for(c->recover(b->number())), Outcome::kOk);
  EXPECT_EQ(w.object_word(w.map.mark(first)), marked);
  expect_no_memory_lost(w);
}

TEST(Fusee, NumbersOfClientsComeOnce) {
  World w(with_replicas(2));
  for (const auto& node : w.memory)
    store_le(w.fabric.region_bytes(node.heap).data() + kClientOffset, kMostClients / w.memory.size() - 1);
  for (int i = 0; i < 3; ++i) {
    remote::LocalMemory memory(w.scheduler, w.fabric);
    Client client(memory, w.memory, w.config_.client, Rng(1));
    const Outcome joined = w.wait_for(client.join());
    if (i < 2) {
      EXPECT_EQ(joined, Outcome::kOk);
      EXPECT_GT(client.number(), kMostClients - 4);
    } else {
      EXPECT_EQ(joined, Outcome::kNoSpace);
    }
  }
}

TEST(Fusee, WhoLeavesEndsWhatItHasHalfDone) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .seed = 3};
  config.nodes = 3;
  config.node_memory = 512 << 10;
  config.geometry.groups = 128;
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  w.set_word(w.map.owner(1, 5), 1, Owner::of(a->number(), 1, 1).raw);  // a claim whose outcome it never learned
  EXPECT_EQ(w.wait_for(a->leave()), Outcome::kOk);
  a.dead = true;
  Key key = 0;
  while (w.wait_for(b->put(key, value_of(key))) == Outcome::kOk) ++key;
  EXPECT_EQ(w.wait_for(b->audit()), Outcome::kOk);
  EXPECT_FALSE(w.owners().contains(a->number()));
}

}  // namespace
}  // namespace sluice::fusee
