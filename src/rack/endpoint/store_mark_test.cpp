#include "rack/endpoint/store_mark.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "fusee/layout.h"
#include "remote/test_loop.h"
#include "sherman/layout.h"

namespace sluice::rack {
namespace {

using Superblock = std::array<std::uint8_t, kMarkBytes>;

Superblock of_fusee() {
  Superblock bytes{};
  const fusee::Geometry geometry{.replicas = 1, .groups = 64, .value_bytes = 64, .block_bytes = 64 << 10};
  fusee::put_superblock(bytes, {.geometry = geometry, .nodes = 2, .index = 1, .store_id = 7, .heap_bytes = 1 << 20});
  return bytes;
}

Superblock of_sherman() {
  Superblock bytes{};
  const sherman::Geometry geometry{
      .node_bytes = 1024, .value_bytes = 64, .locks = 8192, .chunk_bytes = 64 << 10, .whole_bytes = 1024};
  sherman::put_superblock(MutableBytes(bytes).first(sherman::kMakerOffset),
                          {.geometry = geometry, .nodes = 2, .index = 1, .tree_id = 7, .heap_bytes = 1 << 20});
  return bytes;
}

TEST(StoreMark, TellsWhoseStoreIsThere) {
  EXPECT_EQ(mark_in(Superblock{}), StoreMark::kNone);
  EXPECT_EQ(mark_in(of_fusee()), StoreMark::kFusee);
  EXPECT_EQ(mark_in(of_sherman()), StoreMark::kSherman);
  Superblock made = of_fusee();
  store_le<std::uint64_t>(made.data() + fusee::kMadeOffset, 1);
  EXPECT_EQ(mark_in(made), StoreMark::kFusee);
  EXPECT_EQ(to_string(StoreMark::kFusee), "a part of a FUSEE store");
}

TEST(StoreMark, OneThatIsInMakingIsThereAndBytesOfOthersAreNone) {
  Superblock begun{};
  store_le(begun.data() + sherman::kMakerOffset, sherman::Maker{9}.word());
  EXPECT_EQ(mark_in(begun), StoreMark::kMaking);
  begun[0] = 1;
  EXPECT_EQ(mark_in(begun), StoreMark::kNone);
  Superblock spoilt = of_fusee();
  spoilt[9] ^= 1;
  EXPECT_EQ(mark_in(spoilt), StoreMark::kNone);
  Superblock all;
  all.fill(0xFF);
  EXPECT_EQ(mark_in(all), StoreMark::kNone);
}

TEST(StoreMark, IsReadWhereItIsAndNowhereElse) {
  constexpr std::uint64_t kBytes = kMarkOffset + kMarkBytes;
  remote::TestLoop loop({});
  remote::LocalMemory memory(loop.scheduler, loop.fabric);
  const remote::NodeId node = loop.fabric.add_node();
  const remote::RemoteAddress region = loop.fabric.add_region(node, 0x1000, kBytes);
  EXPECT_EQ(loop.wait_for(read_mark(memory, region, kBytes)), StoreMark::kNone);
  std::ranges::copy(of_sherman(), loop.fabric.region_bytes(region).subspan(kMarkOffset).begin());
  EXPECT_EQ(loop.wait_for(read_mark(memory, region, kBytes)), StoreMark::kSherman);
  EXPECT_EQ(loop.wait_for(read_mark(memory, region, kBytes - 1)), StoreMark::kNone) << "too small for a store";
  loop.fabric.kill_node(node);
  EXPECT_EQ(loop.wait_for(read_mark(memory, region, kBytes)), std::nullopt);
}

}  // namespace
}  // namespace sluice::rack
