// Where the rack's Clover store keeps its nodes, told by the metadata server through the directory to whoever has to know without
// asking it: the box in the switch.
//
// Source:   the attribute "volumes" of the metadata server: one word "NODE:KEY" a volume, with the node's number and the key of its memory;
//           and "space", how much of each it takes from the start (0: all).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clover/volumes.h"
#include "rack/directory/directory.h"
#include "swordbox/multiplexer.h"
#include "wire/address.h"
#include "wire/types.h"

namespace sluice::rack {

struct StoreMemory {
  struct Volume {
    wire::Gid node{};
    wire::RKey key{};
    friend bool operator==(const Volume&, const Volume&) = default;
  };
  std::vector<Volume> volumes;  // by number; of the first replica
  bool mirrored = false;
  std::uint64_t space = 0;        // of each region; 0: all
  std::uint64_t incarnation = 0;  // of the metadata server
  friend bool operator==(const StoreMemory&, const StoreMemory&) = default;
};

inline constexpr const char* kVolumesAttribute = "volumes";
inline constexpr const char* kReplicationAttribute = "replication";
inline constexpr const char* kSpaceAttribute = "space";

std::string volumes_attribute(std::span<const clover::Volume> volumes);
// Of the first metadata server that is ready; nothing while there is none, or when one of its memory nodes is not there.
std::optional<StoreMemory> find_store(const Snapshot& snapshot);
// A metadata server is there, or about to be: it has memory, or takes some.
bool is_served(const Snapshot& snapshot);
// Of a server that is gone, while memory is there that it had taken: what lies in it is still the store's, which it finds again. Nothing while
// one is there.
std::optional<StoreMemory> find_store_left(const Snapshot& snapshot);

// Whether `maker`, a metadata server whose store is not to be found again, may make one: a rack has one, and what lies in memory that any has taken
// is still that one's. The error says whose, and what to do.
Result<void> check_makes_store(const Snapshot& snapshot, const NodeRecord& maker);

// The memory that memory nodes export and no store has taken: its words may be operated on by anybody. Nothing: nobody knows now what is the
// store's.
std::optional<std::vector<swordbox::WordRegion>> find_words(const Snapshot& snapshot);

}  // namespace sluice::rack
