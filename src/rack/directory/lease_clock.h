// Lease clock: the time that leases are measured in. It stands still while nobody looks at it.
//
// Why:      a switch that was stopped for a while (a debugger, a machine that is moved or frozen) has heard nobody renew. Were that time counted,
//           every node of the rack would be gone when it goes on, and every memory node fenced.
// Threads:  any.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

#include "base/time.h"

namespace sluice::rack {

class LeaseClock {
 public:
  // Between two looks, it counts as an absence. The directory's server looks every 100 ms.
  static constexpr Duration kAbsence = Duration::seconds(1);

  explicit LeaseClock(std::function<Time()> clock) : clock_(std::move(clock)), looked_(clock_()) {}

  Time now() {
    const std::scoped_lock lock(mutex_);
    const Time now = clock_();
    if (now - looked_ > kAbsence) away_ = away_ + (now - looked_);
    looked_ = now;
    return now - away_;
  }

 private:
  std::function<Time()> clock_;
  std::mutex mutex_;
  Time looked_;
  Duration away_;
};

}  // namespace sluice::rack
