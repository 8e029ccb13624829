#include "sim/experiment/experiment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <tuple>
#include <variant>

#include "base/check.h"
#include "base/rng.h"
#include "sim/edm/edm_load.h"
#include "sim/edm/edm_modes.h"
#include "sim/edm/edm_ycsb.h"
#include "sim/load/box_memory.h"
#include "sim/load/clover_load.h"
#include "sim/load/cowbird_load.h"
#include "sim/load/latency.h"
#include "sim/load/order_load.h"
#include "sim/load/store_load.h"
#include "sim/load/tenant_load.h"
#include "sim/load/verbs_load.h"
#include "sim/world/fields.h"

namespace sluice::sim {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr auto kOptional = Fields::Need::kOptional;
constexpr std::string_view kPanelHardware = "hardware";

using Workload =
    std::variant<VerbsWorkload, OrderWorkload, CloverWorkload, EdmWorkload, EdmTestbedWorkload, EdmModesWorkload,
                 EdmYcsbWorkload, BoxMemoryWorkload, TenantWorkload, StoreWorkload, CowbirdWorkload>;

Workload workload_of(const std::string& kind) {
  if (kind == "order") return OrderWorkload{};
  if (kind == "clover") return CloverWorkload{};
  if (kind == "store") return StoreWorkload{};
  if (kind == "edm") return EdmWorkload{};
  if (kind == "edm_testbed") return EdmTestbedWorkload{};
  if (kind == "edm_modes") return EdmModesWorkload{};
  if (kind == "edm_ycsb") return EdmYcsbWorkload{};
  if (kind == "box_memory") return BoxMemoryWorkload{};
  if (kind == "tenants") return TenantWorkload{};
  if (kind == "cowbird") return CowbirdWorkload{};
  return VerbsWorkload{};
}

// What points of a kind may be asked for, as y or as the paper's metric.
using Metrics = std::vector<std::string_view>;
const Metrics kVerbsMetrics{"throughput", "p50_us", "p99_us"};
const Metrics kCloverMetrics{"throughput",
                             "p50_us",
                             "p99_us",
                             "read_p99_us",
                             "write_p99_us",
                             "success_percent",
                             "three_packets_percent",
                             "packets_per_operation",
                             "bytes_per_operation",
                             "reads_per_operation",
                             "swaps_per_operation",
                             "swaps_lost_per_operation",
                             "walks_per_operation",
                             "shortcuts_per_operation",
                             "lookups_per_operation",
                             "messages_per_operation",
                             "per_client_kops",
                             "lock_throughput",
                             "edm_waited_ns"};
// Beside those of Clover.
const Metrics kStoreMetrics{"read_p50_us",
                            "write_p50_us",
                            "swap_throughput",
                            "round_trips_per_operation",
                            "remote_per_operation",
                            "cache_hits_per_operation",
                            "torn_per_operation",
                            "hand_overs_per_operation",
                            "changes_lost_per_operation"};
const Metrics kEdmMetrics{"published",       "slowdown",     "p99",     "common", "wire",     "took_ns",     "wait_ns",
                          "batched_percent", "displaced_ns", "dropped", "pauses", "queue_ns", "over_percent"};
const Metrics kEdmTestbedMetrics{"first_ns",      "last_ns",        "compute_ns",     "switch_ns",     "memory_ns",
                                 "pcs_ns",        "pma_ns",         "propagation_ns", "protocol_ns",   "mac_ns",
                                 "forwarding_ns", "compute_cycles", "frames",         "switch_cycles", "p99_ns",
                                 "most_ns",       "memory_cycles"};
const Metrics kEdmModesMetrics{"all_same", "differ", "testbed_ns", "cluster_ns", "difference_percent",
                               "most_ns",  "held",   "met",        "waited_ns"};
const Metrics kEdmYcsbMetrics{"up_writes", "requests", "waited_ns", "mean_ns"};
const Metrics kBoxMemoryMetrics{"kib", "bytes_a_connection", "bytes_a_key", "bytes_a_word"};
const Metrics kTenantMetrics{
    "goodput_gbps", "served_gbps",  "p50_us",          "p99_us",           "most_us",      "small_gbps",   "small_mops",
    "small_p50_us", "small_p99_us", "large_gbps",      "large_mops",       "large_p50_us", "large_p99_us", "pause_us",
    "rekeys",       "dropped",      "fair_after_rtts", "least_jain_later", "sent_again",   "not_ended",    "failed"};
const Metrics kCowbirdMetrics{"throughput",
                              "gbps",
                              "p50_us",
                              "p99_us",
                              "communication_percent",
                              "up_gbps",
                              "down_gbps",
                              "tcp_gbps",
                              "tcp_repaired_percent",
                              "tcp_timeouts",
                              "tcp_round_trip_us",
                              "engine_busy_percent"};

Metrics metrics_of(const std::string& kind) {
  if (kind == "verbs") return kVerbsMetrics;
  if (kind == "order") return {"share"};
  if (kind == "clover") return kCloverMetrics;
  if (kind == "edm") return kEdmMetrics;
  if (kind == "edm_testbed") return kEdmTestbedMetrics;
  if (kind == "edm_modes") return kEdmModesMetrics;
  if (kind == "edm_ycsb") return kEdmYcsbMetrics;
  if (kind == "box_memory") return kBoxMemoryMetrics;
  if (kind == "tenants") return kTenantMetrics;
  if (kind == "cowbird") return kCowbirdMetrics;
  Metrics all = kStoreMetrics;
  all.insert(all.end(), kCloverMetrics.begin(), kCloverMetrics.end());
  return all;
}

PointResult result_of(const VerbsResult& r) {
  return {.metrics = {{"throughput", r.per_second / 1e6},
                      {"p50_us", quantile_us(r.latency_ns, 0.5)},
                      {"p99_us", quantile_us(r.latency_ns, 0.99)}},
          .events = r.events,
          .trace_hash = r.trace_hash,
          .problem = r.problem.empty() && r.per_second == 0 ? std::string(kNothingEnded) : r.problem};
}

PointResult result_of(const OrderResult& r, std::uint64_t gap) {
  return {.metrics = {{"share", 100 * r.share_of(static_cast<std::int64_t>(gap))}},
          .events = r.events,
          .trace_hash = r.trace_hash,
          .problem = r.problem};
}

bool as_number(const toml::node& node, double& out) {
  if (const auto whole = node.value_exact<std::int64_t>()) return out = static_cast<double>(*whole), true;
  if (const auto real = node.value_exact<double>()) return out = *real, true;
  return false;
}

}  // namespace

