// The `local` backend: memory nodes in this process, for tests of data structures and for measuring their own CPU cost.
//
// Life:       LocalFabric holds nodes and regions; every client has a LocalMemory (and a LocalChannel to each service) on it.
//             Immediate: submit() executes and completes. Seeded: submit() queues, and each pump() takes one small step
//             of one connection that the seed chooses: execute a piece of the next operation, or report the oldest executed one.
// Order:      operations of one client to one node execute and complete in the order of submission; between clients, and
//             between nodes, every interleaving is possible.
// Faults:     disconnect() ends all that is in flight on a connection as kUnknown: a prefix of it, as the seed says, has
//             executed; of the rest some may still execute later, up to `straggler_lifetime` (a packet that was under way). The
//             connection then works again. kill_node() loses the node and its bytes for ever; restart_node() brings it back empty. stop_node() keeps the
//             bytes, and resume_node() gives them other keys. cut() takes a node from one client alone. kill() on a client makes it vanish: what it had submitted executes or not, nothing is reported and its coroutines never go on.
// Invariant:  nothing executes outside a region, with a wrong key or without the right.
// Errors:     as RemoteMemory; kUnreachable for a dead node, kUnknown for what was in flight to it when it died.
// Threads:    one owner: all clients of a fabric live in one thread.
// Source:     ARCHITECTURE.md "Contracts", "How it is checked".
#pragma once

#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "remote/message_channel.h"
#include "remote/remote_memory.h"

namespace sluice::remote {

enum class LocalMode : std::uint8_t { kImmediate, kSeeded };

struct LocalOptions {
  LocalMode mode = LocalMode::kImmediate;
  std::uint64_t seed = 1;
  std::uint32_t max_length = 1u << 30;
  // Seeded: reads and writes execute in pieces of so many bytes, with other clients' operations in between. 0: whole.
  std::uint32_t piece_bytes = 0;
  // Seeded: the chance that a pump() begins by breaking one connection with something in flight.
  std::uint32_t disconnect_per_million = 0;
  // Seeded: how long after its connection was lost an operation may still execute. Zero: never.
  Duration straggler_lifetime{};
  // As with RC: of a lost connection, none executes before an earlier one, or without it. capabilities().ordered says so.
  bool stragglers_in_order = false;
};

struct LocalRights {
  bool read = true;
  bool write = true;
  bool atomic = true;
};

namespace detail {
class LocalLink;
}

class LocalFabric {
 public:
  explicit LocalFabric(const LocalOptions& options);
  LocalFabric(const LocalFabric&) = delete;
  LocalFabric& operator=(const LocalFabric&) = delete;
  ~LocalFabric();

  NodeId add_node();
  // A region of `bytes` zero bytes, known to clients by the virtual addresses from `base`. REQUIRES: base is 8-aligned.
  RemoteAddress add_region(NodeId node, std::uint64_t base, std::size_t bytes, LocalRights rights = {});
  void kill_node(NodeId node);
  // The node is there again, with regions to be added anew, whose keys are others than before. REQUIRES: it was killed.
  void restart_node(NodeId node);
  // The node does not answer any more, and keeps its bytes; nothing executes there. REQUIRES: it lives.
  void stop_node(NodeId node);
  // It goes on, with all its regions under other keys. Returns where this one is now.
  RemoteAddress resume_node(RemoteAddress region);
  bool alive(NodeId node) const;
  // The region's own bytes, as the memory node sees them. REQUIRES: the node lives, or is only stopped.
  MutableBytes region_bytes(RemoteAddress region);

  // Takes one step at `now`. False: nothing is in flight.
  bool pump(Time now);
  std::size_t in_flight() const { return busy_.size(); }
  const LocalOptions& options() const { return options_; }

 private:
  friend class LocalMemory;
  friend class LocalChannel;
  friend class detail::LocalLink;

  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };
  struct Region {
    std::uint64_t base = 0;
    std::size_t length = 0;
    LocalRights rights;
    std::unique_ptr<std::uint8_t, Free> bytes;
  };
  struct Node {
    bool alive = true;
    std::size_t lost = 0;  // keys that were regions' before
    std::vector<Region> regions;
  };
  // A write or atomic whose connection was lost before it executed; its bytes are kept here.
  struct Straggler {
    Operation operation;
    std::vector<std::uint8_t> bytes;
    Time due;
  };

