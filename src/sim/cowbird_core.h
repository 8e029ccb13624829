// A core that Cowbird's spot engine has to itself: its coroutines run there, and what they submit leaves when the core has got to it.
//
// Life:       CowbirdCore -> EngineMemories for each channel, connected -> spawn engines at scheduler() -> start().
// A turn:     takes what has completed, lets the coroutines run, posts what they have submitted, queue pair by queue pair; the core is busy
//             until all of that is paid for, and only then has another turn.
// Signals:    of what is posted to a queue pair in one turn the last alone leaves a completion; in the order of a queue pair it speaks for those
//             before it.
// Costs:      hardware.h's, and `each` for a request of a program's: what the engine's own code takes of it.
// Threads:    one owner.
// Limits:     kDepth operations of a queue pair; more wait in line.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "remote/remote_memory.h"
#include "sim/cpu.h"
#include "sim/rack.h"

namespace sluice::sim {

class CowbirdCore;
class EdmPort;

// How the engine of one channel reaches one node: the rings, or the pool. Over several queue pairs, in turn, more READs are under way than a NIC allows
// one; then nothing is ordered.
class EngineMemory final : public remote::RemoteMemory {
 public:
  static constexpr std::uint32_t kDepth = 512;

  // `counted`: its operations are the requests that cost the engine's own code something.
  EngineMemory(CowbirdCore& core, Rack& rack, Rack::Machine& machine, bool counted);
  ~EngineMemory() override;

  void connect(Rack::Machine& server, rc::CompletionQueue& server_completions, std::size_t pairs);
  // Over EDM instead: a flow of the machine's port, which knows the node.
  void connect(EdmPort& port);

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

 private:
  friend class CowbirdCore;
  class Path;

  // What has completed; returns how many completions there were, and of how many operations that count.
  std::size_t take(std::size_t& operations);
  std::size_t take_from_flow(std::size_t& operations);
  static bool may_take(const Path& path);
  // Posts what has been submitted; `spent` is of this turn, so far, and grows.
  void post(Time now, Duration& spent);
  bool waiting() const;

  CowbirdCore& core_;
  Rack& rack_;
  Rack::Machine& machine_;
  rc::CompletionQueue* completions_;
  bool counted_;
  std::vector<std::unique_ptr<Path>> paths_;
  EdmPort* edm_ = nullptr;
  std::size_t turn_ = 0;
};

class CowbirdCore final : public Event {
 public:
  // `each`: of an operation on the pool, besides posting and polling.
  CowbirdCore(Rack& rack, const HostParameters& host, Duration each);

  remote::Scheduler& scheduler() { return scheduler_; }
  void add(EngineMemory& memory) { memories_.push_back(&memory); }
  void start() { wake(rack_.loop.now()); }
  void wake(Time now) { rack_.loop.schedule_no_later(*this, std::max(now, busy_until_)); }
  Duration busy() const { return busy_; }
  const HostParameters& host() const { return host_; }
  const std::string& problem() const { return problem_; }

 private:
  friend class EngineMemory;
  void fire(Time now) override;

  Rack& rack_;
  HostParameters host_;
  Duration each_;
  remote::Scheduler scheduler_;
  std::vector<EngineMemory*> memories_;
  Time busy_until_;
  Duration busy_{};
  std::string problem_;
};

}  // namespace sluice::sim
