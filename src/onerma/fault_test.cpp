// Bad networks: two clients, two targets, random transfers, faults of every kind; every transfer completes and is right.
#include <gtest/gtest.h>

#include "base/effort_test.h"
#include "onerma/remote_onerma.h"
#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

constexpr std::uint64_t kBase = 0x4000;
constexpr std::size_t kShare = 64 << 10;  // of each client, in each target's region
const Algorithm1 kPolicy;

struct FaultWorld {
  explicit FaultWorld(std::uint64_t seed, const port::Impairment& bad) : rng(Rng(seed).fork("work")), world(seed, bad) {
    for (int i = 0; i < 2; ++i) {
      memories.emplace_back(2 * kShare);
      targets.push_back(&world.add_host());
      regions.push_back(targets.back()
                            ->node->regions()
                            .add(memories.back(), kBase, memory::kAllAccess, test_key(seed * 10 + 1))
                            .value());
    }
    models = memories;
    RemoteOnerma::Parameters parameters;
    parameters.give_up = Duration::seconds(1);
    parameters.repeat_writes = true;  // stripes are one client's each
    for (std::uint64_t i = 0; i < 2; ++i) {
      World::Host& host = world.add_host();
      clients.push_back(std::make_unique<RemoteOnerma>(world.scheduler, host.node->initiator(), kPolicy, parameters));
      for (std::uint32_t t = 0; t < 2; ++t) {
        clients.back()->add_node(remote::NodeId(t), targets[t]->node->address());
        clients.back()->add_grant(remote::NodeId(t),
                                  *targets[t]->node->regions().grant(regions[t], InitiatorId(i), kMayRead | kMayWrite));
      }
      host.clients.push_back(clients.back().get());
    }
  }

  // Works on a stripe of its own, so that what it reads is what it wrote.
  remote::Task<void> work(std::size_t client, std::size_t stripe, Rng own, int transfers) {
    constexpr std::size_t kStripe = kShare / 4;
    for (int i = 0; i < transfers; ++i) {
      const std::uint32_t t = static_cast<std::uint32_t>(own.below(2));
      const std::size_t length = own.below(3) == 0 ? own.below(kStripe) : own.below(200);
      const std::size_t offset = client * kShare + stripe * kStripe + own.below(kStripe - length);
      const remote::RemoteAddress at{remote::NodeId(t), remote::RegionKey(regions[t].value), kBase + offset};
      std::vector<std::uint8_t> bytes(length);
      const auto model = models[t].begin() + static_cast<std::ptrdiff_t>(offset);
      remote::Status status{};
      if (own.below(2) == 0) {
        for (auto& byte : bytes) byte = static_cast<std::uint8_t>(own.next());
        status = co_await clients[client]->write(at, bytes);
        std::ranges::copy(bytes, model);
      } else {
        status = co_await clients[client]->read(at, bytes);
        if (!std::equal(bytes.begin(), bytes.end(), model)) problem = "a read brought other bytes than were written";
      }
      if (status != remote::Status::kOk) problem = remote::to_string(status);
      ++completed;
    }
  }

  Rng rng;
  World world;
  std::vector<World::Host*> targets;
  std::vector<std::vector<std::uint8_t>> memories, models;
  std::vector<RegionId> regions;
  std::vector<std::unique_ptr<RemoteOnerma>> clients;
  int completed = 0;
  std::string problem;
};

TEST(OnermaFaults, EveryTransferCompletesAndIsRightWithTenPercentLost) {
  port::Impairment bad;
  bad.drop = bad.duplicate = bad.reorder = 100'000;
  bad.corrupt = 10'000;
  std::uint64_t retries = 0, replays = 0, forged = 0;
  for (std::uint64_t seed = 1; seed <= seeds(200); ++seed) {
    FaultWorld w(seed, bad);
    for (std::size_t client = 0; client < 2; ++client) {
      for (std::size_t stripe = 0; stripe < 4; ++stripe) {
        w.world.scheduler.spawn(w.work(client, stripe, w.rng.fork(client * 4 + stripe), 5));
      }
    }
    ASSERT_TRUE(w.world.run_until([&] { return w.completed == 40 || !w.problem.empty(); }, 10'000'000))
        << "seed " << seed;
    ASSERT_EQ(w.problem, "") << "seed " << seed;
    ASSERT_EQ(w.memories, w.models) << "seed " << seed;
    for (const auto& client : w.clients) retries += client->counters().retries;
    for (const World::Host* target : w.targets) {
      replays += target->node->target().counters().replays;
      forged += target->node->target().counters().forged;
    }
    // What was solicited and did not come has been given back.
    w.world.run_for(Duration::microseconds(200));
    for (std::size_t host = 0; host < 4; ++host) EXPECT_EQ(w.world.host(host).node->window().used(), 0u);
  }
  EXPECT_GT(retries, 0u);
  EXPECT_GT(replays, 0u);
  EXPECT_GT(forged, 0u);
}

