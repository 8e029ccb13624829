// Rack: machines with a NIC each around one switch, in virtual time.
//
// Life:       add_machine() … -> connect() queue pairs -> loop.run_until().
// Threads:    one owner.
// Limits:     65,534 machines.
#pragma once

#include <memory>
#include <vector>

#include "rc/adapter.h"
#include "sim/event_loop.h"
#include "sim/hardware.h"
#include "sim/nic.h"
#include "sim/packet.h"
#include "sim/pipe.h"
#include "sim/switch.h"
#include "sim/trace.h"

namespace sluice::sim {

class Rack {
 public:
  Rack(const Hardware& hardware, std::uint64_t seed);
  Rack(const Rack&) = delete;
  Rack& operator=(const Rack&) = delete;

  struct Machine {
    Machine(Rack& rack, std::uint32_t number);

    Nic nic;
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

  EventLoop loop;
  PacketPool pool;
  Trace trace;
  const Hardware& hardware() const { return hardware_; }
  std::uint64_t seed() const { return seed_; }
  Switch& net_switch() { return switch_; }

 private:
  rc::QueuePair* make_pair(const End& end);
  void bring_up(const End& end, rc::QueuePair& pair, const End& other, const rc::QueuePair& peer);

  Hardware hardware_;
  std::uint64_t seed_;
  Switch switch_;
  std::vector<std::unique_ptr<Machine>> machines_;
};

}  // namespace sluice::sim
