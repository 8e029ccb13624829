// RemoteMemory over EDM: what the compute node's shim does between operations and the host stack's messages.
//
// Life:       EdmPort for each host -> share() the memory of those that have some, EdmRegions knows it -> EdmMemory on a compute node's port.
// Order:      of a flow, operations to one node take effect in the order of submission, as the contract has it. EDM itself keeps reads and
//             modifications in order, and writes, but not the ones with the others: so a read waits until earlier writes have left, a write until
//             earlier atomics are answered. Reads and writes of several flows are ordered by nothing.
// Writes:     EDM does not acknowledge them. A write is done when an answer to what left after it has come: of a read or an atomic that is
//             there anyway, or of a read of its own, which serves all writes that left before. NULL: what they came to is unknown.
// X:          of each node's reads and writes, `active_per_pair` are under way; the others wait here, oldest first.
// Keys:       EDM knows none. The shim that translates addresses (EDM §3.3, "Application integration") checks key and range: kAccessDenied.
// Errors:     kUnknown for what was answered NULL, as when the memory node has died and the read timer has ended; kTooLong beyond kMaxLength.
// Threads:    one owner.
// Source:     EDM §2.3, §3.1.1, §3.2.1, §3.3.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "edm/host_stack.h"
#include "remote/remote_memory.h"
#include "sim/edm/edm_fabric.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

class EdmPort;

// What clients know of memory: which host a node is, and where its bytes are.
struct EdmRegions {
  struct Region {
    edm::PortId port{};
    remote::RegionKey key{};
    std::uint64_t base = 0;  // the address of its first byte
    std::uint64_t bytes = 0;
  };
  std::map<remote::NodeId, Region> by_node;  // one of each
};

struct EdmPortSettings {
  Duration dram{};
  Duration read_timer = Duration::milliseconds(1);  // EDM names none; longer than kMaxLength takes among many
  Duration submit_latency{};  // from the program to the message queue, and back: a bus, if there is one
  Duration completion_latency{};
};

class EdmPort final : public EdmHost {
 public:
  static constexpr std::uint32_t kMaxLength = 64u << 10;

  class Listener {
   public:
    virtual ~Listener() = default;
    // The operation's `status` says how it ended, `prior` and its bytes what came; on_complete has not been called.
    virtual void on_done(Time now, remote::Operation& operation) = 0;
  };

  // All references outlive this; `memory` is this host's.
  EdmPort(EdmFabric& fabric, const EdmRegions& regions, const EdmPortSettings& settings, MutableBytes memory = {});
  ~EdmPort() override;

  // Of every RemoteMemory over it.
  static remote::Capabilities capabilities();

  edm::PortId port() const { return port_; }

  // Operations of one flow to one node are ordered.
  class Flow;
  Flow* make_flow(Listener& listener);
  // The program has it ready at `at`. Times of one flow do not go back.
  void submit(Time at, Flow& flow, remote::Operation& operation);

  // Nothing goes in or out any more.
  void kill() { dead_ = true; }
  // Operations that have not ended.
  std::uint64_t open() const { return open_; }
  // Reads that were made for writes alone.
  std::uint64_t confirmations() const { return confirmations_; }
  const edm::HostStack& stack() const { return stack_; }

  void deliver(Time now, Time first_block, const edm::Unit& unit) override;

 private:
  struct Item {
    remote::Operation* operation = nullptr;  // null: a read for writes alone
    Flow* flow = nullptr;
  };
  struct Submitted {
    Time at{};
    std::uint64_t order = 0;
    Item item;

