#include "cli/bench_commands.h"

#include "cli/commands.h"

namespace sluice::cli {

void add_bench_commands(CLI::App& root, Commands& commands) {
  CLI::App& group =
      add_group(root, "bench", "Measure: Clover, Sherman, FUSEE, Cowbird, locks, or bare RDMA operations");
  commands.push_back(make_bench_clover(group));
  commands.push_back(make_bench_sherman(group));
  commands.push_back(make_bench_fusee(group));
  commands.push_back(make_bench_verbs(group));
  commands.push_back(make_bench_cowbird(group));
  commands.push_back(make_bench_locks(group));
}

}  // namespace sluice::cli
