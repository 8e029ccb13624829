#include "rack/clients/memory_session.h"

namespace sluice::rack {

Result<std::unique_ptr<MemorySession>> MemorySession::open(const StoreSessionConfig& config, const std::string& node) {
  std::unique_ptr<MemorySession> session(new MemorySession(config));
  if (auto connected = session->connect(node); !connected) return tl::unexpected(connected.error());
  return session;
}

Result<void> MemorySession::connect(const std::string& node) {
  auto snapshot = attach(config_);
  if (!snapshot) return tl::unexpected(snapshot.error());
  const auto wanted = snapshot->memory_called(node);
  if (!wanted) return tl::unexpected(wanted.error());
  base_ = {wanted->node->id, remote::RegionKey(wanted->region->key), wanted->region->address};
  length_ = wanted->region->length;
  const remote::NodeId id = wanted->node->id;
  const auto only_it = [id](Snapshot all) {
    std::erase_if(all.nodes, [id](const NodeRecord& n) { return n.id != id; });
    return all;
  };
  remote_nodes().set_nodes(loop().now(), only_it(*snapshot));
  endpoint().on_change(
      [this, only_it](Time now, const Snapshot& changed) { remote_nodes().set_nodes(now, only_it(changed)); });
  if (!run_for(config_.patience, [this] { return nodes().up() == 1; })) return not_connected();
  return {};
}

bool MemorySession::run(remote::Task<void> task, Duration patience) {
  scheduler().spawn(std::move(task));
  return run_for(patience, [this] { return scheduler().live() == 0; });
}

}  // namespace sluice::rack
