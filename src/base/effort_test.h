// How much a test that draws from seeds tries: what the environment says, or what is usual for it.
//
//   SLUICE_SEEDS=N, SLUICE_SEED=N    so many seeds, the first of them
//   SLUICE_ROUNDS=N                  so many operations or inputs from one seed
//   SLUICE_EVERY_WAY=1               a model's longest searches, too
//
// Units:   under the address sanitizer, where everything takes eight times as long, an eighth of what is usual.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace sluice {

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const wanted = std::getenv(name);
  return wanted == nullptr ? otherwise : std::strtoull(wanted, nullptr, 10);
}

#if defined(__has_feature)  // clang
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#endif

inline std::uint64_t usual_effort(std::uint64_t usual) {
  return kAddressSanitizer ? std::max<std::uint64_t>(usual / 8, 1) : usual;
}

inline std::uint64_t first_seed() { return from_environment("SLUICE_SEED", 1); }
inline std::uint64_t seeds(std::uint64_t usual) { return from_environment("SLUICE_SEEDS", usual_effort(usual)); }
inline std::uint64_t rounds(std::uint64_t usual) { return from_environment("SLUICE_ROUNDS", usual_effort(usual)); }

}  // namespace sluice
