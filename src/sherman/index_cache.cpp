#include "sherman/index_cache.h"

#include <algorithm>

namespace sluice::sherman {

IndexCache::Node* IndexCache::covering(std::uint8_t level, Key key) {
  auto it = places_.upper_bound({level, key});
  if (it == places_.begin()) return nullptr;
  --it;
  if (it->first.first != level) return nullptr;
  Node& node = nodes_[it->second];
  return key <= node.header.last ? &node : nullptr;
}

void IndexCache::put(ByteView internal) {
  const NodeHeader header = parse_header(internal);
  const Place place{header.level, header.low};
  auto it = places_.find(place);
  if (it != places_.end() && nodes_[it->second].header.version > header.version) return;
  if (it == places_.end()) {
    if (nodes_.size() >= capacity_) evict_one();
    it = places_.emplace(place, nodes_.size()).first;
    nodes_.emplace_back();
  }
  Node& node = nodes_[it->second];
  node.header = header;
  node.separators.clear();
  for (std::uint32_t i = 0; i < header.count; ++i) node.separators.push_back(separator(internal, i));
  node.used = ++clock_;
}

bool IndexCache::find_child(std::uint8_t level, Key key, Child& child) {
  Node* const node = covering(level, key);
  if (node == nullptr) return false;
  node->used = ++clock_;
  const auto& s = node->separators;
  const auto after = std::ranges::upper_bound(s, key, {}, &Separator::key);
  const bool leftmost = after == s.begin();
  child = {.node = leftmost ? node->header.leftmost : std::prev(after)->child,
           .low = leftmost ? node->header.low : std::prev(after)->key,
           .last = after == s.end() ? node->header.last : after->key - 1};
  return true;
}

void IndexCache::forget(std::uint8_t level, Key key) {
  const Node* const node = covering(level, key);
  if (node != nullptr) remove(static_cast<std::size_t>(node - nodes_.data()));
}

void IndexCache::evict_one() {
  // Leaves' parents go first: there are many of them, and those above lead to them all.
  std::size_t victim = rng_.below(nodes_.size());
  const std::size_t other = rng_.below(nodes_.size());
  const auto worth = [this](std::size_t i) { return std::pair(nodes_[i].header.level, nodes_[i].used); };
  if (worth(other) < worth(victim)) victim = other;
  remove(victim);
}

void IndexCache::remove(std::size_t index) {
  places_.erase({nodes_[index].header.level, nodes_[index].header.low});
  if (index + 1 != nodes_.size()) {
    nodes_[index] = std::move(nodes_.back());
    places_[{nodes_[index].header.level, nodes_[index].header.low}] = index;
  }
  nodes_.pop_back();
}

}  // namespace sluice::sherman
