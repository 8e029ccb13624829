#include "rack/endpoint/remote_nodes.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::rack {

RemoteNodes::RemoteNodes(nic::Connector& connector, remote::Scheduler& scheduler, Options options)
    : connector_(connector),
      options_(options),
      domain_(connector.adapter().create_domain()),
      completions_(connector.adapter().create_completion_queue(options.depth * kMaxNodes)),
      memory_(scheduler, connector.adapter(), *completions_, options.leaves_within) {}

RemoteNodes::~RemoteNodes() {
  links_.clear();
  connector_.adapter().destroy(completions_);
}

std::unique_ptr<Link> RemoteNodes::make_link(remote::NodeId id) {
  LinkConfig config;
  config.pair.pd = domain_;
  config.pair.send_completions = completions_;
  config.pair.receive_completions = completions_;
  config.pair.send_depth = options_.depth;
  config.pair.receive_depth = 1;
  config.ack_timeout = options_.ack_timeout;
  config.retry_count = options_.retry_count;
  return std::make_unique<Link>(
      connector_, config,
      Link::Events{.on_up = [this, id](Time, rc::QueuePair& pair) { memory_.add_node(id, pair); },
                   .on_down = [this, id](Time, rc::QueuePair&) { memory_.remove_node(id); },
                   .on_made = {}});
}

void RemoteNodes::set_nodes(Time now, const Snapshot& snapshot) {
  const auto ready = snapshot.ready(NodeKind::kMemory);
  std::erase_if(links_, [&](const auto& entry) {
    const bool stays = std::any_of(ready.begin(), ready.end(), [&](const NodeRecord* node) {
      return node->id == entry.first && node->incarnation == entry.second.incarnation;
    });
    if (!stays) entry.second.link->want(now, std::nullopt);  // at this time: it is told so until it answers
    return !stays;
  });
  for (const NodeRecord* record : ready) {
    if (links_.contains(record->id) || links_.size() == kMaxNodes) continue;
    Node& node = links_[record->id];
    node = {record->description.name, record->incarnation, make_link(record->id)};
    node.link->want(now, Link::Peer{wire::Gid::from(record->ip), record->description.cm_port});
  }
}

std::size_t RemoteNodes::up() const {
  return static_cast<std::size_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.link->up(); }));
}

std::uint32_t RemoteNodes::path_mtu() const {
  std::uint32_t least = 4096;
  for (const auto& [id, node] : links_) {
    if (node.link->up()) least = std::min(least, node.link->path_mtu());
  }
  return least;
}

std::string RemoteNodes::problems() const {
  std::string lines;
  for (const auto& [id, node] : links_) {
    if (!node.link->up()) lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", node.name, node.link->why());
  }
  return lines;
}

std::uint64_t RemoteNodes::reconnects() const {
  std::uint64_t all = 0;
  for (const auto& [id, node] : links_) all += node.link->connects() - (node.link->connects() == 0 ? 0 : 1);
  return all;
}

std::size_t RemoteNodes::poll(Time now) {
  const std::size_t completed = memory_.poll(now);
  look_for_failures(now);
  return completed;
}

void RemoteNodes::look_for_failures(Time now) {
  for (auto& [id, node] : links_) {
    if (node.link->up() && !memory_.connected(id)) node.link->failed(now, "the connection broke");
    node.link->poll(now);
  }
}

Time RemoteNodes::next_deadline() const {
  Time next = Time::never();
  for (const auto& [id, node] : links_) next = std::min(next, node.link->next_deadline());
  return next;
}

}  // namespace sluice::rack
