// A whole Clover in one process, for its tests: memory nodes, metadata server and clients over the local backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "clover/client.h"
#include "clover/metadata.h"
#include "clover/repairer.h"
#include "remote/local.h"
#include "remote/slow.h"

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
    std::unique_ptr<remote::SlowMemory> slow;  // before it; a test may say how slow
    std::unique_ptr<remote::LocalChannel> channel;
    std::unique_ptr<Client> client;
    bool dead = false;

    Client* operator->() const { return client.get(); }
    // The process dies.
    void kill() {
      dead = true;
      slow->kill();
      memory->kill();
      channel->kill();
    }
  };
  Member& add_client() {
    auto& m = *members.emplace_back(std::make_unique<Member>());
    m.memory = std::make_unique<remote::LocalMemory>(scheduler, fabric);
    m.slow = std::make_unique<remote::SlowMemory>(scheduler, *m.memory);
    m.channel = std::make_unique<remote::LocalChannel>(scheduler, fabric, *server);
    const Rng rng = Rng(config_.local.seed).fork("client").fork(members.size());
    m.client = std::make_unique<Client>(*m.slow, *m.channel, config_.client, rng);
    Outcome joined = Outcome::kUnknown;
    scheduler.spawn(join(*m.client, joined));
    while (joined == Outcome::kUnknown) step();
    EXPECT_EQ(joined, Outcome::kOk);
    scheduler.spawn(m.client->maintain());
    return m;
  }

  // From now on nodes that come back are brought into the store again.
  void start_repairing(RepairerConfig config = {}) {
    repair_memory = std::make_unique<remote::LocalMemory>(*server_scheduler, fabric);
    repairer = std::make_unique<Repairer>(*repair_memory, *server, config_.lifetime / 8, std::move(config));
    for (const auto& home : server_config.homes) repairer->saw(server_now(), home);
    server_scheduler->spawn(repairer->run());
  }
  // Another process serves the node's name: with blank memory elsewhere.
  void restart_node(std::uint32_t i) {
    const remote::NodeId node(i);
    fabric.restart_node(node);
    const std::uint64_t base = 0x10000 * (i + 1) + 0x1000000 * ++lives_;
    memory[i] = {fabric.add_region(node, base, config_.node_memory), config_.node_memory};
    if (repairer) repairer->saw(server_now(), {memory[i], lives_});
  }
  void kill_node(std::uint32_t i) {
    fabric.kill_node(remote::NodeId(i));
    if (repairer) repairer->gone(server_now(), remote::NodeId(i), server_config.homes[i].name);
  }

  // The metadata server's process has a clock of its own, which begins when it does.
  Time server_now() const { return Time() + (now - server_born); }

  // One step of the fabric, all that follows from it, and a little time.
  void step() {
    run_ready();
    const bool busy = fabric.pump(now);
    const Time next = next_deadline();
    now = busy || next == Time::never() ? now + Duration::nanoseconds(20)
                                        : std::max(now + Duration::nanoseconds(20), next);
    run_ready();
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
  Time server_born;
  std::unique_ptr<remote::Scheduler> server_scheduler = std::make_unique<remote::Scheduler>();
  std::unique_ptr<remote::LocalMemory> repair_memory;
  std::unique_ptr<Repairer> repairer;
  std::vector<std::unique_ptr<Member>> members;
  Time now;

 private:
  void run_ready() {
    scheduler.run(now);
    server_scheduler->run(server_now());
  }
  Time next_deadline() const {
    const Time servers = server_scheduler->next_deadline();
    const Time next = scheduler.next_deadline();
    return servers == Time::never() ? next : std::min(next, server_born + servers.since_start());
  }

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

inline std::vector<std::uint8_t> value_of(std::uint64_t n, std::size_t size) {
  std::vector<std::uint8_t> value(size);
  for (std::size_t i = 0; i < size; ++i) value[i] = static_cast<std::uint8_t>(n * 31 + i * 7 + (n >> 8));
  return value;
}

// What `get` says, as a comparable thing.
inline std::optional<std::vector<std::uint8_t>> read(World& w, Client& client, Key key) {
  std::vector<std::uint8_t> into(client.value_bytes());
  const GetResult result = w.wait_for(client.get(key, into));
  if (result.outcome != Outcome::kOk) {
    EXPECT_EQ(result.outcome, Outcome::kNotFound);
    return std::nullopt;
  }
  into.resize(result.length);
  return into;
}

// To be spawned; `outcome` is what it was until it ends.
inline remote::Task<void> put_later(Client& client, Key key, std::vector<std::uint8_t> value, Outcome& outcome) {
  outcome = co_await client.put(key, value);
}

}  // namespace sluice::clover
