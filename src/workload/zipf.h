// Draws ranks 0, 1, 2 … of which rank r comes with a probability proportional to 1/(r+1)^theta.
//
// Life:       build once (or share) -> draw(rng) any number of times, two or three integer operations each.
// Invariant:  integers only, while building too: the same table and the same draws on every machine and compiler.
// Units:      theta in thousandths: 990 is YCSB's 0.99.
// Limits:     the first 65,536 ranks are exact to 2^-30; beyond, runs of ranks that differ by less than 2^-16 share one weight.
//             A table takes 24 bytes a run: 1.5 MB and 2 ms for 65,536 items, 20 MB for 10^10.
// Source:     the distribution of Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), which
//             YCSB draws by an approximation in floating point; here by Walker's alias method (Vose 1991).
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace sluice::workload {

class Zipf {
 public:
  static constexpr std::uint32_t kYcsbTheta = 990;
  static constexpr std::uint32_t kMaxTheta = 5'000;

  // REQUIRES: 0 < items <= 2^40, theta <= kMaxTheta.
  Zipf(std::uint64_t items, std::uint32_t theta_thousandths);

  std::uint64_t draw(Rng& rng) const;
  std::uint64_t items() const { return items_; }

 private:
  struct Run {
    std::uint64_t first;      // rank
    std::uint64_t threshold;  // a draw below it keeps this run, any other takes the alias
    std::uint32_t length;
    std::uint32_t alias;
  };
  void cut_runs();
  void build_alias(std::vector<std::uint64_t> weights);

  std::uint64_t items_;
  std::vector<Run> runs_;
};

}  // namespace sluice::workload
