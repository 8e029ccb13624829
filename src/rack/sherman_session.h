// Sherman session: one thread's use of the tree in the rack's memory: an endpoint, connections to all memory nodes, and any number of Sherman
// clients, each with an index cache and local locks of its own.
//
// Life:       open() connects, makes the tree if there is none and it may, and joins -> stores() -> destroyed.
// Memory:     all memory nodes' main regions in the order of their numbers: 64 KiB for the lock table, then the heap. Lock words lie in
//             ordinary memory here, where the originals' lie in the NIC's.
// Errors:     open() says who does not answer. Later, operations end in outcomes.
// Threads:    one owner; open() blocks it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rack/endpoint.h"
#include "rack/sherman_store.h"
#include "rack/store_session.h"
#include "sherman/client.h"

namespace sluice::rack {

struct ShermanSessionConfig {
  std::string directory;  // the run directory's path
  std::string name;       // unique on the rack
  std::string port;       // empty: the rack's switch
  std::uint32_t clients = 1;
  std::uint64_t seed = 1;
  bool may_create = false;         // the others wait for the one that may
  std::uint32_t value_bytes = 64;  // of a tree that is made
  Duration patience = Duration::seconds(10);
  RemoteNodes::Options nodes{};
  sherman::ClientConfig client{
      .timeout = Duration::seconds(15), .lease = Duration::seconds(4), .flight = Duration::seconds(1)};
};

class ShermanSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const ShermanSessionConfig& config);
  ~ShermanSession() override;

  remote::Scheduler& scheduler() override { return *scheduler_; }
  nic::PollLoop& loop() override { return endpoint_->loop(); }
  port::Port& port() override { return endpoint_->shard().port(); }
  std::vector<workload::Store*> stores() const override;
  std::uint32_t value_bytes() const override { return clients_.front()->value_bytes(); }
  const RemoteNodes& nodes() const override { return *nodes_; }
  std::string problems() const override { return nodes_->problems(); }

 private:
  explicit ShermanSession(ShermanSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect();
  Result<void> join();
  remote::Task<void> join_all(std::string& refused);
  bool run_for(Duration patience, const std::function<bool()>& done);

  ShermanSessionConfig config_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  std::unique_ptr<nic::SchedulerPoll> coroutines_;
  std::unique_ptr<RemoteNodes> nodes_;
  std::vector<sherman::MemoryNode> memory_;
  std::vector<std::unique_ptr<sherman::Client>> clients_;
  std::vector<std::unique_ptr<ShermanStore>> stores_;
};

}  // namespace sluice::rack
