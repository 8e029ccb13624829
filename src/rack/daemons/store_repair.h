// Store repair: what brings memory nodes back into the metadata server's store: connections to all of them, and clover::Repairer.
//
// Life:     attach() -> set_nodes() as often as the rack changes -> detach() before the loop's parts go.
// Threads:  the loop's owner.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "clover/repairer.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/remote_nodes.h"

namespace sluice::rack {

class StoreRepair {
 public:
  // `space` of each memory node is the store's; 0: all.
  StoreRepair(Endpoint& endpoint, clover::MetadataServer& server, Duration turn, std::uint64_t space);
  ~StoreRepair();

  void set_nodes(Time now, const Snapshot& snapshot);

 private:
  remote::Task<bool> is_free(clover::Home home);

  struct Memory {
    std::string name;
    std::uint64_t length = 0;
    std::uint64_t refused = 0;  // the life in which another's store was found there, and told of
  };
  Endpoint& endpoint_;
  clover::MetadataServer& server_;
  std::uint64_t space_;
  std::map<remote::NodeId, Memory> memory_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  nic::SchedulerPoll coroutines_;
  RemoteNodes nodes_;
  clover::Repairer repairer_;
};

}  // namespace sluice::rack
