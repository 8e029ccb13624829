#include "dpdk/eal.h"

#include <fmt/core.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <sched.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <vector>

namespace sluice::dpdk {
namespace {

Result<void> start_now() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  const bool known = pthread_getaffinity_np(pthread_self(), sizeof processors, &processors) == 0;
  std::size_t first = 0;
  while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &processors)) ++first;
  std::vector<std::string> words{"sluice",
                                 "--no-huge",
                                 "--no-pci",
                                 "--no-telemetry",
                                 "--no-shconf",
                                 fmt::format("--file-prefix=sluice{}", getpid()),
                                 "-m",
                                 std::to_string(kMegabytes),
                                 "-l",
                                 std::to_string(known ? first : 0),
                                 "--log-level=error"};
  // It keeps pointers into its arguments.
  static std::vector<std::string> kept;
  static std::vector<char*> arguments;
  kept = std::move(words);
  for (std::string& word : kept) arguments.push_back(word.data());
  const int taken = rte_eal_init(static_cast<int>(arguments.size()), arguments.data());
  const int error = rte_errno;
  if (known) pthread_setaffinity_np(pthread_self(), sizeof processors, &processors);
  // Nothing is kept in it without a shared configuration, and it would stay for ever.
  rmdir(rte_eal_get_runtime_dir());
  if (taken < 0) return fail(fmt::format("DPDK does not start: {}", rte_strerror(error)));
  return {};
}

}  // namespace

Result<void> start_environment() {
  static std::mutex one_at_a_time;
  static bool tried = false;
  static Result<void> outcome;
  const std::scoped_lock lock(one_at_a_time);
  if (!tried) outcome = start_now();
  tried = true;
  return outcome;
}

void enter_thread() {
  if (rte_lcore_id() == LCORE_ID_ANY) rte_thread_register();
}

}  // namespace sluice::dpdk
