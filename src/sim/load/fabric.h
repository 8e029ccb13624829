// Fabric: machines around one switch, and tenants who reach their memory through RemoteMemory, over 1RMA or over RC: the same programs, links, switch and
// NIC latencies for both.
//
// Life:       add_machine() …, share() memory -> add_tenant() -> spawn coroutines at tenants -> loop().run_until(). kill() a machine at any time.
// A tenant:   over 1RMA a client library with windows of its own; over RC a queue pair to each of its targets, and a completion queue.
// Costs:      of the NIC, the links and the switch. What hosts spend is in neither; RC's doorbell is.
// Threads:    one owner.
// Limits:     RC: kDepth operations of a tenant to a machine are posted, more wait in line. A queue pair that has failed stays so.
// Source:     hardware.h; docs/onerma.md.
#pragma once

#include <memory>
#include <vector>

#include "onerma/congestion.h"
#include "onerma/node.h"
#include "onerma/remote_onerma.h"
#include "remote/remote_memory.h"
#include "sim/world/event_loop.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

class Tenant {
 public:
  virtual ~Tenant() = default;
  virtual remote::RemoteMemory& memory() = 0;
  remote::Scheduler& scheduler() { return scheduler_; }

 protected:
  remote::Scheduler scheduler_;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual EventLoop& loop() = 0;
  virtual std::size_t add_machine() = 0;
  // For all tenants that come later. The bytes stay. REQUIRES: once a machine.
  virtual void share(std::size_t machine, MutableBytes bytes) = 0;
  // Where tenants find it.
  virtual remote::RemoteAddress memory_of(std::size_t machine) const = 0;
  // Reaches the memory of `targets`. Its coroutines begin when the loop runs.
  virtual Tenant& add_tenant(std::size_t machine, const std::vector<std::size_t>& targets) = 0;
  virtual void kill(std::size_t machine) = 0;
  // 1RMA: a third party, at a machine of its own, changes the key of this machine's region again and again. Tenants have the next key before it
  // counts (announced), or ask for it when the one they use has been refused, and have it 10 us later.
  virtual void rekey(std::size_t machine, Duration every, bool announced) = 0;
  virtual std::uint64_t rekeys() const = 0;
  // Packets that the switch dropped for want of room.
  virtual std::uint64_t dropped() const = 0;
  // 1RMA: operations tried again. RC: packets.
  virtual std::uint64_t sent_again() const = 0;
  virtual std::uint64_t trace_hash() const = 0;
};

struct OnermaFabricOptions {
  onerma::RemoteOnerma::Parameters client{};
  onerma::Algorithm1Parameters algorithm{};
  onerma::NodeConfig node{};
};
std::unique_ptr<Fabric> make_onerma_fabric(const Hardware& hardware, const OnermaFabricOptions& options,
                                           std::uint64_t seed);

struct RcFabricOptions {
  std::uint8_t ack_timeout = 14;
};
// DCQCN is on where the hardware's switch marks.
std::unique_ptr<Fabric> make_rc_fabric(const Hardware& hardware, const RcFabricOptions& options, std::uint64_t seed);

}  // namespace sluice::sim
