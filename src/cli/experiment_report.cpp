#include "cli/experiment_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "cli/experiment_results.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// One place of a figure: the median or mean of its repetitions, and the paper's value.
struct Place {
  std::string panel;
  std::string series;
  std::string x;
  double ours = 0;
  double least = 0;
  double most = 0;
  json paper;
  bool far = false;     // farther from the paper's than it means to be
  bool trusted = true;  // nothing went wrong

  double error() const { return 100 * (ours / paper.get<double>() - 1); }
};

std::vector<Place> places_of(const json& result, const std::string& metric) {
  std::vector<Place> places;
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<double>> values;
  std::set<std::tuple<std::string, std::string, std::string>> untrusted;
  for (const json& point : result.at("points")) {
    const json& value = point.at("metrics").value(metric, json());
    Place place{.panel = point.at("panel"),
                .series = point.at("series"),
                .x = point.at("x"),
                .paper = point.at("paper").value(metric, json())};
    for (const json& far : point.at("far")) place.far = place.far || far == metric;
    const auto [here, is_new] = values.try_emplace({place.panel, place.series, place.x});
    if (is_new) places.push_back(place);
    if (!point.at("problem").get_ref<const std::string&>().empty()) untrusted.insert(here->first);
    if (value.is_number()) here->second.push_back(value.get<double>());
  }
  // What came to nothing is told where it was promised, or something went wrong.
  for (Place& place : places) place.trusted = !untrusted.contains({place.panel, place.series, place.x});
  std::erase_if(places, [&](const Place& place) {
    return !place.far && place.trusted && values[{place.panel, place.series, place.x}].empty();
  });
  for (Place& place : places) {
    auto& here = values[{place.panel, place.series, place.x}];
    if (here.empty()) {
      place.ours = kNone;
      continue;
    }
    std::ranges::sort(here);
    place.least = here.front();
    place.most = here.back();
    place.ours = summary_of(result.value("summary", "median"), here);
  }
  return places;
}

std::vector<std::string> metrics_of(const json& result) {
  std::vector<std::string> metrics{result.at("y")};
  std::set<std::string> others;
  for (const json& point : result.at("points")) {
    for (const auto& [name, value] : point.at("paper").items()) others.insert(name);
  }
  others.erase(metrics.front());
  metrics.insert(metrics.end(), others.begin(), others.end());
  return metrics;
}

std::string word_for_ours(const json& result) { return result.at("simulated").get<bool>() ? "simulated" : "counted"; }

json x_value(const json& result, const std::string& x) {
  return result.at("numeric").get<bool>() ? json(std::stod(x)) : json(x);
}

// As the experiment has them: names would be drawn in the order of the alphabet.
json names_in_order(const json& result) {
  json names = json::array();
  for (const json& point : result.at("points")) {
    if (std::ranges::find(names, point.at("x")) == names.end()) names.push_back(point.at("x"));
  }
  return names;
}

std::string series_of(const Place& place, const std::string& ours) {
  return place.series.empty() ? ours : place.series;
}

