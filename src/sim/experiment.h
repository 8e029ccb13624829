// Experiment: one figure as a TOML file: a rack, a workload, what is varied, and what the paper measured.
//
// File:       title, figure, kind, hardware, x, y and how to draw them; [workload] with the kind's settings; [sweep] with the values of x;
//             [[series]] and [[panel]] with a name and settings that differ; [[paper]] with the paper's points and their source.
// Points:     every panel, series, value of x and repetition; each is a simulation of its own, with a seed of its own.
// Life:       load_experiment() checks all of it and starts nothing -> run_point() for each point, in any order and process.
// Errors:     file, line, key and what is allowed.
// Source:     docs/design/sim.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sim/hardware.h"

namespace sluice::sim {

// What one simulation came to.
struct PointResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;  // not empty: the figures are not to be trusted

  double metric(std::string_view name) const;  // NaN: there is none
};

struct Point {
  std::size_t panel = 0;
  std::size_t series = 0;
  std::size_t x = 0;  // index into Experiment::xs
  std::uint64_t repetition = 0;
  std::uint64_t seed = 0;
  std::string settings;  // all that decides its outcome besides hardware and program, as text
};

struct PaperPoints {
  std::string series;
  std::string panel;   // empty: there are no panels
  std::string metric;  // empty: y
  std::string source;
  std::vector<double> ys;  // at each x; NaN: the paper has none
};

struct Experiment {
  std::string path;
  std::string name;  // of the file, without folder and extension
  std::string title;
  std::string figure;
  std::string text;
  std::string kind;
  std::string x;  // the setting that is varied
  std::string x_title;
  std::string y;  // the metric to draw
  std::string y_title;
  std::string y_scale = "linear";
  std::uint64_t within_percent = 0;  // how near the paper's points the figure means to be; 0: it makes no promise
  std::uint64_t repetitions = 1;
  std::uint64_t seed = 1;
  Hardware hardware;
  std::vector<std::string> panels;
  std::vector<std::string> series;
  std::vector<std::string> xs;  // as text
  bool numeric = true;          // they are numbers
  std::vector<PaperPoints> paper;
  std::vector<Point> points;

  // The paper's value there; NaN: none.
  double paper_at(const Point& point, std::string_view metric) const;

  struct Source;
  std::shared_ptr<const Source> source;  // the parsed file
};

// `hardware_path` empty: as the file says, in the folder hardware/ beside it.
Result<Experiment> load_experiment(const std::string& path, const std::string& hardware_path = {});
PointResult run_point(const Experiment& experiment, const Point& point);

}  // namespace sluice::sim
