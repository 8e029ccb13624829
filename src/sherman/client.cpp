#include "sherman/client.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::sherman {

using remote::Operation;
using remote::Status;
using remote::Task;

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kNotFound: return "not found";
    case Outcome::kExists: return "exists";
    case Outcome::kNoSpace: return "no space";
    case Outcome::kUnavailable: return "unavailable";
    case Outcome::kTooLong: return "too long";
    case Outcome::kUnknown: return "unknown";
  }
  return "?";
}

// ----------------------------------------------------------------------------------------------------- create and join

namespace {

constexpr remote::RemoteAddress kNowhere{remote::NodeId(~std::uint32_t{0}), {}, 0};

MutableBytes superblock_of(std::vector<std::uint8_t>& superblocks, std::size_t node) {
  return MutableBytes(superblocks).subspan(node * kSuperblockRead, kSuperblockRead);
}

// kOk: nobody else makes a tree there.
Task<Outcome> claim_memory(remote::RemoteMemory& memory, std::span<const MemoryNode> nodes, Maker maker) {
  const Time give_up = memory.scheduler().now() + kMaking;
  const remote::RemoteAddress heap = nodes[0].heap;
  std::vector<std::uint8_t> superblocks(nodes.size() * kSuperblockRead);
  while (true) {
    // The first one's after the others': whoever has written these has claimed that before, and it says so.
    std::vector<Operation> reads;
    for (std::size_t i = 1; i < nodes.size(); ++i)
      reads.push_back(remote::read_operation(nodes[i].heap, superblock_of(superblocks, i)));
    if (!reads.empty()) co_await memory.all(reads);
    const MutableBytes first = superblock_of(superblocks, 0);
    const Status status = co_await memory.read(heap, first);
    const bool all = std::ranges::all_of(reads, [](const Operation& o) { return o.status == Status::kOk; });
    if (status != Status::kOk || !all) co_return Outcome::kUnavailable;
    if (superblock_taken(first)) co_return Outcome::kExists;
    auto holder = load_le<std::uint64_t>(first.data() + kMakerOffset);
    for (std::size_t i = 1; i < nodes.size() && (holder == 0 || holder == maker.word()); ++i) {
      Superblock its;
      const bool own = parse_superblock(superblock_of(superblocks, i), its) && its.tree_id == maker.number;
      if (!own && superblock_taken(superblock_of(superblocks, i))) co_return Outcome::kExists;
    }
    if (holder == 0) {
      const auto claimed = co_await memory.compare_and_swap(heap + kMakerOffset, 0, maker.word());
      if (claimed.status != Status::kOk) co_return Outcome::kUnavailable;
      holder = claimed.prior == 0 ? maker.word() : claimed.prior;
    }
    if (holder == maker.word()) co_return Outcome::kOk;
    if (memory.scheduler().now() >= give_up) co_return Outcome::kUnknown;
    co_await memory.scheduler().sleep_for(kMaking / 200);
  }
}

}  // namespace

Task<Outcome> create_tree(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, Geometry geometry, Maker maker,
                          Duration flight) {
  if (*geometry.refusal() != '\0' || nodes.empty() || nodes.size() > 0xFFFF) co_return Outcome::kTooLong;
  const MemoryMap map(nodes, geometry);
  if (map.chunks(0) < 1) co_return Outcome::kNoSpace;
  const Outcome claimed = co_await claim_memory(memory, nodes, maker);
  if (claimed != Outcome::kOk) co_return claimed;
  // The first leaf has the first chunk for itself: the client that fills it cuts up chunks of its own.
  const NodePointer first = map.start_of_chunk(0, 0);
  std::vector<std::uint8_t> image(geometry.node_bytes);
  Leaf(image, geometry).build({.version = 1, .self = first}, {});
  std::array<std::uint8_t, 8> word;
  store_le(word.data(), kFounder.raw);
  Status status = co_await memory.write(map.owner_of_chunk(0, 0), word);
  if (status == Status::kOk) status = co_await memory.write(map.at(first), image);
  store_le(word.data(), Root{first, 0}.word());
  if (status == Status::kOk) status = co_await memory.write(nodes[0].heap + kRootOffset, word);
  // The maker stays: whoever read the superblock before this cannot become it. The first one's makes it a tree, so it comes last.
  std::array<std::uint8_t, kMakerOffset> superblock;
  for (std::uint32_t i = map.nodes(); i-- > 0 && status == Status::kOk;) {
    put_superblock(superblock, {.geometry = geometry,
                                .nodes = map.nodes(),
                                .index = i,
                                .tree_id = maker.number,
                                .heap_bytes = nodes[i].heap_bytes});
    status = co_await memory.write(nodes[i].heap, superblock);
  }
  if (status == Status::kOk) co_return Outcome::kOk;
  // Or it would come over what clients have written into the tree of the next attempt.
  if (status == Status::kUnknown) co_await memory.scheduler().sleep_for(flight);
  co_return Outcome::kUnavailable;
}

