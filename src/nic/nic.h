// NIC in real time: adapters on ports, turned by poll loops. A NIC has one or more shards; each has a port, addresses and a thread of its own
// (or shares its caller's), all have one table of memory regions, so that a key is good at every shard.
//
// Sharding:   by connection. A queue pair lives on the shard where it was made; shards take disjoint ranges of QPNs and separate addresses,
//             so the switch does the demultiplexing and no two threads share a queue.
// Order:      a turn takes what has come in, lets time pass, and sends at its end what all pollables of the loop have asked for.
// Threads:    a shard belongs to the thread of its loop. Regions are added and removed by one thread at a time.
// Source:     ARCHITECTURE.md "Real time and virtual time".
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "nic/machine_poll.h"
#include "nic/poll_loop.h"
#include "port/port.h"
#include "rc/adapter.h"
#include "remote/scheduler.h"

namespace sluice::nic {

// READs and atomics that our NICs keep in flight on a connection, each way, if the peer can: hardware has 16, which alone would hold a
// connection through the switch below a million a second.
inline constexpr std::uint8_t kReadsInFlight = 64;

// One adapter on one port.
class Shard final : public MachinePoll<rc::Adapter> {
 public:
  // The port outlives the adapter.
  Shard(const rc::AdapterConfig& config, std::unique_ptr<port::Port> port)
      : MachinePoll(adapter_, std::move(port)), adapter_(config) {}

  rc::Adapter& adapter() { return adapter_; }

 private:
  rc::Adapter adapter_;
};

struct NicConfig {
  // mac, gids and seed hold for the first shard; the others' are given with their ports.
  rc::AdapterConfig adapter{};
  std::uint32_t queue_pairs_per_shard = 65'536;
};

struct ShardAddress {
  wire::MacAddress mac{};
  std::vector<wire::Gid> gids{};
};

class Nic {
 public:
  explicit Nic(const NicConfig& config);

  // REQUIRES: shards times queue_pairs_per_shard fit in 24 bits.
  Shard& add_shard(const ShardAddress& address, std::unique_ptr<port::Port> port);
  std::size_t shards() const { return shards_.size(); }
  Shard& shard(std::size_t i) { return *shards_[i]; }
  memory::RegionTable& regions() { return *regions_; }

 private:
  NicConfig config_;
  std::shared_ptr<memory::RegionTable> regions_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

// Runs a scheduler's coroutines as part of a loop. Add it behind what completes operations.
class SchedulerPoll final : public Pollable {
 public:
  explicit SchedulerPoll(remote::Scheduler& scheduler) : scheduler_(scheduler) {}
  std::size_t poll(Time now) override { return scheduler_.run(now, kLimit); }
  Time next_deadline() const override { return scheduler_.next_deadline(); }

 private:
  static constexpr std::size_t kLimit = 4096;  // resumptions a turn: frames must be served in between
  remote::Scheduler& scheduler_;
};

}  // namespace sluice::nic
