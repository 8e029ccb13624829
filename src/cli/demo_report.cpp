#include "cli/demo_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/progress.h"
#include "workload/ycsb.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using workload::Action;
using workload::Outcome;

constexpr std::int64_t kGridMs = 200;

std::string with_commas(std::uint64_t n) {
  std::string text = std::to_string(n);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string us(const Histogram& h, double quantile) {
  return fmt::format("{:.0f} us", static_cast<double>(h.at_quantile(quantile)) / 1e3);
}

const workload::RunResult::PerAction& action_of(const StoreOutcome& outcome, Action action) {
  return outcome.result.run.actions[static_cast<std::size_t>(action)];
}

// Operations completed by `at`, between the samples around it.
double completed_at(const std::vector<rack::StoreSample>& timeline, std::int64_t at) {
  if (timeline.empty() || at <= timeline.front().wall_ms) return 0;
  for (std::size_t i = 1; i < timeline.size(); ++i) {
    if (at > timeline[i].wall_ms) continue;
    const auto& a = timeline[i - 1];
    const auto& b = timeline[i];
    const double part =
        static_cast<double>(at - a.wall_ms) / static_cast<double>(std::max<std::int64_t>(b.wall_ms - a.wall_ms, 1));
    return static_cast<double>(a.completed) +
           part * (static_cast<double>(b.completed) - static_cast<double>(a.completed));
  }
  return static_cast<double>(timeline.back().completed);
}

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// While all of the processes ran.
Span common_span(const std::vector<std::vector<rack::StoreSample>>& timelines) {
  Span span{0, std::numeric_limits<std::int64_t>::max()};
  for (const auto& timeline : timelines) {
    if (timeline.empty()) return {};
    span.begin = std::max(span.begin, timeline.front().wall_ms);
    span.end = std::min(span.end, timeline.back().wall_ms);
  }
  return span;
}

json rates_over_time(const StoreOutcome& outcome) {
  json points = json::array();
  const Span span = common_span(outcome.timelines);
  for (std::int64_t t = span.begin; t + kGridMs <= span.end; t += kGridMs) {
    double done = 0;
    for (const auto& timeline : outcome.timelines)
      done += completed_at(timeline, t + kGridMs) - completed_at(timeline, t);
    const std::int64_t middle = t + kGridMs / 2;
    points.push_back({{"seconds", static_cast<double>(middle - span.begin) / 1e3},
                      {"rate", done * 1e3 / static_cast<double>(kGridMs)}});
  }
  return points;
}

json throughput_plot(const StoreOutcome& outcome, std::int64_t mark_ms, const std::string& mark) {
  json line{{"mark", {{"type", "area"}, {"line", true}, {"opacity", 0.25}, {"color", "#2563a8"}}},
            {"data", {{"values", rates_over_time(outcome)}}},
            {"encoding",
             {{"x", {{"field", "seconds"}, {"type", "quantitative"}, {"title", "seconds"}}},
              {"y",
               {{"field", "rate"},
                {"type", "quantitative"},
                {"title", "operations a second"},
                {"axis", {{"format", "~s"}}}}}}}};
  json layers = json::array({std::move(line)});
  if (mark_ms != 0) {
    const double at = static_cast<double>(mark_ms - common_span(outcome.timelines).begin) / 1e3;
    const json data{{"values", json::array({{{"seconds", at}, {"what", mark}}})}};
    const json x{{"field", "seconds"}, {"type", "quantitative"}};
    layers.push_back({{"data", data},
                      {"mark", {{"type", "rule"}, {"color", "#b42318"}, {"strokeDash", {4, 3}}}},
                      {"encoding", {{"x", x}}}});
    layers.push_back({{"data", data},
                      {"mark", {{"type", "text"}, {"align", "left"}, {"dx", 6}, {"y", 10}, {"color", "#b42318"}}},
                      {"encoding", {{"x", x}, {"text", {{"field", "what"}}}}}});
  }
  return {{"layer", std::move(layers)}};
}

json latency_plot(const StoreOutcome& outcome) {
  json points = json::array();
  for (const Action action : {Action::kRead, Action::kUpdate}) {
    const auto& h = action_of(outcome, action).latency_ns;
    std::uint64_t seen = 0;
    double last_share = -1;
    h.visit([&](std::int64_t edge, std::uint64_t count) {
      seen += count;
      const double share = static_cast<double>(seen) / static_cast<double>(h.count());
      if (share - last_share < 0.004 && seen != h.count()) return;  // a curve needs no more points
      last_share = share;
      points.push_back(
          {{"us", static_cast<double>(edge) / 1e3}, {"share", share}, {"operation", std::string(to_string(action))}});
    });
  }
  return {
      {"data", {{"values", std::move(points)}}},
      {"mark", {{"type", "line"}, {"interpolate", "step-after"}}},
      {"encoding",
       {{"x",
         {{"field", "us"}, {"type", "quantitative"}, {"scale", {{"type", "log"}}}, {"title", "latency, microseconds"}}},
        {"y",
         {{"field", "share"}, {"type", "quantitative"}, {"title", "share of operations"}, {"axis", {{"format", "%"}}}}},
        {"color", {{"field", "operation"}, {"type", "nominal"}, {"title", nullptr}}}}}};
}

json latency_table(const StoreOutcome& outcome) {
  json rows = json::array();
  for (std::size_t i = 0; i < workload::kActions; ++i) {
    const auto& action = outcome.result.run.actions[i];
    if (action.count == 0) continue;
    const auto& h = action.latency_ns;
    rows.push_back({std::string(to_string(static_cast<Action>(i))), with_commas(action.count), us(h, 0.5), us(h, 0.99),
                    us(h, 0.999)});
  }
  return {{"columns", {"operation", "count", "p50", "p99", "p99.9"}}, {"rows", std::move(rows)}};
}

json verbs_section(const json& verbs) {
  json rows = json::array();
  for (const json& point : verbs.at("points")) {
    rows.push_back({point.at("op"), point.at("bytes"), point.at("depth"),
                    rate_text(point.at("ops_per_second").get<double>()) + "/s",
                    fmt::format("{:.1f} us", point.at("p50_us").get<double>()),
                    fmt::format("{:.1f} us", point.at("p99_us").get<double>())});
  }
  return {
      {"title", "Bare RDMA operations through the switch"},
      {"text",
       "Client, switch and server as three processes; in flight: how many operations the client has begun and not "
       "ended."},
      {"table", {{"columns", {"operation", "bytes", "in flight", "rate", "p50", "p99"}}, {"rows", std::move(rows)}}}};
}

json processes_section(const json& processes) {
  json rows = json::array();
  for (const json& p : processes) {
    rows.push_back({p.at("name"), p.at("pid"), fmt::format("{:.0f} MB", p.at("resident_bytes").get<double>() / 1e6),
                    fmt::format("{:.1f} s", p.at("cpu_ms").get<double>() / 1e3)});
  }
  return {
      {"title", "The rack"},
      {"text", "Each a process of its own. Memory nodes export 16 GiB each; what nobody has written takes no space."},
      {"table", {{"columns", {"process", "pid", "resident memory", "processor time"}}, {"rows", std::move(rows)}}}};
}

}  // namespace

