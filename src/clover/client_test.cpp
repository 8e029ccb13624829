#include "clover/client.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "clover/test_world.h"

namespace sluice::clover {
namespace {

using remote::LocalMode;
using remote::Task;

std::vector<std::uint8_t> value_of(std::uint64_t n, std::size_t size) {
  std::vector<std::uint8_t> value(size);
  for (std::size_t i = 0; i < size; ++i) value[i] = static_cast<std::uint8_t>(n * 31 + i * 7 + (n >> 8));
  return value;
}

// What `get` says, as a comparable thing.
std::optional<std::vector<std::uint8_t>> read(World& w, Client& client, Key key) {
  std::vector<std::uint8_t> into(client.value_bytes());
  const GetResult result = w.wait_for(client.get(key, into));
  if (result.outcome != Outcome::kOk) {
    EXPECT_EQ(result.outcome, Outcome::kNotFound);
    return std::nullopt;
  }
  into.resize(result.length);
  return into;
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

TEST(Clover, RefusesAValueThatIsTooLong) {
  World w({});
  auto& a = w.add_client();
  EXPECT_EQ(a->value_bytes(), 40u);
  EXPECT_EQ(w.wait_for(a->put(1, value_of(1, 41))), Outcome::kTooLong);
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
  const std::uint64_t operations = GetParam() == 1 ? 1'000'000 : 200'000;
  w.scheduler.spawn(model_run(*a.client, operations, Rng(7), model, done));
  w.run_until([&] { return done; });
  EXPECT_GT(w.server->counters().retired, 100'000u / GetParam());
  EXPECT_GT(w.server->counters().sealed, 0u);
  std::map<Key, std::vector<std::uint8_t>> seen;
  for (Key key = 0; key < 200; ++key) {
    if (auto value = read(w, *a.client, key)) seen[key] = *value;
  }
  EXPECT_EQ(seen, model);
}

}  // namespace
}  // namespace sluice::clover
