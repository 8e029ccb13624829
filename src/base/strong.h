// A type of its own for every number that could be swapped for another at a call site.
//
// Invariant:  compares and converts only within its own kind; `value` is the bare number.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace sluice {

template <class Tag, class T>
struct Strong {
  using Value = T;
  T value{};

  constexpr Strong() = default;
  constexpr explicit Strong(T v) : value(v) {}
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

}  // namespace sluice

template <class Tag, class T>
struct std::hash<sluice::Strong<Tag, T>> {
  std::size_t operator()(const sluice::Strong<Tag, T>& s) const noexcept { return std::hash<T>{}(s.value); }
};
