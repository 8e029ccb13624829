// The numbers of 1RMA, each a type of its own, and the outcomes of an operation.
//
// Source:  1RMA §4.5 (outcomes), §5 (operations), §6.1 (op size); docs/design/onerma.md for what the paper leaves open.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/strong.h"

namespace sluice::onerma {

inline constexpr std::uint32_t kMaxOp = 4096;  // bytes of one operation

using RegionId = Strong<struct RegionIdTag, std::uint32_t>;
using Generation = Strong<struct GenerationTag, std::uint32_t>;  // of a region's key: one more with each Rekey
// One life of an initiator: whoever grants keys gives no number twice for a region.
using InitiatorId = Strong<struct InitiatorIdTag, std::uint64_t>;
// One life of a node, 24 bits.
using Boot = Strong<struct BootTag, std::uint32_t>;
using SlotId = Strong<struct SlotIdTag, std::uint16_t>;
// An attempt at an operation: command slot below, above it a number that an initiator uses once in its life, in the order in which its
// requests leave.
using OpId = Strong<struct OpIdTag, std::uint64_t>;

inline constexpr SlotId slot_of(OpId op) { return SlotId(static_cast<std::uint16_t>(op.value)); }
inline constexpr std::uint64_t sequence_of(OpId op) { return op.value >> 16; }

enum class OpKind : std::uint8_t { kRead, kWrite, kRekey };

// What a derived key is good for: part of what it is derived from.
struct Rights {
  static constexpr std::uint8_t kReadBit = 1;
  static constexpr std::uint8_t kWriteBit = 2;
  static constexpr std::uint8_t kRekeyBit = 4;
  static constexpr std::uint8_t kAll = 7;

  std::uint8_t bits = 0;

  constexpr bool allow(OpKind op) const { return (bits >> static_cast<unsigned>(op) & 1) != 0; }
  friend constexpr Rights operator|(Rights a, Rights b) { return {static_cast<std::uint8_t>(a.bits | b.bits)}; }
  friend constexpr bool operator==(Rights, Rights) = default;
};
inline constexpr Rights kMayRead{Rights::kReadBit};
inline constexpr Rights kMayWrite{Rights::kWriteBit};
inline constexpr Rights kMayRekey{Rights::kRekeyBit};

// How an operation ended. Travels in answers by its number.
enum class Status : std::uint8_t {
  kOk = 0,
  kNack = 1,             // the target's queue is too deep: shed, nothing happened
  kDispatchTimeout = 2,  // it could not enter service here: never sent, nothing happened
  kTimeout = 3,          // no answer: a write or Rekey whose data have left may have happened, but will not from now on
  kBadKey = 4,           // no such region, a key that is not the region's, or one of before a Rekey: nothing happened
  kBadBounds = 5,        // outside the region: nothing happened
  kRightMissing = 6,     // the key is not good for this: nothing happened
  kReplay = 7,           // its data came twice or too late; a write or Rekey may have happened, once
};
inline constexpr std::size_t kStatusCount = 8;
std::string_view to_string(Status status);

}  // namespace sluice::onerma
