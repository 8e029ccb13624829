// Request ids: a number that says by itself of what type and region a request is, and its place among them.
//
// Layout:     bit 62: write; bits 48 to 61: region; bits 0 to 47: sequence in its channel and type, from 1. Never negative.
// Limits:     2^48 requests of a type in a channel's life, ten million a second for most of a year. A channel that has come so far issues no more.
// Source:     Cowbird §4.3: "req_ids are generated to encode their operation type, region id, and the incremented per-request id".
#pragma once

#include <compare>
#include <cstdint>

#include "cowbird/layout.h"

namespace sluice::cowbird {

class RequestId {
 public:
  constexpr RequestId() = default;
  constexpr explicit RequestId(std::int64_t value) : value_(value) {}
  constexpr RequestId(RwType type, std::uint16_t region, std::uint64_t sequence)
      : value_(static_cast<std::int64_t>(std::uint64_t{type == RwType::kWrite} << 62 | std::uint64_t{region} << 48 |
                                         sequence)) {}

  static constexpr std::uint64_t kMostSequence = 0xffff'ffff'ffff;
  constexpr std::int64_t value() const { return value_; }
  constexpr bool is_write() const { return (value_ >> 62 & 1) != 0; }
  constexpr RwType type() const { return is_write() ? RwType::kWrite : RwType::kRead; }
  constexpr std::uint16_t region() const { return static_cast<std::uint16_t>(value_ >> 48 & 0x3fff); }
  constexpr std::uint64_t sequence() const { return static_cast<std::uint64_t>(value_) & kMostSequence; }
  friend constexpr auto operator<=>(RequestId, RequestId) = default;

 private:
  std::int64_t value_ = 0;
};

static_assert(kMaxRegions <= 1u << 14);

}  // namespace sluice::cowbird
