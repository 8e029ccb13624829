// Volumes: equal stretches of memory on up to three nodes that mirror each other, and which of the mirrors count now.
//
// Invariant:  a node's address in replica j is its pointer's address - base of replica 0 + base of replica j.
//             The primary is the first replica that lives; once a replica is out of the view, it is out for ever.
// Limits:     kMaxVolumes volumes, kMaxReplicas replicas, addresses below 2^48.
#pragma once

#include <array>
#include <cstdint>
#include <span>
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

struct Volume {
  std::array<remote::RemoteAddress, kMaxReplicas> replicas{};
  std::uint8_t count = 0;  // of replicas
  std::uint8_t live = 0;   // bit j: replica j counts
  std::uint64_t length = 0;

  bool is_live(std::size_t j) const { return (live >> j & 1) != 0; }
  // The first live replica, or `count` when all are lost.
  std::size_t primary() const {
    for (std::size_t j = 0; j < count; ++j) {
      if (is_live(j)) return j;
    }
    return count;
  }
  bool mirrored() const { return (live & (live - 1)) != 0; }
  remote::RemoteAddress locate(NodePointer node, std::size_t j) const {
    return replicas[j] + (node.address() - replicas[0].address);
  }
};

// One volume a region: the region is cut into `replication` stretches, and stretch j of region i mirrors volume i - j, so that
// every node is primary for an equal share. Fails when regions are too few, too many or out of reach of a pointer.
Result<std::vector<Volume>> spread(std::span<const Region> regions, std::uint32_t replication);

}  // namespace sluice::clover
