// The small codes of connection management: time-outs, path MTUs, node GUIDs.
//
// Source:  IBTA vol. 1 §12.7.34 (time-outs), §12.7.29 (path MTU); RFC 4291 appendix A (modified EUI-64), as Linux makes GUIDs.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "wire/address.h"
#include "wire/cm.h"

namespace sluice::rc {

inline constexpr std::uint8_t kLongestTimeoutCode = 31;

// The smallest code whose duration is at least `d`.
constexpr std::uint8_t code_of_duration(Duration d) {
  std::uint8_t code = 0;
  while (code < kLongestTimeoutCode && wire::cm_timeout(code) < d) ++code;
  return code;
}

// 256 … 4096 as 1 … 5; 0 for anything else.
constexpr std::uint8_t code_of_mtu(std::uint32_t mtu) {
  for (std::uint8_t code = 1; code <= 5; ++code) {
    if (mtu == 128u << code) return code;
  }
  return 0;
}
// 0 for a code that means nothing.
constexpr std::uint32_t mtu_of_code(std::uint8_t code) { return code >= 1 && code <= 5 ? 128u << code : 0; }

// Services of rdma_cm, whatever the IP protocol: their REQs carry IP addresses before the private data (annex A11.3.1).
constexpr bool is_ip_service(wire::ServiceId id) { return id.value >> 24 == 1; }

// The GUID of the adapter with this MAC: its modified EUI-64.
constexpr std::uint64_t guid_of(const wire::MacAddress& mac) {
  const auto& b = mac.bytes;
  const std::uint64_t high = std::uint64_t{b[0]} << 16 | std::uint64_t{b[1]} << 8 | b[2];
  const std::uint64_t low = std::uint64_t{b[3]} << 16 | std::uint64_t{b[4]} << 8 | b[5];
  return (high << 40 | std::uint64_t{0xFFFE} << 24 | low) ^ std::uint64_t{2} << 56;
}

}  // namespace sluice::rc
