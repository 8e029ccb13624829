// sluice rack up | down | status: a whole rack as separate processes on this machine.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/box_report.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/table.h"
#include "clover/layout.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/directory_json.h"
#include "rack/endpoint/endpoint.h"
#include "rack/process/daemon_http.h"
#include "rack/process/launcher.h"
#include "rack/process/plan.h"
#include "rack/settings/names.h"

namespace sluice::cli {
namespace {

std::optional<std::string> attribute_of_switch(const rack::RunDirectory& run, const char* name) {
  const auto nodes = rack::DirectoryClient(run.directory_address(), Duration{}).nodes();
  const rack::NodeRecord* const node = nodes ? nodes->find("switch") : nullptr;
  if (node == nullptr || !node->description.attributes.contains(name)) return std::nullopt;
  return node->description.attributes.at(name);
}

using nlohmann::json;

// "memory3 (pid 4711)", of each process of this machine on the rack that `sluice rack up` has not started, except a switch.
class Strangers {
 public:
  Strangers(const rack::RunDirectory& run, const std::vector<rack::DaemonStatus>& daemons) {
    const auto nodes = rack::DirectoryClient(run.directory_address(), Duration{}).nodes();
    if (!nodes) return;
    for (const auto& daemon : daemons) pids_.push_back(daemon.process.pid);
    // What a switch has on the rack beside itself is not told apart from it.
    for (const rack::NodeRecord& node : nodes->nodes) {
      if (node.description.kind == rack::NodeKind::kSwitch) pids_.push_back(pid_of(node));
    }
    for (const rack::NodeRecord& node : nodes->nodes) {
      const auto machine = node.description.attributes.find(rack::kMachineAttribute);
      const bool is_here = (machine == node.description.attributes.end() ? "" : machine->second) == run.machine();
      if (is_here && node.state != rack::NodeState::kGone) add(node);
    }
  }
  // Those that are still there.
  std::string text() const {
    std::string out;
    const auto living = this->living();
    for (std::size_t i = 0; i < living.size(); ++i)
      out += fmt::format("{}{} (pid {})",
                         i == 0                   ? ""
                         : i + 1 == living.size() ? " and "
                                                  : ", ",
                         living[i].name, living[i].process.pid);
    if (living.empty()) return out;
    return out + (living.size() == 1 ? " was not started by `sluice rack up` and goes on: end it"
                                     : " were not started by `sluice rack up` and go on: end them");
  }

 private:
  struct Stranger {
    std::string name;
    rack::ProcessRecord process;
  };
  static pid_t pid_of(const rack::NodeRecord& node) {
    const auto found = node.description.attributes.find("pid");
    if (found == node.description.attributes.end()) return 0;
    return static_cast<pid_t>(std::strtol(found->second.c_str(), nullptr, 10));
  }
  void add(const rack::NodeRecord& node) {
    const pid_t pid = pid_of(node);
    if (std::ranges::find(pids_, pid) != pids_.end()) return;
    pids_.push_back(pid);  // a program may be several nodes
    if (const auto process = rack::find_process(pid)) all_.push_back({rack::shown(node.description.name), *process});
  }
  std::vector<Stranger> living() const {
    std::vector<Stranger> out;
    for (const Stranger& stranger : all_) {
      if (rack::alive(stranger.process)) out.push_back(stranger);
    }
    return out;
  }

  std::vector<pid_t> pids_;
  std::vector<Stranger> all_;
};

// And says who goes on.
Result<int> take_down(rack::Launcher& launcher) {
  const rack::RunDirectory& run = launcher.directory();
  const auto daemons = launcher.status();
  if (!daemons) return tl::unexpected(daemons.error());
  const Strangers strangers(run, *daemons);
  const auto ended = launcher.down();
  if (!ended) return tl::unexpected(ended.error());
  const std::string others = strangers.text();
  if (*ended != 0) {
    say("the rack is down");
  } else if (others.empty() && !run.has_switch()) {
    say(fmt::format("no rack is up in {}", run.path()));
  }
  if (!others.empty()) say(others);
  return 0;
}

class RackUp final : public Command {
 public:
  explicit RackUp(CLI::App& group)
      : Command(group, "up", "Start a switch, memory nodes and a metadata server; what runs already is left alone",
                {"sluice rack up", "sluice rack up --memory-nodes 3 --replication 3",
                 "sluice rack up --box clover --http 127.0.0.1:7470", "sluice rack up --serve 192.0.2.1:7472",
                 "sluice rack up --config rack.toml --dir /tmp/rack", "sluice rack up --replication 2 --keep"}) {
    use_rack();
    use("rack", rack_schema());
    flag("--keep", keep_, "stay, start daemons that die anew, and take the rack down at the end (Ctrl-C)");
  }

