// Sherman's client: a B+tree in passive memory. get, put, insert, erase and scan, one-sided.
//
// get:        the index cache names the leaf; READ it; believe what its versions and checks allow; it says itself which keys it covers.
// Long values: as get and put, with one READ or WRITE more, of a block (values.h).
// put:        lock the leaf and READ it in one chain; WRITE one entry and the unlock in another: two round trips. A full leaf is split: the
//             right half goes to a new node, then the left half, the new sibling pointer and the unlock go out as one.
// Parents:    the separator follows under the parent's own lock, after the leaf's. Until it is there (for ever, if its client dies), the sibling pointer
//             leads to the new node; who then has to walk although the parent was read afresh, reading or writing, sees to it that the separator is added
//             meanwhile. Of all levels alike; above the root, by a root more.
// Never:      nodes that the tree leads to are not merged and not freed, so a pointer to one stays right for ever.
// Life:       create_tree() once; `co_await join()`; any number of operations at once. Who leaves says so (leave()); who has died is cleaned up after by recover().
// Errors:     Outcome. kUnknown: the write-back was submitted and its outcome could not be found out within the lease of the lock.
// Threads:    one owner, the thread of the RemoteMemory's scheduler. Operations, and what they leave to be done meanwhile (separators, memory that has
//             moved), hold on to the Client: it outlives them, or their scheduler is destroyed without running again.
// Source:     README.md; Sherman (SIGMOD 2022).
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "sherman/connection.h"
#include "sherman/index_cache.h"
#include "sherman/locks.h"
#include "sherman/space.h"
#include "sherman/values.h"

namespace sluice::sherman {

enum class Outcome : std::uint8_t { kOk, kNotFound, kExists, kNoSpace, kUnavailable, kTooLong, kUnknown };
std::string_view to_string(Outcome outcome);

struct GetResult {
  Outcome outcome = Outcome::kOk;
  std::size_t length = 0;
};

struct ScanResult {
  Outcome outcome = Outcome::kOk;
  std::size_t count = 0;
};

// Takes what a scan finds: keys rising, each once. The bytes are the scan's own.
class ScanSink {
 public:
  virtual ~ScanSink() = default;
  virtual void on_pair(Key key, ByteView value) = 0;
};

// Makes an empty tree in memory that is all zero and that nobody else uses yet. kExists: a tree or another store is in some of it already (of an attempt whose
// outcome was lost, it may be this one: join). kTooLong: no tree has this geometry; kNoSpace: a heap is too small for it; kUnknown: another maker has
// begun and has not ended within kMaking; else try again, as the same maker: nothing of this attempt is under way any more (`flight`: ClientConfig's).
inline constexpr Duration kMaking = Duration::seconds(2);
remote::Task<Outcome> create_tree(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, Geometry geometry,
                                  Maker maker = Maker(), Duration flight = ClientConfig().flight);

class Client {
 public:
  // The memory nodes in the order that create_tree had.
  Client(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, const ClientConfig& config, Rng rng);
  // A sibling of one that has joined: another thread of control of the same owner, with a RemoteMemory and a scheduler of its own. They share the
  // index cache and the local locks, as threads of a process do, and hand locks over to each other. Both outlive all operations of either.
  Client(remote::RemoteMemory& memory, Client& sibling, Rng rng);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // kNotFound: there is no tree, or one over other nodes, or over these in another order. kUnavailable: not all of it is in reach, or a node has lost its
  // part. kNoSpace: a million clients have joined it; no number is given twice. REQUIRES: operations to one node take effect in their order
  // (capabilities().ordered): locks rest on it.
  remote::Task<Outcome> join();
  // The memory node's memory is this one now. If it is what it was, under another key (the memory node did not get on for longer than its lease), it is used
  // on, as soon as its superblock has said so; until then, and for ever if it is not, what needs it is unavailable. May be told what is known already, also
  // before join(). Each sibling is told.
  void moved(std::uint32_t node, const MemoryNode& memory);

