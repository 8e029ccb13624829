// Exports: what memory nodes say that they export, and what they have refused all the same. An operation that a node refuses costs the connection, and
// everybody on it a new one, so an engine asks here first.
//
// Life:       set() as often as the directory changes -> denies() a region of a block, or not.
// Limits:     nothing is known of a node that is not among them: its regions are not denied.
// Threads:    one owner, for the engines of one pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cowbird/layout.h"
#include "remote/remote_memory.h"

namespace sluice::cowbird {

class Exports {
 public:
  // What was refused may be tried again once anything has changed.
  void set(std::vector<Region> all) {
    if (all == all_) return;
    all_ = std::move(all);
    refused_.clear();
    ++generation_;
  }
  // A memory node has refused an operation on so many bytes. That says something of the export that they lie in, and nothing if they lie in none.
  void refused(const remote::RemoteAddress& place, std::uint64_t length) {
    const Region asked{.node = place.node.value, .key = place.key.value, .base = place.address, .length = length};
    if (!is_exported(asked) || is_refused(asked.node, asked.key)) return;
    refused_.push_back(asked);
    ++generation_;
  }
  // Another number when denies() may say something else.
  std::uint64_t generation() const { return generation_; }
  bool denies(const Region& region) const {
    if (is_refused(region.node, region.key)) return true;
    return is_known(region.node) && !is_exported(region);
  }

 private:
  // All of it, by one of them.
  bool is_exported(const Region& region) const {
    return std::ranges::any_of(all_, [&](const Region& one) {
      return one.node == region.node && one.key == region.key && region.base >= one.base &&
             region.length <= one.length && region.base - one.base <= one.length - region.length;
    });
  }
  bool is_known(std::uint32_t node) const {
    return std::ranges::any_of(all_, [&](const Region& r) { return r.node == node; });
  }
  bool is_refused(std::uint32_t node, std::uint32_t key) const {
    return std::ranges::any_of(refused_, [&](const Region& r) { return r.node == node && r.key == key; });
  }

  std::vector<Region> all_;
  std::vector<Region> refused_;
  std::uint64_t generation_ = 0;
};

}  // namespace sluice::cowbird
