#include "rack/memory_session.h"

#include <fmt/format.h>

#include <vector>

namespace sluice::rack {

Result<std::unique_ptr<MemorySession>> MemorySession::open(const StoreSessionConfig& config, const std::string& node) {
  std::unique_ptr<MemorySession> session(new MemorySession(config));
  if (auto connected = session->connect(node); !connected) return tl::unexpected(connected.error());
  return session;
}

Result<void> MemorySession::connect(const std::string& node) {
  auto snapshot = attach(config_);
  if (!snapshot) return tl::unexpected(snapshot.error());
  std::vector<std::string> names;
  const NodeRecord* wanted = nullptr;
  for (const NodeRecord* candidate : snapshot->ready(NodeKind::kMemory)) {
    if (candidate->description.regions.empty()) continue;
    names.push_back(candidate->description.name);
    if (candidate->description.name == node) wanted = candidate;
  }
  if (names.empty()) return fail("no memory node is on the rack; `sluice memory` adds one");
  if (wanted == nullptr)
    return fail(fmt::format("there is no memory node {}; there are {}", node, fmt::join(names, ", ")));
  const RegionRecord& region = wanted->description.regions.front();
  base_ = {wanted->id, remote::RegionKey(region.key), region.address};
  length_ = region.length;
  const remote::NodeId id = wanted->id;
  const auto only_it = [id](Snapshot all) {
    std::erase_if(all.nodes, [id](const NodeRecord& n) { return n.id != id; });
    return all;
  };
  remote_nodes().set_nodes(loop().now(), only_it(*snapshot));
  endpoint().on_change(
      [this, only_it](Time now, const Snapshot& changed) { remote_nodes().set_nodes(now, only_it(changed)); });
  if (!run_for(config_.patience, [this] { return nodes().up() == 1; }))
    return fail(fmt::format("no connection to {}", problems()));
  return {};
}

bool MemorySession::run(remote::Task<void> task, Duration patience) {
  scheduler().spawn(std::move(task));
  return run_for(patience, [this] { return scheduler().live() == 0; });
}

}  // namespace sluice::rack
