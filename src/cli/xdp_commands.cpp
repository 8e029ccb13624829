// sluice xdp attach | detach | show: SwordBox's steering as a program in the kernel of a machine on the path.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/parse_region.h"
#include "rack/directory/directory_http.h"
#include "rack/endpoint/store_memory.h"
#include "xdp/steering.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using xdp::Steering;
using xdp::WayOut;

class XdpAttach final : public Command {
 public:
  explicit XdpAttach(CLI::App& group)
      : Command(group, "attach", "Steer a Clover store's packets that come in at interfaces, in the kernel",
                {"sluice xdp attach br0p1 br0p2 --region 10.77.0.2:0x1234",
                 "sluice xdp attach --out across eth1 eth2 --region 10.77.0.2:0x1234",
                 "sluice xdp attach eth1             # the store of the rack that is up"}) {
    use_rack();
    option("IFACE", interfaces_, "interfaces; requests and answers must both come in at one of them").required();
    option("--region", region_texts_,
           "memory of the store, IP:KEY or [IPV6]:KEY, in the order of its volumes [asks the rack]");
    option("--out", out_,
           "kernel: on to the host or its bridge; back: where it came in; across: to the other of "
           "two interfaces; over veth only where the far ends have GRO on [kernel]")
        .one_of({"kernel", "back", "across"});
    option("--keys", keys_, "steer only so many keys, the hottest [1024]").between(1, 16'384);
    option("--connections", connections_, "most connections followed at once [4096]").between(1, 4096);
    option("--flight", flight_, "what a client has sent is executed within this or never [1s]")
        .between(Duration::milliseconds(1), Duration::seconds(60));
    flag("--authors-layout", authors_, "nodes as the authors' Clover lays them out");
  }

 private:
  Result<void> check() override {
    for (const std::string& text : region_texts_) {
      const auto region = parse_region(text);
      if (!region) return fail(fmt::format("--region = \"{}\": must be {}", text, kRegionForm));
      regions_.push_back(*region);
    }
    return {};
  }

  Result<int> run() override {
    xdp::SteeringConfig config;
    if (authors_) config.rule.layout = swordbox::ChainLayout{};
    if (auto known = find_memory(config.rule); !known) return tl::unexpected(known.error());
    config.rule.ring = 32;
    config.rule.steer_reads_for = Duration::milliseconds(500);
    config.rule.tracked_keys = keys_;
    config.connections = connections_;
    config.flight = flight_;
    config.way_out = out_ == "back" ? WayOut::kBack : out_ == "across" ? WayOut::kAcross : WayOut::kToKernel;
    auto steering = Steering::load(config);
    if (!steering) return tl::unexpected(steering.error());
    const auto attached = (*steering)->attach(interfaces_);
    if (!attached) return tl::unexpected(attached.error());
    fmt::print(
        "steering {} regions of memory on {}{}; `sluice xdp show` tells what it does\n", config.rule.regions.size(),
        fmt::join(interfaces_, ", "),
        *attached == xdp::Attachment::kGeneric ? " (before the network stack: the driver does not take it)" : "");
    if (*attached == xdp::Attachment::kGeneric && config.way_out == WayOut::kAcross)
      fmt::print(
          "there GRO has put frames together, and what is longer than the MTU is lost on its way across: `ethtool -K "
          "{} "
          "gro off`, `ethtool -K {} gro off`\n",
          interfaces_[0], interfaces_[1]);
    return 0;
  }

  Result<void> find_memory(swordbox::CloverConfig& rule) const {
    const auto add = [&](const swordbox::Region& region) {
      rule.layout.regions_by_volume.push_back(static_cast<std::uint16_t>(rule.regions.size()));
      rule.regions.push_back(region);
    };
    for (const swordbox::Region& region : regions_) add(region);
    if (!regions_.empty()) return {};
    rack::DirectoryClient directory(run_directory().directory_address(), Duration{});
    const auto snapshot = directory.nodes();
    if (!snapshot)
      return fail(fmt::format("no rack in {} to ask for the store's memory ({}); name it with --region IP:KEY",
                              run_directory().path(), snapshot.error().message));
    const auto store = rack::find_store(*snapshot);
    if (!store)
      return fail("the rack has no Clover store that is ready; start it, or name its memory with --region IP:KEY");
    for (const rack::StoreMemory::Volume& volume : store->volumes) add({volume.node, volume.key});
    rule.mirrored = store->mirrored;
    return {};
  }

  std::vector<std::string> interfaces_;
  std::vector<std::string> region_texts_;
  std::vector<swordbox::Region> regions_;
  std::string out_ = "kernel";
  std::uint32_t keys_ = 1024;
  std::uint32_t connections_ = 4096;
  Duration flight_ = Duration::seconds(1);
  bool authors_ = false;
};

// The interfaces named, or all of this network namespace that are steered on.
Result<std::vector<std::string>> steered_interfaces(const std::vector<std::string>& named) {
  if (!named.empty()) return named;
  if (const std::string refusal = Steering::refusal(); !refusal.empty()) return fail(refusal);
  auto all = Steering::attached();
  if (!all) return tl::unexpected(all.error());
  if (all->empty()) return fail("no interface has a steering program; `sluice xdp attach` attaches one");
  return all;
}

class XdpDetach final : public Command {
 public:
  explicit XdpDetach(CLI::App& group)
      : Command(group, "detach", "End steering on interfaces, or on all; no packet is lost by that",
                {"sluice xdp detach", "sluice xdp detach eth1"}) {
    option("IFACE", interfaces_, "interfaces [all that are steered on]");
  }

