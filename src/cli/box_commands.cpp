// sluice box top | on | off | rules | set | explain | memory: what SwordBox in the switch does, what it is told, and what it would do to a capture.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/ask_stage.h"
#include "cli/box_report.h"
#include "cli/capture.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/parse_region.h"
#include "ports/pcap_port.h"
#include "rack/endpoint/endpoint.h"
#include "rack/settings/box_settings.h"
#include "sim/load/box_memory.h"
#include "swordbox/explain.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr Stage kBox{"/v1/box", "box", "--box clover"};

class BoxTop final : public Command {
 public:
  explicit BoxTop(CLI::App& group)
      : Command(group, "top", "Show what the box does, every second: verdicts, hottest keys, busiest connections",
                {"sluice box top", "sluice box top --once", "sluice box top --json"}) {
    use_rack();
    flag("--once", once_, "show all counts once, and end");
    flag("--json", json_, "the same as JSON, once");
  }

 private:
  Result<int> run() override {
    rack::StopSignals signals;
    auto status = ask_stage(run_directory(), kBox, std::nullopt);
    if (!status) return tl::unexpected(status.error());
    if (json_) {
      fmt::print("{}\n", json_text(*status));
      return 0;
    }
    if (once_) {
      fmt::print("{}", box_page(*status, nullptr, 1));
      return 0;
    }
    return follow(signals, std::move(*status));
  }

  Result<int> follow(const rack::StopSignals& signals, json before) {
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    pollfd descriptor{signals.descriptor(), POLLIN, 0};
    auto then = std::chrono::steady_clock::now();
    while (poll(&descriptor, 1, 1000) == 0) {
      auto status = ask_stage(run_directory(), kBox, std::nullopt);
      if (!status) return tl::unexpected(status.error());
      const auto now = std::chrono::steady_clock::now();
      const double seconds = std::chrono::duration<double>(now - std::exchange(then, now)).count();
      fmt::print("{}{}", terminal ? "\x1b[H\x1b[2J" : "", box_page(*status, &before, seconds));
      std::fflush(stdout);
      before = std::move(*status);
    }
    return 0;
  }

  bool once_ = false;
  bool json_ = false;
};

Result<int> change_box(const rack::RunDirectory& run, const json& change) {
  const auto status = ask_stage(run, kBox, change);
  if (!status) return tl::unexpected(status.error());
  fmt::print("{}\n", box_line(*status));
  return 0;
}

// sluice box on, sluice box off
class BoxSwitch final : public Command {
 public:
  enum class To : std::uint8_t { kOff, kOn };
  BoxSwitch(CLI::App& group, To to)
      : Command(group, to == To::kOn ? "on" : "off",
                to == To::kOn ? "Let the box act again"
                              : "Let everything pass; what was changed before stays consistent, no packet is lost",
                {to == To::kOn ? "sluice box on" : "sluice box off"}),
        to_(to) {
    use_rack();
  }

 private:
  Result<int> run() override { return change_box(run_directory(), {{"on", to_ == To::kOn}}); }
  To to_;
};

class BoxRules final : public Command {
 public:
  explicit BoxRules(CLI::App& group)
      : Command(group, "rules", "List the box's rules, or switch some on and off while it runs",
                {"sluice box rules", "sluice box rules clover-reads=off",
                 "sluice box rules clover-writes=on clover-reads=on"}) {
    use_rack();
    option("RULE=on|off", wishes_, "what to change [nothing: list them]");
  }

 private:
  Result<void> check() override {
    for (const std::string& wish : wishes_) {
      const std::size_t equals = wish.find('=');
      const std::string state = equals == std::string::npos ? "" : wish.substr(equals + 1);
      if (state != "on" && state != "off") return fail(fmt::format("\"{}\": must be RULE=on or RULE=off", wish));
      rules_[wish.substr(0, equals)] = state == "on";
    }
    return {};
  }
  Result<int> run() override {
    const auto status =
        ask_stage(run_directory(), kBox, rules_.empty() ? std::nullopt : std::optional(json{{"rules", rules_}}));
    if (!status) return tl::unexpected(status.error());
    if (!(*status)["on"].get<bool>()) fmt::print("the box is off: no rule acts (`sluice box on`)\n");
    for (const auto& [name, acts] : (*status)["rules"].items())
      fmt::print("{:<16} {}\n", name, acts.get<bool>() ? "on" : "off");
    if ((*status)["rules"].empty())
      fmt::print(
          "the box only watches; `sluice rack down`, then `sluice rack up --box clover` (or words) gives it rules\n");
    return 0;
  }
  std::vector<std::string> wishes_;
  json rules_ = json::object();
};

