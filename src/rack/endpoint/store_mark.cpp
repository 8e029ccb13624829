#include "rack/endpoint/store_mark.h"

#include <algorithm>
#include <array>

#include "fusee/layout.h"
#include "sherman/layout.h"

namespace sluice::rack {

std::string_view to_string(StoreMark mark) {
  switch (mark) {
    case StoreMark::kNone: return "no store";
    case StoreMark::kMaking: return "the beginning of a FUSEE store or a Sherman tree";
    case StoreMark::kFusee: return "a part of a FUSEE store";
    case StoreMark::kSherman: return "a part of a Sherman tree";
  }
  return "?";
}

StoreMark mark_in(ByteView superblock) {
  static_assert(fusee::kSuperblockRead == kMarkBytes && sherman::kSuperblockRead == kMarkBytes);
  static_assert(fusee::kMadeOffset == sherman::kMakerOffset);
  fusee::Superblock store;
  if (fusee::parse_superblock(superblock, store)) return StoreMark::kFusee;
  sherman::Superblock tree;
  if (sherman::parse_superblock(superblock, tree)) return StoreMark::kSherman;
  // Only who makes one has been here: a word of theirs, and nothing before it.
  const ByteView head = superblock.first(fusee::kMadeOffset);
  const bool is_blank = std::ranges::all_of(head, [](std::uint8_t byte) { return byte == 0; });
  const bool has_maker = load_le<std::uint64_t>(superblock.data() + fusee::kMadeOffset) >> 32 == 1;
  return is_blank && has_maker ? StoreMark::kMaking : StoreMark::kNone;
}

remote::Task<std::optional<StoreMark>> read_mark(remote::RemoteMemory& memory, remote::RemoteAddress region,
                                                 std::uint64_t length) {
  if (length < kMarkOffset + kMarkBytes) co_return StoreMark::kNone;
  std::array<std::uint8_t, kMarkBytes> superblock{};
  const remote::Status status = co_await memory.read(region + kMarkOffset, superblock);
  if (status != remote::Status::kOk) co_return std::nullopt;
  co_return mark_in(superblock);
}

}  // namespace sluice::rack
