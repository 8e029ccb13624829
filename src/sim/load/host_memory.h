// HostMemory: the RemoteMemory of a machine whose threads each have queue pairs of their own, with what their CPUs spend on it.
//
// Life:       enter(thread) before a thread's code runs -> what it submits goes out on its queue pairs once it has posted it -> the answer
//             comes -> the thread, when it runs and is free, finds it -> its coroutines go on.
// Nodes:      over RC, a queue pair of each thread to each, or some that threads share; or over the machine's EDM port, a flow of each thread.
// Invariant:  a thread does one thing at a time. What a coroutine submits belongs to the thread that runs it.
// Sleepers:   wake as code of the first thread. Threads whose coroutines sleep have a HostMemory and a Scheduler each.
// Threads:    one owner.
// Limits:     kDepth operations of a thread to a node at once, over RC; over EDM they wait in the port.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "remote/remote_memory.h"
#include "sim/world/cpu.h"
#include "sim/world/rack.h"

namespace sluice::sim {

class EdmPort;

// The work request that does what the operation says, on a queue pair to its node; its id is the operation's address. `sge` is for it to point to.
rc::SendRequest request_of(remote::Operation& operation, rc::Sge& sge);

// Which of a machine's threads.
struct HostThreads {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// `mean`, or so many per cent more or less at most, evenly.
Duration around(Duration mean, std::uint64_t spread_percent, Rng& chance);

// What the program itself does for a remote operation, or for all those that it submits together, with one doorbell.
struct StepCost {
  enum class Of : std::uint8_t { kOperation, kBatch };
  Duration cost{};
  Of of = Of::kOperation;
  // Each time so many per cent more or less, at most: threads that all take the same time walk a chain in step, and meet at its end.
  std::uint64_t spread_percent = 0;
  Duration swap{};  // a CAS takes so much more
};

// Queue pairs from a machine to a node that its threads share: thread i has the (i modulo their number)th. What one thread has posted is executed
// behind what others have.
class SharedQueuePairs final : public CompletionListener {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // The operation's status is set.
    virtual void on_done(Time now, remote::Operation& operation) = 0;
  };

  // `depth` operations at once on each. All references outlive this.
  SharedQueuePairs(Rack& rack, Rack::Machine& machine, Rack::Machine& server, rc::CompletionQueue& server_completions,
                   std::uint32_t count, std::uint32_t depth);

  rc::QueuePair& pair_of(std::uint32_t thread) { return *pairs_[thread % pairs_.size()]; }
  // The id of the request to be posted for the operation; what became of it goes to the listener.
  std::uint64_t enter(remote::Operation& operation, Listener& listener);
  // It was not posted after all.
  void leave(std::uint64_t id) { free_.push_back(id); }

  void on_completions(Time now) override;

 private:
  struct Open {
    remote::Operation* operation = nullptr;
    Listener* listener = nullptr;
  };
  rc::CompletionQueue& completions_;
  std::vector<rc::QueuePair*> pairs_;
  std::vector<Open> open_;  // by id
  std::vector<std::uint64_t> free_;
};

class HostMemory final : public remote::RemoteMemory {
 public:
  static constexpr std::uint32_t kDepth = 32;

  // All references outlive this.
  HostMemory(remote::Scheduler& scheduler, Rack& rack, Rack::Machine& machine, Cpu& cpu, HostThreads threads,
             StepCost step);
  ~HostMemory() override;

  // Connects every thread with the node, which is `server`.
  void connect(remote::NodeId node, Rack::Machine& server, rc::CompletionQueue& server_completions);

  // The same by queue pairs that others may use, too; they outlive this.
  void connect(remote::NodeId node, SharedQueuePairs& pairs);

  // The same over EDM: this machine's port, which knows the node. One port a machine.
  void connect(remote::NodeId node, EdmPort& port);

  // Threads are counted from 0 here.
  void enter(std::uint32_t thread) { current_ = thread; }
  // The current thread works; what it submits then leaves later.
  void work(Duration cost) { cpu_.finish_of(first_ + current_, rack_.loop.now(), cost); }
  // Those whose coroutines may be woken by what runs here, as by a lock that is handed over.
  void set_neighbors(std::span<HostMemory* const> neighbors) { neighbors_ = neighbors; }
  // Lets the coroutines run that can, as code of this thread; the machine's messages leave with what they post.
  void run(Time now, std::uint32_t thread);

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

 private:
  class Thread;
  class Sleeper;
  void wake_at(Time when);

  Rack& rack_;
  Rack::Machine& machine_;
  Cpu& cpu_;
  EdmPort* edm_ = nullptr;
  std::uint32_t first_;
  StepCost step_;
  Rng chance_;
  std::uint32_t current_ = 0;
  std::uint32_t submitter_ = kNobody;  // the last one in this run
  static constexpr std::uint32_t kNobody = ~0u;
  std::span<HostMemory* const> neighbors_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::unique_ptr<Sleeper> sleeper_;
};

}  // namespace sluice::sim
