// EDM load: Poisson messages on a cluster of EDM nodes, or of one of its rivals; EDM Figure 8.
//
// Metrics:  published     mean slowdown as the published simulation counts it (edm_cluster.h, edm_rivals.h); reads count twice, as two rows
//           slowdown      mean of each message's time over its time alone with the same protocol (EDM: a scheduler that takes no time)
//           p99           of the same
//           common        mean of each message's time over one ideal for all: its bytes straight through the switch, a read's after its request
//           wire         mean of each message's time over that of its bytes on one link, whatever the latencies
//           took_ns       mean of the messages' times
// EDM alone:
//           wait_ns       mean, from when the scheduler knows of a message to its first grant
//           batched_percent  messages that have asked with others, as one mega-message
//           displaced_ns  the most by which grants and requests held up a chunk on its way down
// Rivals alone:
//           dropped, pauses  packets; pauses of a node
//           queue_ns         the longest queue of data in front of a node's link
// As published: `published` and `took_ns` of what is over when the published simulation ends, and
//           over_percent     how much of all rows that is
// Source:   EDM §4.3.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/edm/edm_cluster.h"
#include "sim/edm/edm_rivals.h"
#include "sim/world/fields.h"

namespace sluice::sim {

struct EdmWorkload {
  ClusterSettings cluster;
  RivalSettings rival;
  bool is_rival = false;                // otherwise it is EDM
  bool as_published = false;            // by the published simulation's rules (rival_published.h)
  std::optional<Duration> propagation;  // instead of the hardware's
  TraceSpec trace;
  std::uint64_t skip = 0;  // of so many messages at the beginning, and as many at the end, nothing is counted

  void read(Fields& fields);
  // Rows from the first that counts to the last.
  std::size_t first(const std::vector<TraceRow>& rows) const {
    return std::min<std::size_t>(skip, (rows.size() - 1) / 2);
  }
  std::size_t end(const std::vector<TraceRow>& rows) const { return rows.size() - first(rows); }

 private:
  void read_rival(Fields& fields);
};

struct EdmResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t chunks = 0;  // of a rival: packets
  std::uint64_t trace_hash = 0;
};

EdmResult run_edm_load(const EdmHardware& hardware, const EdmWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