Client::Client(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, const ClientConfig& config, Rng rng)
    : c_(memory, config, rng), nodes_(std::move(nodes)), locks_(c_), space_(c_), values_(c_) {}

Client::Client(remote::RemoteMemory& memory, Client& sibling, Rng rng)
    : c_(memory, sibling.c_.config, rng),
      nodes_(sibling.nodes_),
      locks_(c_, sibling.locks_),
      space_(c_),
      values_(c_),
      cache_(sibling.cache_) {
  SLUICE_CHECK(cache_ != nullptr);
}

// kOk: it is there, whole, and its nodes are in their order. kUnavailable: not all of it is in reach. kUnknown: some memory has nothing of it.
Task<Outcome> Client::find_tree() {
  unseen_.clear();
  std::vector<std::uint8_t> superblocks(nodes_.size() * kSuperblockRead);
  std::vector<Operation> reads;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    reads.push_back(remote::read_operation(nodes_[i].heap, superblock_of(superblocks, i)));
  co_await c_.all(reads);
  std::size_t found = 0;
  std::size_t unreached = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (reads[i].status != Status::kOk) {
      ++unreached;
      continue;
    }
    Superblock its;
    if (!parse_superblock(superblock_of(superblocks, i), its)) continue;
    // Another tree's, or in another place of this one: what lay there would be looked for elsewhere.
    const bool same = found == 0 || (its.tree_id == tree_id_ && its.geometry == c_.geometry);
    if (its.nodes != nodes_.size() || its.index != i || !same) co_return Outcome::kNotFound;
    c_.geometry = its.geometry;
    tree_id_ = its.tree_id;
    ++found;
    // Less than the tree has there.
    if (nodes_[i].heap_bytes < its.heap_bytes) co_return Outcome::kNotFound;
    nodes_[i].heap_bytes = its.heap_bytes;
  }
  if (unreached != 0) co_return Outcome::kUnavailable;
  if (found == nodes_.size()) co_return Outcome::kOk;
  const bool in_making = load_le<std::uint64_t>(superblocks.data() + kMakerOffset) != 0;
  Superblock first;
  const bool made = parse_superblock(superblock_of(superblocks, 0), first);
  co_return found == 0 || (in_making && !made) ? Outcome::kNotFound : Outcome::kUnknown;
}

