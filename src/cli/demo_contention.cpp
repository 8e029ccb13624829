// sluice demo contention: the same contended store twice, side by side, without SwordBox and with it: live, then as a table.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/child.h"
#include "cli/commands.h"
#include "cli/store_results.h"
#include "cli/workloads.h"
#include "rack/clients/store_bench.h"
#include "rack/directory/directory_http.h"
#include "rack/endpoint/endpoint.h"
#include "rack/process/daemon_http.h"
#include "rack/process/launcher.h"
#include "rack/process/plan.h"

namespace sluice::cli {
namespace {

struct Settings {
  std::string workload = "w50";
  std::uint64_t clients = 64;
  std::uint64_t records = 1024;
  std::uint64_t value_size = 128;
  Duration duration = Duration::seconds(20);
  bool live = true;

  void declare(rack::Schema& s) {
    const std::string workloads = workload_names({});
    s.text("workload", workload, "which of YCSB: " + workloads, workloads)
        .integer("clients", clients, 1, 4096, "closed loops on each side, each with a cursor cache of its own")
        .integer("records", records, 1, 1'000'000, "keys; few are hot")
        .bytes("value-size", value_size, 8, 16'360, "bytes of a value")
        .duration("duration", duration, Duration::seconds(2), Duration::seconds(3600), "how long to run")
        .toggle("live", live, "serve both racks' live views on this machine");
  }
};

// One of the two: a rack and who loads it.
struct Side {
  std::string_view title;
  std::string box;
  std::string dir{};
  std::unique_ptr<rack::Launcher> launcher{};
  std::unique_ptr<rack::StoreBench> bench{};
  std::string http{};
  std::uint64_t seen = 0;
  rack::StoreBenchResult result{};
};

// Bars of one length for one rate, whatever comes later: lines can be compared, in a log too.
class Bars {
 public:
  static constexpr int kWidth = 24;

  // A full bar is twice the first second's rate, or the next number above that is 1, 2 or 5 and zeros.
  explicit Bars(double rate) {
    const double least = std::max(2 * rate, 1.0);
    const double power = std::pow(10, std::floor(std::log10(least)));
    for (const double times : {1.0, 2.0, 5.0, 10.0}) {
      full_ = times * power;
      if (full_ >= least) break;
    }
  }
  double full() const { return full_; }
  // One that is longer ends in an arrow.
  std::string of(double rate) const {
    const int n = static_cast<int>(std::min(std::lround(rate / full_ * kWidth), long{kWidth}));
    std::string text;
    for (int i = 0; i < kWidth; ++i) text += i < n ? "█" : " ";
    return text + (rate > full_ ? "▶" : " ");
  }

 private:
  double full_ = 1;
};

class Contention final : public Command {
 public:
  explicit Contention(CLI::App& demo)
      : Command(demo, "contention",
                "Contend for a few hot keys on two racks side by side, one of them with SwordBox, and watch",
                {"sluice demo contention", "sluice demo contention --workload w100 --duration 60s"}) {
    settings_.declare(schema_);
    use("demo-contention", schema_);
  }

 private:
  Result<void> check() override {
    auto mix = parse_workload(settings_.workload, {});
    if (!mix) return tl::unexpected(mix.error());
    mix_ = *mix;
    mix_.distribution = workload::KeyDistribution::kZipfian;
    return {};
  }

  Result<int> run() override {
    outlive_readers();
    rack::StopSignals signals;
    auto outcome = show(signals);
    for (Side& side : sides_) side.bench.reset();
    for (Side& side : sides_) {
      if (!side.launcher) continue;
      const auto down = side.launcher->down();
      if (outcome && !down) outcome = tl::unexpected(down.error());
      std::error_code ignored;
      if (outcome || has_come(signals)) std::filesystem::remove_all(side.dir, ignored);
    }
    if (has_come(signals)) return interrupted("interrupted");
    if (!outcome) return fail(fmt::format("{} (logs are in {}*)", outcome.error().message, folder()));
    return *outcome;
  }

  static std::string folder() { return fmt::format("/tmp/sluice-contention-{}-", getpid()); }

  Result<int> show(const rack::StopSignals& signals) {
    for (Side& side : sides_) {
      if (auto up = bring_up(side, signals); !up) return tl::unexpected(up.error());
    }
    for (Side& side : sides_) load(side);
    if (!watch(signals)) return kExitInterrupted;
    for (Side& side : sides_) {
      auto result = side.bench->result();
      if (!result) return fail(fmt::format("{}: {}", side.title, result.error().message));
      side.result = std::move(*result);
    }
    return print_table();
  }

  Result<void> bring_up(Side& side, const rack::StopSignals& signals) {
    side.dir = folder() + (side.box.empty() ? "without" : "with");
    rack::RackSettings settings;
    settings.dir = side.dir;
    settings.memory_nodes = 1;
    settings.value_size = settings_.value_size;
    settings.box = side.box.empty() ? "off" : side.box;
    if (settings_.live) settings.http = "127.0.0.1:0";
    const rack::RunDirectory run(side.dir);
    side.launcher = std::make_unique<rack::Launcher>(
        run, [](const std::string&) {}, signals.descriptor(), rack::Lifetime::kOurs);
    if (auto up = side.launcher->up(rack::plan(own_program(), "", settings)); !up) return up;
    const auto nodes = rack::DirectoryClient({run.directory_socket()}).nodes();
    const rack::NodeRecord* const node = nodes ? nodes->find("switch") : nullptr;
    const bool has_view = node != nullptr && node->description.attributes.contains(rack::kHttpAttribute);
    if (has_view) side.http = node->description.attributes.at(rack::kHttpAttribute);
    tell_at_once(
        fmt::format("{:<18} {}{}\n", side.title, side.dir, has_view ? fmt::format("   http://{}/", side.http) : ""));
    return {};
  }