// The file's tables stay where they are: points point into them.
struct Experiment::Source {
  toml::table table;
  const toml::table* workload = nullptr;
  const toml::array* values = nullptr;
  std::vector<const toml::table*> series;
  std::vector<const toml::table*> panels;
};

namespace {

using Source = Experiment::Source;

class Loader {
 public:
  Loader(Experiment& experiment, Source& source) : e_(experiment), s_(source) {}

  Result<void> load(const std::string& hardware_path, const std::string& more_hardware) {
    hardware_folders_ = {std::filesystem::path(e_.path).parent_path() / "hardware", more_hardware};
    replaced_ = !hardware_path.empty();
    Fields top(s_.table, e_.path, "", error_);
    read_top(top);
    s_.workload = table_of(top, "workload");
    read_sweep(top);
    read_variants(top, "series", e_.series, s_.series);
    read_variants(top, "panel", e_.panels, s_.panels);
    check_sweep_alone();
    check_hardware_of_panels();
    read_paper(top);
    top.finish();
    if (error_.empty()) make_points();
    if (!error_.empty()) return fail(error_);
    if (auto panels = load_panel_hardware(); !panels) return panels;
    if (auto done = load_hardware_of_kind(replaced_ ? hardware_path : hardware_file(hardware_)); !done) return done;
    return check_modes();
  }

