#include "cli/experiment_results.h"

#include <commit.h>  // generated: cmake/commit.cmake
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "base/version.h"
#include "cli/command.h"
#include "cli/result_format.h"
#include "rack/settings/private_file.h"
#include "sim/world/fields.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// FNV-1a, twice from different starts: 128 bits that no accident makes equal.
std::string content_hash(std::string_view text) {
  std::uint64_t a = 0xCBF2'9CE4'8422'2325u;
  std::uint64_t b = 0x6C62'272E'07BB'0142u;
  for (const char c : text) {
    a = (a ^ static_cast<unsigned char>(c)) * 0x100'0000'01B3u;
    b = (b ^ (static_cast<unsigned char>(c) + 0x5Bu)) * 0x100'0000'01B3u;
  }
  return fmt::format("{:016x}{:016x}", a, b);
}

// Of all points: some series have metrics that others have not.
std::vector<std::string> metrics_of(const std::vector<sim::PointResult>& results) {
  std::vector<std::string> names;
  for (const sim::PointResult& result : results) {
    for (const auto& [name, value] : result.metrics) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::string number_or_nothing(double value) { return std::isnan(value) ? "" : fmt::format("{:.6g}", value); }

json number_or_null(double value) { return std::isnan(value) ? json(nullptr) : json(value); }

// "half writes, Clover, threads = 6".
std::string name_of(const sim::Experiment& e, const sim::Point& point) {
  std::string name;
  for (const std::string& part : {e.panels[point.panel], e.series[point.series]})
    if (!part.empty()) name += part + ", ";
  name += fmt::format("{} = {}", e.x, e.xs[point.x]);
  return e.repetitions == 1 ? name : name + fmt::format(", seed {}", point.seed);
}

// Of what no event happened in there is no trace.
std::string trace_of(const sim::PointResult& result) {
  return result.events == 0 ? "" : fmt::format("{:016x}", result.trace_hash);
}

}  // namespace

Result<PointCache> PointCache::open(const std::string& folder, const std::string& program) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(fmt::format("{}: cannot be made: {}", folder, error.message()));
  // However large it is, with all that debuggers want to know.
  const auto bytes = rack::read_whole_file(program, std::numeric_limits<std::size_t>::max());
  if (!bytes) return tl::unexpected(bytes.error());
  PointCache cache;
  cache.folder_ = folder;
  cache.program_hash_ = content_hash(*bytes);
  return cache;
}

std::string PointCache::path_of(const sim::Experiment& experiment, const sim::Point& point) const {
  const std::string all = program_hash_ + '\n' + experiment.hardware_of(point).text + '\n' + point.settings;
  return fmt::format("{}/{}.json", folder_, content_hash(all));
}

std::optional<sim::PointResult> PointCache::find(const sim::Experiment& experiment, const sim::Point& point) const {
  std::ifstream in(path_of(experiment, point));
  if (!in) return std::nullopt;
  try {
    const json kept = json::parse(in);
    sim::PointResult result;
    for (const json& pair : kept.at("metrics")) {
      const json& value = pair.at(1);
      result.metrics.emplace_back(pair.at(0).get<std::string>(), value.is_null() ? kNone : value.get<double>());
    }
    result.events = kept.at("events").get<std::uint64_t>();
    result.trace_hash = kept.at("trace_hash").get<std::uint64_t>();
    result.problem = kept.at("problem").get<std::string>();
    return result;
  } catch (const json::exception&) {
    return std::nullopt;  // what is not whole is simulated again
  }
}

Result<void> PointCache::store(const std::string& path, const sim::PointResult& result) {
  json kept = {{"events", result.events}, {"trace_hash", result.trace_hash}, {"problem", result.problem}};
  kept["metrics"] = json::array();
  for (const auto& [name, value] : result.metrics) kept["metrics"].push_back({name, number_or_null(value)});
  return store_text(path, kept.dump() + '\n');
}

Result<void> PointCache::store_text(const std::string& path, const std::string& text) {
  if (auto written = write_whole(path, text); !written)
    return fail(fmt::format("{}: {}", path, written.error().message));
  return {};
}

