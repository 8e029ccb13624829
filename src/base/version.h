// The version of this program; CMakeLists.txt has the same.
#pragma once

namespace sluice {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace sluice
