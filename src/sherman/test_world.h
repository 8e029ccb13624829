// A whole Sherman tree in one process, for its tests: memory nodes and clients over the local backend.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
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
      created = wait_for(create_tree(founder, memory, config.geometry, {}, config.client.flight));
    }
    // A straggler of an earlier attempt may have made it.
    EXPECT_TRUE(created == Outcome::kOk || created == Outcome::kExists);
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

  void stop_node(std::uint32_t number) { fabric.stop_node(memory[number].heap.node); }
  // What it has is what it was, under other keys.
  void resume_node(std::uint32_t number) {
    MemoryNode& node = memory[number];
    const auto heap = fabric.resume_node(node.heap);
    node.locks.key = remote::RegionKey(node.locks.key.value + heap.key.value - node.heap.key.value);
    node.heap = heap;
  }
  // It has lost everything.
  void renew_node(std::uint32_t number) {
    MemoryNode& node = memory[number];
    fabric.kill_node(node.heap.node);
    fabric.restart_node(node.heap.node);
    node.heap = fabric.add_region(node.heap.node, node.heap.address, config_.node_memory);
    node.locks = fabric.add_region(node.heap.node, node.locks.address, std::size_t{8} * config_.geometry.locks);
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

  // What the tree leads to, from inside the memory nodes, while nothing is under way.
  struct Reached {
    std::set<std::uint64_t> nodes;
    std::set<std::uint64_t> blocks;
  };
  Reached reached() {
    Reached all;
    const auto bytes = [this](NodePointer p, std::size_t size) {
      return fabric.region_bytes(memory[p.node()].heap).subspan(p.offset(), size);
    };
    const auto root = Root::of(load_le<std::uint64_t>(bytes({}, 4096).data() + kRootOffset));
    for (NodePointer first = root.node; first;) {
      NodePointer below;
      for (NodePointer node = first; node;) {
        const MutableBytes image = bytes(node, config_.geometry.node_bytes);
        const NodeHeader header = parse_header(image);
        all.nodes.insert(node.raw);
        if (node == first) below = header.leftmost;
        for (std::uint32_t i = 0; header.level == 0 && i < config_.geometry.leaf_slots(); ++i) {
          Entry entry;
          EXPECT_TRUE(Leaf(image, config_.geometry).entry(i, entry));
          if (entry.used && entry.far) all.blocks.insert(far_value(entry).block.raw);
        }
        node = header.sibling;
      }
      first = below;
    }
    return all;
  }

  // Chunks whose owners have left, and which nobody has taken over.
  std::size_t left_behind() {
    const MemoryMap map(memory, config_.geometry);
    std::size_t found = 0;
    for (std::uint32_t node = 0; node < map.nodes(); ++node) {
      for (std::uint32_t chunk = 0; chunk < map.chunks(node); ++chunk) {
        const ChunkOwner owner{load_le<std::uint64_t>(fabric.region_bytes(memory[node].heap).data() +
                                                      (kSuperblockBytes + std::uint64_t{8} * chunk))};
        found += owner.raw != 0 && owner.client() == kNobody;
      }
    }
    return found;
  }

  // Whether a living client has nodes in hand, or does not know whether the tree leads to them.
  bool has_unsettled() const {
    const auto is_unsettled = [](Space::Use use) { return use == Space::Use::kDoubtful || use == Space::Use::kInHand; };
    return std::ranges::any_of(members, [&](const auto& m) {
      return !m->dead && std::ranges::any_of(m->client->space().chunks(), [&](const auto& chunk) {
        return std::ranges::any_of(chunk.second.uses, is_unsettled);
      });
    });
  }

  // Every piece of every chunk that was ever claimed belongs to one living client, which knows it to be free if and only if the tree does not lead to it.
  // Audits all the living first, once more while pieces are unsettled: an audit that finds a separator to be missing has it added meanwhile, and where leases
  // run out that may have an unknown outcome. Then one reads all there is, which finishes what stands torn under locks that nobody wants any more. The dead
  // have been recovered.
  void expect_no_memory_lost() {
    const Duration all_over = config_.client.lease + config_.client.flight;
    run_for(all_over);
    for (int round = 0; round == 0 || (round < 10 && has_unsettled()); ++round) {
      for (const auto& m : members) {
        Outcome audited = m->dead ? Outcome::kOk : Outcome::kUnavailable;
        for (int i = 0; i < 50 && audited == Outcome::kUnavailable; ++i) audited = wait_for(m->client->audit());
        EXPECT_EQ(audited, Outcome::kOk);
      }
      run_for(all_over);
      struct : ScanSink {
        void on_pair(Key, ByteView) override {}
      } ignored;
      const auto living = std::ranges::find(members, false, [](const auto& m) { return m->dead; });
      EXPECT_EQ(wait_for((*living)->client->scan(0, ~std::uint32_t{0}, ignored)).outcome, Outcome::kOk);
    }
    Reached all = reached();
    const MemoryMap map(memory, config_.geometry);
    all.nodes.erase(map.start_of_chunk(0, 0).raw);  // nobody's
    std::set<std::uint64_t> chunks;
    const auto compare = [&](const Space& space, std::set<std::uint64_t>& tree_has) {
      std::size_t free = 0;
      for (const auto& [start, chunk] : space.chunks()) {
        EXPECT_TRUE(chunks.insert(start).second) << "two have the chunk at " << start;
        free += static_cast<std::size_t>(std::ranges::count(chunk.uses, Space::Use::kFree));
        for (std::size_t i = 0; i < chunk.uses.size(); ++i) {
          const bool reached = tree_has.erase(space.piece(chunk, i).raw) != 0;
          EXPECT_EQ(chunk.uses[i], reached ? Space::Use::kPlaced : Space::Use::kFree)
              << "piece " << i << " of the chunk at " << start << ", of " << space.piece_bytes() << " bytes";
        }
      }
      EXPECT_EQ(free, space.to_give_out()) << "of " << space.piece_bytes() << " bytes";
    };
    for (const auto& m : members) {
      if (m->dead) continue;
      compare(m->client->space(), all.nodes);
      for (const auto& [bytes, space] : m->client->block_spaces()) compare(space, all.blocks);
    }
    EXPECT_EQ(all.nodes.size(), 0u) << "nodes of nobody";
    EXPECT_EQ(all.blocks.size(), 0u) << "blocks of nobody";
    std::size_t claimed = 0;
    for (std::uint32_t node = 0; node < map.nodes(); ++node) {
      for (std::uint32_t chunk = 0; chunk < map.chunks(node); ++chunk) {
        const auto owner =
            fabric.region_bytes(memory[node].heap).data() + (kSuperblockBytes + std::uint64_t{8} * chunk);
        claimed += load_le<std::uint64_t>(owner) != 0;
      }
    }
    EXPECT_EQ(claimed, chunks.size() + 1) << "chunks of nobody";
  }

  WorldConfig config_;
  std::vector<MemoryNode> memory;
  std::vector<std::unique_ptr<Member>> members;
};

}  // namespace sluice::sherman
