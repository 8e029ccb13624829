// DCQCN, RoCE's congestion control: the reaction point paces a sender, the notification point answers marked packets with CNPs.
//
// Life:       sender:   next_send() -> send -> on_sent() ...; on_cnp() whenever the peer complains.
//             receiver: on_marked() for each packet with ECN-CE; true: send a CNP now.
// Invariant:  min_rate <= rate() <= line_rate. A flow that never met congestion is not paced at all.
// Units:      rates in bits a second, lengths in bytes on the wire.
// Time:       nothing runs while nothing is sent: what timers would have done is caught up at the next call. next_deadline()
//             therefore matters only to a sender that waits for next_send(); others may ignore it.
// Limits:     one ReactionPoint is 80 bytes; the parameters are shared.
// Source:     Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, §3, fig. 7 and §5; hyper increase:
//             802.1Qau (QCN), which the paper refers to.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice::rc {

// Every tunable, with where its value comes from.
struct DcqcnParameters {
  std::uint64_t line_rate = 40'000'000'000;      // the paper's testbed
  std::uint64_t min_rate = 1'000'000;            // ConnectX default (rpg_min_rate = 1 Mb/s)
  std::uint64_t additive_increase = 40'000'000;  // R_AI, §5.2
  std::uint64_t hyper_increase = 200'000'000;    // R_HAI of the authors' ns-3 model (RATE_HAI); the paper names none
  std::uint8_t gain_shift = 8;                   // g = 1/256, §5.2
  std::uint8_t fast_recovery_steps = 5;          // F, §3.1
  Duration alpha_period = Duration::microseconds(55);     // K: alpha decays once a period without CNP, §5.2
  Duration increase_period = Duration::microseconds(55);  // T, §5.2
  std::uint64_t increase_bytes = 10'000'000;              // B, §5.2
  Duration cnp_interval = Duration::microseconds(50);     // N: at most one CNP a flow in this time, §3.1

  // REQUIRES (checked by ReactionPoint): 0 < min_rate <= line_rate < 2^41; all else above zero.
};

class ReactionPoint {
 public:
  // The parameters must outlive it.
  explicit ReactionPoint(const DcqcnParameters& parameters);

  // When the next packet may leave; not before `now`.
  Time next_send(Time now);
  // A packet has left, `bytes` long on the wire.
  void on_sent(Time now, std::uint32_t bytes);
  // The peer saw a marked packet of this flow.
  void on_cnp(Time now);

  // When the rate next grows by itself; never() for a flow that is not limited.
  Time next_deadline() const { return limited_ ? increase_at_ : Time::never(); }
  void on_deadline(Time now) { catch_up(now); }

  bool limited() const { return limited_; }
  std::uint64_t rate() const { return rate_; }
  std::uint64_t target_rate() const { return target_; }
  // Estimate of congestion, 2^32 standing for 1.
  std::uint64_t alpha() const { return alpha_; }

 private:
  void catch_up(Time now);
  void increase();
  void decay_alpha(Time now);
  void set_rate(std::uint64_t rate);

  const DcqcnParameters* parameters_;
  std::uint64_t rate_;                      // R_C
  std::uint64_t target_;                    // R_T
  std::uint64_t alpha_;                     // 32 fraction bits
  std::uint64_t picoseconds_per_byte_ = 0;  // at rate_, 16 fraction bits
  std::uint64_t bytes_left_ = 0;            // until the byte counter expires
  Time alpha_at_;                           // alpha is right as of this time
  Time increase_at_;                        // the timer expires
  Time free_at_;                            // the pace allows the next packet
  std::uint16_t timer_steps_ = 0;           // T, since the last cut
  std::uint16_t byte_steps_ = 0;            // BC
  bool limited_ = false;
};
static_assert(sizeof(ReactionPoint) <= 80);

class NotificationPoint {
 public:
  // True when this marked packet calls for a CNP.
  bool on_marked(Time now, const DcqcnParameters& parameters) {
    if (now < quiet_until_) return false;
    quiet_until_ = now + parameters.cnp_interval;
    return true;
  }

 private:
  Time quiet_until_;
};

}  // namespace sluice::rc
