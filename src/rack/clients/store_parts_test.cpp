#include "rack/clients/store_parts.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "remote/test_loop.h"

namespace sluice::rack {
namespace {

using What = StorePart::What;
using Plan = StorePlan::What;
using Order = std::vector<std::size_t>;
constexpr auto kNone = StorePlan::kNone;

StorePart memory(std::uint32_t number, What what) {
  return {.node = "memory" + std::to_string(number),
          .name = kMainRegion,
          .region = {remote::NodeId(number), remote::RegionKey(7), 0x1000},
          .length = 1 << 20,
          .what = what};
}
StorePart part(std::uint32_t number, std::uint32_t index, std::uint32_t parts, std::uint32_t id = 5) {
  StorePart made = memory(number, What::kPart);
  made.store_id = id;
  made.index = index;
  made.parts = parts;
  made.least = 1 << 20;
  return made;
}
StorePart copy(std::uint32_t number, std::uint32_t index, std::uint32_t parts, std::uint32_t id = 5) {
  StorePart made = part(number, index, parts, id);
  made.has_copies = true;
  return made;
}
StorePlan plan(const std::vector<StorePart>& parts) { return plan_store(parts, "store"); }

TEST(StoreParts, EmptyMemoryIsToMakeAStoreIn) {
  const StorePlan made = plan({memory(1, What::kNothing), memory(2, What::kMaking)});
  EXPECT_EQ(made.what, Plan::kMake);
  EXPECT_EQ(made.order, (Order{0, 1}));
}

TEST(StoreParts, AStoreIsUsedInItsOwnOrderAndOtherMemoryIsLeftAlone) {
  const StorePlan moved = plan({part(1, 1, 2), part(2, 0, 2)});
  EXPECT_EQ(moved.what, Plan::kUse);
  EXPECT_EQ(moved.order, (Order{1, 0}));
  const StorePlan more = plan({memory(1, What::kNothing), part(2, 0, 2), memory(3, What::kOther), part(4, 1, 2),
                               memory(5, What::kGone), memory(6, What::kSilent)});
  EXPECT_EQ(more.what, Plan::kUse);
  EXPECT_EQ(more.order, (Order{1, 3}));
  // Beside another region of the same node, after that was moved.
  StorePart second = part(1, 1, 2);
  second.first = false;
  EXPECT_EQ(plan({part(1, 0, 2), second}).order, (Order{0, 1}));
}

TEST(StoreParts, AStoreOfWhichAPartIsAwayIsRefusedAndNoneIsMade) {
  const StorePlan away = plan({memory(1, What::kGone), part(2, 1, 3), part(3, 2, 3)});
  EXPECT_EQ(away.what, Plan::kRefuse);
  EXPECT_EQ(away.refusal, "memory1 is away, and part of the store lies there");
  EXPECT_EQ(plan({memory(1, What::kGone), part(2, 1, 3), memory(3, What::kGone)}).refusal,
            "memory1 and memory3 are away, and part of the store lies there");
  EXPECT_EQ(plan({memory(1, What::kSilent), part(2, 1, 2)}).refusal,
            "memory1 does not answer, and part of the store lies there");
  EXPECT_EQ(plan({part(2, 1, 2)}).refusal, "the store lies on 2 memory nodes, and of 1 of them nothing is to be seen");
  EXPECT_EQ(
      plan({memory(1, What::kGone), memory(2, What::kNothing), part(3, 1, 2)}).refusal,
      "the store lies on 2 memory nodes, and of 1 of them nothing is to be seen; memory1 is away; memory2 is empty");
  // Too little to hold what the store has there.
  StorePart small = part(2, 1, 2);
  small.length = 1 << 19;
  EXPECT_EQ(plan({part(1, 0, 2), small}).what, Plan::kRefuse);
}

TEST(StoreParts, AStoreThatHasLostAPartIsRefusedAndNoneIsMade) {
  for (std::uint32_t lost = 0; lost < 3; ++lost) {
    std::vector<StorePart> parts{part(1, 0, 3), part(2, 1, 3), part(3, 2, 3)};
    parts[lost] = memory(lost + 1, What::kNothing);
    const StorePlan refused = plan(parts);
    EXPECT_EQ(refused.what, Plan::kRefuse);
    EXPECT_TRUE(refused.refusal.starts_with("memory" + std::to_string(lost + 1) +
                                            " was started anew, and the part of the store that lay there is lost; "))
        << refused.refusal;
  }
}

TEST(StoreParts, NoneIsMadeWhileAMemoryNodeIsAwayThatMayHaveOne) {
  const StorePlan refused = plan({memory(1, What::kGone), memory(2, What::kNothing)});
  EXPECT_EQ(refused.what, Plan::kRefuse);
  EXPECT_TRUE(refused.refusal.starts_with("there is none, and memory1 is away")) << refused.refusal;
  EXPECT_EQ(plan({memory(1, What::kSilent), memory(2, What::kNothing)}).refusal, "memory1 does not answer");
  // One that has ended in good order has none.
  StorePart left = memory(1, What::kGone);
  left.left = true;
  const StorePlan made = plan({left, memory(2, What::kNothing)});
  EXPECT_EQ(made.what, Plan::kMake);
  EXPECT_EQ(made.order, (Order{1}));
}

TEST(StoreParts, NoneIsMadeWhereSomethingElseIs) {
  EXPECT_EQ(plan({memory(1, What::kNothing), memory(2, What::kOther)}).refusal,
            fmt::format("the memory is in use by another store, or by locks; {}", kStartAnew));
  const StorePlan two = plan({part(1, 0, 1, 5), part(2, 0, 1, 6)});
  EXPECT_EQ(two.what, Plan::kRefuse);
  EXPECT_TRUE(two.refusal.starts_with("there are 2 stores")) << two.refusal;
  // The remains of another one do no harm.
  EXPECT_EQ(plan({part(1, 0, 1, 5), part(2, 0, 3, 6)}).order, (Order{0}));
}

TEST(StoreParts, OneThatIsOnItsWayIsWaitedFor) {
  EXPECT_EQ(plan({memory(1, What::kMaking), part(2, 1, 2)}).what, Plan::kMake);
  StorePart head = copy(2, 1, 2);
  head.made = false;
  EXPECT_EQ(plan({memory(1, What::kMaking), head}).what, Plan::kMake);
  StorePart first = copy(1, 0, 2);
  EXPECT_EQ(plan({first, head}).order, (Order{0, 1})) << "one that says it is made speaks for all";
}

TEST(StoreParts, AStoreWithCopiesGoesOnWithMoreThanHalfOfItsParts) {
  const StorePlan gone = plan({copy(1, 0, 3), memory(2, What::kGone), copy(3, 2, 3)});
  EXPECT_EQ(gone.what, Plan::kUse);
  EXPECT_EQ(gone.order, (Order{0, 1, 2}));
  // The directory has forgotten it.
  EXPECT_EQ(plan({copy(1, 0, 3), copy(3, 2, 3)}).order, (Order{0, kNone, 1}));
  // Started anew, and another one came to the rack.
  EXPECT_EQ(plan({copy(1, 0, 3), memory(2, What::kNothing), copy(3, 2, 3), memory(4, What::kNothing)}).order,
            (Order{0, 1, 2}));
  EXPECT_EQ(plan({memory(1, What::kNothing), copy(2, 0, 3), copy(3, 1, 3), memory(4, What::kNothing)}).order,
            (Order{1, 2, 3}));
  // Another has come in its place, with another number; too small a one has not.
  EXPECT_EQ(plan({copy(1, 0, 3), copy(3, 2, 3), memory(4, What::kNothing)}).order, (Order{0, 2, 1}));
  StorePart small = memory(4, What::kNothing);
  small.length = 1 << 19;
  EXPECT_EQ(plan({copy(1, 0, 3), copy(3, 2, 3), small}).order, (Order{0, kNone, 1}));
  EXPECT_EQ(plan({copy(1, 0, 3), memory(2, What::kGone), memory(3, What::kGone)}).refusal,
            "memory2 and memory3 are away, and part of the store lies there");
  // Of two that say they are the same part, the one that came later.
  StorePart later = copy(3, 1, 3);
  later.life = 2;
  EXPECT_EQ(plan({copy(1, 0, 3), copy(2, 1, 3), later, copy(4, 2, 3)}).order, (Order{0, 2, 3}));
}

TEST(StoreParts, WhatIsMovedOrOthersOwnIsNoPart) {
  Snapshot snapshot;
  const auto node = [&](const char* name, std::uint32_t id, NodeState state, std::vector<RegionRecord> regions) {
    NodeRecord record;
    record.description = {.name = name, .kind = NodeKind::kMemory, .regions = std::move(regions)};
    record.state = state;
    record.id = remote::NodeId(id);
    snapshot.nodes.push_back(record);
  };
  node("memory1", 1, NodeState::kReady, {{"a", 0, 100, 1, "red"}, {"b", 0, 100, 2, "red"}, {"c", 0, 100, 3, "blue"}});
  node("memory2", 2, NodeState::kReady, {{std::string(kLeaving) + "red/d", 0, 100, 4, "red"}, {"e", 0, 50, 5, "red"}});
  node("memory3", 3, NodeState::kGone, {{"f", 0, 100, 6, "red"}, {"g", 0, 100, 7, "red"}});
  node("memory4", 4, NodeState::kReady, {});
  const auto parts = parts_on(snapshot, 100);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].region.key, remote::RegionKey(1));
  EXPECT_EQ(parts[0].name, "red/a");
  EXPECT_TRUE(parts[0].first);
  EXPECT_EQ(parts[1].region.key, remote::RegionKey(2));
  EXPECT_FALSE(parts[1].first);
  EXPECT_EQ(parts[2].node, "memory3");
  EXPECT_EQ(parts[2].what, What::kGone);
  EXPECT_FALSE(parts[3].first);
}

