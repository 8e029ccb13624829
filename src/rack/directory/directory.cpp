#include "rack/directory/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::rack {
namespace {

template <class Enum, std::size_t N>
using Names = std::array<std::pair<Enum, std::string_view>, N>;

constexpr Names<NodeKind, 4> kKinds{{{NodeKind::kSwitch, "switch"},
                                     {NodeKind::kMemory, "memory"},
                                     {NodeKind::kMetadata, "metadata"},
                                     {NodeKind::kClient, "client"}}};
constexpr Names<NodeState, 3> kStates{
    {{NodeState::kJoining, "joining"}, {NodeState::kReady, "ready"}, {NodeState::kGone, "gone"}}};

template <class Enum, std::size_t N>
std::string_view name_of(const Names<Enum, N>& names, Enum value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  return "?";
}

template <class Enum, std::size_t N>
std::optional<Enum> value_of(const Names<Enum, N>& names, std::string_view text) {
  for (const auto& [value, name] : names) {
    if (name == text) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(NodeKind kind) { return name_of(kKinds, kind); }
std::string_view to_string(NodeState state) { return name_of(kStates, state); }
std::optional<NodeKind> parse_node_kind(std::string_view text) { return value_of(kKinds, text); }
std::optional<NodeState> parse_node_state(std::string_view text) { return value_of(kStates, text); }

std::string to_string(NodeKinds kinds) {
  std::string text;
  for (const auto& [kind, name] : kKinds) {
    if (kinds.contains(kind)) text += (text.empty() ? "" : ",") + std::string(name);
  }
  return text;
}

std::optional<NodeKinds> parse_node_kinds(std::string_view text) {
  NodeKinds kinds;
  for (;;) {
    const std::size_t end = std::min(text.find(','), text.size());
    const auto kind = parse_node_kind(text.substr(0, end));
    if (!kind) return std::nullopt;
    kinds = kinds.with(*kind);
    if (end == text.size()) return kinds;
    text.remove_prefix(end + 1);
  }
}

std::string_view shown_state(const NodeRecord& node) {
  return node.state == NodeState::kGone && node.has_left ? "left" : to_string(node.state);
}

const NodeRecord* Snapshot::find(std::string_view name) const {
  for (const NodeRecord& node : nodes) {
    if (node.description.name == name) return &node;
  }
  return nullptr;
}

std::vector<const NodeRecord*> Snapshot::ready(NodeKind kind) const {
  std::vector<const NodeRecord*> found;
  for (const NodeRecord& node : nodes) {
    if (node.description.kind == kind && node.state == NodeState::kReady) found.push_back(&node);
  }
  return found;
}

void Snapshot::keep(NodeKinds kinds) {
  std::erase_if(nodes, [kinds](const NodeRecord& node) { return !kinds.contains(node.description.kind); });
}

Snapshot::Memory Snapshot::find_memory(std::string_view name) const {
  Memory found;
  for (const NodeRecord* node : ready(NodeKind::kMemory)) {
    const std::vector<RegionRecord>& here = node->description.regions;
    if (node->description.name == name && !here.empty()) {
      // The first of several would be another as soon as one is added that sorts before it.
      if (!here.front().owner.empty() && here.size() > 1) return {.are_several = true};
      return {node, &here.front()};
    }
    for (const RegionRecord& region : here) {
      if (region.name == kMainRegion) continue;
      if (region.owner + "/" + region.name == name) return {node, &region};
      if (region.name != name) continue;
      if (found.node != nullptr) found.are_several = true;
      if (!found.are_several) found = {node, &region};
    }
  }
  return found.are_several ? Memory{.are_several = true} : found;
}

Result<Snapshot::Memory> Snapshot::memory_called(std::string_view name) const {
  const Memory found = find_memory(name);
  if (found.node != nullptr) return found;
  if (found.are_several) {
    std::string all;
    for (const NodeRecord* node : ready(NodeKind::kMemory)) {
      const bool is_the_node = node->description.name == name;
      for (const RegionRecord& region : node->description.regions) {
        if (!is_the_node && region.name != name) continue;
        all += (all.empty() ? "" : ", ") + (is_the_node ? region.name : region.owner + "/" + region.name);
      }
      if (is_the_node) return fail(fmt::format("{} has several regions of yours; name one of {}", name, all));
    }
    return fail(fmt::format("several regions are called {}; name one of {}", name, all));
  }
  const std::string names = memory_names();
  if (!names.empty()) return fail(fmt::format("there is no memory node {}; there are {}", name, names));
  return fail(has_tenants ? "no memory of this rack is yours; `sluice region add` asks for some"
                          : "no memory node is on the rack; `sluice memory` adds one");
}

std::string Snapshot::memory_names() const {
  std::vector<std::string> names;
  std::vector<std::string> owned;
  for (const NodeRecord* node : ready(NodeKind::kMemory)) {
    if (find_memory(node->description.name).node != nullptr) names.push_back(node->description.name);
    for (const RegionRecord& region : node->description.regions) {
      if (!region.owner.empty()) owned.push_back(region.owner + "/" + region.name);
    }
  }
  names.insert(names.end(), owned.begin(), owned.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

bool unknown_lease(const Error& error) { return error.message.starts_with(kUnknownLease); }

}  // namespace sluice::rack