 private:
  std::string hardware_file(const std::string& name) const {
    for (const auto& folder : hardware_folders_) {
      std::error_code none;
      if (auto file = folder / (name + ".toml"); !folder.empty() && std::filesystem::exists(file, none))
        return file.string();
    }
    return {};
  }
  void check_hardware(Fields& fields, std::string_view key, const std::string& name) {
    const toml::node* const node = fields.node(key, kOptional);
    if (node == nullptr || !hardware_file(name).empty()) return;
    std::set<std::string> names;
    for (const auto& folder : hardware_folders_) {
      std::error_code none;
      for (const auto& entry : std::filesystem::directory_iterator(folder, none))
        if (entry.path().extension() == ".toml") names.insert(entry.path().stem().string());
    }
    fields.fail(*node, key,
                fmt::format("names {}.toml in hardware/ beside this file; that is not there, nor one of the project's "
                            "of this name; there {}",
                            name, names.empty() ? "is none" : fmt::format("are {}", fmt::join(names, ", "))));
  }
  Result<void> load_panel_hardware() {
    e_.panel_hardware.resize(s_.panels.size());
    for (std::size_t i = 0; i < s_.panels.size(); ++i) {
      if (s_.panels[i] == nullptr || !s_.panels[i]->contains(kPanelHardware)) continue;
      const std::string name = *(*s_.panels[i])[kPanelHardware].value<std::string>();
      Fields panel(*s_.panels[i], e_.path, "[panel]", error_);
      check_hardware(panel, kPanelHardware, name);
      if (!error_.empty()) return fail(error_);
      auto hardware = load_hardware(hardware_file(name));
      if (!hardware) return tl::unexpected(hardware.error());
      e_.panel_hardware[i] = std::move(*hardware);
    }
    return {};
  }
  // What a workload asks of the hardware.
  Result<void> check_modes();
  Result<void> load_hardware_of_kind(const std::string& path) {
    if (!e_.simulated()) return {};
    if (e_.kind == "edm") {
      auto edm = load_edm_hardware(path);
      if (!edm) return tl::unexpected(edm.error());
      e_.edm = std::move(*edm);
      e_.hardware.name = e_.edm.name;
      e_.hardware.text = e_.edm.text;
      return {};
    }
    if (e_.kind == "edm_testbed" || e_.kind == "edm_modes" || e_.kind == "edm_ycsb") {
      auto edm = load_edm_testbed_hardware(path);
      if (!edm) return tl::unexpected(edm.error());
      e_.edm_testbed = std::move(*edm);
      e_.hardware.name = e_.edm_testbed.name;
      e_.hardware.text = e_.edm_testbed.text;
      return {};
    }
    auto hardware = load_hardware(path);
    if (!hardware) return tl::unexpected(hardware.error());
    e_.hardware = std::move(*hardware);
    if (edm_hardware_.empty()) return {};
    auto edm = load_edm_testbed_hardware(hardware_file(edm_hardware_));
    if (!edm) return tl::unexpected(edm.error());
    add_edm(e_.hardware, *edm);
    for (Hardware& own : e_.panel_hardware) {
      if (!own.name.empty()) add_edm(own, *edm);
    }
    return {};
  }
  static void add_edm(Hardware& hardware, const EdmTestbedHardware& edm) {
    hardware.name += " and " + edm.name;
    hardware.text += edm.text;
    hardware.edm = std::make_shared<const EdmTestbedHardware>(edm);
  }
  void read_top(Fields& top) {
    top.text("title", e_.title);
    top.text("figure", e_.figure, kOptional);
    top.text("text", e_.text, kOptional);
    top.choice("kind", e_.kind,
               {"verbs", "order", "clover", "store", "edm", "edm_testbed", "edm_modes", "edm_ycsb", "box_memory",
                "tenants", "cowbird"});
    if (e_.simulated()) {
      top.text("hardware", hardware_);
      if (!replaced_) check_hardware(top, "hardware", hardware_);
    } else if (const toml::node* const vain = top.node("hardware", kOptional)) {
      top.fail(*vain, "hardware", fmt::format("has no part in what kind = \"{}\" counts: leave it out", e_.kind));
    }
    top.text("edm_hardware", edm_hardware_, kOptional);
    check_hardware(top, "edm_hardware", edm_hardware_);
    top.text("x", e_.x);
    top.text("x_title", e_.x_title);
    top.choice("y", e_.y, metrics_of(e_.kind));
    top.text("y_title", e_.y_title);
    top.choice("y_scale", e_.y_scale, {"linear", "log"}, kOptional);
    read_tolerance(top, within_);
    top.integer("repetitions", e_.repetitions, 1, 1000, kOptional);
    top.choice("summary", e_.summary, {"median", "mean"}, kOptional);
    top.integer("seed", e_.seed, 0, std::numeric_limits<std::int64_t>::max(), kOptional);
  }

