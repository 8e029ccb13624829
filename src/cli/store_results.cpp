#include "cli/store_results.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/progress.h"
#include "cli/result_format.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using workload::Action;
using workload::Outcome;
using workload::RunResult;

constexpr std::array kOutcomes = {Outcome::kOk,          Outcome::kNotFound, Outcome::kExists, Outcome::kNoSpace,
                                  Outcome::kUnavailable, Outcome::kRefused,  Outcome::kUnknown};

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

double per_operation(std::uint64_t n, const RunResult& run) {
  return run.operations() == 0 ? 0 : static_cast<double>(n) / static_cast<double>(run.operations());
}

Histogram all_latencies(const RunResult& run) {
  Histogram all;
  for (const auto& action : run.actions) all.merge(action.latency_ns);
  return all;
}

json latency_json(const Histogram& h, bool with_buckets) {
  json out{{"mean", h.mean() / 1e3},
           {"p50", us(h.at_quantile(0.5))},
           {"p99", us(h.at_quantile(0.99))},
           {"p999", us(h.at_quantile(0.999))},
           {"max", us(h.max())}};
  if (with_buckets) {
    json buckets = json::array();
    h.visit([&](std::int64_t edge, std::uint64_t count) { buckets.push_back({edge, count}); });
    out["buckets_ns"] = std::move(buckets);
  }
  return out;
}

json run_json(const RunResult& run, bool with_buckets) {
  json actions = json::object();
  for (std::size_t i = 0; i < workload::kActions; ++i) {
    const auto& action = run.actions[i];
    if (action.count == 0) continue;
    json outcomes = json::object();
    for (const Outcome o : kOutcomes) {
      const std::uint64_t n = action.outcomes[static_cast<std::size_t>(o)];
      if (n != 0) outcomes[std::string(to_string(o))] = n;
    }
    actions[std::string(to_string(static_cast<Action>(i)))] = {
        {"count", action.count},
        {"outcomes", std::move(outcomes)},
        {"latency_us", latency_json(action.latency_ns, with_buckets)}};
  }
  return {{"operations", run.operations()},
          {"latency_us", latency_json(all_latencies(run), false)},
          {"actions", std::move(actions)},
          {"values_verified", run.values_verified},
          {"values_wrong", run.values_wrong},
          {"errors", run.errors},
          {"cost",
           {{"round_trips", run.cost.round_trips},
            {"remote_operations", run.cost.remote_operations},
            {"remote_bytes", run.cost.remote_bytes},
            {"messages", run.cost.messages},
            {"atomics", run.cost.atomics},
            {"atomics_failed", run.cost.atomics_failed},
            {"walks", run.cost.walks}}}};
}

RunResult run_from_json(const json& in) {
  RunResult run;
  for (std::size_t i = 0; i < workload::kActions; ++i) {
    const std::string name(to_string(static_cast<Action>(i)));
    if (!in.at("actions").contains(name)) continue;
    const json& from = in.at("actions").at(name);
    auto& action = run.actions[i];
    action.count = from.at("count").get<std::uint64_t>();
    for (const Outcome o : kOutcomes) {
      action.outcomes[static_cast<std::size_t>(o)] =
          from.at("outcomes").value(std::string(to_string(o)), std::uint64_t{0});
    }
    for (const json& bucket : from.at("latency_us").at("buckets_ns")) {
      action.latency_ns.record(bucket.at(0).get<std::int64_t>(), bucket.at(1).get<std::uint64_t>());
    }
  }
  run.values_verified = in.at("values_verified").get<std::uint64_t>();
  run.values_wrong = in.at("values_wrong").get<std::uint64_t>();
  run.errors = in.at("errors").get<std::vector<std::string>>();
  const json& cost = in.at("cost");
  run.cost.round_trips = cost.at("round_trips").get<std::uint64_t>();
  run.cost.remote_operations = cost.at("remote_operations").get<std::uint64_t>();
  run.cost.remote_bytes = cost.at("remote_bytes").get<std::uint64_t>();
  run.cost.messages = cost.at("messages").get<std::uint64_t>();
  run.cost.atomics = cost.at("atomics").get<std::uint64_t>();
  run.cost.atomics_failed = cost.at("atomics_failed").get<std::uint64_t>();
  run.cost.walks = cost.at("walks").get<std::uint64_t>();
  return run;
}

