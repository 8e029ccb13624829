#include "sherman/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/rng.h"

namespace sluice::sherman {
namespace {

constexpr Geometry kGeometry{.node_bytes = 512, .value_bytes = 16, .locks = 32, .chunk_bytes = 4096, .whole_bytes = 64};
constexpr NodePointer kSelf = NodePointer::at(1, 8192);

using Bytes = std::vector<std::uint8_t>;

Bytes value_of(std::uint64_t n) {
  Bytes value(16);
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<std::uint8_t>(n * 37 + i * 11);
  return value;
}

// A leaf with the keys first, first + 1, ….
Bytes leaf_with(std::uint64_t version, Key first, std::size_t entries, std::uint64_t value) {
  const Bytes bytes_of_value = value_of(value);
  std::vector<Entry> list;
  for (std::size_t i = 0; i < entries; ++i) list.push_back({true, first + i, bytes_of_value});
  Bytes bytes(kGeometry.node_bytes);
  Leaf(bytes, kGeometry).build({.version = version, .low = first, .last = first + 99, .self = kSelf}, list);
  return bytes;
}

bool whole(Bytes& bytes) {
  const Leaf leaf(bytes, kGeometry);
  if (!leaf.frame_whole(kSelf)) return false;
  for (std::uint32_t i = 0; i < kGeometry.leaf_slots(); ++i) {
    Entry entry;
    if (!leaf.entry(i, entry)) return false;
  }
  return true;
}

// As published: four bits of version before and behind, alone.
bool whole_as_published(const Bytes& bytes) {
  const auto agree = [&](std::size_t before, std::size_t behind) {
    return (bytes[before] & 15) == (bytes[behind] & 15);
  };
  bool all = agree(0, bytes.size() - 16);
  for (std::uint32_t i = 0; i < kGeometry.leaf_slots(); ++i) {
    const std::size_t slot = 64 + std::size_t{i} * kGeometry.entry_bytes();
    all = all && agree(slot, slot + kGeometry.entry_bytes() - 8);
  }
  return all;
}

// What a reader has who read up to `cut` before and the rest after.
Bytes torn(const Bytes& before, const Bytes& after, std::size_t cut) {
  Bytes bytes = before;
  std::copy(after.begin() + static_cast<std::ptrdiff_t>(cut), after.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(cut));
  return bytes;
}

TEST(Geometry, RefusesChunksWhoseWordsWouldNotBeAligned) {
  Geometry geometry = kGeometry;
  EXPECT_STREQ(geometry.refusal(), "");
  geometry.chunk_bytes += 4;
  EXPECT_STRNE(geometry.refusal(), "");
}

TEST(ShermanLayout, SaysWhatWasPutIn) {
  Bytes bytes = leaf_with(7, 100, 5, 1);
  Leaf leaf(bytes, kGeometry);
  ASSERT_TRUE(whole(bytes));
  const NodeHeader header = leaf.header();
  EXPECT_EQ(header.version, 7u);
  EXPECT_EQ(header.low, 100u);
  EXPECT_EQ(header.last, 199u);
  EXPECT_EQ(header.self, kSelf);
  const Bytes two = value_of(2);
  leaf.set_entry(3, {true, 177, ByteView(two).first(9)});
  Entry entry;
  ASSERT_TRUE(leaf.entry(3, entry));
  EXPECT_EQ(entry.key, 177u);
  EXPECT_TRUE(std::ranges::equal(entry.value, ByteView(two).first(9)));
  leaf.set_entry(3, {});
  ASSERT_TRUE(leaf.entry(3, entry));
  EXPECT_FALSE(entry.used);
  EXPECT_FALSE(leaf.frame_whole(NodePointer::at(1, 8704))) << "another node's bytes";
}

TEST(ShermanLayout, ADamagedByteAnywhereIsNoticed) {
  const Bytes good = leaf_with(3, 0, kGeometry.leaf_slots(), 5);
  const std::size_t used = 64 + kGeometry.leaf_slots() * kGeometry.entry_bytes();
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (i >= used && i < good.size() - 16) continue;  // nothing is there
    if (i >= good.size() - 8) continue;               // of internal nodes only
    Bytes bad = good;
    bad[i] ^= 0x10;
    EXPECT_FALSE(whole(bad)) << "byte " << i;
  }
}

// An entry is written sixteen times between two halves of a reader's READ: four bits of version are the same again.
TEST(ShermanLayout, SixteenWritesInAReadEscapeTheOriginalsVersionsButNotTheChecks) {
  const Bytes before = leaf_with(1, 0, 4, 1);
  Bytes after = before;
  for (std::uint64_t i = 0; i < 16; ++i) Leaf(after, kGeometry).set_entry(2, {true, 2, value_of(100 + i)});
  ASSERT_TRUE(whole(after));
  const std::size_t middle = 64 + 2 * kGeometry.entry_bytes() + 24;  // within the value
  Bytes mixed = torn(before, after, middle);
  EXPECT_TRUE(whole_as_published(mixed));
  EXPECT_FALSE(whole(mixed));
}

// A READ need not take a node's bytes in rising order: head and tail after a split, the slots before it.
TEST(ShermanLayout, ASplitSeenOutOfOrderEscapesTheOriginalsVersionsButNotTheChecks) {
  Bytes before = leaf_with(1, 0, 8, 1);
  Bytes after = leaf_with(2, 0, 4, 1);
  const std::size_t slots_end = 64 + kGeometry.leaf_slots() * kGeometry.entry_bytes();
  Bytes mixed = after;
  std::copy(before.begin() + 64, before.begin() + static_cast<std::ptrdiff_t>(slots_end), mixed.begin() + 64);
  EXPECT_TRUE(whole_as_published(mixed)) << "keys are believed to be in a leaf that they have left";
  EXPECT_FALSE(whole(mixed));
}

TEST(ShermanLayout, NoMixtureOfTwoLeavesIsTakenForOne) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const Bytes before = leaf_with(1 + rng.below(3), rng.below(3), rng.below(9), rng.below(4));
    Bytes after = leaf_with(1 + rng.below(3), rng.below(3), rng.below(9), rng.below(4));
    for (std::uint64_t i = rng.below(20); i > 0; --i) {
      Leaf(after, kGeometry)
          .set_entry(static_cast<std::uint32_t>(rng.below(kGeometry.leaf_slots())), {true, rng.below(9), value_of(i)});
    }
    for (std::size_t cut = 8; cut < before.size(); cut += 8) {
      Bytes mixed = torn(before, after, cut);
      if (!whole(mixed)) continue;
      // Believed: then every slot is one that stood in a leaf with this header.
      const Leaf leaf(mixed, kGeometry);
      Bytes first = before;
      const Bytes& rest = after;
      const bool of_one_version = Leaf(first, kGeometry).header().version == leaf.header().version &&
                                  parse_header(rest).version == leaf.header().version;
      ASSERT_TRUE(mixed == before || mixed == after || of_one_version) << "round " << round << " cut " << cut;
    }
  }
}

