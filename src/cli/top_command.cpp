// sluice top: the rack at work, in the terminal: the same data as the live view in a browser.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "cli/box_report.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/table.h"
#include "rack/directory/directory_http.h"
#include "rack/endpoint/endpoint.h"
#include "switching/host_stage.h"
#include "switching/types.h"
#include "wire/address.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostClients = 12;

std::uint64_t number(const json& object, const char* name) { return object.value(name, std::uint64_t{0}); }

// The ports of a state, by who is behind them.
class Ports {
 public:
  explicit Ports(const json& state) {
    if (!state["switch"].contains("ports")) return;
    std::map<std::string, bool> is_gone;
    for (const json& node : state["nodes"]) is_gone[node["mac"].get<std::string>()] = node["state"] == "gone";
    for (const json& port : state["switch"]["ports"]) {
      std::set<std::string> behind;
      for (const json& mac : port["macs"]) {
        const auto address = wire::MacAddress::parse(mac.get_ref<const std::string&>());
        // A program on a host's NIC is the host.
        const std::string host = address ? switching::HostStage::host_of(*address).to_string() : "";
        behind.insert(is_gone.contains(host) ? host : mac.get<std::string>());
      }
      const auto living = std::ranges::count_if(behind, [&](const std::string& mac) {
        const auto node = is_gone.find(mac);
        return node == is_gone.end() || !node->second;
      });
      for (const std::string& mac : behind) places_[mac] = {&port, living > 1};
    }
  }

  struct Place {
    const json* port = nullptr;
    bool is_shared =
        false;  // by several addresses, a stranger's or another node's, that are not of nodes that are gone
  };
  Place find(const std::string& mac) const {
    const auto place = places_.find(mac);
    return place == places_.end() ? Place{} : place->second;
  }

 private:
  std::map<std::string, Place> places_;
};

struct Traffic {
  double frames_in = 0;  // from the node
  double frames_out = 0;
  double bytes_in = 0;
  double bytes_out = 0;
  std::uint64_t drops = 0;
  bool is_shared = false;  // of a port that others are behind, too: all of them together
};

Traffic traffic_of(const json& node, const Ports& now, const Ports& before, double seconds) {
  Traffic t;
  const auto& mac = node["mac"].get_ref<const std::string&>();
  const auto [port, is_shared] = now.find(mac);
  if (port == nullptr) return t;
  t.is_shared = is_shared && node["state"] != "gone";
  // What a stage took it has answered itself, or put in order.
  for (const auto& [reason, count] : (*port)["drops"].items()) {
    if (reason != to_string(switching::DropReason::kStage)) t.drops += count.get<std::uint64_t>();
  }
  const json* const was = before.find(mac).port;
  if (was == nullptr || (*was)["number"] != (*port)["number"]) return t;
  const auto rate = [seconds, &is = *port, &was = *was](const char* name) {
    const std::uint64_t a = number(is, name);
    const std::uint64_t b = number(was, name);
    return a > b ? static_cast<double>(a - b) / seconds : 0.0;
  };
  return {rate("rx_frames"), rate("tx_frames"), rate("rx_bytes"), rate("tx_bytes"), t.drops, t.is_shared};
}

// Names that differ at their end only stay different.
std::string shortened(const std::string& name) {
  constexpr std::size_t kWidth = 22;
  constexpr std::size_t kHead = 9;
  if (name.size() <= kWidth) return name;
  return name.substr(0, kHead) + "…" + name.substr(name.size() - (kWidth - kHead - 1));
}

// What a node sent, and what it got.
void add_node(Table& table, const json& node, const Traffic& t) {
  std::uint64_t exported = 0;
  for (const json& region : node["regions"]) exported += number(region, "length");
  // A node has at most what its port has.
  const auto shown = [&t](double number, int digits) {
    return fmt::format("{}{:.{}f}", t.is_shared ? "<=" : "", number, digits);
  };
  const bool has_left = node["state"] == "gone" && node.value("left", false);
  table.add({shortened(node["name"].get<std::string>()), node["kind"].get<std::string>(),
             has_left ? "left" : node["state"].get<std::string>(), exported != 0 ? rack::bytes_text(exported) : "",
             shown(t.frames_in, 0), shown(t.frames_out, 0), shown(t.bytes_in / 1e6, 2), shown(t.bytes_out / 1e6, 2),
             shown(static_cast<double>(t.drops), 0)});
}

