#include "remote/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::remote {

// The coroutine around a spawned task: frees itself when the task ends, or is freed by ~Scheduler.
struct Scheduler::Root {
  struct promise_type {
    promise_type(Scheduler& s, Task<void>&) : scheduler(s) {}

    Root get_return_object() {
      const auto self = std::coroutine_handle<promise_type>::from_promise(*this);
      place = scheduler.roots_.size();
      scheduler.roots_.push_back(self);
      return Root{self};
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() {
      // Leaves its place to the last root.
      auto& roots = scheduler.roots_;
      if (place + 1 != roots.size()) {
        roots[place] = roots.back();
        std::coroutine_handle<promise_type>::from_address(roots[place].address()).promise().place = place;
      }
      roots.pop_back();
    }
    void unhandled_exception() { check_failed("no exception leaves a spawned coroutine", __FILE__, __LINE__); }

    Scheduler& scheduler;
    std::size_t place = 0;
  };
  std::coroutine_handle<> handle;
};

Scheduler::Root Scheduler::run_root(Scheduler&, Task<void> task) { co_await task; }

Scheduler::~Scheduler() {
  for (const auto root : roots_) root.destroy();
}

void Scheduler::spawn(Task<void> task) { post(run_root(*this, std::move(task)).handle); }

std::size_t Scheduler::live() const { return roots_.size(); }

void Scheduler::add_sleeper(Time when, std::coroutine_handle<> handle) {
  sleepers_.push({when, sleeper_order_++, handle});
}

std::size_t Scheduler::run(Time now, std::size_t limit) {
  now_ = now;
  const std::uint64_t rests_before = rests_;
  while (!sleepers_.empty() && sleepers_.top().when <= now) {
    ready_.push_back(sleepers_.top().handle);
    sleepers_.pop();
  }
  std::size_t resumed = 0;
  for (; resumed < limit && !ready_.empty(); ++resumed) {
    const auto handle = ready_.front();
    ready_.pop_front();
    handle.resume();
  }
  return resumed - std::min<std::uint64_t>(resumed, rests_ - rests_before);
}

Time Scheduler::next_deadline() const {
  if (!ready_.empty()) return now_;
  return sleepers_.empty() ? Time::never() : sleepers_.top().when;
}

}  // namespace sluice::remote
