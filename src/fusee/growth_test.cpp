#include "fusee/growth.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/effort_test.h"
#include "fusee/test_world.h"

namespace sluice::fusee {
namespace {

using remote::LocalMode;
using remote::Task;

using Bytes = std::vector<std::uint8_t>;

Bytes value_of(std::uint64_t n) {
  Bytes value(8);
  store_le(value.data(), n * 0x9E37'79B9'7F4A'7C15);
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

WorldConfig small_index(std::uint32_t doublings, std::uint64_t seed = 0) {
  WorldConfig config;
  config.geometry.groups = 2;
  config.geometry.doublings = doublings;
  if (seed != 0) config.local = {.mode = LocalMode::kSeeded, .seed = seed};
  return config;
}

// Nothing is half done, nothing is in two places, no memory is lost.
World::Index expect_whole(World& w) {
  for (int i = 0; i < 2; ++i) {
    for (const auto& m : w.members) {
      if (!m->dead) {
        EXPECT_EQ(w.wait_for(m->client->audit()), Outcome::kOk);
      }
    }
    w.run_for((w.config_.client.hold + w.config_.client.flight) * 2);
  }
  auto index = w.index();
  EXPECT_EQ(index.differing, 0u);
  EXPECT_EQ(index.splitting, 0u);
  EXPECT_EQ(index.thawed, 0u);
  EXPECT_EQ(index.lacking, 0u);
  EXPECT_EQ(w.placed(), index.objects);
  std::ranges::sort(index.keys);
  EXPECT_EQ(std::ranges::adjacent_find(index.keys), index.keys.end()) << "a key is there twice";
  return index;
}

TEST(FuseeTables, EachHasItsNumberAndItsPlace) {
  const Geometry geometry{.replicas = 2, .groups = 3, .block_bytes = 4096, .tables = 3, .doublings = 4};
  std::vector<MemoryNode> nodes;
  for (std::uint32_t i = 0; i < 4; ++i) nodes.push_back({{remote::NodeId(i), remote::RegionKey(1), 0}, 4 << 20});
  const MemoryMap map(nodes, geometry);
  EXPECT_EQ(map.tables(), 3u * 31);
  std::set<std::uint64_t> headers;
  for (std::uint64_t number = 0; number < map.tables(); ++number) {
    const Table table = map.table_of(number);
    EXPECT_EQ(map.number(table), number);
    EXPECT_LT(map.header(table).offset(), map.header_bytes());
    EXPECT_TRUE(headers.insert(map.header(table).raw).second);
    EXPECT_EQ(map.slots(table, 1).offset(), map.header_bytes() + number * map.table_bytes());
    EXPECT_LE(map.slots(table, 1).offset() + map.table_bytes(), map.owner(1, 0).offset());
    if (!map.may_split(table)) continue;
    EXPECT_EQ(map.table_of(map.number(table.half(1))), table.half(1));
  }
  std::map<std::uint64_t, int> keys;
  for (Key key = 0; key < 4800; ++key) {
    for (std::uint32_t level = 0; level < geometry.doublings; ++level) {
      EXPECT_EQ(map.table(key, level + 1), map.table(key, level).half(map.half(key, level)));
      // At the same place in every table.
      for (std::size_t run = 0; run < 2; ++run) {
        const Place here = map.choices(key, map.table(key, level)).run[run];
        const Place there = map.choices(key, map.table(key, level + 1)).run[run];
        EXPECT_EQ(here.partition(), there.partition());
        EXPECT_EQ(here.offset() - map.slots(map.table(key, level), here.partition()).offset(),
                  there.offset() - map.slots(map.table(key, level + 1), there.partition()).offset());
      }
    }
    ++keys[map.number(map.table(key, 4))];
  }
  EXPECT_EQ(keys.size(), 48u);
  for (const auto& [table, count] : keys) EXPECT_TRUE(count > 50 && count < 160) << table << ": " << count;
}

TEST(FuseeTables, AGeometryWhoseIndexIsTooLargeIsRefused) {
  EXPECT_STREQ(Geometry{}.refusal(), "");
  EXPECT_STRNE((Geometry{.tables = 0}.refusal()), "");
  EXPECT_STRNE((Geometry{.doublings = 17}.refusal()), "");
  EXPECT_STREQ((Geometry{.value_bytes = 16'280}.refusal()), "");
  EXPECT_STRNE((Geometry{.value_bytes = 16'281}.refusal()), "");
  EXPECT_STRNE((Geometry{.value_bytes = 0xFFFF'FFFF}.refusal()), "");
  EXPECT_STRNE((Geometry{.groups = 1u << 30, .tables = 1u << 20, .doublings = 16}.refusal()), "");
}

TEST(FuseeTables, ASuperblockKeepsTheGeometry) {
  const Superblock made{.geometry = {.replicas = 3, .groups = 5, .index_replicas = 2, .tables = 77, .doublings = 9},
                        .nodes = 4,
                        .index = 3,
                        .store_id = 0xFEDC'BA98,
                        .heap_bytes = 123,
                        .votes_from = 6};
  std::array<std::uint8_t, kSuperblockRead> bytes{};
  put_superblock(bytes, made);
  Superblock read;
  ASSERT_TRUE(parse_superblock(bytes, read));
  EXPECT_EQ(read.geometry, made.geometry);
  EXPECT_EQ(read.nodes, 4u);
  EXPECT_EQ(read.index, 3u);
  EXPECT_EQ(read.store_id, 0xFEDC'BA98);
  EXPECT_EQ(read.heap_bytes, 123u);
  EXPECT_EQ(read.votes_from, 6u);
  for (const std::size_t byte : {26u, 30u, 50u}) {
    bytes[byte] ^= 1;
    EXPECT_FALSE(parse_superblock(bytes, read)) << byte;
    bytes[byte] ^= 1;
  }
}

TEST(FuseeTables, AFrozenWordIsTheSameOneThawed) {
  const Word word = Word::of(Place::at(1, 4096), 7, 2, State::kTentative);
  EXPECT_TRUE(word.freeze().frozen());
  EXPECT_EQ(word.freeze().thaw(), word);
  EXPECT_EQ(word.freeze().object(), word.object());
  EXPECT_FALSE(word.freeze().tentative());
  EXPECT_FALSE(word.with(State::kVoid).freeze().vacant());
  EXPECT_NE(word.with(State::kVoid).freeze(), word.freeze());
  EXPECT_NE(Word{}.freeze().raw, 0u);
  EXPECT_FALSE(Word{}.freeze().vacant());
  EXPECT_EQ(Word{}.freeze().thaw(), Word{});
}

// From one table through several doublings, against a map.
TEST(FuseeGrowth, AgreesWithAMapWhileItGrows) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    auto config = small_index(8);
    config.nodes = 1 + static_cast<std::uint32_t>(seed % 5);
    config.geometry.replicas = std::min(config.nodes, static_cast<std::uint32_t>(seed % 4 + 1));
    config.geometry.tables = seed % 3 == 0 ? 3 : 1;
    config.node_memory = 8u << 20;
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    std::map<Key, Bytes> model;
    Rng rng = Rng(seed).fork("model");
    const std::uint64_t keys = 4000;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      Client& client = rng.below(4) == 0 ? *b.client : *a.client;
      const Key key = rng.below(keys) * 0x0123'4567'89AB'CDEF;
      const bool there = model.contains(key);
      const Bytes value = value_of(i);
      switch (rng.below(8)) {
        case 0:
        case 1:
          ASSERT_EQ(w.wait_for(client.put(key, value)), Outcome::kOk);
          model[key] = value;
          break;
        case 2:
        case 3:
        case 4:
          ASSERT_EQ(w.wait_for(client.insert(key, value)), there ? Outcome::kExists : Outcome::kOk);
          model.try_emplace(key, value);
          break;
        case 5:
          ASSERT_EQ(w.wait_for(client.erase(key)), there ? Outcome::kOk : Outcome::kNotFound);
          model.erase(key);
          break;
        default: ASSERT_EQ(read(w, client, key), there ? std::optional(model[key]) : std::nullopt) << "seed " << seed;
      }
    }
    const auto index = expect_whole(w);
    EXPECT_EQ(index.live, model.size());
    EXPECT_GE(index.tables, 8u * config.geometry.tables / config.nodes);
    EXPECT_EQ(a->counters().splits + b->counters().splits, index.tables - config.geometry.tables);
    // Who comes later finds its way.
    auto& c = w.add_client();
    for (const auto& [key, value] : model) ASSERT_EQ(read(w, *c.client, key), value);
  }
}

TEST(FuseeGrowth, AtTheMostDoublingsAFullIndexRefusesAndStillReadsAndReplaces) {
  for (const std::uint32_t doublings : {0u, 1u, 3u}) {
    World w(small_index(doublings));
    auto& a = w.add_client();
    Key key = 0;
    Outcome outcome = Outcome::kOk;
    for (; outcome == Outcome::kOk; ++key) outcome = w.wait_for(a->put(key, value_of(key)));
    --key;
    EXPECT_EQ(outcome, Outcome::kNoSpace);
    const std::uint64_t slots = (std::uint64_t{48} * 3) << doublings;
    EXPECT_GT(key, slots / 2);
    EXPECT_LE(key, slots);
    for (Key k = 0; k < key; ++k) ASSERT_EQ(read(w, *a.client, k), value_of(k));
    for (Key k = 0; k < key; k += 2) ASSERT_EQ(w.wait_for(a->put(k, value_of(k + 1))), Outcome::kOk);
    for (Key k = 0; k < key; k += 3) ASSERT_EQ(w.wait_for(a->erase(k)), Outcome::kOk);
    EXPECT_EQ(w.wait_for(a->insert(key, value_of(key))), Outcome::kOk) << "there is room again";
    expect_whole(w);
  }
}

TEST(FuseeGrowth, AReadTakesTwoRoundTripsAndACachedOneOneHoweverOftenTheTablesWereSplit) {
  World w(small_index(5));
  auto& a = w.add_client();
  for (Key key = 0; key < 1500; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  EXPECT_GE(w.index().tables, 8u);
  auto& b = w.add_client();
  for (Key key = 0; key < 1500; ++key) ASSERT_EQ(read(w, *b.client, key), value_of(key));  // learns the tables
  std::uint64_t most = 0;
  for (Key key = 0; key < 1500; ++key) {
    const auto before = b->counters().round_trips;
    ASSERT_EQ(read(w, *b.client, key), value_of(key));
    const auto first = b->counters().round_trips - before;
    ASSERT_EQ(read(w, *b.client, key), value_of(key));
    EXPECT_EQ(b->counters().round_trips - before - first, 1u);
    most += first > 2;
  }
  EXPECT_LT(most, 200u);  // with another key of the same fingerprint
}

std::uint64_t tables_of(World& w) { return w.index().tables; }

// A client that splits dies after so many steps. Others read at once, write after a while, and miss nothing.
bool splitter_dies_after(std::uint64_t steps, std::uint64_t seed, bool recovers) {
  auto config = small_index(3, seed);
  config.client.lease = Duration::microseconds(20);
  World w(config);
  auto& victim = w.add_client();
  auto& other = w.add_client();
  Key keys = 0;
  const auto fill = [](Client& client, Key& next) -> Task<void> {
    for (;; ++next) {
      const Bytes value = value_of(next);
      const Outcome outcome = co_await client.insert(next, value);
      if (outcome != Outcome::kOk) break;
    }
  };
  w.scheduler.spawn(fill(*victim.client, keys));
  w.run_until([&] { return w.splitter() != 0; });
  const std::uint64_t tables = tables_of(w);
  std::uint64_t done = 0;
  for (; done < steps && tables_of(w) == tables; ++done) w.step();
  const bool split = tables_of(w) != tables;
  victim.kill();
  // Its last insert may have been done, or not.
  for (Key key = 0; key < keys; ++key) EXPECT_EQ(read(w, *other.client, key), value_of(key)) << key;
  EXPECT_EQ(other->counters().splits, 0u) << "a read has waited";
  if (recovers) {
    Outcome recovered = Outcome::kUnavailable;
    for (int i = 0; i < 10 && recovered != Outcome::kOk; ++i) recovered = w.wait_for(other->recover(victim->number()));
    EXPECT_EQ(recovered, Outcome::kOk);
  }
  for (Key key = 0; key < keys; ++key) EXPECT_EQ(w.wait_for(other->put(key, value_of(key + 1))), Outcome::kOk);
  for (Key key = keys + 1; key < keys + 30; ++key)
    EXPECT_EQ(w.wait_for(other->insert(key, value_of(key))), Outcome::kOk);
  for (Key key = 0; key < keys; ++key) EXPECT_EQ(read(w, *other.client, key), value_of(key + 1));
  if (!recovers) {
    EXPECT_EQ(w.wait_for(other->recover(victim->number())), Outcome::kOk);
  }
  EXPECT_GT(tables_of(w), tables);
  expect_whole(w);
  return split;
}

TEST(FuseeGrowth, WhereverASplitterDiesOthersEndItsWork) {
  for (const bool recovers : {false, true}) {
    std::uint64_t steps = 0;
    std::uint64_t tried = 0;
    while (!splitter_dies_after(steps, steps + 1, recovers) && !testing::Test::HasFailure()) {
      ++tried;
      steps += 1 + steps / usual_effort(16);
    }
    if (testing::Test::HasFailure()) FAIL() << "step " << steps << ", recovers " << recovers;
    EXPECT_GT(tried, usual_effort(30));
  }
}

TEST(FuseeGrowth, AMemoryNodeMayDieWhileATableIsSplit) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    World w(small_index(3, seed));
    auto& a = w.add_client();
    auto& b = w.add_client();
    Key keys = 0;
    const auto fill = [](Client& client, Key& next) -> Task<void> {
      for (; next < 400; ++next) {
        const Bytes value = value_of(next);
        const Outcome outcome = co_await client.insert(next, value);
        EXPECT_EQ(outcome, Outcome::kOk);
      }
    };
    w.scheduler.spawn(fill(*a.client, keys));
    w.run_until([&] { return w.splitter() != 0; });
    for (std::uint64_t i = 0; i < seed * 13; ++i) w.step();
    w.kill_node(static_cast<std::uint32_t>(seed % 3));
    w.run_until([&] { return keys == 400; });
    for (Key key = 0; key < 400; ++key) ASSERT_EQ(read(w, *b.client, key), value_of(key)) << "seed " << seed;
    EXPECT_EQ(a->view(), 1u);
    w.follow(*a.client);
    EXPECT_GE(expect_whole(w).tables, 4u);
  }
}

// Void words are not moved. Whoever has split says that their objects are free; without that they would be found by audit alone.
TEST(FuseeGrowth, WhatStaysBehindIsMarked) {
  World w(small_index(4));
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < 100; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  for (Key key = 0; key < 20; ++key) ASSERT_EQ(w.wait_for(a->erase(key)), Outcome::kOk);
  const auto before = w.index().objects;
  EXPECT_EQ(before.size(), 100u);
  for (Key key = 1000; w.index().tables == 1; ++key) ASSERT_EQ(w.wait_for(b->insert(key, value_of(key))), Outcome::kOk);
  w.run_for(Duration::microseconds(100));
  const auto index = w.index();
  EXPECT_EQ(index.objects.size(), index.live);
  std::uint64_t marked = 0;
  for (const auto& block : a->blocks()) {
    for (std::uint32_t i = 0; i < block->shape.objects; ++i) {
      const auto& item = block->items[i];
      if (item.use != Block::Use::kPlaced || index.objects.contains(block->object(i).raw)) continue;
      EXPECT_EQ(w.object_word(block->at + std::uint64_t{8} * i), item.sequence);
      ++marked;
    }
  }
  EXPECT_GT(marked, 0u);
  EXPECT_EQ(a->counters().reclaimed, 0u);
  EXPECT_EQ(b->counters().splits, 1u);
}

// All insert keys of their own and the same ones; nothing is lost, nothing is there twice.
Task<void> insert_all(Client& client, std::uint64_t who, std::uint64_t count, std::vector<int>& there,
                      std::uint64_t& wrong, std::uint64_t& running) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const Bytes value = value_of(i);
    const Outcome own = co_await client.insert(1'000'000 * (who + 1) + i, value);
    wrong += own != Outcome::kOk;
    const Outcome common = co_await client.insert(i, value);
    wrong += common != Outcome::kOk && common != Outcome::kExists;
    there[i] += common == Outcome::kOk;
  }
  --running;
}

TEST(FuseeGrowth, ClientsThatInsertAtOnceSplitTogether) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    auto config = small_index(5, seed);
    config.client.lease = seed % 3 == 0 ? Duration{} : Duration::microseconds(50);
    World w(config);
    std::vector<int> there(100);
    std::uint64_t wrong = 0;
    std::uint64_t running = 6;
    for (std::uint64_t i = 0; i < 6; ++i) {
      auto& m = w.add_client();
      w.scheduler.spawn(insert_all(*m.client, i, there.size(), there, wrong, running));
    }
    w.run_until([&] { return running == 0; });
    EXPECT_EQ(wrong, 0u) << "seed " << seed;
    for (const int times : there) EXPECT_EQ(times, 1) << "seed " << seed;
    const auto index = expect_whole(w);
    EXPECT_EQ(index.live, 700u) << "seed " << seed;
    EXPECT_GE(index.tables, 5u);
    for (std::uint64_t i = 0; i < 6; ++i) {
      for (std::uint64_t n = 0; n < there.size(); ++n)
        ASSERT_EQ(read(w, *w.members[0]->client, 1'000'000 * (i + 1) + n), value_of(n)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace sluice::fusee
