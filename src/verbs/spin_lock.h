// The lock around the process's NIC: held for a burst at most, so a waiter spins, and then yields, because the holder may need its core.
//
// Threads:  any. Not recursive. reset() is for the child of a fork, where nobody else is left who could release it.
// Source:   measured: two threads that only spin on one core cost each other 8 ms, with yields 3 us.
#pragma once

#include <sched.h>

#include <atomic>

namespace sluice::verbs {

class SpinLock {
 public:
  void lock() {
    for (int spins = 0; !try_lock(); ++spins) {
      if (spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }
  bool try_lock() { return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }
  void reset() { held_.store(false, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 64;
  std::atomic<bool> held_{false};
};

}  // namespace sluice::verbs