TEST(OnermaFaults, TheSameSeedIsTheSameWorld) {
  port::Impairment bad;
  bad.drop = bad.duplicate = bad.reorder = 100'000;
  const auto run = [&] {
    FaultWorld w(7, bad);
    for (std::size_t client = 0; client < 2; ++client)
      w.world.scheduler.spawn(w.work(client, 0, w.rng.fork(client), 10));
    EXPECT_TRUE(w.world.run_until([&] { return w.completed == 20; }));
    return w.world.now;
  };
  EXPECT_EQ(run(), run());
}

// A target dies under load and comes back with the same memory and another key; its clients are granted anew and go on.
TEST(OnermaFaults, ATargetRestartsAndItsClientsGoOn) {
  port::Impairment bad;
  bad.drop = 20'000;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FaultWorld w(seed, bad);
    for (std::size_t client = 0; client < 2; ++client) {
      for (std::uint32_t t = 0; t < 2; ++t) {
        w.clients[client]->on_key_refused([&w, client](Time now, remote::NodeId node, RegionId region) {
          const auto grant =
              w.targets[node.value]->node->regions().grant(region, InitiatorId(100 + client), kMayRead | kMayWrite);
          if (grant) w.clients[client]->replace_grant(now, node, *grant);
        });
      }
      for (std::size_t stripe = 0; stripe < 4; ++stripe) {
        w.world.scheduler.spawn(w.work(client, stripe, w.rng.fork(client * 4 + stripe), 30));
      }
    }
    w.world.run_for(Duration::microseconds(static_cast<std::int64_t>(100 + w.rng.below(500))));
    World::Host& host = *w.targets[0];
    World::kill(host);
    w.world.run_for(Duration::microseconds(300));
    World::revive(host);
    // The region table starts from another seed: find the number that the clients know.
    RegionId again{};
    for (int i = 0; i < 256; ++i) {
      again = host.node->regions().add(w.memories[0], kBase, memory::kAllAccess, test_key(seed * 10 + 2)).value();
      if (again == w.regions[0]) break;
      host.node->regions().remove(again);
    }
    ASSERT_EQ(again, w.regions[0]);
    ASSERT_TRUE(w.world.run_until([&] { return w.completed == 240 || !w.problem.empty(); }, 10'000'000))
        << "seed " << seed;
    ASSERT_EQ(w.problem, "") << "seed " << seed;
    ASSERT_EQ(w.memories, w.models) << "seed " << seed;
  }
}

TEST(OnermaFaults, OfAClientThatDiedTargetsKeepNothingAndOthersDoNotNotice) {
  port::Impairment bad;
  bad.drop = 50'000;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FaultWorld w(seed, bad);
    w.world.scheduler.spawn(w.work(1, 0, w.rng.fork(1), 40));
    // The one that dies submits without coroutines, which would wait for ever.
    std::vector<std::vector<std::uint8_t>> bytes(50, std::vector<std::uint8_t>(5000));
    std::vector<remote::Operation> operations;
    for (auto& b : bytes) {
      operations.push_back(
          remote::write_operation({remote::NodeId(0), remote::RegionKey(w.regions[0].value), kBase + 5000}, b));
    }
    for (auto& operation : operations) {
      operation.on_complete = [](remote::Operation&) {};
      w.clients[0]->submit(operation);
    }
    w.world.run_for(Duration::microseconds(20));
    World::kill(w.world.host(2));
    ASSERT_TRUE(w.world.run_until([&] { return w.completed == 40; }, 10'000'000)) << "seed " << seed;
    ASSERT_EQ(w.problem, "") << "seed " << seed;
    w.world.run_for(Duration::microseconds(200));
    for (const World::Host* target : w.targets) {
      EXPECT_EQ(target->node->target().open_pulls(), 0u);
      EXPECT_EQ(target->node->target().queued_bytes(), 0u);
      EXPECT_EQ(target->node->window().used(), 0u);
    }
  }
}

}  // namespace
}  // namespace sluice::onerma
