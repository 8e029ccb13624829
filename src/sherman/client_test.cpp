#include "sherman/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "base/effort_test.h"
#include "sherman/test_world.h"

namespace sluice::sherman {
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

struct Pairs : ScanSink {
  std::vector<std::pair<Key, Bytes>> pairs;
  void on_pair(Key key, ByteView value) override { pairs.push_back({key, {value.begin(), value.end()}}); }
};

TEST(Sherman, ReadsBackReplacesErasesAndInserts) {
  World w({});
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
  EXPECT_EQ(read(w, *a.client, 5), std::nullopt);
  EXPECT_EQ(w.wait_for(a->insert(5, value_of(3, 0))), Outcome::kOk);
  EXPECT_EQ(read(w, *b.client, 5), value_of(3, 0));
  EXPECT_EQ(w.wait_for(b->put(6, value_of(4, 9))), Outcome::kTooLong);
  EXPECT_EQ(w.locks_held(), 0u);
}

TEST(Sherman, HoldsTheFirstAndTheLastKey) {
  World w({});
  auto& a = w.add_client();
  for (const Key key : {Key{0}, kLastKey, Key{1}, kLastKey - 1}) {
    EXPECT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  }
  for (Key key = 0; key < 200; ++key) EXPECT_EQ(w.wait_for(a->put(key << 32, value_of(key))), Outcome::kOk);
  EXPECT_EQ(read(w, *a.client, kLastKey), value_of(kLastKey));
  Pairs last;
  const ScanResult scanned = w.wait_for(a->scan(kLastKey - 1, 10, last));
  EXPECT_EQ(scanned.count, 2u);
  EXPECT_EQ(last.pairs.back().first, kLastKey);
}

// The model of one client, with what it has to agree on.
void random_operations(World& w, Client& client, std::uint64_t count, std::uint64_t keys, std::uint64_t seed) {
  std::map<Key, Bytes> model;
  Rng rng = Rng(seed).fork("model");
  Bytes into(client.value_bytes());
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count && wrong == 0; ++i) {
    // Dense keys, and keys all over the range.
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
      case 7: {
        if (rng.below(20) != 0) break;
        Pairs found;
        const std::size_t wanted = rng.below(60);
        const ScanResult scanned = w.wait_for(client.scan(key, wanted, found));
        auto at = model.lower_bound(key);
        wrong += scanned.outcome != Outcome::kOk || scanned.count != found.pairs.size();
        for (const auto& [k, v] : found.pairs) wrong += at == model.end() || at->first != k || (at++)->second != v;
        wrong += found.pairs.size() < wanted && at != model.end();
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
  Pairs all;
  const ScanResult scanned = w.wait_for(client.scan(0, model.size() + 1, all));
  EXPECT_EQ(scanned.outcome, Outcome::kOk);
  ASSERT_EQ(all.pairs.size(), model.size());
  EXPECT_TRUE(std::ranges::equal(all.pairs, model,
                                 [](auto& a, auto& b) { return a.first == b.first && a.second == b.second; }));
  EXPECT_EQ(w.locks_held(), 0u);
}

TEST(Sherman, AgreesWithAMapOverRandomOperations) {
  WorldConfig config{.node_memory = 64u << 20};
  config.geometry.chunk_bytes = 32 << 10;
  World w(config);
  auto& a = w.add_client();
  random_operations(w, *a.client, rounds(200'000), 20'000, 1);
  EXPECT_GT(a->counters().splits, 1000u);
  EXPECT_GE(a->counters().roots, 2u);
}

TEST(Sherman, AgreesWithAMapWhateverItsGeometryAndWithATinyCache) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Rng rng = Rng(seed).fork("geometry");
    WorldConfig config{.nodes = static_cast<std::uint32_t>(1 + rng.below(4)), .node_memory = 8u << 20};
    config.local.seed = seed;
    config.geometry.node_bytes = static_cast<std::uint32_t>(208 + 8 * rng.below(200));
    config.geometry.locks = static_cast<std::uint32_t>(1 + rng.below(40));
    config.geometry.chunk_bytes = config.geometry.node_bytes * static_cast<std::uint32_t>(1 + rng.below(9));
    config.geometry.whole_bytes = static_cast<std::uint32_t>(8 << rng.below(9));
    config.client.cached_nodes = 2 + rng.below(30);
    config.client.scan_ahead = static_cast<std::uint32_t>(1 + rng.below(9));
    if (seed % 3 == 0) {
      config.geometry.value_bytes = kFarBytes;
      config.geometry.node_bytes += 64;
      config.geometry.chunk_bytes += 2048;
      config.geometry.long_bytes = static_cast<std::uint32_t>(25 + rng.below(2000));
    }
    World w(config);
    auto& a = w.add_client();
    random_operations(w, *a.client, 5'000, 1'500, seed);
  }
}

// Each client has keys of its own, side by side in the same leaves, and a model of them.
Task<void> own_keys(Client& client, std::uint64_t index, std::uint64_t clients, std::uint64_t count, std::uint64_t seed,
                    std::uint64_t& wrong, std::uint64_t& ended) {
  std::map<Key, Bytes> model;
  Rng rng = Rng(seed).fork(index);
  Bytes into(client.value_bytes());
  for (std::uint64_t i = 0; i < count; ++i) {
    const Key key = rng.below(400) * clients + index;
    const bool there = model.contains(key);
    const Bytes value = value_of(i * clients + index, client.value_bytes() == 8 ? 8 : rng.below(client.value_bytes()));
    const std::uint64_t what = rng.below(8);
    if (what < 3) {
      const Outcome outcome = co_await client.put(key, value);
      wrong += outcome != Outcome::kOk;
      model[key] = value;
    } else if (what == 3) {
      const Outcome outcome = co_await client.insert(key, value);
      wrong += outcome != (there ? Outcome::kExists : Outcome::kOk);
      model.try_emplace(key, value);
    } else if (what == 4) {
      const Outcome outcome = co_await client.erase(key);
      wrong += outcome != (there ? Outcome::kOk : Outcome::kNotFound);
      model.erase(key);
    } else {
      const GetResult got = co_await client.get(key, into);
      wrong += got.outcome != (there ? Outcome::kOk : Outcome::kNotFound);
      if (there) wrong += !std::ranges::equal(ByteView(into).first(got.length), model[key]);
    }
  }
  ++ended;
}

Geometry with_long_values(std::uint32_t most) {
  Geometry geometry = WorldConfig{}.geometry;
  geometry.value_bytes = kFarBytes;
  geometry.node_bytes = 512;
  geometry.chunk_bytes = 4096;
  geometry.long_bytes = most;
  return geometry;
}

TEST(Sherman, SixteenClientsAgreeWithTheirMaps) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WorldConfig config{.node_memory = 4u << 20};
    config.local = {.mode = LocalMode::kSeeded, .seed = seed, .piece_bytes = seed % 2 == 0 ? 64u : 0u};
    if (seed == 3) config.geometry = with_long_values(200);
    World w(config);
    std::uint64_t wrong = 0;
    std::uint64_t ended = 0;
    for (std::uint64_t i = 0; i < 16; ++i) {
      auto& m = w.add_client();
      w.scheduler.spawn(own_keys(*m.client, i, 16, rounds(16'000) / 16, seed, wrong, ended));
    }
    w.run_until([&] { return ended == 16; }, ~std::uint64_t{0});
    EXPECT_EQ(wrong, 0u) << "seed " << seed;
    EXPECT_EQ(w.locks_held(), 0u);
    std::uint64_t lost = 0;
    for (const auto& m : w.members) lost += m->client->counters().swaps_lost;
    EXPECT_GT(lost, 100u) << "they did not contend";
  }
}

// Two round trips: CAS and READ, WRITE and unlock; and one for a get.
TEST(Sherman, APutTakesTwoRoundTripsAndAGetOne) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  World w(config);
  auto& a = w.add_client();
  for (Key key = 0; key < 300; ++key) ASSERT_EQ(w.wait_for(a->put(key * 2, value_of(key))), Outcome::kOk);
  const auto before = a->counters();
  ASSERT_EQ(w.wait_for(a->put(300, value_of(1))), Outcome::kOk);
  EXPECT_EQ(a->counters().round_trips - before.round_trips, 2u);
  EXPECT_EQ(a->counters().combined - before.combined, 1u);
  Bytes into(8);
  ASSERT_EQ(w.wait_for(a->get(400, into)).outcome, Outcome::kOk);
  EXPECT_EQ(a->counters().round_trips - before.round_trips, 3u);
  EXPECT_EQ(a->counters().cache_hits - before.cache_hits, 2u);
}

// One more: the READ or WRITE of the value's block. Short ones stay in the leaf.
TEST(Sherman, ALongValueTakesOneRoundTripMore) {
  WorldConfig config;
  config.geometry = with_long_values(1000);
  World w(config);
  auto& a = w.add_client();
  for (Key key = 0; key < 10; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key, 500))), Outcome::kOk);
  ASSERT_EQ(w.wait_for(a->put(10, value_of(10, 1000))), Outcome::kOk);  // claims a chunk for blocks of this size
  const auto trips = [&](auto operation) {
    const auto before = a->counters().round_trips;
    operation();
    return a->counters().round_trips - before;
  };
  EXPECT_EQ(trips([&] { EXPECT_EQ(read(w, *a.client, 3), value_of(3, 500)); }), 2u);
  EXPECT_EQ(trips([&] { w.wait_for(a->put(3, value_of(4, 1000))); }), 3u);
  EXPECT_EQ(trips([&] { w.wait_for(a->put(3, value_of(5, 24))); }), 2u);
  EXPECT_EQ(trips([&] { EXPECT_EQ(read(w, *a.client, 3), value_of(5, 24)); }), 1u);
  // A leaf, and the blocks of its values all at once.
  Pairs found;
  EXPECT_EQ(trips([&] { EXPECT_EQ(w.wait_for(a->scan(5, 4, found)).count, 4u); }), 2u);
  ASSERT_EQ(found.pairs.size(), 4u);
  for (Key key = 5; key < 9; ++key) EXPECT_EQ(found.pairs[key - 5], std::pair(key, value_of(key, 500)));
  EXPECT_EQ(w.wait_for(a->put(3, value_of(6, 1001))), Outcome::kTooLong);
  EXPECT_EQ(w.wait_for(a->insert(4, value_of(6, 600))), Outcome::kExists);
  EXPECT_EQ(read(w, *a.client, 4), value_of(4, 500));
}

