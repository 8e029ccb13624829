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
