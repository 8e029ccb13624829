// Runs coroutines in one thread from a ready queue; the time comes from whoever calls run().
//
// Life:       spawn() or a completion puts a coroutine on the ready queue -> run(now) resumes each in turn, first in first out.
// Invariant:  coroutines are only ever resumed from run(), never from inside a completion (g++ 12 overflows the stack otherwise).
// Threads:    one owner.
// Source:     ARCHITECTURE.md "Contracts" (RemoteMemory).
#pragma once

#include <coroutine>
#include <cstddef>
#include <deque>
#include <queue>
#include <vector>

#include "base/time.h"
#include "remote/task.h"

namespace sluice::remote {

class Scheduler {
 public:
  Scheduler() = default;
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Starts a coroutine whose end nobody awaits. It begins at the next run(). An exception that leaves it aborts.
  void spawn(Task<void> task);

  // Puts a suspended coroutine on the ready queue.
  void post(std::coroutine_handle<> handle) { ready_.push_back(handle); }

  // Resumes what is ready, including what becomes ready meanwhile, up to `limit` resumptions. Returns how many, without those that
  // ended in rest_for().
  std::size_t run(Time now, std::size_t limit = 1'000'000);

  // The `now` of the current or last run().
  Time now() const { return now_; }
  // When the next sleeper wakes; now() when something is ready; Time::never() when all wait for completions.
  Time next_deadline() const;
  // Coroutines spawned and not yet ended.
  std::size_t live() const;

  // co_await scheduler.sleep_until(t): resumes at the first run(now) with now >= t.
  auto sleep_until(Time when) {
    struct Awaiter {
      Scheduler& scheduler;
      Time when;
      bool await_ready() const { return when <= scheduler.now_; }
      void await_suspend(std::coroutine_handle<> handle) { scheduler.add_sleeper(when, handle); }
      void await_resume() const {}
    };
    return Awaiter{*this, when};
  }
  auto sleep_for(Duration d) { return sleep_until(now_ + d); }
  // The same for one that has looked and found nothing to do: run() does not count this look as work, so that whoever turns us
  // may give the core away.
  auto rest_for(Duration d) {
    ++rests_;
    return sleep_for(d);
  }
  // Lets everything else that is ready run first.
  auto yield() {
    struct Awaiter {
      Scheduler& scheduler;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> handle) { scheduler.post(handle); }
      void await_resume() const {}
    };
    return Awaiter{*this};
  }

 private:
  struct Sleeper {
    Time when;
    std::uint64_t order;  // equal deadlines wake in the order of their going to sleep
    std::coroutine_handle<> handle;
    friend bool operator>(const Sleeper& a, const Sleeper& b) {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  struct Root;
  static Root run_root(Scheduler& scheduler, Task<void> task);
  void add_sleeper(Time when, std::coroutine_handle<> handle);

  std::deque<std::coroutine_handle<>> ready_;
  std::priority_queue<Sleeper, std::vector<Sleeper>, std::greater<>> sleepers_;
  std::vector<std::coroutine_handle<>> roots_;  // spawned and alive; each knows its place here
  Time now_;
  std::uint64_t sleeper_order_ = 0;
  std::uint64_t rests_ = 0;
};

}  // namespace sluice::remote