  // The value goes to the start of `into`. REQUIRES: joined; into.size() >= value_bytes().
  remote::Task<GetResult> get(Key key, MutableBytes into);
  remote::Task<Outcome> put(Key key, ByteView value);
  remote::Task<Outcome> insert(Key key, ByteView value);
  remote::Task<Outcome> erase(Key key);
  // Up to `count` pairs from `first` on. Each was there at some moment of the scan; a key that is left out was absent at one. It is no
  // snapshot of all keys at once. The timeout is for each leaf.
  remote::Task<ScanResult> scan(Key first, std::size_t count, ScanSink& sink);

  // Takes over the memory of a client that has died (its number(); it never submits anything again), frees its locks, and the nodes and blocks that
  // the tree does not lead to. Several may do so at once. kUnavailable: not all of it; try again. REQUIRES: none of its siblings lives, or lease + flight
  // have passed: it may have handed them a lock.
  remote::Task<Outcome> recover(std::uint32_t dead);
  // Frees what is its own and the tree does not lead to: what was left over by unknown outcomes, or by others that died between replacing an entry and
  // marking its block. Takes over some of what others have left behind. Done by itself when memory runs out.
  remote::Task<Outcome> audit();
  // Leaves its memory to whoever needs room. kUnavailable: not all of it; recover() finds the rest. REQUIRES: no operation is under way, and none is begun
  // any more.
  remote::Task<Outcome> leave();

  std::uint32_t number() const { return c_.client; }
  // What it owns: tree nodes, and blocks by their size.
  const Space& space() const { return space_; }
  const std::map<std::uint32_t, Space>& block_spaces() const { return values_.spaces(); }
  // The most that a value may have.
  std::uint32_t value_bytes() const { return c_.geometry.longest_value(); }
  const ClientCounters& counters() const { return c_.counters; }
  const Geometry& geometry() const { return c_.geometry; }
  std::size_t cached_nodes() const { return cache_ ? cache_->size() : 0; }

 private:
  enum class Change : std::uint8_t { kPut, kInsert, kErase };
  struct Mutation;
  struct Ahead;
  enum class Step : std::uint8_t { kDone, kAgain, kSpace };

  remote::Task<Outcome> find_tree();
  bool joined() const { return c_.client != 0; }
  // Before every operation.
  void tend();
  remote::Task<void> look_into_moved_memory();
  // descend.cpp: finding and reading nodes
  // The node at `level` that covers the key, as far as is known. False: out of reach before the deadline.
  remote::Task<bool> descend(Key key, std::uint8_t level, Time deadline, NodePointer& node);
  remote::Task<bool> read_root(Time deadline);
  remote::Task<bool> read_internal(NodePointer node, MutableBytes image, Time deadline);
  // A leaf of which may be believed what is needed: all of it, or what it says of one key. Torn too often, it is read under its lock.
  enum class First : std::uint8_t { kRead, kJudge };  // kJudge: `image` was read already
  remote::Task<bool> read_leaf(NodePointer node, MutableBytes image, Time deadline, std::optional<Key> only,
                               First first);
  bool believable(NodePointer node, MutableBytes image, std::optional<Key> only) const;
  // To the leaf that covers the key, from where it was looked for. False: look again from the top.
  bool step_right(Key key, const NodeHeader& leaf, NodePointer& node, bool& descended);
  // Somebody had to walk to the separator's child, for what is above it, just read, does not know of it. One is added at a time.
  void note_missing(std::uint8_t level, Separator separator);
  remote::Task<void> add_missing(std::uint8_t level, Separator separator);

  enum class Found : std::uint8_t { kYes, kNo, kTorn };
  struct Place {
    Found found = Found::kNo;
    Entry entry;
    std::uint32_t slot = 0;                      // of the entry; kNo: an empty one,
    static constexpr std::uint32_t kNone = ~0u;  // or none is
  };
  Place find(const Leaf& leaf, Key key) const;
  // client.cpp: reading
  // The leaves from `node` on that the cache knows, read at once. Returns how many.
  remote::Task<std::size_t> read_ahead(NodePointer node, Key from, std::size_t wanted,
                                       std::span<std::unique_ptr<Ahead>> ahead);
  // Up to `count` pairs of a leaf. False: a value could not be had.
  remote::Task<bool> deliver(const Leaf& leaf, Key from, std::size_t count, ScanSink& sink, std::size_t& found);

