// sluice experiment: simulates the figures that experiment files describe. sluice report: draws what they came to.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/distribution.h"
#include "cli/experiment_files.h"
#include "cli/experiment_report.h"
#include "cli/experiment_results.h"
#include "cli/point_processes.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "rack/settings/meant.h"
#include "sim/experiment/experiment.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// As JSON has to be.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// A file, or the name of one: "fig1" and "fig01" are the same.
Result<fs::path> find_experiment(const std::string& name) {
  std::error_code none;
  if (fs::is_regular_file(name, none)) return fs::path(name);
  const auto all = all_experiments();
  if (!all) return tl::unexpected(all.error());
  std::string padded = name;
  if (padded.size() == 4 && padded.starts_with("fig")) padded.insert(3, "0");
  for (const std::string& stem : {name, padded}) {
    const auto found = std::ranges::find(*all, fs::path(stem), &fs::path::stem);
    if (found != all->end()) return *found;
  }
  rack::Meant meant(name);
  for (const fs::path& file : *all) meant.offer(file.stem().string(), file.stem().string());
  return fail(
      fmt::format("{} is no file and no experiment{}; `sluice experiment --list` shows all", name, meant.text()));
}

struct ExperimentSettings {
  std::string out = "results";
  std::string hardware;
  std::uint64_t jobs = 0;
  std::string distribute = "off";
  bool fresh = false;
  bool list = false;
  bool check = false;

  void declare(rack::Schema& s) {
    s.path("out", out, "folder for results, and for what has been simulated already", "a folder's path")
        .text("hardware", hardware, "hardware file to use instead of the experiment's own", "a file's path")
        .integer("jobs", jobs, 0, 1024,
                 "simulations at once; 0: as many as there are cores, divided by the ranks on this machine")
        .choice("distribute", distribute, {"off", "mpi"},
                "mpi: spread the points over the ranks of an MPI job, for whom mpirun starts this command")
        .toggle("fresh", fresh, "simulate anew what has been simulated already")
        .toggle("list", list, "list the experiments there are")
        .toggle("check", check, "fail when a point is farther from the paper's than the experiment says it may be");
  }
};

class ExperimentCommand final : public Command {
 public:
  explicit ExperimentCommand(CLI::App& root)
      : Command(root, "experiment", "Simulate a figure of a paper, or any other experiment file",
                {"sluice experiment fig3", "sluice experiment --list", "sluice experiment mine.toml --out mine",
                 "sluice experiment fig1 fig2 fig3 fig4 --check && sluice report",
                 "mpirun -n 8 --host a,b,c,d --map-by node sluice experiment fig11 --distribute mpi"}) {
    settings_.declare(schema_);
    use("experiment", schema_);
    option("name", names_, "experiments: names such as fig3, or files").type_name("NAME");
  }

 private:
  Result<void> check() override {
    if (settings_.list) return names_.empty() ? Result<void>() : fail("--list: lists all there are; leave names out");
    if (names_.empty()) return fail("say which experiment; --list tells what there are");
    std::map<std::string, std::string> files;  // by what results are called
    for (const std::string& name : names_) {
      const auto found = find_experiment(name);
      if (!found) return tl::unexpected(found.error());
      if (!is_utf8(found->stem().string()))
        return fail(fmt::format("{}: the file's name is no UTF-8, and results are called after it; give it another",
                                found->string()));
      const auto [first, is_new] = files.emplace(found->stem().string(), found->string());
      if (!is_new)
        return fail(
            fmt::format("{} and {}: results of both would be called {}; one after the other, with an --out for each",
                        first->second, found->string(), first->first));
    }
    return load();
  }
  // All files are read before anything starts.
  Result<void> load() {
    const std::string more_hardware = own_hardware_folder();
    for (const std::string& name : names_) {
      const auto path = find_experiment(name);
      if (!path) return tl::unexpected(path.error());
      auto loaded = sim::load_experiment(path->string(), settings_.hardware, more_hardware);
      if (!loaded) return tl::unexpected(loaded.error());
      if (settings_.check && !loaded->promises())
        return fail(
            fmt::format("{}: says nowhere how near the paper's points it means to be (within_percent, "
                        "within_factor, within_points): there is nothing to --check",
                        path->string()));
      if (!settings_.hardware.empty() && !loaded->simulated())
        return fail(fmt::format("{}: --hardware: nothing of it is simulated", path->string()));
      const auto of_its_own = [](const sim::Hardware& hardware) { return !hardware.name.empty(); };
      if (!settings_.hardware.empty() && std::ranges::any_of(loaded->panel_hardware, of_its_own))
        return fail(fmt::format("{}: --hardware: panels of it have hardware of their own", path->string()));
      experiments_.push_back(std::move(*loaded));
    }
    return {};
  }
  Result<int> run() override {
    if (settings_.list) return list();
    // This program as it runs, also where another one has taken its place meanwhile.
    auto cache = PointCache::open(settings_.out + "/points", "/proc/self/exe");
    if (!cache) return tl::unexpected(cache.error());
    if (settings_.distribute == "mpi") {
      if (auto begun = begin_distribution(*cache); !begun) return end_with(begun.error());
    }
    bool near = true;
    std::vector<std::string> problems;  // of some; the others are simulated all the same
    for (const sim::Experiment& experiment : experiments_) {
      const auto done = run_one(experiment, *cache);
      if (!done) return end_with(done.error());
      near = near && done->near;
      if (!done->problem.empty()) problems.push_back(experiment.name + ": " + done->problem);
    }
    if (!problems.empty()) return fail(fmt::format("{}", fmt::join(problems, "; ")));
    return settings_.check && !near ? kExitFailed : 0;
  }

