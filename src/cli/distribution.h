// Distribution: the points of a sweep over the ranks of an MPI job. Rank 0 hands them out, one at a time to whoever is free, and keeps what they come
// to; it simulates as well.
//
// Life:       over_mpi() in every rank -> agree() -> run() -> rank 0 alone goes on with the results.
// Messages:   "do TASK", "stop" (this sweep is done) and "quit" from rank 0; "done TASK\n…" (what it came to: the rank has room for another) and "failed …" to it.
// Invariant:  all ranks have the same tasks: agree() compares what decides them (program, hardware, settings, seeds).
// Errors:     a task that fails, or an interrupt, stops all ranks; what rank 0 was told by then is kept. A rank that dies ends the job.
// Threads:    one; simulations are processes of their own.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/point_processes.h"
#include "cli/ranks.h"

namespace sluice::cli {

// How a task's result is carried from the machine that made it to rank 0's.
struct PointCargo {
  std::function<Result<std::string>(std::size_t task)> load;
  std::function<Result<void>(std::size_t task, const std::string& text)> store;
};

class Distribution {
 public:
  // `jobs`: simulations at once in this rank; 0: its share of this machine's cores.
  static Result<std::unique_ptr<Distribution>> over_mpi(unsigned jobs);

  ~Distribution();
  Distribution(const Distribution&) = delete;
  Distribution& operator=(const Distribution&) = delete;

  bool leads() const { return ranks_->rank() == 0; }
  // Every rank calls it with what decides its tasks; an error in all when it is not the same everywhere.
  Result<void> agree(const std::string& digest);
  // Every rank calls it with the same `tasks`; those of `wanted`, which rank 0 alone knows, are done. `progress` as of run_in_processes, in
  // rank 0.
  Result<void> run(const PointTasks& tasks, const std::deque<std::size_t>& wanted, const PointCargo& cargo,
                   const std::function<void(std::size_t, std::size_t)>& progress);
  int ranks() const { return ranks_->size(); }

 private:
  Distribution(std::unique_ptr<Ranks> ranks, std::vector<unsigned> jobs)
      : ranks_(std::move(ranks)), jobs_(std::move(jobs)) {}
  Result<void> hand_out(PointProcesses& children, std::deque<std::size_t> wanted, const PointCargo& cargo,
                        const std::function<void(std::size_t, std::size_t)>& progress);
  Result<void> work(PointProcesses& children, const PointCargo& cargo);
  void tell_others(std::string_view word);

  std::unique_ptr<Ranks> ranks_;
  std::vector<unsigned> jobs_;  // of each rank
};

}  // namespace sluice::cli