  static void read_tolerance(Fields& f, Tolerance& within) {
    f.integer("within_percent", within.percent, 1, 1000, kOptional);
    f.integer("within_factor", within.factor, 2, 1000, kOptional);
    f.integer("within_points", within.points, 1, 1000, kOptional);
    f.choice("within_or", within.or_else, {"above", "below"}, kOptional);
    if (!within.or_else.empty() && !within.promised() && !f.failed())
      f.fail(*f.node("within_or"), "within_or", "needs within_percent, within_factor or within_points beside it");
  }

  const toml::table* table_of(Fields& top, const char* key) {
    const toml::node* const node = top.node(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) top.fail(*node, key, "must be a table");
    return node->as_table();
  }

  void read_sweep(Fields& top) {
    const toml::table* const sweep = table_of(top, "sweep");
    if (sweep == nullptr || !error_.empty()) return;
    Fields fields(*sweep, e_.path, "sweep", error_);
    const toml::node* const values = fields.node(e_.x);
    if (values == nullptr) return;
    s_.values = values->as_array();
    if (s_.values == nullptr || s_.values->empty())
      return fields.fail(*values, e_.x, "must be a list of numbers or texts");
    for (const toml::node& value : *s_.values) {
      double number = 0;
      const bool is_number = as_number(value, number);
      e_.numeric = e_.numeric && is_number;
      if (!is_number && !value.is_string()) return fields.fail(value, e_.x, "must be a list of numbers or texts");
      const std::string x = is_number ? fmt::format("{}", number) : value.as_string()->get();
      if (std::ranges::find(e_.xs, x) != e_.xs.end()) return fields.fail(value, e_.x, fmt::format("has {} twice", x));
      e_.xs.push_back(x);
    }
    fields.finish();
  }

  // What the sweep varies is said nowhere else: it would not count.
  void check_sweep_alone() {
    const auto check = [&](const toml::table* table, const char* section) {
      const toml::node* const own = table == nullptr ? nullptr : table->get(e_.x);
      if (own != nullptr) Fields(*table, e_.path, section, error_).fail(*own, e_.x, "is what [sweep] varies");
    };
    check(s_.workload, "workload");
    for (const toml::table* panel : s_.panels) check(panel, "[panel]");
    for (const toml::table* series : s_.series) check(series, "[series]");
  }

  // Points of one panel have one hardware: anywhere else it would not count.
  void check_hardware_of_panels() {
    const auto check = [&](const toml::table* table, const char* section) {
      const toml::node* const own = table == nullptr ? nullptr : table->get(kPanelHardware);
      if (own != nullptr)
        Fields(*table, e_.path, section, error_)
            .fail(*own, kPanelHardware, "is said at the top, or in [[panel]] for one panel, and nowhere else");
    };
    check(s_.workload, "workload");
    check(s_.table["sweep"].as_table(), "sweep");
    for (const toml::table* series : s_.series) check(series, "[series]");
  }

