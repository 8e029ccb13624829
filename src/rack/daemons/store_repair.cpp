#include "rack/daemons/store_repair.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "rack/daemons/store_story.h"
#include "rack/endpoint/store_mark.h"

namespace sluice::rack {

StoreRepair::StoreRepair(Endpoint& endpoint, clover::MetadataServer& server, Duration turn, std::uint64_t space)
    : endpoint_(endpoint),
      server_(server),
      space_(space),
      scheduler_(std::make_unique<remote::Scheduler>()),
      coroutines_(*scheduler_),
      nodes_(endpoint.connector(), *scheduler_, {.leaves_within = server.max_flight() / 2}),
      repairer_(nodes_.memory(), server_, turn,
                {.is_free = [this](const clover::Home& home) { return is_free(home); }}) {
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
    if (node.state == NodeState::kGone) repairer_.gone(now, node.id, node.description.name);
    if (node.state != NodeState::kReady) continue;
    const auto home = home_of(node, space_);
    if (!home) continue;
    Memory& memory = memory_[node.id];
    memory.name = node.description.name;
    memory.length = node.description.regions.front().length;
    repairer_.saw(now, *home);
  }
}

// It may have gone while nobody served this store, and another have been made in what came back.
remote::Task<bool> StoreRepair::is_free(clover::Home home) {
  Memory& memory = memory_[home.region.base.node];
  const auto mark = co_await read_mark(nodes_.memory(), home.region.base, memory.length);
  if (!mark) co_return false;
  if (*mark != StoreMark::kNone && std::exchange(memory.refused, home.life) != home.life)
    spdlog::error("{} holds {} and is not used; start that memory node anew", memory.name, to_string(*mark));
  co_return *mark == StoreMark::kNone;
}

}  // namespace sluice::rack