double summary_of(std::string_view how, const std::vector<double>& values) {
  if (how == "mean") return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Summary::error_percent() const { return std::isnan(paper) ? kNone : 100 * (ours / paper - 1); }
bool Summary::compared() const { return !std::isnan(paper) && !std::isnan(ours); }
bool Summary::promised() const { return !std::isnan(paper) && within.promised(); }
bool Summary::near() const { return trusted && promised() && compared() && within.holds(ours, paper); }

std::vector<Summary> ExperimentOutcome::summaries(std::string_view metric) const {
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::vector<double>> values;
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> untrusted;
  std::vector<Summary> all;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const sim::Point& point = experiment->points[i];
    if (point.repetition == 0) {
      const sim::PaperPoints* const line = experiment->paper_of(point, metric);
      all.push_back({.point = &point, .within = line == nullptr ? sim::Tolerance() : line->within});
    }
    values[{point.panel, point.series, point.x}].push_back(results[i].metric(metric));
    if (!results[i].problem.empty()) untrusted.emplace(point.panel, point.series, point.x);
  }
  for (Summary& summary : all) {
    auto& here = values[{summary.point->panel, summary.point->series, summary.point->x}];
    std::erase_if(here, [](double value) { return std::isnan(value); });
    if (here.empty()) here.push_back(kNone);
    std::ranges::sort(here);
    summary.least = here.front();
    summary.most = here.back();
    summary.ours = summary_of(experiment->summary, here);
    summary.trusted = !untrusted.contains({summary.point->panel, summary.point->series, summary.point->x});
    summary.paper = experiment->paper_at(*summary.point, metric, summary.ours);
  }
  return all;
}

