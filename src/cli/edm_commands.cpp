// sluice edm trace | simulate: messages in the format of the published EDM simulation, drawn from a seed or run through the cluster.
// sluice edm grants: what the rack's switch grants by EDM's scheduler.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/ask_stage.h"
#include "cli/commands.h"
#include "cli/experiment_files.h"
#include "cli/json_text.h"
#include "sim/edm/edm_cluster.h"
#include "sim/world/fields.h"

namespace sluice::cli {
namespace {

constexpr const char* kOutcomeColumns =
    "id,type,src,dst,size_bytes,timeslot,requested,granted,started,finished,took,slowdown, times in timeslots "
    "(docs/edm.md, \"Traces\")";

struct TraceSettings {
  std::uint64_t nodes = 144;
  std::uint64_t messages = 2'000;
  std::string rate = "40Gb/s";
  std::uint64_t bytes = 64;
  std::string cdf;
  std::uint64_t unit = 1'460;
  std::uint64_t request_bytes = 16;
  std::uint64_t reads = 500;
  std::uint64_t seed = 1;
  std::string out;

  void declare(rack::Schema& s) {
    s.integer("nodes", nodes, 2, edm::kMaxPorts, "nodes")
        .integer("messages", messages, 1, 100'000'000, "messages")
        .text("rate", rate, "data that each node sends, on average, on links of 100Gb/s, such as 500Mb/s",
              "a rate, such as 40Gb/s")
        .bytes("bytes", bytes, 1, edm::kMaxMessageBytes, "data of a message")
        .text("cdf", cdf,
              "file of sizes, instead of --bytes: a line a point, its size in units, any number, and the share of "
              "messages "
              "that are no longer, from 0 to 1; straight lines between",
              "a file's path")
        .bytes("unit", unit, 1, edm::kMaxMessageBytes, "unit of the sizes in --cdf")
        .bytes("request-bytes", request_bytes, 1, 64, "size of a read's request")
        .integer("reads", reads, 0, 1'000, "reads, of a thousand messages")
        .integer("seed", seed, 0, std::uint64_t{1} << 62, "seed of the arrivals")
        .text("out", out, fmt::format("file to write, a line a message: {}; empty: stdout", sim::kTraceColumns),
              "a file's path");
  }
};

class TraceCommand final : public Command {
 public:
  explicit TraceCommand(CLI::App& group)
      : Command(group, "trace", "Draw messages between any two nodes, as a trace in the published format",
                {"sluice edm trace --rate 81Gb/s --reads 0 --out writes.csv",
                 "sluice edm trace --cdf CDF_hadoop.txt --rate 40Gb/s --reads 455 --out hadoop.csv"}) {
    settings_.declare(schema_);
    use("edm-trace", schema_);
  }

 private:
  Result<void> check() override {
    if (!sim::parse_rate(settings_.rate, bits_per_second_) || bits_per_second_ == 0)
      return fail(fmt::format("--rate = \"{}\": must be a rate, such as 40Gb/s or 500Mb/s", settings_.rate));
    if (!settings_.cdf.empty() && given("bytes"))
      return fail("--bytes: not with --cdf, the file that says how long messages are");
    if (settings_.cdf.empty() && given("unit")) return fail("--unit: goes with --cdf, whose sizes it is the unit of");
    return {};
  }
  Result<sim::SizeDistribution> sizes() const {
    if (settings_.cdf.empty()) return sim::SizeDistribution::constant(static_cast<std::uint32_t>(settings_.bytes));
    const auto text = sim::read_text(settings_.cdf);
    if (!text) return tl::unexpected(text.error());
    auto sizes = sim::parse_sizes(*text, static_cast<std::uint32_t>(settings_.unit));
    if (!sizes) return fail(fmt::format("{}: {}", settings_.cdf, sizes.error().message));
    return sizes;
  }
  Result<int> run() override {
    if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
    auto sizes = this->sizes();
    if (!sizes) return tl::unexpected(sizes.error());
    const sim::TraceSpec spec{.nodes = static_cast<std::uint32_t>(settings_.nodes),
                              .messages = settings_.messages,
                              .bits_per_second = bits_per_second_,
                              .reads_per_mille = static_cast<std::uint32_t>(settings_.reads),
                              .request_bytes = static_cast<std::uint32_t>(settings_.request_bytes),
                              .sizes = std::move(*sizes)};
    if (sim::lasts_too_long(spec)) return fail(fmt::format("--rate = \"{}\": {}", settings_.rate, sim::kLastsTooLong));
    const auto written = write_output(settings_.out, sim::format_trace(sim::generate_trace(spec, settings_.seed)));
    if (!written) return tl::unexpected(written.error());
    return 0;
  }

