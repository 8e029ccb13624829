// EDM load: Poisson messages on a cluster of EDM nodes; EDM Figure 8.
//
// Metrics:  published     mean slowdown as the published simulation counts it (edm_cluster.h); reads count twice, as two rows
//           slowdown      mean of each message's time over its time alone, with a scheduler that takes no time
//           p99           of the same
//           wait_ns       mean, from when the scheduler knows of a message to its first grant
//           displaced_ns  the most by which grants and requests held up a chunk on its way down
// Source:   EDM §4.3.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/edm_cluster.h"
#include "sim/fields.h"

namespace sluice::sim {

struct EdmWorkload {
  ClusterSettings cluster;
  TraceSpec trace;
  std::uint64_t skip = 0;  // of so many messages at the beginning, and as many at the end, nothing is counted

  void read(Fields& fields);
};

struct EdmResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t chunks = 0;
  std::uint64_t trace_hash = 0;
};

EdmResult run_edm_load(const EdmHardware& hardware, const EdmWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
