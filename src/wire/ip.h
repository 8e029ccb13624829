// IPv4, IPv6, UDP and the GRH, as values in host order.
//
// Invariant:  write(parse(x)) == x for any bytes, wrong versions and checksums included: parse judges nothing.
// Source:     RFC 791, RFC 8200, RFC 768, RFC 3168 (ECN); IBTA vol. 1 §8.3 (GRH), A17.3 (RoCEv2).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "wire/address.h"

namespace sluice::wire {

inline constexpr std::uint8_t kIpProtocolUdp = 17;

// The low two bits of the TOS or traffic class.
enum class Ecn : std::uint8_t { kNotCapable = 0, kCapable1 = 1, kCapable0 = 2, kCongestionExperienced = 3 };

struct Ipv4Header {
  static constexpr std::size_t kSize = 20;  // without options, which RoCEv2 forbids (A17.3.1)
  static constexpr std::uint16_t kDontFragment = 0x4000;
  static constexpr std::uint16_t kMoreFragments = 0x2000;
  static constexpr std::uint16_t kFragmentOffsetMask = 0x1FFF;
  std::uint8_t version = 4;
  std::uint8_t header_words = 5;
  std::uint8_t traffic_class = 0;  // DSCP and ECN
  std::uint16_t total_length = 0;
  std::uint16_t identification = 0;
  std::uint16_t fragment = kDontFragment;  // flags and offset
  std::uint8_t ttl = 64;
  std::uint8_t protocol = kIpProtocolUdp;
  std::uint16_t checksum = 0;
  Ipv4Address source{};
  Ipv4Address destination{};

  static Ipv4Header parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Ipv4Header&, const Ipv4Header&) = default;
};

// One's-complement sum over an IPv4 header with `checksum` in its place; the words stay in the order of the wire, which
// only swaps the bytes of the sum (RFC 1071 §2).
inline std::uint16_t ipv4_sum(const std::uint8_t* p, std::uint16_t checksum) {
  std::uint64_t sum = std::uint64_t{load_le<std::uint32_t>(p)} + load_le<std::uint32_t>(p + 4) +
                      load_le<std::uint16_t>(p + 8) + checksum + load_le<std::uint32_t>(p + 12) +
                      load_le<std::uint32_t>(p + 16);
  sum = (sum & 0xFFFF'FFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}
// The header checksum that belongs over the 20 bytes at `p`, whatever now stands in their checksum field.
std::uint16_t ipv4_checksum(const std::uint8_t* p);
// Whether the checksum that stands there is right.
inline bool ipv4_checksum_is_right(const std::uint8_t* p) {
  return ipv4_sum(p, load_le<std::uint16_t>(p + 10)) == 0xFFFF;
}
// The checksum after one 16-bit word under it changed, or the sum of several (RFC 1624, equation 3).
std::uint16_t patch_checksum(std::uint16_t checksum, std::uint16_t before, std::uint16_t after);

struct Ipv6Header {
  static constexpr std::size_t kSize = 40;
  std::uint8_t version = 6;
  std::uint8_t traffic_class = 0;
  std::uint32_t flow_label = 0;      // 20 bits
  std::uint16_t payload_length = 0;  // all after this header
  std::uint8_t next_header = kIpProtocolUdp;
  std::uint8_t hop_limit = 64;
  Gid source{};
  Gid destination{};

  static Ipv6Header parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Ipv6Header&, const Ipv6Header&) = default;
};

// Global routing header: the same 40 bytes. RoCEv2 has none on the wire, but a UD receiver finds one before its
// payload.
using Grh = Ipv6Header;
inline constexpr std::uint8_t kGrhNextHeaderBth = 0x1B;

struct UdpHeader {
  static constexpr std::size_t kSize = 8;
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 0;
  std::uint16_t length = 0;  // this header and all after it
  std::uint16_t checksum = 0;

  static UdpHeader parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const UdpHeader&, const UdpHeader&) = default;
};

}  // namespace sluice::wire
