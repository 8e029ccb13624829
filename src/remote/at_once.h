// Several steps of one thing, many at a time.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <utility>

#include "remote/scheduler.h"
#include "remote/task.h"

namespace sluice::remote {

template <class Step>
class AtOnce {
 public:
  // step(i) is a Task<bool>, for each i below `count`; up to `most` of them are under way at once.
  AtOnce(Scheduler& scheduler, std::size_t count, std::size_t most, Step step)
      : scheduler_(scheduler), count_(count), most_(std::min(most, count)), step_(std::move(step)) {}
  AtOnce(const AtOnce&) = delete;
  AtOnce& operator=(const AtOnce&) = delete;

  bool await_ready() const { return count_ == 0; }
  void await_suspend(std::coroutine_handle<> handle) {
    waiter_ = handle;
    working_ = most_;
    for (std::size_t i = 0; i < most_; ++i) scheduler_.spawn(take(*this));
  }
  // False: one of them has said so. Then no others were begun.
  bool await_resume() const { return all_; }

 private:
  static Task<void> take(AtOnce& self) {
    while (self.next_ < self.count_ && self.all_) {
      const std::size_t i = self.next_++;
      const bool taken = co_await self.step_(i);
      self.all_ = self.all_ && taken;
    }
    if (--self.working_ == 0) self.scheduler_.post(self.waiter_);
  }

  Scheduler& scheduler_;
  std::size_t count_;
  std::size_t most_;
  Step step_;
  std::size_t next_ = 0;
  std::size_t working_ = 0;
  bool all_ = true;
  std::coroutine_handle<> waiter_;
};

}  // namespace sluice::remote