class BoxSet final : public Command {
 public:
  explicit BoxSet(CLI::App& group)
      : Command(group, "set", "Change what the box does while it runs; no packet is lost by that",
                {"sluice box set --on=false", "sluice box set --order strict",
                 "sluice box set --keys 64 --held-frames 512"}) {
    use_rack();
    option("--on", on_, "true: steer; false: nothing new is changed, what was changed stays consistent");
    option("--order", order_, "pipelined: append behind appends under way; strict: one append a round trip and key")
        .one_of({"pipelined", "strict"});
    option("--keys", keys_, "steer only so many keys, the hottest").not_negative();
    option("--held-frames", held_, "packets that may wait in the box; what does not fit is dropped").not_negative();
  }

 private:
  Result<void> check() override {
    if (on_) change_["on"] = *on_;
    if (!order_.empty()) change_["order"] = order_;
    if (keys_) change_["keys"] = *keys_;
    if (held_) change_["held-frames"] = *held_;
    if (change_.empty()) return fail("nothing to change; give --on, --order, --keys or --held-frames");
    return {};
  }
  Result<int> run() override { return change_box(run_directory(), change_); }

  std::optional<bool> on_;
  std::string order_;
  std::optional<std::uint64_t> keys_;
  std::optional<std::uint64_t> held_;
  json change_ = json::object();
};

class BoxExplain final : public Command {
 public:
  explicit BoxExplain(CLI::App& group)
      : Command(group, "explain", "Say for each packet of a capture what the box would do with it, and why",
                {"sluice box explain capture.pcap", "sluice box explain --rule watch --summary capture.pcap",
                 "sluice box explain --region 10.77.0.2:0x1234 --order strict capture.pcap"}) {
    option("FILE", file_, "capture of one point before the box: pcap or pcapng").required();
    option("--rule", rule_, "what `rack up --box` would have been told: clover, or watch for no rule [clover]")
        .type_name("watch|clover");
    option("--order", order_,
           "pipelined: append behind appends under way; strict: one append a round trip and key [pipelined]")
        .one_of({"pipelined", "strict"});
    option("--region", regions_, "memory to watch, IP:KEY or [IPV6]:KEY, in the order of volumes [all that is seen]");
    flag("--authors-layout", authors_, "nodes as the authors' Clover lays them out: next words are 0 or an address");
    flag("--summary", summary_only_, "only the counts");
  }

 private:
  Result<void> check() override {
    if (rule_ == "words" || rule_ == "clover+words")
      return fail(
          fmt::format("--rule = \"{}\": must be clover or watch: words puts packets of its own on the wire in place of "
                      "atomics, and a capture has no answers to those",
                      rule_));
    if (rule_ == "watch" || rule_ == "none") {
      if (!order_.empty() || !regions_.empty() || authors_)
        return fail(
            fmt::format("--rule {}: has no use for --order, --region and --authors-layout; leave them out", rule_));
      return {};
    }
    if (rule_ != "clover") return fail(fmt::format("--rule = \"{}\": must be clover or watch", rule_));
    auto config = rule_config();
    if (!config) return tl::unexpected(config.error());
    config_ = std::move(*config);
    return {};
  }

  Result<int> run() override {
    const auto capture = open_capture(file_, PCAP_TSTAMP_PRECISION_NANO);
    if (!capture) return tl::unexpected(capture.error());
    swordbox::Explainer explainer({}, config_);
    pcap_pkthdr* header = nullptr;
    const u_char* bytes = nullptr;
    std::optional<timeval> first;
    int result = 0;
    std::uint64_t cut = 0;
    for (std::uint64_t number = 1; (result = pcap_next_ex(capture->get(), &header, &bytes)) == 1; ++number) {
      if (header->caplen < header->len) {
        ++cut;
        if (!summary_only_) fmt::print("{:>6} cut by the capture\n", number);
        continue;
      }
      if (!first) first = header->ts;
      // The capture's clock may have been set back meanwhile; the box's never is.
      const Time now = std::max(Time() + ports::distance(*first, header->ts), last_);
      last_ = now;
      const std::string text = explainer.explain(now, {bytes, header->caplen});
      if (!summary_only_) fmt::print("{:>6} {}", number, text);
    }
    if (result != PCAP_ERROR_BREAK) return fail(fmt::format("{}: {}", file_, pcap_geterr(capture->get())));
    fmt::print("{}{}", summary_only_ ? "" : "\n", explainer.summary());
    if (cut != 0)
      return fail(fmt::format("{}: {} packets are cut by the capture, and the box has not seen them; record whole ones",
                              file_, cut));
    return 0;
  }

