// How bytes of registered memory are touched: copies that race with the program's own accesses, and atomics.
//
// Invariant:  copy_in makes the last bytes visible last, so that a program that spins on the end of a message sees all of it;
//             aligned words of 8 and of 4 bytes that are copied whole are never torn.
// Threads:    any number, on the same bytes, as with a real NIC.
// Source:     programs poll on the last byte (perftest); IBTA vol. 1 §9.4.5 (atomics).
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace sluice::memory {

namespace detail {

inline bool is_word(const std::uint8_t* at, std::size_t length) {
  return length == 8 && (reinterpret_cast<std::uintptr_t>(at) & 7) == 0;
}
void copy_in_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length);
void copy_out_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length);

}  // namespace detail

inline void copy_in(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (!detail::is_word(to, length)) return detail::copy_in_bytes(to, from, length);
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), load_le<std::uint64_t>(from), __ATOMIC_RELEASE);
}
inline void copy_out(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (!detail::is_word(from, length)) return detail::copy_out_bytes(to, from, length);
  store_le(to, __atomic_load_n(reinterpret_cast<const std::uint64_t*>(from), __ATOMIC_ACQUIRE));
}

// Return the value before. REQUIRES: `at` is aligned to 8.
std::uint64_t compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t swap);
std::uint64_t fetch_and_add(std::uint8_t* at, std::uint64_t add);
// Compares under compare_mask, replaces the bits of swap_mask (ConnectX's masked CAS).
std::uint64_t masked_compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t compare_mask,
                                      std::uint64_t swap, std::uint64_t swap_mask);

}  // namespace sluice::memory