Task<void> get_once(Client& client, Key key, std::optional<Bytes>& seen) {
  Bytes into(client.value_bytes());
  const GetResult got = co_await client.get(key, into);
  into.resize(got.length);
  if (got.outcome == Outcome::kOk) seen = into;
}

// The entry that a reader has followed may have been replaced, and its block have become another's.
TEST(Sherman, AReaderWhoFindsAnotherBlockThanMeantLooksAgain) {
  WorldConfig config{.nodes = 1};
  config.geometry = with_long_values(100);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  const Bytes value = value_of(1, 100);
  ASSERT_EQ(w.wait_for(a->put(1, value)), Outcome::kOk);
  const MutableBytes heap = w.fabric.region_bytes(w.memory[0].heap);
  const auto at = std::search(heap.begin(), heap.end(), value.begin(), value.end()) - heap.begin();
  ASSERT_LT(at, static_cast<std::ptrdiff_t>(heap.size()));
  heap[static_cast<std::size_t>(at) - kBlockHeader] ^= 1;  // its tag
  std::optional<Bytes> seen;
  w.scheduler.spawn(get_once(*b.client, 1, seen));
  w.run_for(Duration::microseconds(20));
  EXPECT_FALSE(seen);
  EXPECT_GT(b->counters().far_changed, 0u);
  ASSERT_EQ(w.wait_for(a->put(1, value_of(2, 90))), Outcome::kOk);
  w.run_until([&] { return seen.has_value(); });
  EXPECT_EQ(seen, value_of(2, 90));
}

// Blocks of values that are replaced, erased or never came to be named are used again.
TEST(Sherman, BlocksOfLongValuesAreUsedAgain) {
  WorldConfig config{.nodes = 1, .node_memory = 64u << 10};
  config.geometry = with_long_values(1000);
  World w(config);
  auto& a = w.add_client();
  ASSERT_EQ(w.wait_for(a->put(1, value_of(1, 1000))), Outcome::kOk);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Key key = i % 3;
    ASSERT_EQ(w.wait_for(a->put(key, value_of(i, 1000))), Outcome::kOk) << i;
    if (i % 7 == 0) {
      ASSERT_EQ(w.wait_for(a->erase(key)), Outcome::kOk);
    } else {
      ASSERT_EQ(w.wait_for(a->insert(key, value_of(i + 1, 900))), Outcome::kExists);
      ASSERT_EQ(read(w, *a.client, key), value_of(i, 1000));
    }
    w.run_for(config.client.flight);
  }
  EXPECT_LT(a->counters().chunks, 5u);
  EXPECT_EQ(a->counters().blocks_doubtful, 0u);
}

Task<void> put_some(Client& client, Key key, Bytes value, std::uint64_t& done) {
  const Outcome outcome = co_await client.put(key, value);
  done += outcome == Outcome::kOk;
}

Task<void> put_once(Client& client, Key key, std::uint64_t n, std::uint64_t& done) {
  return put_some(client, key, value_of(n), done);
}

// A block stays its owner's: who replaces another's value says so, and its owner uses the block again.
TEST(Sherman, BlocksThatOthersReplaceGoBackToTheirOwners) {
  WorldConfig config{.nodes = 1, .node_memory = 64u << 10};
  config.geometry = with_long_values(1000);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (std::uint64_t i = 0; i < 400; ++i) {
    auto& writer = i / 10 % 2 == 0 ? a : b;
    ASSERT_EQ(w.wait_for(writer->put(i % 10, value_of(i, 1000))), Outcome::kOk) << i;
  }
  for (Key key = 0; key < 10; ++key) EXPECT_EQ(read(w, *a.client, key), value_of(390 + key, 1000));
  EXPECT_LT(a->counters().chunks + b->counters().chunks, 24u);
  EXPECT_GT(a->counters().collected, 100u);
  EXPECT_GT(b->counters().collected, 100u);
  EXPECT_EQ(a->counters().reclaimed + b->counters().reclaimed, 0u);
  w.expect_no_memory_lost();
}

