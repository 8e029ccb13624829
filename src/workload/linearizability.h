// Judges a history: is there an order of its operations that respects real time and in which every answer is right?
//
// What is checked, each key on its own (linearizability is local):
//   Values      gets, puts and erases as a register whose written values are distinct, absence being what erases write: exactly, in
//               O(n log n), 10^6 operations in about a second. Erase and insert count as writes whatever was there before.
//   Conditions  besides, that insert and erase found what they say they found (an erase that is ok removed something, two
//               inserts in a row are not both ok): exactly, for keys that have such operations, by a sweep that follows all
//               choices, up to `search_limit` configurations; a key that needs more counts as undecided on this point.
// Unknown     outcomes: the operation may have taken effect at any time after its invocation, or never.
// Keys begin absent: a history must begin with the load.
// Source:     Gibbons and Korach, "Testing shared memories", SIAM J. Comput. 1997 (zones of a register with distinct values); both sweeps
//             are argued in register_sweep.cpp and register_conditions.cpp and tested against brute force and against the search of
//             Wing and Gong (1993) with the memory of Lowe (2017).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workload/history.h"

namespace sluice::workload {

struct Violation {
  Key key = 0;
  std::string what;
  std::vector<Event> events;  // that contradict each other, or the first that cannot be placed
};

struct Verdict {
  std::vector<Violation> violations;  // of each key the first found
  std::uint64_t keys = 0;
  std::uint64_t operations = 0;
  std::uint64_t undecided = 0;  // keys whose conditions could not be searched in time

  // No violation was found; of undecided keys one may have been missed.
  bool linearizable() const { return violations.empty(); }
  bool proven() const { return linearizable() && undecided == 0; }
  // The first ten violations with their operations, one a line, how many more there are, and how many keys are undecided.
  std::string explain() const;
};

struct CheckOptions {
  bool conditions = true;
  std::uint64_t search_limit = 1'000'000;  // configurations a key
};

Verdict check_linearizable(std::span<const Event> history, const CheckOptions& options = {});

}  // namespace sluice::workload