  // Without any there is one of no name that changes nothing.
  void read_variants(Fields& top, const char* key, std::vector<std::string>& names,
                     std::vector<const toml::table*>& tables) {
    const toml::node* const node = top.node(key, kOptional);
    if (node == nullptr) {
      names.emplace_back();
      tables.push_back(nullptr);
      return;
    }
    const toml::array* const array = node->as_array();
    if (array == nullptr || !array->is_array_of_tables()) return top.fail(*node, key, "must be tables, [[...]]");
    for (const toml::node& variant : *array) {
      const toml::node* const name = variant.as_table()->get("name");
      if (name == nullptr || !name->is_string()) return top.fail(variant, key, "needs a name");
      if (std::ranges::find(names, name->as_string()->get()) != names.end())
        return top.fail(*name, key, fmt::format("has two of the name {}", name->as_string()->get()));
      names.push_back(name->as_string()->get());
      tables.push_back(variant.as_table());
    }
  }

  // Points that name no panel are every panel's.
  void read_paper(Fields& top) {
    const toml::node* const node = top.node("paper", kOptional);
    if (node == nullptr) return;
    const toml::array* const array = node->as_array();
    if (array == nullptr || !array->is_array_of_tables()) return top.fail(*node, "paper", "must be tables, [[paper]]");
    for (const toml::node& one : *array) {
      Fields f(*one.as_table(), e_.path, "paper", error_);
      PaperPoints points;
      f.text("series", points.series, kOptional);
      f.text("panel", points.panel, kOptional);
      f.choice("metric", points.metric, metrics_of(e_.kind), kOptional);
      f.text("over", points.over, kOptional);
      f.text("source", points.source);
      read_tolerance(f, points.within);
      if (!points.within.promised()) points.within = within_;
      if (points.metric.empty()) points.metric = e_.y;
      read_numbers(f, "y", Fields::Need::kRequired, points.ys);
      read_numbers(f, "up_to", kOptional, points.up_to);
      check_ranges(f, one, points);
      f.finish();
      check_name(f, one, "series", points.series, e_.series);
      if (!points.over.empty()) check_name(f, one, "over", points.over, e_.series);
      if (one.as_table()->contains("panel") || e_.panels.size() == 1) {
        check_name(f, one, "panel", points.panel, e_.panels);
        add_paper(f, one, std::move(points));
        continue;
      }
      for (const std::string& panel : e_.panels) {
        points.panel = panel;
        add_paper(f, one, points);
      }
    }
  }

  // What is promised may differ from place to place: then there is a line for each promise, with nan where another one is.
  static bool have_one_place(const PaperPoints& a, const PaperPoints& b) {
    for (std::size_t i = 0; i < std::min(a.ys.size(), b.ys.size()); ++i)
      if (!std::isnan(a.ys[i]) && !std::isnan(b.ys[i])) return true;
    return false;
  }

  void add_paper(Fields& f, const toml::node& one, PaperPoints points) {
    const auto is_same = [&](const PaperPoints& other) {
      return std::tie(other.series, other.panel, other.metric, other.over) ==
                 std::tie(points.series, points.panel, points.metric, points.over) &&
             have_one_place(other, points);
    };
    if (std::ranges::any_of(e_.paper, is_same)) {
      f.fail(
          one, "series",
          fmt::format("{} has two lines of points of one metric; a range is one line, from y to up_to", points.series));
    }
    e_.paper.push_back(std::move(points));
  }