TEST(ShermanLayout, AnInternalNodeLeadsToTheChildThatCoversTheKey) {
  Bytes bytes(kGeometry.node_bytes);
  std::vector<Separator> separators;
  for (std::uint64_t i = 1; i <= kGeometry.separators(); ++i)
    separators.push_back({i * 10, NodePointer::at(0, 4096 + i)});
  const NodeHeader header{.version = 4,
                          .last = 999,
                          .self = kSelf,
                          .leftmost = NodePointer::at(0, 4096),
                          .level = 2,
                          .count = static_cast<std::uint16_t>(separators.size())};
  build_internal(bytes, header, separators);
  ASSERT_TRUE(internal_whole(bytes, kSelf));
  for (Key key = 0; key < 999; ++key) {
    const auto index = std::min<std::uint64_t>(key / 10, separators.size());
    ASSERT_EQ(child_for(bytes, key), NodePointer::at(0, 4096 + index)) << key;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes bad = bytes;
    bad[i] ^= 1;
    const bool unused = i >= bytes.size() - 4;
    EXPECT_EQ(internal_whole(bad, kSelf), unused) << "byte " << i;
  }
}

TEST(ShermanLayout, ARecordCountsForTheWordThatItNamesAndOnlyWhole) {
  const auto word = LockWord::of(3, 77);
  Bytes bytes(kGeometry.record_bytes());
  const Bytes what = value_of(9);
  put_record(bytes, word, 12345, what);
  Record record;
  ASSERT_TRUE(parse_record(bytes, word, record));
  EXPECT_EQ(record.target, 12345u);
  EXPECT_TRUE(std::ranges::equal(record.bytes, what));
  EXPECT_TRUE(parse_record(bytes, word.next_attempt().next_attempt(), record)) << "a recovery that is itself recovered";
  EXPECT_FALSE(parse_record(bytes, LockWord::of(3, 78), record));
  EXPECT_FALSE(parse_record(bytes, LockWord::of(4, 77), record));
  for (std::size_t i = 0; i < 32 + what.size(); ++i) {
    if (i >= 24 && i < 32) continue;
    Bytes bad = bytes;
    bad[i] ^= 1;
    EXPECT_FALSE(parse_record(bad, word, record)) << "byte " << i;
  }
}