// A rack of two memory nodes, on which a store of two parts lies: a superblock here is 1, its index, 2.
struct StoreSearchTest : testing::Test {
  StoreSearchTest() {
    for (const std::uint32_t number : {0u, 1u}) {
      const remote::RemoteAddress region = loop.fabric.add_region(loop.fabric.add_node(), 0x1000, 4096);
      const std::uint8_t superblock[] = {1, static_cast<std::uint8_t>(number), 2};
      std::ranges::copy(superblock, loop.fabric.region_bytes(region).begin());
      NodeRecord record;
      record.description = {.name = fmt::format("memory{}", number + 1),
                            .kind = NodeKind::kMemory,
                            .regions = {{kMainRegion, region.address, 4096, region.key.value}}};
      record.state = NodeState::kReady;
      record.id = region.node;
      snapshot.nodes.push_back(record);
    }
  }
  static void judge(ByteView bytes, StorePart& part) {
    part.what = bytes[0] == 1 ? What::kPart : What::kNothing;
    part.index = bytes[1];
    part.parts = bytes[2];
    part.has_copies = bytes[3] != 0;
  }
  std::uint32_t& key_of_first() { return snapshot.nodes.front().description.regions.front().key; }
  StorePlan find() {
    const StoreSearch search{.kind = "store", .least = 4096, .judge = judge, .patience = Duration::seconds(1)};
    return loop.wait_for(find_store(memory, snapshot, search, {}, parts));
  }