std::string node_table(const json& now, const json& before, double seconds) {
  Table table({"NODE", "KIND", "STATE", ">EXPORTS", ">SENT/S", ">GOT/S", ">SENT MB/S", ">GOT MB/S", ">DROPPED"});
  struct Client {
    const json* node;
    Traffic t;
  };
  bool any_shared = false;
  const auto add = [&](const json& node, const Traffic& t) {
    add_node(table, node, t);
    any_shared |= t.is_shared;
  };
  std::vector<Client> clients;
  const Ports ports(now);
  const Ports were(before);
  for (const json& node : now["nodes"]) {
    const Traffic t = traffic_of(node, ports, were, seconds);
    if (node["kind"] != "client") {
      if (node["kind"] != "switch") add(node, t);
    } else if (node["state"] != "gone") {
      clients.push_back({&node, t});
    }
  }
  std::ranges::stable_sort(clients, std::greater<>{}, [](const Client& c) { return c.t.frames_in + c.t.frames_out; });
  for (std::size_t i = 0; i < std::min(clients.size(), kMostClients); ++i) add(*clients[i].node, clients[i].t);
  std::string text = table.text();
  if (clients.size() > kMostClients) text += fmt::format("… and {} clients more\n", clients.size() - kMostClients);
  if (any_shared) text += "<=: of a port that others are behind, too, all of them together\n";
  return text;
}

// The smallest edge, in us, that `share` of the counts do not exceed.
std::optional<double> quantile(const std::vector<std::uint64_t>& counts, const json& edges, double share) {
  std::uint64_t all = 0;
  for (const std::uint64_t n : counts) all += n;
  if (all == 0) return std::nullopt;
  const auto rank = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(all)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    if (seen >= rank) return edges[std::min(i, edges.size() - 1)].get<double>() * 1e6;
  }
  return std::nullopt;
}

std::string latency_line(const json& now, const json& before) {
  const json& all = now["switch"].value("latency", json::object());
  std::string text;
  for (const auto& [name, latency] : all.items()) {
    auto counts = latency["counts"].get<std::vector<std::uint64_t>>();
    const json was = before["switch"].value("latency", json::object()).value(name, json::object());
    if (was.contains("counts")) {
      for (std::size_t i = 0; i < counts.size(); ++i)
        counts[i] -= std::min(counts[i], was["counts"][i].get<std::uint64_t>());
    }
    const json& edges = now["switch"]["latency_edges_s"];
    const auto p50 = quantile(counts, edges, 0.5);
    if (!p50) continue;
    text += fmt::format("{}{} {:.0f} / {:.0f}", text.empty() ? "" : ", ", name, *p50, *quantile(counts, edges, 0.99));
  }
  return text.empty() ? "latency, switch to memory and back: no samples\n"
                      : fmt::format("latency, switch to memory and back, p50 / p99 at most, us: {}\n", text);
}

std::string page(const json& now, const json& before) {
  const double seconds = std::max(0.05, static_cast<double>(number(now, "at_ms") - number(before, "at_ms")) / 1e3);
  std::string text = node_table(now, before, seconds) + "\n" + latency_line(now, before);
  const json& box = now["box"];
  if (box.is_object() && box.contains("counters")) {
    const json& was = before["box"];
    text += "\n" + box_page(box, was.is_object() && was.contains("counters") ? &was : nullptr, seconds);
  }
  return text;
}

class Top final : public Command {
 public:
  explicit Top(CLI::App& root)
      : Command(root, "top", "Show the rack at work, every second: nodes, traffic, latency, what the box does",
                {"sluice top", "sluice top --once", "sluice top --json"}) {
    use_rack();
    flag("--once", once_, "look for a second, show that, and end");
    flag("--json", json_, "the present state as JSON, and end");
  }

 private:
  Result<json> look() {
    rack::DirectoryClient directory(run_directory().directory_address(), Duration{});
    auto state = directory.ask("/v1/state");
    if (state && !(*state)["switch"].contains("ports")) return fail("the switch is busy; try again");
    return state;
  }

  Result<int> run() override {
    rack::StopSignals signals;
    auto before = look();
    if (!before) return tl::unexpected(before.error());
    if (json_) {
      fmt::print("{}\n", json_text(*before));
      return 0;
    }
    const bool terminal = isatty(STDOUT_FILENO) != 0 && !once_;
    pollfd descriptor{signals.descriptor(), POLLIN, 0};
    while (poll(&descriptor, 1, 1000) == 0) {
      auto now = look();
      if (!now) return tl::unexpected(now.error());
      fmt::print("{}{}", terminal ? "\x1b[H\x1b[2J" : "", page(*now, *before));
      std::fflush(stdout);
      if (once_) return 0;
      before = std::move(now);
    }
    return 0;
  }

  bool once_ = false;
  bool json_ = false;
};

}  // namespace

void add_top_command(CLI::App& root, Commands& commands) { commands.push_back(std::make_unique<Top>(root)); }

}  // namespace sluice::cli
