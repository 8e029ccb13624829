// Memory of the box's tables: beginning at cache lines, and where they are large, on large pages, so that a packet that touches them
// at random does not have to look for their pages first.
//
// Limits:     large pages are asked for, not demanded: without them all works, slower.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace sluice::swordbox {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t round_to_large_pages(std::size_t bytes) {
  return (bytes + kLargePage - 1) / kLargePage * kLargePage;
}

// `bytes` of memory, not touched yet; for free_table(). Null: there is none. What is large is the kernel's own, so that large pages are to be had: memory that was used before and given back to the
// allocator lies on small ones.
inline void* allocate_table(std::size_t bytes) {
  if (bytes < kLargePage) return std::aligned_alloc(kCacheLine, (bytes + kCacheLine) / kCacheLine * kCacheLine);
  const std::size_t rounded = round_to_large_pages(bytes);
  void* const mapped = mmap(nullptr, rounded + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // From its first large page on.
  auto* const first = static_cast<std::uint8_t*>(mapped);
  const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(first) % kLargePage) % kLargePage;
  if (before != 0) munmap(first, before);
  munmap(first + before + rounded, kLargePage - before);
  madvise(first + before, rounded, MADV_HUGEPAGE);
  return first + before;
}
inline void free_table(void* at, std::size_t bytes) {
  if (bytes < kLargePage) {
    std::free(at);
  } else {
    munmap(at, round_to_large_pages(bytes));
  }
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
  void deallocate(T* at, std::size_t n) { free_table(at, n * sizeof(T)); }
  friend bool operator==(const TableAllocator&, const TableAllocator&) { return true; }
};

template <class T>
using Table = std::vector<T, TableAllocator<T>>;

}  // namespace sluice::swordbox
