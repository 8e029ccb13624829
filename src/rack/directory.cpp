#include "rack/directory.h"

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

bool unknown_lease(const Error& error) { return error.message.starts_with(kUnknownLease); }

}  // namespace sluice::rack
