// Byte ranges and byte order. Byte order lives here and nowhere else.
//
// REQUIRES of every load and store: the range holds sizeof(T) bytes from its start; callers check lengths once.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice {

using ByteView = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;

template <std::unsigned_integral T>
constexpr T swap_bytes(T v) {
  if constexpr (sizeof(T) == 1) return v;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(v);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(v);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(v);
}

static_assert(std::endian::native == std::endian::little, "Sluice runs on little-endian machines");

template <std::unsigned_integral T>
T load_le(const std::uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <std::unsigned_integral T>
T load_be(const std::uint8_t* p) {
  return swap_bytes(load_le<T>(p));
}
template <std::unsigned_integral T>
void store_le(std::uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof v);
}
template <std::unsigned_integral T>
void store_be(std::uint8_t* p, T v) {
  store_le(p, swap_bytes(v));
}

// Three-byte fields (PSN, QPN, MSN).
inline std::uint32_t load_be24(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 16 | std::uint32_t{p[1]} << 8 | p[2];
}
inline void store_be24(std::uint8_t* p, std::uint32_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 16);
  p[1] = static_cast<std::uint8_t>(v >> 8);
  p[2] = static_cast<std::uint8_t>(v);
}

}  // namespace sluice
