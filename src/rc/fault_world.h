// A connection under faults against a model: random work of every kind over an impaired cable, each effect checked.
//
// What it checks:  every operation completes once and in order; READs and atomics return what the model says; SENDs arrive once, in
//                  order, whole; when a queue pair gives up, the responder has executed exactly some prefix of what was outstanding.
// Determinism:     all from one seed; `trace_hash` is equal for equal seeds.
// Source:          issue "The rack runs", correctness under fault.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rc/two_adapters.h"

namespace sluice::rc {

struct FaultOptions {
  std::uint64_t seed = 1;
  std::uint32_t rate_per_million = 10'000;  // of each of drop, duplicate, reorder and corrupt
  std::uint32_t operations = 5'000;
  std::uint32_t mtu = 1024;
  bool coalesce_acks = true;
  bool advertise_credits = false;
};

struct FaultResult {
  std::string failure;  // empty: all held
  std::uint64_t completed = 0;
  std::uint64_t unknown = 0;
  std::uint64_t reconnects = 0;
  std::uint64_t retransmits = 0;
  std::uint64_t trace_hash = 0;
};

FaultResult run_under_faults(const FaultOptions& options);

}  // namespace sluice::rc