std::vector<std::string> ExperimentOutcome::compared_metrics() const {
  std::vector<std::string> names{experiment->y};
  for (const sim::PaperPoints& paper : experiment->paper) {
    const std::string name = paper.over.empty() ? paper.metric : paper.ratio_name();
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

Nearness ExperimentOutcome::nearness() const {
  Nearness near;
  std::vector<std::string> promises;
  for (const std::string& metric : compared_metrics()) {
    for (const Summary& s : summaries(metric)) {
      if (s.compared()) {
        ++near.compared;
        if (std::abs(s.error_percent()) > std::abs(near.worst_percent)) near.worst_percent = s.error_percent();
      }
      if (!s.promised()) continue;
      ++near.promised;
      if (s.near()) ++near.near;
      const std::string text = s.within.text();
      if (std::ranges::find(promises, text) == promises.end()) promises.push_back(text);
    }
  }
  if (near.compared == 0 && near.promised == 0) return near;
  near.text = near.promised == 0 ? fmt::format("No promise is made for the {} points that the paper has", near.compared)
                                 : fmt::format("{} of {} points are as near the paper's as they are meant to be ({})",
                                               near.near, near.promised, fmt::join(promises, ", "));
  near.text += near.compared == 0 ? "; none of them came to anything."
                                  : fmt::format("; the farthest of all is {:+.1f} % off.", near.worst_percent);
  return near;
}

std::string ExperimentOutcome::problem() const {
  const auto is_wrong = [](const sim::PointResult& result) { return !result.problem.empty(); };
  const auto first = std::ranges::find_if(results, is_wrong);
  if (first != results.end()) {
    const sim::Point& point = experiment->points[static_cast<std::size_t>(first - results.begin())];
    const auto others = std::ranges::count_if(results, is_wrong) - 1;
    return fmt::format(
        "{}: {}{}", name_of(*experiment, point), first->problem,
        others == 0 ? "" : fmt::format(" (and {} more of {} points went wrong)", others, results.size()));
  }
  const auto has_none = [&](const sim::PointResult& result) { return std::isnan(result.metric(experiment->y)); };
  return std::ranges::all_of(results, has_none) ? fmt::format("no point has come to y = \"{}\"", experiment->y) : "";
}

namespace {

using Place = std::tuple<std::size_t, std::size_t, std::size_t>;  // panel, series, x
Place place_of(const sim::Point& point) { return {point.panel, point.series, point.x}; }

// What the paper has at a place, by metric, of a range what is nearest to ours; and the metrics that are farther from it than they mean to be.
struct Beside {
  std::map<std::string, double> paper;
  std::vector<std::string> far;
};
std::map<Place, Beside> beside_paper(const ExperimentOutcome& outcome) {
  std::map<Place, Beside> all;
  for (const std::string& metric : outcome.compared_metrics()) {
    for (const Summary& s : outcome.summaries(metric)) {
      Beside& here = all[place_of(*s.point)];
      if (!std::isnan(s.paper)) here.paper[metric] = s.paper;
      if (s.promised() && !s.near()) here.far.push_back(metric);
    }
  }
  return all;
}

}  // namespace

json to_json(const ExperimentOutcome& outcome) {
  const sim::Experiment& e = *outcome.experiment;
  json out = {{"name", e.name},
              {"title", e.title},
              {"figure", e.figure},
              {"text", e.text},
              {"kind", e.kind},
              {"simulated", e.simulated()},
              {"version", kVersion},
              {"commit", SLUICE_COMMIT},
              {"seed", std::to_string(e.seed)},
              {"hardware", e.hardware.name},
              {"x", e.x},
              {"x_title", e.x_title},
              {"y", e.y},
              {"y_title", e.y_title},
              {"y_scale", e.y_scale},
              {"summary", e.summary},
              {"numeric", e.numeric},
              {"nearness", outcome.nearness().text},
              {"problem", outcome.problem()}};
  const std::map<Place, Beside> beside = beside_paper(outcome);
  out["points"] = json::array();
  for (std::size_t i = 0; i < e.points.size(); ++i) {
    const sim::Point& point = e.points[i];
    json metrics = json::object();
    for (const auto& [name, value] : outcome.results[i].metrics) metrics[name] = number_or_null(value);
    const Beside& here = beside.at(place_of(point));
    out["points"].push_back({{"panel", e.panels[point.panel]},
                             {"series", e.series[point.series]},
                             {"x", e.xs[point.x]},
                             {"repetition", point.repetition},
                             {"seed", std::to_string(point.seed)},
                             {"hardware", e.hardware_of(point).name},
                             {"problem", outcome.results[i].problem},
                             {"metrics", metrics},
                             {"paper", here.paper},
                             {"far", here.far},
                             {"events", outcome.results[i].events},
                             {"trace_hash", trace_of(outcome.results[i])}});
  }
  out["sources"] = json::array();
  for (const sim::PaperPoints& paper : e.paper) out["sources"].push_back(paper.source);
  return out;
}

std::string to_csv(const ExperimentOutcome& outcome) {
  const sim::Experiment& e = *outcome.experiment;
  const std::vector<std::string> metrics = metrics_of(outcome.results);
  const std::vector<std::string> compared = outcome.compared_metrics();
  const std::map<Place, Beside> beside = beside_paper(outcome);
  std::string out = fmt::format("panel,series,{},repetition,seed", e.x);
  for (const std::string& name : metrics) out += "," + quoted_if_needed(name);
  for (const std::string& name : compared) out += "," + quoted_if_needed("paper_" + name);
  out += ",trace_hash,commit,hardware,simulated,problem\n";
  for (std::size_t i = 0; i < e.points.size(); ++i) {
    const sim::Point& point = e.points[i];
    out += fmt::format("{},{},{},{},{}", quoted(e.panels[point.panel]), quoted(e.series[point.series]),
                       quoted_if_needed(e.xs[point.x]), point.repetition, point.seed);
    for (const std::string& name : metrics) out += "," + number_or_nothing(outcome.results[i].metric(name));
    const auto& paper = beside.at(place_of(point)).paper;
    for (const std::string& name : compared)
      out += "," + (paper.contains(name) ? number_or_nothing(paper.at(name)) : "");
    out +=
        fmt::format(",{},{},{},{},{}\n", trace_of(outcome.results[i]), SLUICE_COMMIT, quoted(e.hardware_of(point).name),
                    e.simulated() ? "yes" : "no", quoted_if_needed(outcome.results[i].problem));
  }
  return out;
}

namespace {

// All that something ran on, in the order of the points.
std::vector<std::string> hardware_of(const sim::Experiment& e) {
  std::vector<std::string> names;
  for (const sim::Point& point : e.points) {
    const std::string& name = e.hardware_of(point).name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string to_table(const ExperimentOutcome& outcome) {
  const sim::Experiment& e = *outcome.experiment;
  const std::string figure = e.figure.empty() ? "" : fmt::format(" ({})", e.figure);
  const char* const ours = e.simulated() ? "simulated" : "counted";
  std::string out = fmt::format("{}{}, {}{}\n", e.title, figure, ours,
                                e.simulated() ? fmt::format(" on {}", fmt::join(hardware_of(e), "; ")) : "");
  for (const std::string& metric : outcome.compared_metrics()) {
    out += fmt::format("{:<44} {:>12} {:>12} {:>8}\n", metric == e.y ? e.y_title : metric, ours, "paper", "error");
    for (const Summary& s : outcome.summaries(metric)) {
      std::string name = fmt::format("{} {}", e.series[s.point->series], e.xs[s.point->x]);
      if (!e.panels[s.point->panel].empty()) name = fmt::format("{}, {}", e.panels[s.point->panel], name);
      if (std::isnan(s.ours) && !s.promised() && s.trusted) continue;
      out += std::isnan(s.ours) ? fmt::format("{:<44} {:>12}", name, "none")
                                : fmt::format("{:<44} {:>12.4g}", name, s.ours);
      if (s.compared()) out += fmt::format(" {:>12.4g} {:>+7.1f}%", s.paper, s.error_percent());
      if (!s.trusted) {
        out += "  not to be trusted";
      } else if (s.promised() && !s.near()) {
        out += fmt::format("  not {}", s.within.text());
      }
      out += '\n';
    }
  }
  return out;
}

}  // namespace sluice::cli
