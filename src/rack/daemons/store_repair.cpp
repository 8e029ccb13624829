#include "rack/daemons/store_repair.h"

#include "rack/daemons/store_story.h"

namespace sluice::rack {

StoreRepair::StoreRepair(Endpoint& endpoint, clover::MetadataServer& server, Duration turn, std::uint64_t space)
    : endpoint_(endpoint),
      server_(server),
      space_(space),
      scheduler_(std::make_unique<remote::Scheduler>()),
      coroutines_(*scheduler_),
      nodes_(endpoint.connector(), *scheduler_, {.leaves_within = server.max_flight() / 2}),
      repairer_(nodes_.memory(), server_, turn) {
  endpoint_.loop().add(nodes_);
  endpoint_.loop().add(coroutines_);
  scheduler_->spawn(repairer_.run());
}

// What is under way ends before the scheduler goes.
StoreRepair::~StoreRepair() {
  nodes_.set_nodes(endpoint_.loop().now(), {});
  endpoint_.loop().remove(coroutines_);
  endpoint_.loop().remove(nodes_);
  scheduler_.reset();
}

void StoreRepair::set_nodes(Time now, const Snapshot& snapshot) {
  nodes_.set_nodes(now, snapshot);
  for (const NodeRecord& node : snapshot.nodes) {
    if (node.description.kind != NodeKind::kMemory) continue;
    if (node.state == NodeState::kGone) repairer_.gone(now, node.id);
    if (node.state != NodeState::kReady) continue;
    if (const auto home = home_of(node, space_)) repairer_.saw(now, *home);
  }
}

}  // namespace sluice::rack