// Wherever in a put of a long value, or in a split, its client dies.
TEST(Sherman, OfADeadClientNoLockAndNoMemoryIsLost) {
  std::uint64_t taken_over = 0;
  std::uint64_t reclaimed = 0;
  std::uint64_t locks = 0;
  for (std::uint32_t steps = 0; steps < 120; ++steps) {
    for (const std::uint32_t length : {8u, 100u}) {
      WorldConfig config{.nodes = 1 + steps % 2};
      config.local = {.mode = LocalMode::kSeeded, .seed = steps + 1, .piece_bytes = 24};
      config.geometry = with_long_values(100);
      config.geometry.whole_bytes = 24;
      World w(config);
      auto& a = w.add_client();
      auto& b = w.add_client();
      // Its split has to claim a chunk; the values it replaces are the other's.
      for (Key key = 0; key < config.geometry.leaf_slots(); ++key) {
        ASSERT_EQ(w.wait_for(b->put(key * 10, value_of(key, 100))), Outcome::kOk);
      }
      std::uint64_t done = 0;
      for (const Key key : {Key{20}, Key{25}, Key{35}})
        w.scheduler.spawn(put_some(*a.client, key, value_of(77, length), done));
      for (std::uint32_t i = 0; i < steps; ++i) w.step();
      a.kill();
      const Time killed = w.now;
      locks += w.locks_held();
      ASSERT_EQ(w.wait_for(b->recover(a->number())), Outcome::kOk) << "died after " << steps;
      EXPECT_LT(w.now - killed, config.client.lease) << "nobody has to wait for the lease";
      EXPECT_EQ(w.locks_held(), 0u);
      EXPECT_EQ(w.wait_for(b->recover(a->number())), Outcome::kOk);
      w.expect_no_memory_lost();
      for (Key key = 0; key < config.geometry.leaf_slots(); ++key) {
        const auto seen = read(w, *b.client, key * 10);
        EXPECT_TRUE(seen == value_of(key, 100) || (key == 2 && seen == value_of(77, length)));
      }
      taken_over += b->counters().taken_over;
      reclaimed += b->counters().reclaimed;
    }
  }
  EXPECT_GT(locks, 20u);
  EXPECT_GT(taken_over, 100u);
  EXPECT_GT(reclaimed, 100u);
}

TEST(Sherman, AFullHeapHasRoomAgainOnceTheDeadAreRecovered) {
  WorldConfig config{.nodes = 1, .node_memory = 64u << 10};
  config.geometry = with_long_values(1000);
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  Key key = 0;
  while (w.wait_for(a->put(key, value_of(key, 1000))) == Outcome::kOk) ++key;
  for (Key old = 0; old < key; ++old) ASSERT_EQ(w.wait_for(b->erase(old)), Outcome::kOk);
  EXPECT_EQ(w.wait_for(b->put(1, value_of(1, 1000))), Outcome::kNoSpace);
  a.kill();
  EXPECT_EQ(w.wait_for(b->recover(a->number())), Outcome::kOk);
  EXPECT_EQ(b->counters().taken_over, a->counters().chunks);
  for (Key again = 0; again + 2 < key; ++again) {
    ASSERT_EQ(w.wait_for(b->put(again, value_of(again, 1000))), Outcome::kOk) << again << " of " << key;
  }
  w.expect_no_memory_lost();
}

// A run after another, on one tree, each with clients of its own.
TEST(Sherman, WhatClientsHaveLeftIsRoomForThoseWhoComeAfterThem) {
  WorldConfig config{.nodes = 2, .node_memory = 64u << 10};
  config.geometry = with_long_values(1000);
  World w(config);
  std::uint64_t chunks = 0;
  std::uint64_t taken_over = 0;
  for (std::uint64_t generation = 0; generation < 30; ++generation) {
    auto& a = w.add_client();
    auto& b = w.add_client();
    for (std::uint64_t i = 0; i < 20; ++i) {
      auto& writer = i % 2 == 0 ? a : b;
      ASSERT_EQ(w.wait_for(writer->put(i, value_of(generation * 100 + i, 1000))), Outcome::kOk) << generation;
      ASSERT_EQ(w.wait_for(writer->put(generation * 1000 + i, value_of(i))), Outcome::kOk) << generation;
      ASSERT_EQ(w.wait_for(writer->erase(generation * 1000 + i)), Outcome::kOk);
    }
    for (Key key = 0; key < 20; ++key) {
      if (generation == 0) continue;  // erased just now
      ASSERT_EQ(read(w, *a.client, key), value_of(generation * 100 + key, 1000)) << generation;
    }
    for (auto* const m : {&a, &b}) {
      chunks += (*m)->counters().chunks;
      taken_over += (*m)->counters().taken_over;
      ASSERT_EQ(w.wait_for((*m)->leave()), Outcome::kOk);
      m->dead = true;
    }
  }
  EXPECT_GT(chunks, 0u);
  EXPECT_GT(taken_over, 10u);
  w.add_client();
  for (int i = 0; i < 10 && w.left_behind() != 0; ++i)
    ASSERT_EQ(w.wait_for(w.members.back()->client->audit()), Outcome::kOk);
  w.expect_no_memory_lost();
}

TEST(Sherman, WhoLeavesGivesBackManyChunksAtATime) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  World w(config);
  auto& a = w.add_client();
  for (Key key = 0; a->counters().chunks < 300; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  const auto before = a->counters();
  ASSERT_EQ(w.wait_for(a->leave()), Outcome::kOk);
  EXPECT_EQ(w.left_behind(), before.chunks);
  EXPECT_EQ(a->counters().swaps - before.swaps, before.chunks);
  EXPECT_LT(a->counters().round_trips - before.round_trips, 20u);
}

TEST(Sherman, WhoLosesConnectionsWhileItLeavesGivesBackAllTheSame) {
  std::uint64_t repeated = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    WorldConfig config;
    config.local = {.mode = LocalMode::kSeeded,
                    .seed = seed,
                    .disconnect_per_million = 3000,
                    .straggler_lifetime = Duration::microseconds(100),
                    .stragglers_in_order = true};
    World w(config);
    auto& a = w.add_client();
    for (Key key = 0; a->counters().chunks < 60; ++key) static_cast<void>(w.wait_for(a->put(key, value_of(key))));
    const auto before = a->counters();
    ASSERT_EQ(w.wait_for(a->leave()), Outcome::kOk) << "seed " << seed;
    w.run_for(config.client.flight);
    EXPECT_GE(w.left_behind(), before.chunks) << "seed " << seed;
    repeated += a->counters().swaps - before.swaps > w.left_behind();
  }
  EXPECT_GT(repeated, 0u);
}

TEST(Sherman, ALockIsHandedOverWithinAClientSoManyTimesAndThenLetGo) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  config.client.hand_overs = 4;
  World w(config);
  auto& a = w.add_client();
  std::uint64_t done = 0;
  for (std::uint64_t i = 0; i < 50; ++i) w.scheduler.spawn(put_once(*a.client, 7, i, done));
  w.run_until([&] { return done == 50; });
  // One takes the lock, four get it, and so on.
  EXPECT_EQ(a->counters().hand_overs, 40u);
  EXPECT_EQ(a->counters().combined, 10u);
  EXPECT_EQ(a->counters().swaps_lost, 0u);
  EXPECT_EQ(w.locks_held(), 0u);
}

