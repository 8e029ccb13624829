#include "memory/access.h"

#include <immintrin.h>

#include <algorithm>
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

// Atomics need the object, not its bytes.
std::uint64_t* word(std::uint8_t* at) { return reinterpret_cast<std::uint64_t*>(at); }
const std::uint64_t* word(const std::uint8_t* at) { return reinterpret_cast<const std::uint64_t*>(at); }
std::uint32_t* half(std::uint8_t* at) { return reinterpret_cast<std::uint32_t*>(at); }
const std::uint32_t* half(const std::uint8_t* at) { return reinterpret_cast<const std::uint32_t*>(at); }

bool is_aligned(const std::uint8_t* at, std::uintptr_t to) {
  return (reinterpret_cast<std::uintptr_t>(at) & (to - 1)) == 0;
}

// Which of the two sides is the registered memory, which programs and peers use meanwhile.
struct In {
  // Bytes at the end that come after all others: programs spin on the last one.
  static constexpr std::size_t kAlone = 1;
  static void byte(std::uint8_t* to, const std::uint8_t* from) { __atomic_store_n(to, *from, __ATOMIC_RELEASE); }
  static void half(std::uint8_t* to, const std::uint8_t* from) {
    __atomic_store_n(memory::half(to), load_le<std::uint32_t>(from), __ATOMIC_RELEASE);
  }
  static void word(std::uint8_t* to, const std::uint8_t* from) {
    __atomic_store_n(memory::word(to), load_le<std::uint64_t>(from), __ATOMIC_RELEASE);
  }
};
struct Out {
  static constexpr std::size_t kAlone = 0;
  static void byte(std::uint8_t* to, const std::uint8_t* from) { *to = __atomic_load_n(from, __ATOMIC_ACQUIRE); }
  static void half(std::uint8_t* to, const std::uint8_t* from) {
    store_le(to, __atomic_load_n(memory::half(from), __ATOMIC_ACQUIRE));
  }
  static void word(std::uint8_t* to, const std::uint8_t* from) {
    store_le(to, __atomic_load_n(memory::word(from), __ATOMIC_ACQUIRE));
  }
};

// Cache lines' worth of words. Processors load and store 16 and 32 bytes at an address aligned to 8 without tearing the words in them;
// memcpy, whose pieces overlap and follow the alignment of the other side, does not say so. Without the fences a compiler would make
// one of it.
constexpr std::size_t kLine = 64;

#ifndef SLUICE_TSAN
void copy_lines_narrow(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  constexpr std::size_t kPiece = sizeof(__m128i);
  for (std::size_t at = 0; at != length; at += kPiece) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

[[gnu::target("avx")]] void copy_lines_wide(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  constexpr std::size_t kPiece = sizeof(__m256i);
  for (std::size_t at = 0; at != length; at += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + kPiece));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at + kPiece), high);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

#endif

// REQUIRES: whole lines.
template <class Way>
void copy_lines(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
#ifdef SLUICE_TSAN  // the races are the protocol's, not ours: each access is an atomic one
  for (std::size_t at = 0; at != length; at += 8) Way::word(to + at, from + at);
#else
  if (__builtin_cpu_supports("avx")) return copy_lines_wide(to, from, length);
  copy_lines_narrow(to, from, length);
#endif
}

// Fewer than eight bytes, none beyond a word of `racy`; an aligned half of it in one piece. Apart, since most copies have none of them.
template <class Way>
[[gnu::noinline]] void copy_few(std::uint8_t* to, const std::uint8_t* from, std::size_t length,
                                const std::uint8_t* racy) {
  std::size_t at = 0;
  for (; at != length && !(length - at >= 4 && is_aligned(racy + at, 4)); ++at) Way::byte(to + at, from + at);
  if (at == length) return;
  Way::half(to + at, from + at);
  for (at += 4; at != length; ++at) Way::byte(to + at, from + at);
}

// Upwards: the bytes before the first whole word of `racy`, the words, the bytes behind them.
template <class Way>
void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t length, const std::uint8_t* racy) {
  if (length == 4 && is_aligned(racy, 4)) return Way::half(to, from);  // a flag or a counter
  const std::size_t before = std::min<std::size_t>(-reinterpret_cast<std::uintptr_t>(racy) & 7, length);
  if (before != 0) copy_few<Way>(to, from, before, racy);
  std::size_t at = before;
  if (length - at >= kLine + Way::kAlone) {
    const std::size_t lines = (length - at - Way::kAlone) / kLine * kLine;
    copy_lines<Way>(to + at, from + at, lines);
    at += lines;
  }
  for (; length - at >= 8; at += 8) Way::word(to + at, from + at);
  if (at != length) copy_few<Way>(to + at, from + at, length - at, racy + at);
}

}  // namespace

namespace detail {

void copy_in_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length) { copy<In>(to, from, length, to); }

void copy_out_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  copy<Out>(to, from, length, from);
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
