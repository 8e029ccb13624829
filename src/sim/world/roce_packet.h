// Which packets of the simulated rack are RoCE: where their frames have their headers.
#pragma once

#include "base/bytes.h"
#include "sim/world/packet.h"
#include "wire/bth.h"
#include "wire/ethernet.h"
#include "wire/types.h"

namespace sluice::sim {

// Ethernet, IPv4 without options, UDP.
inline constexpr std::size_t kEtherTypeOffset = 12;
inline constexpr std::size_t kUdpPortOffset = 36;
inline constexpr std::size_t kBthOffset = 42;

inline bool is_roce(const Packet& packet) {
  return packet.length >= kBthOffset + wire::Bth::kSize + wire::kIcrcSize &&
         load_be<std::uint16_t>(packet.data + kEtherTypeOffset) == wire::kEtherTypeIpv4 &&
         load_be<std::uint16_t>(packet.data + kUdpPortOffset) == wire::kRoceUdpPort;
}

}  // namespace sluice::sim
