// CRC-32 by carry-less multiplication, to be inlined where a packet has no time for calls. crc32_algebra.h has the same behind
// functions, for all machines.
//
// Representation: bit-reflected, as in crc32_algebra.h.
// Errors:  none. REQUIRES of all with a target: a machine that has these instructions (base/instructions.h).
// Source:  Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009 (reduction constants).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/crc32_algebra.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#include <wmmintrin.h>
#endif

namespace sluice::wire::crc32 {

inline constexpr std::uint32_t kPolynomial = 0xEDB88320;  // IEEE 802.3, reflected
inline constexpr std::uint32_t kOne = 0x80000000;         // x^0

constexpr std::uint32_t times_x(std::uint32_t v) { return v >> 1 ^ ((v & 1) != 0 ? kPolynomial : 0); }

// What a word is multiplied by when `bytes` follow it: x^(8 bytes + 31) mod P. The odd 31: a carry-less product of two reflected
// 32-bit words, read as a reflected 64-bit word, is theirs times x; and a change is 32 bits ahead of the bytes behind it.
constexpr std::uint32_t power_behind(std::size_t bytes) {
  std::uint32_t v = kOne;
  for (std::size_t i = 0; i < 8 * bytes + 31; ++i) v = times_x(v);
  return v;
}
// The same of eight bytes, as a factor of 64 bits.
constexpr std::uint64_t wide_power_behind(std::size_t bytes) { return std::uint64_t{power_behind(bytes)} << 32; }
template <std::size_t kBytes>
inline constexpr std::uint64_t kWidePowerBehind = wide_power_behind(kBytes);

#if defined(__x86_64__)

// With AVX the instructions take three operands and do not wait for the upper halves that ISA-L leaves behind.
#define SLUICE_CLMUL gnu::target("avx,pclmul"), gnu::always_inline

// Barrett's constants for P, reflected: floor(x^64 / P) and P itself.
inline constexpr std::uint64_t kBarrett = 0x1F7011641;
inline constexpr std::uint64_t kModulus = 0x1DB710641;

// A reflected polynomial of degree up to 63 modulo P.
[[SLUICE_CLMUL]] inline std::uint32_t reduce(__m128i v) {
  const __m128i low = _mm_cvtsi32_si128(-1);
  const __m128i constants = _mm_set_epi64x(static_cast<long long>(kModulus), static_cast<long long>(kBarrett));
  const __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(v, low), constants, 0x00);
  const __m128i multiple = _mm_clmulepi64_si128(_mm_and_si128(quotient, low), constants, 0x10);
  return static_cast<std::uint32_t>(_mm_cvtsi128_si64(_mm_xor_si128(v, multiple)) >> 32);
}

// A sum of products of 64-bit and shifted 32-bit words, of degree 95: what is of 64 and more goes first, then Barrett.
[[SLUICE_CLMUL]] inline std::uint32_t reduce_wide(__m128i sum) {
  const __m128i fold = _mm_cvtsi64_si128(static_cast<long long>(kWidePowerBehind<4>));  // x^64
  const __m128i above = _mm_clmulepi64_si128(sum, fold, 0x00);
  return reduce(_mm_srli_si128(_mm_xor_si128(sum, above), 8));
}

[[SLUICE_CLMUL]] inline __m128i wide_product(std::uint64_t bytes, std::uint64_t power) {
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(bytes)),
                              _mm_cvtsi64_si128(static_cast<long long>(power)), 0x00);
}

// What a block of 16 bytes is multiplied by when 16 n bytes follow it: its first half and its second.
struct alignas(16) BlockPowers {
  std::uint64_t first, second;
};
consteval std::array<BlockPowers, kShort / 16 + 1> make_block_powers() {
  std::array<BlockPowers, kShort / 16 + 1> powers{};
  for (std::size_t n = 0; n < powers.size(); ++n)
    powers[n] = {wide_power_behind(16 * n + 8), wide_power_behind(16 * n)};
  return powers;
}
inline constexpr auto kBlockPowers = make_block_powers();