  remote::TestLoop loop{remote::LocalOptions{.mode = remote::LocalMode::kSeeded}};
  remote::LocalMemory memory{loop.scheduler, loop.fabric};
  Snapshot snapshot;
  std::vector<StorePart> parts;
};

TEST_F(StoreSearchTest, FindsWhatIsThere) {
  const StorePlan plan = find();
  EXPECT_EQ(plan.what, Plan::kUse) << plan.refusal;
  EXPECT_EQ(plan.order, (Order{0, 1}));
  EXPECT_LT(loop.now, Time() + Duration::milliseconds(1));
}

TEST_F(StoreSearchTest, WaitsForOneThatDoesNotAnswerYet) {
  const std::uint32_t right = std::exchange(key_of_first(), 999);
  const auto answers_late = [&]() -> remote::Task<void> {
    co_await loop.scheduler.sleep_for(Duration::milliseconds(500));
    key_of_first() = right;
  };
  loop.scheduler.spawn(answers_late());
  EXPECT_EQ(find().what, Plan::kUse);
}

TEST_F(StoreSearchTest, SaysWhoDoesNotAnswerWhenItsPatienceEnds) {
  key_of_first() = 999;
  const StorePlan plan = find();
  EXPECT_EQ(plan.what, Plan::kRefuse);
  EXPECT_EQ(plan.refusal, "memory1 does not answer, and part of the store lies there");
  EXPECT_GE(loop.now, Time() + Duration::seconds(1));
}

