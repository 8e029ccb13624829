// Remote nodes: the memory of all memory nodes of a rack as one RemoteMemory, with a connection to each that is kept up.
//
// Life:       set_nodes(snapshot) as often as it changes -> memory() is usable at once: operations to a node without a connection end as
//             kUnreachable, and what was under way when one failed as kUnknown -> reconnected when the node answers again.
// Threads:    the loop's owner.
// Limits:     kMaxNodes; Options::depth operations at once a node.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "nic/connector.h"
#include "nic/nic.h"
#include "rack/directory/directory.h"
#include "rack/endpoint/link.h"
#include "rc/remote_rc.h"

namespace sluice::rack {

class RemoteNodes final : public nic::Pollable {
 public:
  static constexpr std::uint32_t kMaxNodes = 256;
  struct Options {
    std::uint32_t depth = 128;
    std::optional<std::uint8_t> ack_timeout{};
    std::uint8_t retry_count = 7;
    Duration leaves_within{};  // as RemoteRc's; zero: no bound
  };

  RemoteNodes(nic::Connector& connector, remote::Scheduler& scheduler, Options options);
  ~RemoteNodes() override;

  // Connects to the memory nodes that are ready, lets go of those that are gone or have come back as others.
  void set_nodes(Time now, const Snapshot& snapshot);
  rc::RemoteRc& memory() { return memory_; }
  // How many nodes there are, and of how many a connection is up.
  std::size_t nodes() const { return links_.size(); }
  std::size_t up() const;
  // The smallest of those that are up; 4096: none is.
  std::uint32_t path_mtu() const;
  // One line on each that is not up: "memory2 (10.77.0.3) does not answer".
  std::string problems() const;
  std::uint64_t reconnects() const;

  std::size_t poll(Time now) override;
  Time next_deadline() const override;

 private:
  struct Node {
    std::string name;
    std::uint64_t incarnation = 0;
    std::unique_ptr<Link> link;
  };
  std::unique_ptr<Link> make_link(remote::NodeId id);
  void look_for_failures(Time now);

  nic::Connector& connector_;
  Options options_;
  memory::PdId domain_;
  rc::CompletionQueue* completions_;
  rc::RemoteRc memory_;
  std::map<remote::NodeId, Node> links_;
};

}  // namespace sluice::rack
