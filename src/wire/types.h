// The numbers of RoCE, each a type of its own.
//
// Source:  IBTA vol. 1 §9.2 (BTH), §9.7.2 (PSN).
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace sluice::wire {

using Qpn = Strong<struct QpnTag, std::uint32_t>;  // 24 bits
using RKey = Strong<struct RKeyTag, std::uint32_t>;
using QKey = Strong<struct QKeyTag, std::uint32_t>;

// A 24-bit packet sequence number. No operator<: order among serial numbers is a signed distance.
class Psn {
 public:
  static constexpr std::uint32_t kMask = 0xFF'FFFF;

  constexpr Psn() = default;
  constexpr explicit Psn(std::uint32_t v) : value_(v & kMask) {}

  constexpr std::uint32_t value() const { return value_; }
  // Signed distance in packets from `other` to this one, in [-2^23, 2^23).
  constexpr std::int32_t since(Psn other) const { return static_cast<std::int32_t>((value_ - other.value_) << 8) >> 8; }
  constexpr Psn operator+(std::uint32_t n) const { return Psn(value_ + n); }
  constexpr Psn operator-(std::uint32_t n) const { return Psn(value_ - n); }
  constexpr Psn& operator++() {
    value_ = (value_ + 1) & kMask;
    return *this;
  }
  friend constexpr bool operator==(Psn, Psn) = default;

 private:
  std::uint32_t value_ = 0;
};

inline constexpr std::uint16_t kRoceUdpPort = 4791;
inline constexpr std::uint16_t kDefaultPkey = 0xFFFF;

}  // namespace sluice::wire
