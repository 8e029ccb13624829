// Memory of the box's tables: beginning at cache lines, and where they are large, on large pages, so that a packet that touches them
// at random does not have to look for their pages first.
//
// Limits:     large pages are asked for, not demanded: without them all works, slower.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace sluice::swordbox {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

// `bytes` of memory, not touched yet; for std::free. nullptr: there is none.
inline void* allocate_table(std::size_t bytes) {
  const std::size_t unit = bytes >= kLargePage ? kLargePage : kCacheLine;
  const std::size_t rounded = (bytes + unit - 1) / unit * unit;
  void* const at = std::aligned_alloc(unit, rounded == 0 ? unit : rounded);
  if (at != nullptr && unit == kLargePage) madvise(at, rounded, MADV_HUGEPAGE);
  return at;
}

template <class T>
struct TableAllocator {
  using value_type = T;
  TableAllocator() = default;
  template <class U>
  explicit TableAllocator(const TableAllocator<U>&) {}
  T* allocate(std::size_t n) {
    void* const at = allocate_table(n * sizeof(T));
    if (at == nullptr) throw std::bad_alloc();
    return static_cast<T*>(at);
  }
  void deallocate(T* at, std::size_t) { std::free(at); }
  friend bool operator==(const TableAllocator&, const TableAllocator&) { return true; }
};

template <class T>
using Table = std::vector<T, TableAllocator<T>>;

}  // namespace sluice::swordbox
