// What an engine believes of a request that it finds in an application's memory: nothing without a check.
//
// Source:  Cowbird §4.2 (entries), §5.3 (order). Ours: the checks.
#pragma once

#include <cstdint>
#include <span>

#include "cowbird/layout.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

// Whether the request points nowhere but into its data ring and its region. `most`: bytes that the engine can move at once.
inline Status judge(const Entry& entry, const ChannelLayout& layout, std::span<const Region> regions,
                    std::uint64_t most) {
  const bool write = entry.type == RwType::kWrite;
  const std::size_t ring = write ? layout.requests : layout.responses;
  const std::size_t bytes = write ? layout.shape.request_bytes : layout.shape.response_bytes;
  if (entry.length == 0 || entry.length > bytes || entry.length > most) return Status::kBadLength;
  if (entry.local() < ring || entry.local() - ring > bytes - entry.length || entry.local() % kDataAlignment != 0) {
    return Status::kMalformed;
  }
  if (entry.region >= regions.size() || regions[entry.region].length == 0) return Status::kNoRegion;
  const Region& region = regions[entry.region];
  if (entry.length > region.length || entry.remote() > region.length - entry.length) return Status::kOutOfRange;
  if (write && !region.writable) return Status::kReadOnly;
  return region.denied ? Status::kDenied : Status::kOk;
}

// Whether the entry is a request and the next of its type. `newest`: sequence of the one before it, 0 if it is the first that this engine
// sees; `published`: of the last of the type that an engine has completed.
inline bool follows(const Entry& entry, std::uint64_t newest, std::uint64_t published) {
  if (entry.type != RwType::kRead && entry.type != RwType::kWrite) return false;
  if (newest != 0) return entry.sequence == newest + 1;
  return entry.sequence != 0 && entry.sequence <= published + 1;
}

}  // namespace sluice::cowbird