TEST(Sherman, AnOldCacheLeadsToTheRightLeafAllTheSame) {
  WorldConfig config{.node_memory = 4u << 20};
  World w(config);
  auto& a = w.add_client();
  auto& b = w.add_client();
  for (Key key = 0; key < 50; ++key) ASSERT_EQ(w.wait_for(a->put(key * 1000, value_of(key))), Outcome::kOk);
  for (Key key = 0; key < 50; ++key) ASSERT_EQ(read(w, *b.client, key * 1000), value_of(key));
  for (Key key = 0; key < 3000; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  const auto walks = b->counters().walks;
  for (Key key = 0; key < 3000; key += 7) ASSERT_EQ(read(w, *b.client, key), value_of(key));
  EXPECT_GT(b->counters().walks, walks);
  EXPECT_EQ(w.wait_for(b->put(2999, value_of(1))), Outcome::kOk);
}

// Whatever a client that dies has split, leaf, node or root, and not told what is above it: who only reads has to walk there, and then nobody any more.
TEST(Sherman, SeparatorsThatADeadClientHasNotAddedAreAddedByWhoeverHasToWalk) {
  constexpr std::uint64_t kSplits = 45;
  std::uint8_t levels = 0;
  for (std::uint64_t splits = 1; splits <= kSplits; ++splits) {
    WorldConfig config;
    config.local = {.mode = LocalMode::kSeeded, .seed = splits};
    World w(config);
    auto& a = w.add_client();
    std::uint64_t done = 0;
    Key keys = 0;
    for (; a->counters().splits < splits; ++keys) {
      const std::uint64_t before = done;
      w.scheduler.spawn(put_once(*a.client, keys, keys, done));
      w.run_until([&] { return done != before || a->counters().splits == splits; });
    }
    a.kill();
    // Each as it comes, and once more when all is in its cache that it needs.
    for (const bool first : {true, false}) {
      auto& reader = w.add_client();
      for (const bool cached : {false, true}) {
        const auto before = reader->counters().round_trips;
        for (Key key = 0; key + 1 < keys; ++key) EXPECT_EQ(read(w, *reader.client, key), value_of(key));
        EXPECT_EQ(reader->counters().walks != 0, first) << splits;
        if (cached) {
          EXPECT_EQ(reader->counters().round_trips - before, keys - 1) << splits;
        }
        w.run_for((config.client.lease + config.client.flight) * 3);
      }
    }
    const auto heap = w.fabric.region_bytes(w.memory[0].heap);
    levels = std::max(levels, Root::of(load_le<std::uint64_t>(heap.data() + kRootOffset)).level);
    if (HasFailure()) return;
  }
  EXPECT_GE(levels, 2u);
}

TEST(Sherman, AFullHeapRefusesAndStillReadsAndReplaces) {
  WorldConfig config{.nodes = 1, .node_memory = 16 << 10};
  World w(config);
  auto& a = w.add_client();
  Key key = 0;
  Outcome outcome = Outcome::kOk;
  while (outcome == Outcome::kOk) {
    outcome = w.wait_for(a->put(key, value_of(key + 1)));
    ++key;
  }
  EXPECT_EQ(outcome, Outcome::kNoSpace);
  EXPECT_GT(key, 40u);
  EXPECT_EQ(read(w, *a.client, 3), value_of(4));
  EXPECT_EQ(w.wait_for(a->put(3, value_of(9))), Outcome::kOk);
  EXPECT_EQ(w.wait_for(a->erase(key - 2)), Outcome::kOk);
  EXPECT_EQ(w.wait_for(a->put(key - 1, value_of(5))), Outcome::kOk) << "a slot has become free";
  EXPECT_EQ(w.locks_held(), 0u);
}

TEST(Sherman, ThereIsNoTreeInEmptyMemoryNorOneOfAnotherShape) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  const auto node = w.fabric.add_node();
  const auto heap = w.fabric.add_region(node, 0x1000, 1 << 16);
  Client empty(memory, {{heap, 1 << 16, heap}}, w.config_.client, Rng(1));
  EXPECT_EQ(w.wait_for(empty.join()), Outcome::kNotFound);
  Client fewer(memory, {w.memory[0]}, w.config_.client, Rng(1));
  EXPECT_EQ(w.wait_for(fewer.join()), Outcome::kNotFound);
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 12, heap}}, Geometry{})), Outcome::kNoSpace);
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 16, heap}}, Geometry{.node_bytes = 1024, .value_bytes = 900})),
            Outcome::kTooLong);
}

TEST(Sherman, IsNotMadeWhereATreeOrAnotherStoreIs) {
  World w({});
  auto& a = w.add_client();
  EXPECT_EQ(w.wait_for(a->put(7, value_of(7))), Outcome::kOk);
  remote::LocalMemory memory(w.scheduler, w.fabric);
  EXPECT_EQ(w.wait_for(create_tree(memory, w.memory, w.config_.geometry)), Outcome::kExists);
  EXPECT_EQ(read(w, *a.client, 7), value_of(7));
  const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, 1 << 17);
  w.fabric.region_bytes(heap)[6] = 1;
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 17, heap}}, w.config_.geometry)), Outcome::kExists);
  w.fabric.region_bytes(heap)[6] = 0;
  // Half a superblock: of somebody who died while making a tree.
  std::ranges::copy(w.fabric.region_bytes(w.memory[0].heap).first(20), w.fabric.region_bytes(heap).begin());
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 17, heap}}, w.config_.geometry)), Outcome::kOk);
}

TEST(Sherman, IsNotMadeOverAPartOfATree) {
  WorldConfig config;
  config.nodes = 3;
  World w(config);
  auto& a = w.add_client();
  for (Key key = 0; key < 50; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  remote::LocalMemory memory(w.scheduler, w.fabric);
  const std::vector<MemoryNode> later{w.memory[1], w.memory[2]};
  EXPECT_EQ(w.wait_for(create_tree(memory, later, w.config_.geometry, Maker{8})), Outcome::kExists);
  const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, 1 << 17);
  const std::vector<MemoryNode> mixed{{heap, 1 << 17, heap}, w.memory[1]};
  EXPECT_EQ(w.wait_for(create_tree(memory, mixed, w.config_.geometry, Maker{8})), Outcome::kExists);
  for (Key key = 0; key < 50; ++key) EXPECT_EQ(read(w, *a.client, key), value_of(key));
}

TEST(Sherman, ATreeIsNotFoundOverItsNodesInAnotherOrder) {
  WorldConfig config;
  config.nodes = 3;
  World w(config);
  remote::LocalMemory memory(w.scheduler, w.fabric);
  for (const std::vector<MemoryNode>& order : {std::vector<MemoryNode>{w.memory[1], w.memory[0], w.memory[2]},
                                               std::vector<MemoryNode>{w.memory[0], w.memory[2], w.memory[1]}}) {
    Client client(memory, order, w.config_.client, Rng(1));
    EXPECT_EQ(w.wait_for(client.join()), Outcome::kNotFound);
    EXPECT_EQ(w.wait_for(create_tree(memory, order, w.config_.geometry, Maker{8})), Outcome::kExists);
  }
  // Another tree's node of the same place.
  const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, config.node_memory);
  std::array<std::uint8_t, kMakerOffset> superblock;
  put_superblock(superblock,
                 {.geometry = config.geometry, .nodes = 3, .index = 2, .tree_id = 9, .heap_bytes = config.node_memory});
  std::ranges::copy(superblock, w.fabric.region_bytes(heap).begin());
  Client client(memory, {w.memory[0], w.memory[1], {heap, config.node_memory, heap}}, w.config_.client, Rng(1));
  EXPECT_EQ(w.wait_for(client.join()), Outcome::kNotFound);
}

TEST(Sherman, ATreeThatHasLostAMemoryNodesMemoryIsUnavailable) {
  for (std::uint32_t lost = 0; lost < 3; ++lost) {
    WorldConfig config;
    config.nodes = 3;
    World w(config);
    w.renew_node(lost);
    remote::LocalMemory memory(w.scheduler, w.fabric);
    Client client(memory, w.memory, w.config_.client, Rng(1));
    EXPECT_EQ(w.wait_for(client.join()), Outcome::kUnavailable) << lost;
    EXPECT_EQ(w.wait_for(create_tree(memory, w.memory, w.config_.geometry, Maker{8})), Outcome::kExists) << lost;
  }
}

// A put while a memory node is away may have been done, or not.
void put_meanwhile(World& w, Client& client, Key key, Bytes value, std::map<Key, std::vector<Bytes>>& possible) {
  const Outcome outcome = w.wait_for(client.put(key, value));
  if (outcome == Outcome::kOk) possible[key].clear();
  possible[key].push_back(value);
}

