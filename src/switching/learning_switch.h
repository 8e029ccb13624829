// Learning switch: Ethernet frames of any number of ports, each to the port where its destination was last seen.
//
// Life:       attach() ports -> process(now, port, burst) for what each has received -> flush() once a turn.
// A frame:    stage -> source learned -> for our router? rewritten -> known destination: to its port; else flooded to all others.
// Invariant:  frames from one port to another stay in order, whether or not they have to wait in the egress queue.
// Errors:     every frame that goes nowhere is counted under a DropReason.
// Threads:    one owner.
// Limits:     SwitchConfig. Floods are held down by a token bucket per incoming port (storm control): there is no spanning tree, a
//             loop costs at most that rate.
// Source:     IEEE 802.1D §7; RFC 3168 and DCQCN (SIGCOMM'15) for the marks.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/time.h"
#include "port/port.h"
#include "switching/egress_queue.h"
#include "switching/frame_buffer.h"
#include "switching/latency_probe.h"
#include "switching/mac_table.h"
#include "switching/router.h"
#include "switching/stage.h"
#include "switching/tap.h"
#include "switching/types.h"

namespace sluice::switching {

struct SwitchConfig {
  std::size_t max_ports = 1024;
  std::size_t mac_slots = 16'384;
  Duration mac_age = Duration::seconds(300);
  std::size_t queue_bytes = std::size_t{4} << 20;  // of each port, behind its own ring
  std::size_t ecn_threshold_bytes = 0;             // queued bytes from which ECN-capable packets are marked; 0: never
  std::uint32_t flood_rate = 20'000;               // flooded frames a second and port
  std::uint32_t flood_burst = 2'000;
  RouterConfig router{};
  std::uint64_t seed = 1;
};

class LearningSwitch final : public Ways {
 public:
  static constexpr std::size_t kBurst = 64;

  explicit LearningSwitch(SwitchConfig config);
  ~LearningSwitch() override;

  // Gives a port the lowest free number. Null when there are max_ports already. `out` stays alive until detach().
  std::optional<PortNumber> attach(Time now, port::FrameSink& out);
  // Forgets the port and all that was learned there. Its statistics go with it.
  void detach(PortNumber port);

  // Sends on what a stage has made, or has taken before and gives back now. Its ingress is where its source was seen last: like any other
  // frame it does not go back there, unless it is for its own sender (an adapter's loopback) or has been routed. Where nobody
  // knows its source it may go to every port, and counts under strays(), which have a flood rate of their own.
  void forward_made(Time now, port::Frame frame);
  // Before forwarding, every burst passes the stage. Null: none.
  void set_stage(Stage* stage) { stage_ = stage; }
  // Sees what comes in, and what is forwarded once the stage has seen it. Null: none.
  void set_probe(LatencyProbe* probe) { probe_ = probe; }
  // Sees all that comes in and goes out. Null: nobody.
  void set_tap(Tap* tap) { tap_ = tap; }

  // Takes one burst that came in at `port`. The frames may be changed. REQUIRES: burst.size() <= kBurst; `port` is attached.
  void process(Time now, PortNumber port, std::span<port::Frame> burst);
  // Sends what waits in the queues as far as there is room. Returns how many frames still wait.
  std::size_t drain();

  Time next_deadline() const { return stage_ != nullptr ? stage_->next_deadline() : Time::never(); }
  void on_deadline(Time now);
  // The turn is over: the stage may send what has the lowest priority.
  void offer_spare(Time now);
  bool is_idle(Time now, const wire::MacAddress& to) const override;

  const PortStatistics& statistics(PortNumber port) const { return ports_[port.value]->statistics; }
  // Of frames that a stage gave back and that are of no port: floods and drops alone.
  const PortStatistics& strays() const { return strays_.statistics; }
  std::size_t queued_bytes(PortNumber port) const { return ports_[port.value]->queue.bytes(); }
  const MacTable& macs() const { return macs_; }
  std::size_t ports() const { return attached_; }

 private:
  // Where frames come in: what is counted of them, and what their floods cost.
  struct Ingress {
    PortStatistics statistics;
    Time tokens_at;            // when the flood bucket was last filled
    std::uint64_t tokens = 0;  // flooded frames that may still pass
  };
  struct PortState : Ingress {
    PortNumber number;
    port::FrameSink* out;
    EgressQueue queue;
  };

  // Counts what no port may send.
  bool is_refused(port::Frame frame, Ingress& in) const;
  // REQUIRES: not refused when it came in.
  void forward(Time now, port::Frame frame, PortState& in);
  void route(Time now, port::Frame frame, PortState& in);
  // Rewrites a packet that is for our router. False: it goes nowhere.
  bool pass_router(Time now, port::Frame frame, Ingress& in);
  // To all ports but the one where it came in.
  void flood(Time now, ByteView frame, Ingress& in);
  void send_to_all(ByteView frame, const Ingress* except);
  void send(PortState& out, ByteView frame);
  static void mark(PortState& out, MutableBytes frame);
  void forward_outbox(Time now);
  void learn_source(Time now, port::Frame frame, PortNumber in);
  bool take_flood_token(Time now, Ingress& in) const;
  PortState* find(PortNumber port) { return port.value < ports_.size() ? ports_[port.value].get() : nullptr; }

  SwitchConfig config_;
  std::vector<std::unique_ptr<PortState>> ports_;  // by number; null: free
  std::size_t attached_ = 0;
  Ingress strays_;
  MacTable macs_;
  Router router_;
  Stage* stage_ = nullptr;
  LatencyProbe* probe_ = nullptr;
  Tap* tap_ = nullptr;
  std::unique_ptr<FrameBuffer> outbox_;
  std::vector<PortState*> waiting_;  // ports whose queue is not empty
};

}  // namespace sluice::switching
