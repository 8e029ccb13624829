// Volumes: equal stretches of memory on up to three nodes that mirror each other, and which of the mirrors count now.
//
// Invariant:  a node's address in replica j is its pointer's address - base of the volume + base of replica j. The base of the volume is
//             a name: where replica 0 was when the store began. Replicas come and go, pointers stay what they are.
//             The primary lives, and stays the primary until it is lost: a replica that comes back is never made primary over it.
// Limits:     kMaxVolumes volumes, kMaxReplicas replicas, addresses below 2^48.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "clover/layout.h"
#include "remote/remote_memory.h"

namespace sluice::clover {

// Memory that a node offers.
struct Region {
  remote::RemoteAddress base;
  std::uint64_t length = 0;
};

// A node's memory as the store knows it.
struct Home {
  Region region;
  // Which memory: another number when what it held is gone. 0: never.
  std::uint64_t life = 0;
  // Of the node, which stays when its number does not; empty: nobody has said.
  std::string name{};
};

struct Volume {
  std::array<remote::RemoteAddress, kMaxReplicas> replicas{};
  std::uint8_t count = 0;  // of replicas
  std::uint8_t live = 0;  // bit j: replica j counts. None does: what the volume held is lost, and it takes nothing more
  std::uint8_t first = 0;  // the primary; means nothing when none lives
  // Bit j: what replica j held is gone for good, and the next view leaves it out: nothing that is under way to it takes effect.
  std::uint8_t dead = 0;
  std::uint64_t length = 0;
  std::uint64_t base = 0;  // of pointers

  bool is_live(std::size_t j) const { return (live >> j & 1) != 0; }
  bool is_dead(std::size_t j) const { return (dead >> j & 1) != 0; }
  // The replica whose next words decide, or `count` when all are lost.
  std::size_t primary() const { return is_live(first) ? first : count; }
  bool is_lost() const { return primary() == count; }
  bool mirrored() const { return (live & (live - 1)) != 0; }
  remote::RemoteAddress locate(NodePointer node, std::size_t j) const { return replicas[j] + (node.address() - base); }
};

// One volume a region: the region is cut into `replication` stretches, and stretch j of region i mirrors volume i - j, so that
// every node is primary for an equal share. Fails when regions are too few, too many or out of reach of a pointer.
Result<std::vector<Volume>> spread(std::span<const Region> regions, std::uint32_t replication);

}  // namespace sluice::clover
