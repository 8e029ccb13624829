// Who is behind each port, for a label of metrics: it changes when a node comes, goes or moves, not with what was heard lately.
//
// Invariant:  a node that was seen at a port stays with it, silent or not, until it is seen at another, the port is gone, or the directory
//             knows the node no more; one that is gone there stays while its address is still known at the port.
//             Clients, which come and go all the time, are named only where no memory node or metadata server is.
// Threads:    any.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "rack/directory/directory.h"
#include "rack/switch/switch_ports.h"

namespace sluice::rack {

class PortLabels {
 public:
  static constexpr std::size_t kMostNamed = 4;  // then "..."

  // `nodes`: null while the directory does not answer; then what was known last holds.
  SwitchReport::Labels look(const SwitchReport& report, const Snapshot* nodes);

 private:
  struct Node {
    std::string name;
    bool is_client = false;
    bool is_gone = false;
  };
  void take(const Snapshot& nodes);
  void place(const SwitchReport& report);

  std::mutex mutex_;
  std::map<wire::MacAddress, Node> nodes_;
  std::map<wire::MacAddress, switching::PortNumber> places_;  // of those in nodes_
};

}  // namespace sluice::rack
