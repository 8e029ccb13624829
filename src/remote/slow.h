// Another RemoteMemory, for tests, on which operations take as long as the test wants: on their way to the memory, or back.
//
// Life:       `plan` is asked of each operation that is submitted: so long it waits, then it is submitted to the memory below, and so long
//             after that has completed it completes.
// Order:      none.
// Limits:     what a transport promises (how late the effect of a write may come) is the plan's to keep; longest_flight() tells.
// Threads:    one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "remote/remote_memory.h"
#include "remote/task.h"

namespace sluice::remote {

class SlowMemory final : public RemoteMemory {
 public:
  struct Delay {
    Duration before{};  // it is carried out
    Duration after{};   // until it is known
  };
  // Until release().
  static constexpr Duration kHeld = Duration::max();

  SlowMemory(Scheduler& scheduler, RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}

  std::function<Delay(const Operation&)> plan{};  // none: nothing waits

  Capabilities capabilities() const override {
    Capabilities capabilities = under_.capabilities();
    capabilities.ordered = false;
    return capabilities;
  }
  void submit(Operation& operation) override {
    if (killed_) return;
    const Delay delay = plan ? plan(operation) : Delay{};
    if (delay.before == Duration{} && delay.after == Duration{}) return under_.submit(operation);
    scheduler().spawn(pass(operation, delay));
  }

  // What is held goes on.
  void release() { ++releases_; }
  // So many are held, on their way or back.
  std::size_t held() const { return held_; }
  // The client dies: what waits is neither carried out nor completed.
  void kill() { killed_ = true; }
  // Of what was delayed and writes: the longest time from submission until it had been carried out.
  Duration longest_flight() const { return longest_flight_; }

 private:
  Task<void> pass(Operation& operation, Delay delay) {
    Operation own = operation;
    const Time submitted = scheduler().now();
    co_await wait(delay.before);
    if (killed_) co_return;
    co_await under_.all(std::span(&own, 1));
    if (own.kind != OpKind::kRead) longest_flight_ = std::max(longest_flight_, scheduler().now() - submitted);
    co_await wait(delay.after);
    if (killed_) co_return;
    operation.prior = own.prior;
    complete(operation, own.status);
  }
  Task<void> wait(Duration time) {
    if (time != kHeld) {
      co_await scheduler().sleep_for(time);
      co_return;
    }
    ++held_;
    for (const auto release = releases_; release == releases_ && !killed_;)
      co_await scheduler().sleep_for(Duration::microseconds(1));
    --held_;
  }

  RemoteMemory& under_;
  std::size_t held_ = 0;
  std::uint64_t releases_ = 0;
  bool killed_ = false;
  Duration longest_flight_;
};

}  // namespace sluice::remote
