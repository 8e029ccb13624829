// The records of the metadata server's journal.
//
// Record:     u8 kind | i64 time, ps | bytes, little-endian.
#pragma once

#include <cstdint>

namespace sluice::clover {

enum class RecordKind : std::uint8_t {
  kRequest = 1,  // of a client, as it came
  kExpiry,       // u32 client
  kRestart,
  kLose,    // u32 node
  kRekey,   // a home: u32 node | u32 key | u64 address | u64 length | u64 life
  kRejoin,  // a home
  kCount,   // u32 volume | u32 replica
};

}  // namespace sluice::clover