std::vector<std::string> series_in_order(const std::vector<Place>& places, const std::string& ours) {
  std::vector<std::string> names;
  for (const Place& place : places) {
    const std::string name = series_of(place, ours);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

// Lines are ours, points the paper's; where x is a name, bars and ticks.
json plot_of(const json& result, const std::vector<Place>& places, const std::string& y_title) {
  const std::string ours = word_for_ours(result);
  json rows = json::array();
  // On a logarithmic scale 0 is infinitely far away: one such value would put all others on one edge. The table has it. (The paper's are above 0.)
  const bool logarithmic = result.at("y_scale") == "log";
  for (const Place& place : places) {
    const std::string series = series_of(place, ours);
    if (place.trusted && !std::isnan(place.ours) && (!logarithmic || place.ours > 0))
      rows.push_back({{"x", x_value(result, place.x)},
                      {"y", place.ours},
                      {"least", place.least},
                      {"most", place.most},
                      {"series", series},
                      {"panel", place.panel},
                      {"whose", ours}});
    if (place.paper.is_number())
      rows.push_back({{"x", x_value(result, place.x)},
                      {"y", place.paper},
                      {"series", series},
                      {"panel", place.panel},
                      {"whose", "paper"}});
  }
  const bool numeric = result.at("numeric");
  json x = {{"field", "x"}, {"type", numeric ? "quantitative" : "nominal"}, {"title", result.at("x_title")}};
  if (!numeric) x["sort"] = names_in_order(result);
  json y = {{"field", "y"}, {"type", "quantitative"}, {"title", y_title}, {"scale", {{"type", result.at("y_scale")}}}};
  json color = {{"field", "series"},
                {"type", "nominal"},
                {"title", nullptr},
                {"scale", {{"domain", series_in_order(places, ours)}}}};
  if (std::ranges::all_of(places, [](const Place& place) { return place.series.empty(); })) color["legend"] = nullptr;
  // Not by colours alone, of which some readers see fewer. One domain makes one legend of both.
  const json dash = color;
  const json shape = {{"field", "whose"},
                      {"type", "nominal"},
                      {"title", nullptr},
                      {"scale", {{"domain", {ours, "paper"}}, {"range", {"cross", "circle"}}}}};
  json line = {{"mark", {{"type", "line"}, {"strokeWidth", 1.5}}},
               {"transform", json{{{"filter", "datum.whose != 'paper'"}}}},
               {"encoding", {{"x", x}, {"y", y}, {"color", color}, {"strokeDash", dash}}}};
  json points = {{"mark", {{"type", "point"}, {"size", 50}, {"tooltip", true}}},
                 {"encoding", {{"x", x}, {"y", y}, {"color", color}, {"shape", shape}}}};
  if (!numeric) points["encoding"]["xOffset"] = {{"field", "series"}, {"scale", color["scale"]}};
  json layers = numeric ? json{line, points} : json{points};
  const bool panels = std::ranges::any_of(places, [](const Place& place) { return !place.panel.empty(); });
  if (!panels) return {{"data", {{"values", rows}}}, {"layer", layers}};
  return {{"data", {{"values", rows}}},
          {"facet", {{"field", "panel"}, {"type", "nominal"}, {"title", nullptr}, {"sort", nullptr}}},
          {"columns", 2},
          {"spec", {{"width", 320}, {"height", 220}, {"layer", layers}}},
          {"resolve", {{"scale", {{"y", "independent"}}}}}};
}

json table_of(const json& result, const std::vector<Place>& places, const std::string& y_title) {
  const bool panels = std::ranges::any_of(places, [](const Place& place) { return !place.panel.empty(); });
  const bool series = std::ranges::any_of(places, [](const Place& place) { return !place.series.empty(); });
  json columns = json::array();
  if (panels) columns.push_back("");
  if (series) columns.push_back("series");
  columns.insert(columns.end(), {result.at("x_title"), y_title + ", " + word_for_ours(result), "paper", "error"});
  json rows = json::array();
  for (const Place& place : places) {
    json row = json::array();
    if (panels) row.push_back(place.panel);
    if (series) row.push_back(place.series);
    row.push_back(place.x);
    const bool none = std::isnan(place.ours);
    row.push_back(none ? "none" : fmt::format("{:.4g}", place.ours));
    row.push_back(place.paper.is_number() ? fmt::format("{:.4g}", place.paper.get<double>()) : "");
    row.push_back(!place.trusted            ? "not to be trusted"
                  : none                    ? "too far"
                  : place.paper.is_number() ? fmt::format("{:+.1f} %{}", place.error(), place.far ? ", too far" : "")
                                            : "");
    rows.push_back(row);
  }
  return {{"columns", columns}, {"rows", rows}};
}

json section_of(const json& result, const std::string& metric) {
  const auto places = places_of(result, metric);
  const bool first = metric == result.at("y");
  const std::string y_title = first ? result.at("y_title").get<std::string>() : metric;
  const std::string figure = result.at("figure").get<std::string>();
  const std::string title = fmt::format("{}{}{} ({})", figure, figure.empty() ? "" : ": ",
                                        first ? result.at("title").get<std::string>() : metric, word_for_ours(result));
  json section = {
      {"title", title}, {"table", table_of(result, places, y_title)}, {"plot", plot_of(result, places, y_title)}};
  if (!first) return section;
  const std::string& problem = result.at("problem").get_ref<const std::string&>();
  section["text"] = fmt::format("{} {}{}", result.at("text").get<std::string>(), result.value("nearness", ""),
                                problem.empty() ? "" : fmt::format(" Not sound: {}.", problem));
  return section;
}

std::string subtitle_of(const std::set<std::string>& hardware, const std::set<std::string>& commits, bool counted) {
  return fmt::format(
      "Everything here{} is simulated, in virtual time, with the project's own protocol code and models of the "
      "hardware; nothing is measured. Circles are the paper's. Hardware: {}. Program: commit {}.",
      counted ? " but what is called counted" : "", fmt::join(hardware, "; "), fmt::join(commits, ", "));
}

}  // namespace

json experiments_report(const std::vector<json>& results) {
  json sections = json::array();
  std::string wrong;  // names
  bool counted = false;
  std::size_t points = 0;
  std::set<std::string> commits;
  std::set<std::string> hardware;
  for (const json& result : results) {
    commits.insert(result.at("commit"));
    const bool simulated = result.at("simulated");
    counted = counted || !simulated;
    if (simulated) points += result.at("points").size();
    for (const json& point : result.at("points"))
      if (simulated) hardware.insert(point.at("hardware"));
    if (!result.at("problem").get_ref<const std::string&>().empty())
      wrong += (wrong.empty() ? "" : ", ") + result.at("name").get<std::string>();
    for (const std::string& metric : metrics_of(result)) sections.push_back(section_of(result, metric));
  }
  return {{"title", "Sluice: the papers' figures, simulated"},
          {"subtitle", subtitle_of(hardware, commits, counted)},
          {"sound", wrong.empty()},
          {"verdict",
           wrong.empty() ? fmt::format("{} simulations, all sound", points) : "some simulations went wrong: " + wrong},
          {"sections", sections},
          {"facts", results}};
}

}  // namespace sluice::cli