 private:
  // What a daemon would refuse, were it started, is refused when it runs already, too.
  Result<void> check() override {
    rack::SwitchSettings of_switch;
    rack::MetadataSettings of_metadata;
    rack::RackSettings ignored;
    if (!config_path().empty()) {
      rack::Schema for_switch, for_metadata, for_rack;
      of_switch.declare(for_switch);
      of_metadata.declare(for_metadata);
      ignored.declare(for_rack);
      Tables tables = all_tables();
      tables["switch"] = &for_switch;
      tables["metadata"] = &for_metadata;
      tables["rack"] = &for_rack;
      if (auto loaded = rack::load_toml(config_path(), tables); !loaded) return loaded;
    }
    if (!rack().box.empty()) of_switch.box.box = rack().box;
    if (auto checked = of_switch.check(); !checked && !config_path().empty())
      return fail(fmt::format("{}: [switch] {}", config_path(), checked.error().message));
    const std::uint64_t copies = rack().replication != 0 ? rack().replication : of_metadata.replication;
    steers_nothing_ = rack().metadata && copies > 1 && of_switch.box.steers();
    if (rack().metadata && copies > rack().memory_nodes)
      return fail(
          fmt::format("replication = {}: each copy is on a memory node of its own, and there are {}; --memory-nodes "
                      "says how many",
                      copies, rack().memory_nodes));
    if (rack().metadata && rack().memory_nodes > clover::kMaxVolumes)
      return fail(
          fmt::format("memory-nodes = {}: a Clover store has at most {}; --no-metadata starts a rack without one",
                      rack().memory_nodes, clover::kMaxVolumes));
    return {};
  }

  Result<int> run() override {
    if (run_directory().is_joined())
      return fail(
          fmt::format("this machine has joined the rack at {}: start what it gives and does by itself (`sluice memory "
                      "--name …`), or `sluice rack leave` first",
                      run_directory().directory_address().text));
    outlive_readers();
    rack::StopSignals signals;
    std::string config = config_path();
    char absolute[PATH_MAX];
    if (!config.empty() && realpath(config.c_str(), absolute) != nullptr) config = absolute;
    rack::Launcher launcher(run_directory(), say, signals.descriptor());
    const auto daemons = rack::plan(own_program(), config, rack());
    if (auto up = launcher.up(daemons, rack().start_timeout); !up) {
      if (has_come(signals)) return interrupted(up.error().message);
      return tl::unexpected(up.error());
    }
    say(fmt::format("the rack is up in {}; `sluice rack status` shows it, `sluice rack down` ends it", rack().dir));
    if (const auto url = live_view_of(run_directory())) say(fmt::format("the live view is at {}", *url));
    if (const auto where = attribute_of_switch(run_directory(), "serve"))
      say(fmt::format("machines join at {}; `sluice rack invite NAME` makes an invitation", *where));
    if (steers_nothing_)
      say("the box does not steer: what goes to one copy of a store's nodes would have to go to all; `--replication 1` "
          "lets it");
    tell_drained();
    return keep_ ? keep(launcher, daemons) : 0;
  }

  // That is kept with the tenants, and holds for nodes whose memory is new as well.
  void tell_drained() const {
    const auto nodes = rack::DirectoryClient(run_directory().directory_address(), Duration{}).nodes();
    if (!nodes) return;
    for (const std::string& name : nodes->draining)
      say(
          fmt::format("{} is still drained, from before: it is given no regions; `sluice rack drain {} --undo` gives "
                      "it some again",
                      name, name));
  }

  Result<int> keep(rack::Launcher& launcher, const std::vector<rack::DaemonSpec>& daemons) {
    say("keeping it up; Ctrl-C takes it down");
    launcher.keep(daemons, rack().start_timeout);
    return take_down(launcher);
  }