    friend bool operator>(const Submitted& a, const Submitted& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  struct Ended {
    Time at{};
    Item item;
  };
  // What a flow has for one node.
  struct Lane {
    std::deque<Item> waiting;   // for their turn
    std::uint64_t writes = 0;   // that have had it and have not left
    std::uint64_t atomics = 0;  // … and have no answer
  };
  // A node that has memory.
  struct Peer {
    const EdmRegions::Region* region = nullptr;
    std::deque<Item> reads, writes;  // whose turn it is, but for X
    std::uint32_t active_reads = 0;
    std::deque<Item> leaving;      // writes in the stack, oldest first
    std::uint64_t left = 0;        // writes that have left
    std::deque<Item> unconfirmed;  // the last of them, oldest first
    std::uint64_t confirm_at = 0;  // an address to read
  };
  struct Asked {  // a read or an atomic in the stack
    Item item;
    Peer* peer = nullptr;
    std::uint64_t covers = 0;  // Peer::left when it was asked
  };

  void turn(Time now);
  void schedule();
  void arrived(Time now, const Item& item);
  void advance(Lane& lane, Peer& peer);
  bool start_some(Time now);
  void start_read(Time now, Peer& peer);
  void start_write(Time now, Peer& peer);
  bool collect_left();
  bool collect_done(Time now);
  void confirm(Time at, Peer& peer, std::uint64_t up_to, remote::Status status);
  void end(Time at, const Item& item, remote::Status status);
  remote::Status judge(const remote::Operation& operation) const;
  Peer& peer_of(remote::NodeId node);

  EdmFabric& fabric_;
  const EdmRegions& regions_;
  EdmPortSettings settings_;
  edm::PortId port_;
  edm::HostStack stack_;
  bool dead_ = false;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::priority_queue<Submitted, std::vector<Submitted>, std::greater<>> submitted_;
  std::uint64_t order_ = 0;
  std::map<remote::NodeId, Peer> peers_;
  std::vector<Asked> asked_;         // by tag
  std::vector<std::uint32_t> free_;  // tags
  std::deque<Ended> ended_;
  std::uint64_t open_ = 0;
  std::uint64_t confirmations_ = 0;
  MemberEvent<EdmPort, &EdmPort::turn> event_{*this};
};

// A program's RemoteMemory on a host, whose own time costs nothing: it runs the scheduler's coroutines as the event loop comes to them.
class EdmMemory final : public remote::RemoteMemory, private EdmPort::Listener {
 public:
  // All references outlive this.
  EdmMemory(remote::Scheduler& scheduler, EventLoop& loop, EdmPort& port);

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

 private:
  void on_done(Time now, remote::Operation& operation) override;
  void run(Time now);

  EventLoop& loop_;
  EdmPort& port_;
  EdmPort::Flow* flow_;
  MemberEvent<EdmMemory, &EdmMemory::run> event_{*this};
};

// How a workload's machines have EDM, for racks whose NICs carry the rest.
struct EdmChoice {
  // "bus": behind the bus that the rack's NICs are behind, with its doorbells and completions; "near": as close to the processor as EDM assumes (§2.1).
  std::string host = "near";
  std::uint64_t active = 3;  // X

  void read(Fields& fields);  // edm_host, edm_active
};

// Why so many machines cannot be around EDM's switch; empty: they can.
std::string edm_lacks_ports(std::uint64_t machines);

// EDM beside the NICs of a rack: frames go over these, memory's messages here. That both are on one link is left out: what a store sends as
// frames is little, and takes no time from memory's blocks (edm-interference).
class EdmSide {
 public:
  EdmSide(EventLoop& loop, Trace& trace, const Hardware& hardware, const EdmChoice& choice, std::uint32_t ports);

  EdmPort& add_compute() { return add({}); }
  // A node that shares these bytes, from address `at` on.
  EdmPort& add_memory(const remote::RemoteAddress& at, MutableBytes bytes);
  const EdmFabric& fabric() const { return fabric_; }
  // What the host's link has carried, both ways.
  std::uint64_t wire_bytes(const EdmPort& port) const { return fabric_.blocks(port.port()) * 8; }
  // The longest that granted data have waited in the switch, behind requests and grants.
  double most_waited_ns() const { return static_cast<double>(fabric_.most_waited().picoseconds()) / 1e3; }
  bool at_rest() const;

 private:
  EdmPort& add(MutableBytes memory);

  EdmRegions regions_;
  EdmPortSettings settings_;
  EdmFabric fabric_;
  std::vector<std::unique_ptr<EdmPort>> ports_;
};

}  // namespace sluice::sim
