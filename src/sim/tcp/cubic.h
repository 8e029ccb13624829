// CUBIC: how many bytes a TCP sender may have under way. What Linux takes if nobody says otherwise.
//
// Life:       on_ack() while nothing is being repaired -> the window grows; on_loss(), once for all losses of a window; on_timeout().
// Slow start: as RFC 5681 §3.1 has it, by what is acknowledged. Without HyStart++ (RFC 9406): that acts on 4 ms of queueing and more, which no switch
//             here holds.
// Units:      bytes; windows in 1/1,024 of them, times of the cubic in us. No floating point: it decides when packets leave.
// Threads:    one owner.
// Source:     RFC 9438: §4.2 to 4.5 (growth), 4.6 and 4.7 (losses, fast convergence), 4.8 (time-outs).
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice::sim {

class Cubic {
 public:
  Cubic(std::uint32_t mss, std::uint64_t initial_window);

  std::uint64_t window() const { return window_ / kOne; }
  bool in_slow_start() const { return window_ < threshold_; }

  // So many bytes were acknowledged, and the window was what held the sender back.
  void on_ack(Time now, std::uint64_t bytes, Duration round_trip);
  void on_loss();
  // `again`: of what a time-out or a loss has cut the window for already. The threshold stays then (RFC 5681 §3.1).
  void on_timeout(bool again = false);

 private:
  static constexpr std::uint64_t kOne = 1024;

  void begin_epoch(Time now);
  // W_cubic, so long after the epoch's beginning.
  std::uint64_t curve_at(Duration since) const;
  std::uint64_t reduce();

  std::uint64_t mss_;        // … in kOne
  std::uint64_t window_;     // cwnd
  std::uint64_t threshold_;  // ssthresh
  std::uint64_t most_ = 0;   // W_max
  std::uint64_t prior_ = 0;  // cwnd_prior: at the last loss
  // Of the epoch, congestion avoidance since the last loss.
  bool epoch_ = false;
  Time began_;
  std::int64_t plateau_us_ = 0;  // K
  std::uint64_t estimate_ = 0;   // W_est: what Reno would have
};

}  // namespace sluice::sim
