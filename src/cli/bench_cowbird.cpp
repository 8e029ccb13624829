// sluice bench cowbird: what remote reads cost with Cowbird and with verbs, between processes that it starts itself.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "cli/bench_commands.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/cowbird_cost.h"
#include "cli/cowbird_probe.h"
#include "cli/progress.h"
#include "cli/result_format.h"
#include "rack/endpoint/endpoint.h"

namespace sluice::cli {
namespace {

constexpr wire::Ipv4Address kEngineIp{0x0A4DFE03};  // 10.77.254.3
constexpr wire::Ipv4Address kPoolIp{0x0A4DFE04};
constexpr std::uint64_t kNearBytes = 1 << 20;
constexpr std::uint64_t kBlockReads = 1000;

constexpr std::array<std::string_view, 3> kParts{"cost", "breakdown", "probe"};  // in the order of measuring

struct Settings {
  std::vector<std::string> parts{kParts.begin(), kParts.end()};
  std::vector<std::string> sizes{"8", "64", "256", "512"};
  std::uint64_t depth = 100;
  std::uint64_t reads = 10'000'000;
  std::uint64_t table = std::uint64_t{64} << 20;
  Duration duration = Duration::milliseconds(700);
  std::string out;

  void declare(rack::Schema& s) {
    s.list("parts", parts, "what to measure (repeat the flag)", "cost, breakdown or probe")
        .list("sizes", sizes, "bytes of a record that is looked up (repeat the flag)", "a size from 1 to 4KiB")
        .integer("depth", depth, 1, VerbsPool::kDepth, "reads under way at most")
        .integer("reads", reads, kBlockReads, 1'000'000'000,
                 "of 8 bytes with Cowbird, for their cost; verbs do one for 50")
        .bytes("table", table, 1 << 16, std::uint64_t{1} << 30, "records of the hash probe, together")
        .duration("duration", duration, Duration::milliseconds(10), Duration::seconds(3600),
                  "of each point of the probe, of which there are eight for each size")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
  }
};

// Ends the process when the user interrupts: who measures looks at nothing else meanwhile.
class EndOnSignal {
 public:
  EndOnSignal(const rack::StopSignals& signals, Children& children)
      : watch_([&signals, &children](const std::stop_token& over) {
          pollfd descriptor{signals.descriptor(), POLLIN, 0};
          while (poll(&descriptor, 1, 100) == 0) {
            if (over.stop_requested()) return;
          }
          say("sluice bench cowbird: interrupted");
          children.end_now();
          _exit(kExitInterrupted);
        }) {}

 private:
  std::jthread watch_;
};

class BenchCowbird final : public Command {
 public:
  explicit BenchCowbird(CLI::App& group)
      : Command(
            group, "cowbird",
            "Measure Cowbird beside verbs: the application thread's cost of a read, where it goes, hash probes and "
            "their latency; engine and pool are processes that this command starts itself. About 35 s in all, unless "
            "--parts, --reads, --sizes or --duration say otherwise",
            {"sluice bench cowbird", "sluice bench cowbird --parts cost --parts breakdown",
             "sluice bench cowbird --parts probe --sizes 8 --sizes 512 --duration 2s --json"}) {
    settings_.declare(schema_);
    use_rack();
    use("bench-cowbird", schema_);
    format_.declare(*this);
  }

 private:
  bool wants(std::string_view part) const { return std::ranges::find(settings_.parts, part) != settings_.parts.end(); }
  Result<void> check() override;
  // Engines, and the pool behind them; before anything has threads.
  Result<void> start(Children& children);
  // What a part is about, as it begins: "2 of 3: where it goes".
  void begin(Progress& progress, std::string_view part, const std::string& what) const;
  std::uint64_t points() const { return sizes_.size() * CowbirdProbe::ways(settings_.depth); }
  // Roughly: a million reads of the cost a second, verbs' included, and a fifth of that for where it goes.
  double expected_seconds() const {
    const double reads = static_cast<double>(settings_.reads);
    return (wants("cost") ? reads * 1e-6 : 0) + (wants("breakdown") ? reads * 0.2e-6 : 0) +
           (wants("probe") ? static_cast<double>(probe_time().milliseconds()) / 1e3 : 0);
  }
  Duration probe_time() const { return settings_.duration * static_cast<std::int64_t>(points()); }
  Result<int> run() override;
  nlohmann::json json_of(const CowbirdRows& rows) const;
  static std::string csv_of(const CowbirdRows& rows);
  static std::string text_of(const CowbirdRows& rows);

