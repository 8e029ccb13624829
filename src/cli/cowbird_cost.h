// What `sluice bench cowbird` measures: what remote reads cost the thread that wants them, and where that goes. How many it gets: cowbird_probe.h.
//
// Cost:       100 reads (the depth) are issued and, once they are all done, completed, as in Figure 2 of the paper: "when the poll is called, the
//             result is immediately available". Waiting in between is not the application's work, and not timed. A block, the unit of which
//             medians are, is 1,000 reads. Cowbird's blocks and verbs' take turns, since a machine's clock changes. Beside it, as "machine": how
//             long a line takes from core to core, before and after, since a virtual machine's cores move, too.
// Breakdown:  Cowbird's by the time-stamp counter between the parts, less what reading it costs (0: too little to tell); verbs' by calls of one READ and of many, and
//             by polls that find something and that do not.
// Errors:     failed operations, wrong bytes.
// Threads:    the caller's.
// Source:     Cowbird, Figures 1 and 2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/verbs_pool.h"
#include "rack/clients/cowbird_bench.h"

namespace sluice::cli {

// One line of a result.
struct CowbirdRow {
  std::string part;  // cost, machine, breakdown, probe
  std::string way;
  std::uint32_t bytes = 8;
  std::size_t depth = 0;
  std::vector<std::pair<std::string, double>> values{};

  double value(std::string_view name) const;  // NaN: none
};
using CowbirdRows = std::vector<CowbirdRow>;

struct CowbirdCostPlan {
  std::uint32_t bytes = 8;
  std::size_t depth = 100;
  std::uint64_t reads = 10'000'000;                 // of Cowbird's by collect(); verbs do one for fifty
  std::function<void(double share)> on_progress{};  // now and then between blocks
};
// `instance` of the world is this one's alone.
Result<CowbirdRows> measure_cowbird_cost(rack::CowbirdWorld& world, std::size_t instance, VerbsPool& verbs,
                                         const CowbirdCostPlan& plan);
Result<CowbirdRows> measure_cowbird_breakdown(rack::CowbirdWorld& world, std::size_t instance, VerbsPool& verbs,
                                              const CowbirdCostPlan& plan);

}  // namespace sluice::cli
