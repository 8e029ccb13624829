// Store mark: of which store a part lies in a memory node's memory, by the superblock that FUSEE and Sherman write there: for whoever else
// would use that memory, or end its node.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "remote/remote_memory.h"
#include "remote/task.h"

namespace sluice::rack {

enum class StoreMark : std::uint8_t {
  kNone,
  kMaking,  // somebody makes a store there, or died of it
  kFusee,
  kSherman,
};
// "a part of a FUSEE store"
std::string_view to_string(StoreMark mark);

inline constexpr std::uint64_t kMarkOffset = 64 << 10;  // into the region; before it are a tree's locks
inline constexpr std::size_t kMarkBytes = 64;
// REQUIRES: kMarkBytes bytes, from kMarkOffset on.
StoreMark mark_in(ByteView superblock);
// Nothing: the memory cannot be read.
remote::Task<std::optional<StoreMark>> read_mark(remote::RemoteMemory& memory, remote::RemoteAddress region,
                                                 std::uint64_t length);

}  // namespace sluice::rack
