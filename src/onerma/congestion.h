// Congestion control: how a window answers to what operations report.
//
// Window:     operations outstanding, in 65,536ths; below one, an operation leaves less than once an RTT.
// Policy:     Algorithm 1 and its sibling are one: a delay against a target, and the failures that speak of this window. What a window
//             hears: the local one issue delays and dispatch time-outs; that of a remote and direction remote delays, NACKs and time-outs.
// Threads:    a policy has no state; any number of executors may share it.
// Source:     1RMA §6, Algorithm 1; constants as given there, the others marked.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice::onerma {

struct CongestionWindow {
  static constexpr std::uint32_t kOne = 1u << 16;

  std::uint32_t size = kOne;
  std::uint32_t before_decrease = kOne;                                            // its size then
  Time last_decrease = Time::at(Duration::picoseconds(-(std::int64_t{1} << 62)));  // never yet

  // Operations that may be outstanding.
  constexpr std::uint32_t operations() const { return size < kOne ? 1 : size / kOne; }
  // Between two operations, at one window a round trip.
  constexpr Duration interval(Duration rtt) const {
    return Duration::picoseconds(
        static_cast<std::int64_t>(static_cast<std::uint64_t>(rtt.picoseconds()) * kOne / size));
  }
};

class CongestionPolicy {
 public:
  virtual ~CongestionPolicy() = default;
  // An operation succeeded with this delay; `target` and `rtt` are the window's.
  virtual void on_success(Time now, CongestionWindow& window, Duration delay, Duration target, Duration rtt) const = 0;
  // It ended by what tells of congestion.
  virtual void on_failure(Time now, CongestionWindow& window, Duration rtt) const = 0;
};

struct Algorithm1Parameters {
  std::uint32_t additive_increase = CongestionWindow::kOne / 4;  // AI = 0.25
  std::uint32_t least_factor = CongestionWindow::kOne / 2;       // MD = 0.5
  std::uint32_t beta = CongestionWindow::kOne * 8 / 10;          // 0.8
  std::uint32_t timeout_decrease = CongestionWindow::kOne / 10;  // TIMEOUT_DECR = 0.1
  std::uint32_t smallest = CongestionWindow::kOne / 100;         // CWND_MIN; ours
  std::uint32_t largest = 256 * CongestionWindow::kOne;          // CWND_MAX; ours
  // Ours, after Swift (SIGCOMM 2020) §3.5: a window's target is longer by spread / sqrt(window), at most four times `spread`. Who has less is cut
  // later, which makes shares even where delays do not vary by chance; and many small windows keep a link busy. Zero: as the paper has it.
  Duration spread{};
  // Ours: what within an RTT of a decrease asks for a factor of at most this deepens that decrease to its own; the first late operation of a growing
  // queue is the least late. Zero: never, the first decides for the RTT, as the paper has it. Larger reacts sooner and cuts for chance bursts too.
  std::uint32_t deepen = 0;
};

class Algorithm1 final : public CongestionPolicy {
 public:
  explicit Algorithm1(const Algorithm1Parameters& parameters = {}) : parameters_(parameters) {}

  void on_success(Time now, CongestionWindow& window, Duration delay, Duration target, Duration rtt) const override;
  void on_failure(Time now, CongestionWindow& window, Duration rtt) const override;

 private:
  void decrease(Time now, CongestionWindow& window, Duration rtt, std::uint32_t factor) const;

  Algorithm1Parameters parameters_;
};

// Windows that stay as they are: no congestion control, to compare with.
class FixedWindows final : public CongestionPolicy {
 public:
  void on_success(Time, CongestionWindow&, Duration, Duration, Duration) const override {}
  void on_failure(Time, CongestionWindow&, Duration) const override {}
};

}  // namespace sluice::onerma
