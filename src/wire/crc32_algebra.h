// CRC-32 as algebra: what a change somewhere in a message does to the CRC at its end.
//
// A CRC is linear. Xor a word w into a message that goes on for d bytes behind it, and its CRC changes by
// w * x^(8d+32) mod P, whatever the rest says. The powers are a table, so a change costs one carry-less multiplication
// at any distance; one reduction serves all changes of a packet.
//
// Representation: bit-reflected, as in zlib: bit 31 is the coefficient of x^0. A word is loaded little-endian.
// Limits:  distances and shifts up to kMaxDistance bytes.
// Source:  Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009 (reduction constants).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace sluice::wire::crc32 {

inline constexpr std::size_t kMaxDistance = 4352;

// `word` is xored into the message; `distance` bytes follow it.
struct Change {
  std::uint32_t word;
  std::uint32_t distance;
};

// `bytes`, loaded little-endian, are xored into the message; `distance` bytes follow them.
struct WideChange {
  std::uint64_t bytes;
  std::uint32_t distance;
};

// The bits of `mask` are set in the word at `offset` of the message.
struct Mask {
  std::uint32_t offset;
  std::uint32_t mask;
};

// What all `changes` together xor into the CRC.
std::uint32_t effect_of(std::span<const Change> changes);
// The same, without carry-less multiplication instructions: for machines that have none, and for tests.
std::uint32_t effect_of_portable(std::span<const Change> changes);

std::uint32_t effect_of_wide(std::span<const WideChange> changes);
std::uint32_t effect_of_wide_portable(std::span<const WideChange> changes);

// What setting four masks in a message of `length` bytes xors into its CRC. REQUIRES: length - offset - 4 <= kMaxDistance.
std::uint32_t effect_of_masks(const std::uint8_t* message, std::size_t length, const std::array<Mask, 4>& masks);
std::uint32_t effect_of_masks_portable(const std::uint8_t* message, std::size_t length,
                                       const std::array<Mask, 4>& masks);

// Bits that count as set in the first bytes of a message, and zeros behind so that it can be read in blocks.
using Ones = std::array<std::uint8_t, 80>;
inline constexpr std::size_t kShortest = 16;
inline constexpr std::size_t kShort = 252;
// Continues zlib's crc32 over a short message of whole words in which `ones` are set: a multiplication for every eight bytes, none of
// which waits for another, where a table or a fold would go through them in turn. REQUIRES: has_short(),
// kShortest <= length <= kShort, length % 4 == 0, nothing but zeros in `ones` from byte 64 on.
bool has_short();
std::uint32_t update_short(std::uint32_t crc, const std::uint8_t* message, std::size_t length, const Ones& ones);

// The same for a message before which memory may be read: whole blocks from its end on, without a case for its beginning. What the state
// and the ones are, is known beforehand.
struct Start {
  static constexpr std::size_t kBefore = 12;  // bytes that are read there
  static constexpr std::size_t kBlock = 16;
  std::array<std::uint8_t, kBlock + 80> ones{};       // from kBlock on, as in Ones
  std::array<std::uint8_t, kBlock + kBlock> state{};  // from kBlock on: the CRC so far, to be xored in
};
constexpr Start make_start(std::uint32_t crc, const Ones& ones) {
  Start start;
  for (std::size_t i = 0; i < ones.size(); ++i) start.ones[Start::kBlock + i] = ones[i];
  for (std::size_t i = 0; i < 4; ++i) start.state[Start::kBlock + i] = static_cast<std::uint8_t>(~crc >> 8 * i);
  return start;
}
// REQUIRES: as of update_short(); Start::kBefore bytes before `message` can be read, whatever they are; nothing but zeros in the ones from
// byte 36 on.
std::uint32_t crc_short(const std::uint8_t* message, std::size_t length, const Start& start);

// value * x^(8 * bytes) mod P; `bytes` may be negative.
std::uint32_t shift(std::uint32_t value, std::ptrdiff_t bytes);
std::uint32_t shift_portable(std::uint32_t value, std::ptrdiff_t bytes);

// Continues zlib's crc32 over more bytes, by ISA-L.
std::uint32_t update(std::uint32_t crc, ByteView bytes);
// The CRC of `bytes` without its ones before and after: linear, and zeros in front do not count.
std::uint32_t remainder(ByteView bytes);

}  // namespace sluice::wire::crc32
