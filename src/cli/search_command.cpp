// sluice search: racks, faults and workloads drawn from seeds and simulated with checkers on; what fails is shrunk.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cli/commands.h"
#include "cli/experiment_files.h"
#include "cli/point_processes.h"
#include "cli/progress.h"
#include "sim/experiment/search.h"

namespace sluice::cli {
namespace {

struct SearchSettings {
  std::string hardware;
  std::uint64_t first = 1;
  std::uint64_t seeds = 100;
  std::uint64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  std::uint64_t tries = 200;
  bool show = false;

  void declare(rack::Schema& s) {
    s.text("hardware", hardware, "hardware file; empty: the experiments' ConnectX-5", "a file's path")
        .integer("first", first, 0, std::uint64_t{1} << 62, "the first seed")
        .integer("seeds", seeds, 1, 1'000'000'000, "how many, from the first on")
        .integer("jobs", jobs, 1, 1024, "simulations at once")
        .integer("tries", tries, 0, 1'000'000, "simulations spent on making a failing case simpler")
        .toggle("show", show, "print what each seed stands for, and simulate nothing");
  }
};

class SearchCommand final : public Command {
 public:
  explicit SearchCommand(CLI::App& root)
      : Command(root, "search",
                "Draw racks, faults and workloads from seeds, simulate them with checkers on, shrink what fails",
                {"sluice search", "sluice search --seeds 10000", "sluice search --first 4711 --seeds 1",
                 "sluice search --first 4711 --seeds 1 --show"}) {
    settings_.declare(schema_);
    use("search", schema_);
  }

 private:
  Result<int> run() override {
    if (settings_.show) {
      for (std::uint64_t i = 0; i < settings_.seeds; ++i)
        fmt::print("{}\n", to_string(sim::draw_case(settings_.first + i)));
      return 0;
    }
    auto hardware = load_hardware_named(settings_.hardware, "connectx5");
    if (!hardware) return tl::unexpected(hardware.error());
    const PointTasks tasks{settings_.seeds, [&](std::size_t i) -> PointTask {
                             const std::uint64_t seed = settings_.first + i;
                             return {fmt::format("seed {}", seed),
                                     [seed, &hardware] { return judge(*hardware, sim::draw_case(seed)); }, kind_of};
                           }};
    std::optional<FailedTask> failed;
    std::size_t sound = 0;
    {
      Progress progress;
      const auto show = [&](std::size_t done, std::size_t of) {
        sound = done;
        progress.show(fmt::format("{} of {} seeds", done, of));
      };
      auto ran = run_in_processes(tasks, static_cast<unsigned>(settings_.jobs), show, &failed);
      if (!ran && !failed && Interrupts::come())
        return interrupted(
            fmt::format("interrupted; {} of {} seeds have been simulated, all sound", sound, tasks.count));
      if (!ran && !failed) return tl::unexpected(ran.error());
    }
    if (!failed) {
      fmt::print("{} seeds from {} on: all sound\n", settings_.seeds, settings_.first);
      return 0;
    }
    const std::uint64_t seed = settings_.first + failed->task;
    fmt::print("seed {} fails; again: sluice search --first {} --seeds 1{}\n", seed, seed, on_hardware());
    std::fflush(stdout);
    const sim::SearchCase least = make_simple(*hardware, sim::draw_case(seed), failed->status);
    fmt::print("The simplest case that was found to fail:\n{}", to_string(least));
    return kExitFailed;
  }

  // As a shell takes it.
  std::string on_hardware() const {
    if (settings_.hardware.empty()) return {};
    std::string quoted;
    for (const char c : settings_.hardware) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    return fmt::format(" --hardware '{}'", quoted);
  }

  // As an exit code: what has the same words up to a colon, whatever the numbers, is taken for the same failure.
  static int kind_of(const Error& error) {
    unsigned hash = 0;
    for (const char c : std::string_view(error.message).substr(0, error.message.find(':')))
      if (c < '0' || c > '9') hash = hash * 31 + static_cast<unsigned char>(c);
    return static_cast<int>(1 + hash % 255);
  }

  static Result<void> judge(const sim::Hardware& hardware, const sim::SearchCase& one) {
    const sim::CloverResult result = sim::run_case(hardware, one);
    if (!result.problem.empty()) return fail(result.problem);
    return {};
  }

  // Fails in the same way as the first.
  sim::SearchCase make_simple(const sim::Hardware& hardware, const sim::SearchCase& failing, int status) const {
    Progress progress;
    std::uint64_t tried = 0;
    bool stopped = false;  // by the user: what has been found so far is it
    // Each in a process of its own: it may die.
    const auto fails = [&](const sim::SearchCase& one) {
      if (stopped) return false;
      progress.show(fmt::format("making it simpler: {} of at most {} tries", ++tried, settings_.tries));
      std::optional<FailedTask> failed;
      const PointTasks task{1, [&](std::size_t) -> PointTask {
                              return {"a simpler case", [&] { return judge(hardware, one); }, kind_of};
                            }};
      const auto ran = run_in_processes(
          task, 1, [](std::size_t, std::size_t) {}, &failed);
      stopped = !ran && !failed;
      return failed && failed->status == status;
    };
    return sim::shrink(failing, settings_.tries, fails);
  }

  SearchSettings settings_;
  rack::Schema schema_;
};

}  // namespace

void add_search_command(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<SearchCommand>(root));
}

}  // namespace sluice::cli
