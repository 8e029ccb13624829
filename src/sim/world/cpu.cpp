#include "sim/world/cpu.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {
namespace {

__extension__ using Wide = __int128;

}  // namespace

Cpu::Cpu(const HostParameters& host, std::uint32_t threads, std::uint32_t sleepers)
    : host_(host),
      at_once_(static_cast<std::uint32_t>(host.cores * host.threads_per_core)),
      threads_(threads),
      busy_until_(threads + sleepers) {
  SLUICE_CHECK(threads > 0);
}

Duration Cpu::with_cores(Duration one, Duration all) const {
  const auto busy = static_cast<std::int64_t>(std::min<std::uint64_t>(threads(), host_.cores));
  const auto steps = static_cast<std::int64_t>(std::max<std::uint64_t>(host_.cores - 1, 1));
  return one + (all - one) * (busy - 1) / steps;
}

Duration Cpu::scaled(std::uint32_t thread, Duration cost) const {
  const std::uint64_t running = std::min<std::uint64_t>(threads(), at_once_);
  const std::uint64_t busy_cores = std::min(running, host_.cores);
  // Between one core and all: in proportion.
  const std::uint64_t more = host_.all_cores_percent - 100;
  const std::uint64_t steps = std::max<std::uint64_t>(host_.cores - 1, 1);
  std::uint64_t hundredths_of_percent = 10'000 + more * 100 * (busy_cores - 1) / steps;
  // Threads sit on cores in turn; where there are too many to fit, every place is shared.
  const bool shared =
      running > host_.cores && (threads() > at_once_ || thread >= host_.cores || thread < running - host_.cores);
  if (shared) hundredths_of_percent = hundredths_of_percent * host_.shared_core_percent / 100;
  return Duration::picoseconds(static_cast<std::int64_t>(Wide{cost.picoseconds()} * hundredths_of_percent / 10'000));
}

Time Cpu::next_run(std::uint32_t thread, Time at, Duration& left) const {
  const std::uint64_t all = threads_;
  if (all <= at_once_ || thread >= all) {
    left = Duration::max();
    return at;
  }
  const Duration step = host_.time_slice / static_cast<std::int64_t>(at_once_);
  const std::int64_t now = at.since_start() / step;
  // The window begins at thread `first`; this one is `ahead` places behind its start.
  const std::uint64_t first = static_cast<std::uint64_t>(now) % all;
  const std::uint64_t ahead = (thread + all - first) % all;
  const auto boundary = [&](std::uint64_t steps) { return Time::at(step * (now + static_cast<std::int64_t>(steps))); };
  if (ahead < at_once_) {
    left = boundary(ahead + 1) - at;
    return at;
  }
  left = host_.time_slice;
  return boundary(ahead - at_once_ + 1);
}

Time Cpu::finish_of(std::uint32_t thread, Time from, Duration cost) {
  Time at = std::max(from, busy_until_[thread]);
  Duration rest = scaled(thread, cost);
  for (;;) {
    Duration left;
    at = next_run(thread, at, left);
    if (rest <= left) break;
    rest = rest - left;
    at = at + left;
  }
  return busy_until_[thread] = at + rest;
}

}  // namespace sluice::sim
