#include "base/rng.h"

#include <bit>

#include "base/fnv.h"

namespace sluice {
namespace {

std::uint64_t splitmix(std::uint64_t& x) {
  x += 0x9E3779B97F4A7C15u;
  std::uint64_t z = x;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

Rng::Rng(std::uint64_t seed) : seed_(seed) {
  for (auto& word : state_) word = splitmix(seed);
}

Rng Rng::fork(std::string_view name) const { return fork(fnv1a(name)); }

Rng Rng::fork(std::uint64_t index) const {
  std::uint64_t x = seed_ ^ std::rotl(index, 32);
  const auto mixed = splitmix(x);
  return Rng(mixed ^ splitmix(index));
}

std::uint64_t Rng::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t Rng::below(std::uint64_t bound) {
  // Lemire's multiply-shift with rejection: unbiased.
  __extension__ using Wide = unsigned __int128;
  Wide product = Wide{next()} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = -bound % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = Wide{next()} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace sluice
