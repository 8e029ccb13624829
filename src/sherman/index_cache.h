// Internal nodes that a client has read, found by the keys they cover. What they say may be old: a leaf says itself what it holds.
//
// Invariant:  of one level, the nodes cached begin at different keys; a newer read of a node replaces the older.
// Limits:     `capacity` nodes; of two drawn by chance the one not used for longer goes.
// Threads:    the client's.
// Source:     Sherman (SIGMOD 2022) §4.2.3: level-1 nodes evicted by power of two choices, the levels above kept.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/rng.h"
#include "sherman/layout.h"

namespace sluice::sherman {

class IndexCache {
 public:
  IndexCache(std::size_t capacity, Rng rng) : capacity_(capacity < 2 ? 2 : capacity), rng_(rng) {}

  struct Child {
    NodePointer node;
    Key low = 0;  // what the parent says that it covers
    Key last = kLastKey;
  };
  // REQUIRES: whole and internal.
  void put(ByteView internal);
  // By a node of this level that covers the key.
  bool find_child(std::uint8_t level, Key key, Child& child);
  void forget(std::uint8_t level, Key key);
  std::size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    NodeHeader header;
    std::vector<Separator> separators;
    std::uint64_t used = 0;
  };
  using Place = std::pair<std::uint8_t, Key>;  // level, low
  Node* covering(std::uint8_t level, Key key);
  void evict_one();
  void remove(std::size_t index);

  std::size_t capacity_;
  Rng rng_;
  std::uint64_t clock_ = 0;
  std::vector<Node> nodes_;
  std::map<Place, std::size_t> places_;  // index in nodes_
};

}  // namespace sluice::sherman