std::vector<std::string> DemoFindings::complaints() const {
  std::vector<std::string> found;
  const auto count = [&](std::uint64_t n, std::string_view what) {
    if (n != 0) found.push_back(fmt::format("{} {}", with_commas(n), what));
  };
  count(load.failed(), "values could not be loaded");
  count(run.failed(), "operations failed while nothing was broken");
  count(run.result.run.values_wrong, "values read were wrong");
  count(failure.result.run.values_wrong, "values read were wrong while a memory node was down");
  count(read_back - read_back_right, "values were lost or wrong after a memory node was killed");
  if (read_back == 0) found.emplace_back("no value was read back");
  return found;
}

std::vector<std::pair<std::string, std::string>> summary_of(const DemoFindings& f) {
  const auto& run = f.run.result;
  const auto& reads = action_of(f.run, Action::kRead).latency_ns;
  const auto& writes = action_of(f.run, Action::kUpdate).latency_ns;
  const double operations = static_cast<double>(std::max<std::uint64_t>(run.run.operations(), 1));
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("loaded", fmt::format("{} values of {} bytes, {} copies each", with_commas(f.load.facts.records),
                                          f.load.facts.value_bytes, f.replication));
  rows.emplace_back("YCSB-A: half reads, half updates",
                    fmt::format("{} operations in {:.1f} s: {} a second", with_commas(run.run.operations()),
                                run.run_seconds, rate_text(run.run_rate())));
  rows.emplace_back("a read takes",
                    fmt::format("{} (median), {} (99 of 100 are faster)", us(reads, 0.5), us(reads, 0.99)));
  rows.emplace_back("an update takes",
                    fmt::format("{} (median), {} (99 of 100 are faster)", us(writes, 0.5), us(writes, 0.99)));
  rows.emplace_back("round trips an operation",
                    fmt::format("{:.2f}; no server's code runs for any of them",
                                static_cast<double>(run.run.cost.round_trips) / operations));
  rows.emplace_back("bytes an operation", fmt::format("{:.0f} of payload, {:.0f} on the wire",
                                                      static_cast<double>(run.run.cost.remote_bytes) / operations,
                                                      static_cast<double>(run.wire_bytes) / operations));
  rows.emplace_back(
      "values read and checked",
      fmt::format("{}, wrong: {}", with_commas(run.run.values_verified + f.failure.result.run.values_verified),
                  run.run.values_wrong + f.failure.result.run.values_wrong));
  const auto& failure = f.failure.result.run;
  std::int64_t longest_ns = 0;
  for (const auto& action : failure.actions)
    if (action.count != 0) longest_ns = std::max(longest_ns, action.latency_ns.max());
  rows.emplace_back(fmt::format("{} killed under load", f.killed),
                    fmt::format("{} of {} operations succeeded, {} failed; the longest took {:.2f} s",
                                with_commas(failure.with_outcome(Outcome::kOk)), with_commas(failure.operations()),
                                with_commas(f.failure.failed()), static_cast<double>(longest_ns) / 1e9));
  rows.emplace_back("afterwards", fmt::format("{} of {} values read back right from the other copies",
                                              with_commas(f.read_back_right), with_commas(f.read_back)));
  for (const json& point : f.verbs.is_object() ? f.verbs.at("points") : json::array()) {
    if (point.at("op") != "read" || point.at("depth") != 1) continue;
    rows.emplace_back("a bare RDMA read takes",
                      fmt::format("{:.1f} us (median), of {} bytes through the switch, one at a time",
                                  point.at("p50_us").get<double>(), point.at("bytes").get<std::uint64_t>()));
    break;  // the shortest; the report has all
  }
  return rows;
}

