// Store parts: where on the rack a FUSEE store or a Sherman tree lies, by what the superblocks in the memory nodes' memory say; and whether one may be made.
//
// Invariant:  a store is used over all of its parts, each in its place. None is made where a part of one lies, nor while a memory node is away that
//             may have one.
// Errors:     a plan's refusal, which names the memory nodes.
// Threads:    find_store() and look_at_parts() in the memory's scheduler; the rest is pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rack/directory/directory.h"
#include "remote/remote_memory.h"
#include "remote/task.h"

namespace sluice::rack {

// Memory that a store may use, and what is in it.
struct StorePart {
  enum class What : std::uint8_t {
    kNothing,
    kMaking,  // somebody makes a store there, or died of it
    kPart,
    kOther,  // somebody else's
    kSilent,
    kGone,  // the memory node is, and nobody knows what comes back with it
  };
  std::string node;
  std::string name{};  // of the region, its owner's before it
  remote::RemoteAddress region;
  std::uint64_t length = 0;
  bool first = true;  // of its node's: a store that is made would lie there
  What what = What::kNothing;
  bool left = false;  // of kGone: in good order, so what it held is gone with its process
  // Of kPart:
  std::uint32_t store_id = 0;
  std::uint32_t index = 0;
  std::uint32_t parts = 0;  // that the store has
  std::uint64_t least = 0;  // that the region of each must have
  std::uint32_t life = 0;   // of two with one index, the one with more is the right one
  bool made = true;         // for certain; a store is, if any part says so
  bool has_copies = false;  // the store goes on with more than half of its parts
};

// All memory of at least so many bytes; what is in it is not known yet.
std::vector<StorePart> parts_on(const Snapshot& snapshot, std::uint64_t least);
// The first of them with too little memory for a part of a store; empty: none.
std::string too_small(const Snapshot& snapshot, std::uint64_t least);
inline constexpr std::size_t kStorePartRead = 64;
// What a superblock, of kStorePartRead bytes, makes of a part.
using JudgePart = void (*)(ByteView superblock, StorePart& part);
// Reads the superblocks, `offset` bytes into each region.
remote::Task<void> look_at_parts(remote::RemoteMemory& memory, std::uint64_t offset, JudgePart judge,
                                 std::span<StorePart> parts);

// What a user can do about memory that cannot be used as it is.
inline constexpr const char* kStartAnew =
    "`sluice rack down`, then `sluice rack up --no-metadata` starts a rack whose memory is empty";

struct StorePlan {
  enum class What : std::uint8_t { kUse, kMake, kRefuse };
  static constexpr std::size_t kNone = ~std::size_t{0};
  What what = What::kRefuse;
  // kRefuse: of memory that does not answer, which may just be connecting.
  bool may_answer_yet = false;
  // kUse: by their index in the store, kNone for one of which nothing is to be seen. kMake: in the order of their nodes' numbers.
  std::vector<std::size_t> order{};
  std::string refusal{};
};
// `kind`: "store" or "tree". A refusal counts when two looks, one after the other, agree on it: what one sees may be on its way to being made.
StorePlan plan_store(std::span<const StorePart> parts, std::string_view kind);

struct StoreSearch {
  std::string_view kind;     // as plan_store()
  std::uint64_t offset = 0;  // of the superblocks, into each region
  std::uint64_t least = 0;   // bytes of a region
  JudgePart judge = nullptr;
  Duration patience;  // with one that is not there yet, or in making
};
// Makes a store over the plan's parts. True: it is made. Else why it cannot be is in the text, or nothing: it may be there already.
using MakeStore = std::function<remote::Task<bool>(const StorePlan& plan, std::string& refused)>;
// Looks until there is a store to use: kUse, or kRefuse. `parts` are then those that the plan is of. `make` empty: others make it. `snapshot`
// may change meanwhile. Where a part is missing, memory nodes that are joining are waited for.
remote::Task<StorePlan> find_store(remote::RemoteMemory& memory, const Snapshot& snapshot, const StoreSearch& search,
                                   const MakeStore& make, std::vector<StorePart>& parts);

// Of a place of a store whose memory is not where it was.
inline constexpr remote::RemoteAddress kNowhere{remote::NodeId(0xFFFF'FFFF), {}, 0};
// Memory for such places of a store that is in use, by their index: the part whose superblock says that it is this one; or blank memory in which what the
// place had may be made again: of the same name, on the same memory node. kNone for a place that has its memory, and for one of which nothing is to be seen.
// `store`: any part of it. `places`: the memory that each had last, now at kNowhere if it is to be found; what is in the others need not be known.
std::vector<std::size_t> find_missing(std::span<const StorePart> parts, const StorePart& store,
                                      std::span<const StorePart> places);

}  // namespace sluice::rack
