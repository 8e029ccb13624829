#include "memory/access.h"

#include <atomic>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLUICE_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define SLUICE_TSAN 1
#endif

namespace sluice::memory {
namespace {

std::uint64_t* word(std::uint8_t* at) {
  return reinterpret_cast<std::uint64_t*>(at);
}  // atomics need the object, not its bytes

#ifdef SLUICE_TSAN
// Under the thread sanitizer every byte is an atomic access: the races are the protocol's, not ours.
void racy_copy(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
}
#else
void racy_copy(std::uint8_t* to, const std::uint8_t* from, std::size_t length) { std::memcpy(to, from, length); }
#endif

bool is_word(const std::uint8_t* at, std::size_t length) {
  return length == 8 && (reinterpret_cast<std::uintptr_t>(at) & 7) == 0;
}

}  // namespace

void copy_in(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (is_word(to, length)) {
    std::atomic_ref(*word(to)).store(load_le<std::uint64_t>(from), std::memory_order_release);
    return;
  }
  // All but the last word first.
  const std::size_t tail = length < 8 ? (length == 0 ? 0 : 1) : 8;
  racy_copy(to, from, length - tail);
  std::atomic_thread_fence(std::memory_order_release);
  if (is_word(to + length - tail, tail)) {
    std::atomic_ref(*word(to + length - tail))
        .store(load_le<std::uint64_t>(from + length - tail), std::memory_order_relaxed);
  } else if (tail != 0) {
    racy_copy(to + length - tail, from + length - tail, tail - 1);
    std::atomic_thread_fence(std::memory_order_release);
    __atomic_store_n(to + length - 1, from[length - 1], __ATOMIC_RELAXED);
  }
}

void copy_out(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (is_word(from, length)) {
    store_le(to, __atomic_load_n(reinterpret_cast<const std::uint64_t*>(from), __ATOMIC_ACQUIRE));
    return;
  }
  racy_copy(to, from, length);
}

std::uint64_t compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t swap) {
  std::atomic_ref(*word(at)).compare_exchange_strong(compare, swap);
  return compare;
}

std::uint64_t fetch_and_add(std::uint8_t* at, std::uint64_t add) { return std::atomic_ref(*word(at)).fetch_add(add); }

std::uint64_t masked_compare_and_swap(std::uint8_t* at, std::uint64_t compare, std::uint64_t compare_mask,
                                      std::uint64_t swap, std::uint64_t swap_mask) {
  const std::atomic_ref target(*word(at));
  std::uint64_t prior = target.load();
  while (((prior ^ compare) & compare_mask) == 0) {
    if (target.compare_exchange_weak(prior, (prior & ~swap_mask) | (swap & swap_mask))) break;
  }
  return prior;
}

}  // namespace sluice::memory
