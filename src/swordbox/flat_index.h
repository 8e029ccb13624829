// An open-addressed index of numbers by key: fixed size, linear probing, no tombstones.
//
// Life:       find / insert / erase; the owner keeps the keys beside the numbers and says how to hash and to compare them.
// Invariant:  at most half of the places are taken, of small indices a quarter, so that a search ends soon.
// Threads:    one owner. No allocation after construction.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/prefetch.h"
#include "swordbox/table.h"

namespace sluice::swordbox {

// A number that is no index.
inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

// Spreads the bits of a key that may be as regular as addresses are.
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ x >> 32;
}

class FlatIndex {
 public:
  // Of numbers below `most`.
  explicit FlatIndex(std::size_t most)
      : places_(std::bit_ceil(std::max<std::size_t>(most * (most <= kSmall ? 4 : 2), 2)), kNone),
        mask_(places_.size() - 1),
        numbers_(static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(most)) - 1)) {}

  // The number for which is_it(number) holds among those with this hash; kNone when there is none.
  template <class IsIt>
  std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
    const std::uint32_t tag = tag_of(hash);
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const std::uint32_t place = places_[i];
      if (place == kNone) return kNone;
      if (((place ^ tag) & ~numbers_) == 0 && is_it(place & numbers_)) return place & numbers_;
    }
  }
  // The number that find() would ask about first; kNone when there is none. To bring it nearer.
  std::uint32_t guess(std::uint64_t hash) const {
    return find(hash, [](std::uint32_t) { return true; });
  }
  // REQUIRES: not there; fewer than `most` are.
  void insert(std::uint64_t hash, std::uint32_t number) {
    std::size_t i = hash & mask_;
    while (places_[i] != kNone) i = (i + 1) & mask_;
    places_[i] = number | tag_of(hash);
  }
  // hash_of(number) for any number inside. REQUIRES: it is there.
  template <class HashOf>
  void erase(std::uint64_t hash, std::uint32_t number, HashOf&& hash_of) {
    std::size_t hole = hash & mask_;
    while ((places_[hole] & numbers_) != number) {
      SLUICE_CHECK(places_[hole] != kNone);
      hole = (hole + 1) & mask_;
    }
    // What stood behind it moves up, unless that would bring it before its own place.
    for (std::size_t i = (hole + 1) & mask_; places_[i] != kNone; i = (i + 1) & mask_) {
      const std::size_t home = hash_of(places_[i] & numbers_) & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        places_[hole] = places_[i];
        hole = i;
      }
    }
    places_[hole] = kNone;
  }
  std::size_t bytes() const { return places_.capacity() * sizeof(std::uint32_t); }
  void prefetch(std::uint64_t hash) const { sluice::prefetch(&places_[hash & mask_]); }

 private:
  static constexpr std::size_t kSmall = std::size_t{1} << 16;

  // A place holds a number and, in the bits that numbers leave free, some of its hash: so that others are seldom asked about.
  std::uint32_t tag_of(std::uint64_t hash) const { return static_cast<std::uint32_t>(hash >> 32) & ~numbers_; }

  Table<std::uint32_t> places_;
  std::size_t mask_;
  std::uint32_t numbers_;
};

}  // namespace sluice::swordbox
