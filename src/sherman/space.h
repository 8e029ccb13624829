// Memory for tree nodes, and for long values: chunks of the memory nodes' heaps, claimed one-sided, cut up by the client that claimed them.
//
// Claim:      CAS of the chunk's owner word, 0 -> {client, how manieth}; an unknown outcome is waited out and read. Chunks are claimed on
//             the memory nodes in turn, beginning with the client's own.
// Limits:     what is left of a chunk when its client goes is not used by anybody else (README.md).
// Threads:    the client's.
// Source:     Sherman (SIGMOD 2022) §4.2.4: two-stage allocation; its first stage is a call to the memory node's processor, ours is a CAS.
#pragma once

#include <deque>
#include <vector>

#include "sherman/connection.h"

namespace sluice::sherman {

class Space {
 public:
  // Pieces of so many bytes; 0: as long as the tree's nodes.
  explicit Space(Connection& connection, std::uint32_t piece = 0) : c_(connection), piece_(piece) {}

  enum class Given : std::uint8_t { kOk, kNoSpace, kUnavailable };
  remote::Task<Given> take(Time deadline, NodePointer& node);
  // What surely nobody can reach; it is used again when nothing is under way to it any more.
  void give_back(NodePointer node) { returned_.push_back({node, c_.now() + c_.config.flight}); }

 private:
  remote::Task<Given> claim(Time deadline);
  remote::Task<Given> claim_on(std::uint32_t node, Time deadline);
  bool cut(NodePointer& node);
  std::uint32_t piece() const { return piece_ != 0 ? piece_ : c_.geometry.node_bytes; }

  struct Returned {
    NodePointer node;
    Time from;
  };
  Connection& c_;
  std::uint32_t piece_;
  NodePointer next_;  // the rest of the chunk in hand
  std::uint32_t left_ = 0;
  std::deque<Returned> returned_;
  std::vector<std::uint32_t> hints_;  // by memory node: chunks before this are taken
  std::uint32_t turn_ = 0;
  bool claiming_ = false;
};

}  // namespace sluice::sherman
