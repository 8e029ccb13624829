// SLUICE_CHECK: an invariant of our own code. Always on. Never for input, which gets a verdict and a counter.
//
// On failure prints expression, place and whatever set_check_context() was last told (seed, virtual time), then aborts.
#pragma once

#include <string_view>

namespace sluice {

// What a failing check prints besides its expression: a seed, a virtual time. Per thread; the text is copied.
void set_check_context(std::string_view context);

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace sluice

#define SLUICE_CHECK(expression)                                             \
  (__builtin_expect(static_cast<bool>(expression), 1) ? static_cast<void>(0) \
                                                      : ::sluice::check_failed(#expression, __FILE__, __LINE__))