Task<Outcome> Client::join() {
  SLUICE_CHECK(c_.memory.capabilities().ordered);
  const Time deadline = c_.now() + c_.config.timeout;
  Duration backoff{};
  bool lacked = false;
  while (c_.now() < deadline) {
    const Outcome found = co_await find_tree();
    if (found == Outcome::kNotFound) co_return found;
    // Seen once, it may have been on its way to being made; seen twice, one after the other, it has lost a part.
    if (found == Outcome::kUnknown && lacked) co_return Outcome::kUnavailable;
    lacked = found == Outcome::kUnknown;
    if (found == Outcome::kOk) {
      // One number lost with a connection is no loss.
      const auto number = co_await c_.memory.fetch_and_add(nodes_[0].heap + kClientOffset, 1);
      if (number.status == Status::kOk && unseen_.empty()) {
        if (number.prior >= kMostClients) co_return Outcome::kNoSpace;
        c_.client = static_cast<std::uint32_t>(number.prior) + 1;
        c_.map = MemoryMap(nodes_, c_.geometry);
        c_.buffers = std::make_shared<Buffers>(c_.geometry.node_bytes);
        values_.open();
        if (!cache_) cache_ = std::make_shared<IndexCache>(c_.config.cached_nodes, c_.rng.fork("cache"));
        co_return Outcome::kOk;
      }
    }
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return Outcome::kUnavailable;
}

void Client::moved(std::uint32_t node, const MemoryNode& memory) {
  MemoryNode& known = nodes_[node];
  if (known.heap == memory.heap && known.locks == memory.locks) return;
  if (joined() && memory.heap_bytes < known.heap_bytes) return;
  known = memory;
  unseen_.insert(node);
  if (!joined()) return;
  // Whoever goes on with the old key breaks the connection that the new memory is to be looked into with.
  c_.map.moved(node, kNowhere, kNowhere);
  tend();
}

void Client::tend() {
  if (unseen_.empty() || looking_) return;
  looking_ = true;
  c_.scheduler.spawn(look_into_moved_memory());
}

Task<void> Client::look_into_moved_memory() {
  const Time give_up = c_.now() + c_.config.timeout;
  while (!unseen_.empty() && c_.now() < give_up) {
    const auto all = unseen_;
    for (const std::uint32_t node : all) {
      const MemoryNode there = nodes_[node];
      std::array<std::uint8_t, kSuperblockRead> bytes;
      const Status status = co_await c_.read(there.heap, bytes);
      if (status != Status::kOk || nodes_[node].heap != there.heap) continue;
      unseen_.erase(node);
      // Nothing ever takes the place of lost memory in a tree. So what has this superblock was never lost.
      Superblock its;
      const bool same = parse_superblock(bytes, its) && its.tree_id == tree_id_ && its.index == node;
      if (same && its.geometry == c_.geometry) c_.map.moved(node, there.heap, there.locks);
    }
    if (!unseen_.empty()) co_await c_.scheduler.sleep_for(c_.config.flight / 4);
  }
  looking_ = false;
}

// ------------------------------------------------------------------------------------------------------------ reading

Task<GetResult> Client::get(Key key, MutableBytes into) {
  ++c_.counters.gets;
  tend();
  const Time deadline = c_.now() + c_.config.timeout;
  Buffer image(c_.buffers);
  NodePointer node;
  bool descended = false;
  Duration backoff{};
  while (true) {
    if (!node) {
      const bool found = co_await descend(key, 0, deadline, node);
      if (!found) co_return GetResult{Outcome::kUnavailable, 0};
    }
    const bool read = co_await read_leaf(node, image.bytes(), deadline, key, First::kRead);
    if (!read) co_return GetResult{Outcome::kUnavailable, 0};
    const Leaf leaf(image.bytes(), c_.geometry);
    const NodeHeader header = leaf.header();
    if (key < header.low || key > header.last) {
      if (!step_right(key, header, node, descended)) node = {};
      continue;
    }
    const Place place = find(leaf, key);
    if (place.found != Found::kYes) co_return GetResult{Outcome::kNotFound, 0};
    if (place.entry.far) {
      const FarValue far = far_value(place.entry);
      SLUICE_CHECK(into.size() >= far.length);
      ++c_.counters.far_reads;
      const Values::Seen seen = co_await values_.read(key, far, into, deadline);
      if (seen == Values::Seen::kYes) co_return GetResult{Outcome::kOk, far.length};
      if (seen == Values::Seen::kUnavailable) co_return GetResult{Outcome::kUnavailable, 0};
      ++c_.counters.far_changed;  // so has the entry
      co_await c_.back_off(backoff);
      continue;
    }
    SLUICE_CHECK(into.size() >= place.entry.value.size());
    std::ranges::copy(place.entry.value, into.begin());
    co_return GetResult{Outcome::kOk, place.entry.value.size()};
  }
}

// A leaf that a scan has asked for.
struct Client::Ahead {
  explicit Ahead(const std::shared_ptr<Buffers>& buffers) : image(buffers) {}
  NodePointer node;
  bool read = false;
  Buffer image;
};

Task<std::size_t> Client::read_ahead(NodePointer node, Key from, std::size_t wanted,
                                     std::span<std::unique_ptr<Ahead>> ahead) {
  std::vector<Operation> operations;
  operations.reserve(ahead.size());
  IndexCache::Child child{.node = node};
  bool known = cache_->find_child(1, from, child) && child.node == node;
  child.node = node;
  while (operations.size() < std::min(wanted, ahead.size())) {
    auto& next = *ahead[operations.size()];
    next.node = child.node;
    operations.push_back(remote::read_operation(c_.map.at(child.node), next.image.bytes()));
    if (!known || child.last == kLastKey) break;
    known = cache_->find_child(1, child.last + 1, child);
    if (!known) break;
  }
  co_await c_.chain(operations);
  for (std::size_t i = 0; i < operations.size(); ++i) ahead[i]->read = operations[i].status == Status::kOk;
  co_return operations.size();
}

Task<bool> Client::deliver(const Leaf& leaf, Key from, std::size_t count, ScanSink& sink, std::size_t& found) {
  std::vector<Entry> entries;
  for (std::uint32_t i = 0; i < c_.geometry.leaf_slots(); ++i) {
    Entry entry;
    if (leaf.entry(i, entry) && entry.used && entry.key >= from) entries.push_back(entry);
  }
  std::ranges::sort(entries, {}, &Entry::key);
  // A key that left one slot for another amid the READ is seen in both; either was there at some time of it.
  const auto same = [](const Entry& a, const Entry& b) { return a.key == b.key; };
  entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
  const std::size_t most = found + count;
  std::vector<Values::Wanted> wanted;
  std::vector<std::uint8_t> value;
  // As many at a time as are wanted still: some may prove to be gone.
  for (std::span<const Entry> left = entries; !left.empty() && found < most;) {
    const auto some = left.first(std::min(most - found, left.size()));
    left = left.subspan(some.size());
    wanted.clear();
    for (const auto& entry : some) {
      if (entry.far) wanted.push_back({.key = entry.key, .far = far_value(entry)});
    }
    c_.counters.far_reads += wanted.size();
    co_await values_.read_some(wanted);
    auto next = wanted.begin();
    for (const auto& entry : some) {
      const Values::Wanted* const far = entry.far ? &*next++ : nullptr;
      if (far == nullptr || far->there) {
        sink.on_pair(entry.key, far == nullptr ? entry.value : far->value());
        ++found;
        continue;
      }
      ++c_.counters.far_changed;
      value.resize(value_bytes());
      const GetResult now = co_await get(entry.key, value);
      if (now.outcome == Outcome::kNotFound) continue;
      if (now.outcome != Outcome::kOk) co_return false;
      sink.on_pair(entry.key, ByteView(value).first(now.length));
      ++found;
    }
  }
  co_return true;
}

Task<ScanResult> Client::scan(Key first, std::size_t count, ScanSink& sink) {
  ++c_.counters.scans;
  tend();
  Time deadline = c_.now() + c_.config.timeout;  // of the next leaf
  std::vector<std::unique_ptr<Ahead>> ahead;
  const std::size_t half_leaf = std::max<std::size_t>(1, c_.geometry.leaf_slots() / 2);
  const std::size_t most = std::clamp<std::size_t>(count / half_leaf + 1, 1, std::max(1u, c_.config.scan_ahead));
  for (std::size_t i = 0; i < most; ++i) ahead.push_back(std::make_unique<Ahead>(c_.buffers));
  std::size_t found = 0;
  NodePointer node;
  bool descended = false;
  while (found < count) {
    if (!node) {
      const bool known = co_await descend(first, 0, deadline, node);
      if (!known) co_return ScanResult{Outcome::kUnavailable, found};
    }
    const std::size_t here = co_await read_ahead(node, first, (count - found) / half_leaf + 1, ahead);
    for (std::size_t i = 0; i < here && found < count; ++i) {
      Ahead& one = *ahead[i];
      if (one.node != node) break;  // the cache did not know of a leaf in between
      const bool read =
          co_await read_leaf(node, one.image.bytes(), deadline, std::nullopt, one.read ? First::kJudge : First::kRead);
      if (!read) co_return ScanResult{Outcome::kUnavailable, found};
      const Leaf leaf(one.image.bytes(), c_.geometry);
      const NodeHeader header = leaf.header();
      if (first < header.low || first > header.last) {
        if (!step_right(first, header, node, descended)) node = {};
        break;
      }
      const bool delivered = co_await deliver(leaf, first, count - found, sink, found);
      if (!delivered) co_return ScanResult{Outcome::kUnavailable, found};
      if (header.last == kLastKey) co_return ScanResult{Outcome::kOk, found};
      first = header.last + 1;
      node = header.sibling;
      deadline = c_.now() + c_.config.timeout;
    }
  }
  co_return ScanResult{Outcome::kOk, found};
}

}  // namespace sluice::sherman
