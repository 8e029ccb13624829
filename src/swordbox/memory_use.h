// MemoryUse: what the box's tables take, by feature: the account of its resources.
//
// Units:      bytes of address space; a table whose entries are touched only when used takes less of the machine's memory (`lazy`).
// Source:     SwordBox Figure 8 (of a switch's pipeline; here of a program's memory).
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace sluice::swordbox {

enum class Feature : unsigned char { kConnections, kHolding, kSteering, kReplacing };
constexpr std::string_view feature_name(Feature feature) {
  switch (feature) {
    case Feature::kConnections: return "connections";
    case Feature::kHolding: return "holding";
    case Feature::kSteering: return "steering";
    case Feature::kReplacing: return "replacing";
  }
  return "";
}

struct MemoryUse {
  Feature feature{};
  std::string_view table;  // what it holds
  std::size_t entries = 0;
  std::size_t bytes = 0;
  bool lazy = false;
};

template <class Vector>
std::size_t bytes_of(const Vector& table) {
  return table.capacity() * sizeof(typename Vector::value_type);
}

}  // namespace sluice::swordbox
