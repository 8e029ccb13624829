// An open-addressed index of numbers by key: fixed size, linear probing, no tombstones.
//
// Life:       find / insert / erase; the owner keeps the keys beside the numbers and says how to hash and to compare them.
// Invariant:  at most half of the places are taken, so that a search ends soon.
// Threads:    one owner. No allocation after construction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

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
  explicit FlatIndex(std::size_t most) : places_(std::bit_ceil(most * 2 + 2), kNone), mask_(places_.size() - 1) {}

  // The number for which is_it(number) holds among those with this hash; kNone when there is none.
  template <class IsIt>
  std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const std::uint32_t number = places_[i];
      if (number == kNone || is_it(number)) return number;
    }
  }
  // REQUIRES: not there; fewer than `most` are.
  void insert(std::uint64_t hash, std::uint32_t number) {
    std::size_t i = hash & mask_;
    while (places_[i] != kNone) i = (i + 1) & mask_;
    places_[i] = number;
  }
  // hash_of(number) for any number inside. REQUIRES: it is there.
  template <class HashOf>
  void erase(std::uint64_t hash, std::uint32_t number, HashOf&& hash_of) {
    std::size_t hole = hash & mask_;
    while (places_[hole] != number) {
      SLUICE_CHECK(places_[hole] != kNone);
      hole = (hole + 1) & mask_;
    }
    // What stood behind it moves up, unless that would bring it before its own place.
    for (std::size_t i = (hole + 1) & mask_; places_[i] != kNone; i = (i + 1) & mask_) {
      const std::size_t home = hash_of(places_[i]) & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        places_[hole] = places_[i];
        hole = i;
      }
    }
    places_[hole] = kNone;
  }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&places_[hash & mask_]); }

 private:
  std::vector<std::uint32_t> places_;
  std::size_t mask_;
};

}  // namespace sluice::swordbox
