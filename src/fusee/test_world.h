// A whole FUSEE store in one process, for its tests: memory nodes and clients over the local backend.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "fusee/client.h"
#include "remote/test_loop.h"

namespace sluice::fusee {

struct WorldConfig {
  remote::LocalOptions local{};
  std::uint32_t nodes = 3;
  std::size_t node_memory = 4u << 20;
  Geometry geometry{.replicas = 3, .groups = 64, .value_bytes = 8, .block_bytes = 4096};
  ClientConfig client{.cached_keys = 64,
                      .hold = Duration::microseconds(1500),
                      .flight = Duration::microseconds(300),
                      .suspect_after = Duration::microseconds(100),
                      .lease = Duration::microseconds(50)};
};

class World : public remote::TestLoop {
 public:
  explicit World(const WorldConfig& config) : remote::TestLoop(config.local), config_(config) {
    for (std::uint32_t i = 0; i < config.nodes; ++i) {
      const auto node = fabric.add_node();
      memory.push_back({fabric.add_region(node, 0x10000 * (i + 1), config.node_memory), config.node_memory});
    }
    map = MemoryMap(memory, config.geometry);
    set_check_context("seed " + std::to_string(config.local.seed));
    remote::LocalMemory founder(scheduler, fabric);
    Outcome created = Outcome::kUnavailable;
    for (int i = 0; i < 100 && created == Outcome::kUnavailable; ++i) {
      created = wait_for(create_store(founder, memory, config.geometry));
    }
    // A straggler of an earlier attempt may have made it.
    EXPECT_TRUE(created == Outcome::kOk || created == Outcome::kExists);
    run_for(config.local.straggler_lifetime);
  }

  // A client that has joined. One with a scheduler of its own is a process that at times does not get on at all, while what it has submitted does.
  struct Member {
    std::unique_ptr<remote::Scheduler> own;
    Time asleep_until;
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
  Member& add_client(const ClientConfig& client, bool own_scheduler = false) {
    auto& m = *members.emplace_back(std::make_unique<Member>());
    if (own_scheduler) {
      m.own = std::make_unique<remote::Scheduler>();
      m.own->run(now);
    }
    m.memory = std::make_unique<remote::LocalMemory>(scheduler_of(m), fabric);
    const Rng rng = Rng(config_.local.seed).fork("client").fork(members.size());
    m.client = std::make_unique<Client>(*m.memory, memory, client, rng);
    EXPECT_EQ(wait_for(m.client->join()), Outcome::kOk);
    return m;
  }
  remote::Scheduler& scheduler_of(Member& m) { return m.own ? *m.own : scheduler; }
  // So often, in steps, does each of those with a scheduler of their own fall asleep; 0: never.
  void let_sleep(std::uint32_t every, Duration longest) {
    sleeps_every_ = every;
    longest_sleep_ = longest;
    if (every == 0) {
      for (const auto& m : members) m->asleep_until = Time();
    }
  }

  void kill_node(std::uint32_t node) { fabric.kill_node(memory[node].heap.node); }
  // Started anew, with new memory; who is to know of it is told by the caller.
  void restart_node(std::uint32_t node) {
    const auto id = memory[node].heap.node;
    fabric.restart_node(id);
    memory[node].heap = fabric.add_region(id, 0x10000 * (node + 1), config_.node_memory);
  }
  // From now on the replicas are looked at that this client knows of, and that live.
  void follow(const Client& client) {
    map = client.map();
    for (std::uint32_t i = 0; i < memory.size(); ++i) {
      if (!fabric.alive(memory[i].heap.node) && map.can_leave(i)) map.leave(i);
    }
  }

  std::uint64_t word(Place place, std::uint32_t replica) {
    const auto at = map.word_at(place, replica);
    const auto& node = memory[at.node.value];
    return load_le<std::uint64_t>(fabric.region_bytes(node.heap).data() + (at.address - node.heap.address));
  }
  bool has_object(Word name, std::uint32_t replica) {
    const auto at = map.at(name.object(), replica);
    const auto& node = memory[at.node.value];
    const ByteView bytes = fabric.region_bytes(node.heap).subspan(at.address - node.heap.address, name.units() * kUnit);
    Object object;
    return parse_object(bytes, name.object(), object);
  }
  // What the whole index holds.
  struct Index {
    std::set<std::uint64_t> objects;  // places, of live and of void entries
    std::uint64_t live = 0;
    std::uint64_t tentative = 0;
    std::uint64_t differing = 0;  // slots whose replicas differ
    std::uint64_t lacking = 0;    // objects that some replica which is whole has not
  };
  Index index() {
    Index all;
    for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
      for (std::uint64_t slot = 0; slot < map.slots() / map.partitions(); ++slot) {
        const Place place = map.slot(partition, slot);
        const Word primary{word(place, 0)};
        for (std::uint32_t i = 1; i < map.word_replicas(place); ++i) all.differing += word(place, i) != primary.raw;
        if (primary.raw == 0) continue;
        all.live += primary.live();
        for (std::uint32_t i = 0; i < map.readable(primary.object()); ++i) all.lacking += !has_object(primary, i);
        all.tentative += primary.tentative();
        EXPECT_TRUE(all.objects.insert(primary.object().raw).second) << "an object in two slots";
      }
    }
    return all;
  }
  // Objects that the living take to be in some slot.
  std::set<std::uint64_t> placed() const {
    std::set<std::uint64_t> places;
    for (const auto& m : members) {
      if (m->dead) continue;
      for (const auto& block : (*m)->blocks()) {
        for (std::uint32_t i = 0; i < block->shape.objects; ++i) {
          if (block->items[i].use == Block::Use::kPlaced) places.insert(block->object(i).raw);
        }
      }
    }
    return places;
  }
  // Blocks by owner's number; 0: nobody's.
  std::map<std::uint32_t, std::uint32_t> owners() {
    std::map<std::uint32_t, std::uint32_t> blocks;
    for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
      for (std::uint32_t i = 0; i < map.blocks(); ++i) ++blocks[Owner{word(map.owner(partition, i), 0)}.client()];
    }
    return blocks;
  }

  Time run_others() override {
    Time next = Time::never();
    for (const auto& m : members) {
      if (!m->own || m->dead) continue;
      if (now >= m->asleep_until) m->own->run(now);
      next = std::min(next, std::max(m->own->next_deadline(), m->asleep_until));
      if (sleeps_every_ == 0 || sleep_rng_.below(sleeps_every_) != 0) continue;
      const auto most = static_cast<std::uint64_t>(longest_sleep_.picoseconds());
      m->asleep_until = now + Duration::picoseconds(static_cast<std::int64_t>(sleep_rng_.below(most)));
    }
    return next;
  }

  WorldConfig config_;
  Rng sleep_rng_ = Rng(config_.local.seed).fork("sleep");
  std::uint32_t sleeps_every_ = 0;
  Duration longest_sleep_;
  MemoryMap map;
  std::vector<MemoryNode> memory;
  std::vector<std::unique_ptr<Member>> members;
};

}  // namespace sluice::fusee
