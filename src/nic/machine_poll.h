// A machine on a port, turned by a poll loop: frames in, deadlines, and at the end of the turn frames out.
//
// Machine:    on_frame(now, frame), poll_transmit(now, sink), next_deadline(), on_deadline(now): ARCHITECTURE.md "Contracts".
// Stopped:    who goes on after a stop finds more frames than a turn takes, and among them what its deadlines wait for. These wait then until
//             all has been taken, for kPatientTurns at most: where frames come faster than they are taken, time must pass.
// Threads:    that of its loop. The machine outlives it; the port is its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "nic/held_up.h"
#include "nic/poll_loop.h"
#include "port/memory_port.h"
#include "port/port.h"

namespace sluice::nic {

template <class Machine>
class MachinePoll : public Pollable {
 public:
  MachinePoll(Machine& machine, std::unique_ptr<port::Port> port) : machine_(machine), port_(std::move(port)) {}

  // Adds itself and its port.
  void attach(PollLoop& loop) {
    loop.add(*this);
    loop.add_port(*port_);
  }
  void detach(PollLoop& loop) {
    loop.remove(*this);
    loop.remove_port(*port_);
  }
  // Off the wire for good: what it sends is lost, nothing comes any more, and time goes on. Returns its port. REQUIRES: attached.
  std::unique_ptr<port::Port> unplug(PollLoop& loop) {
    loop.remove_port(*port_);
    return std::exchange(port_, port::make_memory_cable(1).a);
  }
  port::Port& port() { return *port_; }

  std::size_t poll(Time now) override {
    std::size_t work = 0;
    if (now - polled_at_ > kStop && patient_turns_ == 0) patient_turns_ = kPatientTurns;
    polled_at_ = now;
    for (std::size_t i = 0; i < kBursts; ++i) {
      const std::size_t n = port_->receive(now, burst_);
      for (std::size_t k = 0; k < n; ++k) machine_.on_frame(now, burst_[k]);
      work += n;
      if (n == 0)
        patient_turns_ = 0;  // fewer than there is room for may be all that a port had at hand, not all that there is
      if (n < burst_.size()) break;
    }
    if (machine_.next_deadline() > now) return work;
    if (patient_turns_ != 0 && --patient_turns_ != 0) return work;
    machine_.on_deadline(now);
    return work + 1;
  }
  void transmit(Time now) override {
    const port::PortCounters& counters = port_->counters();
    const std::uint64_t refusals = counters.tx_full;
    const std::uint64_t frames = counters.tx_frames;
    while (machine_.poll_transmit(now, *port_)) {
    }
    held_up_.note(now, counters.tx_full != refusals, counters.tx_frames != frames);
  }
  Time next_deadline() const override { return std::min(held_up_.next_try(), machine_.next_deadline()); }
  // The port was full at the last transmit(): there is more to send.
  bool held_up() const { return static_cast<bool>(held_up_); }

 private:
  static constexpr std::size_t kBurst = 32;
  static constexpr std::size_t kBursts = 4;  // a turn
  static constexpr Duration kStop = Duration::milliseconds(5);
  static constexpr std::uint32_t kPatientTurns = 64;  // 8,192 frames: more than ports hold

  Machine& machine_;
  std::unique_ptr<port::Port> port_;
  std::array<port::Frame, kBurst> burst_{};
  HeldUp held_up_;
  Time polled_at_;
  std::uint32_t patient_turns_ = 0;
};

}  // namespace sluice::nic
