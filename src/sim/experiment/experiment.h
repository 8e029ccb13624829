// Experiment: one figure as a TOML file: a rack, a workload, what is varied, and what the paper measured.
//
// File:       title, figure, kind, hardware (but for box_memory; and edm_hardware, for racks with a transport "edm"), x, y and how to draw them; [workload] with the kind's settings; [sweep] with the values of x;
//             [[series]] and [[panel]] with a name and settings that differ (a panel's hardware, too); [[paper]] with the paper's points, their source, and how near
//             them the figure means to be: within_percent, within_factor, within_points, within_or = "above" or "below" (at the top: for all that say nothing themselves).
// Points:     every panel, series, value of x and repetition; each is a simulation of its own, with a seed of its own.
// Life:       load_experiment() checks all of it and starts nothing -> run_point() for each point, in any order and process.
// Errors:     file, line, key and what is allowed.
// Source:     docs/design/sim.md.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sim/edm/edm_hardware.h"
#include "sim/edm/edm_testbed.h"
#include "sim/world/hardware.h"

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

// How near the paper's points a figure means to be. Whatever is not 0 must hold; all 0: it makes no promise.
struct Tolerance {
  std::uint64_t percent = 0;  // of the paper's value
  std::uint64_t factor = 0;   // neither value more than so many times the other
  std::uint64_t points = 0;   // absolute, in the metric's unit
  std::string or_else;        // above, below: the paper's value is a bound, and what lies beyond it holds, too

  bool promised() const { return percent != 0 || factor != 0 || points != 0; }
  bool holds(double ours, double paper) const;
  std::string text() const;  // "within 25 %", "within 2x"
};

struct PaperPoints {
  std::string series;
  std::string panel;   // empty: there are no panels
  std::string metric;  // empty: y
  std::string over;  // another series: the points are ratios, of `series` to it; the metric is then called ratio_name()
  std::string source;
  Tolerance within;
  std::vector<double> ys;     // at each x; NaN: the paper has none
  std::vector<double> up_to;  // not empty: the paper has ranges, from ys to these

  // What the paper has nearest to our value.
  double nearest(std::size_t at, double ours) const;

  std::string ratio_name() const;  // "metric, times that of OVER"
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
  std::uint64_t repetitions = 1;
  std::string summary = "median";  // of the repetitions; or "mean"
  std::uint64_t seed = 1;
  Hardware hardware;  // its name and text, whatever kind of hardware it is; none where nothing is simulated
  std::vector<Hardware> panel_hardware;  // as panels; without a name: it has none of its own
  EdmHardware edm;                       // kind "edm" alone
  EdmTestbedHardware edm_testbed;        // kinds "edm_testbed", "edm_modes" and "edm_ycsb"
  std::vector<std::string> panels;
  std::vector<std::string> series;
  std::vector<std::string> xs;  // as text
  bool numeric = true;          // they are numbers
  std::vector<PaperPoints> paper;
  std::vector<Point> points;

  // Otherwise something of the program's own is counted, and no hardware has a part in it.
  bool simulated() const { return kind != "box_memory"; }
  const Hardware& hardware_of(const Point& point) const;
  // The paper's line of that metric through this point, or one of its series and panel that has none there; nullptr: there is no such line.
  const PaperPoints* paper_of(const Point& point, std::string_view metric) const;
  // Its value there, of a range the one nearest to ours; NaN: none.
  double paper_at(const Point& point, std::string_view metric,
                  double ours = std::numeric_limits<double>::quiet_NaN()) const;
  // Whether any of the paper's points, nan being none, comes with a promise.
  bool promises() const;

  struct Source;
  std::shared_ptr<const Source> source;  // the parsed file
};

// Adds to the results (as experiment.points) the ratios that the paper has points of.
void add_ratios(const Experiment& experiment, std::vector<PointResult>& results);

// `hardware_path` empty: as the file says, in the folder hardware/ beside it, or else in `more_hardware`.
Result<Experiment> load_experiment(const std::string& path, const std::string& hardware_path = {},
                                   const std::string& more_hardware = {});
PointResult run_point(const Experiment& experiment, const Point& point);

}  // namespace sluice::sim
