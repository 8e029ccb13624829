// Rack: machines with a NIC each around one switch, in virtual time.
//
// Life:       add_machine() … -> connect() queue pairs -> loop.run_until().
// Threads:    one owner.
// Limits:     65,534 machines.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "rc/adapter.h"
#include "sim/world/event_loop.h"
#include "sim/world/faulty_link.h"
#include "sim/world/hardware.h"
#include "sim/world/nic.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"
#include "sim/world/switch.h"
#include "sim/world/trace.h"
#include "swordbox/box.h"

namespace sluice::sim {

struct RackOptions {
  port::Impairment faults{};      // of every link, each way
  std::uint8_t ack_timeout = 14;  // of all queue pairs (IBTA §9.7.6.1.3); 67 ms: never by mistake
};

class Rack {
 public:
  Rack(const Hardware& hardware, std::uint64_t seed, const RackOptions& options = {});
  Rack(const Rack&) = delete;
  Rack& operator=(const Rack&) = delete;

  struct Machine {
    Machine(Rack& rack, std::uint32_t number);

    Nic nic;
    std::unique_ptr<FaultyLink> down, up;  // null: nothing is wrong with them
    Pipe uplink;
    rc::CompletionQueue* make_completions(std::uint32_t depth) { return nic.adapter().create_completion_queue(depth); }
    // Memory of this machine that peers may do everything to. `bytes` stays.
    memory::Key share(MutableBytes bytes, std::uint64_t address, memory::RegionKind kind = memory::RegionKind::kHost);
  };
  Machine& add_machine();
  Machine& machine(std::size_t i) { return *machines_[i]; }
  std::size_t machines() const { return machines_.size(); }

  struct End {
    Machine* machine = nullptr;
    rc::CompletionQueue* completions = nullptr;
    CompletionListener* listener = nullptr;  // may be set later, as the queue pair's `user`
    std::uint32_t send_depth = 1;
    std::uint32_t receive_depth = 1;
  };
  struct Connection {
    rc::QueuePair* a = nullptr;
    rc::QueuePair* b = nullptr;
  };
  // A reliable connection, ready to send both ways.
  Connection connect(const End& a, const End& b);
  // A box in the switch that is told of every connection made from now on, as a control plane tells it. Outlives the rack.
  void announce_to(swordbox::Box& box) { box_ = &box; }
  // Whether everything has come to rest: no packet under way, and both ends of each connection agree on what was sent and done.
  bool at_rest() const;

  EventLoop loop;
  PacketPool pool;
  Trace trace;
  const Hardware& hardware() const { return hardware_; }
  std::uint64_t seed() const { return seed_; }
  Switch& net_switch() { return switch_; }

 private:
  // The consumer, or a faulty link before it.
  Consumer& behind_faults(Consumer& consumer, std::unique_ptr<FaultyLink>& link, std::string_view way,
                          std::uint32_t machine);
  void announce(const End& a, const End& b, const Connection& connection);
  rc::QueuePair* make_pair(const End& end);
  void bring_up(const End& end, rc::QueuePair& pair, const End& other, const rc::QueuePair& peer);

  Hardware hardware_;
  std::uint64_t seed_;
  RackOptions options_;
  Switch switch_;
  swordbox::Box* box_ = nullptr;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<Connection> connections_;
};

}  // namespace sluice::sim
