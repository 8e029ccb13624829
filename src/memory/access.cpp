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

}  // namespace

namespace detail {

void copy_in_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (length == 0) return;
  if (length == 4 && (reinterpret_cast<std::uintptr_t>(to) & 3) == 0) {  // a flag or a counter: in one piece
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(to), load_le<std::uint32_t>(from), __ATOMIC_RELEASE);
    return;
  }
  // All but the last word first; of the last word, if it is not one, the last byte last.
  const std::size_t tail = length < 8 ? 1 : 8;
  racy_copy(to, from, length - tail);
  to += length - tail;
  from += length - tail;
  if (is_word(to, tail)) {
    std::atomic_ref(*word(to)).store(load_le<std::uint64_t>(from), std::memory_order_release);
    return;
  }
  racy_copy(to, from, tail - 1);
  __atomic_store_n(to + tail - 1, from[tail - 1], __ATOMIC_RELEASE);
}

void copy_out_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  if (length != 0) racy_copy(to, from, length);
}

}  // namespace detail

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
