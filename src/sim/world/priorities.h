// Priorities: what stands before a port's pipe where some packets are more urgent than others: the pipeline's latency, then a queue for the less urgent.
//
// Life:       send(now, packet) -> `latency` later, by Packet::priority: 0, into the pipe; 1, into the queue, from which the pipe takes one when nothing
//             more urgent waits.
// Why so:     a pipe gives each packet its time when it comes, ahead of its `ready`. Who shall have the gaps must not find them reserved: so the latency
//             passes here.
// Errors:     a less urgent packet that finds its queue full is dropped and counted.
// Threads:    one owner.
// Source:     IEEE 802.1Q §8.6.8.1, strict priority; Cowbird §8.4 (RDMA's packets have a higher one than users' traffic).
#pragma once

#include "base/time.h"
#include "sim/world/event_loop.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"

namespace sluice::sim {

class Priorities final : public Pipe::Source, private Event {
 public:
  // All outlive it; the pipe asks it for packets from then on.
  Priorities(EventLoop& loop, PacketPool& pool, Pipe& out, Duration latency, std::uint64_t queue_bytes);
  ~Priorities() override;

  void send(Time now, Packet* packet);
  Packet* next(Time now) override;
  std::uint64_t dropped() const { return dropped_; }

 private:
  void fire(Time now) override;

  EventLoop& loop_;
  PacketPool& pool_;
  Pipe& out_;
  Duration latency_;
  std::uint64_t queue_bytes_;
  PacketLine coming_;
  PacketLine queue_;
  std::uint64_t queued_ = 0;  // bytes
  std::uint64_t dropped_ = 0;
};

}  // namespace sluice::sim
