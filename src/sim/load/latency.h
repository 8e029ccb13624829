// What experiments report of latencies.
//
// Units:      microseconds of a histogram of nanoseconds. Not a number: nothing was measured, so that no promise can be kept by it.
// Threads:    any.
#pragma once

#include <limits>

#include "base/histogram.h"

namespace sluice::sim {

inline double quantile_us(const Histogram& latency_ns, double quantile) {
  if (latency_ns.count() == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(latency_ns.at_quantile(quantile)) / 1e3;
}

}  // namespace sluice::sim
