// A whole Sherman tree in one process, for its tests: memory nodes and clients over the local backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "remote/test_loop.h"
#include "sherman/client.h"

namespace sluice::sherman {

struct WorldConfig {
  remote::LocalOptions local{};
  std::uint32_t nodes = 2;
  std::size_t node_memory = 1u << 20;
  Geometry geometry{.node_bytes = 256, .value_bytes = 8, .locks = 64, .chunk_bytes = 2048, .whole_bytes = 1024};
  ClientConfig client{.lease = Duration::microseconds(1500), .flight = Duration::microseconds(300)};
};

class World : public remote::TestLoop {
 public:
  explicit World(const WorldConfig& config) : remote::TestLoop(config.local), config_(config) {
    for (std::uint32_t i = 0; i < config.nodes; ++i) {
      const auto node = fabric.add_node();
      const auto heap = fabric.add_region(node, 0x10000 * (i + 1), config.node_memory);
      const auto locks = fabric.add_region(node, 0x800, std::size_t{8} * config.geometry.locks);
      memory.push_back({heap, config.node_memory, locks});
    }
    set_check_context("seed " + std::to_string(config.local.seed));
    remote::LocalMemory founder(scheduler, fabric);
    Outcome created = Outcome::kUnavailable;
    for (int i = 0; i < 100 && created == Outcome::kUnavailable; ++i) {
      created = wait_for(create_tree(founder, memory, config.geometry));
    }
    // A straggler of an earlier attempt may have made it.
    EXPECT_TRUE(created == Outcome::kOk || created == Outcome::kExists);
    run_for(config.local.straggler_lifetime);
  }

  // A client that has joined.
  struct Member {
    std::unique_ptr<remote::LocalMemory> memory;
    std::unique_ptr<Client> client;
    bool dead = false;

    Client* operator->() const { return client.get(); }
    void kill() {
      dead = true;
      memory->kill();
    }
  };
  Member& add_client() { return add_client(config_.client); }
  Member& add_client(const ClientConfig& client) {
    auto& m = *members.emplace_back(std::make_unique<Member>());
    m.memory = std::make_unique<remote::LocalMemory>(scheduler, fabric);
    const Rng rng = Rng(config_.local.seed).fork("client").fork(members.size());
    m.client = std::make_unique<Client>(*m.memory, memory, client, rng);
    EXPECT_EQ(wait_for(m.client->join()), Outcome::kOk);
    return m;
  }

  // Words of all lock tables that are not free.
  std::size_t locks_held() {
    std::size_t held = 0;
    for (const auto& node : memory) {
      const auto table = fabric.region_bytes(node.locks);
      for (std::size_t i = 0; i < table.size(); i += 8) held += load_le<std::uint64_t>(table.data() + i) != 0;
    }
    return held;
  }

  WorldConfig config_;
  std::vector<MemoryNode> memory;
  std::vector<std::unique_ptr<Member>> members;
};

}  // namespace sluice::sherman