  Result<swordbox::CloverConfig> rule_config() const {
    swordbox::CloverConfig config;
    if (authors_) config.layout = swordbox::ChainLayout{};
    config.order = order_ == "strict" ? swordbox::Order::kStrict : swordbox::Order::kPipelined;
    for (const std::string& text : regions_) {
      const auto region = parse_region(text);
      if (!region) return fail(fmt::format("--region = \"{}\": must be {}", text, kRegionForm));
      config.layout.regions_by_volume.push_back(static_cast<std::uint16_t>(config.regions.size()));
      config.regions.push_back(*region);
    }
    return config;
  }

  std::string file_;
  std::string rule_ = "clover";
  std::string order_;  // empty: pipelined
  std::vector<std::string> regions_;
  bool authors_ = false;
  bool summary_only_ = false;
  std::optional<swordbox::CloverConfig> config_;  // none: no rule
  Time last_;
};

// sluice box memory
class BoxMemory final : public Command {
 public:
  explicit BoxMemory(CLI::App& group)
      : Command(group, "memory", "Say what a box of a given size takes of memory, table by table",
                {"sluice box memory", "sluice box memory --connections 64 --words 4096", "sluice box memory --json"}) {
    // As a switch makes it that is told nothing.
    const rack::BoxSettings defaults;
    box_.connections = defaults.connections;
    box_.keys = defaults.keys;
    box_.nodes = defaults.history;
    box_.words = defaults.words;
    box_.held_packets = defaults.held_frames;
    box_.ring = defaults.ring;
    option("--connections", box_.connections, "that it follows [4096]").between(1u, 1u << 16);
    option("--keys", box_.keys, "that it steers [1024]").between(1u, 1u << 22);
    option("--nodes", box_.nodes, "that it remembers, of all keys [65536]").between(1u, 1u << 26);
    option("--words", box_.words, "whose atomics it replaces [65536]").between(1u, 1u << 26);
    option("--held-frames", box_.held_packets, "packets that may wait [4096]").between(1u, 1u << 16);
    option("--ring", box_.ring, "operations remembered of each connection, a power of two [256]").between(16u, 4096u);
    flag("--json", json_, "as JSON");
  }

 private:
  Result<void> check() override {
    if (!std::has_single_bit(box_.ring)) return fail(fmt::format("--ring = \"{}\": must be a power of two", box_.ring));
    box_.most_keys = rack::BoxSettings::most_keys(box_.keys);
    return {};
  }
  Result<int> run() override {
    const auto uses = sim::make_box(box_)->account();
    json rows = json::array();
    if (!json_) fmt::print("{:<12} {:<40} {:>10} {:>12} {:>10}\n", "FEATURE", "TABLE", "ENTRIES", "KiB", "B/ENTRY");
    std::size_t total = 0;
    std::size_t lazy = 0;
    for (const swordbox::MemoryUse& use : uses) {
      total += use.bytes;
      if (use.lazy) lazy += use.bytes;
      rows.push_back({{"feature", swordbox::feature_name(use.feature)},
                      {"table", use.table},
                      {"entries", use.entries},
                      {"bytes", use.bytes},
                      {"touched_when_used", use.lazy}});
      if (json_) continue;
      fmt::print("{:<12} {:<40} {:>10} {:>12.1f} {:>10.1f}{}\n", swordbox::feature_name(use.feature), use.table,
                 use.entries, static_cast<double>(use.bytes) / 1024,
                 static_cast<double>(use.bytes) / static_cast<double>(use.entries), use.lazy ? "  *" : "");
    }
    if (json_) {
      fmt::print("{}\n", json_text(rows));
      return 0;
    }
    fmt::print("{:<12} {:<40} {:>10} {:>12.1f}\n", "all", "", "", static_cast<double>(total) / 1024);
    fmt::print("* touched only when used: {:.1f} KiB are there from the start\n",
               static_cast<double>(total - lazy) / 1024);
    return 0;
  }

  sim::BoxMemoryWorkload box_;
  bool json_ = false;
};

}  // namespace

void add_box_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "box", "SwordBox: watch it, set it, ask it what it would do");
  commands.push_back(std::make_unique<BoxTop>(group));
  commands.push_back(std::make_unique<BoxSwitch>(group, BoxSwitch::To::kOn));
  commands.push_back(std::make_unique<BoxSwitch>(group, BoxSwitch::To::kOff));
  commands.push_back(std::make_unique<BoxRules>(group));
  commands.push_back(std::make_unique<BoxSet>(group));
  commands.push_back(std::make_unique<BoxExplain>(group));
  commands.push_back(std::make_unique<BoxMemory>(group));
}

}  // namespace sluice::cli
