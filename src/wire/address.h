// Addresses: MAC, IPv4, IPv6, GID.
//
// Source:  RFC 4291 §2.5.5.2 (v4-mapped); IBTA A17.4.1.2 (a RoCEv2 GID is an IP address, IPv4 mapped into IPv6).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::wire {

struct MacAddress {
  std::array<std::uint8_t, 6> bytes{};

  static Result<MacAddress> parse(std::string_view text);  // "02:00:0a:4d:00:01"
  static constexpr MacAddress broadcast() { return {{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}}; }
  constexpr bool is_multicast() const { return (bytes[0] & 1) != 0; }
  std::string to_string() const;
  friend constexpr auto operator<=>(const MacAddress&, const MacAddress&) = default;
};

struct Ipv4Address {
  std::uint32_t value = 0;  // host order: 10.0.0.1 is 0x0A000001

  static Result<Ipv4Address> parse(std::string_view text);
  std::string to_string() const;
  friend constexpr auto operator<=>(Ipv4Address, Ipv4Address) = default;
};

// An IPv6 address, or an IPv4 one in its mapped form ::ffff:a.b.c.d; a RoCEv2 GID is just this.
struct Gid {
  std::array<std::uint8_t, 16> bytes{};

  static Gid from(Ipv4Address v4);
  static Result<Gid> parse(std::string_view text);  // "10.0.0.1" or "fe80::1"
  bool is_v4() const;
  // REQUIRES: is_v4().
  Ipv4Address v4() const;
  std::string to_string() const;
  friend constexpr auto operator<=>(const Gid&, const Gid&) = default;
};

}  // namespace sluice::wire
