// The clock of the real-time world: the only place where it is read.
//
// Units:    Time since the clock was made, in picoseconds as everywhere.
// Limits:   kLongest; then the process says so and aborts, because deadlines would pass the end of Time (docs/operate.md).
// Source:   CLOCK_BOOTTIME, which goes on while the machine is suspended, as leases at other machines do (docs/design/clover.md, A3). A virtual machine
//           that is paused from outside sees no time pass. Through the vDSO: 24 ns a read here, the bare TSC 10 ns. A loop reads it twice a turn
//           and once a port; a turn under load handles a burst, so the difference is a few ns an operation: not worth a calibration of our own.
#pragma once

#include <ctime>

#include "base/check.h"
#include "base/time.h"

namespace sluice::nic {

class Clock {
 public:
  static constexpr Duration kLongest = Duration::seconds(std::int64_t{106} * 24 * 60 * 60);

  // `age`: as if made so long ago, for tests.
  explicit Clock(Duration age = {}) : start_ns_(read_ns() - age.nanoseconds()) {}
  Time now() const {
    const std::int64_t ns = read_ns() - start_ns_;
    if (ns >= kLongest.nanoseconds()) [[unlikely]]
      end();
    return Time::at(Duration::nanoseconds(ns));
  }

 private:
  static std::int64_t read_ns() {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  [[noreturn]] [[gnu::cold]] static void end() {
    check_failed("a process runs for at most 106 days, then its clock ends: start it again before", __FILE__, __LINE__);
  }
  std::int64_t start_ns_;
};

}  // namespace sluice::nic
