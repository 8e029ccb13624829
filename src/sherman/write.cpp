// Changing the tree: entries, splits, separators, the root.
#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "sherman/client.h"

namespace sluice::sherman {

using remote::Status;
using remote::Task;
using Written = NodeLocks::Written;

namespace {

Outcome outcome_of(Space::Given given) {
  switch (given) {
    case Space::Given::kOk: return Outcome::kOk;
    case Space::Given::kNoSpace: return Outcome::kNoSpace;
    case Space::Given::kUnavailable: break;
  }
  return Outcome::kUnavailable;
}

}  // namespace

// A put, insert or erase under way.
struct Client::Mutation {
  Change how{};
  Key key = 0;
  ByteView value{};  // a FarValue, if it is far
  bool far = false;
  Time deadline{};
  NodePointer node{};  // the leaf to try
  bool descended = false;
  NodePointer spare{};    // for the right half of a split
  Separator separator{};  // of its split, to be added above leaves once the operation has its outcome
  FarValue written{};     // the value's block
  FarValue replaced{};    // that of the entry which the last try was to overwrite
  bool holds = false;     // and that block is in this operation's hand
  std::array<std::uint8_t, kFarBytes> far_bytes{};
  Outcome outcome = Outcome::kUnavailable;

  Entry entry() const { return {true, key, value, far}; }
  Step done(Outcome o) {
    outcome = o;
    return Step::kDone;
  }
};

Task<Outcome> Client::put(Key key, ByteView value) {
  ++c_.counters.puts;
  return change(Change::kPut, key, value);
}
Task<Outcome> Client::insert(Key key, ByteView value) {
  ++c_.counters.inserts;
  return change(Change::kInsert, key, value);
}
Task<Outcome> Client::erase(Key key) {
  ++c_.counters.erases;
  return change(Change::kErase, key, {});
}

Task<Outcome> Client::change(Change how, Key key, ByteView value) {
  if (value.size() > value_bytes()) co_return Outcome::kTooLong;
  tend();
  Mutation op{.how = how, .key = key, .value = value, .deadline = c_.now() + c_.config.timeout};
  if (value.size() > c_.geometry.value_bytes) {
    const Outcome there = co_await write_far(op);
    if (there != Outcome::kOk) co_return there;
  }
  co_await change_with(op);
  // Of the two blocks one is named by no entry now; with an unknown outcome, audits will find out which.
  if (op.outcome == Outcome::kUnknown) {
    if (op.written || op.replaced) ++c_.counters.blocks_doubtful;
    if (op.written) values_.named(op.written);
    if (op.holds) values_.doubtful(op.replaced);
  } else if (op.outcome == Outcome::kOk) {
    if (op.written) values_.named(op.written);
    if (op.holds) {
      values_.unnamed(op.replaced);
    } else if (op.replaced) {
      co_await values_.mark(op.replaced);
    }
  } else if (op.written) {
    values_.unnamed(op.written);
  }
  if (op.separator.child) co_await add_separator(1, op.separator, c_.now() + c_.config.timeout);
  co_return op.outcome;
}

Task<Outcome> Client::write_far(Mutation& op) {
  Space::Given given = co_await values_.write(op.key, op.value, op.deadline, op.written);
  for (bool worth = true; given == Space::Given::kNoSpace && worth;) {
    worth = co_await audit_for_space(op.deadline);
    if (worth) given = co_await values_.write(op.key, op.value, op.deadline, op.written);
  }
  if (given != Space::Given::kOk) co_return outcome_of(given);
  put_far_value(op.far_bytes, op.written);
  op.value = op.far_bytes;
  op.far = true;
  co_return Outcome::kOk;
}

Task<void> Client::change_with(Mutation& op) {
  Duration backoff{};
  Step step = Step::kAgain;
  while (step != Step::kDone && c_.now() < op.deadline) {
    if (step == Step::kSpace) {
      const Outcome space = co_await spare_node(op.deadline, op.spare);
      if (space != Outcome::kOk) {
        op.outcome = space;
        break;
      }
    }
    if (!op.node) {
      const bool found = co_await descend(op.key, 0, op.deadline, op.node);
      if (!found) break;
    }
    step = co_await change_leaf(op);
    if (step == Step::kAgain && !op.node && op.descended) co_await c_.back_off(backoff);
  }
  if (op.spare) space_.give_back(op.spare);
}

Task<Client::Step> Client::change_leaf(Mutation& op) {
  op.replaced = {};
  Buffer image(c_.buffers);
  Grip grip;
  const bool locked = co_await locks_.lock_and_read(op.node, image.bytes(), op.deadline, grip);
  if (!locked) co_return op.done(Outcome::kUnavailable);
  Leaf leaf(image.bytes(), c_.geometry);
  const bool whole = leaf.frame_whole(op.node);
  const NodeHeader header = leaf.header();
  if (whole && (op.key < header.low || op.key > header.last)) {
    co_await locks_.release(grip);
    if (!step_right(op.key, header, op.node, op.descended)) op.node = {};
    co_return Step::kAgain;
  }
  const Place place = whole ? find(leaf, op.key) : Place{.found = Found::kTorn, .entry = {}, .slot = 0};
  switch (place.found) {
    case Found::kTorn:
      ++c_.counters.damaged;
      co_await locks_.release(grip);
      op.node = {};
      op.descended = true;
      co_return Step::kAgain;
    case Found::kYes:
      if (op.how != Change::kInsert) {
        if (place.entry.far) op.replaced = far_value(place.entry);
        op.holds = op.replaced && values_.hold(op.replaced);
        const Entry entry = op.how == Change::kErase ? Entry{} : op.entry();
        co_return co_await write_entry(op, grip, leaf, place.slot, entry);
      }
      co_await locks_.release(grip);
      co_return op.done(Outcome::kExists);
    case Found::kNo: break;
  }
  if (op.how == Change::kErase) {
    co_await locks_.release(grip);
    co_return op.done(Outcome::kNotFound);
  }
  if (place.slot != Place::kNone) co_return co_await write_entry(op, grip, leaf, place.slot, op.entry());
  co_return co_await split_leaf(op, grip, leaf);
}

Task<Client::Step> Client::write_entry(Mutation& op, Grip& grip, Leaf& leaf, std::uint32_t slot, Entry entry) {
  leaf.set_entry(slot, entry);
  const Written written = co_await locks_.write_and_release(grip, leaf.offset(slot), leaf.entry_bytes(slot));
  if (written == Written::kNo) {
    if (op.holds) values_.named(op.replaced);
    op.holds = false;
    co_return Step::kAgain;
  }
  co_return op.done(written == Written::kYes ? Outcome::kOk : Outcome::kUnknown);
}

Task<Client::Step> Client::split_leaf(Mutation& op, Grip& grip, Leaf& leaf) {
  if (!op.spare) {
    co_await locks_.release(grip);
    co_return Step::kSpace;
  }
  std::vector<Entry> entries;
  entries.reserve(c_.geometry.leaf_slots() + 1);
  for (std::uint32_t i = 0; i < c_.geometry.leaf_slots(); ++i) {
    Entry entry;
    const bool whole = leaf.entry(i, entry);
    SLUICE_CHECK(whole && entry.used);  // find() has seen them all
    entries.push_back(entry);
  }
  entries.push_back(op.entry());
  std::ranges::sort(entries, {}, &Entry::key);
  const std::size_t middle = entries.size() / 2;
  const NodeHeader old = leaf.header();
  const Key split = entries[middle].key;

  Buffer right(c_.buffers);
  Leaf(right.bytes(), c_.geometry)
      .build({.version = 1, .low = split, .last = old.last, .sibling = old.sibling, .self = op.spare},
             std::span(entries).subspan(middle));
  Buffer left(c_.buffers);
  Leaf(left.bytes(), c_.geometry)
      .build({.version = old.version + 1, .low = old.low, .last = split - 1, .sibling = op.spare, .self = old.self},
             std::span(entries).first(middle));
  const bool fresh = co_await locks_.write_fresh(grip, op.spare, right.bytes());
  if (!fresh) {
    co_await locks_.release(grip);
    space_.give_back(op.spare);
    op.spare = {};
    co_return Step::kSpace;
  }
  const Written written = co_await locks_.write_and_release(grip, 0, left.bytes());
  if (written == Written::kNo) co_return Step::kAgain;
  if (written == Written::kUnknown) {
    ++c_.counters.nodes_doubtful;
    space_.doubt(op.spare);
    op.spare = {};
    co_return op.done(Outcome::kUnknown);
  }
  ++c_.counters.splits;
  op.separator = {split, op.spare};
  space_.place(op.spare);
  op.spare = {};
  co_return op.done(Outcome::kOk);
}

Task<Outcome> Client::spare_node(Time deadline, NodePointer& spare) {
  if (spare) co_return Outcome::kOk;
  Space::Given given = co_await space_.take(deadline, spare);
  for (bool worth = true; given == Space::Given::kNoSpace && worth;) {
    worth = co_await audit_for_space(deadline);
    if (worth) given = co_await space_.take(deadline, spare);
  }
  co_return outcome_of(given);
}

// --------------------------------------------------------------------------------------------------------- separators

void Client::note_missing(std::uint8_t level, Separator separator) {
  if (adding_ || c_.now() < add_from_) return;
  adding_ = true;
  c_.scheduler.spawn(add_missing(level, separator));
}

Task<void> Client::add_missing(std::uint8_t level, Separator separator) {
  const bool added = co_await add_separator(level, separator, c_.now() + c_.config.timeout);
  if (!added) add_from_ = c_.now() + c_.config.timeout;
  adding_ = false;
}

Task<bool> Client::add_separator(std::uint8_t level, Separator separator, Time deadline) {
  NodePointer spare;
  bool open = true;
  Duration backoff{};
  while (open && c_.now() < deadline) {
    if (!root_.node || root_.level < level) {
      const bool known = co_await read_root(deadline);
      if (!known) break;
    }
    if (root_.level < level) {
      const Outcome space = co_await spare_node(deadline, spare);
      if (space != Outcome::kOk) break;
      const bool grown = co_await grow(separator, level, deadline, spare);
      open = !grown;
      if (open) co_await c_.back_off(backoff);
      continue;
    }
    Separator split_off;
    const Step step = co_await add_to_node(level, separator, deadline, spare, split_off);
    if (step == Step::kSpace) {
      const Outcome space = co_await spare_node(deadline, spare);
      if (space != Outcome::kOk) break;
    } else if (step == Step::kAgain) {
      co_await c_.back_off(backoff);
    } else if (split_off.child) {
      separator = split_off;
      ++level;
    } else {
      open = false;
    }
  }
  if (spare) space_.give_back(spare);
  co_return !open;
}

Task<Client::Step> Client::add_to_node(std::uint8_t level, Separator separator, Time deadline, NodePointer& spare,
                                       Separator& split_off) {
  NodePointer node;
  const bool found = co_await descend(separator.key, level, deadline, node);
  if (!found) co_return Step::kAgain;
  Buffer image(c_.buffers);
  Grip grip;
  NodeHeader old;
  while (true) {
    const bool locked = co_await locks_.lock_and_read(node, image.bytes(), deadline, grip);
    if (!locked) co_return Step::kAgain;
    if (!internal_whole(image.bytes(), node)) {
      ++c_.counters.damaged;
      co_await locks_.release(grip);
      co_return Step::kAgain;
    }
    old = parse_header(image.bytes());
    if (separator.key <= old.last) break;
    ++c_.counters.walks;
    cache_->forget(static_cast<std::uint8_t>(level + 1), separator.key);
    co_await locks_.release(grip);
    node = old.sibling;
  }
  std::vector<Separator> all;
  all.reserve(std::size_t{old.count} + 1);
  bool there = separator.key == old.low;  // then its child is the leftmost
  for (std::uint32_t i = 0; i < old.count; ++i) {
    all.push_back(sherman::separator(image.bytes(), i));
    there = there || all.back().key == separator.key;
  }
  if (there) {
    cache_->put(image.bytes());
    co_await locks_.release(grip);
    co_return Step::kDone;
  }
  all.insert(std::ranges::upper_bound(all, separator.key, {}, &Separator::key), separator);
  NodeHeader header = old;
  ++header.version;
  Buffer changed(c_.buffers);
  if (all.size() <= c_.geometry.separators()) {
    header.count = static_cast<std::uint16_t>(all.size());
    build_internal(changed.bytes(), header, all);
    const Written written = co_await locks_.write_and_release(grip, 0, changed.bytes());
    if (written == Written::kYes) cache_->put(changed.bytes());
    co_return written == Written::kNo ? Step::kAgain : Step::kDone;
  }
  if (!spare) {
    co_await locks_.release(grip);
    co_return Step::kSpace;
  }
  // The middle separator goes up; its child becomes the leftmost of the right half.
  const std::size_t middle = all.size() / 2;
  const NodeHeader right{.version = 1,
                         .low = all[middle].key,
                         .last = old.last,
                         .sibling = old.sibling,
                         .self = spare,
                         .leftmost = all[middle].child,
                         .level = level,
                         .count = static_cast<std::uint16_t>(all.size() - middle - 1)};
  Buffer fresh(c_.buffers);
  build_internal(fresh.bytes(), right, std::span(all).subspan(middle + 1));
  header.last = all[middle].key - 1;
  header.sibling = spare;
  header.count = static_cast<std::uint16_t>(middle);
  build_internal(changed.bytes(), header, std::span(all).first(middle));
  const bool there_now = co_await locks_.write_fresh(grip, spare, fresh.bytes());
  if (!there_now) {
    co_await locks_.release(grip);
    space_.give_back(spare);
    spare = {};
    co_return Step::kSpace;
  }
  const Written written = co_await locks_.write_and_release(grip, 0, changed.bytes());
  if (written == Written::kNo) co_return Step::kAgain;
  if (written == Written::kUnknown) {
    ++c_.counters.nodes_doubtful;
    space_.doubt(spare);
    spare = {};
    co_return Step::kDone;  // whoever has to walk there adds what is missing above
  }
  ++c_.counters.splits;
  cache_->put(changed.bytes());
  cache_->put(fresh.bytes());
  split_off = {all[middle].key, spare};
  space_.place(spare);
  spare = {};
  co_return Step::kDone;
}

// A root above the one there is, which has been split. False: somebody else was first, or it is out of reach.
Task<bool> Client::grow(Separator separator, std::uint8_t level, Time deadline, NodePointer& spare) {
  if (!root_.node || root_.level + 1 != level) co_return false;  // another operation of this client has moved on
  const Root old = root_;
  const Root grown{spare, level};
  Buffer image(c_.buffers);
  build_internal(image.bytes(), {.version = 1, .self = spare, .leftmost = old.node, .level = level, .count = 1},
                 std::span(&separator, 1));
  Status status = Status::kUnknown;
  while (status != Status::kOk && c_.now() < deadline) {
    status = co_await c_.write(c_.map.at(spare), image.bytes());
    if (status == Status::kOk) break;
    ++c_.counters.failures;
    co_await c_.outlive();
  }
  if (status != Status::kOk) co_return false;
  const auto swapped = co_await c_.swap(c_.map.root(), old.word(), grown.word());
  root_ = {};
  bool ours = swapped.status == Status::kOk && swapped.prior == old.word();
  if (swapped.status != Status::kOk) {
    ++c_.counters.failures;
    co_await c_.outlive();
    const bool known = co_await read_root(deadline);
    ours = known && root_.node == spare;
    if (!known || (!ours && root_.word() != old.word())) {
      // It may have been the root for a while and still lead to others.
      ++c_.counters.nodes_doubtful;
      space_.doubt(spare);
      spare = {};
      co_return false;
    }
  }
  if (!ours) co_return false;
  ++c_.counters.roots;
  root_ = grown;
  cache_->put(image.bytes());
  space_.place(spare);
  spare = {};
  co_return true;
}

}  // namespace sluice::sherman
