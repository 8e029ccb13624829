#include "wire/crc32_algebra.h"

#include <isa-l/crc.h>

#include <array>

#include "wire/crc32_clmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice::wire::crc32 {
namespace {

constexpr std::uint32_t divided_by_x(std::uint32_t v) { return (v & kOne) != 0 ? (v ^ kPolynomial) << 1 | 1 : v << 1; }

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = times_x(b);
  }
  return product;
}

// kPowers[kZero + n] = power_behind(n), also for n < 0.
constexpr std::size_t kZero = kMaxDistance + 4;
consteval std::array<std::uint32_t, kZero + kMaxDistance + 1> make_powers() {
  std::array<std::uint32_t, kZero + kMaxDistance + 1> powers{};
  std::uint32_t v = power_behind(0);
  powers[kZero] = v;
  for (std::size_t n = kZero + 1; n < powers.size(); ++n) {
    for (int i = 0; i < 8; ++i) v = times_x(v);
    powers[n] = v;
  }
  v = powers[kZero];
  for (std::size_t n = kZero; n-- > 0;) {
    for (int i = 0; i < 8; ++i) v = divided_by_x(v);
    powers[n] = v;
  }
  return powers;
}
constexpr auto kPowers = make_powers();

constexpr std::uint32_t power_after_word(std::size_t distance) { return kPowers[kZero + distance]; }
constexpr std::uint32_t power_of_shift(std::ptrdiff_t bytes) {
  return kPowers[static_cast<std::size_t>(static_cast<std::ptrdiff_t>(kZero) + bytes - 4)];
}

#if defined(__x86_64__)

[[gnu::target("avx,pclmul")]] __m128i product(std::uint32_t a, std::uint32_t b) {
  return _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)), _mm_cvtsi32_si128(static_cast<int>(b)), 0);
}

[[gnu::target("avx,pclmul")]] std::uint32_t effect_by_clmul(std::span<const Change> changes) {
  __m128i sum = _mm_setzero_si128();
  for (const Change& c : changes) sum = _mm_xor_si128(sum, product(c.word, power_after_word(c.distance)));
  return reduce(sum);
}

[[gnu::target("avx,pclmul")]] std::uint32_t masks_by_clmul(const std::uint8_t* message, std::size_t length,
                                                           const std::array<Mask, 4>& masks) {
  __m128i sum = _mm_setzero_si128();
  for (const Mask& m : masks) {
    const std::uint32_t word = ~load_le<std::uint32_t>(message + m.offset) & m.mask;
    sum = _mm_xor_si128(sum, product(word, power_after_word(length - m.offset - 4)));
  }
  return reduce(sum);
}

[[gnu::target("avx,pclmul")]] std::uint32_t shift_by_clmul(std::uint32_t value, std::ptrdiff_t bytes) {
  return reduce(product(value, power_of_shift(bytes)));
}

// The first `length % 16` bytes as the end of a block, begun at `state`.
__m128i first_block(std::uint32_t state, const std::uint8_t* message, std::size_t length, const Ones& ones) {
  const std::uint64_t word = (load_le<std::uint32_t>(message) | load_le<std::uint32_t>(ones.data())) ^ state;
  const auto rest = [&](std::size_t at) {
    return std::uint64_t{load_le<std::uint32_t>(message + at) | load_le<std::uint32_t>(ones.data() + at)};
  };
  switch (length % 16) {
    case 4: return _mm_set_epi64x(static_cast<long long>(word << 32), 0);
    case 8: return _mm_set_epi64x(static_cast<long long>(rest(4) << 32 | word), 0);
    default: return _mm_set_epi64x(static_cast<long long>(rest(8) << 32 | rest(4)), static_cast<long long>(word << 32));
  }
}

[[gnu::target("avx,pclmul")]] inline std::uint32_t wide_by_clmul(std::span<const WideChange> changes) {
  __m128i sum = _mm_setzero_si128();
  for (const WideChange& c : changes) {
    sum = _mm_xor_si128(sum, wide_product(c.bytes, std::uint64_t{power_after_word(c.distance)} << 32));
  }
  return reduce_wide(sum);
}

[[gnu::target("avx,pclmul")]] std::uint32_t short_by_clmul(std::uint32_t state, const std::uint8_t* message,
                                                           std::size_t length, const Ones& ones) {
  std::size_t behind = length / 16;
  std::size_t at = length % 16;
  __m128i sum = _mm_setzero_si128();
  if (at != 0) {
    sum = block_product(first_block(state, message, length, ones), behind);
  } else {
    const __m128i block = _mm_or_si128(load_block(message), load_block(ones.data()));
    sum = block_product(_mm_xor_si128(block, _mm_cvtsi32_si128(static_cast<int>(state))), --behind);
    at = 16;
  }
  for (; behind != 0 && at < 64; at += 16) {
    sum = _mm_xor_si128(sum,
                        block_product(_mm_or_si128(load_block(message + at), load_block(ones.data() + at)), --behind));
  }
  for (; behind != 0; at += 16) sum = _mm_xor_si128(sum, block_product(load_block(message + at), --behind));
  return reduce_wide(sum);
}

