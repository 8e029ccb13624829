// Cpu: the time of a machine's threads. Each polls, and works on one thing after the other; more threads than the machine runs at once take
// turns.
//
// Life:       finish_of(thread, from, cost) -> when work that could begin at `from` is done; the thread is busy until then.
// Slices:     of T threads on H hardware threads, those numbered w .. w + H - 1 (modulo T) run; w moves on by one each time_slice / H, so
//             that each thread runs for a time_slice at a stretch and all get the same.
// Speed:      work takes longer the more cores are busy (turbo, shared caches), and again longer on a core that two threads share.
// Threads:    one owner.
// Source:     hardware.h; docs/design/sim.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

class Cpu {
 public:
  // All threads of the machine poll from the start, but for `sleepers`, which come after them: these seldom run, so that they make nobody
  // slower, and who has slept goes before those who poll. REQUIRES: threads > 0.
  Cpu(const HostParameters& host, std::uint32_t threads, std::uint32_t sleepers = 0);

  std::uint32_t threads() const { return threads_; }  // that poll
  const HostParameters& host() const { return host_; }
  Time finish_of(std::uint32_t thread, Time from, Duration cost);
  Time busy_until(std::uint32_t thread) const { return busy_until_[thread]; }
  // What costs `one` where one core is busy and `all` where all are, for as many as these threads keep busy: in proportion.
  Duration with_cores(Duration one, Duration all) const;
  // What `cost` becomes on this machine as loaded as it is.
  Duration scaled(std::uint32_t thread, Duration cost) const;

 private:
  // From `at` on, the first time at which the thread runs, and how long it does then.
  Time next_run(std::uint32_t thread, Time at, Duration& left) const;

  HostParameters host_;
  std::uint32_t at_once_;  // hardware threads
  std::uint32_t threads_;
  std::vector<Time> busy_until_;
};

}  // namespace sluice::sim
