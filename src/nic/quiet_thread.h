// A thread of ours in a program that is not: signals that are sent to the program go to its own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace sluice::nic {

template <class Body>
std::thread start_quiet_thread(Body body) {
  // The new thread has the mask of who starts it.
  struct AllBlocked {
    AllBlocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~AllBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before{};
  } blocked;
  return std::thread(std::move(body));
}

}  // namespace sluice::nic
