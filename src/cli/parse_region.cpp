#include "cli/parse_region.h"

#include <charconv>
#include <string_view>

namespace sluice::cli {

std::optional<swordbox::Region> parse_region(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto address = wire::Ipv4Address::parse(text.substr(0, colon));
  std::string_view key = std::string_view(text).substr(colon + 1);
  const bool hex = key.starts_with("0x");
  if (hex) key.remove_prefix(2);
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(key.data(), key.data() + key.size(), number, hex ? 16 : 10);
  if (!address || parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size()) return std::nullopt;
  return swordbox::Region{wire::Gid::from(*address), wire::RKey(number)};
}

}  // namespace sluice::cli
