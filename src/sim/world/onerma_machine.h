// A machine that speaks 1RMA behind a model of a NIC's timing: the project's own onerma::Node decides what is sent and what memory holds;
// the model decides when.
//
// Out:        the node makes a frame when the wire is nearly free (what waits, waits in the node, where delays are measured) -> transmit
//             latency, and what reading host memory takes for a frame that carries data, a bit unevenly -> wire.
// In:         a packet arrives -> receive latency, for an answer its way to host memory, too -> the node executes it -> programs are
//             polled.
// Threads:    one owner.
// Source:     hardware.h says what each number does; 1RMA §4.5 (what the delays contain).
#pragma once

#include <memory>
#include <vector>

#include "onerma/node.h"
#include "sim/world/event_loop.h"
#include "sim/world/hardware.h"
#include "sim/world/packet.h"
#include "sim/world/packet_sink.h"
#include "sim/world/pipe.h"
#include "sim/world/switch.h"
#include "sim/world/trace.h"

namespace sluice::sim {

class OnermaRack;

// Any key, another for each machine: who attacks a simulation?
onerma::Secret simulated_key(std::uint64_t seed, std::size_t machine);

// A program at a machine, with something to do whenever something has happened there.
class OnermaProgram {
 public:
  virtual ~OnermaProgram() = default;
  virtual void poll(Time now) = 0;
  virtual Time next_deadline() const = 0;
};

class OnermaMachine final : public Consumer {
 public:
  OnermaMachine(OnermaRack& rack, std::uint32_t number, const onerma::NodeConfig& config);
  ~OnermaMachine() override;

  onerma::Node& node() { return node_; }
  // Polled whenever something has happened here, and at its deadlines. Outlives the machine.
  void add(OnermaProgram& program) { programs_.push_back(&program); }
  // The machine has died: nothing comes in or goes out any more.
  void cut() { cut_ = true; }
  // After something was submitted.
  void touched(Time now);
  void on_packet(Time now, Packet* packet) override;

 private:
  class Sink final : public PacketSink {
   public:
    Sink(OnermaMachine& machine, PacketPool& pool) : PacketSink(pool), machine_(machine) {}
    Time now;

   private:
    bool has_room() override;
    void sent(Packet* packet) override;
    OnermaMachine& machine_;
  };

  void execute(Time now);
  void on_timer(Time now);
  Duration latest_ready() const;
  Duration memory_jitter();

  OnermaRack& rack_;
  std::uint32_t number_;
  onerma::Node node_;
  std::vector<OnermaProgram*> programs_;
  Rng memory_chance_;
  Sink sink_;
  Pipe uplink_;
  Time last_ready_;
  bool held_up_ = false;  // for the wire
  bool cut_ = false;
  PacketHeap arriving_;
  MemberEvent<OnermaMachine, &OnermaMachine::execute> execute_event_{*this};
  MemberEvent<OnermaMachine, &OnermaMachine::on_timer> timer_{*this};
};

// Such machines around one switch.
class OnermaRack {
 public:
  OnermaRack(const Hardware& hardware, std::uint64_t seed);
  ~OnermaRack();

  OnermaMachine& add_machine(onerma::NodeConfig config = {});
  // Packets that the switch dropped on the way to any machine.
  std::uint64_t dropped() const;

  EventLoop loop;
  PacketPool pool;
  Trace trace;

 private:
  friend class OnermaMachine;
  Hardware hardware_;
  std::uint64_t seed_;
  Switch switch_;
  std::vector<std::unique_ptr<OnermaMachine>> machines_;
};

}  // namespace sluice::sim
