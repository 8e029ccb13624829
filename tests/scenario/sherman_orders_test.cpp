// A few operations on a Sherman tree of one full leaf, or few leaves, in every order in which memory may execute what their clients submit, while connections
// are lost, clients die, READs and WRITEs are torn and time passes under locks.
//
// Held to: linearizability per key, of what was told and of what is there at the end; the tree is whole then, all locks can be had, and no node is lost
//          or led to though it is free.
// Effort:  SLUICE_EVERY_WAY=1 goes further. A check that fails prints the steps that led there.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/effort_test.h"
#include "rack/clients/sherman_store.h"
#include "tests/scenario/store_orders.h"

namespace sluice {
namespace {

using namespace sherman;  // the test speaks nothing else
constexpr std::size_t kHeapBytes = 10 << 10;
constexpr Duration kFlight = Duration::microseconds(4);
constexpr Duration kLease = Duration::microseconds(6);

struct Case {
  std::vector<Key> there;
  std::vector<Lane> lanes;
  OrderLimits limits{};
  bool logged = false;  // nodes are longer than what is written whole
  bool far = false;     // values are in blocks of their own
  Duration lease = kLease;
  Duration poll = Duration::microseconds(4);  // who waits for a lock looks again after half of that, or all of it
  bool recover = false;                       // who dies is cleaned up after by the last client at once
};

class Run : public StoreRun<Client, rack::ShermanStore> {
 public:
  explicit Run(const Case& c)
      : StoreRun(c.lanes, c.recover, 1, kHeapBytes + 8 * kLocks, true, kFlight, c.limits), case_(c) {
    geometry_.whole_bytes = c.logged ? 48 : 1024;
    if (c.far) {
      geometry_.node_bytes = 272;
      geometry_.chunk_bytes = 544;
      geometry_.value_bytes = 24;
      geometry_.long_bytes = 32;
      value_bytes_ = 32;
    }
    auto& founder = rack_.add_program();
    const Outcome made = rack_.wait_for(founder, create_tree(founder, memory(), geometry_, {}, kFlight));
    SLUICE_CHECK(made == Outcome::kOk);
    std::size_t clients = 0;
    for (const Lane& lane : c.lanes) clients = std::max(clients, lane.client + 1);
    for (std::size_t i = 0; i < clients; ++i) join();
    for (const Key key : c.there) at_once(0, put(key));
    for (std::size_t i = 1; i < clients; ++i) at_once(i, get(c.there.front()));
    rack_.run_for(kFlight * 2);
    start();
  }

  std::string state() const {
    std::string s;
    rack_.state(s, kSuperblockBytes);
    append_order(s, history_);
    return s;
  }

  // Nothing is under way any more.
  void judge() {
    rack_.run_for(kFlight + case_.lease);
    Keys keys = keys_asked_for();
    keys.insert(case_.there.begin(), case_.there.end());
    const std::size_t witness = join();
    judge_by(witness, keys);
    rack_.run_for((kFlight + case_.lease) * 4);
    audit_all();
    if (case_.far) audit_all();  // of blocks that another's has marked
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (programs_[i]->dead) continue;
      EXPECT_EQ(clients_[i]->counters().damaged, 0u);
    }
    inspect();
    // Who was lost twice may have left a lock whose lease is over, and which nobody has asked for since.
    for (std::size_t i = 0; case_.limits.losses > 1 && i < witness; ++i) clean_up_after(i, witness);
    for (std::uint32_t lock = 0; lock < kLocks; ++lock)
      EXPECT_EQ(load_le<std::uint64_t>(rack_.bytes(0).data() + kHeapBytes + 8 * lock), 0u) << "a lock is held for ever";
  }

 private:
  static constexpr std::uint32_t kLocks = 4;

  std::vector<MemoryNode> memory() const { return {{rack_.address(0, 0), kHeapBytes, rack_.address(0, kHeapBytes)}}; }

  std::size_t join() {
    const ClientConfig config{.timeout = Duration::microseconds(400),
                              .lease = case_.lease,
                              .flight = kFlight,
                              .backoff_first = case_.poll,
                              .backoff_most = case_.poll,
                              .torn_reads = 2};
    return StoreRun::join(memory(), config);
  }

  ByteView node(NodePointer at) { return ByteView(rack_.bytes(0)).subspan(at.offset(), geometry_.node_bytes); }