TEST_F(StoreSearchTest, RefusesAtOnceWhatWaitingDoesNotHeal) {
  loop.fabric.region_bytes({snapshot.nodes.front().id, remote::RegionKey(key_of_first()), 0x1000})[0] = 0;
  EXPECT_EQ(find().what, Plan::kRefuse);
  EXPECT_LT(loop.now, Time() + Duration::milliseconds(100));
}

// A third part is missing, and of the memory nodes one is blank that is not of the store.
TEST_F(StoreSearchTest, WaitsForAMemoryNodeThatJoinsBeforeItGivesItsPlaceToAnother) {
  for (const NodeRecord& node : snapshot.nodes) {
    const RegionRecord& region = node.description.regions.front();
    const auto bytes = loop.fabric.region_bytes({node.id, remote::RegionKey(region.key), region.address});
    bytes[2] = 3;
    bytes[3] = 1;
  }
  const auto add = [&](const char* name, NodeState state) {
    const remote::RemoteAddress region = loop.fabric.add_region(loop.fabric.add_node(), 0x1000, 4096);
    NodeRecord record;
    record.description = {.name = name, .kind = NodeKind::kMemory};
    if (state == NodeState::kReady)
      record.description.regions = {{kMainRegion, region.address, 4096, region.key.value}};
    record.state = state;
    record.id = region.node;
    snapshot.nodes.push_back(record);
    return region;
  };
  const remote::RemoteAddress third = add("memory3", NodeState::kJoining);
  add("memory4", NodeState::kReady);
  const auto joins_late = [&]() -> remote::Task<void> {
    co_await loop.scheduler.sleep_for(Duration::milliseconds(500));
    NodeRecord& node = *std::ranges::find(snapshot.nodes, third.node, &NodeRecord::id);
    node.description.regions = {{kMainRegion, third.address, 4096, third.key.value}};
    node.state = NodeState::kReady;
  };
  loop.scheduler.spawn(joins_late());
  const StorePlan plan = find();
  ASSERT_EQ(plan.what, Plan::kUse) << plan.refusal;
  EXPECT_EQ(parts[plan.order.back()].node, "memory3");
}

// Of a store whose parts were last on these memory nodes; negative: where that is now nobody knows.
Order missing(const std::vector<StorePart>& parts, std::array<int, 3> last, const StorePart& store = copy(1, 0, 3)) {
  std::vector<StorePart> places;
  for (const int number : last) {
    places.push_back(memory(static_cast<std::uint32_t>(std::abs(number)), What::kSilent));
    if (number < 0) places.back().region = kNowhere;
  }
  return find_missing(parts, store, places);
}

