// Self-describing values: every byte of a value follows from its key, its writer and its number, so that a read can be verified
// without knowing what was written last.
//
// Layout:     u64 id | u64 key | words of filler, the first one from key, id and length, each other the one before plus a constant, cut to the
//             length. All little-endian.
// Invariant:  two writes never share an id: it is {writer, 24 bits; sequence, 40 bits}, and 0 is no id.
// Units:      bytes; a value has at least kMinValueBytes. From kSelfChecking on, damage to any byte is noticed, and so is another length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "workload/store.h"

namespace sluice::workload {

using ValueId = std::uint64_t;  // 0: none

inline constexpr std::size_t kMinValueBytes = 8;
inline constexpr std::size_t kSelfChecking = 24;

constexpr ValueId value_id(std::uint32_t writer, std::uint64_t sequence) {
  return ValueId{writer} << 40 | (sequence & 0xFF'FFFF'FFFF);
}
constexpr std::uint32_t writer_of(ValueId id) { return static_cast<std::uint32_t>(id >> 40); }
constexpr std::uint64_t sequence_of(ValueId id) { return id & 0xFF'FFFF'FFFF; }

// REQUIRES: into.size() >= kMinValueBytes.
void fill_value(Key key, ValueId id, MutableBytes into);

// Who wrote it, or nothing when it is no whole value of this key.
std::optional<ValueId> verify_value(Key key, ByteView value);

}  // namespace sluice::workload