StoreOutcome outcome_from(const json& in) {
  StoreOutcome out;
  StoreRunFacts& f = out.facts;
  f.store = in.at("store").get<std::string>();
  f.workload = in.at("workload").get<std::string>();
  f.distribution = in.at("distribution").get<std::string>();
  f.theta_thousandths = static_cast<std::uint64_t>(std::lround(in.at("theta").get<double>() * 1000));
  f.clients = in.at("clients").get<std::uint64_t>();
  f.threads = in.at("threads").get<std::uint64_t>();
  f.processes = in.at("processes").get<std::uint64_t>();
  f.records = in.at("records").get<std::uint64_t>();
  f.value_bytes = in.at("value_bytes").get<std::uint64_t>();
  f.copies = in.value("copies", std::uint64_t{0});
  f.memory_nodes = in.value("memory_nodes", std::uint64_t{0});
  f.seed = in.at("seed").get<std::uint64_t>();
  rack::StoreBenchResult& r = out.result;
  r.load = run_from_json(in.at("load"));
  r.run = run_from_json(in.at("run"));
  r.load_seconds = in.at("load_seconds").get<double>();
  r.run_seconds = in.at("run_seconds").get<double>();
  r.wire_frames = in.at("wire_frames").get<std::uint64_t>();
  r.wire_bytes = in.at("wire_bytes").get<std::uint64_t>();
  r.reconnects = in.at("reconnects").get<std::uint64_t>();
  r.value_bytes = f.value_bytes;
  out.timelines.emplace_back();
  for (const json& sample : in.at("timeline")) {
    out.timelines[0].push_back({sample.at(0).get<std::int64_t>(), sample.at(1).get<std::uint64_t>()});
  }
  return out;
}

}  // namespace

std::uint64_t StoreOutcome::failed() const {
  std::uint64_t sum = 0;
  for (const Outcome o : kOutcomes) {
    if (!is_done(o)) sum += result.load.with_outcome(o) + result.run.with_outcome(o);
  }
  return sum;
}

json to_json(const StoreOutcome& outcome, bool with_buckets) {
  const StoreRunFacts& f = outcome.facts;
  const rack::StoreBenchResult& r = outcome.result;
  json out{{"store", f.store},
           {"workload", f.workload},
           {"distribution", f.distribution},
           {"theta", static_cast<double>(f.theta_thousandths) / 1000},
           {"clients", f.clients},
           {"threads", f.threads},
           {"processes", f.processes},
           {"records", f.records},
           {"value_bytes", f.value_bytes},
           {"seed", f.seed},
           {"load_seconds", r.load_seconds},
           {"load_ops_per_second", r.load_rate()},
           {"run_seconds", r.run_seconds},
           {"ops_per_second", r.run_rate()},
           {"round_trips_per_operation", per_operation(r.run.cost.round_trips, r.run)},
           {"payload_bytes_per_operation", per_operation(r.run.cost.remote_bytes, r.run)},
           {"wire_bytes_per_operation", per_operation(r.wire_bytes, r.run)},
           {"wire_frames", r.wire_frames},
           {"wire_bytes", r.wire_bytes},
           {"reconnects", r.reconnects},
           {"failed", outcome.failed()},
           {"load", run_json(r.load, with_buckets)},
           {"run", run_json(r.run, with_buckets)}};
  if (f.memory_nodes != 0) {
    out["copies"] = f.copies;
    out["memory_nodes"] = f.memory_nodes;
  }
  json timeline = json::array();
  for (const rack::StoreSample& sample : r.timeline) timeline.push_back({sample.wall_ms, sample.completed});
  out["timeline"] = std::move(timeline);
  if (outcome.history_checked)
    out["history"] = {{"operations", outcome.history_operations},
                      {"linearizable", outcome.linearizable},
                      {"undecided_keys", outcome.undecided_keys}};
  return out;
}

Result<StoreOutcome> store_outcome_from_json(const json& in) {
  try {
    return outcome_from(in);
  } catch (const json::exception& e) {
    return fail(fmt::format("malformed result: {}", e.what()));
  }
}

StoreOutcome merge(const std::vector<StoreOutcome>& outcomes) {
  StoreOutcome all = outcomes.front();
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    const StoreOutcome& one = outcomes[i];
    rack::StoreBenchResult& r = all.result;
    r.load.merge(one.result.load);
    r.run.merge(one.result.run);
    r.load_seconds = std::max(r.load_seconds, one.result.load_seconds);
    r.run_seconds = std::max(r.run_seconds, one.result.run_seconds);
    r.wire_frames += one.result.wire_frames;
    r.wire_bytes += one.result.wire_bytes;
    r.reconnects += one.result.reconnects;
    all.facts.clients += one.facts.clients;
    all.facts.processes += one.facts.processes;
    all.timelines.insert(all.timelines.end(), one.timelines.begin(), one.timelines.end());
  }
  return all;
}

