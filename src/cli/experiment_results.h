// What an experiment came to: beside the paper's points, as JSON, CSV and a table; and the cache of points already simulated.
//
// Invariant:  a point is kept under the contents of all that decides it: program, hardware, settings, seed. So nothing stale is ever used,
//             and an interrupted sweep goes on where it was.
// Source:     docs/design/sim.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/experiment/experiment.h"

namespace sluice::cli {

class PointCache {
 public:
  // Makes the folder.
  static Result<PointCache> open(const std::string& folder, const std::string& program);

  std::string path_of(const sim::Experiment& experiment, const sim::Point& point) const;
  std::optional<sim::PointResult> find(const sim::Experiment& experiment, const sim::Point& point) const;
  // Whole or not at all.
  static Result<void> store(const std::string& path, const sim::PointResult& result);
  static Result<void> store_text(const std::string& path, const std::string& text);

 private:
  std::string folder_;
  std::string program_hash_;
};

// Of `how` = "mean" that, or the median: of two in the middle, what lies between them. REQUIRES: values that are sorted, one at least.
double summary_of(std::string_view how, const std::vector<double>& values);

// A metric of all repetitions at one place of the figure.
struct Summary {
  const sim::Point* point = nullptr;  // the first of them
  double ours = 0;                    // their median or mean, as the experiment says
  double least = 0;
  double most = 0;
  double paper = 0;       // of a range what is nearest to ours; NaN: the paper has none
  sim::Tolerance within;  // of the paper's value
  bool trusted = true;    // nothing went wrong in any of them

  // Of ours from the paper's, in percent; NaN without one.
  double error_percent() const;
  bool compared() const;  // both have a value
  bool promised() const;  // the experiment says how near the paper's value it is to be
  bool near() const;      // and it is
};

// How near an experiment came to the paper's points, over all metrics that it has points of.
struct Nearness {
  std::size_t compared = 0;
  std::size_t promised = 0;
  std::size_t near = 0;  // of those promised
  double worst_percent = 0;
  std::string text;  // a sentence; empty: the paper has no points
};

struct ExperimentOutcome {
  const sim::Experiment* experiment = nullptr;
  std::vector<sim::PointResult> results;  // as experiment->points

  std::vector<Summary> summaries(std::string_view metric) const;
  // Metrics that the paper has points of, y first.
  std::vector<std::string> compared_metrics() const;
  Nearness nearness() const;
  // What went wrong, and where: of several the first. Empty: nothing.
  std::string problem() const;
};

nlohmann::json to_json(const ExperimentOutcome& outcome);
std::string to_csv(const ExperimentOutcome& outcome);
std::string to_table(const ExperimentOutcome& outcome);

}  // namespace sluice::cli