  // write.cpp: writing
  remote::Task<Outcome> change(Change how, Key key, ByteView value);
  remote::Task<Step> change_leaf(Mutation& op);
  // The value of an insert or put goes to a block of its own, if it is too long for a leaf.
  remote::Task<Outcome> write_far(Mutation& op);
  remote::Task<void> change_with(Mutation& op);
  remote::Task<Step> write_entry(Mutation& op, Grip& grip, Leaf& leaf, std::uint32_t slot, Entry entry);
  remote::Task<Step> split_leaf(Mutation& op, Grip& grip, Leaf& leaf);
  // False: it may be missing still.
  remote::Task<bool> add_separator(std::uint8_t level, Separator separator, Time deadline);
  remote::Task<Step> add_to_node(std::uint8_t level, Separator separator, Time deadline, NodePointer& spare,
                                 Separator& split_off);
  remote::Task<bool> grow(Separator separator, std::uint8_t level, Time deadline, NodePointer& spare);
  remote::Task<Outcome> spare_node(Time deadline, NodePointer& spare);

  // recovery.cpp
  // The node at `level` that covers the key, as it is now; `locked`: after whatever stood behind its lock. False: out of reach.
  remote::Task<bool> cover(std::uint8_t level, Key key, bool locked, MutableBytes image, Time limit, NodePointer& node);
  // Does the tree lead to it? kNo is for ever, of what its owner has no operation under way with.
  enum class Stands : std::uint8_t { kYes, kNo, kUnknown };
  remote::Task<Stands> named(Key key, NodePointer block, Time limit);
  remote::Task<Stands> linked(NodePointer piece, ByteView header_bytes, Time limit);
  remote::Task<bool> examine(Space& space, const Space::Chunk& chunk, bool blocks, bool only_doubtful, Time limit);
  // Of an audit with a limit, the next one begins where it ended.
  remote::Task<bool> examine_all(bool only_doubtful, Time limit);
  remote::Task<Outcome> audit_until(Time limit);
  // False: not worth it, there has been one that found nothing.
  remote::Task<bool> audit_for_space(Time deadline);
  // For one step of an audit or a recovery.
  Time patience_until(Time limit) const { return std::min(c_.now() + c_.patience(), limit); }
  remote::Task<bool> read_words(remote::RemoteAddress from, std::uint32_t count, Time limit,
                                std::vector<std::uint8_t>& into);
  remote::Task<bool> free_locks(std::uint32_t node, std::uint32_t dead);
  // And what is this client's without its knowing.
  remote::Task<bool> leave_chunks(Time limit);
  remote::Task<bool> take_over_chunks(std::uint32_t node, std::uint32_t owner, Time limit);

  Connection c_;
  std::vector<MemoryNode> nodes_;
  NodeLocks locks_;
  Space space_;
  Values values_;
  std::shared_ptr<IndexCache> cache_;
  Root root_;
  std::uint32_t tree_id_ = 0;
  std::set<std::uint32_t> unseen_;  // nodes that have moved, and nobody has looked into what is there now
  bool looking_ = false;
  bool adding_ = false;  // what was missing
  Time add_from_;        // not before this: the last one could not be added
  bool auditing_ = false;
  bool some_left_behind_ = false;                       // by others, that the last audit did not take over
  std::optional<Time> audited_;                         // when all chunks had been looked through and nothing found
  std::pair<std::uint32_t, std::uint64_t> examined_{};  // the last one: size of its pieces, where it starts
  std::size_t in_vain_ = 0;                             // chunks looked through since something was found
  std::uint64_t gained() const { return c_.counters.taken_over + c_.counters.collected + c_.counters.reclaimed; }
};

}  // namespace sluice::sherman
