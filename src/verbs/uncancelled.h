// While it lives nobody cancels this thread (pthread_cancel): system calls within the NIC would unwind it there.
//
// Why:     a lock would stay held and a burst half done; and frames of ours cannot be unwound by the program's libgcc.
// Limits:  15 ns. add_token() and the like, which tell of every completion, use syscall(2) instead, where nobody is cancelled either.
// Source:  pthreads(7), "Cancellation points".
#pragma once

#include <pthread.h>

namespace sluice::verbs {

class Uncancelled {
 public:
  Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace sluice::verbs