  // One for each x.
  void read_numbers(Fields& f, const char* key, Fields::Need need, std::vector<double>& out) {
    const toml::node* const node = f.node(key, need);
    if (node == nullptr) return;
    const toml::array* const numbers = node->as_array();
    const std::string allowed = fmt::format("must be a list of {} numbers, one for each {}", e_.xs.size(), e_.x);
    if (numbers == nullptr || numbers->size() != e_.xs.size()) return f.fail(*node, key, allowed);
    for (const toml::node& number : *numbers) {
      double& value = out.emplace_back();
      if (!as_number(number, value)) return f.fail(number, key, allowed);
      if (!std::isnan(value) && (value <= 0 || std::isinf(value)))
        return f.fail(number, key, "must have numbers above 0, or nan where the paper has none");
    }
  }

  static void check_ranges(Fields& f, const toml::node& at, const PaperPoints& points) {
    if (f.failed()) return;
    for (std::size_t i = 0; i < points.up_to.size(); ++i) {
      if (points.up_to[i] < points.ys[i])
        f.fail(at, "up_to", fmt::format("has {} where y has {}: it must not be less", points.up_to[i], points.ys[i]));
    }
  }

  void check_name(Fields& f, const toml::node& at, const char* key, const std::string& name,
                  const std::vector<std::string>& names) const {
    if (std::ranges::find(names, name) != names.end()) return;
    const bool none = names.size() == 1 && names.front().empty();
    f.fail(at, key,
           none ? fmt::format("is \"{}\", and there are no {}", name, &names == &e_.panels ? "panels" : "series")
                : fmt::format("must be one of {}", fmt::join(names, ", ")));
  }

  void make_points();

  Experiment& e_;
  Source& s_;
  std::string hardware_;
  std::string edm_hardware_;
  std::array<std::filesystem::path, 2> hardware_folders_;  // the first has precedence
  bool replaced_ = false;                                  // by --hardware: the file's own has no part in it
  Tolerance within_;                                       // of points that say nothing themselves
  std::string error_;
};

// The settings of one point.
Workload read_workload(const Experiment& e, const Source& s, const Point& point, std::string& error) {
  Fields fields(*s.workload, e.path, "workload", error);
  const toml::table* const panel = s.panels[point.panel];
  if (panel != nullptr) fields.over(*panel, "[panel]");
  // What a panel is simulated on has been loaded with the file.
  const bool own_rack = e.kind == "verbs" || e.kind == "order" || e.kind == "clover" || e.kind == "store" ||
                        e.kind == "tenants" || e.kind == "cowbird";
  std::string hardware;
  if (own_rack && panel != nullptr && panel->contains(kPanelHardware)) fields.text(kPanelHardware, hardware);
  if (s.series[point.series] != nullptr) fields.over(*s.series[point.series], "[series]");
  fields.replace(e.x, *s.values->get(point.x), "sweep");
  Workload workload = workload_of(e.kind);
  std::visit([&](auto& w) { w.read(fields); }, workload);
  fields.finish();
  return workload;
}

std::string settings_text(const Experiment& e, const Source& s, const Point& point) {
  std::ostringstream text;
  text << e.kind << '\n' << *s.workload << '\n';
  if (s.panels[point.panel] != nullptr) text << *s.panels[point.panel] << '\n';
  if (s.series[point.series] != nullptr) text << *s.series[point.series] << '\n';
  text << e.x << '=' << e.xs[point.x] << " seed=" << point.seed;
  return text.str();
}

void Loader::make_points() {
  const Rng rng(e_.seed);
  for (std::size_t panel = 0; panel < e_.panels.size(); ++panel) {
    for (std::size_t series = 0; series < e_.series.size(); ++series) {
      for (std::size_t x = 0; x < e_.xs.size(); ++x) {
        for (std::uint64_t repetition = 0; repetition < e_.repetitions; ++repetition) {
          // The same chance for all series and values: what differs is what is compared.
          Point point{.panel = panel,
                      .series = series,
                      .x = x,
                      .repetition = repetition,
                      .seed = rng.fork(repetition).next(),
                      .settings = {}};
          point.settings = settings_text(e_, s_, point);
          read_workload(e_, s_, point, error_);
          if (!error_.empty()) return;
          e_.points.push_back(std::move(point));
        }
      }
    }
  }
}

Result<void> Loader::check_modes() {
  if (e_.kind != "edm_modes" || can_be_whole_blocks(e_.edm_testbed)) return {};
  for (const Point& point : e_.points) {
    const Workload workload = read_workload(e_, s_, point, error_);
    if (!std::get<EdmModesWorkload>(workload).whole_blocks) continue;
    Fields(*s_.workload, e_.path, "workload", error_)
        .fail(*s_.workload, "times", "must be as_they_are: a cycle of this hardware is no whole number of blocks");
    return fail(error_);
  }
  return {};
}

}  // namespace

