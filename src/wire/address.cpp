#include "wire/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/bytes.h"

namespace sluice::wire {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

}  // namespace

Result<MacAddress> MacAddress::parse(std::string_view text) {
  const auto refuse = [&] {
    return fail(fmt::format("'{}' is no MAC address: write six hexadecimal bytes, like 02:00:0a:4d:00:01", text));
  };
  constexpr std::size_t kLength = 17;
  if (text.size() != kLength) return refuse();
  MacAddress mac;
  for (std::size_t i = 0; i < mac.bytes.size(); ++i) {
    const char* digits = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, mac.bytes[i], 16);
    if (error != std::errc{} || end != digits + 2) return refuse();
    if (i + 1 < mac.bytes.size() && digits[2] != ':') return refuse();
  }
  return mac;
}

std::string MacAddress::to_string() const { return fmt::format("{:02x}", fmt::join(bytes, ":")); }

Result<Ipv4Address> Ipv4Address::parse(std::string_view text) {
  std::array<std::uint8_t, 4> raw{};
  if (inet_pton(AF_INET, std::string(text).c_str(), raw.data()) != 1) {
    return fail(fmt::format("'{}' is no IPv4 address: write four numbers, like 10.0.0.1", text));
  }
  return Ipv4Address{load_be<std::uint32_t>(raw.data())};
}

std::string Ipv4Address::to_string() const {
  return fmt::format("{}.{}.{}.{}", value >> 24, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF);
}

Gid Gid::from(Ipv4Address v4) {
  Gid gid;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), gid.bytes.begin());
  store_be(gid.bytes.data() + kMappedPrefix.size(), v4.value);
  return gid;
}

Result<Gid> Gid::parse(std::string_view text) {
  if (const auto v4 = Ipv4Address::parse(text)) return from(*v4);
  Gid gid;
  if (inet_pton(AF_INET6, std::string(text).c_str(), gid.bytes.data()) != 1) {
    return fail(fmt::format("'{}' is no IP address: write an IPv4 or IPv6 one, like 10.0.0.1 or fe80::1", text));
  }
  return gid;
}

bool Gid::is_v4() const { return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin()); }
Ipv4Address Gid::v4() const { return {load_be<std::uint32_t>(bytes.data() + kMappedPrefix.size())}; }

std::string Gid::to_string() const {
  if (is_v4()) return v4().to_string();
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  return text.data();
}

}  // namespace sluice::wire