  bool keep_ = false;
  bool steers_nothing_ = false;
};

class RackDown final : public Command {
 public:
  explicit RackDown(CLI::App& group)
      : Command(group, "down", "End what `sluice rack up` has started",
                {"sluice rack down", "sluice rack down --dir /tmp/rack"}) {
    use_rack();
  }

 private:
  Result<int> run() override {
    rack::Launcher launcher(run_directory(), say);
    return take_down(launcher);
  }
};

class RackStatus final : public Command {
 public:
  explicit RackStatus(CLI::App& group)
      : Command(group, "status", "Show the rack's processes, nodes and switch ports",
                {"sluice rack status", "sluice rack status --json"}) {
    use_rack();
    flag("--json", json_, "as JSON");
  }

 private:
  // Exit code 0 when at least one daemon runs or a switch that others have started answers (on a machine that has joined a rack: when that is
  // there), none has died and the switch, if it is among them, answers, else 1.
  Result<int> run() override {
    const auto found = rack::Launcher(run_directory(), say).status();
    if (!found) return tl::unexpected(found.error());
    const std::vector<rack::DaemonStatus>& daemons = *found;
    rack::DirectoryClient directory(run_directory().directory_address(), Duration{});
    const auto nodes = directory.nodes();
    bool healthy = nodes || (!run_directory().is_joined() && !daemons.empty());
    for (const auto& daemon : daemons) healthy = healthy && daemon.running && (daemon.name != "switch" || nodes);
    // Who does not answer once is not waited for again.
    const auto get = [&](const char* path) {
      return nodes ? directory.ask(path) : Result<json>(tl::unexpected(nodes.error()));
    };
    const auto ports = get("/v1/switch");
    const auto box = get("/v1/box");  // fails where the switch has none
    if (json_) {
      print_json(daemons, nodes, ports, box);
    } else {
      print_tables(daemons, nodes, ports, box);
    }
    return healthy ? 0 : kExitFailed;
  }

  static json daemon_json(const rack::DaemonStatus& daemon) {
    json out{{"name", daemon.name}, {"running", daemon.running}, {"pid", daemon.process.pid}};
    if (const auto usage = rack::usage_of(daemon.process)) {
      out["resident_bytes"] = usage->resident_bytes;
      out["cpu_ms"] = usage->cpu.milliseconds();
      out["age_ms"] = usage->age.milliseconds();
    }
    return out;
  }

  void print_json(const std::vector<rack::DaemonStatus>& daemons, const Result<rack::Snapshot>& nodes,
                  const Result<json>& ports, const Result<json>& box) {
    json out{{"dir", rack().dir}, {"daemons", json::array()}};
    if (run_directory().is_joined()) out["joined"] = run_directory().directory_address().text;
    for (const auto& daemon : daemons) out["daemons"].push_back(daemon_json(daemon));
    out["directory"] = nodes ? rack::to_json(*nodes) : json{{"error", nodes.error().message}};
    if (nodes) out["switch"] = ports ? *ports : json{{"error", ports.error().message}};
    if (box) out["box"] = *box;
    fmt::print("{}\n", json_text(out));
  }

  void print_tables(const std::vector<rack::DaemonStatus>& daemons, const Result<rack::Snapshot>& nodes,
                    const Result<json>& ports, const Result<json>& box) {
    if (run_directory().is_joined()) {
      fmt::print("joined the rack at {} as {}{}{}\n", run_directory().directory_address().text,
                 run_directory().machine(), nodes ? "" : ": ", nodes ? "" : nodes.error().message);
    } else if (daemons.empty() && !nodes) {
      fmt::print("no rack is up in {}; `sluice rack up` starts one\n", rack().dir);
      return;
    } else if (daemons.empty()) {
      fmt::print("the daemons of this rack were not started by `sluice rack up`\n");
    }
    if (!daemons.empty())
      fmt::print("{:<12} {:>8} {:<8} {:>10} {:>9} {:>10}\n", "DAEMON", "PID", "STATE", "RESIDENT", "CPU", "UP");
    for (const auto& daemon : daemons) print_daemon(daemon);
    if (nodes) print_nodes(*nodes);
    const bool has_switch = std::ranges::any_of(daemons, [](const auto& d) { return d.name == "switch" && d.running; });
    if (!nodes && has_switch)
      fmt::print("\nthe directory, in the switch, does not answer: {}\n", nodes.error().message);
    if (ports) print_ports(*ports);
    if (box) fmt::print("\n{}; `sluice box top` shows more\n", box_line(*box));
  }

