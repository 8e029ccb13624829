#include "rack/clients/store_session.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "nic/run_for.h"
#include "rack/endpoint/store_memory.h"

namespace sluice::rack {

Result<Snapshot> StoreSession::attach(const StoreSessionConfig& config) {
  EndpointConfig endpoint;
  endpoint.directory = config.directory;
  endpoint.description = {config.name, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  endpoint.port = config.port;
  endpoint.kinds = kMemoryKinds;
  endpoint.on_trouble = config.on_trouble;
  auto opened = Endpoint::open(endpoint);
  if (!opened) return tl::unexpected(opened.error());
  detach();
  nodes_.reset();
  coroutines_.reset();
  endpoint_ = std::move(*opened);
  scheduler_ = std::make_unique<remote::Scheduler>();
  coroutines_ = std::make_unique<nic::SchedulerPoll>(*scheduler_);
  nodes_ = std::make_unique<RemoteNodes>(endpoint_->connector(), *scheduler_, config.nodes);
  loop().add(*nodes_);
  loop().add(*coroutines_);
  return endpoint_->directory().watch(0, Duration(), kMemoryKinds);
}

Result<void> StoreSession::attach_to_memory(const StoreSessionConfig& config, std::function<void()> on_change) {
  auto snapshot = attach(config);
  if (!snapshot) return tl::unexpected(snapshot.error());
  if (is_served(*snapshot))
    return fail(
        "the memory belongs to a Clover store; `sluice rack down`, then `sluice rack up --no-metadata` starts a rack "
        "without one");
  if (find_store_left(*snapshot))
    return fail(
        "the memory holds a Clover store whose metadata server is gone; `sluice rack up` or `sluice metadata` starts "
        "it "
        "anew, or `sluice rack down`, then `sluice rack up --no-metadata` starts a rack without one");
  newest_ = std::move(*snapshot);
  const auto ready = std::ranges::count_if(newest_.ready(NodeKind::kMemory),
                                           [](const NodeRecord* node) { return !node->description.regions.empty(); });
  if (ready == 0) return fail("no memory node is on the rack; `sluice rack up --no-metadata` starts some");
  nodes_->set_nodes(loop().now(), newest_);
  endpoint_->on_change([this, told = std::move(on_change)](Time now, const Snapshot& changed) {
    nodes_->set_nodes(now, changed);
    newest_ = changed;
    if (told) told();
  });
  const auto all = static_cast<std::size_t>(ready);
  if (!run_for(config.patience, [this, all] { return nodes().up() >= all; })) return not_connected();
  return {};
}

std::string StoreSession::problems() const {
  if (endpoint_->is_superseded())
    return "the rack has begun anew, and the address of this process may be another's there; start it again";
  return nodes_->problems();
}

bool StoreSession::run_for(Duration patience, const std::function<bool()>& done) {
  return nic::run_for(loop(), patience, done);
}

tl::unexpected<Error> StoreSession::not_connected() const {
  const std::string lines = problems();
  if (lines.empty()) return fail("a node has left the rack while this connected to it; try again");
  return fail(fmt::format("no connection to {}", lines));
}

// The order matters: what is under way must end before the scheduler goes, coroutines before their clients.
void StoreSession::detach() {
  if (!attached()) return;
  endpoint_->on_change({});
  nodes_->set_nodes(loop().now(), {});
  loop().remove(*coroutines_);
  loop().remove(*nodes_);
  run_for(Duration::milliseconds(20), [] { return false; });  // farewells leave
  stores_.clear();
  scheduler_.reset();
}

std::vector<workload::Store*> StoreSession::stores() const {
  std::vector<workload::Store*> out;
  for (const auto& store : stores_) out.push_back(store.get());
  return out;
}

}  // namespace sluice::rack
