// Finding nodes, and reading them until they can be believed.
#include "base/check.h"
#include "sherman/client.h"

namespace sluice::sherman {

using remote::Status;
using remote::Task;

Task<bool> Client::read_root(Time deadline) {
  Duration backoff{};
  while (c_.now() < deadline) {
    std::array<std::uint8_t, 8> word;
    const Status status = co_await c_.read(c_.map.root(), word);
    if (status == Status::kOk) {
      root_ = Root::of(load_le<std::uint64_t>(word.data()));
      co_return true;
    }
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return false;
}

Task<bool> Client::descend(Key key, std::uint8_t level, Time deadline, NodePointer& node) {
  bool fresh = false;  // what has led to the node was read just now
  if (!root_.node) {
    const bool known = co_await read_root(deadline);
    if (!known) co_return false;
    fresh = true;
  }
  std::uint8_t at = root_.level;
  node = root_.node;
  bool from_root = true;
  IndexCache::Child child;
  for (std::uint8_t above = static_cast<std::uint8_t>(level + 1); above <= root_.level && from_root; ++above) {
    if (!cache_->find_child(above, key, child)) continue;
    node = child.node;
    at = static_cast<std::uint8_t>(above - 1);
    from_root = false;
    fresh = false;
    if (level == 0 && above == 1) ++c_.counters.cache_hits;
  }
  if (at <= level) co_return true;
  Buffer image(c_.buffers);
  while (at > level) {
    const bool read = co_await read_internal(node, image.bytes(), deadline);
    if (!read) co_return false;
    const NodeHeader header = parse_header(image.bytes());
    if (key > header.last) {
      ++c_.counters.walks;
      const auto above = static_cast<std::uint8_t>(at + 1);
      if (!fresh) {  // it may know by now
        if (from_root) root_ = {};
        cache_->forget(above, key);
        const bool found = co_await descend(key, level, deadline, node);
        co_return found;
      }
      note_missing(above, {header.last + 1, header.sibling});
      node = header.sibling;
      continue;
    }
    from_root = false;
    fresh = true;
    cache_->put(image.bytes());
    node = child_for(image.bytes(), key);
    --at;
  }
  co_return true;
}

Task<bool> Client::read_internal(NodePointer node, MutableBytes image, Time deadline) {
  Duration backoff{};
  for (std::uint32_t torn = 0; c_.now() < deadline;) {
    const Status status = co_await c_.read(c_.map.at(node), image);
    if (status == Status::kOk) {
      if (internal_whole(image, node)) co_return true;
      ++c_.counters.torn;
      ++torn;
    } else {
      ++c_.counters.failures;
    }
    if (torn >= c_.config.torn_reads) {
      torn = 0;
      ++c_.counters.locked_reads;
      Grip grip;
      const bool locked = co_await locks_.lock_and_read(node, image, deadline, grip);
      if (!locked) co_return false;
      co_await locks_.release(grip);
      if (internal_whole(image, node)) co_return true;
      ++c_.counters.damaged;
    }
    co_await c_.back_off(backoff);
  }
  co_return false;
}

Client::Place Client::find(const Leaf& leaf, Key key) const {
  Place place{.found = Found::kNo, .entry = {}, .slot = Place::kNone};
  bool torn = false;
  for (std::uint32_t i = 0; i < c_.geometry.leaf_slots(); ++i) {
    Entry entry;
    if (!leaf.entry(i, entry)) {
      torn = true;
    } else if (!entry.used) {
      if (place.slot == Place::kNone) place.slot = i;
    } else if (entry.key == key) {
      return {.found = Found::kYes, .entry = entry, .slot = i};
    }
  }
  if (torn) place.found = Found::kTorn;
  return place;
}

bool Client::believable(NodePointer node, MutableBytes image, std::optional<Key> only) const {
  const Leaf leaf(image, c_.geometry);
  if (!leaf.frame_whole(node)) return false;
  if (only) return find(leaf, *only).found != Found::kTorn;
  for (std::uint32_t i = 0; i < c_.geometry.leaf_slots(); ++i) {
    Entry entry;
    if (!leaf.entry(i, entry)) return false;
  }
  return true;
}

Task<bool> Client::read_leaf(NodePointer node, MutableBytes image, Time deadline, std::optional<Key> only,
                             First first) {
  Duration backoff{};
  bool read = first == First::kJudge;
  for (std::uint32_t torn = 0; c_.now() < deadline;) {
    if (!read) {
      const Status status = co_await c_.read(c_.map.at(node), image);
      read = status == Status::kOk;
    }
    if (read) {
      if (believable(node, image, only)) co_return true;
      ++c_.counters.torn;
      ++torn;
      read = false;
    } else {
      ++c_.counters.failures;
    }
    if (torn >= c_.config.torn_reads) {
      torn = 0;
      ++c_.counters.locked_reads;
      Grip grip;
      const bool locked = co_await locks_.lock_and_read(node, image, deadline, grip);
      if (!locked) co_return false;
      co_await locks_.release(grip);
      if (believable(node, image, only)) co_return true;
      ++c_.counters.damaged;
    }
    co_await c_.back_off(backoff);
  }
  co_return false;
}

bool Client::step_right(Key key, const NodeHeader& leaf, NodePointer& node, bool& descended) {
  ++c_.counters.walks;
  if (descended && key > leaf.last) {
    note_missing(1, {leaf.last + 1, leaf.sibling});
    node = leaf.sibling;
    return true;
  }
  // Its parent has been split or has got a separator that is not in the cache.
  cache_->forget(1, key);
  if (root_.level == 0) root_ = {};
  descended = true;
  return false;
}

}  // namespace sluice::sherman