  static void print_daemon(const rack::DaemonStatus& daemon) {
    const auto usage = rack::usage_of(daemon.process);
    fmt::print("{:<12} {:>8} {:<8} ", daemon.name, daemon.process.pid, daemon.running ? "running" : "DEAD");
    if (!usage) {
      fmt::print("{:>10} {:>9} {:>10}\n", "-", "-", "-");
      return;
    }
    const double age_s = static_cast<double>(usage->age.milliseconds()) / 1e3;
    fmt::print("{:>8.1f}MB {:>8.2f}% {:>9.0f}s\n", static_cast<double>(usage->resident_bytes) / 1e6,
               100 * static_cast<double>(usage->cpu.milliseconds()) / 1e3 / std::max(age_s, 1e-3), age_s);
  }

  // What they export stands by itself: a line for each node and one for each region fit a narrow terminal, which all of it together does not.
  static void print_nodes(const rack::Snapshot& snapshot) {
    Table nodes({"NODE", "KIND", "STATE", ">ID", "IP", "MAC", "MACHINE"});
    Table memory({"MEMORY OF", "REGION", ">SIZE", "KEY"});
    for (const rack::NodeRecord& node : snapshot.nodes) {
      const rack::NodeDescription& is = node.description;
      const auto machine = is.attributes.find(rack::kMachineAttribute);
      const bool drains = node.state == rack::NodeState::kReady &&
                          std::ranges::find(snapshot.draining, is.name) != snapshot.draining.end();
      nodes.add({rack::shown(is.name), std::string(to_string(is.kind)),
                 drains ? "draining" : std::string(shown_state(node)), std::to_string(node.id.value),
                 node.ip.to_string(), node.mac.to_string(),
                 machine == is.attributes.end() ? "" : rack::shown(machine->second)});
      for (const auto& region : is.regions)
        memory.add({rack::shown(is.name), region.owner.empty() ? "" : rack::shown(region.owner + "/" + region.name),
                    rack::bytes_text(region.length), fmt::format("{:#x}", region.key)});
    }
    fmt::print("\n{}", nodes.text());
    if (!memory.empty()) fmt::print("\n{}", memory.text());
  }

  static void print_ports(const json& status) {
    fmt::print("\n{:>4} {:<18} {:>12} {:>12} {:>9} {:>9} {}\n", "PORT", "MAC", "FRAMES IN", "FRAMES OUT", "FLOODED",
               "QUEUED", "DROPS");
    for (const json& port : status["ports"]) {
      const std::string mac = port["macs"].empty() ? "-" : port["macs"][0].get<std::string>();
      fmt::print("{:>4} {:<18} {:>12} {:>12} {:>9} {:>9} {}\n", port["number"].get<int>(), mac,
                 port["rx_frames"].get<std::uint64_t>(), port["tx_frames"].get<std::uint64_t>(),
                 port["flooded"].get<std::uint64_t>(), port["queued"].get<std::uint64_t>(), drops_text(port["drops"]));
    }
  }
  // "3 queue full, 12 no link"
  static std::string drops_text(const json& drops) {
    std::vector<std::string> words;
    for (const auto& [reason, count] : drops.items())
      words.push_back(fmt::format("{} {}", count.get<std::uint64_t>(), reason));
    return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
  }

  bool json_ = false;
};

}  // namespace

std::optional<std::string> live_view_of(const rack::RunDirectory& run) {
  const auto where = attribute_of_switch(run, rack::kHttpAttribute);
  return where ? std::optional("http://" + *where + "/") : std::nullopt;
}

std::string own_program() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : "sluice";
}

void add_rack_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "rack", "Bring a rack up, take it down, look at it");
  commands.push_back(std::make_unique<RackUp>(group));
  commands.push_back(std::make_unique<RackDown>(group));
  commands.push_back(std::make_unique<RackStatus>(group));
  add_join_commands(group, commands);
  add_drain_command(group, commands);
}

}  // namespace sluice::cli