TEST(StorePlaces, AreWhereTheSuperblocksSay) {
  // What is in memory that is where it was is not asked.
  const StorePart known = memory(2, What::kSilent);
  EXPECT_EQ(missing({copy(1, 0, 3), known, copy(3, 2, 3)}, {1, 2, 3}), (Order{kNone, kNone, kNone}));
  EXPECT_EQ(missing({known, copy(5, 0, 3), memory(6, What::kNothing), copy(7, 2, 3)}, {-1, 2, -3}),
            (Order{1, kNone, 3}));
  // Two of one memory node, of which the first has the later place.
  StorePart second = copy(3, 0, 3);
  second.first = false;
  second.region.key = remote::RegionKey(8);
  EXPECT_EQ(missing({known, copy(3, 2, 3), second}, {-1, 2, -3}), (Order{2, kNone, 1}));
  // Another store's, one of another shape, one that is too small.
  StorePart small = copy(7, 0, 3);
  small.length = 1 << 19;
  EXPECT_EQ(missing({known, copy(5, 0, 3, 6), copy(6, 0, 4), small}, {-1, 2, 3}), (Order{kNone, kNone, kNone}));
  // Of two that say they are the same, the one that came later.
  StorePart later = copy(5, 0, 3);
  later.life = 2;
  EXPECT_EQ(missing({known, copy(4, 0, 3), later, copy(6, 0, 3)}, {-1, 2, 3}), (Order{2, kNone, kNone}));
  EXPECT_EQ(missing({known, later}, {1, 2, 3}), (Order{kNone, kNone, kNone})) << "its place has its memory";
}

TEST(StorePlaces, WhoseMemoryIsLostAreGivenWhatTheSameNodeHasInItsStead) {
  const StorePart one = memory(1, What::kSilent);
  const StorePart three = memory(3, What::kSilent);
  const StorePart anew = memory(2, What::kNothing);
  EXPECT_EQ(missing({one, anew, three}, {1, -2, 3}), (Order{kNone, 1, kNone}));
  // It was forgotten meanwhile, and has another number.
  StorePart renumbered = memory(7, What::kNothing);
  renumbered.node = "memory2";
  EXPECT_EQ(missing({one, three, renumbered}, {1, -2, 3}), (Order{kNone, 2, kNone}));
  StorePart small = anew;
  small.length = 1 << 19;
  EXPECT_EQ(missing({one, small, three}, {1, -2, 3}), (Order{kNone, kNone, kNone}));
  // What else does not answer is no matter; nor is what is blank, once there is a superblock.
  EXPECT_EQ(missing({one, anew, three, memory(6, What::kSilent)}, {1, -2, 3}), (Order{kNone, 1, kNone}));
  EXPECT_EQ(missing({one, anew, three, copy(6, 1, 3)}, {1, -2, 3}), (Order{kNone, 3, kNone}));
  for (const What what : {What::kSilent, What::kGone, What::kOther, What::kMaking})
    EXPECT_EQ(missing({one, memory(2, what), three}, {1, -2, 3}), (Order{kNone, kNone, kNone}));
  // Nothing comes back in a store without copies.
  EXPECT_EQ(missing({one, anew, three}, {1, -2, 3}, part(1, 0, 3)), (Order{kNone, kNone, kNone}));
}

TEST(StorePlaces, AreNotGivenMemoryThatHasNothingToDoWithTheStore) {
  const StorePart one = memory(1, What::kSilent);
  const StorePart three = memory(3, What::kSilent);
  // The second has no regions while it joins anew, and another came to the rack before.
  EXPECT_EQ(missing({one, three, memory(4, What::kNothing)}, {1, -2, 3}), (Order{kNone, kNone, kNone}));
  EXPECT_EQ(missing({one, memory(2, What::kNothing), three, memory(4, What::kNothing)}, {1, -2, 3}),
            (Order{kNone, 1, kNone}));
  // It has the forgotten one's number.
  StorePart renumbered = memory(2, What::kNothing);
  renumbered.node = "memory4";
  EXPECT_EQ(missing({one, renumbered, three}, {1, -2, 3}), (Order{kNone, kNone, kNone}));
  // What a tenant has beside a region that is being moved.
  StorePart beside = memory(2, What::kNothing);
  beside.name = "red/scratch";
  EXPECT_EQ(missing({one, beside, three}, {1, -2, 3}), (Order{kNone, kNone, kNone}));
}

}  // namespace
}  // namespace sluice::rack