json demo_report(const DemoFindings& f) {
  const auto complaints = f.complaints();
  json rows = json::array();
  for (const auto& [what, value] : summary_of(f)) rows.push_back({what, value});
  json sections = json::array();
  sections.push_back({{"title", "In short"}, {"table", {{"columns", {"what", "result"}}, {"rows", std::move(rows)}}}});
  sections.push_back(
      {{"title", "YCSB-A over time"},
       {"text", fmt::format("{} closed-loop clients in {} processes.", f.run.facts.clients, f.run.facts.processes)},
       {"plot", throughput_plot(f.run, 0, "")}});
  sections.push_back(
      {{"title", "How long operations take"}, {"table", latency_table(f.run)}, {"plot", latency_plot(f.run)}});
  sections.push_back(
      {{"title", "A memory node dies"},
       {"text",
        fmt::format(
            "{} was killed with SIGKILL while the clients ran. Every value has {} copies; clients and metadata server "
            "agree to do without the dead one.",
            f.killed, f.replication)},
       {"plot", throughput_plot(f.failure, f.killed_at_ms, f.killed + " killed")}});
  if (f.verbs.is_object()) sections.push_back(verbs_section(f.verbs));
  sections.push_back(processes_section(f.processes));
  return {{"title", "Sluice: a rack of disaggregated memory, in software"},
          {"subtitle",
           "Clover, a key-value store on passive remote memory, over real RoCEv2 packets between ordinary processes of "
           "one machine"},
          {"sound", complaints.empty()},
          {"verdict", complaints.empty() ? "Every value read was right."
                                         : fmt::format("Not all was right: {}.", fmt::join(complaints, "; "))},
          {"sections", std::move(sections)},
          {"facts",
           {{"run", to_json(f.run, false)},
            {"failure", to_json(f.failure, false)},
            {"verbs", f.verbs},
            {"processes", f.processes}}}};
}

}  // namespace sluice::cli