TEST(Sherman, IsUsedOnWhenItsMemoryNodesWereStoppedForLongerThanTheirLeases) {
  constexpr Key kKeys = 60;
  for (std::uint32_t nodes = 1; nodes <= 2; ++nodes) {
    WorldConfig config{.nodes = nodes};
    config.local = {.mode = LocalMode::kSeeded, .seed = nodes};
    config.client.timeout = Duration::milliseconds(4);
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    std::map<Key, std::vector<Bytes>> possible;
    for (Key key = 0; key < kKeys; ++key) put_meanwhile(w, *a.client, key, value_of(key), possible);
    for (std::uint32_t stopped = 0; stopped < nodes; ++stopped) {
      const auto node = w.memory[stopped].heap.node;
      w.stop_node(stopped);
      for (Key key = 0; key < kKeys; key += 7)
        put_meanwhile(w, *a.client, key, value_of(key + 100 * (stopped + 1)), possible);
      w.resume_node(stopped);
      // The first attempts to see what is there may fail.
      a.memory->cut(node);
      a->moved(stopped, w.memory[stopped]);
      b->moved(stopped, w.memory[stopped]);
      w.run_for(Duration::microseconds(50));
      a.memory->mend(node);
      w.run_for(config.client.flight);
      for (Key key = 0; key < kKeys; ++key) {
        for (auto* const m : {&a, &b}) {
          const auto seen = read(w, *m->client, key);
          ASSERT_TRUE(seen.has_value()) << key;
          EXPECT_EQ(std::ranges::count(possible[key], *seen), 1) << key;
        }
        ASSERT_EQ(w.wait_for(b->put(key, value_of(key + 50))), Outcome::kOk) << key;
        possible[key] = {value_of(key + 50)};
      }
    }
    EXPECT_EQ(w.locks_held(), 0u);
    w.renew_node(0);
    a->moved(0, w.memory[0]);
    w.run_for(config.client.flight);
    std::map<Outcome, int> gets;
    Bytes into(8);
    for (Key key = 0; key < kKeys; ++key) ++gets[w.wait_for(a->get(key, into)).outcome];
    EXPECT_EQ(gets[Outcome::kNotFound], 0) << "lost memory was believed";
    EXPECT_GT(gets[Outcome::kUnavailable], 0);
  }
}

// Wherever in a put, a split or joining.
TEST(Sherman, AMemoryNodeMayBeStoppedAndGoOnUnderAnotherKeyAtAnyMoment) {
  for (std::uint32_t steps = 0; steps < 60; ++steps) {
    WorldConfig config{.nodes = 1};
    config.local = {.mode = LocalMode::kSeeded, .seed = steps + 1};
    World w(config);
    auto& a = w.add_client();
    const Key slots = config.geometry.leaf_slots();
    for (Key key = 0; key < slots; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
    std::uint64_t done = 0;
    for (const Key key : {Key{1}, slots}) w.scheduler.spawn(put_once(*a.client, key, 77, done));
    remote::LocalMemory memory(w.scheduler, w.fabric);
    Client late(memory, w.memory, config.client, Rng(1));
    std::optional<Outcome> joined;
    const auto join = [&]() -> Task<void> { joined = co_await late.join(); };
    w.scheduler.spawn(join());
    for (std::uint32_t i = 0; i < steps; ++i) w.step();
    w.stop_node(0);
    w.resume_node(0);
    a->moved(0, w.memory[0]);
    late.moved(0, w.memory[0]);
    w.run_until([&] { return w.scheduler.live() == 0; });
    ASSERT_EQ(joined, Outcome::kOk) << steps;
    ASSERT_EQ(w.wait_for(late.put(1, value_of(78))), Outcome::kOk) << steps;
    for (Key key = 0; key < slots; ++key) EXPECT_EQ(read(w, late, key), value_of(key == 1 ? 78 : key)) << steps;
    EXPECT_EQ(read(w, *a.client, 1), value_of(78));
    EXPECT_EQ(w.locks_held(), 0u);
  }
}

TEST(Sherman, OfTwoWhoMakeATreeAtOnceOneDoes) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  for (config.local.seed = 1; config.local.seed <= 20; ++config.local.seed) {
    World w(config);
    remote::LocalMemory memory(w.scheduler, w.fabric);
    std::vector<MemoryNode> nodes;
    for (int i = 0; i < 3; ++i) {
      const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, 1 << 17);
      nodes.push_back({heap, 1 << 17, heap});
    }
    std::vector<Outcome> outcomes;
    const auto make = [&](std::uint32_t number) -> Task<void> {
      const Outcome made = co_await create_tree(memory, nodes, w.config_.geometry, Maker{number});
      outcomes.push_back(made);
    };
    w.scheduler.spawn(make(1));
    w.scheduler.spawn(make(2));
    w.run_until([&] { return outcomes.size() == 2; });
    EXPECT_EQ(std::ranges::count(outcomes, Outcome::kOk), 1) << "seed " << config.local.seed;
    EXPECT_EQ(std::ranges::count(outcomes, Outcome::kExists), 1) << "seed " << config.local.seed;
  }
}

// A WRITE that is still on its way when its connection breaks must not come over what clients have written into the tree of the next attempt.
TEST(Sherman, WhatIsLeftOfAnAttemptToMakeATreeDoesNotComeOverTheNext) {
  int broken = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    WorldConfig config{.nodes = 1};
    config.local = {.mode = LocalMode::kSeeded,
                    .seed = seed,
                    .straggler_lifetime = Duration::microseconds(200),
                    .stragglers_in_order = true};
    World w(config);
    const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, config.node_memory);
    const auto locks = w.fabric.add_region(heap.node, 0x800'0000, std::size_t{8} * config.geometry.locks);
    const std::vector<MemoryNode> nodes{{heap, config.node_memory, locks}};
    remote::LocalMemory memory(w.scheduler, w.fabric);
    Outcome made{};
    const auto make = [&]() -> Task<void> {
      made = Outcome::kUnavailable;
      while (made == Outcome::kUnavailable) {
        made = co_await create_tree(memory, nodes, config.geometry, Maker{7}, config.client.flight);
        broken += made == Outcome::kUnavailable;
      }
    };
    w.scheduler.spawn(make());
    for (std::uint64_t i = 0; i < seed % 40; ++i) w.step();
    memory.disconnect(heap.node);
    w.run_until([&] { return w.scheduler.live() == 0; });
    ASSERT_TRUE(made == Outcome::kOk || made == Outcome::kExists);
    Client client(memory, nodes, config.client, Rng(1));
    ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
    for (Key key = 0; key < 50; ++key) ASSERT_EQ(w.wait_for(client.put(key, value_of(key))), Outcome::kOk);
    w.run_for(config.local.straggler_lifetime);
    for (Key key = 0; key < 50; ++key) EXPECT_EQ(read(w, client, key), value_of(key)) << key << ", seed " << seed;
    if (HasFailure()) return;
  }
  EXPECT_GT(broken, 250);
}

TEST(Sherman, WhoNeverEndsMakingATreeIsNotedAfterAWhileAndMayGoOn) {
  World w({});
  remote::LocalMemory memory(w.scheduler, w.fabric);
  const auto heap = w.fabric.add_region(w.fabric.add_node(), 0x1000, 1 << 17);
  store_le(w.fabric.region_bytes(heap).data() + kMakerOffset, Maker{7}.word());
  const Time begun = w.now;
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 17, heap}}, w.config_.geometry, Maker{8})), Outcome::kUnknown);
  EXPECT_GE(w.now - begun, kMaking);
  EXPECT_EQ(w.wait_for(create_tree(memory, {{heap, 1 << 17, heap}}, w.config_.geometry, Maker{7})), Outcome::kOk);
}

TEST(ShermanDeathTest, ThereIsNoTreeWithoutTransportOrder) {
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded, .straggler_lifetime = Duration::microseconds(50)};
  World w(config);
  EXPECT_DEATH(w.add_client(), "ordered");
}

