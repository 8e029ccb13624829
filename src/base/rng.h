// Seeded chance: integers only, the same sequence on every machine and compiler.
//
// Fork by name, so that a new draw in one place never shifts the draws of another.
// Source: xoshiro256** and splitmix64, Blackman and Vigna, public domain.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

class Rng {
 public:
  explicit Rng(std::uint64_t seed);

  // An independent generator that depends only on this one's seed and the name, not on draws made so far.
  Rng fork(std::string_view name) const;
  Rng fork(std::uint64_t index) const;

  std::uint64_t next();
  // Uniform in [0, bound). REQUIRES: bound > 0.
  std::uint64_t below(std::uint64_t bound);
  // True with probability per_million / 1,000,000.
  bool chance_per_million(std::uint32_t per_million) { return below(1'000'000) < per_million; }

  // std::uniform_random_bit_generator, for std::shuffle alone (distributions of <random> differ by library).
  using result_type = std::uint64_t;
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  std::uint64_t operator()() { return next(); }

 private:
  std::uint64_t seed_;
  std::uint64_t state_[4];
};

}  // namespace sluice
