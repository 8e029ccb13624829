// A port whose frames are lost, doubled, reordered, damaged and delayed, the same way on every run with the same seed.
//
// Life:       impaired(port, spec) owns `port`; everything but the frames themselves (state, waking) is the inner port's;
//             a cable that is cut is down, and what was on its way then is lost. discard() leaves what is on its way alone.
// Cost:       a direction with nothing to do passes straight through; the other copies each frame once.
// Counters:   counters() as this port's owner sees it; what was done to frames: tx_impairments(), rx_impairments().
// Invariant:  fates depend on seed and on the order of frames, never on `now`; time only drives delay and reordering.
// Threads:    one owner; no clock, no chance but the seed's.
// Source:     ARCHITECTURE.md "Contracts": works the same on real ports and on simulated links.
#pragma once

#include <memory>
#include <string>

#include "port/impaired_link.h"
#include "port/impairment.h"
#include "port/port.h"

namespace sluice::port {

class ImpairedPort final : public Port {
 public:
  ImpairedPort(std::unique_ptr<Port> inner, const ImpairmentSpec& spec);

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override { return !tx_impaired_ && inner_->make_room(); }
  bool flush_some(Time now) override;
  void discard() override;
  std::size_t receive(Time now, std::span<Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return inner_->wait_descriptor(); }
  bool arm() override;
  void disarm() override { inner_->disarm(); }
  PortState state() const override { return cut_ ? PortState::kDown : inner_->state(); }
  const PortCounters& counters() const override;
  std::string name() const override { return inner_->name() + " impaired"; }

  const ImpairmentCounters& tx_impairments() const { return tx_.counters(); }
  const ImpairmentCounters& rx_impairments() const { return rx_.counters(); }
  Port& inner() { return *inner_; }

 private:
  // Whether the cable has been cut by now.
  bool look_at_cable(Time now);
  void cut();
  void send_what_is_due(Time now);
  void take_in(Time now, std::size_t at_most);

  std::unique_ptr<Port> inner_;
  bool tx_impaired_;
  bool rx_impaired_;
  ImpairedLink tx_;
  ImpairedLink rx_;
  Frame stuck_;  // due, but the inner port was full
  Time tx_retry_ = Time::never();
  Time last_now_;
  Time began_ = Time::never();  // when it was used first
  Duration cut_after_;
  std::uint64_t frames_left_;  // until the cable is cut
  bool cut_ = false;
  std::uint64_t tx_lost_to_cut_ = 0;
  std::uint64_t tx_discarded_ = 0;  // before they had entered the link
  std::uint64_t rx_lost_to_cut_ = 0;
  mutable PortCounters counters_;
};

std::unique_ptr<ImpairedPort> impaired(std::unique_ptr<Port> inner, const ImpairmentSpec& spec);

}  // namespace sluice::port
