#include "rack/settings/names.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

namespace sluice::rack {

std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

bool is_name(std::string_view name, std::size_t most) {
  return !name.empty() && name.size() <= most && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

Result<void> check_name(std::string_view what, std::string_view name, std::size_t most) {
  if (is_name(name, most)) return {};
  return fail(fmt::format("{} '{}' must have 1 to {} letters, digits, '-', '_' or '.'", what, shown(name), most));
}

}  // namespace sluice::rack