namespace {

std::string latency_row(std::string_view name, std::uint64_t count, double rate, const Histogram& h) {
  return fmt::format("  {:<18} {:>12} {:>10} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, count, rate_text(rate),
                     us(h.at_quantile(0.5)), us(h.at_quantile(0.99)), us(h.at_quantile(0.999)));
}

// "  what: 3 not found, 1 exists", or nothing when there are none.
std::string outcomes_line(std::string_view what, const std::vector<Outcome>& outcomes, const StoreOutcome& outcome) {
  std::string text;
  for (const Outcome o : outcomes) {
    const std::uint64_t n = outcome.result.load.with_outcome(o) + outcome.result.run.with_outcome(o);
    if (n != 0) text += fmt::format(" {} {},", n, to_string(o));
  }
  if (text.empty()) return "";
  text.back() = '\n';
  return fmt::format("  {}:{}", what, text);
}

// ", 3 copies on 5 memory nodes", or nothing where that is not known.
std::string spread_of(const StoreRunFacts& f) {
  if (f.memory_nodes == 0) return "";
  return fmt::format(", {} {} on {} memory node{}", f.copies, f.copies == 1 ? "copy" : "copies", f.memory_nodes,
                     f.memory_nodes == 1 ? "" : "s");
}

std::string other_ends_of(const StoreOutcome& outcome) {
  return outcomes_line("operations without effect", {Outcome::kNotFound, Outcome::kExists}, outcome);
}

std::string failures_of(const StoreOutcome& outcome) {
  std::vector<Outcome> failures;
  std::ranges::copy_if(kOutcomes, std::back_inserter(failures), [](Outcome o) { return !is_done(o); });
  return outcomes_line("failed operations", failures, outcome);
}

}  // namespace

std::string table_of(const StoreOutcome& outcome) {
  const StoreRunFacts& f = outcome.facts;
  const rack::StoreBenchResult& r = outcome.result;
  std::string out =
      fmt::format("{}, workload {}, {} keys ({}), {} clients in {} x {} threads, {} records of {} bytes{}\n",
                  f.store == "sherman" ? "Sherman"
                  : f.store == "fusee" ? "FUSEE"
                                       : "Clover",
                  f.workload, f.distribution, static_cast<double>(f.theta_thousandths) / 1000, f.clients, f.processes,
                  f.threads, f.records, f.value_bytes, spread_of(f));
  out += fmt::format("  {:<18} {:>12} {:>10} {:>10} {:>10} {:>10}\n", "", "operations", "ops/s", "p50 us", "p99 us",
                     "p99.9 us");
  if (r.load.operations() != 0) out += latency_row("load", r.load.operations(), r.load_rate(), all_latencies(r.load));
  for (std::size_t i = 0; i < workload::kActions; ++i) {
    const auto& action = r.run.actions[i];
    if (action.count == 0) continue;
    out +=
        latency_row(to_string(static_cast<Action>(i)), action.count, r.run_rate_of(action.done()), action.latency_ns);
  }
  if (r.run.operations() != 0) {
    out += latency_row("all", r.run.operations(), r.run_rate(), all_latencies(r.run));
    out += fmt::format(
        "  per operation: {:.2f} round trips, {:.0f} bytes of payload, {:.0f} bytes in {:.1f} frames on the wire\n",
        per_operation(r.run.cost.round_trips, r.run), per_operation(r.run.cost.remote_bytes, r.run),
        per_operation(r.wire_bytes, r.run), per_operation(r.wire_frames, r.run));
    out += fmt::format("  values read and verified: {}, wrong: {}\n", r.run.values_verified, r.run.values_wrong);
  }
  for (const std::string& error : r.run.errors) out += "  " + error + "\n";
  out += other_ends_of(outcome);
  out += failures_of(outcome);
  if (r.reconnects != 0) out += fmt::format("  connections made again: {}\n", r.reconnects);
  if (outcome.history_checked) {
    out += fmt::format("  history of {} operations: {}\n", outcome.history_operations,
                       !outcome.linearizable         ? "NOT LINEARIZABLE"
                       : outcome.undecided_keys == 0 ? "linearizable"
                                                     : "linearizable as far as it could be searched");
  }
  return out;
}

std::string csv_of(const StoreOutcome& outcome) {
  const StoreRunFacts& f = outcome.facts;
  const rack::StoreBenchResult& r = outcome.result;
  const Histogram all = all_latencies(r.run);
  const nlohmann::ordered_json row{{"workload", f.workload},
                                   {"distribution", f.distribution},
                                   {"theta", static_cast<double>(f.theta_thousandths) / 1000},
                                   {"clients", f.clients},
                                   {"threads", f.threads},
                                   {"processes", f.processes},
                                   {"records", f.records},
                                   {"value_bytes", f.value_bytes},
                                   {"seed", f.seed},
                                   {"operations", r.run.operations()},
                                   {"ops_per_second", r.run_rate()},
                                   {"p50_us", us(all.at_quantile(0.5))},
                                   {"p99_us", us(all.at_quantile(0.99))},
                                   {"p999_us", us(all.at_quantile(0.999))},
                                   {"round_trips_per_operation", per_operation(r.run.cost.round_trips, r.run)},
                                   {"payload_bytes_per_operation", per_operation(r.run.cost.remote_bytes, r.run)},
                                   {"wire_bytes_per_operation", per_operation(r.wire_bytes, r.run)},
                                   {"values_verified", r.run.values_verified},
                                   {"values_wrong", r.run.values_wrong},
                                   {"failed", outcome.failed()}};
  return csv_text({row});
}

}  // namespace sluice::cli
