// sluice search: racks, faults and workloads drawn from seeds and simulated with checkers on; what fails is shrunk.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
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
  std::uint64_t jobs = 0;
  std::uint64_t tries = 200;
  bool show = false;
  std::string file;

  void declare(rack::Schema& s) {
    s.text("hardware", hardware, "hardware file; empty: the experiments' ConnectX-5", "a file's path")
        .integer("first", first, 0, std::uint64_t{1} << 62, "the first seed")
        .integer("seeds", seeds, 1, 1'000'000'000, "how many, from the first on")
        .integer("jobs", jobs, 0, 1024, "simulations at once; 0: as many as there are cores")
        .integer("tries", tries, 0, 1'000'000, "simulations spent on making a failing case simpler")
        .toggle("show", show, "print what each seed stands for, and simulate nothing")
        .text("case", file, "simulate this case, as --show and a failing seed print it, instead of seeds",
              "a file's path");
  }
};

class SearchCommand final : public Command {
 public:
  explicit SearchCommand(CLI::App& root)
      : Command(root, "search",
                "Draw racks, faults and workloads from seeds, simulate them with checkers on, shrink what fails",
                {"sluice search", "sluice search --seeds 10000", "sluice search --first 4711 --seeds 1",
                 "sluice search --first 4711 --seeds 1 --show > mine.toml && sluice search --case mine.toml"}) {
    settings_.declare(schema_);
    use("search", schema_);
  }

 private:
  Result<void> check() override {
    if (!settings_.file.empty() && (given("first") || given("seeds")))
      return fail("--case: is one case, drawn from no seed; leave out --first and --seeds");
    return {};
  }
  Result<int> run() override {
    if (!settings_.file.empty()) {
      auto loaded = sim::load_case(settings_.file);
      if (!loaded) return tl::unexpected(loaded.error());
      case_ = std::move(*loaded);
    }
    const std::uint64_t count = case_ ? 1 : settings_.seeds;
    if (settings_.show) {
      for (std::uint64_t i = 0; i < count; ++i) fmt::print("{}\n", to_string(case_at(i)));
      return 0;
    }
    auto hardware = load_hardware_named(settings_.hardware, "connectx5");
    if (!hardware) return tl::unexpected(hardware.error());
    const PointTasks tasks{
        count, [&](std::size_t i) -> PointTask {
          return {name_of(i), [this, i, &hardware] { return judge(*hardware, case_at(i)); }, kind_of};
        }};
    std::optional<FailedTask> failed;
    std::size_t sound = 0;
    {
      Progress progress;
      const auto show = [&](std::size_t done, std::size_t of) {
        sound = done;
        progress.show(fmt::format("{} of {} seeds", done, of));
      };
      const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
      const auto jobs = settings_.jobs == 0 ? cores : static_cast<unsigned>(settings_.jobs);
      auto ran = run_in_processes(tasks, jobs, show, &failed);
      if (!ran && !failed && Interrupts::come())
        return interrupted(
            fmt::format("interrupted; {} of {} seeds have been simulated, all sound", sound, tasks.count));
      if (!ran && !failed) return tl::unexpected(ran.error());
    }
    if (!failed) {
      if (case_) fmt::print("{}: sound\n", settings_.file);
      if (!case_) fmt::print("{} seeds from {} on: all sound\n", settings_.seeds, settings_.first);
      return 0;
    }
    const std::string again = case_ ? "--case " + quoted(settings_.file)
                                    : fmt::format("--first {} --seeds 1", settings_.first + failed->task);
    fmt::print("{} fails; again: sluice search {}{}\n", name_of(failed->task), again, on_hardware());
    std::fflush(stdout);
    const sim::SearchCase least = make_simple(*hardware, case_at(failed->task), failed->status);
    fmt::print("The simplest case that was found to fail:\n{}", to_string(least));
    return kExitFailed;
  }

  sim::SearchCase case_at(std::size_t i) const { return case_ ? *case_ : sim::draw_case(settings_.first + i); }
  std::string name_of(std::size_t i) const {
    return case_ ? settings_.file : fmt::format("seed {}", settings_.first + i);
  }

  // As a shell takes it.
  static std::string quoted(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return "'" + out + "'";
  }
  std::string on_hardware() const {
    return settings_.hardware.empty() ? "" : " --hardware " + quoted(settings_.hardware);
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
    const Interrupts interrupts;  // between two tries, too
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
  std::optional<sim::SearchCase> case_;  // none: seeds are
};

}  // namespace

void add_search_command(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<SearchCommand>(root));
}

}  // namespace sluice::cli
