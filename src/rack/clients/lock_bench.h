// Lock bench: many clients, each with a connection of its own, contend for locks in the memory of a memory node: Sherman's way.
//
// A turn:     CAS takes the lock, again and again until it does; the record behind it is read, changed, and written back together with the
//             unlock (a WRITE or a CAS): both are posted before either is awaited.
// Invariant:  the records count the turns: at the end their sum is the number of turns, or two held one lock at once.
// Tickets:    instead, a turn is one FAA on the word. Whose outcome is not known goes on; at the end each value must have been handed out
//             once, and the word must count those that are known and, once at most, those that are not.
// Threads:    one.
// Source:     SwordBox §4.4.1 and figure 10; Sherman (SIGMOD'22) §4.3 for the combined unlock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/histogram.h"
#include "base/result.h"
#include "base/time.h"

namespace sluice::rack {

struct LockBenchConfig {
  std::string directory;  // the run directory's path
  std::string name;
  std::uint32_t clients = 64;
  std::uint32_t locks = 1;
  bool release_by_write = true;  // else by CAS
  bool tickets = false;          // FAAs instead of locks
  Duration duration = Duration::seconds(3);
  std::uint64_t seed = 1;
  std::function<bool()> interrupted;  // asked now and then; yes ends the run before its time
};

struct LockBenchResult {
  bool whole = true;  // not interrupted
  std::uint64_t turns = 0;
  std::uint64_t swaps = 0;         // CASes that tried to take a lock
  std::uint64_t swaps_failed = 0;  // … of which found it taken
  std::uint64_t counted = 0;       // by the records: must be `turns`; tickets: at most `unknown` more
  std::uint64_t unknown = 0;       // tickets whose outcome nobody knows
  std::uint64_t reconnects = 0;
  double seconds = 0;
  std::uint64_t wire_frames = 0;
  Histogram turn_ns;

  bool sound() const { return counted >= turns && counted <= turns + unknown; }
};

Result<LockBenchResult> bench_locks(const LockBenchConfig& config);

}  // namespace sluice::rack
