// Order load: how often answers leave a server in another order than their requests reached it, as a switch on the way sees it.
//
// Life:       requests at a fixed rate, spread over connections in turn -> the switch numbers requests and looks up the number of each answer
//             -> a gap is an answer's number less that of the answer before: 1 when nothing was overtaken.
// Source:     SwordBox §3.1, Figure 2.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/time.h"
#include "sim/world/fields.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

struct OrderWorkload {
  std::uint64_t queue_pairs = 32;
  std::uint64_t addresses = 1024;
  std::uint64_t theta_thousandths = 990;
  std::uint64_t bytes = 64;
  Duration interval = Duration::microseconds(1);
  std::uint64_t requests = 100'000;
  std::uint64_t gap = 1;  // the one asked for

  void read(Fields& fields);
};

struct OrderResult {
  std::map<std::int64_t, std::uint64_t> gaps;  // how many answers came with each
  std::uint64_t answers = 0;
  std::uint64_t events = 0;
  std::uint64_t packets = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;  // not empty: the figures are not to be trusted

  // Of answers with a gap of this size, forwards or backwards.
  double share_of(std::int64_t gap) const;
};

OrderResult run_order_load(const Hardware& hardware, const OrderWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