 private:
  Result<int> run() override {
    const auto names = steered_interfaces(interfaces_);
    if (!names) return tl::unexpected(names.error());
    for (const std::string& name : *names) {
      if (auto done = Steering::detach(name); !done) return tl::unexpected(done.error());
      fmt::print("{}: detached\n", name);
    }
    return 0;
  }
  std::vector<std::string> interfaces_;
};

class XdpShow final : public Command {
 public:
  explicit XdpShow(CLI::App& group)
      : Command(group, "show", "Show what steering in the kernel does: verdicts, tracked keys, connections",
                {"sluice xdp show", "sluice xdp show eth1 --json"}) {
    option("IFACE", interface_, "interface [the first that is steered on]");
    option("--keys", keys_, "so many of the busiest keys [8]").not_negative();
    flag("--json", json_, "as JSON");
  }

 private:
  Result<int> run() override {
    const auto names = steered_interfaces(interface_.empty() ? std::vector<std::string>{} : std::vector{interface_});
    if (!names) return tl::unexpected(names.error());
    const auto steering = Steering::open(names->front());
    if (!steering) return tl::unexpected(steering.error());
    const auto interfaces = Steering::attached();
    if (!interfaces) return tl::unexpected(interfaces.error());
    const auto counters = (*steering)->counters();
    const auto status = (*steering)->status(keys_);
    if (json_) {
      json counts = json::object();
      counters.for_each([&](std::string_view name, std::string_view, std::uint64_t value) {
        if (value != 0) counts[std::string(name)] = value;
      });
      json keys = json::array();
      for (const auto& k : status.hottest) {
        keys.push_back({{"key", k.key},
                        {"links", k.links},
                        {"writes_steered", k.use.writes_steered},
                        {"reads_steered", k.use.reads_steered},
                        {"tail", k.tail}});
      }
      fmt::print("{}\n", json_text({{"interfaces", *interfaces},
                                    {"on", status.on},
                                    {"regions", status.regions},
                                    {"connections", status.connections},
                                    {"tracked_keys", status.tracked_keys},
                                    {"open_links", status.open_links},
                                    {"counters", std::move(counts)},
                                    {"top_keys", std::move(keys)}}));
      return 0;
    }
    fmt::print("{}: {}, {} regions, {} connections, {} keys tracked, {} links under way\n\n",
               fmt::join(*interfaces, ", "), status.on ? "on" : "off", status.regions, status.connections,
               status.tracked_keys, status.open_links);
    counters.for_each([](std::string_view name, std::string_view meaning, std::uint64_t value) {
      if (value != 0) fmt::print("{:>14}  {:<24} {}\n", value, name, meaning);
    });
    if (!status.hottest.empty())
      fmt::print("\n{:>20} {:>10} {:>14} {:>14}\n", "key", "links", "writes steered", "reads steered");
    for (const auto& k : status.hottest)
      fmt::print("{:>20} {:>10} {:>14} {:>14}\n", k.key, k.links, k.use.writes_steered, k.use.reads_steered);
    return 0;
  }
  std::string interface_;
  std::size_t keys_ = 8;
  bool json_ = false;
};

}  // namespace

void add_xdp_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "xdp", "SwordBox's steering in the kernel: attach it to interfaces, watch it");
  commands.push_back(std::make_unique<XdpAttach>(group));
  commands.push_back(std::make_unique<XdpDetach>(group));
  commands.push_back(std::make_unique<XdpShow>(group));
}

}  // namespace sluice::cli
