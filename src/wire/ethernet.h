// Ethernet, the 802.1Q tag and ARP, as values in host order.
//
// Invariant:  write(parse(x)) == x for any bytes.
// Source:     IEEE 802.3 §3.2, 802.1Q §9.6; RFC 826.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/address.h"

namespace sluice::wire {

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint16_t kEtherTypeVlan = 0x8100;
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86DD;

struct EthernetHeader {
  static constexpr std::size_t kSize = 14;
  MacAddress destination{};
  MacAddress source{};
  std::uint16_t ether_type = 0;  // kEtherTypeVlan: a VlanTag follows

  static EthernetHeader parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const EthernetHeader&, const EthernetHeader&) = default;
};

// What follows an ether type of 0x8100.
struct VlanTag {
  static constexpr std::size_t kSize = 4;
  std::uint16_t tci = 0;         // priority (3 bits), drop eligible (1), VLAN identifier (12)
  std::uint16_t ether_type = 0;  // of what the tag carries

  constexpr std::uint16_t vlan_id() const { return tci & 0xFFF; }
  constexpr std::uint8_t priority() const { return static_cast<std::uint8_t>(tci >> 13); }

  static VlanTag parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const VlanTag&, const VlanTag&) = default;
};

// ARP for IPv4 over Ethernet. Sent broadcast to ask for the MAC of `target_ip`; the owner answers with a reply of its
// own.
struct ArpPacket {
  static constexpr std::size_t kSize = 28;
  static constexpr std::uint16_t kRequest = 1;
  static constexpr std::uint16_t kReply = 2;
  std::uint16_t hardware_type = 1;
  std::uint16_t protocol_type = kEtherTypeIpv4;
  std::uint8_t hardware_length = 6;
  std::uint8_t protocol_length = 4;
  std::uint16_t operation = kRequest;
  MacAddress sender_mac{};
  Ipv4Address sender_ip{};
  MacAddress target_mac{};
  Ipv4Address target_ip{};

  constexpr bool is_ethernet_ipv4() const {
    return hardware_type == 1 && protocol_type == kEtherTypeIpv4 && hardware_length == 6 && protocol_length == 4;
  }
  static ArpPacket parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const ArpPacket&, const ArpPacket&) = default;
};

}  // namespace sluice::wire
