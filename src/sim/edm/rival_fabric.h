// Packets between nodes and one switch, for protocols that decide what is sent, queued and dropped: what edm_rivals.h's six have in common.
//
// Life:       run() -> Protocol::created(), pick() whenever a node's link is free, admit() and take() in the switch, delivered() and control() at nodes.
// Links:      packets are forwarded as their first block comes. Control packets go before data, at nodes and in the switch; those of no blocks take
//             time alone.
// Invariant:  every byte of every message is delivered once more than it was dropped and sent again: checked at the end.
// Threads:    one owner.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "base/check.h"
#include "sim/edm/edm_rivals.h"
#include "sim/world/trace.h"

// Of its own, since packets and fabrics of other kinds are beside it.
namespace sluice::sim::rivals {

using Blocks = std::int64_t;
constexpr Blocks kNeverBlocks = std::int64_t{1} << 62;

// A message of the transport: a write, a read's request, or its answer.
struct Flow {
  std::uint32_t row = 0;
  bool request = false;  // of a read
  bool answer = false;
  std::uint16_t source = 0;
  std::uint16_t destination = 0;
  std::uint32_t bytes = 0;   // with the message's framing
  std::uint32_t sent = 0;    // once at least
  std::uint32_t resend = 0;  // dropped, and not yet sent again
  std::uint32_t received = 0;
  Blocks created = 0;
  Blocks started = -1;
  Blocks finished = -1;

  std::uint32_t to_send() const { return resend != 0 ? resend : bytes - sent; }
  // Of its bytes, those that have not been sent or must be again.
  std::uint32_t remaining() const { return bytes - sent + resend; }
};

struct Packet {
  std::uint32_t flow = 0;
  std::uint32_t bytes = 0;  // of the message; of a control packet, what it is about
  Blocks blocks = 0;        // on the wire
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::uint32_t remaining = 0;  // of its message after it
  bool control = false;
  bool marked = false;
  std::uint8_t kind = 0;  // of a control packet: the protocol's own
};

struct Queue {
  std::deque<Packet> control;
  std::deque<Packet> data;
  Blocks queued = 0;  // of data
  Blocks free_from = 0;
  Blocks wake = kNeverBlocks;
};

class Fabric;

class Protocol {
 public:
  virtual ~Protocol() = default;
  // A message that a node wants to send.
  virtual void created(Blocks now, std::uint32_t flow) = 0;
  // The node's link is free: the packet to send, or when to ask again (kNeverBlocks: when woken).
  virtual bool pick(Blocks now, std::uint32_t node, Packet& out, Blocks& again) = 0;
  // In the switch, before a data packet joins its queue. False: it is dropped, or the protocol has it.
  virtual bool admit(Blocks, std::uint32_t /*port*/, Packet&) { return true; }
  // Which packet of the queue goes next.
  virtual std::size_t take(const Queue&) { return 0; }
  virtual void left(Blocks, std::uint32_t /*port*/, const Packet&) {}
  // At its node; the flow's counts are up to date.
  virtual void delivered(Blocks, const Packet&) {}
  virtual void control(Blocks, const Packet&) {}
  virtual void timer(Blocks, std::uint32_t /*what*/) {}
  // A dropped packet's time has come: its bytes are to be sent again.
  virtual void lost(Blocks, const Packet&) {}
};

class Fabric {
 public:
  // One port more than nodes, for an arbiter.
  Fabric(const EdmHardware& hardware, const RivalSettings& settings, const std::vector<TraceRow>& rows);

  RivalOutcome run(Protocol& protocol);

  // For protocols.
  std::vector<Flow>& flows() { return flows_; }
  Flow& flow(std::uint32_t which) { return flows_[which]; }
  const Flow& flow(std::uint32_t which) const { return flows_[which]; }
  const RivalSettings& settings() const { return settings_; }
  const EdmHardware& hardware() const { return hardware_; }
  std::uint32_t arbiter() const { return settings_.nodes; }
  Queue& port(std::uint32_t which) { return ports_[which]; }
  RivalOutcome& outcome() { return outcome_; }
  Blocks hop() const { return hop_; }
  // From a node's link to the next one's.
  Blocks through() const { return hop_ + switch_; }
  static Blocks blocks_of(std::uint32_t bytes) { return (Blocks{bytes} + 7) / 8; }
  Blocks data_blocks(std::uint32_t bytes) const { return blocks_of(bytes + settings_.packet_framing_bytes); }
  void wake_node(Blocks when, std::uint32_t node);
  void wake_port(Blocks when, std::uint32_t port);
  void set_timer(Blocks when, std::uint32_t what);
  void send_control(Blocks now, const Packet& packet);
  // Joins the queue without being asked for again.
  void enqueue(Blocks now, std::uint32_t port, const Packet& packet);
  void drop(Blocks now, const Packet& packet);
  // The next packet of a flow, counted as sent.
  Packet next_packet(std::uint32_t flow);
  Packet packet_of(std::uint32_t flow, std::uint32_t bytes);

 private:
  enum class What : std::uint8_t { kArrive, kNode, kAtSwitch, kPort, kAtNode, kAnswer, kTimer, kLost };
  struct Step {
    Blocks when = 0;
    std::uint64_t order = 0;
    What what = What::kArrive;
    std::uint32_t where = 0;
    Packet packet;

    friend bool operator>(const Step& a, const Step& b) {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  void at(Blocks when, What what, std::uint32_t where, const Packet& packet = {});
  void step(const Step& step);
  void arrive(Blocks now);
  void create(Blocks now, const Flow& flow);
  void answer(Blocks now, std::uint32_t request);
  void send_from_node(Blocks now, std::uint32_t node);
  void send_from_port(Blocks now, std::uint32_t port);
  void at_switch(Blocks now, Packet packet);
  void at_node(Blocks now, const Packet& packet);
  void finish(Blocks now, Flow& flow);

  const EdmHardware& hardware_;
  const RivalSettings& settings_;
  const std::vector<TraceRow>& rows_;
  Blocks hop_;
  Blocks switch_;
  Protocol* protocol_ = nullptr;
  std::vector<Flow> flows_;
  std::vector<Queue> nodes_;  // their links up; data are the protocol's
  std::vector<Queue> ports_;  // the switch's links down
  std::priority_queue<Step, std::vector<Step>, std::greater<>> steps_;
  std::uint64_t order_ = 0;
  std::size_t next_row_ = 0;
  Trace trace_;
  RivalOutcome outcome_;
};

}  // namespace sluice::sim::rivals
