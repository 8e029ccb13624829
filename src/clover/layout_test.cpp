#include "clover/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"
#include "clover/cursor_cache.h"
#include "clover/volumes.h"

namespace sluice::clover {
namespace {

TEST(NodeLayout, MakesNodesAsTheAuthorsDo) {
  EXPECT_EQ(NodeLayout(1000).node_bytes(), 1024u);
  EXPECT_EQ(NodeLayout(1000).slot_bytes(), 1024u);
  EXPECT_EQ(NodeLayout(8).node_bytes(), 32u);
  EXPECT_EQ(NodeLayout(8).slot_bytes(), 64u);
  EXPECT_EQ(NodeLayout(13).node_bytes(), 40u);
  EXPECT_EQ(NodeLayout(4072).node_bytes(), 4096u);  // the largest that is one packet
}

TEST(NodeLayout, PutsNextKeyValueAndTrailerWhereTheDocumentSays) {
  const NodeLayout layout(13);
  std::vector<std::uint8_t> bytes(layout.node_bytes(), 0xEE);
  const std::vector<std::uint8_t> value{'a', 'b', 'c'};
  const auto self = NodePointer::make(5, 9, 0x10000 + 640);
  compose_node(layout, 0x1122334455667788, NodeKind::kValue, value, trailer_word(self, 0x10000, 3), bytes);
  EXPECT_EQ(load_le<std::uint64_t>(bytes.data()), free_word(0x1122334455667788, NodeKind::kValue));
  EXPECT_EQ(bytes[8], 0x88);
  EXPECT_EQ(bytes[15], 0x11);
  EXPECT_EQ(bytes[16], 'a');
  for (std::size_t i = 19; i < 32; ++i) EXPECT_EQ(bytes[i], 0) << i;
  EXPECT_EQ(load_le<std::uint64_t>(bytes.data() + 32), 3u | 9u << 14 | 5u << 20 | std::uint64_t{10} << 28);
  const auto seen = parse_node(layout, bytes);
  EXPECT_EQ(seen.key, 0x1122334455667788u);
  EXPECT_EQ(seen.length(), 3u);
  EXPECT_EQ(seen.volume(), 5u);
  EXPECT_EQ(seen.self(0x10000), self);
}

TEST(NodePointer, HoldsVolumeGenerationAddressAndKind) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const auto volume = static_cast<std::uint32_t>(rng.below(256));
    const auto generation = static_cast<std::uint32_t>(1 + rng.below(63));
    const std::uint64_t address = rng.next() & kMaxAddress;
    const auto pointer = NodePointer::make(volume, generation, address);
    EXPECT_EQ(pointer.volume(), volume);
    EXPECT_EQ(pointer.generation(), generation);
    EXPECT_EQ(pointer.address(), address);
    EXPECT_EQ(pointer.kind(), NodeKind::kValue);
    EXPECT_FALSE(is_end(pointer.word));
    const auto tombstone = pointer.as(NodeKind::kTombstone);
    EXPECT_EQ(tombstone.kind(), NodeKind::kTombstone);
    EXPECT_FALSE(is_end(tombstone.word));
    EXPECT_EQ(tombstone.as(NodeKind::kValue), pointer);
    EXPECT_TRUE(pointer);
  }
  EXPECT_FALSE(NodePointer{});
}

TEST(EndWords, DifferByKindAndByKey) {
  std::set<std::uint64_t> words;
  for (Key key = 0; key < 10'000; ++key) {
    for (const auto word : {free_word(key, NodeKind::kValue), free_word(key, NodeKind::kTombstone), sealed_word(key)}) {
      EXPECT_TRUE(is_end(word));
      EXPECT_EQ(is_sealed(word), word == sealed_word(key));
      EXPECT_TRUE(words.insert(word).second);
    }
  }
}

TEST(CursorCache, KeepsTheLatestConfirmationAndForgetsTheOldest) {
  CursorCache cache(16);
  const auto node = [](std::uint64_t i) { return NodePointer::make(0, 1, 64 * i); };
  const auto at = [](std::int64_t ns) { return Time::at(Duration::nanoseconds(ns)); };
  cache.store(1, {node(1), at(10)});
  cache.store(1, {node(2), at(5)});
  ASSERT_NE(cache.find(1), nullptr);
  EXPECT_EQ(cache.find(1)->node, node(1));
  cache.drop(1, node(2));
  EXPECT_NE(cache.find(1), nullptr);
  cache.drop(1, node(1));
  EXPECT_EQ(cache.find(1), nullptr);
  for (Key key = 0; key < 1000; ++key) cache.store(key, {node(key), at(static_cast<std::int64_t>(key))});
  std::size_t kept = 0;
  for (Key key = 0; key < 1000; ++key) kept += cache.find(key) != nullptr;
  EXPECT_EQ(kept, cache.capacity());
  EXPECT_NE(cache.find(999), nullptr);
}

TEST(Volumes, GiveEveryNodeAnEqualShareAsPrimary) {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < 3; ++i) {
    regions.push_back({{remote::NodeId(i), remote::RegionKey(i), 0x10000 * (i + 1)}, 4096});
  }
  const auto volumes = spread(regions, 2);
  ASSERT_TRUE(volumes.has_value());
  ASSERT_EQ(volumes->size(), 3u);
  std::set<std::pair<std::uint32_t, std::uint64_t>> stretches;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& v = (*volumes)[i];
    EXPECT_EQ(v.length, 2048u);
    EXPECT_EQ(v.replicas[0].node.value, i);
    EXPECT_NE(v.replicas[0].node, v.replicas[1].node);
    for (std::size_t j = 0; j < 2; ++j)
      EXPECT_TRUE(stretches.insert({v.replicas[j].node.value, v.replicas[j].address}).second);
    const auto node = NodePointer::make(static_cast<std::uint32_t>(i), 1, v.replicas[0].address + 640);
    EXPECT_EQ(v.locate(node, 0).address, v.replicas[0].address + 640);
    EXPECT_EQ(v.locate(node, 1).address, v.replicas[1].address + 640);
  }
}

TEST(Volumes, RefuseWhatCannotBeMirroredOrPointedTo) {
  const Region good{{remote::NodeId(0), remote::RegionKey(1), 0x10000}, 4096};
  const auto fails = [](std::vector<Region> regions, std::uint32_t replication) {
    return !spread(regions, replication);
  };
  EXPECT_TRUE(fails({good}, 2));
  EXPECT_TRUE(fails({good}, 0));
  EXPECT_TRUE(fails({good}, 4));
  EXPECT_TRUE(fails({good, good}, 2));
  EXPECT_FALSE(fails({good, good}, 1));
  auto high = good;
  high.base.address = std::uint64_t{1} << 48;
  EXPECT_TRUE(fails({high}, 1));
  auto crooked = good;
  crooked.base.address += 8;
  EXPECT_TRUE(fails({crooked}, 1));
}

}  // namespace
}  // namespace sluice::clover
