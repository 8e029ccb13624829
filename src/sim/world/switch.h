// The rack's switch in virtual time: the project's own LearningSwitch, each port a pipe out and a pipeline's latency before it.
//
// Life:       a packet arrives at a port -> stage (SwordBox) and forwarding at once -> leaves `pipeline_latency` later through the queue of
//             its port.
// Invariant:  packets pass the stage one by one, in the order of their arrival: the serialization point that SwordBox relies on.
// Priorities: none, or as priorities.h has them: RoCE before other packets.
// PFC:        a port for whose packets more than pause_from_bytes are held has its link paused, until pause_to_bytes are left.
// Threads:    one owner.
// Limits:     kMaxPorts.
// Source:     hardware.h; IEEE 802.1Qbb.
#pragma once

#include <memory>
#include <vector>

#include "sim/world/event_loop.h"
#include "sim/world/hardware.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"
#include "switching/learning_switch.h"

namespace sluice::sim {

class Switch final {
 public:
  // As many as there are port numbers: a rack's switch has what its machines need.
  static constexpr std::size_t kMaxPorts = 65'535;

  Switch(EventLoop& loop, PacketPool& pool, const SwitchParameters& parameters, const LinkParameters& link,
         std::uint64_t seed);
  ~Switch();

  // Before every packet is forwarded. Null: none. Outlives the switch. With a `cost` the stage is a program on one core: packets wait for it,
  // one by one, without limit. REQUIRES: before the first packet.
  void set_stage(switching::Stage* stage, Duration cost = {}) {
    forwarding_.set_stage(stage);
    stage_cost_ = cost;
  }

  // REQUIRES: before the first port.
  void set_priorities() { has_priorities_ = true; }

  // After the stage was told something by others than packets: it may have something to do.
  void touched(Time now);

  // A port whose packets go to `consumer`; what stands at `mac` is found there from the start. Returns where packets come in.
  Consumer& attach(Consumer& consumer, const std::uint8_t* mac) { return attach(consumer, mac, link_); }
  Consumer& attach(Consumer& consumer, const std::uint8_t* mac, const LinkParameters& link);
  // The link that brings packets to the port that was attached last: the one to pause.
  void set_uplink(Pipe& uplink);

  const Pipe::Counters& out(std::size_t port) const;
  std::uint64_t packets() const { return packets_; }
  // Packets of the pool that ports keep at hand, empty.
  std::uint64_t reserved() const;

 private:
  class Port;
  void on_timer(Time now);
  void arm_timer();
  void arrive(Time now, std::uint32_t port, Packet* packet);
  void forward(Time now, Packet* packet);
  void on_stage(Time now);

  EventLoop& loop_;
  PacketPool& pool_;
  SwitchParameters parameters_;
  LinkParameters link_;
  Rng rng_;
  switching::LearningSwitch forwarding_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::uint32_t ingress_ = 0;  // of the packet that is being forwarded
  std::uint64_t packets_ = 0;
  bool has_priorities_ = false;
  Duration stage_cost_{};
  Time stage_free_;
  PacketLine at_stage_;
  MemberEvent<Switch, &Switch::on_stage> stage_{*this};
  MemberEvent<Switch, &Switch::on_timer> timer_{*this};
};

}  // namespace sluice::sim
