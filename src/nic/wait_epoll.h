// epoll_wait to the nanosecond.
#pragma once

#include <sys/epoll.h>

#include <span>

#include "base/time.h"

namespace sluice::nic {

// By epoll_pwait2; by epoll_wait in whole milliseconds, rounded up, where the kernel has it not or a sandbox's filter does not let it
// pass. Returns and sets errno as they do.
int wait_epoll(int epoll, std::span<epoll_event> events, Duration timeout);

}  // namespace sluice::nic
