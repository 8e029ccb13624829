#include "rack/switch/port_labels.h"

#include <set>

#include "switching/host_stage.h"

namespace sluice::rack {
namespace {

struct Names {
  std::set<std::string> servers;
  std::set<std::string> clients;
};

// In the names' order, so that it changes with them alone.
std::string label_of(const std::set<std::string>& names) {
  std::string label;
  std::size_t named = 0;
  for (const std::string& name : names) {
    if (!label.empty()) label += ',';
    if (named++ == PortLabels::kMostNamed) return label + "...";
    label += name;
  }
  return label;
}

}  // namespace

SwitchReport::Labels PortLabels::look(const SwitchReport& report, const Snapshot* nodes) {
  const std::lock_guard lock(mutex_);
  if (nodes != nullptr) take(*nodes);
  place(report);
  std::map<switching::PortNumber, Names> behind;
  for (const auto& [mac, port] : places_) {
    const Node& node = nodes_.at(mac);
    (node.is_client ? behind[port].clients : behind[port].servers).insert(node.name);
  }
  SwitchReport::Labels labels;
  for (const auto& [port, names] : behind)
    labels[port] = label_of(names.servers.empty() ? names.clients : names.servers);
  return labels;
}

void PortLabels::take(const Snapshot& nodes) {
  nodes_.clear();
  for (const NodeRecord& node : nodes.nodes) {
    const NodeKind kind = node.description.kind;
    if (kind == NodeKind::kSwitch) continue;
    nodes_[node.mac] = {node.description.name, kind == NodeKind::kClient, node.state == NodeState::kGone};
  }
}

void PortLabels::place(const SwitchReport& report) {
  std::set<switching::PortNumber> ports;
  for (const SwitchReport::Port& port : report.ports) ports.insert(port.number);
  std::set<wire::MacAddress> seen;
  for (const auto& entry : report.macs) {
    const wire::MacAddress mac = switching::HostStage::host_of(entry.mac);
    seen.insert(mac);
    if (nodes_.contains(mac)) places_[mac] = entry.port;
  }
  std::erase_if(places_, [&](const auto& place) {
    const auto node = nodes_.find(place.first);
    if (node == nodes_.end() || !ports.contains(place.second)) return true;
    return node->second.is_gone && !seen.contains(place.first);
  });
}

}  // namespace sluice::rack