TEST(ShermanLayout, RecoveryKeepsTheNameOfTheHolderAndChangesTheWord) {
  LockWord word = LockWord::of(0xF'FFFF, ~std::uint64_t{0});
  for (int i = 0; i < 40; ++i) {
    const LockWord next = word.next_attempt();
    EXPECT_NE(next.raw, word.raw);
    EXPECT_TRUE(next.in_recovery());
    EXPECT_EQ(next.holder(), word.holder());
    word = next;
  }
}

TEST(ShermanLayout, AChunkSaysWhoseItIsAndIntoWhatItIsCut) {
  for (const std::uint32_t length : {1u, 40u, 100u, 1000u, 1u << 24}) {
    const std::uint32_t bytes = Geometry::block_bytes(length);
    const auto owner = ChunkOwner::of(0xF'FFFE, bytes, 0x123'4567);
    EXPECT_EQ(owner.client(), 0xF'FFFEu);
    EXPECT_EQ(owner.block_bytes(), bytes);
    EXPECT_NE(owner.raw, ChunkOwner::of(0xF'FFFE, bytes, 0x123'4568).raw);
    EXPECT_NE(owner.raw, kFounder.raw);
  }
  EXPECT_EQ(ChunkOwner::of(1, 0, 1).block_bytes(), 0u);
}

TEST(ShermanLayout, NothingOverlapsInAHeap) {
  const std::vector<MemoryNode> nodes(2, MemoryNode{{remote::NodeId(0), remote::RegionKey(1), 0x1000}, 1 << 20, {}});
  const MemoryMap map(nodes, kGeometry);
  const auto chunks = map.chunks(1);
  ASSERT_GT(chunks, 100u);
  const std::uint64_t heap = 0x1000;
  EXPECT_EQ(map.owner_of_chunk(1, 0).address, heap + kSuperblockBytes);
  EXPECT_LE(map.owner_of_chunk(1, chunks - 1).address + 8, map.record(1, 0).address);
  EXPECT_LE(map.record(1, kGeometry.locks - 1).address + kGeometry.record_bytes(),
            heap + map.start_of_chunk(1, 0).offset());
  EXPECT_LE(map.start_of_chunk(1, chunks - 1).offset() + kGeometry.chunk_bytes, std::uint64_t{1} << 20);
}

TEST(ShermanLayout, ALongValuesBlockIsOfItsEntryOrNot) {
  EXPECT_EQ(Geometry::block_bytes(0), 64u);
  EXPECT_EQ(Geometry::block_bytes(40), 64u);
  EXPECT_EQ(Geometry::block_bytes(41), 96u);
  EXPECT_EQ(Geometry::block_bytes(1000), 1024u);
  EXPECT_EQ(Geometry::block_bytes(1001), 1536u);
  const Bytes value(100, 7);
  const FarValue far{.block = NodePointer::at(1, 8192), .tag = 5, .length = 100};
  std::array<std::uint8_t, kFarBytes> name{};
  put_far_value(name, far);
  const FarValue named = far_value({.used = true, .key = 9, .value = name, .far = true});
  EXPECT_EQ(named.block, far.block);
  EXPECT_EQ(named.tag, far.tag);
  EXPECT_EQ(named.length, far.length);
  Bytes block(kBlockHeader + 100);
  put_block(block, 9, far, value);
  EXPECT_TRUE(is_block(block, 9, far));
  EXPECT_FALSE(is_block(block, 8, far));
  EXPECT_FALSE(is_block(block, 9, {far.block, 6, 100}));
  EXPECT_FALSE(is_block(block, 9, {far.block, 5, 99}));
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i] ^= 1;
    EXPECT_FALSE(is_block(block, 9, far)) << i;
    block[i] ^= 1;
  }
}

TEST(ShermanLayout, ASuperblockIsReadBackAndZeroesAreNone) {
  Bytes bytes(kSuperblockRead);
  Superblock read;
  EXPECT_FALSE(parse_superblock(bytes, read));
  Geometry other = kGeometry;
  other.value_bytes = kFarBytes;
  other.long_bytes = 1000;
  const MutableBytes head = MutableBytes(bytes).first(kMakerOffset);
  put_superblock(
      head, {.geometry = other, .nodes = 5, .index = 4, .tree_id = 0xFEDC'BA98, .heap_bytes = std::uint64_t{1} << 40});
  ASSERT_TRUE(parse_superblock(bytes, read));
  EXPECT_EQ(read.geometry, other);
  EXPECT_EQ(read.nodes, 5u);
  EXPECT_EQ(read.index, 4u);
  EXPECT_EQ(read.tree_id, 0xFEDC'BA98);
  EXPECT_EQ(read.heap_bytes, std::uint64_t{1} << 40);
  for (const std::size_t byte : {30u, 45u, 50u}) {
    bytes[byte] ^= 1;
    EXPECT_FALSE(parse_superblock(bytes, read)) << byte;
    bytes[byte] ^= 1;
  }
}

}  // namespace
}  // namespace sluice::sherman
