// The NIC's own end of its cable: frames to our own MAC turn round here, as in a real NIC; all others pass to the port outside.
// On a NIC that several programs share only those to our own queue pairs turn round: the rest may be for one of the others.
//
// Life:       made around a port, or around none -> cut() or abandon(): from then on only the turning round is left.
// Invariant:  frames keep their order, on each of the two ways.
// Limits:     kSlots frames on their way round; then the port is full, until the next receive().
// Threads:    one owner (the holder of the NIC's lock).
// Source:     IBTA vol. 1 §17.2.2 (self-addressed packets).
#pragma once

#include <memory>
#include <vector>

#include "port/port.h"
#include "wire/address.h"

namespace sluice::verbs {

class LoopbackPort final : public port::Port {
 public:
  // `place`: ours on a shared NIC (switching/host_stage.h has the rules); 0: it is not shared.
  LoopbackPort(const wire::MacAddress& own, std::uint8_t place, std::unique_ptr<port::Port> outside);

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override { return tail_ - head_ < kSlots && outside_ && outside_->make_room(); }
  bool flush_some(Time now) override { return outside_ && outside_->flush_some(now); }
  // What turns round here has left already.
  void discard() override {
    if (outside_) outside_->discard();
  }
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return outside_ ? outside_->wait_descriptor() : -1; }
  bool arm() override { return tail_ == head_ && (!outside_ || outside_->arm()); }
  void disarm() override {
    if (outside_) outside_->disarm();
  }
  port::PortState state() const override { return outside_ ? outside_->state() : port::PortState::kUp; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return outside_ ? outside_->name() : "loopback"; }

  // Ours, and what the port outside has lost.
  port::PortCounters totals() const;
  bool has_outside() const { return outside_ != nullptr; }
  // Closes the port outside: what it records is complete then.
  void cut() { outside_.reset(); }
  // Leaves the port outside to another process, with which this one shares it after a fork.
  void abandon() { static_cast<void>(outside_.release()); }

 private:
  static constexpr std::size_t kSlots = 128;
  bool turns_round(ByteView frame) const;
  std::uint8_t* slot(std::size_t index) { return slots_.data() + index % kSlots * port::kMaxFrame; }

  wire::MacAddress own_;
  std::uint8_t place_;
  std::unique_ptr<port::Port> outside_;
  std::vector<std::uint8_t> scrap_;     // what is written to nobody
  std::vector<std::uint8_t> slots_;     // made at first use
  std::vector<std::uint32_t> lengths_;  // beside slots_
  std::size_t head_ = 0;                // first frame that has not been taken back
  std::size_t next_ = 0;                // first frame that has not been handed out
  std::size_t tail_ = 0;
  std::uint8_t* reserved_ = nullptr;
  port::PortCounters counters_;
};

}  // namespace sluice::verbs
