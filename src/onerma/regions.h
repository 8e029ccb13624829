// A target's regions under 1RMA: memory of the node's region table, each with a key, the key before it, and a generation.
//
// Life:       add() -> grant() for each initiator that may -> find() for each request -> rekey() -> remove().
// Rekey:      the new key is the only one that does anything; the one before it still serves to say so to who has it.
// Cache:      derived keys that are ready for use, a fixed number, each a function of region key and request alone: nothing is lost
//             when one makes room, and none outlives its region's key by more than one Rekey.
// Invariant:  a sealer under a region's former key never leads to memory: find() says which it is.
// Threads:    one owner; find() allocates nothing.
// Limits:     those of memory::RegionTable.
// Source:     1RMA §5.2 (Rekey); region table and cache are ours: docs/design/onerma.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "memory/region.h"
#include "onerma/keys.h"

namespace sluice::onerma {

class Regions {
 public:
  // `cached_keys`: how many derived keys stay ready; a power of two.
  Regions(std::shared_ptr<memory::RegionTable> table, memory::PdId domain, std::uint32_t cached_keys);
  ~Regions();

  // Memory of this node. REQUIRES: `key` is drawn anew, from real chance, for each life of the region.
  Result<RegionId> add(MutableBytes bytes, std::uint64_t address, memory::Access access, const Secret& key);
  bool remove(RegionId region);
  // False: no such region, or the key is the one that it has or had before.
  bool rekey(RegionId region, const Secret& key);
  // What one initiator gets; nothing: no such region. REQUIRES: no two lives of initiators have one number.
  std::optional<Grant> grant(RegionId region, InitiatorId initiator, Rights rights) const;
  std::size_t size() const { return regions_.size(); }

  struct Found {
    Sealer* sealer = nullptr;  // nullptr: no such region or generation. Good until the next find().
    bool current = false;      // of the region's present key
  };
  Found find(RegionId region, Generation generation, InitiatorId initiator, Rights rights);
  // Which of a region's keys a generation means.
  enum class Age : std::uint8_t { kUnknown, kFormer, kCurrent };
  Age age_of(RegionId region, Generation generation) const;

  memory::RegionTable::Translation translate(RegionId region, std::uint64_t address, std::uint32_t length,
                                             memory::Access needed) const {
    return table_->translate(memory::Key(region.value), domain_, address, length, needed);
  }
  std::uint64_t derivations() const { return derivations_; }

 private:
  struct Protected;
  struct Line;

  void wipe_lines(RegionId region);

  std::shared_ptr<memory::RegionTable> table_;
  memory::PdId domain_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Protected>> regions_;
  std::vector<Line> lines_;
  std::uint64_t derivations_ = 0;
};

}  // namespace sluice::onerma
