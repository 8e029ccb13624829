// Count-min sketch with decay: about how often a key has come lately, in constant memory.
//
// Invariant:  never below the true count of the time that counts: all counts are halved every kWidth * 8 additions.
// Threads:    one owner. No chance: the rows' hashes are fixed.
// Source:     Cormode and Muthukrishnan, "An improved data stream summary" (2005); SwordBox §6.4.4 (partial steering).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "swordbox/flat_index.h"
#include "swordbox/memory_use.h"

namespace sluice::swordbox {

class Sketch {
 public:
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t kWidth = 4096;

  // Counts the key and returns its estimate.
  std::uint32_t add(std::uint64_t key) {
    if (++additions_ % (kWidth * 8) == 0) {
      for (auto& count : counts_) count = static_cast<std::uint16_t>(count / 2);
    }
    std::uint32_t least = 0xFFFF;
    std::uint64_t h = mix(key);
    for (std::size_t row = 0; row < kRows; ++row, h = h >> 16 | h << 48) {
      auto& count = counts_[row * kWidth + (h & (kWidth - 1))];
      if (count != 0xFFFF) ++count;
      least = std::min<std::uint32_t>(least, count);
    }
    return least;
  }
  std::uint32_t estimate(std::uint64_t key) const {
    std::uint32_t least = 0xFFFF;
    std::uint64_t h = mix(key);
    for (std::size_t row = 0; row < kRows; ++row, h = h >> 16 | h << 48) {
      least = std::min<std::uint32_t>(least, counts_[row * kWidth + (h & (kWidth - 1))]);
    }
    return least;
  }
  std::size_t bytes() const { return bytes_of(counts_); }

 private:
  std::vector<std::uint16_t> counts_ = std::vector<std::uint16_t>(kRows * kWidth);
  std::uint64_t additions_ = 0;
};

}  // namespace sluice::swordbox
