// Clover session: one thread's use of the rack's Clover store: an endpoint, connections to all memory nodes and the metadata server, and any
// number of Clover clients, each with cursors of its own.
//
// Life:       open() connects and joins -> stores() are ready for a Runner in scheduler() -> run_until() turns -> destroyed: leaves.
// Errors:     open() says who does not answer. Later, operations end in outcomes.
// Threads:    one owner; open() blocks it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clover/client.h"
#include "rack/clover_store.h"
#include "rack/endpoint.h"
#include "rack/message_link.h"
#include "rack/remote_nodes.h"
#include "rack/store_session.h"

namespace sluice::rack {

struct CloverSessionConfig {
  std::string directory;  // the run directory's path
  std::string name;       // unique on the rack
  std::string port;       // empty: the rack's switch
  std::uint32_t clients = 1;
  std::uint64_t seed = 1;
  Duration patience = Duration::seconds(10);
  RemoteNodes::Options nodes{};
  clover::ClientConfig client{};
};

class CloverSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<CloverSession>> open(const CloverSessionConfig& config);
  ~CloverSession() override;

  remote::Scheduler& scheduler() override { return *scheduler_; }
  nic::PollLoop& loop() override { return endpoint_->loop(); }
  port::Port& port() override { return endpoint_->shard().port(); }
  std::vector<workload::Store*> stores() const override;
  std::uint32_t value_bytes() const override { return clients_.front()->value_bytes(); }
  const RemoteNodes& nodes() const override { return *nodes_; }
  std::string problems() const override;

 private:
  explicit CloverSession(CloverSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect();
  Result<void> join();
  bool run_for(Duration patience, const std::function<bool()>& done);
  void set_nodes(Time now, const Snapshot& snapshot);

  CloverSessionConfig config_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  std::unique_ptr<nic::SchedulerPoll> coroutines_;
  std::unique_ptr<RemoteNodes> nodes_;
  std::unique_ptr<MessageLink> metadata_;
  std::string metadata_name_;
  std::vector<std::unique_ptr<clover::Client>> clients_;
  std::vector<std::unique_ptr<CloverStore>> stores_;
};

}  // namespace sluice::rack
