// What experiments report of latencies, and what they say where there are none.
//
// Units:      microseconds of a histogram of nanoseconds. Not a number: nothing was measured, so that no promise can be kept by it.
// Threads:    any.
#pragma once

#include <limits>
#include <string_view>

#include "base/histogram.h"

namespace sluice::sim {

// The problem of a load of which nothing can be told.
inline constexpr std::string_view kNothingEnded =
    "no operation ended in what is measured: make `measure` longer than an operation takes on this hardware";

inline double quantile_us(const Histogram& latency_ns, double quantile) {
  if (latency_ns.count() == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(latency_ns.at_quantile(quantile)) / 1e3;
}

}  // namespace sluice::sim
