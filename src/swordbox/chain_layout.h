// How a chain of nodes in memory looks: what a rule for append-only chains has to know about one store. Parameters, not code of the store.
//
// Node:       a WRITE of a whole node carries, at its start, the next word ("free": nothing follows) and the key.
// Link:       a CAS of a node's next word from "free" to a pointer.
// Source:     Clover as captured on ConnectX (docs/design/clover.md); SwordBox §4.4.2.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::swordbox {

struct ChainLayout {
  std::uint32_t next_offset = 0;
  std::uint32_t key_offset = 8;
  std::uint32_t min_node_bytes = 32;
  std::uint32_t max_node_bytes = 16'384;

  // A next word w says "free" when (w & free_mask) == free_value; it may say more in its other bits.
  std::uint64_t free_mask = ~std::uint64_t{0};
  std::uint64_t free_value = 0;
  // A swapped-in word w points to a node when (w & pointer_mask) == pointer_value and w is not free.
  std::uint64_t pointer_mask = 0;
  std::uint64_t pointer_value = 0;
  // The node is at address_base + ((w >> address_shift) & address_mask) * address_stride …
  std::uint64_t address_base = 0;
  std::uint32_t address_shift = 0;
  std::uint64_t address_mask = (std::uint64_t{1} << 48) - 1;
  std::uint64_t address_stride = 1;
  // … of the region regions_by_volume[(w >> volume_shift) & volume_mask]; when that table is empty, of the CAS's own region.
  std::uint32_t volume_shift = 54;
  std::uint64_t volume_mask = 0xFF;
  std::vector<std::uint16_t> regions_by_volume;

  bool is_free(std::uint64_t w) const { return (w & free_mask) == free_value; }
  bool is_pointer(std::uint64_t w) const { return (w & pointer_mask) == pointer_value && !is_free(w) && w != 0; }
  std::uint64_t address_of(std::uint64_t w) const {
    return address_base + (w >> address_shift & address_mask) * address_stride;
  }

  // The layout of src/clover/layout.h.
  static ChainLayout clover() {
    constexpr std::uint64_t kEnd = std::uint64_t{1} << 63;
    constexpr std::uint64_t kSealed = std::uint64_t{1} << 62;
    ChainLayout layout;
    layout.free_mask = kEnd | kSealed;
    layout.free_value = kEnd;
    layout.pointer_mask = kEnd;
    return layout;
  }
};

}  // namespace sluice::swordbox