// ----------------------------------------------------------------------------------------------- the dead and the lost

// A client dies at every moment of a put in turn; the next one finds the lock free or frees it, and a whole leaf.
TEST(Sherman, WhereverAClientDiesOthersGoOnAndItsWriteIsWholeOrNotThere) {
  std::uint64_t redone = 0;
  std::uint64_t recovered = 0;
  for (std::uint32_t steps = 0; steps < 90; ++steps) {
    for (const std::uint32_t keys : {3u, 7u}) {  // the leaf has room, or is split
      WorldConfig config{.nodes = 1};
      config.local = {.mode = LocalMode::kSeeded, .seed = steps + 1, .piece_bytes = 24};
      config.geometry.whole_bytes = 24;
      World w(config);
      auto& a = w.add_client();
      auto& b = w.add_client();
      const std::uint32_t slots = config.geometry.leaf_slots();
      const Key count = keys == 3 ? 3 : slots;
      for (Key key = 0; key < count; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
      std::uint64_t done = 0;
      w.scheduler.spawn(put_once(*a.client, keys == 3 ? 1 : 100, 77, done));
      for (std::uint32_t i = 0; i < steps; ++i) w.step();
      a.kill();
      const Key killed = keys == 3 ? 1 : 100;
      ASSERT_EQ(w.wait_for(b->put(2, value_of(55))), Outcome::kOk) << "died after " << steps;
      const auto seen = read(w, *b.client, killed);
      const auto before = keys == 3 ? std::optional(value_of(1)) : std::nullopt;
      EXPECT_TRUE(seen == before || seen == value_of(77)) << "died after " << steps;
      if (done != 0) {
        EXPECT_EQ(seen, value_of(77));
      }
      for (Key key = 0; key < count; ++key) {
        if (key == 2 || key == killed) continue;
        EXPECT_EQ(read(w, *b.client, key), value_of(key)) << "died after " << steps;
      }
      w.run_for((config.client.lease + config.client.flight) * 2);  // a separator may be on its way
      EXPECT_EQ(w.locks_held(), 0u);
      recovered += b->counters().recovered;
      redone += b->counters().redone;
      EXPECT_EQ(b->counters().damaged, 0u);
    }
  }
  EXPECT_GT(recovered, 40u);
  EXPECT_GT(redone, 5u);
}

// The first leaf, from inside its memory node.
class LeafWatch {
 public:
  explicit LeafWatch(World& w) {
    const MemoryMap map(w.memory, w.config_.geometry);
    leaf_ = w.fabric.region_bytes(w.memory[0].heap)
                .subspan(map.start_of_chunk(0, 0).offset(), w.config_.geometry.node_bytes);
    before_.assign(leaf_.begin(), leaf_.end());
  }
  bool changed() const { return !std::ranges::equal(leaf_, before_); }

 private:
  MutableBytes leaf_;
  Bytes before_;
};

// Who only reads must not wait for ever for what a dead client has left torn.
TEST(Sherman, AReaderRepairsWhatADeadWriterLeftTorn) {
  std::uint64_t repaired = 0;
  for (std::uint32_t steps = 0; steps < 40; ++steps) {
    WorldConfig config{.nodes = 1};
    config.local = {.mode = LocalMode::kSeeded, .seed = steps + 1, .piece_bytes = 8};
    config.geometry.whole_bytes = 8;
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    ASSERT_EQ(w.wait_for(a->put(1, value_of(1))), Outcome::kOk);
    std::uint64_t done = 0;
    w.scheduler.spawn(put_once(*a.client, 1, 2, done));
    const LeafWatch watch(w);
    w.run_until([&] { return watch.changed(); });
    for (std::uint32_t i = 0; i < steps % 4; ++i) w.step();
    a.kill();
    const auto seen = read(w, *b.client, 1);
    EXPECT_TRUE(seen == value_of(1) || seen == value_of(2));
    repaired += b->counters().redone;
  }
  EXPECT_GT(repaired, 0u);
}

// A recovery dies as well, wherever it may be.
TEST(Sherman, ARecoveryThatDiesIsRecovered) {
  std::uint64_t twice = 0;
  for (std::uint32_t steps = 0; steps < 60; ++steps) {
    WorldConfig config{.nodes = 1};
    // With this seed the lock is still there when the half of an entry is.
    config.local = {.mode = LocalMode::kSeeded, .seed = 3, .piece_bytes = 24};
    config.geometry.whole_bytes = 24;
    World w(config);
    auto& a = w.add_client();
    auto& b = w.add_client();
    auto& c = w.add_client();
    for (Key key = 0; key < 3; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
    std::uint64_t done = 0;
    w.scheduler.spawn(put_once(*a.client, 1, 77, done));
    // Dies when its entry is half written.
    const LeafWatch watch(w);
    w.run_until([&] { return watch.changed(); });
    a.kill();
    w.scheduler.spawn(put_once(*b.client, 2, 55, done));
    w.run_until([&] { return b->counters().swaps_lost > 0 && w.now > Time() + Duration::microseconds(1800); });
    const auto swaps = b->counters().swaps;
    for (std::uint32_t i = 0; i < steps && b->counters().recovered == 0; ++i) w.step();
    const bool began = b->counters().swaps > swaps;
    b.kill();
    EXPECT_EQ(w.wait_for(c->put(0, value_of(33))), Outcome::kOk);
    const auto seen = read(w, *c.client, 1);
    EXPECT_EQ(seen, value_of(77)) << "the record was whole, so the write is to be finished";
    EXPECT_EQ(w.locks_held(), 0u);
    twice += began && c->counters().redone != 0;
  }
  EXPECT_GT(twice, 0u);
}

TEST(Sherman, ALiveHolderIsNotRobbed) {
  // The connection of every client breaks often; leases are long enough to find out what happened.
  WorldConfig config;
  config.local = {.mode = LocalMode::kSeeded,
                  .seed = 3,
                  .disconnect_per_million = 20'000,
                  .straggler_lifetime = Duration::microseconds(60),
                  .stragglers_in_order = true};
  config.client.lease = Duration::milliseconds(20);
  config.client.flight = Duration::microseconds(100);
  World w(config);
  std::uint64_t wrong = 0;
  std::uint64_t ended = 0;
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto& m = w.add_client();
    w.scheduler.spawn(own_keys(*m.client, i, 6, 600, 3, wrong, ended));
  }
  w.run_until([&] { return ended == 6; });
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(w.locks_held(), 0u);
  std::uint64_t resolved = 0;
  for (const auto& m : w.members) {
    resolved += m->client->counters().resolved;
    EXPECT_EQ(m->client->counters().recovered, 0u);
  }
  EXPECT_GT(resolved, 10u);
}

// RemoteMemory that cannot read nodes for a while.
class Blinded : public remote::RemoteMemory {
 public:
  Blinded(remote::Scheduler& scheduler, remote::RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (operation.kind == remote::OpKind::kRead && operation.local.size() > 100 && scheduler().now() < until)
      return complete(operation, remote::Status::kUnreachable);
    under_.submit(operation);
  }
  Time until{};

 private:
  remote::RemoteMemory& under_;
};

// A put of client A has been executed, and A does not learn it for a while; another client splits the leaf meanwhile, so that the key has
// another lock.
class ShermanSplitMeanwhile : public testing::Test {
 protected:
  static constexpr Key kKey = 1000;

  static WorldConfig config() {
    WorldConfig config;
    config.local.mode = LocalMode::kSeeded;
    config.local.seed = 7;
    config.geometry = {
        .node_bytes = 512, .value_bytes = 24, .locks = 64, .chunk_bytes = 4096, .whole_bytes = 1024, .long_bytes = 200};
    return config;
  }

  void SetUp() override {
    ASSERT_EQ(w_.wait_for(a_->put(kKey, value_of(1, 100))), Outcome::kOk);
    for (Key key = 1; key < config().geometry.leaf_slots(); ++key)
      ASSERT_EQ(w_.wait_for(other_->put(key, value_of(2))), Outcome::kOk);
    const std::uint64_t before = block();
    w_.scheduler.spawn(put(value_of(3, 100)));
    w_.run_until([&] { return block() != before && w_.locks_held() == 0; });
    ASSERT_FALSE(told_);
    a_.memory->disconnect(w_.memory[0].heap.node);
    ASSERT_EQ(w_.wait_for(other_->put(500, value_of(4))), Outcome::kOk);
    ASSERT_EQ(other_->counters().splits, 1u);
    ASSERT_FALSE(told_);
  }

  Task<void> put(Bytes value) { told_ = co_await a_->put(kKey, value); }

  // Of the key's value, as the first leaf has it; 0: it has none.
  std::uint64_t block() {
    const NodePointer first = MemoryMap(w_.memory, config().geometry).start_of_chunk(0, 0);
    Leaf leaf(w_.fabric.region_bytes(w_.memory[0].heap).subspan(first.offset(), config().geometry.node_bytes),
              config().geometry);
    for (std::uint32_t i = 0; i < config().geometry.leaf_slots(); ++i) {
      Entry entry;
      if (leaf.entry(i, entry) && entry.used && entry.key == kKey && entry.far) return far_value(entry).block.raw;
    }
    return 0;
  }

  // Each block is given out once: values written now are all there.
  void expect_blocks_are_sound() {
    w_.run_until([&] { return told_.has_value(); });
    EXPECT_EQ(told_, Outcome::kOk);
    EXPECT_EQ(w_.wait_for(a_->audit()), Outcome::kOk);
    w_.run_for(Duration::milliseconds(3));
    for (Key key = 5000; key < 5040; ++key) ASSERT_EQ(w_.wait_for(a_->put(key, value_of(key, 100))), Outcome::kOk);
    for (Key key = 5000; key < 5040; ++key) EXPECT_EQ(read(w_, *a_.client, key), value_of(key, 100)) << key;
    w_.expect_no_memory_lost();
  }

  World w_{config()};
  World::Member& a_ = w_.add_client();
  World::Member& other_ = w_.add_client();
  std::optional<Outcome> told_;
};

TEST_F(ShermanSplitMeanwhile, AnAuditLeavesTheReplacedBlockToTheOperation) {
  EXPECT_EQ(w_.wait_for(a_->audit()), Outcome::kOk);
  EXPECT_FALSE(told_) << "it was meant to be before that";
  expect_blocks_are_sound();
  EXPECT_EQ(read(w_, *a_.client, kKey), value_of(3, 100));
}

TEST_F(ShermanSplitMeanwhile, ABlockThatAnotherPutReplacesIsGivenBackOnce) {
  EXPECT_EQ(read(w_, *a_.client, kKey), value_of(3, 100));  // leads to the new leaf
  EXPECT_EQ(w_.wait_for(a_->put(kKey, value_of(9, 100))), Outcome::kOk);
  EXPECT_FALSE(told_) << "it was meant to be before that";
  expect_blocks_are_sound();
  EXPECT_EQ(read(w_, *a_.client, kKey), value_of(9, 100));
}

TEST(Sherman, RoomIsFoundThatOneOperationHasNotTimeEnoughToLookFor) {
  constexpr Key kKilled = 8;
  constexpr Key kErased = 15;  // by each of them
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  config.local.seed = 7;
  config.node_memory = 1u << 20;
  config.geometry = {
      .node_bytes = 512, .value_bytes = 24, .locks = 64, .chunk_bytes = 4096, .whole_bytes = 1024, .long_bytes = 200};
  config.client.timeout = Duration::microseconds(60);
  World w(config);
  auto& a = w.add_client();
  Key end = 0;
  while (w.wait_for(a->put(end, value_of(end, 200))) == Outcome::kOk) ++end;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(w.wait_for(a->put(end, value_of(end, 200))), Outcome::kNoSpace);
  Key next = end;
  for (Key i = 0; i < kKilled; ++i) {
    auto& other = w.add_client();
    for (Key erased = 0; erased < kErased; ++erased) {
      --next;
      while (w.wait_for(other->erase(next)) != Outcome::kOk) {
      }
    }
    other.kill();
  }
  w.run_for(Duration::milliseconds(5));
  std::size_t tries = 0;
  for (Key key = next; key < end; ++key) {
    Outcome outcome = Outcome::kNoSpace;
    while (outcome != Outcome::kOk && tries < 10'000) {
      outcome = w.wait_for(a->put(key, value_of(key, 200)));
      if (outcome == Outcome::kOk) break;
      EXPECT_EQ(outcome, Outcome::kNoSpace);
      ++tries;
      w.run_for(Duration::milliseconds(2));
    }
    ASSERT_EQ(outcome, Outcome::kOk) << key - next << " of " << end - next;
  }
  EXPECT_GT(tries, 0u) << "one audit was enough, which was not meant";
}

TEST(Sherman, TwoCoroutinesOfAClientWaitForEachOtherWithoutAnyBackOff) {
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  config.geometry = {
      .node_bytes = 512, .value_bytes = 24, .locks = 64, .chunk_bytes = 4096, .whole_bytes = 1024, .long_bytes = 200};
  config.client.backoff_first = config.client.backoff_most = Duration{};
  World w(config);
  auto& a = w.add_client();
  int done = 0;
  const auto put = [&](Key key, Bytes value) -> Task<void> {
    const Outcome outcome = co_await a->put(key, value);
    done += outcome == Outcome::kOk;
  };
  for (Key key = 0; key < 2; ++key) w.scheduler.spawn(put(key * 1000, value_of(key, 100)));
  w.run_until([&] { return done == 2; });
  EXPECT_EQ(done, 2);
}

TEST(Sherman, ALockWhoseLeaseRunsOutBeforeTheNodeCouldBeReadIsTakenAgain) {
  World w({.nodes = 1});
  remote::LocalMemory under(w.scheduler, w.fabric);
  Blinded memory(w.scheduler, under);
  Client client(memory, w.memory, w.config_.client, Rng(1));
  ASSERT_EQ(w.wait_for(client.join()), Outcome::kOk);
  ASSERT_EQ(w.wait_for(client.put(1, value_of(1))), Outcome::kOk);
  memory.until = w.now + w.config_.client.lease * 2;
  EXPECT_EQ(w.wait_for(client.put(1, value_of(2))), Outcome::kOk);
  EXPECT_EQ(client.counters().abandoned, 1u);
  EXPECT_EQ(client.counters().recovered, 1u);
  EXPECT_EQ(read(w, client, 1), value_of(2));
  EXPECT_EQ(w.locks_held(), 0u);
}

// -------------------------------------------------------------------------------------------------------- torn reads

// RemoteMemory that reads in two halves and lets something happen in between.
class Tearing : public remote::RemoteMemory {
 public:
  Tearing(remote::Scheduler& scheduler, remote::RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (operation.kind != remote::OpKind::kRead || !between || operation.local.size() < 100)
      return under_.submit(operation);
    read_now(operation, 0, cut);
    const auto act = std::exchange(between, nullptr);
    act();
    read_now(operation, cut, operation.local.size() - cut);
    complete(operation, remote::Status::kOk);
  }
  std::size_t cut = 0;
  std::function<void()> between;  // before the second half of the next read of a node

 private:
  void read_now(const remote::Operation& whole, std::size_t offset, std::size_t length) {
    auto part = remote::read_operation(whole.remote + offset, whole.local.subspan(offset, length));
    part.on_complete = [](remote::Operation& o) { SLUICE_CHECK(o.status == remote::Status::kOk); };
    under_.submit(part);
  }
  remote::RemoteMemory& under_;
};

// A reader, joined, of a tree with values of 24 bytes that has this key alone; its next READ of the leaf is cut in two, between which another client acts.
struct TornRead {
  explicit TornRead(Key key) {
    EXPECT_EQ(w.wait_for(w.add_client()->put(key, Bytes(24, 0xA0))), Outcome::kOk);
    EXPECT_EQ(w.wait_for(reader.join()), Outcome::kOk);
    EXPECT_EQ(w.wait_for(reader.get(key, into)).outcome, Outcome::kOk);  // so that the next one reads the leaf at once
  }
  void cut(std::size_t at, Task<void> (*act)(Client&)) {
    tearing.cut = at;
    tearing.between = [this, act] {
      const auto join_and_act = [act](Client& client) -> Task<void> {
        const Outcome joined = co_await client.join();
        EXPECT_EQ(joined, Outcome::kOk);
        co_await act(client);
      };
      other.spawn(join_and_act(busy));
      other.run(w.now);
      EXPECT_EQ(other.live(), 0u);
    };
  }
  bool was_cut() const { return !tearing.between; }

  static WorldConfig small() {
    WorldConfig config{.nodes = 1};
    config.geometry.node_bytes = 512;
    config.geometry.value_bytes = 24;
    return config;
  }

  World w{small()};
  Bytes into = Bytes(24);

  remote::LocalMemory plain{w.scheduler, w.fabric};
  Tearing tearing{w.scheduler, plain};
  remote::Scheduler other;
  remote::LocalMemory others{other, w.fabric};
  Client busy{others, w.memory, small().client, Rng(2)};
  Client reader{tearing, w.memory, small().client, Rng(1)};
};

TEST(ShermanTorn, AScanGivesAKeyOnceThatLeavesOneSlotForAnotherMeanwhile) {
  TornRead read(5);
  // Behind the first slot.
  read.cut(64 + read.w.config_.geometry.entry_bytes(), [](Client& client) -> Task<void> {
    Outcome outcome = co_await client.erase(5);
    EXPECT_EQ(outcome, Outcome::kOk);
    outcome = co_await client.put(4, Bytes(24, 0xB0));
    EXPECT_EQ(outcome, Outcome::kOk);
    outcome = co_await client.put(5, Bytes(24, 0xC0));
    EXPECT_EQ(outcome, Outcome::kOk);
  });
  Pairs found;
  read.w.wait_for(read.reader.scan(0, 10, found));
  EXPECT_TRUE(read.was_cut());
  EXPECT_EQ(std::ranges::count(found.pairs, Key{5}, &std::pair<Key, Bytes>::first), 1);
}

// What four bits of version would miss: they are the same again.
TEST(ShermanTorn, AnEntryThatIsWrittenSixteenTimesAmidAReadIsReadAgain) {
  TornRead read(1);
  // Within the value of the first slot.
  read.cut(64 + 16 + 8, [](Client& client) -> Task<void> {
    for (std::uint8_t i = 0; i < 16; ++i) {
      const Bytes value(24, static_cast<std::uint8_t>(0xB0 + i));
      const Outcome outcome = co_await client.put(1, value);
      EXPECT_EQ(outcome, Outcome::kOk);
    }
  });
  EXPECT_EQ(read.w.wait_for(read.reader.get(1, read.into)).outcome, Outcome::kOk);
  EXPECT_TRUE(read.was_cut());
  EXPECT_EQ(read.into, Bytes(24, 0xBF));
  EXPECT_EQ(read.reader.counters().torn, 1u);
}

// -------------------------------------------------------------------------------------------------------------- scans

Task<void> keep_inserting(Client& client, std::uint64_t seed, std::uint64_t& running, std::uint64_t& failed) {
  Rng rng = Rng(seed).fork("inserting");
  for (int i = 0; i < 400; ++i) {
    const Key key = rng.below(600) * 2 + 1;  // odd ones come and go
    const Bytes value = value_of(key);
    const bool erase = rng.below(4) == 0;
    Outcome outcome{};
    if (erase) {
      outcome = co_await client.erase(key);
    } else {
      outcome = co_await client.put(key, value);
    }
    failed += outcome != Outcome::kOk && outcome != Outcome::kNotFound;
  }
  --running;
}

Task<void> keep_scanning(Client& client, std::uint64_t seed, std::uint64_t& running, std::uint64_t& failed) {
  Rng rng = Rng(seed).fork("scanning");
  while (running > 0) {
    Pairs found;
    const Key first = rng.below(1100);
    const std::size_t count = 1 + rng.below(100);
    const ScanResult result = co_await client.scan(first, count, found);
    failed += result.outcome != Outcome::kOk || found.pairs.size() > count || result.count != found.pairs.size();
    Key even = (first + 1) / 2 * 2;  // all of which are there all the time
    Key last = 0;
    for (std::size_t i = 0; i < found.pairs.size(); ++i) {
      const auto& [key, value] = found.pairs[i];
      failed += key < first || (i > 0 && key <= last) || value != value_of(key) || key > even;
      if (key == even) even += 2;
      last = key;
    }
  }
}

TEST(Sherman, AScanMayTakeLongerThanAnyOtherOperation) {
  constexpr std::size_t kKeys = 2000;
  WorldConfig config;
  config.local.mode = LocalMode::kSeeded;
  config.client.timeout = Duration::microseconds(10);
  World w(config);
  auto& a = w.add_client();
  for (Key key = 0; key < kKeys; ++key) ASSERT_EQ(w.wait_for(a->put(key, value_of(key))), Outcome::kOk);
  Pairs found;
  const Time begun = w.now;
  const ScanResult scanned = w.wait_for(a->scan(0, kKeys, found));
  EXPECT_GT(w.now - begun, config.client.timeout * 2);
  EXPECT_EQ(scanned.outcome, Outcome::kOk);
  EXPECT_EQ(scanned.count, kKeys);
  EXPECT_EQ(found.pairs.size(), kKeys);
}

TEST(Sherman, AScanAmongSplitsReturnsEachKeyOnceAndInOrder) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WorldConfig config{.node_memory = 4u << 20};
    config.local = {.mode = LocalMode::kSeeded, .seed = seed, .piece_bytes = seed == 2 ? 48u : 0u};
    World w(config);
    std::vector<World::Member*> members;
    for (int i = 0; i < 5; ++i) members.push_back(&w.add_client());
    auto& first = *members[0]->client;
    for (Key key = 0; key < 1200; key += 2) ASSERT_EQ(w.wait_for(first.put(key, value_of(key))), Outcome::kOk);
    std::uint64_t running = 3;
    std::uint64_t failed = 0;
    const auto splits = [&] {
      std::uint64_t sum = 0;
      for (auto* m : members) sum += m->client->counters().splits;
      return sum;
    };
    const auto before = splits();
    for (std::uint64_t i = 0; i < 3; ++i) {
      w.scheduler.spawn(keep_inserting(*members[i]->client, seed * 10 + i, running, failed));
    }
    w.scheduler.spawn(keep_scanning(*members[3]->client, seed, running, failed));
    w.scheduler.spawn(keep_scanning(*members[4]->client, seed + 100, running, failed));
    w.run_until([&] { return running == 0 && w.scheduler.live() == 0; });
    EXPECT_EQ(failed, 0u) << "seed " << seed;
    EXPECT_GT(splits(), before + 50);
    EXPECT_GT(members[3]->client->counters().scans, 20u);
  }
}

}  // namespace
}  // namespace sluice::sherman