  // Where the operation's bytes are, or why it must be refused.
  Status resolve(const Operation& operation, std::uint8_t*& at);
  // Does all or (reads and writes) `length` bytes from `offset` of the operation.
  void execute(Operation& operation, std::uint8_t* at, std::size_t offset, std::size_t length);
  Status execute_whole(Operation& operation);
  // False: it will never execute. `earliest` moves on to when it may.
  bool keep_straggler(const Operation& operation, Time& earliest);
  void pump_stragglers();
  void set_busy(detail::LocalLink& link);
  void set_idle(detail::LocalLink& link);

  LocalOptions options_;
  Rng rng_;
  Time now_;
  std::vector<Node> nodes_;
  std::vector<detail::LocalLink*> links_;  // all
  std::vector<detail::LocalLink*> busy_;   // those with something in flight; each knows its place
  std::vector<Straggler> stragglers_;
};

namespace detail {

// One connection: a first-in-first-out lane whose head part has executed and waits to be reported.
class LocalLink {
 public:
  explicit LocalLink(LocalFabric& fabric);
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;
  virtual ~LocalLink();

  // One step, chosen by the fabric's seed. REQUIRES: something is in flight.
  void step();
  // Everything in flight ends as kUnknown (or silently, when the client is gone).
  void disconnect();
  void vanish();  // the client is gone
  virtual bool leads_to(NodeId) const { return false; }

 protected:
  void arrived();  // one more is in flight

  // Executes (a piece of) the oldest that has not executed. True: it has wholly executed.
  virtual bool execute_next() = 0;
  virtual void report_oldest() = 0;
  // Ends the oldest as unknown or, of a client that is gone, silently. The first `executed` of them have executed.
  virtual void abandon_oldest(bool has_executed, bool silently) = 0;

  LocalFabric& fabric_;
  std::size_t in_flight_ = 0;
  std::size_t executed_ = 0;  // of them, from the oldest on
  // While all end as unknown: whether one may still execute, and not before when.
  bool straggling_ = false;
  Time straggle_from_;

 private:
  friend class sluice::remote::LocalFabric;
  void end(bool silently);
  void left();             // one less
  std::size_t place_ = 0;  // in busy_, while in_flight_ > 0
};

}  // namespace detail

class LocalMemory : public RemoteMemory {
 public:
  LocalMemory(Scheduler& scheduler, LocalFabric& fabric);
  ~LocalMemory() override;

  Capabilities capabilities() const override;
  void submit(Operation& operation) override;

  // Breaks the connection to `node`; it works again at once.
  void disconnect(NodeId node);
  // From now on (until mended) the node is out of this client's reach, though it lives for others.
  void cut(NodeId node);
  void mend(NodeId node);
  // The client dies: nothing is ever completed again.
  void kill();

 private:
  class Lane;
  Lane* lane(NodeId node);

  LocalFabric& fabric_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by node
  bool killed_ = false;
};

// A MessageChannel to a service in this process.
class LocalChannel : public MessageChannel {
 public:
  LocalChannel(Scheduler& scheduler, LocalFabric& fabric, MessageService& service);
  ~LocalChannel() override;

  void submit(Call& call) override;
  void disconnect();
  void kill();  // the client dies
  // The service died (nullptr: calls end as kUnreachable) or came back.
  void set_service(MessageService* service);

 private:
  class Lane;
  LocalFabric& fabric_;
  std::unique_ptr<Lane> lane_;
  MessageService* service_;
  bool killed_ = false;
};

// Runs coroutines and fabric until all spawned coroutines have ended or `until` is reached, moving virtual time on by `step`
// a pump and, when nothing is in flight, to the next sleeper. Returns the time reached.
Time run_until_idle(Scheduler& scheduler, LocalFabric& fabric, Time now, Time until,
                    Duration step = Duration::nanoseconds(100));

}  // namespace sluice::remote
