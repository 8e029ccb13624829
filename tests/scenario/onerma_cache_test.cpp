// The key-value cache over 1RMA: rights, replicas that die, frames that are lost.
#include <gtest/gtest.h>

#include <string>

#include "base/effort_test.h"
#include "kvcache/client.h"
#include "kvcache/server.h"
#include "onerma/test_world.h"

namespace sluice {
namespace {

using kvcache::Outcome;
using remote::Task;

constexpr std::uint64_t kTable = 0x10'0000;
constexpr std::uint64_t kMailbox = 0x4000'0000;

ByteView view(const std::string& text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

// Three replicas and a client around a hub; servers look into their mailboxes every microsecond of the world.
struct CacheWorld {
  static constexpr std::size_t kReplicas = 3;

  explicit CacheWorld(std::uint64_t seed, const port::Impairment& bad = {}) : world(seed, bad) {
    parameters.repeat_writes = true;  // a mailbox is one client's
    parameters.give_up = bad.any() ? Duration::milliseconds(20) : Duration::microseconds(25);
    onerma::World::Host& host = world.add_host();
    memory = std::make_unique<onerma::RemoteOnerma>(world.scheduler, host.node->initiator(), policy, parameters);
    std::vector<kvcache::Replica> replicas;
    for (std::size_t i = 0; i < kReplicas; ++i) {
      const remote::NodeId node(static_cast<std::uint32_t>(i + 1));
      onerma::World::Host& server = world.add_host();
      tables[i].resize(geometry.table_bytes());
      boxes[i].resize(2048);
      servers[i] = std::make_unique<kvcache::Server>(tables[i], geometry, i + 1);
      servers[i]->add_mailbox(boxes[i]);
      memory->add_node(node, server.node->address());
      const auto table = share(server, node, tables[i], kTable, onerma::kMayRead, 2 * i);
      replicas.push_back({table,
                          share(server, node, boxes[i], kMailbox, onerma::kMayRead | onerma::kMayWrite, 2 * i + 1),
                          boxes[i].size()});
    }
    host.clients.push_back(memory.get());
    client = std::make_unique<kvcache::Client>(
        *memory, replicas,
        kvcache::ClientConfig{.number = 1, .max_value = 1500, .look_after = Duration::microseconds(200)});
    world.scheduler.spawn(serve());
  }
  remote::RemoteAddress share(onerma::World::Host& server, remote::NodeId node, MutableBytes bytes, std::uint64_t base,
                              onerma::Rights rights, std::size_t key) {
    onerma::Regions& regions = server.node->regions();
    const auto region = regions.add(bytes, base, memory::kAllAccess, onerma::test_key(key)).value();
    memory->add_grant(node, *regions.grant(region, onerma::InitiatorId(1), rights));
    return {node, remote::RegionKey(region.value), base};
  }
  Task<void> serve() {
    for (;;) {
      for (const auto& server : servers) server->poll();
      co_await world.scheduler.sleep_for(Duration::microseconds(1));
    }
  }
  bool run(Task<void> task) {
    bool done = false;
    const auto keep = [&]() -> Task<void> {
      co_await std::move(task);
      done = true;
    };
    world.scheduler.spawn(keep());
    return world.run_until([&] { return done; }, 20'000'000);
  }

  onerma::World world;
  onerma::RemoteOnerma::Parameters parameters{};
  onerma::Algorithm1 policy{};
  std::unique_ptr<onerma::RemoteOnerma> memory;
  kvcache::Geometry geometry{.buckets = 256, .log_bytes = 256 << 10};
  std::array<std::vector<std::uint8_t>, kReplicas> tables, boxes;
  std::array<std::unique_ptr<kvcache::Server>, kReplicas> servers;
  std::unique_ptr<kvcache::Client> client;
};

TEST(OnermaCache, WhatIsSetIsFoundAndATableCannotBeWritten) {
  CacheWorld w(1);
  const auto story = [&]() -> Task<void> {
    Outcome outcome = co_await w.client->join();
    EXPECT_EQ(outcome, Outcome::kOk);
    const std::string value(1500, 'v');
    outcome = co_await w.client->set(view("key"), view(value));
    EXPECT_EQ(outcome, Outcome::kOk);
    std::vector<std::uint8_t> into(1500);
    const kvcache::GetResult got = co_await w.client->get(view("key"), into);
    EXPECT_EQ(got.outcome, Outcome::kOk);
    EXPECT_EQ(std::string(into.begin(), into.end()), value);
    // The key that looks up is no key that writes.
    const remote::RemoteAddress table{remote::NodeId(1), remote::RegionKey(1), kTable};
    std::vector<std::uint8_t> bytes(8);
    const remote::Status status = co_await w.memory->write(table, bytes);
    EXPECT_EQ(status, remote::Status::kAccessDenied);
  };
  EXPECT_TRUE(w.run(story()));
}

// The dead one says nothing: the lookups under way end after a time-out and go elsewhere; those that come later do so at once.
TEST(OnermaCache, LookupsGoOnWithinATimeOutWhenAReplicaDies) {
  CacheWorld w(2);
  constexpr int kKeys = 60;
  Duration longest{}, longest_before{};
  int wrong = 0;
  const auto look_up_all = [&](Duration& most) -> Task<void> {
    std::vector<std::uint8_t> into(1500);
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = "k" + std::to_string(i);
      const Time since = w.world.now;
      const kvcache::GetResult got = co_await w.client->get(view(key), into);
      most = std::max(most, w.world.now - since);
      const std::string value(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(got.length));
      wrong += got.outcome != Outcome::kOk || value != key ? 1 : 0;
    }
  };
  const auto story = [&]() -> Task<void> {
    co_await w.client->join();
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = "k" + std::to_string(i);
      const Outcome outcome = co_await w.client->set(view(key), view(key));
      EXPECT_EQ(outcome, Outcome::kOk);
    }
    co_await look_up_all(longest_before);
    onerma::World::kill(w.world.host(2));
    co_await look_up_all(longest);
  };
  EXPECT_TRUE(w.run(story()));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(w.client->counters().failovers, 2u);  // then it is left out
  EXPECT_FALSE(w.client->up(1));
  EXPECT_LT(longest_before, Duration::microseconds(20));
  EXPECT_LT(longest, Duration::microseconds(25 + 25) + longest_before);
  std::printf("longest lookup before %.1f us, while a replica dies %.1f us\n",
              static_cast<double>(longest_before.nanoseconds()) / 1e3,
              static_cast<double>(longest.nanoseconds()) / 1e3);
}

TEST(OnermaCache, NeverAnswersWithWhatWasNotSetWhateverTheNetworkDoes) {
  for (std::uint64_t seed = 1; seed <= seeds(10); ++seed) {
    set_check_context("seed " + std::to_string(seed));
    CacheWorld w(seed, {.drop = 100'000, .duplicate = 100'000, .reorder = 100'000, .corrupt = 10'000, .delay = {}});
    const auto story = [&]() -> Task<void> {
      std::vector<std::uint8_t> into(1500);
      Outcome outcome = Outcome::kUnavailable;
      for (int i = 0; i < 10 && outcome != Outcome::kOk; ++i) outcome = co_await w.client->join();
      EXPECT_EQ(outcome, Outcome::kOk);
      for (int i = 0; i < 60; ++i) {
        const std::string key = "k" + std::to_string(i % 7);
        const std::string value = key + "=" + std::to_string(i) + std::string(static_cast<std::size_t>(i) * 20, 'x');
        outcome = co_await w.client->set(view(key), view(value));
        EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kPartial) << to_string(outcome) << ", seed " << seed;
        const kvcache::GetResult got = co_await w.client->get(view(key), into);
        EXPECT_EQ(got.outcome, Outcome::kOk) << seed;
        EXPECT_EQ(std::string(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(got.length)), value) << seed;
      }
    };
    ASSERT_TRUE(w.run(story())) << seed;
  }
}

}  // namespace
}  // namespace sluice
