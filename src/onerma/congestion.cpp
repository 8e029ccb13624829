#include "onerma/congestion.h"

#include <algorithm>
#include <bit>

namespace sluice::onerma {
namespace {

constexpr std::uint32_t kOne = CongestionWindow::kOne;

std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b / kOne);
}

std::uint32_t square_root(std::uint32_t n) {
  std::uint32_t root = 1u << (std::bit_width(n) + 1) / 2;  // not below it; Newton's method falls from there
  for (;;) {
    const std::uint32_t next = (root + n / root) / 2;
    if (next >= root) return root;
    root = next;
  }
}

// spread / sqrt(window), at most four times the spread.
Duration extra_target(Duration spread, std::uint32_t size) {
  if (spread == Duration{}) return spread;
  const std::uint32_t root = std::max(square_root(size), 64u);  // 256 stands for 1
  return spread * 256 / root;
}

}  // namespace

void Algorithm1::on_success(Time now, CongestionWindow& window, Duration delay, Duration target, Duration rtt) const {
  const Algorithm1Parameters& p = parameters_;
  target = target + extra_target(p.spread, window.size);
  if (delay < target) {
    const std::uint64_t step =
        window.size >= kOne ? std::uint64_t{p.additive_increase} * kOne / window.size : p.additive_increase;
    window.size = static_cast<std::uint32_t>(std::min<std::uint64_t>(window.size + step, p.largest));
    return;
  }
  const auto over = static_cast<std::uint64_t>((delay - target).nanoseconds());
  const auto all = static_cast<std::uint64_t>(std::max<std::int64_t>(delay.nanoseconds(), 1));
  const auto cut = static_cast<std::uint32_t>(std::min<std::uint64_t>(std::uint64_t{p.beta} * over / all, kOne));
  decrease(now, window, rtt, std::max(kOne - cut, p.least_factor));
}

void Algorithm1::on_failure(Time now, CongestionWindow& window, Duration rtt) const {
  decrease(now, window, rtt, parameters_.timeout_decrease);
}

void Algorithm1::decrease(Time now, CongestionWindow& window, Duration rtt, std::uint32_t factor) const {
  const bool again = now - window.last_decrease < rtt;
  if (again && factor > parameters_.deepen) return;
  if (!again) {
    window.before_decrease = window.size;
    window.last_decrease = now;
  }
  window.size = std::min(window.size, std::max(times(window.before_decrease, factor), parameters_.smallest));
}

}  // namespace sluice::onerma
