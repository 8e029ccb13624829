// Pipe: one direction of a link. A queue, a transmitter of some rate, a distance, and the ways in which links fail.
//
// Life:       send(now, ready, packet) -> waits for its turn -> is sent -> arrives: consumer.on_packet().
// Order:      first in, first out. Beside that, packets of a lower priority, if there is a source of them: they go when nothing else waits, and are finished
//             once they have begun.
// Invariant:  one event is pending, that of the next arrival, however many packets there are.
// Units:      a frame takes its bytes, FCS, preamble and gap of wire time; at least 64 + 20 bytes.
// Errors:     what is lost or finds the queue full is dropped and counted.
// Threads:    one owner.
// Source:     IEEE 802.3 §3.2 (frame), §4.4.2 (gap); 802.1Qbb (pause); RED marking as in DCQCN (SIGCOMM'15) §3.1.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "base/time.h"
#include "sim/world/event_loop.h"
#include "sim/world/packet.h"

namespace sluice::sim {

// Where packets arrive. Owns them from then on.
class Consumer {
 public:
  virtual ~Consumer() = default;
  virtual void on_packet(Time now, Packet* packet) = 0;
};

struct PipeParameters {
  std::uint64_t bits_per_second = 100'000'000'000;
  Duration delay{};                      // from the last bit sent to the last bit received
  std::uint64_t queue_bytes = 1u << 24;  // more are dropped
  // Of the packets that ECN-capable flows put into a queue longer than `ecn_from`, a share growing up to `ecn_most_per_million` at
  // `ecn_to`, and all beyond, are marked. 0: none.
  std::uint64_t ecn_from = 0;
  std::uint64_t ecn_to = 0;
  std::uint32_t ecn_most_per_million = 0;
  std::uint32_t loss_per_million = 0;
};

class Pipe final : public Event {
 public:
  static constexpr std::uint32_t kWireOverhead = 24;  // FCS 4, preamble 8, gap 12
  static constexpr std::uint32_t kLeastOnWire = 84;

  struct Counters {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;  // of frames, without overhead
    std::uint64_t lost = 0;
    std::uint64_t overflows = 0;
    std::uint64_t marked = 0;
    std::uint64_t pauses = 0;
  };
  // Told when a packet has left the pipe, whether it arrived or not.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void on_left(Time now, const Packet& packet) = 0;
  };

  // Of packets of the lower priority, which it keeps until they can be sent.
  class Source {
   public:
    virtual ~Source() = default;
    virtual Packet* next(Time now) = 0;  // null: there is none
  };

  // All outlive the pipe.
  Pipe(EventLoop& loop, PacketPool& pool, const PipeParameters& parameters, Consumer& consumer, Rng rng);
  ~Pipe() override;

  // The packet may be sent from `ready` on. REQUIRES: `ready` is not before that of the packet before.
  void send(Time now, Time ready, Packet* packet);
  Packet* take(std::size_t room) { return pool_.take(room); }

  // With it, send()'s `ready` is now: what is reserved ahead cannot be given to others. Neither queue nor pauses nor counters are for what it has.
  void set_low(Source& source) { low_ = &source; }
  // It may have something.
  void offer(Time now) {
    if (!low_turn_.scheduled()) loop_.schedule(low_turn_, std::max(now, free_at_));
  }

  // Nothing begins to be sent until resume().
  void pause(Time now);
  void resume(Time now);
  bool paused() const { return paused_; }

  // When the transmitter has sent all it was given.
  Time free_at() const { return free_at_; }
  std::uint64_t queued_bytes(Time now) const;
  Duration wire_time(std::uint32_t length) const;
  const Counters& counters() const { return counters_; }
  void set_observer(Observer* observer) { observer_ = observer; }

 private:
  void fire(Time now) override;
  void send_low(Time now);
  void transmit(Packet* packet);
  void mark(std::uint64_t queued, Packet* packet);
  void drop(Time now, Packet* packet);

  EventLoop& loop_;
  PacketPool& pool_;
  PipeParameters parameters_;
  Consumer& consumer_;
  Rng rng_;
  Observer* observer_ = nullptr;
  PacketLine flying_;  // in the order of arrival
  PacketLine held_;    // while paused
  std::uint64_t held_bytes_ = 0;
  Time free_at_;
  bool paused_ = false;
  Counters counters_;
  Source* low_ = nullptr;
  const Packet* low_sending_ = nullptr;  // the latest of them
  MemberEvent<Pipe, &Pipe::send_low> low_turn_{*this};
};

}  // namespace sluice::sim