double PointResult::metric(std::string_view name) const {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  return kNone;
}

bool Tolerance::holds(double ours, double paper) const {
  if ((or_else == "above" && ours >= paper) || (or_else == "below" && ours <= paper)) return true;
  if (percent != 0 && std::abs(ours / paper - 1) * 100 > static_cast<double>(percent)) return false;
  if (factor != 0 && (ours / paper < 0 || std::max(ours / paper, paper / ours) > static_cast<double>(factor)))
    return false;
  return points == 0 || std::abs(ours - paper) <= static_cast<double>(points);
}

std::string Tolerance::text() const {
  std::vector<std::string> parts;
  if (points != 0) parts.push_back(fmt::format("{} points", points));
  if (percent != 0) parts.push_back(fmt::format("{} %", percent));
  if (factor != 0) parts.push_back(fmt::format("{}x", factor));
  return fmt::format("within {}{}{}", fmt::join(parts, " and "), or_else.empty() ? "" : " or ", or_else);
}

std::string PaperPoints::ratio_name() const { return fmt::format("{}, times that of {}", metric, over); }

double PaperPoints::nearest(std::size_t at, double ours) const {
  if (up_to.empty() || std::isnan(ours) || !(ys[at] <= up_to[at])) return ys[at];
  return std::clamp(ours, ys[at], up_to[at]);
}

const PaperPoints* Experiment::paper_of(const Point& point, std::string_view metric) const {
  const PaperPoints* found = nullptr;
  for (const PaperPoints& line : paper) {
    const bool about = line.over.empty() ? line.metric == metric : line.ratio_name() == metric;
    if (line.series != series[point.series] || line.panel != panels[point.panel] || !about) continue;
    if (!std::isnan(line.ys[point.x])) return &line;
    found = &line;
  }
  return found;
}

double Experiment::paper_at(const Point& point, std::string_view metric, double ours) const {
  const PaperPoints* const line = paper_of(point, metric);
  return line == nullptr ? kNone : line->nearest(point.x, ours);
}

bool Experiment::promises() const {
  const auto is_number = [](double number) { return !std::isnan(number); };
  return std::ranges::any_of(paper, [&](const PaperPoints& line) {
    return line.within.promised() && std::ranges::any_of(line.ys, is_number);
  });
}

void add_ratios(const Experiment& e, std::vector<PointResult>& results) {
  const auto same_but_series = [&](const Point& a, const Point& b) {
    return a.panel == b.panel && a.x == b.x && a.repetition == b.repetition;
  };
  for (const PaperPoints& line : e.paper) {
    if (line.over.empty()) continue;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Point& point = e.points[i];
      if (e.series[point.series] != line.series || e.panels[point.panel] != line.panel) continue;
      for (std::size_t j = 0; j < results.size(); ++j) {
        const Point& other = e.points[j];
        if (e.series[other.series] != line.over || !same_but_series(point, other)) continue;
        if (!std::isnan(results[i].metric(line.ratio_name()))) continue;  // of another line of the same
        results[i].metrics.emplace_back(line.ratio_name(),
                                        results[i].metric(line.metric) / results[j].metric(line.metric));
      }
    }
  }
}