  TraceSettings settings_;
  rack::Schema schema_;
  std::uint64_t bits_per_second_ = 0;
};

struct SimulateSettings {
  std::uint64_t nodes = 144;
  std::string hardware;
  std::string matching = "pim";
  std::string policy = "srpt";
  std::uint64_t chunk = 256;
  std::uint64_t active = 3;
  std::uint64_t framing = 0;
  std::uint64_t gap = 0;
  std::uint64_t mega = 0;
  Duration patience{};
  std::string out;

  void declare(rack::Schema& s) {
    s.integer("nodes", nodes, 2, edm::kMaxPorts, "nodes")
        .text("hardware", hardware, "hardware file; empty: the experiments' edm_cluster", "a file's path")
        .choice("matching", matching, {"pim", "greedy"}, "how the switch matches: as the paper's, or in no time")
        .choice("policy", policy, {"srpt", "fcfs"},
                "srpt: the message with the least left goes first; fcfs: in the order of coming")
        .bytes("chunk", chunk, 8, 65'536, "data that a grant is for, at most; a multiple of 8")
        .integer("active", active, 1, 127,
                 "requests that a node may have under way to another (X); of reads and of writes")
        .integer("framing", framing, 0, 8, "blocks of a chunk besides its data")
        .integer("gap", gap, 0, 8, "blocks that are left free after a chunk")
        .bytes("mega", mega, 0, 1u << 20,
               "data that writes of one node to another may ask for together once --active of them wait; 0: each for "
               "itself")
        .duration("patience", patience, Duration{}, Duration::seconds(1),
                  "hold a port for the most urgent message once that has waited so long; 0: never")
        .text("out", out,
              fmt::format("file to write, a line for each WREQ, two for an RREQ: {}; empty: stdout", kOutcomeColumns),
              "a file's path");
  }
};

class SimulateCommand final : public Command {
 public:
  explicit SimulateCommand(CLI::App& group)
      : Command(
            group, "simulate",
            "Run a trace of memory messages through a cluster; a line for each, in the published format",
            {"sluice edm simulate writes.csv --out finished.csv", "sluice edm simulate writes.csv --matching greedy"}) {
    settings_.declare(schema_);
    use("edm-simulate", schema_);
    option("trace", trace_,
           fmt::format("messages, a line each, in order of time: {}. type 1: a read, whose request has size_bytes and "
                       "which reads request_bytes; 3: a write of size_bytes, request_bytes -1; 100, a frame, is "
                       "refused. src and dst: "
                       "nodes from 0 on. A timeslot is 8 bytes on the link (0.64 ns). The names of the columns "
                       "may stand in the first line",
                       sim::kTraceColumns))
        .type_name("FILE")
        .required();
  }

