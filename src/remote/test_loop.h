// Turns coroutines and a local fabric in virtual time, for tests of data structures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "remote/local.h"

namespace sluice::remote {

class TestLoop {
 public:
  explicit TestLoop(const LocalOptions& options) : fabric(options) {}
  virtual ~TestLoop() = default;

  // One step of the fabric, all that follows from it, and a little time.
  void step() {
    scheduler.run(now);
    const Time others = run_others();
    const bool busy = fabric.pump(now);
    const Time next = std::min(scheduler.next_deadline(), others);
    const Time soon = now + Duration::nanoseconds(20);
    now = busy || next == Time::never() ? soon : std::max(soon, next);
    scheduler.run(now);
  }
  template <class Until>
  void run_until(Until until, std::uint64_t limit = 50'000'000) {
    for (std::uint64_t i = 0; !until(); ++i) {
      ASSERT_LT(i, limit) << "no end in sight";
      step();
    }
  }
  void run_for(Duration d) {
    const Time end = now + d;
    while (now < end) step();
  }
  template <class T>
  T wait_for(Task<T> task) {
    T result{};
    bool done = false;
    scheduler.spawn(keep(std::move(task), result, done));
    run_until([&] { return done; });
    return result;
  }

  // Schedulers beside this one. Returns when the next of them has something to do.
  virtual Time run_others() { return Time::never(); }

  Scheduler scheduler;
  LocalFabric fabric;
  Time now;

 private:
  template <class T>
  static Task<void> keep(Task<T> task, T& result, bool& done) {
    result = co_await std::move(task);
    done = true;
  }
};

}  // namespace sluice::remote
