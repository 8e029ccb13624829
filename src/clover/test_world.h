// A whole Clover in one process, for its tests: memory nodes, metadata server and clients over the local backend.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "clover/client.h"
#include "clover/metadata.h"
#include "clover/repairer.h"
#include "remote/local.h"

namespace sluice::clover {

struct WorldConfig {
  remote::LocalOptions local{};
  std::uint32_t nodes = 2;
  std::uint32_t replication = 1;
  std::uint32_t value_bytes = 40;
  std::size_t node_memory = 1u << 20;
  Duration lifetime = Duration::microseconds(200);
  Duration flight = Duration::microseconds(100);
  ClientConfig client{};
};

class World {
 public:
  explicit World(const WorldConfig& config) : config_(config), fabric(config.local) {
    std::vector<Region> regions;
    for (std::uint32_t i = 0; i < config.nodes; ++i) {
      const auto node = fabric.add_node();
      memory.push_back({fabric.add_region(node, 0x10000 * (i + 1), config.node_memory), config.node_memory});
    }
    auto volumes = spread(memory, config.replication);
    EXPECT_TRUE(volumes.has_value()) << volumes.error().message;
    server_config = {.volumes = *volumes,
                     .value_bytes = config.value_bytes,
                     .cursor_lifetime = config.lifetime,
                     .max_flight = config.flight};
    for (const auto& region : memory) server_config.homes.push_back({region, ++lives_});
    server = std::make_unique<MetadataServer>(server_config);
    set_check_context("seed " + std::to_string(config.local.seed));
  }

  // A client that has joined and is kept going.
  struct Member {
    std::unique_ptr<remote::LocalMemory> memory;
    std::unique_ptr<remote::LocalChannel> channel;
    std::unique_ptr<Client> client;
    bool dead = false;

    Client* operator->() const { return client.get(); }
    // The process dies.
    void kill() {
      dead = true;
      memory->kill();
      channel->kill();
    }
  };
  Member& add_client() {
    auto& m = *members.emplace_back(std::make_unique<Member>());
    m.memory = std::make_unique<remote::LocalMemory>(scheduler, fabric);
    m.channel = std::make_unique<remote::LocalChannel>(scheduler, fabric, *server);
    const Rng rng = Rng(config_.local.seed).fork("client").fork(members.size());
    m.client = std::make_unique<Client>(*m.memory, *m.channel, config_.client, rng);
    Outcome joined = Outcome::kUnknown;
    scheduler.spawn(join(*m.client, joined));
    while (joined == Outcome::kUnknown) step();
    EXPECT_EQ(joined, Outcome::kOk);
    scheduler.spawn(m.client->maintain());
    return m;
  }

  // From now on nodes that come back are brought into the store again.
  void start_repairing(RepairerConfig config = {}) {
    repair_memory = std::make_unique<remote::LocalMemory>(scheduler, fabric);
    repairer = std::make_unique<Repairer>(*repair_memory, *server, config_.lifetime / 8, std::move(config));
    for (const auto& home : server_config.homes) repairer->saw(now, home);
    scheduler.spawn(repairer->run());
  }
  // Another process serves the node's name: with blank memory elsewhere.
  void restart_node(std::uint32_t i) {
    const remote::NodeId node(i);
    fabric.restart_node(node);
    const std::uint64_t base = 0x10000 * (i + 1) + 0x1000000 * ++lives_;
    memory[i] = {fabric.add_region(node, base, config_.node_memory), config_.node_memory};
    if (repairer) repairer->saw(now, {memory[i], lives_});
  }
  void kill_node(std::uint32_t i) {
    fabric.kill_node(remote::NodeId(i));
    if (repairer) repairer->gone(now, remote::NodeId(i), server_config.homes[i].name);
  }

  // One step of the fabric, all that follows from it, and a little time.
  void step() {
    scheduler.run(now);
    const bool busy = fabric.pump(now);
    const Time next = scheduler.next_deadline();
    now = busy || next == Time::never() ? now + Duration::nanoseconds(20)
                                        : std::max(now + Duration::nanoseconds(20), next);
    scheduler.run(now);
  }
  template <class Until>
  void run_until(Until until, std::uint64_t limit = 50'000'000) {
    for (std::uint64_t i = 0; !until(); ++i) {
      ASSERT_LT(i, limit) << "no end in sight; " << server->summary();
      step();
    }
  }
  void run_for(Duration d) {
    const Time end = now + d;
    while (now < end) step();
  }
  // All living clients leave.
  void leave_all() {
    std::size_t left = 0;
    std::size_t living = 0;
    for (auto& m : members) {
      if (m->dead) continue;
      ++living;
      scheduler.spawn(leave(*m->client, left));
    }
    run_until([&] { return left == living; });
  }

  template <class T>
  T wait_for(remote::Task<T> task) {
    T result{};
    bool done = false;
    scheduler.spawn(store_result(std::move(task), result, done));
    run_until([&] { return done; });
    return result;
  }

  WorldConfig config_;
  remote::Scheduler scheduler;
  remote::LocalFabric fabric;
  std::vector<Region> memory;
  ServerConfig server_config;
  std::unique_ptr<MetadataServer> server;
  std::unique_ptr<remote::LocalMemory> repair_memory;
  std::unique_ptr<Repairer> repairer;
  std::vector<std::unique_ptr<Member>> members;
  Time now;

 private:
  std::uint64_t lives_ = 0;

  static remote::Task<void> join(Client& client, Outcome& joined) { joined = co_await client.join(); }
  static remote::Task<void> leave(Client& client, std::size_t& left) {
    co_await client.leave();
    ++left;
  }
  template <class T>
  static remote::Task<void> store_result(remote::Task<T> task, T& result, bool& done) {
    result = co_await std::move(task);
    done = true;
  }
};

}  // namespace sluice::clover
