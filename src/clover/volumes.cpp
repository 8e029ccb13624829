#include "clover/volumes.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::clover {

Result<std::vector<Volume>> spread(std::span<const Region> regions, std::uint32_t replication) {
  if (replication < 1 || replication > kMaxReplicas) {
    return fail(fmt::format("replication {} is not possible: 1 to {}", replication, kMaxReplicas));
  }
  if (regions.size() > kMaxVolumes) return fail(fmt::format("{} regions: at most {}", regions.size(), kMaxVolumes));
  std::vector<remote::NodeId> nodes;
  std::uint64_t shortest = regions.empty() ? 0 : regions[0].length;
  for (const auto& region : regions) {
    if (region.length > kMaxAddress || region.base.address > kMaxAddress - region.length) {
      return fail(fmt::format("region at {:#x} of {} bytes: addresses must stay below 2^48", region.base.address,
                              region.length));
    }
    if (region.base.address % 64 != 0) return fail(fmt::format("region at {:#x}: not 64-aligned", region.base.address));
    shortest = std::min(shortest, region.length);
    nodes.push_back(region.base.node);
  }
  std::sort(nodes.begin(), nodes.end());
  const bool repeated = std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end();
  if (repeated && replication > 1) return fail("replicas need regions on different nodes, one each");
  if (regions.size() < replication) {
    return fail(fmt::format("replication {} needs as many memory nodes; there are {}", replication, regions.size()));
  }
  const std::size_t n = regions.size();
  std::vector<Volume> volumes(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t all = replication == 1 ? regions[i].length : shortest;
    const std::uint64_t stretch = all / replication / 64 * 64;
    auto& volume = volumes[i];
    volume.count = static_cast<std::uint8_t>(replication);
    volume.live = static_cast<std::uint8_t>((1u << replication) - 1);
    volume.length = stretch;
    for (std::size_t j = 0; j < replication; ++j) volume.replicas[j] = regions[(i + j) % n].base + j * stretch;
    volume.base = volume.replicas[0].address;
  }
  return volumes;
}

}  // namespace sluice::clover