  // Of several ranks the first speaks for all.
  Result<int> end_with(const Error& error) const {
    if (distribution_ && !distribution_->leads()) return 0;
    if (Interrupts::come()) return interrupted(error.message + (settings_.fresh ? ", without --fresh" : ""));
    return tl::unexpected(error);
  }

  static Result<int> list() {
    const auto all = all_experiments();
    if (!all) return tl::unexpected(all.error());
    std::vector<sim::Experiment> shown;
    std::size_t names = 0;
    std::size_t figures = 0;
    for (const fs::path& file : *all) {
      auto loaded = sim::load_experiment(file.string(), "", own_hardware_folder());
      if (!loaded) {
        say("left out: " + loaded.error().message);
        continue;
      }
      names = std::max(names, loaded->name.size());
      figures = std::max(figures, loaded->figure.size());
      shown.push_back(std::move(*loaded));
    }
    for (const sim::Experiment& e : shown)
      fmt::print("{:<{}} {:<{}} {} ({} points)\n", e.name, names, e.figure, figures, e.title, e.points.size());
    return 0;
  }

  Result<void> begin_distribution(const PointCache& cache) {
    auto made = Distribution::over_mpi(static_cast<unsigned>(settings_.jobs));
    if (!made) return tl::unexpected(made.error());
    distribution_ = std::move(*made);
    // A point's name in the cache is made from all that decides it.
    std::string names;
    for (const sim::Experiment& experiment : experiments_) {
      for (const sim::Point& point : experiment.points) names += fs::path(cache.path_of(experiment, point)).filename();
    }
    return distribution_->agree(names);
  }

  struct Verdict {
    bool near = true;     // all points are as near the paper's as the experiment promises
    std::string problem;  // not empty: not all of it is to be trusted
  };
  Result<Verdict> run_one(const sim::Experiment& experiment, const PointCache& cache) {
    if (auto simulated = simulate(experiment, cache); !simulated) return tl::unexpected(simulated.error());
    if (distribution_ && !distribution_->leads()) return Verdict{};
    ExperimentOutcome outcome{.experiment = &experiment, .results = {}};
    for (const sim::Point& point : experiment.points) {
      auto result = cache.find(experiment, point);
      if (!result) return fail(fmt::format("{}: cannot be read", cache.path_of(experiment, point)));
      outcome.results.push_back(std::move(*result));
    }
    sim::add_ratios(experiment, outcome.results);
    return publish(outcome);
  }

