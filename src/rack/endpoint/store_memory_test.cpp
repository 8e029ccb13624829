#include "rack/endpoint/store_memory.h"

#include <gtest/gtest.h>

namespace sluice::rack {
namespace {

NodeRecord memory(std::uint32_t number, std::uint32_t key) {
  NodeRecord node;
  node.description = {"memory" + std::to_string(number), NodeKind::kMemory};
  RegionRecord region;
  region.name = kMainRegion;
  region.key = key;
  region.address = 0x1000;
  region.length = 1 << 20;
  node.description.regions.push_back(region);
  node.state = NodeState::kReady;
  node.id = remote::NodeId(number);
  node.ip = wire::Ipv4Address{0x0A4D0000 + number};
  return node;
}

NodeRecord metadata(NodeState state, const std::string& volumes) {
  NodeRecord node;
  node.description = {"metadata", NodeKind::kMetadata};
  if (!volumes.empty()) node.description.attributes[kVolumesAttribute] = volumes;
  node.state = state;
  return node;
}

Snapshot snapshot(std::vector<NodeRecord> nodes) {
  Snapshot made;
  made.nodes = std::move(nodes);
  return made;
}

TEST(StoreMemory, OfAServerThatIsThereItIsAsItSays) {
  const auto rack = snapshot({memory(1, 7), memory(2, 8), metadata(NodeState::kReady, "1:7")});
  ASSERT_TRUE(find_store(rack));
  EXPECT_EQ(find_store(rack)->volumes.size(), 1);
  EXPECT_FALSE(find_store_left(rack));
  ASSERT_TRUE(find_words(rack));
  ASSERT_EQ(find_words(rack)->size(), 1);
  EXPECT_EQ(find_words(rack)->front().rkey, wire::RKey(8));
}

// What it has taken stays its store's when it dies, and nobody knows what is free while it comes back.
TEST(StoreMemory, OfAServerThatIsGoneTheMemoryStaysItsStores) {
  const auto gone = snapshot({memory(1, 7), memory(2, 8), metadata(NodeState::kGone, "1:7")});
  EXPECT_FALSE(find_store(gone));
  EXPECT_FALSE(is_served(gone));
  ASSERT_TRUE(find_store_left(gone));
  ASSERT_TRUE(find_words(gone));
  ASSERT_EQ(find_words(gone)->size(), 1);
  EXPECT_EQ(find_words(gone)->front().rkey, wire::RKey(8));

  const auto back = snapshot({memory(1, 7), memory(2, 8), metadata(NodeState::kJoining, "")});
  EXPECT_TRUE(is_served(back));
  EXPECT_FALSE(find_words(back));
}

// One that is started beside another, on another machine, or without its journal.
TEST(StoreMemory, NoStoreIsMadeOverTheOneThatIsThere) {
  const auto of = [](NodeState state, const std::string& volumes, std::uint32_t number) {
    auto node = metadata(state, volumes);
    node.id = remote::NodeId(number);
    return node;
  };
  const auto maker = of(NodeState::kJoining, "", 9);
  const auto may = [&](std::vector<NodeRecord> nodes) {
    nodes.push_back(memory(1, 7));
    nodes.push_back(memory(2, 8));
    return check_makes_store(snapshot(std::move(nodes)), maker).has_value();
  };
  EXPECT_TRUE(may({maker}));
  EXPECT_FALSE(may({maker, of(NodeState::kReady, "1:7", 3)}));
  EXPECT_FALSE(may({maker, of(NodeState::kReady, "1:6", 3)})) << "there is one on a rack";
  EXPECT_FALSE(may({maker, of(NodeState::kJoining, "", 3)})) << "it will take memory";
  EXPECT_FALSE(may({maker, of(NodeState::kGone, "1:7", 3)}));
  EXPECT_FALSE(may({maker, of(NodeState::kGone, "5:5 2:8", 3)})) << "a part is there";
  EXPECT_FALSE(may({of(NodeState::kJoining, "1:7", 9)})) << "its own, without its journal";
  EXPECT_TRUE(may({maker, of(NodeState::kGone, "1:6 2:7", 3)})) << "its memory has begun anew";
  EXPECT_TRUE(may({of(NodeState::kJoining, "1:6", 9)}));
  EXPECT_TRUE(may({maker, of(NodeState::kGone, "", 3)}));
}

TEST(StoreMemory, MemoryThatHasBegunAnewIsNobodys) {
  const auto anew = snapshot({memory(1, 9), metadata(NodeState::kGone, "1:7")});
  EXPECT_FALSE(find_store_left(anew));
  EXPECT_EQ(find_words(anew)->size(), 1);
  const auto without = snapshot({memory(1, 7), metadata(NodeState::kGone, "")});  // it made no store
  EXPECT_FALSE(find_store_left(without));
  EXPECT_EQ(find_words(snapshot({memory(1, 7)}))->size(), 1);
}

}  // namespace
}  // namespace sluice::rack
