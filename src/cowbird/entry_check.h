// What an engine believes of a request that it finds in an application's memory: nothing without a check.
//
// Source:  Cowbird §4.2 (entries), §5.3 (order). Ours: the checks.
#pragma once

#include <cstdint>
#include <span>

#include "cowbird/layout.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

// A data ring of a channel.
struct RingPart {
  std::size_t start;
  std::size_t bytes;
};

// Whether `length` bytes at `local` of the channel lie in the ring, and those at `remote` in their region. `most`: bytes that the engine can move at once.
inline Status judge_places(const Entry& entry, std::uint64_t local, std::uint64_t remote, const RingPart& ring,
                           std::span<const Region> regions, std::uint64_t most) {
  if (entry.length == 0 || entry.length > ring.bytes) return Status::kBadLength;
  if (entry.length > most) return Status::kTooLong;
  if (local < ring.start || local - ring.start > ring.bytes - entry.length || local % kDataAlignment != 0) {
    return Status::kMalformed;
  }
  if (entry.region >= regions.size() || regions[entry.region].length == 0) return Status::kNoRegion;
  const Region& region = regions[entry.region];
  if (entry.length > region.length || remote > region.length - entry.length) return Status::kOutOfRange;
  if (entry.is_write() && !region.writable) return Status::kReadOnly;
  return region.denied ? Status::kDenied : Status::kOk;
}

// Whether the request points nowhere but into its data ring and its region.
inline Status judge(const Entry& entry, const ChannelLayout& layout, std::span<const Region> regions,
                    std::uint64_t most) {
  const Shape& shape = layout.shape;
  if (entry.is_write()) {
    return judge_places(entry, entry.req_addr, entry.resp_addr, {layout.requests, shape.request_bytes}, regions, most);
  }
  return judge_places(entry, entry.resp_addr, entry.req_addr, {layout.responses, shape.response_bytes}, regions, most);
}

// Whether the entry is a request and the next of its type. `newest`: sequence of the one before it, 0 if it is the first that this engine
// sees; `published`: of the last of the type that an engine has completed.
inline bool follows(const Entry& entry, std::uint64_t newest, std::uint64_t published) {
  if (entry.type != RwType::kRead && entry.type != RwType::kWrite) return false;
  if (newest != 0) return entry.sequence == newest + 1;
  return entry.sequence != 0 && entry.sequence <= published + 1;
}

}  // namespace sluice::cowbird
