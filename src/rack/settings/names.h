// Names on the rack: of nodes, tenants, regions, hosts. They become names of files and words of JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::rack {

inline constexpr std::size_t kMostNodeName = 200;
inline constexpr std::size_t kMostName = 63;  // of all else

// Without what a terminal might not show as it is: such bytes as \x1b.
std::string shown(std::string_view text);
// 1 to `most` letters, digits, '-', '_' or '.'.
bool is_name(std::string_view name, std::size_t most = kMostName);
// The error says which names are allowed.
Result<void> check_name(std::string_view what, std::string_view name, std::size_t most = kMostName);

}  // namespace sluice::rack
