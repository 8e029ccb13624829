// Asks for memory before it is needed.
//
// A function that does nothing but prefetch looks to g++ 12 as if it did nothing at all, and calls of it are dropped. The empty
// statement behind the prefetch keeps them.
#pragma once

namespace sluice {

inline void prefetch(const void* at) {
  __builtin_prefetch(at);
  asm volatile("" : : "r"(at));
}

}  // namespace sluice
