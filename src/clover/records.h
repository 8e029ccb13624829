// The records of the metadata server's journal.
//
// Record:     u8 kind | i64 time, ps | bytes, little-endian.
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "clover/volumes.h"

namespace sluice::clover {

enum class RecordKind : std::uint8_t {
  kRequest = 1,  // of a client, as it came
  kExpiry,       // u32 client
  kRestart,  // u64 lifetime of cursors from now on | u64 the longest that somebody may still go by; ps. Of old: nothing
  kLose,     // u32 node
  kRekey,    // a home: u32 node | u32 key | u64 address | u64 length | u64 life
  kRejoin,   // a home | u32 volume that it stays out of, any number of times
  kCount,    // u32 volume | u32 replica
  kDead,     // u32 node
  kState,    // all that the server knew then: what comes before it is not needed any more
  kView,     // u32 number of the view that has begun, since its time had come or all had let go of the one before
  kLost,     // u32 volume
  kRename,   // u32 node | u32 what it is called now; whoever was called that is called as it was
};

template <std::unsigned_integral T>
void put_number(std::vector<std::uint8_t>& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  store_le(out.data() + at, value);
}

inline void put_duration(std::vector<std::uint8_t>& out, Duration d) {
  put_number(out, static_cast<std::uint64_t>(d.picoseconds()));
}
template <class Reader>
Duration take_duration(Reader& in) {
  return Duration::picoseconds(static_cast<std::int64_t>(in.take64()));
}

inline void put_home(std::vector<std::uint8_t>& out, const Home& home) {
  put_number(out, home.region.base.node.value);
  put_number(out, home.region.base.key.value);
  put_number(out, home.region.base.address);
  put_number(out, home.region.length);
  put_number(out, home.life);
}

template <class Reader>
Home take_home(Reader& in) {
  Home home;
  home.region.base.node = remote::NodeId(in.template take<std::uint32_t>());
  home.region.base.key = remote::RegionKey(in.template take<std::uint32_t>());
  home.region.base.address = in.take64();
  home.region.length = in.take64();
  home.life = in.take64();
  return home;
}

}  // namespace sluice::clover
