// Ordered lists: for each port, the peers it has a message with, the most urgent first. The paper's notification queues (a list a
// destination) and the arrays beside them (a list a source) are both of this kind.
//
// Invariant:  keys of a list rise; a peer stands in a list at most once.
// Limits:     as many entries a list as there are ports; all memory is taken at once.
// Source:     EDM §3.1.2. What takes hardware two cycles takes a binary search and a move of what lies behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace sluice::edm {

// Less is more urgent. Unique among all messages that wait.
using Key = std::uint64_t;

class OrderedLists {
 public:
  struct Entry {
    Key key = 0;
    std::uint16_t peer = 0;
  };

  explicit OrderedLists(std::uint32_t ports)
      : ports_(ports), keys_(std::size_t{ports} * ports), peers_(keys_.size()), sizes_(ports) {}

  std::uint32_t size(std::uint32_t list) const { return sizes_[list]; }
  Entry at(std::uint32_t list, std::uint32_t index) const { return {keys(list)[index], peers(list)[index]}; }

  void insert(std::uint32_t list, Key key, std::uint16_t peer) {
    SLUICE_CHECK(sizes_[list] < ports_);
    const std::uint32_t place = place_of(list, key);
    open(list, place, sizes_[list]++);
    keys(list)[place] = key;
    peers(list)[place] = peer;
  }

  // REQUIRES: that key is in the list.
  void erase(std::uint32_t list, Key key) {
    const std::uint32_t place = found(list, key);
    const std::uint32_t end = sizes_[list]--;
    std::copy(keys(list) + place + 1, keys(list) + end, keys(list) + place);
    std::copy(peers(list) + place + 1, peers(list) + end, peers(list) + place);
  }

  // A message has become more urgent. REQUIRES: the old key is in the list, and is not less than the new one.
  void promote(std::uint32_t list, Key from, Key to) {
    const std::uint32_t old = found(list, from);
    const std::uint16_t peer = peers(list)[old];
    std::uint32_t place = old;  // it seldom moves far
    for (; place > 0 && keys(list)[place - 1] > to; --place) {
      keys(list)[place] = keys(list)[place - 1];
      peers(list)[place] = peers(list)[place - 1];
    }
    keys(list)[place] = to;
    peers(list)[place] = peer;
  }

  // The most urgent entry whose peer is wanted; false: none.
  template <class Wanted>
  bool first(std::uint32_t list, const Wanted& wanted, Entry& out) const {
    const std::uint16_t* const begin = peers(list);
    const std::uint16_t* const end = begin + sizes_[list];
    const std::uint16_t* const place = std::find_if(begin, end, wanted);
    if (place == end) return false;
    out = {keys(list)[place - begin], *place};
    return true;
  }

 private:
  Key* keys(std::uint32_t list) { return &keys_[std::size_t{list} * ports_]; }
  const Key* keys(std::uint32_t list) const { return &keys_[std::size_t{list} * ports_]; }
  std::uint16_t* peers(std::uint32_t list) { return &peers_[std::size_t{list} * ports_]; }
  const std::uint16_t* peers(std::uint32_t list) const { return &peers_[std::size_t{list} * ports_]; }

  std::uint32_t place_of(std::uint32_t list, Key key) const {
    return static_cast<std::uint32_t>(std::lower_bound(keys(list), keys(list) + sizes_[list], key) - keys(list));
  }
  std::uint32_t found(std::uint32_t list, Key key) const {
    const std::uint32_t place = place_of(list, key);
    SLUICE_CHECK(place < sizes_[list] && keys(list)[place] == key);
    return place;
  }
  void open(std::uint32_t list, std::uint32_t place, std::uint32_t end) {
    std::copy_backward(keys(list) + place, keys(list) + end, keys(list) + end + 1);
    std::copy_backward(peers(list) + place, peers(list) + end, peers(list) + end + 1);
  }

  std::uint32_t ports_;
  std::vector<Key> keys_;
  std::vector<std::uint16_t> peers_;
  std::vector<std::uint32_t> sizes_;
};

}  // namespace sluice::edm