  // Level by level, from the left to the right.
  void inspect() {
    const MutableBytes all = rack_.bytes(0);
    std::set<std::uint64_t> reached;
    const auto root = Root::of(load_le<std::uint64_t>(all.data() + kRootOffset));
    std::set<Key> keys;
    for (NodePointer first = root.node; first;) {
      NodePointer below;
      Key next = 0;
      for (NodePointer at = first; at;) {
        ASSERT_TRUE(reached.insert(at.raw).second) << "a node is reached twice";
        const ByteView bytes = node(at);
        const NodeHeader header = parse_header(bytes);
        ASSERT_EQ(header.low, next) << "keys are nobody's, or two nodes'";
        next = header.last + 1;
        if (at == first) below = header.leftmost;
        if (header.level == 0) {
          inspect_leaf(at, header, keys);
        } else {
          ASSERT_TRUE(internal_whole(bytes, at));
          EXPECT_EQ(parse_header(node(header.leftmost)).low, header.low);
          for (std::uint32_t i = 0; i < header.count; ++i) {
            const Separator s = separator(bytes, i);
            EXPECT_EQ(parse_header(node(s.child)).low, s.key) << "a separator leads elsewhere";
            EXPECT_EQ(parse_header(node(s.child)).level + 1, header.level);
          }
        }
        at = header.sibling;
      }
      EXPECT_EQ(next, 0u) << "the last node does not hold the last keys";
      first = below;
    }
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (programs_[i]->dead) continue;
      inspect_space(i, clients_[i]->space(), reached);
      for (const auto& [bytes, space] : clients_[i]->block_spaces()) inspect_space(i, space, named_);
    }
  }
  static void inspect_space(std::size_t client, const Space& space, const std::set<std::uint64_t>& led_to) {
    for (const auto& [start, chunk] : space.chunks()) {
      for (std::size_t piece = 0; piece < chunk.uses.size(); ++piece) {
        const bool is = led_to.contains(space.piece(chunk, piece).raw);
        EXPECT_EQ(chunk.uses[piece], is ? Space::Use::kPlaced : Space::Use::kFree) << "client " << client;
      }
    }
  }
  void inspect_leaf(NodePointer at, const NodeHeader& header, std::set<Key>& keys) {
    const Leaf leaf(rack_.bytes(0).subspan(at.offset(), geometry_.node_bytes), geometry_);
    ASSERT_TRUE(leaf.frame_whole(at));
    for (std::uint32_t i = 0; i < geometry_.leaf_slots(); ++i) {
      Entry entry;
      ASSERT_TRUE(leaf.entry(i, entry)) << "an entry is torn";
      if (!entry.used) continue;
      EXPECT_TRUE(entry.key >= header.low && entry.key <= header.last) << "a key in the wrong leaf";
      EXPECT_TRUE(keys.insert(entry.key).second) << "a key has two entries";
      if (entry.far) named_.insert(far_value(entry).block.raw);
    }
  }

  const Case& case_;
  std::set<std::uint64_t> named_;  // blocks
  Geometry geometry_{.node_bytes = 240, .value_bytes = kValueBytes, .locks = kLocks, .chunk_bytes = 480};
};

using ShermanInEveryOrder = EveryOrder<Case, Run>;

// Of one leaf with four places.
const std::vector<Key> kFull = {10, 20, 30, 40};
// Of two leaves, [10, 20] and [30, 40, 50, 60], and a root above.
const std::vector<Key> kTwo = {10, 20, 30, 40, 50, 60};

// With no trouble, and with each kind of it.
const std::vector<OrderLimits> kTroubles = {
    {}, {.losses = 1}, {.deaths = 1}, {.passes = 1}, {.piece = 120}, {.piece = 120, .falling = true}};

TEST_F(ShermanInEveryOrder, TwoWriteAndAThirdReads) {
  for (const OrderLimits& limits : kTroubles) {
    every({.there = {10, 20}, .lanes = {{0, {put(10)}}, {1, {put(10)}}, {2, {get(10), get(10)}}}, .limits = limits});
    every({.there = {10, 20}, .lanes = {{0, {put(30)}}, {1, {erase(20)}}, {2, {get(20), get(30)}}}, .limits = limits});
    every({.there = {10, 20}, .lanes = {{0, {insert(30)}}, {1, {insert(30)}}, {2, {get(30)}}}, .limits = limits});
  }
}

TEST_F(ShermanInEveryOrder, ALeafIsSplitWhileOthersWriteAndRead) {
  for (const OrderLimits& limits : kTroubles) {
    every({.there = kFull, .lanes = {{0, {put(25)}}, {1, {put(40)}}, {2, {get(40), get(25)}}}, .limits = limits});
    if (limits.passes == 0 || from_environment("SLUICE_EVERY_WAY", 0) != 0)
      every({.there = kTwo, .lanes = {{0, {put(35)}}, {1, {put(60)}}, {2, {get(60), get(35)}}}, .limits = limits});
  }
}

TEST_F(ShermanInEveryOrder, TwoSplitTheSameLeaf) {
  for (const OrderLimits& limits : kTroubles) {
    every({.there = kFull, .lanes = {{0, {put(25)}}, {1, {put(15)}}}, .limits = limits});
    every({.there = kTwo, .lanes = {{0, {put(55)}}, {1, {put(35)}}}, .limits = limits});
  }
}

