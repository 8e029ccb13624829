// FaultyLink: what a bad cable does to the packets on their way to a consumer: loses, doubles, reorders, damages, delays them.
//
// Source:     port::ImpairedLink, the same as on real ports.
// Threads:    one owner.
#pragma once

#include "base/rng.h"
#include "port/impaired_link.h"
#include "sim/world/event_loop.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"

namespace sluice::sim {

class FaultyLink final : public Consumer, private Event {
 public:
  // All outlive the link.
  FaultyLink(EventLoop& loop, PacketPool& pool, Consumer& consumer, const port::Impairment& faults, const Rng& rng)
      : loop_(loop), pool_(pool), consumer_(consumer), link_(faults, rng) {}

  void on_packet(Time now, Packet* packet) override;
  const port::ImpairmentCounters& counters() const { return link_.counters(); }

 private:
  void fire(Time now) override { deliver(now); }
  void deliver(Time now);

  EventLoop& loop_;
  PacketPool& pool_;
  Consumer& consumer_;
  port::ImpairedLink link_;
};

}  // namespace sluice::sim
