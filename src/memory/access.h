// How bytes of registered memory are touched: copies that race with the program's own accesses, and atomics.
//
// Invariant:  copy_in makes the last bytes visible last, so that a program that spins on the end of a message sees all of it;
//             aligned 8-byte words are never torn.
// Threads:    any number, on the same bytes, as with a real NIC.
// Source:     reference: programs poll on the last byte (perftest); IBTA vol. 1 §9.4.5 (atomics).
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace sluice::memory {

void copy_in(std::uint8_t* to, const std::uint8_t* from, std::size_t length);
void copy_out(std::uint8_t* to, const std::uint8_t* from, std::size_t length);

// Return the value before. REQUIRES: `at` is aligned to 8.
std::uint64_t compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t swap);
std::uint64_t fetch_and_add(std::uint8_t* at, std::uint64_t add);
// Compares under compare_mask, replaces the bits of swap_mask (ConnectX's masked CAS).
std::uint64_t masked_compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t compare_mask,
                                      std::uint64_t swap, std::uint64_t swap_mask);

}  // namespace sluice::memory
