// DPDK's environment: started once a process, for virtual devices only, in ordinary memory.
//
// Errors:     what DPDK said, and its log level to set for more.
// Threads:    start() from any one at a time; a thread that handles packets calls enter_thread() once.
// Limits:     kMegabytes for the buffers of all ports of the process; touched when used.
// Source:     DPDK 22.11, Getting Started Guide for Linux, "EAL parameters".
#pragma once

#include "base/result.h"

namespace sluice::dpdk {

inline constexpr int kMegabytes = 512;

// Does nothing when it has been started. Leaves the thread on the processors that it may run on, which DPDK would narrow to one.
Result<void> start_environment();
// Gives the calling thread its place in the caches of buffer pools. Without it all works, slower.
void enter_thread();

}  // namespace sluice::dpdk