  Settings settings_;
  rack::Schema schema_;
  std::vector<std::uint32_t> sizes_;
  ResultFormat format_;
  std::unique_ptr<rack::CowbirdWorld> near_, far_;
};

Result<void> BenchCowbird::check() {
  for (const std::string& size : settings_.sizes) {
    std::uint64_t bytes = 0;
    if (!rack::parse_bytes(size, bytes) || bytes == 0 || bytes > 4096)
      return fail(fmt::format("--sizes = \"{}\": must be a size from 1 to 4KiB", size));
    sizes_.push_back(static_cast<std::uint32_t>(bytes));
  }
  for (const std::string& part : settings_.parts) {
    if (part != "cost" && part != "breakdown" && part != "probe")
      return fail(fmt::format("--parts = \"{}\": must be cost, breakdown or probe", part));
  }
  if (settings_.depth > kBlockReads || kBlockReads % settings_.depth != 0)
    return fail(fmt::format("--depth = \"{}\": must divide {}", settings_.depth, kBlockReads));
  return {};
}

Result<void> BenchCowbird::start(Children& children) {
  if (wants("cost") || wants("breakdown")) {
    auto near = rack::CowbirdWorld::make(1, kNearBytes);
    if (!near) return tl::unexpected(near.error());
    near_ = std::move(*near);
    auto engine = children.start(
        "the engine", [&](const auto& ready) { return rack::serve_cowbird_engine({}, {}, *near_, {{}}, ready); });
    if (!engine) return engine;
  }
  if (!wants("probe")) return {};
  auto far = rack::CowbirdWorld::make(2, settings_.table);
  if (!far) return tl::unexpected(far.error());
  far_ = std::move(*far);
  const std::string cable = children.folder() + "/pool";
  auto pool = children.start("the pool", [&](const auto& ready) {
    return rack::serve_cowbird_pool({.port = "cable:" + cable, .ip = kPoolIp}, *far_, ready);
  });
  if (!pool) return pool;
  return children.start("the engine", [&](const auto& ready) {
    return rack::serve_cowbird_engine({.port = "shm:" + cable, .ip = kEngineIp}, kPoolIp, *far_,
                                      {{}, {.batch_size = 1}}, ready);
  });
}

void BenchCowbird::begin(Progress& progress, std::string_view part, const std::string& what) const {
  if (!wants(part)) return;
  const auto wanted = [this](std::string_view one) { return wants(one); };
  const auto* const end = std::ranges::find(kParts, part);
  progress.note(fmt::format("{} of {}: {}", 1 + std::count_if(kParts.begin(), end, wanted),
                            std::ranges::count_if(kParts, wanted), what));
}

Result<int> BenchCowbird::run() {
  if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
  const auto library = find_verbs_library();
  if (!library) return tl::unexpected(library.error());
  const rack::StopSignals signals;  // before there are threads, which would die of one
  Children children;
  const auto started = start(children);
  if (has_come(signals)) return interrupted("interrupted");
  if (!started) return tl::unexpected(started.error());
  auto verbs = VerbsPool::start(*library, children.folder(), std::max(settings_.table, kNearBytes));
  if (has_come(signals)) return interrupted("interrupted");
  if (!verbs) return tl::unexpected(verbs.error());
  const EndOnSignal watch(signals, children);

  CowbirdRows rows;
  Error error;
  const auto take = [&](Result<CowbirdRows> more) {
    if (!more) return error = more.error(), false;
    std::ranges::move(*more, std::back_inserter(rows));
    return true;
  };
  {
    Progress progress;
    const CowbirdCostPlan plan{
        .depth = settings_.depth, .reads = settings_.reads, .on_progress = [&progress](double share) {
          progress.show(fmt::format("  {:.0f}%", 100 * share));
        }};
    progress.note(fmt::format("about {:.0f} s in all", std::max(expected_seconds(), 1.0)));
    begin(progress, "cost", fmt::format("cost of a read, {} reads", settings_.reads));
    if (wants("cost") && !take(measure_cowbird_cost(*near_, 0, **verbs, plan))) return tl::unexpected(error);
    begin(progress, "breakdown", "where it goes");
    if (wants("breakdown") && !take(measure_cowbird_breakdown(*near_, 0, **verbs, plan))) return tl::unexpected(error);
    begin(progress, "probe",
          fmt::format("hash probes, {} points of {}: {:.3g} s", points(), rack::duration_text(settings_.duration),
                      static_cast<double>(probe_time().milliseconds()) / 1e3));
    if (wants("probe")) {
      CowbirdProbe probe(*far_, **verbs, settings_.depth, settings_.duration);
      std::uint64_t point = 0;
      for (const std::uint32_t bytes : sizes_) {
        const auto on_way = [&](std::string_view way) {
          progress.show(fmt::format("  point {} of {}: {}, {} bytes", ++point, points(), way, bytes));
        };
        if (!take(probe.measure(bytes, on_way))) return tl::unexpected(error);
      }
    }
  }
  const std::string text =
      format_.text([&] { return json_of(rows); }, [&] { return csv_of(rows); }, [&] { return text_of(rows); });
  if (auto written = write_output(settings_.out, text); !written) return tl::unexpected(written.error());
  return 0;
}

nlohmann::json BenchCowbird::json_of(const CowbirdRows& rows) const {
  nlohmann::json out{{"depth", settings_.depth}};
  for (const CowbirdRow& row : rows) {
    nlohmann::json one{{"way", row.way}, {"bytes", row.bytes}, {"depth", row.depth}};
    for (const auto& [name, value] : row.values) one[name] = value;
    out[row.part].push_back(std::move(one));
  }
  return out;
}

std::string BenchCowbird::csv_of(const CowbirdRows& rows) {
  std::vector<nlohmann::ordered_json> lines;
  for (const CowbirdRow& row : rows) {
    for (const auto& [name, value] : row.values)
      lines.push_back({{"part", row.part},
                       {"way", row.way},
                       {"bytes", row.bytes},
                       {"depth", row.depth},
                       {"metric", name},
                       {"value", value}});
  }
  return csv_text(lines);
}

std::string BenchCowbird::text_of(const CowbirdRows& rows) {
  std::string out;
  std::string part;
  for (const CowbirdRow& row : rows) {
    if (row.part != part) {
      const bool first = part.empty();
      part = row.part;
      const char* const title = part == "cost"        ? "cost of a read on the application's thread"
                                : part == "machine"   ? "this machine: the cores"
                                : part == "breakdown" ? "where it goes"
                                                      : "hash probe, one record in 20 local";
      out += fmt::format("{}{}\n{:<52} {:>6} {:>6}", first ? "" : "\n", title, "way", "bytes", "depth");
      for (const auto& [name, value] : row.values) out += fmt::format(" {:>17}", name);
      out += '\n';
    }
    out += fmt::format("{:<52} {:>6} {:>6}", row.way, row.bytes, row.depth);
    for (const auto& [name, value] : row.values)
      out += value >= 1000 ? fmt::format(" {:>17.0f}", value) : fmt::format(" {:>17.2f}", value);
    out += '\n';
  }
  return out;
}

}  // namespace

std::unique_ptr<Command> make_bench_cowbird(CLI::App& group) { return std::make_unique<BenchCowbird>(group); }

}  // namespace sluice::cli