TEST_F(ShermanInEveryOrder, TwoGrowTheTreeAtOnce) {
  for (const OrderLimits& limits : kTroubles)
    every({.there = kFull, .lanes = {{0, {put(25)}}, {1, {put(35), put(36)}}}, .limits = limits});
}

TEST_F(ShermanInEveryOrder, WhoWaitsInAClientIsHandedTheLock) {
  for (const OrderLimits& limits : kTroubles) {
    for (const bool logged : {false, true}) {
      every({.there = kFull,
             .lanes = {{0, {put(25)}}, {0, {put(40)}}, {1, {get(40), get(25)}}},
             .limits = limits,
             .logged = logged});
      every({.there = kFull,
             .lanes = {{0, {put(10)}}, {0, {put(15)}}, {1, {put(10)}}},
             .limits = limits,
             .logged = logged});
    }
  }
}

TEST_F(ShermanInEveryOrder, ASplitThatIsTornIsDoneAgain) {
  for (const bool recover : {false, true}) {
    for (const bool falling : {false, true}) {
      every({.there = kFull,
             .lanes = {{0, {put(25)}}, {1, {get(40)}}},
             .limits = {.deaths = 1, .piece = 48, .falling = falling},
             .logged = true,
             .recover = recover});
      every({.there = kFull,
             .lanes = {{0, {put(25)}}, {1, {put(40)}}},
             .limits = {.losses = 1, .piece = 120, .falling = falling},
             .logged = true,
             .recover = recover});
    }
  }
}

// A lease ends before its client knows what has become of its split, which may stand in a redo record that nobody has finished.
TEST_F(ShermanInEveryOrder, AnAuditBesideASplitThatWasLost) {
  for (const bool logged : {false, true}) {
    for (const std::vector<Key>& there : {kFull, kTwo}) {
      every({.there = there,
             .lanes = {{0, {put(55), audit(), put(25)}}},
             .limits = {.losses = 2, .passes = 3},
             .logged = logged});
      every({.there = there,
             .lanes = {{0, {put(55), audit(), put(25)}}},
             .limits = {.losses = 2, .late = 1, .passes = 4},
             .logged = logged,
             .poll = Duration::microseconds(2)});
    }
  }
}

// What becomes of blocks whose entry may have been replaced, or not.
TEST_F(ShermanInEveryOrder, AnAuditBesideAValueThatWasLost) {
  for (const bool logged : {false, true}) {
    every({.there = {10},
           .lanes = {{0, {put(10), audit(), put(20), get(10)}}},
           .limits = {.losses = 3, .late = 1, .passes = 4},
           .logged = logged,
           .far = true,
           .poll = Duration::microseconds(2)});
    every({.there = {10},
           .lanes = {{0, {put(10), audit(), put(20)}}, {1, {put(10)}}},
           .limits = {.losses = 1, .passes = 1},
           .logged = logged,
           .far = true,
           .poll = Duration::microseconds(2)});
  }
}

TEST_F(ShermanInEveryOrder, WhoeverDiesIsCleanedUpAfterWhileOthersGoOn) {
  every({.there = kFull,
         .lanes = {{0, {put(25)}}, {1, {put(15)}}, {2, {get(25)}}},
         .limits = {.deaths = 1},
         .recover = true});
  every({.there = kFull, .lanes = {{0, {put(25)}}, {1, {put(35)}}}, .limits = {.losses = 1, .deaths = 1}});
}

TEST_F(ShermanInEveryOrder, AHandedLockLeavesNoRecordThatIsOld) {
  every({.there = kFull,
         .lanes = {{0, {put(25)}}, {0, {put(10), put(10), put(10), put(10)}}, {1, {get(10)}}},
         .limits = {.deaths = 1},
         .logged = true});
}

TEST_F(ShermanInEveryOrder, LeasesRunOutUnderTheLiving) {
  for (const bool logged : {false, true}) {
    every({.there = {10},
           .lanes = {{0, {put(15)}}, {1, {put(16)}}},
           .limits = {.losses = 1, .passes = 4},
           .logged = logged});
    every({.there = kFull, .lanes = {{0, {put(25)}}, {1, {put(10)}}}, .limits = {.passes = 3}, .logged = logged});
  }
}

TEST_F(ShermanInEveryOrder, ALeaseBeginsWhenTheLockWasAskedFor) {
  const std::vector<Lane> lanes = {{0, {put(15)}}, {1, {put(16)}}};  // into the same place
  const Duration poll = Duration::microseconds(2);
  every({.there = {10},
         .lanes = lanes,
         .limits = {.late = 1, .passes = 5},
         .lease = Duration::microseconds(2),
         .poll = poll});
  every({.there = {10}, .lanes = lanes, .limits = {.losses = 1, .late = 1, .passes = 4}, .poll = poll});
}

}  // namespace
}  // namespace sluice
