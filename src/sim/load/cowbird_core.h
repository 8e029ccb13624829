// A core that Cowbird's spot engine has to itself: its coroutines run there, and what they submit leaves when the core has got to it.
//
// Life:       CowbirdCore -> EngineMemories, connected -> serve() engines -> start().
// A turn:     takes what has completed, lets the coroutines run, posts what they have submitted, queue pair by queue pair; the core is busy
//             until all of that is paid for, and only then has another turn.
// Signals:    of what is posted to a queue pair in one turn the last alone leaves a completion; in the order of a queue pair it speaks for those
//             before it.
// Costs:      hardware.h's, and `each` for a request that an engine has carried out: what its own code takes of it; where the pool is memory of the core's own
//             machine, with the copying.
// Threads:    one owner.
// Limits:     kDepth operations of a queue pair; more wait in line.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cowbird/engine.h"
#include "remote/remote_memory.h"
#include "sim/world/cpu.h"
#include "sim/world/rack.h"

namespace sluice::sim {

class CowbirdCore;
class EdmPort;

// How engines of the core reach one node: the rings of all channels, or a channel's pool. Over several queue pairs, in turn, more READs are under way than a NIC
// allows one; then nothing is ordered.
class EngineMemory final : public remote::RemoteMemory {
 public:
  static constexpr std::uint32_t kDepth = 512;

  EngineMemory(CowbirdCore& core, Rack& rack, Rack::Machine& machine);
  ~EngineMemory() override;

  void connect(Rack::Machine& server, rc::CompletionQueue& server_completions, std::size_t pairs);
  // Over EDM instead: a flow of the machine's port, which knows the node.
  void connect(EdmPort& port);

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

 private:
  friend class CowbirdCore;
  class Path;

  // What has completed; returns how many completions there were.
  std::size_t take();
  std::size_t take_from_flow();
  static bool may_take(const Path& path);
  // Posts what has been submitted; `spent` is of this turn, so far, and grows.
  void post(Time now, Duration& spent);
  bool waiting() const;

  CowbirdCore& core_;
  Rack& rack_;
  Rack::Machine& machine_;
  rc::CompletionQueue* completions_;
  std::vector<std::unique_ptr<Path>> paths_;
  EdmPort* edm_ = nullptr;
  std::size_t turn_ = 0;
};

class CowbirdCore final : public Event {
 public:
  // `each`: of a request, besides posting and polling.
  CowbirdCore(Rack& rack, const HostParameters& host, Duration each);

  remote::Scheduler& scheduler() { return scheduler_; }
  void add(EngineMemory& memory) { memories_.push_back(&memory); }
  // Runs it here. It outlives the core.
  void serve(cowbird::Engine& engine);
  void start() { wake(rack_.loop.now()); }
  void wake(Time now) { rack_.loop.schedule_no_later(*this, std::max(now, busy_until_)); }
  Duration busy() const { return busy_; }
  const HostParameters& host() const { return host_; }
  const std::string& problem() const { return problem_; }

 private:
  friend class EngineMemory;
  void fire(Time now) override;
  std::uint64_t carried_out() const;

  Rack& rack_;
  HostParameters host_;
  Duration each_;
  remote::Scheduler scheduler_;
  std::vector<EngineMemory*> memories_;
  std::vector<const cowbird::Engine*> engines_;
  std::uint64_t paid_for_ = 0;  // requests
  Time busy_until_;
  Duration busy_{};
  std::string problem_;
};

}  // namespace sluice::sim
