// Search: racks, faults and workloads drawn from seeds, run with checkers on, and shrunk when one goes wrong.
//
// Life:       draw_case(seed) -> run_case() -> if it has a problem: simpler_cases(), of which one that still fails goes on.
// Invariant:  a seed is always the same case and the same run.
// Checkers:   those of check_clover_load().
// Threads:    none; each case may run in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/load/clover_load.h"

namespace sluice::sim {

struct SearchCase {
  std::uint64_t seed = 0;  // of the run
  std::uint64_t operations = 0;
  CloverWorkload workload{};
  std::string more{};  // what a file has set beyond the lines that are printed of all, a line each
};

SearchCase draw_case(std::uint64_t seed);
CloverResult run_case(const Hardware& hardware, const SearchCase& one);

// Each a little simpler in one respect, the greatest simplification first. Empty: nothing is left to leave out.
std::vector<SearchCase> simpler_cases(const SearchCase& one);
// The simplest case found that fails, none of whose simpler ones does, or where `tries` were used up.
SearchCase shrink(SearchCase failing, std::uint64_t tries, const std::function<bool(const SearchCase&)>& fails);

// One line a setting; a file of these lines is a case, and may have other settings of a Clover workload, which are then printed, too.
std::string to_string(const SearchCase& one);
Result<SearchCase> load_case(const std::string& path);

}  // namespace sluice::sim
