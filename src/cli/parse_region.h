// "10.77.0.2:0x1234" or "[fd00::2]:0x1234": the memory of a node, by its address and its key.
#pragma once

#include <optional>
#include <string>

#include "swordbox/clover_rule.h"

namespace sluice::cli {

inline constexpr const char* kRegionForm = "IP:KEY, such as 10.77.0.2:0x1234 or [fd00::2]:0x1234";
std::optional<swordbox::Region> parse_region(const std::string& text);

}  // namespace sluice::cli
