// Point processes: the points of experiments, each in a process of its own, as many at once as there are cores.
//
// Life:       run(points to do) -> each child simulates one and stores its result -> done() is asked for each that has ended.
// Errors:     a child that dies is told with its point. An interrupt ends all children; what is stored stays.
// Threads:    one, which is why it may fork.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"

namespace sluice::cli {

struct PointTask {
  std::string name;                        // for messages
  std::function<Result<void>()> simulate;  // in the child
  // What the child exits with when that failed, 1 to 255; none: 1.
  std::function<int(const Error& error)> exit_code{};
};

struct FailedTask {
  std::size_t task = 0;
  int status = 0;  // as waitpid() has it
};

// So many, each made when its turn comes: there may be more than fit into memory.
struct PointTasks {
  std::size_t count = 0;
  std::function<PointTask(std::size_t)> task;
};

// While it lives, SIGINT and SIGTERM end nothing but are remembered, so that children can be ended first. One may live within another:
// the outer remembers what comes between two of those within it.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static bool come();
  // fail() with what is to be said then.
  static tl::unexpected<Error> told();

 private:
  struct sigaction before_int_ = {};
  struct sigaction before_term_ = {};
};

// The children that are at work; what is left of them ends with this.
class PointProcesses {
 public:
  explicit PointProcesses(PointTasks tasks) : tasks_(std::move(tasks)) {}
  ~PointProcesses();
  PointProcesses(const PointProcesses&) = delete;
  PointProcesses& operator=(const PointProcesses&) = delete;

  std::size_t running() const { return running_.size(); }
  Result<void> start(std::size_t task);
  // A task that has been done since; none yet: after a pause of 20 ms. An error when a child failed.
  Result<std::optional<std::size_t>> wait_briefly();
  // Of the child that ended last, well or not.
  FailedTask ended() const { return ended_; }

 private:
  struct Running {
    std::size_t task;
    std::string name;
  };
  PointTasks tasks_;
  std::map<pid_t, Running> running_;
  FailedTask ended_;
};

// `progress(done, of)` is called now and then. An error when one failed, which `failed` then names, or the user interrupted.
Result<void> run_in_processes(const PointTasks& tasks, unsigned at_once,
                              const std::function<void(std::size_t, std::size_t)>& progress,
                              std::optional<FailedTask>* failed = nullptr);

}  // namespace sluice::cli