  // Afterwards the cache has every point, with a distribution that of rank 0.
  Result<void> simulate(const sim::Experiment& experiment, const PointCache& cache) {
    const auto path = [&](std::size_t i) { return cache.path_of(experiment, experiment.points[i]); };
    const PointTasks tasks{
        experiment.points.size(), [&](std::size_t i) -> PointTask {
          const sim::Point& point = experiment.points[i];
          return {fmt::format("{}: {} {} = {}", experiment.name, experiment.series[point.series], experiment.x,
                              experiment.xs[point.x]),
                  [&, i] { return PointCache::store(path(i), run_point(experiment, experiment.points[i])); }};
        }};
    std::deque<std::size_t> wanted;
    for (std::size_t i = 0; i < experiment.points.size(); ++i)
      if (settings_.fresh || !cache.find(experiment, experiment.points[i])) wanted.push_back(i);
    Progress progress;
    const auto show = [&](std::size_t done, std::size_t of) {
      const std::string by = distribution_ ? fmt::format(", by {} ranks", distribution_->ranks()) : "";
      progress.show(fmt::format("{}: {} of {} points simulated{}", experiment.name, done, of, by));
    };
    if (distribution_) {
      const PointCargo cargo{
          .load = [&](std::size_t i) { return sim::read_text(path(i)); },
          .store = [&](std::size_t i, const std::string& text) { return PointCache::store_text(path(i), text); }};
      return distribution_->run(tasks, wanted, cargo, show);
    }
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const PointTasks here{wanted.size(), [&](std::size_t i) { return tasks.task(wanted[i]); }};
    return run_in_processes(here, settings_.jobs == 0 ? cores : static_cast<unsigned>(settings_.jobs), show);
  }

  Result<Verdict> publish(const ExperimentOutcome& outcome) {
    const std::string base = settings_.out + "/" + outcome.experiment->name;
    if (auto written = write_output(base + ".json", to_json(outcome).dump(1) + "\n"); !written)
      return tl::unexpected(written.error());
    if (auto written = write_output(base + ".csv", to_csv(outcome)); !written) return tl::unexpected(written.error());
    fmt::print("{}{}.json, {}.csv\n", to_table(outcome), base, base);
    if (auto problem = outcome.problem(); !problem.empty())
      return Verdict{.near = false, .problem = std::move(problem)};
    const Nearness near = outcome.nearness();
    if (!near.text.empty()) fmt::print("{}\n\n", near.text);
    return Verdict{.near = near.near == near.promised, .problem = {}};
  }

  ExperimentSettings settings_;
  rack::Schema schema_;
  std::vector<std::string> names_;
  std::vector<sim::Experiment> experiments_;
  std::unique_ptr<Distribution> distribution_;  // null: all is simulated here
};

struct ReportSettings {
  std::string results = "results";
  std::string out = "report.html";

  void declare(rack::Schema& s) {
    s.path("results", results, "folder that `sluice experiment` wrote to", "a folder's path")
        .path("out", out, "the report", "a file's path");
  }
};

class ReportCommand final : public Command {
 public:
  explicit ReportCommand(CLI::App& root)
      : Command(root, "report", "Draw all results of experiments as one HTML file, the paper's points beside ours",
                {"sluice report", "sluice report --results mine --out mine.html"}) {
    settings_.declare(schema_);
    use("report", schema_);
  }

 private:
  Result<int> run() override {
    std::vector<nlohmann::json> results;
    std::vector<fs::path> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(settings_.results, error)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      std::ifstream in(file);
      try {
        results.push_back(nlohmann::json::parse(in));
        static_cast<void>(experiments_report({results.back()}));
      } catch (const std::exception& e) {
        return fail(fmt::format(
            "{}: not a result of this version's `sluice experiment` ({}); remove it, or run the experiment anew",
            file.string(), e.what()));
      }
    }
    if (results.empty() && fs::exists(fs::path(settings_.results) / "points"))
      return fail(fmt::format("no experiment in {} has been run to its end; the same command goes on with it",
                              settings_.results));
    if (results.empty())
      return fail(fmt::format("no results in {}; `sluice experiment fig1` makes some", settings_.results));
    if (auto written = write_report(settings_.out, experiments_report(results)); !written)
      return tl::unexpected(written.error());
    fmt::print("{}\n", settings_.out);
    return 0;
  }

  ReportSettings settings_;
  rack::Schema schema_;
};

}  // namespace

void add_experiment_commands(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<ExperimentCommand>(root));
  commands.push_back(std::make_unique<ReportCommand>(root));
}

}  // namespace sluice::cli
