#include "cli/parse_region.h"

#include <charconv>
#include <string_view>

namespace sluice::cli {

namespace {

// IPv6 in brackets, which tell its colons from that of the key.
Result<wire::Gid> parse_address(std::string_view text) {
  const bool bracketed = text.starts_with('[') && text.ends_with(']');
  if (bracketed) return wire::Gid::parse(text.substr(1, text.size() - 2));
  return wire::Ipv4Address::parse(text).map(wire::Gid::from);
}

}  // namespace

std::optional<swordbox::Region> parse_region(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto address = parse_address(std::string_view(text).substr(0, colon));
  std::string_view key = std::string_view(text).substr(colon + 1);
  const bool hex = key.starts_with("0x");
  if (hex) key.remove_prefix(2);
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(key.data(), key.data() + key.size(), number, hex ? 16 : 10);
  if (!address || parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size()) return std::nullopt;
  return swordbox::Region{*address, wire::RKey(number)};
}

}  // namespace sluice::cli