[[gnu::target("avx,pclmul")]] std::uint32_t started_by_clmul(const std::uint8_t* message, std::size_t length,
                                                             const Start& start) {
  return crc_short_inline(message, length, start);
}

bool find_clmul() { return __builtin_cpu_supports("avx") != 0 && __builtin_cpu_supports("pclmul") != 0; }
// Until it is set, which other constants may not wait for, the slow ways are taken.
const bool kHasClmul = find_clmul();
bool has_clmul() { return kHasClmul; }

[[gnu::target("avx")]] void zero_upper_halves() { _mm256_zeroupper(); }

#endif

}  // namespace

std::uint32_t effect_of_portable(std::span<const Change> changes) {
  std::uint32_t sum = 0;
  for (const Change& c : changes) sum ^= multiply(c.word, times_x(power_after_word(c.distance)));
  return sum;
}

std::uint32_t effect_of_wide_portable(std::span<const WideChange> changes) {
  std::uint32_t sum = 0;
  for (const WideChange& c : changes) {
    const std::array<Change, 2> halves = {{{static_cast<std::uint32_t>(c.bytes), c.distance + 4},
                                           {static_cast<std::uint32_t>(c.bytes >> 32), c.distance}}};
    sum ^= effect_of_portable(halves);
  }
  return sum;
}

std::uint32_t shift_portable(std::uint32_t value, std::ptrdiff_t bytes) {
  return multiply(value, times_x(power_of_shift(bytes)));
}

std::uint32_t effect_of(std::span<const Change> changes) {
#if defined(__x86_64__)
  if (has_clmul()) return effect_by_clmul(changes);
#endif
  return effect_of_portable(changes);
}

std::uint32_t effect_of_wide(std::span<const WideChange> changes) {
#if defined(__x86_64__)
  if (has_clmul()) return wide_by_clmul(changes);
#endif
  return effect_of_wide_portable(changes);
}

std::uint32_t effect_of_masks_portable(const std::uint8_t* message, std::size_t length,
                                       const std::array<Mask, 4>& masks) {
  std::array<Change, 4> changes;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const std::size_t at = masks[i].offset;
    changes[i] = {~load_le<std::uint32_t>(message + at) & masks[i].mask, static_cast<std::uint32_t>(length - at - 4)};
  }
  return effect_of_portable(changes);
}

std::uint32_t effect_of_masks(const std::uint8_t* message, std::size_t length, const std::array<Mask, 4>& masks) {
#if defined(__x86_64__)
  if (has_clmul()) return masks_by_clmul(message, length, masks);
#endif
  return effect_of_masks_portable(message, length, masks);
}

std::uint32_t shift(std::uint32_t value, std::ptrdiff_t bytes) {
#if defined(__x86_64__)
  if (has_clmul()) return shift_by_clmul(value, bytes);
#endif
  return shift_portable(value, bytes);
}

bool has_short() {
#if defined(__x86_64__)
  return has_clmul();
#else
  return false;
#endif
}

std::uint32_t update_short(std::uint32_t crc, const std::uint8_t* message, std::size_t length, const Ones& ones) {
#if defined(__x86_64__)
  return ~short_by_clmul(~crc, message, length, ones);
#else
  __builtin_unreachable();
#endif
}

std::uint32_t crc_short(const std::uint8_t* message, std::size_t length, const Start& start) {
#if defined(__x86_64__)
  return started_by_clmul(message, length, start);
#else
  __builtin_unreachable();
#endif
}

// ISA-L's AVX-512 code, which it takes from 256 bytes on, returns with the upper halves of the vector registers in use:
// until someone zeroes them, every SSE instruction that anyone executes waits for the one before it (Intel Optimization
// Reference Manual, "Mixing Intel AVX and Intel SSE code"), which made the frames that come after 10 times as costly.
std::uint32_t update(std::uint32_t crc, ByteView bytes) {
  const std::uint32_t updated = crc32_gzip_refl(crc, bytes.data(), bytes.size());
#if defined(__x86_64__)
  if (has_clmul()) zero_upper_halves();
#endif
  return updated;
}
std::uint32_t remainder(ByteView bytes) { return ~update(~std::uint32_t{0}, bytes); }

}  // namespace sluice::wire::crc32
