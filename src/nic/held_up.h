// Frames that wait because their port is full. Nothing to do, but a deadline that is past: the loop yields, for who empties the port may wait for
// this core. Who takes none for a while is stopped, or slow: the loop may sleep then, for kPause or as the port asks (shm, udp, packet: 100 us).
#pragma once

#include "base/time.h"

namespace sluice::nic {

class HeldUp {
 public:
  static constexpr Duration kPatience = Duration::milliseconds(1);
  static constexpr Duration kPause = Duration::microseconds(500);

  // After each try to send: whether frames were left, and whether some had left.
  void note(Time now, bool left, bool moved) {
    if (moved || !left || since_ == Time::never()) since_ = left ? now : Time::never();
    next_try_ = !left ? Time::never() : now - since_ < kPatience ? Time() : now + kPause;
  }
  explicit operator bool() const { return since_ != Time::never(); }
  Time next_try() const { return next_try_; }

 private:
  Time since_ = Time::never();  // the port has taken nothing
  Time next_try_ = Time::never();
};

}  // namespace sluice::nic