const Hardware& Experiment::hardware_of(const Point& point) const {
  const Hardware& own = panel_hardware[point.panel];
  return own.name.empty() ? hardware : own;
}

Result<Experiment> load_experiment(const std::string& path, const std::string& hardware_path,
                                   const std::string& more_hardware) {
  const auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  auto parsed = parse_toml(*text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  Experiment experiment;
  experiment.path = path;
  experiment.name = std::filesystem::path(path).stem().string();
  const auto source = std::make_shared<Source>();
  source->table = std::move(*parsed);
  if (auto loaded = Loader(experiment, *source).load(hardware_path, more_hardware); !loaded)
    return tl::unexpected(loaded.error());
  experiment.source = source;
  return experiment;
}

PointResult run_point(const Experiment& experiment, const Point& point) {
  std::string error;
  const Workload workload = read_workload(experiment, *experiment.source, point, error);
  SLUICE_CHECK(error.empty());  // load_experiment() has read the same
  if (const auto* const verbs = std::get_if<VerbsWorkload>(&workload)) {
    return result_of(run_verbs_load(experiment.hardware_of(point), *verbs, point.seed));
  }
  if (const auto* const clover = std::get_if<CloverWorkload>(&workload)) {
    CloverResult result = run_clover_load(experiment.hardware_of(point), *clover, point.seed);
    return {.metrics = std::move(result.metrics),
            .events = result.events,
            .trace_hash = result.trace_hash,
            .problem = std::move(result.problem)};
  }
  if (const auto* const store = std::get_if<StoreWorkload>(&workload)) {
    StoreLoadResult result = run_store_load(experiment.hardware_of(point), *store, point.seed);
    return {.metrics = std::move(result.metrics),
            .events = result.events,
            .trace_hash = result.trace_hash,
            .problem = std::move(result.problem)};
  }
  if (const auto* const edm = std::get_if<EdmWorkload>(&workload)) {
    EdmResult result = run_edm_load(experiment.edm, *edm, point.seed);
    return {
        .metrics = std::move(result.metrics), .events = result.events, .trace_hash = result.trace_hash, .problem = {}};
  }
  if (const auto* const testbed = std::get_if<EdmTestbedWorkload>(&workload)) {
    return {.metrics = run_edm_testbed(experiment.edm_testbed, *testbed), .problem = {}};
  }
  if (const auto* const modes = std::get_if<EdmModesWorkload>(&workload)) {
    return {.metrics = run_edm_modes(experiment.edm_testbed, *modes, point.seed), .problem = {}};
  }
  if (const auto* const memory = std::get_if<BoxMemoryWorkload>(&workload)) {
    return {.metrics = run_box_memory(*memory), .problem = {}};
  }
  if (const auto* const tenants = std::get_if<TenantWorkload>(&workload)) {
    TenantResult result = run_tenant_load(experiment.hardware_of(point), *tenants, point.seed);
    return {.metrics = std::move(result.metrics),
            .events = result.events,
            .trace_hash = result.trace_hash,
            .problem = std::move(result.problem)};
  }
  if (const auto* const cowbird = std::get_if<CowbirdWorkload>(&workload)) {
    CowbirdResult result = run_cowbird_load(experiment.hardware_of(point), *cowbird, point.seed);
    return {.metrics = std::move(result.metrics),
            .events = result.events,
            .trace_hash = result.trace_hash,
            .problem = std::move(result.problem)};
  }
  if (const auto* const ycsb = std::get_if<EdmYcsbWorkload>(&workload)) {
    return {.metrics = run_edm_ycsb(experiment.edm_testbed, *ycsb, point.seed), .problem = {}};
  }
  const auto& order = std::get<OrderWorkload>(workload);
  return result_of(run_order_load(experiment.hardware_of(point), order, point.seed), order.gap);
}

}  // namespace sluice::sim
