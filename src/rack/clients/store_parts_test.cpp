#include "rack/clients/store_parts.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "remote/test_loop.h"

namespace sluice::rack {
namespace {

using What = StorePart::What;
using Plan = StorePlan::What;
using Order = std::vector<std::size_t>;
constexpr auto kNone = StorePlan::kNone;

StorePart memory(std::uint32_t number, What what) {
  return {.node = "memory" + std::to_string(number),
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
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].region.key, remote::RegionKey(1));
  EXPECT_TRUE(parts[0].first);
  EXPECT_EQ(parts[1].region.key, remote::RegionKey(2));
  EXPECT_FALSE(parts[1].first);
  EXPECT_EQ(parts[2].node, "memory3");
  EXPECT_EQ(parts[2].what, What::kGone);
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

TEST(StorePlaces, BelongToANumberOrToTheNameOfWhomTheDirectoryHasForgotten) {
  const auto node = [](const char* name, std::uint32_t id) {
    NodeRecord record;
    record.description.name = name;
    record.id = remote::NodeId(id);
    return record;
  };
  const std::vector<remote::NodeId> places{remote::NodeId(1), remote::NodeId(2), remote::NodeId(0xFFFF'FFFF)};
  const std::map<remote::NodeId, std::string> names{
      {remote::NodeId(1), "memory1"}, {remote::NodeId(2), "memory2"}, {remote::NodeId(5), "memory2"}};
  Snapshot newest;
  newest.nodes = {node("memory1", 1), node("memory4", 4), node("memory2", 5)};
  EXPECT_EQ(place_of(newest.nodes[0], places, newest, names), 0u);
  EXPECT_EQ(place_of(newest.nodes[1], places, newest, names), 3u) << "not of the store";
  EXPECT_EQ(place_of(newest.nodes[2], places, newest, names), 1u) << "the name is the same";
  newest.nodes.push_back(node("memory2", 2));
  EXPECT_EQ(place_of(newest.nodes[2], places, newest, names), 3u) << "whose the place is is known yet";
}

}  // namespace
}  // namespace sluice::rack
