// Store session: one thread's use of a store on the rack, whichever it is: an endpoint, connections to all memory nodes, a loop to turn and
// stores for a Runner.
//
// Life:       a store's own open() connects and joins -> stores() are ready for a Runner in scheduler() -> loop() turns -> destroyed: leaves.
// Errors:     open() says who does not answer. Later, operations end in outcomes.
// Threads:    one owner; open() blocks it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/remote_nodes.h"
#include "workload/store.h"

namespace sluice::rack {

struct StoreSessionConfig {
  std::string directory;  // the run directory's path
  std::string name;       // unique on the rack
  std::string port;       // empty: the rack's switch
  std::uint32_t clients = 1;
  std::uint64_t seed = 1;
  Duration patience = Duration::seconds(10);
  RemoteNodes::Options nodes{};
  std::function<void(const std::string&)> on_trouble{};  // MembershipConfig's
};

class StoreSession {
 public:
  virtual ~StoreSession() = default;

  remote::Scheduler& scheduler() { return *scheduler_; }
  nic::PollLoop& loop() { return endpoint_->loop(); }
  port::Port& port() { return endpoint_->shard().port(); }
  std::vector<workload::Store*> stores() const;
  // The most that a value may have.
  std::uint32_t value_bytes() const { return static_cast<std::uint32_t>(stores_.front()->max_value_bytes()); }
  const RemoteNodes& nodes() const { return *nodes_; }
  // Of what is in the store, how many copies there are, and over how many memory nodes it lies; 0: not known.
  struct Spread {
    std::uint32_t copies = 0;
    std::uint32_t memory_nodes = 0;
  };
  virtual Spread spread() const { return {}; }
  // What is not connected now, a line each; empty when all is well.
  virtual std::string problems() const;

 protected:
  StoreSession() = default;
  // Puts an endpoint on the rack, with a scheduler and a RemoteNodes in its loop that know no node yet; says who is there. Done again it ends what
  // is under way and takes the place of the one before; that one stays where there can be no other.
  Result<Snapshot> attach(const StoreSessionConfig& config);
  bool attached() const { return nodes_ != nullptr; }
  // The same, then connections to all memory nodes, of a rack whose memory is not Clover's. newest() follows who is there; `on_change` is called after it has
  // changed.
  Result<void> attach_to_memory(const StoreSessionConfig& config, std::function<void()> on_change = {});
  const Snapshot& newest() const { return newest_; }
  // Why not all nodes could be connected to that were there when attach() looked.
  tl::unexpected<Error> not_connected() const;
  // Turns the loop until `done`, for no longer than `patience`; returns whether it came true.
  bool run_for(Duration patience, const std::function<bool()>& done);
  // Takes leave of the rack, and ends what is still under way in the scheduler: a store's destructor calls it before its clients go.
  void detach();

  Endpoint& endpoint() { return *endpoint_; }
  RemoteNodes& remote_nodes() { return *nodes_; }
  void offer(std::unique_ptr<workload::Store> store) { stores_.push_back(std::move(store)); }
  bool offers() const { return !stores_.empty(); }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  std::unique_ptr<nic::SchedulerPoll> coroutines_;
  std::unique_ptr<RemoteNodes> nodes_;
  Snapshot newest_;
  std::vector<std::unique_ptr<workload::Store>> stores_;
};

}  // namespace sluice::rack
