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
  // Stopped for longer than its lease, it has the memory that it had, under another key.
  void stop_node(std::uint32_t node) { fabric.stop_node(memory[node].heap.node); }
  void resume_node(std::uint32_t node) { memory[node].heap = fabric.resume_node(memory[node].heap); }
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
  void set_word(Place place, std::uint32_t replica, std::uint64_t value) {
    const auto at = map.word_at(place, replica);
    const auto& node = memory[at.node.value];
    store_le(fabric.region_bytes(node.heap).data() + (at.address - node.heap.address), value);
  }
  bool has_object(Word name, std::uint32_t replica) {
    const auto at = map.at(name.object(), replica);
    const auto& node = memory[at.node.value];
    const ByteView bytes = fabric.region_bytes(node.heap).subspan(at.address - node.heap.address, name.units() * kUnit);
    Object object;
    return parse_object(bytes, name.object(), object);
  }
  Key key_of(Word name) { return object_word(name.object()); }
  // Of an object or a mark.
  std::uint64_t object_word(Place place) {
    const auto at = map.at(place, 0);
    const auto& node = memory[at.node.value];
    return load_le<std::uint64_t>(fabric.region_bytes(node.heap).data() + (at.address - node.heap.address));
  }
  // Who is splitting a table, by number; 0: nobody, as far as the memory nodes say that live.
  std::uint32_t splitter() {
    std::vector<Table> tables;
    for (std::uint64_t i = 0; i < config_.geometry.tables; ++i) tables.push_back({0, i});
    for (std::size_t t = 0; t < tables.size(); ++t) {
      const Table table = tables[t];
      if (!map.may_split(table)) continue;
      const Place at = map.header(table);
      std::uint32_t alive = 0;
      while (alive < map.word_replicas(at) && !fabric.alive(map.word_at(at, alive).node)) ++alive;
      if (alive == map.word_replicas(at)) continue;
      const Owner header{word(at, alive)};
      if (header.units() == kTableClaimed) return header.client();
      if (header.units() == kTableSplit) tables.insert(tables.end(), {table.half(0), table.half(1)});
    }
    return 0;
  }
  // What the whole index holds: tables that are split are not of it any more.
  struct Index {
    std::set<std::uint64_t> objects;  // places, of live and of void entries
    std::uint64_t live = 0;
    std::vector<Key> keys;  // of live entries
    std::uint64_t tentative = 0;
    std::uint64_t differing = 0;  // slots whose replicas differ
    std::uint64_t tables = 0;     // that are not split,
    std::uint64_t splitting = 0;  // and of these, that somebody has begun to split
    std::uint64_t thawed = 0;     // slots of split tables that are not frozen
    std::uint64_t lacking = 0;    // objects that some replica which is whole has not
  };
  Index index() {
    Index all;
    std::vector<Table> tables;
    for (std::uint64_t i = 0; i < config_.geometry.tables; ++i) tables.push_back({0, i});
    for (std::size_t t = 0; t < tables.size(); ++t) {
      const Table table = tables[t];
      bool split = false;
      if (map.may_split(table)) {
        const Place header = map.header(table);
        split = Owner{word(header, 0)}.units() == kTableSplit;
        all.splitting += !split && word(header, 0) != 0;
        for (std::uint32_t i = 1; i < map.word_replicas(header); ++i)
          all.differing += word(header, i) != word(header, 0);
      }
      if (split) tables.insert(tables.end(), {table.half(0), table.half(1)});
      all.tables += !split;
      for (std::uint64_t slot = 0; slot < map.table_bytes() / 8 * map.partitions(); ++slot) {
        const auto partition = static_cast<std::uint32_t>(slot % map.partitions());
        const Place place = map.slots(table, partition) + slot / map.partitions() * 8;
        const Word primary{word(place, 0)};
        for (std::uint32_t i = 1; i < map.word_replicas(place); ++i) all.differing += word(place, i) != primary.raw;
        all.thawed += split && !primary.frozen();
        if (split || primary.thaw().raw == 0) continue;
        all.live += primary.live();
        if (primary.live()) all.keys.push_back(key_of(primary));
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
  // Blocks by owner's number; 0: nobody's, never or not any more.
  std::map<std::uint32_t, std::uint32_t> owners() {
    std::map<std::uint32_t, std::uint32_t> blocks;
    for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
      for (std::uint32_t i = 0; i < map.blocks(); ++i) ++blocks[Owner{word(map.owner(partition, i), 0)}.client()];
    }
    return blocks;
  }

  // Blocks whose owners have left, and which nobody has taken over.
  std::size_t left_behind() {
    std::size_t found = 0;
    for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
      for (std::uint32_t i = 0; i < map.blocks(); ++i) {
        const Owner owner{word(map.owner(partition, i), 0)};
        found += owner.raw != 0 && owner.client() == kNobody;
      }
    }
    return found;
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