  void load(Side& side) {
    rack::StoreBenchConfig config;
    config.directory = side.dir;
    config.name = fmt::format("clients-{}", getpid());
    config.clients = static_cast<std::uint32_t>(settings_.clients);
    config.caches = config.clients;
    config.duration = settings_.duration;
    config.workload.mix = mix_;
    config.workload.records = settings_.records;
    config.workload.value_bytes = settings_.value_size;
    side.bench = std::make_unique<rack::StoreBench>(config);
    side.bench->start();
  }

  // A line a second: what each side has done in it. False: interrupted.
  bool watch(const rack::StopSignals& signals) {
    std::optional<Bars> bars;
    int second = 0;
    bool interrupted = false;
    bool ran_before = false;  // both, at the last look: before that, what was counted was something else
    auto before = std::chrono::steady_clock::now();
    const auto busy = [this] { return sides_[0].bench->running() || sides_[1].bench->running(); };
    while (busy()) {
      pollfd descriptor{signals.descriptor(), POLLIN, 0};
      if (!interrupted && poll(&descriptor, 1, 1000) == 1) {
        interrupted = true;
        for (Side& side : sides_) side.bench->stop();
      }
      if (interrupted) {
        usleep(10'000);
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      const double seconds = std::chrono::duration<double>(now - std::exchange(before, now)).count();
      std::array<double, 2> rates{};
      bool both_run = true;
      for (std::size_t i = 0; i < 2; ++i) {
        const auto progress = sides_[i].bench->progress();
        both_run = both_run && progress.phase == "running";
        rates[i] = static_cast<double>(progress.completed - std::min(progress.completed, sides_[i].seen)) / seconds;
        sides_[i].seen = progress.completed;
      }
      if (!std::exchange(ran_before, both_run) || !both_run) continue;
      if (!bars) {
        bars.emplace(std::max(rates[0], rates[1]));
        tell_at_once(fmt::format("\noperations a second; a full bar is {:.0f}\n{:>4}  {:<35}  {}\n", bars->full(), "s",
                                 sides_[0].title, sides_[1].title));
      }
      tell_at_once(fmt::format("{:>4}  {:>9.0f} {}  {:>9.0f} {}\n", ++second, rates[0], bars->of(rates[0]), rates[1],
                               bars->of(rates[1])));
    }
    return !interrupted;
  }

  Result<int> print_table() const {
    tell_at_once(fmt::format("\n{:<44} {:>16} {:>16}\n", "", sides_[0].title, sides_[1].title));
    const auto row = [this](const char* what, int digits, auto&& value) {
      tell_at_once(fmt::format("{:<44} {:>16.{}f} {:>16.{}f}\n", what, value(sides_[0].result), digits,
                               value(sides_[1].result), digits));
    };
    using R = rack::StoreBenchResult;
    const auto per = [](std::uint64_t n, const R& r) {
      return static_cast<double>(n) / static_cast<double>(std::max<std::uint64_t>(r.run.operations(), 1));
    };
    const auto quantile_us = [](const R& r, double q) {
      Histogram all;
      for (const auto& action : r.run.actions) all.merge(action.latency_ns);
      return static_cast<double>(all.at_quantile(q)) / 1e3;
    };
    row("operations a second", 0, [](const R& r) { return r.run_rate(); });
    row("CASes that succeed at the first try, %", 2, [](const R& r) {
      const auto& c = r.run.cost;
      return c.atomics == 0 ? 100.0
                            : 100.0 - 100.0 * static_cast<double>(c.atomics_failed) / static_cast<double>(c.atomics);
    });
    row("round trips an operation", 2, [&](const R& r) { return per(r.run.cost.round_trips, r); });
    row("bytes on the wire an operation", 0, [&](const R& r) { return per(r.wire_bytes, r); });
    row("p50, us", 0, [&](const R& r) { return quantile_us(r, 0.5); });
    row("p99, us", 0, [&](const R& r) { return quantile_us(r, 0.99); });
    row("operations that failed", 0, [](const R& r) { return static_cast<double>(failed(r)); });
    row("values read and checked", 0, [](const R& r) { return static_cast<double>(r.run.values_verified); });
    row("of them wrong", 0, [](const R& r) { return static_cast<double>(r.run.values_wrong); });
    const double gain = sides_[1].result.run_rate() / std::max(sides_[0].result.run_rate(), 1e-9);
    tell_at_once(fmt::format(
        "\nSwordBox: {:.1f} times the operations. Both racks shared this machine's cores all the while.\n", gain));
    const auto is_right = [](const Side& side) {
      return side.result.run.values_wrong == 0 && failed(side.result) == 0;
    };
    return std::ranges::all_of(sides_, is_right) ? 0 : kExitFailed;
  }
  static std::uint64_t failed(const rack::StoreBenchResult& result) {
    StoreOutcome outcome;
    outcome.result = result;
    return outcome.failed();
  }

  Settings settings_;
  rack::Schema schema_;
  workload::Mix mix_;
  std::array<Side, 2> sides_{Side{.title = "without SwordBox", .box = ""},
                             Side{.title = "with SwordBox", .box = "clover"}};
};

}  // namespace

std::unique_ptr<Command> make_demo_contention(CLI::App& demo) { return std::make_unique<Contention>(demo); }

}  // namespace sluice::cli