[[SLUICE_CLMUL]] inline __m128i block_product(__m128i block, std::size_t blocks_behind) {
  const __m128i powers = _mm_load_si128(reinterpret_cast<const __m128i*>(&kBlockPowers[blocks_behind]));
  return _mm_xor_si128(_mm_clmulepi64_si128(block, powers, 0x00), _mm_clmulepi64_si128(block, powers, 0x11));
}

[[SLUICE_CLMUL]] inline __m128i load_block(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Keeps the last `n` bytes of a block: loaded from kKeep + n.
alignas(16) inline constexpr std::uint8_t kKeep[32] = {0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
                                                       0,    0,    0,    0,    0,    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                                       0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};

// The block that ends `end` bytes behind the beginning, with its ones.
[[SLUICE_CLMUL]] inline __m128i block_with_ones(const std::uint8_t* message, std::size_t end, const Start& start) {
  return _mm_or_si128(load_block(message + end - 16), load_block(start.ones.data() + end));
}

// As crc_short().
[[SLUICE_CLMUL]] inline std::uint32_t crc_short_inline(const std::uint8_t* message, std::size_t length,
                                                       const Start& start) {
  const std::size_t first = (length - 1) % 16 + 1;  // bytes of the first block
  std::size_t behind = (length - first) / 16;
  __m128i block = _mm_and_si128(load_block(message + first - 16), load_block(kKeep + first));
  block = _mm_or_si128(block, load_block(start.ones.data() + first));
  __m128i sum = block_product(_mm_xor_si128(block, load_block(start.state.data() + first)), behind);
  const std::uint8_t* at = message + first;
  if (behind != 0) {
    sum = _mm_xor_si128(sum, block_product(block_with_ones(message, first + 16, start), --behind));
    at += 16;
  }
  if (behind != 0) {
    sum = _mm_xor_si128(sum, block_product(block_with_ones(message, first + 32, start), --behind));
    at += 16;
  }
  for (; behind != 0; at += 16) sum = _mm_xor_si128(sum, block_product(load_block(at), --behind));
  return ~reduce_wide(sum);
}

template <std::size_t kBlocks>
[[SLUICE_CLMUL]] inline __m128i blocks_product(const std::uint8_t* at) {
  if constexpr (kBlocks == 0) {
    return _mm_setzero_si128();
  } else {
    return _mm_xor_si128(block_product(load_block(at), kBlocks - 1), blocks_product<kBlocks - 1>(at + 16));
  }
}

// The same of a length that is known beforehand. REQUIRES: more than 32 bytes.
template <std::size_t kLength>
[[SLUICE_CLMUL]] inline std::uint32_t crc_of_inline(const std::uint8_t* message, const Start& start) {
  constexpr std::size_t kFirst = (kLength - 1) % 16 + 1;
  constexpr std::size_t kBehind = (kLength - kFirst) / 16;
  static_assert(kLength % 4 == 0 && kBehind >= 2 && kLength <= kShort);
  __m128i block = _mm_and_si128(load_block(message + kFirst - 16), load_block(kKeep + kFirst));
  block = _mm_or_si128(block, load_block(start.ones.data() + kFirst));
  __m128i sum = block_product(_mm_xor_si128(block, load_block(start.state.data() + kFirst)), kBehind);
  sum = _mm_xor_si128(sum, block_product(block_with_ones(message, kFirst + 16, start), kBehind - 1));
  sum = _mm_xor_si128(sum, block_product(block_with_ones(message, kFirst + 32, start), kBehind - 2));
  return ~reduce_wide(_mm_xor_si128(sum, blocks_product<kBehind - 2>(message + kFirst + 32)));
}

// As effect_of_wide(): words with kBehind bytes behind each.
template <std::size_t... kBehind>
[[SLUICE_CLMUL]] inline std::uint32_t effect_inline(const std::array<std::uint64_t, sizeof...(kBehind)>& words) {
  std::size_t i = 0;
  __m128i sum = _mm_setzero_si128();
  ((sum = _mm_xor_si128(sum, wide_product(words[i++], kWidePowerBehind<kBehind>))), ...);
  return reduce_wide(sum);
}

#undef SLUICE_CLMUL

#endif

}  // namespace sluice::wire::crc32
