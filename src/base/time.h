// Time as integer picoseconds: the only time that protocol code knows, always an argument, never read.
//
// Units:      picoseconds in a signed 64-bit integer: 106 days either way.
//             A world in real time counts from the start of its process.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace sluice {

// A span of time.
class Duration {
 public:
  constexpr Duration() = default;
  static constexpr Duration picoseconds(std::int64_t n) { return Duration(n); }
  static constexpr Duration nanoseconds(std::int64_t n) { return Duration(n * 1'000); }
  static constexpr Duration microseconds(std::int64_t n) { return Duration(n * 1'000'000); }
  static constexpr Duration milliseconds(std::int64_t n) { return Duration(n * 1'000'000'000); }
  static constexpr Duration seconds(std::int64_t n) { return Duration(n * 1'000'000'000'000); }
  static constexpr Duration max() { return Duration(std::numeric_limits<std::int64_t>::max()); }

  constexpr std::int64_t picoseconds() const { return ps_; }
  constexpr std::int64_t nanoseconds() const { return ps_ / 1'000; }
  constexpr std::int64_t microseconds() const { return ps_ / 1'000'000; }
  constexpr std::int64_t milliseconds() const { return ps_ / 1'000'000'000; }

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) { return Duration(a.ps_ + b.ps_); }
  friend constexpr Duration operator-(Duration a, Duration b) { return Duration(a.ps_ - b.ps_); }
  friend constexpr Duration operator*(Duration a, std::int64_t n) { return Duration(a.ps_ * n); }
  friend constexpr Duration operator/(Duration a, std::int64_t n) { return Duration(a.ps_ / n); }
  friend constexpr std::int64_t operator/(Duration a, Duration b) { return a.ps_ / b.ps_; }

 private:
  constexpr explicit Duration(std::int64_t ps) : ps_(ps) {}
  std::int64_t ps_ = 0;
};

// A point in time, counted from the start of the world (process or simulation).
class Time {
 public:
  constexpr Time() = default;
  static constexpr Time at(Duration since_start) { return Time(since_start.picoseconds()); }
  // Later than any deadline: "never".
  static constexpr Time never() { return Time(std::numeric_limits<std::int64_t>::max()); }

  constexpr Duration since_start() const { return Duration::picoseconds(ps_); }

  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Time operator+(Time t, Duration d) { return Time(t.ps_ + d.picoseconds()); }
  friend constexpr Time operator-(Time t, Duration d) { return Time(t.ps_ - d.picoseconds()); }
  friend constexpr Duration operator-(Time a, Time b) { return Duration::picoseconds(a.ps_ - b.ps_); }

 private:
  constexpr explicit Time(std::int64_t ps) : ps_(ps) {}
  std::int64_t ps_ = 0;
};

}  // namespace sluice
