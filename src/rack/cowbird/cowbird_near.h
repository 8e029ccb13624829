// Cowbird near: spot engines beside the pool, in a memory node's process, for applications of other machines.
//
// Life:       set_nodes() as often as the directory changes -> each block that a host offers this node (cowbird_away.h) is connected to, and has
//             engines as long as the connection lasts; the next one has new engines, which go on from what has been published -> a block that is
//             offered no more is let go of.
// Pool:       this node's memory is read and written on the spot; that of other nodes over connections.
// Tenants:    a host reaches what its tenant may use of this node, and nodes that are shared by all; the rack's own hosts reach all that is not
//             a tenant's. All else is denied: connections between memory nodes are the rack's.
// Errors:     of a block: its own. Beyond Config::most_bytes of rings, blocks wait for others to go.
// Threads:    the memory node's.
// Source:     Cowbird §6.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "cowbird/engine.h"
#include "nic/nic.h"
#include "rack/cowbird/cowbird_away.h"
#include "rack/directory/tenants.h"
#include "rack/endpoint/memory_node.h"
#include "rack/endpoint/remote_nodes.h"

namespace sluice::rack {

class CowbirdNear final : public nic::Pollable {
 public:
  struct Config {
    cowbird::EngineConfig engine{};
    std::uint64_t most_bytes = std::uint64_t{1} << 30;  // of the rings that are served at once
  };
  struct Counters {
    std::uint64_t served = 0;   // times that a block was connected to
    std::uint64_t refused = 0;  // blocks that had to wait for room
    std::uint64_t broken = 0;   // channels that made no sense
  };

  // `self`, `name`: the node's own.
  CowbirdNear(nic::Connector& connector, MemoryNode& memory, remote::NodeId self, std::string name,
              const Config& config);
  ~CowbirdNear() override;
  CowbirdNear(const CowbirdNear&) = delete;
  CowbirdNear& operator=(const CowbirdNear&) = delete;

  // After the memory node has followed it.
  void set_nodes(Time now, const Snapshot& snapshot);
  // After the memory node has been fenced: its keys are others, and others may have been served for us.
  void fence(Time now);
  // What is under way is finished and published, nothing else begun; done when blocks() is 0.
  void stop() { let_go({}); }

  std::size_t blocks() const { return blocks_.size(); }
  // Of them, those that are connected.
  std::size_t serving() const;
  const Counters& counters() const { return counters_; }
  // Of all engines, those that have ended included.
  cowbird::EngineCounters engines() const;

  std::size_t poll(Time now) override;
  Time next_deadline() const override;

 private:
  class Pool;
  class Block;
  // Of a block: the host's number and incarnation, the offer's serial.
  using Id = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;

  Pool& pool_of(const std::string& tenant);
  void map_pools();
  void take(const Id& id, const NodeRecord& host, const CowbirdOffer& offer);
  // Of all blocks that are not among these.
  void let_go(const std::set<Id>& offered);
  void begin_what_fits(Time now);

  nic::Connector& connector_;
  MemoryNode& memory_;
  remote::NodeId self_;
  std::string name_;
  Config config_;
  std::unique_ptr<remote::Scheduler> scheduler_ = std::make_unique<remote::Scheduler>();
  nic::SchedulerPoll coroutines_{*scheduler_};
  RemoteNodes others_;
  ClientsByAddress clients_;
  Snapshot nodes_;
  std::map<std::string, std::unique_ptr<Pool>> pools_;  // by tenant; nobody: the rack's own
  std::map<Id, std::unique_ptr<Block>> blocks_;
  Counters counters_;
  cowbird::EngineCounters engines_gone_;
};

}  // namespace sluice::rack