 private:
  Result<void> check() override {
    if (settings_.chunk % 8 != 0)
      return fail(fmt::format("--chunk = \"{}\": must be a multiple of 8", settings_.chunk));
    return {};
  }
  Result<int> run() override {
    if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
    auto hardware = load_hardware();
    if (!hardware) return tl::unexpected(hardware.error());
    const auto text = sim::read_text(trace_);
    if (!text) return tl::unexpected(text.error());
    const auto rows = sim::parse_trace(*text, static_cast<std::uint32_t>(settings_.nodes), hardware->last_slot());
    if (!rows) return fail(fmt::format("{}: {}", trace_, rows.error().message));
    if (rows->empty()) return fail(fmt::format("{}: has no messages", trace_));
    for (const sim::TraceRow& row : *rows) {
      if (row.type == sim::TraceRow::Type::kFrame)
        return fail(
            fmt::format("{}: row {} is a frame (type 100); memory messages alone are simulated", trace_, row.id));
    }
    const sim::ClusterSettings cluster{
        .nodes = static_cast<std::uint32_t>(settings_.nodes),
        .active_per_pair = static_cast<std::uint32_t>(settings_.active),
        .chunk_bytes = static_cast<std::uint32_t>(settings_.chunk),
        .framing_blocks = static_cast<std::uint32_t>(settings_.framing),
        .gap_blocks = static_cast<std::uint32_t>(settings_.gap),
        .policy = settings_.policy == "srpt" ? edm::Policy::kShortestRemaining : edm::Policy::kFirstCome,
        .matching = settings_.matching == "pim" ? edm::Matching::kPim : edm::Matching::kGreedy,
        .patience = settings_.patience,
        .mega_bytes = static_cast<std::uint32_t>(settings_.mega)};
    const sim::ClusterOutcome outcome = sim::run_cluster(*hardware, cluster, *rows);
    const auto written = write_output(settings_.out, sim::format_outcome(*hardware, *rows, outcome));
    if (!written) return tl::unexpected(written.error());
    double alone = 0;
    for (std::size_t i = 0; i < rows->size(); ++i) {
      alone += static_cast<double>(outcome.times[i].finished - (*rows)[i].slot) /
               static_cast<double>(sim::alone_blocks(*hardware, cluster, (*rows)[i]));
    }
    say(fmt::format("simulated: {} messages, {} chunks, {} rounds of matching; {:.3f} times alone, mean", rows->size(),
                    outcome.chunks, outcome.iterations, alone / static_cast<double>(rows->size())));
    return 0;
  }

  Result<sim::EdmHardware> load_hardware() const {
    if (!settings_.hardware.empty()) return sim::load_edm_hardware(settings_.hardware);
    const auto file = hardware_file("edm_cluster");
    if (!file) return tl::unexpected(file.error());
    return sim::load_edm_hardware(*file);
  }

  SimulateSettings settings_;
  rack::Schema schema_;
  std::string trace_;
};

class GrantsCommand final : public Command {
 public:
  explicit GrantsCommand(CLI::App& group)
      : Command(group, "grants", "Show, or switch on and off, what the rack's switch grants by EDM's scheduler",
                {"sluice edm grants", "sluice edm grants --set off", "sluice edm grants --json"}) {
    use_rack();
    option("--set", set_, "on or off: grants, or all passes as in a plain switch").one_of({"on", "off"});
    flag("--json", json_, "the same as JSON");
  }

 private:
  Result<int> run() override {
    using nlohmann::json;
    const auto answer = ask_stage(run_directory(), {"/v1/edm", "EDM scheduler", "--edm"},
                                  set_.empty() ? std::nullopt : std::optional(json{{"on", set_ == "on"}}));
    if (!answer) return tl::unexpected(answer.error());
    const json& status = *answer;
    if (json_) {
      fmt::print("{}\n", json_text(status));
      return 0;
    }
    const auto count = [&](const char* key) { return status[key].get<std::uint64_t>(); };
    fmt::print("{}, {}, {} hosts at {} Mb/s\n", status["on"].get<bool>() ? "on" : "off",
               status["policy"].get<std::string>(), count("hosts"), count("bits_per_second") / 1'000'000);
    fmt::print("granted    {} READs of {} B, {} frames of WRITEs and SENDs of {} B\n", count("reads"),
               count("read_bytes"), count("frames"), count("frame_bytes"));
    fmt::print("waited     {} of them, {:.1f} us at most; {} frames wait now, {} at most\n", count("waited"),
               status["longest_us"].get<double>(), count("held"), count("most_held"));
    fmt::print("without    {} waited too long, {} found no room, {} of hosts too many, {} of silent nodes, {} lost\n",
               count("overdue"), count("overflow"), count("strangers"), count("unanswered"), count("lost"));
    fmt::print("ended      {} READs by a NAK, {} whose answer broke off\n", count("refused"), count("abandoned"));
    return 0;
  }

  std::string set_;
  bool json_ = false;
};

}  // namespace

void add_edm_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(
      root, "edm", "EDM: traces and its cluster in virtual time; what the rack's switch grants by its scheduler");
  commands.push_back(std::make_unique<GrantsCommand>(group));
  commands.push_back(std::make_unique<TraceCommand>(group));
  commands.push_back(std::make_unique<SimulateCommand>(group));
}

}  // namespace sluice::cli
