#include "rack/switch/capture_http.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "rack/process/ask.h"
#include "switching/host_stage.h"
#include "telemetry/http_server.h"

namespace sluice::rack {
namespace {

using nlohmann::json;
namespace pcapng = ports::pcapng;

constexpr std::chrono::milliseconds kSignOfLife{200};
constexpr std::chrono::seconds kNames{1};

Result<std::vector<wire::MacAddress>> macs_of(const std::vector<std::string>& names, const Snapshot& snapshot) {
  std::vector<wire::MacAddress> macs;
  for (const std::string& name : names) {
    const NodeRecord* const node = snapshot.find(name);
    if (node == nullptr || node->state == NodeState::kGone)
      return fail(fmt::format("no node '{}' is on the rack; `sluice rack status` shows who is", name));
    macs.push_back(node->mac);
  }
  return macs;
}

Result<CaptureWish> wish_of(const std::string& body, DirectoryStore& directory) {
  const json asked = json::parse(body, nullptr, false);
  if (!asked.is_object()) return fail("the body must be a JSON object");
  CaptureWish wish;
  std::vector<std::string> nodes;
  try {
    for (const auto& [key, value] : asked.items()) {
      if (key == "filter") {
        wish.filter = value.get<std::string>();
      } else if (key == "nodes") {
        nodes = value.get<std::vector<std::string>>();
      } else if (key == "in") {
        wish.in = value.get<bool>();
      } else if (key == "out") {
        wish.out = value.get<bool>();
      } else if (key == "snap") {
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > port::kMaxFrame)
          return fail(fmt::format("snap: must be a number from 0 (all) to {}", port::kMaxFrame));
        wish.snap = value.get<std::uint32_t>();
      } else if (key == "buffer") {
        wish.buffer = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
      } else {
        return fail(fmt::format("{}: unknown; there are filter, nodes, in, out, snap and buffer", key));
      }
    }
  } catch (const json::exception& error) {
    return fail(error.what());
  }
  if (!wish.in && !wish.out) return fail("in or out must be true, or there is nothing to see");
  if (nodes.empty()) return wish;
  const auto snapshot = directory.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  auto macs = macs_of(nodes, *snapshot);
  if (!macs) return tl::unexpected(macs.error());
  wish.of = std::move(*macs);
  return wish;
}

// One reader's.
class CaptureSource {
 public:
  CaptureSource(const SwitchParts& parts, std::shared_ptr<Capture> capture)
      : parts_(parts), capture_(std::move(capture)) {}

  std::string operator()() {
    std::string out;
    if (!begun_) pcapng::append_section(out, "sluice");
    if (const auto now = std::chrono::steady_clock::now(); !begun_ || now >= sign_at_) {
      sign_at_ = now + kSignOfLife;
      pcapng::append_names(out, new_names(now));
    }
    begun_ = true;
    return out + capture_->next([this](switching::PortNumber port) { return names_of(port); });
  }

 private:
  using Instant = std::chrono::steady_clock::time_point;

  std::vector<std::pair<wire::Ipv4Address, std::string>> new_names(Instant now) {
    std::vector<std::pair<wire::Ipv4Address, std::string>> names;
    if (begun_ && now < names_at_) return names;
    names_at_ = now + kNames;
    const auto snapshot = parts_.directory.nodes();
    if (!snapshot) return names;
    for (const NodeRecord& node : snapshot->nodes) {
      if (node.state != NodeState::kGone && named_.insert({node.ip, node.description.name}).second)
        names.emplace_back(node.ip, node.description.name);
    }
    return names;
  }
  // Nothing: the switch has no time, or ends.
  Result<SwitchReport> report() const {
    if (parts_.loop.stopping()) return fail("the switch ends");
    return ask<SwitchReport>(parts_.loop,
                             [&ports = parts_.ports](Time now) -> Result<SwitchReport> { return ports.report(now); });
  }
  PortNames names_of(switching::PortNumber number) const {
    const auto seen = report();
    return names_in(seen ? *seen : SwitchReport{}, parts_.directory.nodes(), number);
  }
  static PortNames names_in(const SwitchReport& seen, const Result<Snapshot>& snapshot, switching::PortNumber number) {
    PortNames names{.name = std::to_string(number.value), .description = fmt::format("port {}", number.value)};
    for (const SwitchReport::Port& port : seen.ports) {
      if (port.number == number) names.description += ", " + port.name;
    }
    if (!snapshot) return names;
    std::set<wire::MacAddress> behind;
    for (const auto& entry : seen.macs) {
      if (entry.port == number) behind.insert(switching::HostStage::host_of(entry.mac));
    }
    for (const NodeRecord& node : snapshot->nodes) {
      if (behind.contains(node.mac) && node.state != NodeState::kGone) names.name += ":" + node.description.name;
    }
    return names;
  }

  SwitchParts parts_;
  std::shared_ptr<Capture> capture_;
  bool begun_ = false;
  Instant sign_at_;
  Instant names_at_;
  std::set<std::pair<wire::Ipv4Address, std::string>> named_;
};

}  // namespace

void add_capture_route(telemetry::HttpServer& server, const SwitchParts& parts) {
  server.pour(kCapturePath, "application/x-pcapng",
              [parts](const std::string& body) -> Result<telemetry::HttpServer::Source> {
                auto wish = wish_of(body, parts.directory);
                if (!wish) return tl::unexpected(wish.error());
                auto capture = parts.captures.begin(*wish);
                if (!capture) return tl::unexpected(capture.error());
                return CaptureSource(parts, std::move(*capture));
              });
}

}  // namespace sluice::rack
