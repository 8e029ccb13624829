#include "sim/tcp/cubic.h"

#include <algorithm>
#include <limits>

namespace sluice::sim {
namespace {

__extension__ using Wide = __int128;

// RFC 9438 §4.1: C is 0.4 segments/s^3, beta 0.7; alpha follows (§4.3).
constexpr std::uint64_t kKept = 7, kOf = 10;  // beta
constexpr std::int64_t kC = 4, kCOf = 10;
constexpr std::uint64_t kAlpha = 9, kAlphaOf = 17;  // 3 (1 - beta) / (1 + beta)
constexpr Wide kCubicMicroseconds = Wide{1'000'000'000} * 1'000'000'000;

// The largest integer whose cube is not above.
std::int64_t cube_root(Wide of) {
  std::int64_t root = 0;
  for (std::int64_t bit = std::int64_t{1} << 40; bit != 0; bit >>= 1) {
    const Wide more = root + bit;
    if (more * more * more <= of) root += bit;
  }
  return root;
}

}  // namespace

Cubic::Cubic(std::uint32_t mss, std::uint64_t initial_window)
    : mss_(mss * kOne), window_(initial_window * kOne), threshold_(std::numeric_limits<std::uint64_t>::max()) {}

void Cubic::begin_epoch(Time now) {
  epoch_ = true;
  began_ = now;
  estimate_ = window_;
  most_ = std::max(most_, window_);
  // K = cbrt((W_max - cwnd) / C), windows in segments.
  plateau_us_ = cube_root(Wide{most_ - window_} * kCOf * kCubicMicroseconds / (Wide{mss_} * kC));
}

std::uint64_t Cubic::curve_at(Duration since) const {
  const Wide us = since.microseconds() - plateau_us_;
  const Wide grown = us * us * us * kC * Wide{mss_} / (kCubicMicroseconds * kCOf);
  return static_cast<std::uint64_t>(std::max<Wide>(Wide{most_} + grown, 0));
}

void Cubic::on_ack(Time now, std::uint64_t bytes, Duration round_trip) {
  if (in_slow_start()) {
    window_ += bytes * kOne;
    return;
  }
  if (!epoch_) begin_epoch(now);
  const std::uint64_t acknowledged = bytes * kOne;
  // Reno-friendly (§4.3): alpha segments a window, and one, as Reno's, once what was lost is regained.
  const std::uint64_t reno = mss_ * acknowledged / window_;
  estimate_ += estimate_ >= prior_ ? reno : reno * kAlpha / kAlphaOf;
  const Duration since = now - began_;
  if (curve_at(since) < estimate_) {
    window_ = std::max(window_, estimate_);
    return;
  }
  const std::uint64_t target = std::clamp(curve_at(since + round_trip), window_, window_ + window_ / 2);
  window_ +=
      static_cast<std::uint64_t>(Wide{target - window_} * static_cast<Wide>(acknowledged) / static_cast<Wide>(window_));
}

std::uint64_t Cubic::reduce() {
  epoch_ = false;
  prior_ = window_;
  return threshold_ = std::max(window_ * kKept / kOf, 2 * mss_);
}

void Cubic::on_loss() {
  // Fast convergence: who has less than the last time leaves room to others.
  most_ = window_ < most_ ? window_ * (kOf + kKept) / (2 * kOf) : window_;
  window_ = reduce();
}

void Cubic::on_timeout(bool again) {
  if (!again) reduce();
  epoch_ = false;
  most_ = 0;  // the next epoch begins on its plateau
  window_ = mss_;
}

}  // namespace sluice::sim
