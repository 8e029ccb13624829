// The lock around the process's NIC: held for a burst at most, so a waiter spins, and then yields, because the holder may need its core.
//
// Threads:  any. Not recursive, but a thread may ask whether it is the holder: a signal may have come upon it there. reset() is for
//           the child of a fork, where nobody else is left who could release it.
// Source:   measured: two threads that only spin on one core cost each other 8 ms, with yields 3 us.
#pragma once

#include <pthread.h>
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
  bool try_lock() {
    pthread_t nobody = kNobody;
    return holder_.load(std::memory_order_relaxed) == kNobody &&
           holder_.compare_exchange_strong(nobody, pthread_self(), std::memory_order_acquire,
                                           std::memory_order_relaxed);
  }
  void unlock() { holder_.store(kNobody, std::memory_order_release); }
  // This thread holds it.
  bool is_mine() const { return holder_.load(std::memory_order_relaxed) == pthread_self(); }
  void reset() { holder_.store(kNobody, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 64;
  static constexpr pthread_t kNobody = 0;  // no thread's name with glibc, which takes addresses
  std::atomic<pthread_t> holder_{kNobody};
};

}  // namespace sluice::verbs
