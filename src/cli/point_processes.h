// Point processes: the points of experiments, each in a process of its own, as many at once as there are cores.
//
// Life:       run(points to do) -> each child simulates one and stores its result -> done() is asked for each that has ended.
// Errors:     a child that dies is told with its point. An interrupt ends all children; what is stored stays.
// Threads:    one, which is why it may fork.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct PointTask {
  std::string name;                        // for messages
  std::function<Result<void>()> simulate;  // in the child
};

// `progress(done, of)` is called now and then. An error when one failed, which `failed` then names, or the user interrupted.
Result<void> run_in_processes(const std::vector<PointTask>& tasks, unsigned at_once,
                              const std::function<void(std::size_t, std::size_t)>& progress,
                              std::optional<std::size_t>* failed = nullptr);

}  // namespace sluice::cli
