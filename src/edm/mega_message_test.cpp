// Mega-messages: where each write's bytes stand, and what a grant sends.
#include "edm/mega_message.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice::edm {
namespace {

using Piece = MegaMessage::Piece;

TEST(MegaMessage, OfOneWriteIsTheWriteInItsChunks) {
  MegaMessage message({.chunk_bytes = 256, .framing_blocks = 3});
  message.add(300);
  EXPECT_EQ(message.bytes(), 300u);
  std::vector<Piece> pieces;
  message.grant(256, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].blocks, 3u + 32u);
  EXPECT_FALSE(pieces[0].last_of_write);
  message.grant(44, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].from, 256u);
  EXPECT_EQ(pieces[0].blocks, 3u + 6u);
  EXPECT_TRUE(pieces[0].last_of_write && message.all_granted());
}

TEST(MegaMessage, PutsThreeLinesIntoAChunkWithTheirFraming) {
  MegaMessage message({.chunk_bytes = 256, .framing_blocks = 3});
  for (int i = 0; i < 3; ++i) message.add(64);
  EXPECT_EQ(message.bytes(), 64u * 3 + 24u * 2);
  EXPECT_EQ(message.bytes_with(64), 256u + 64u);  // 16 bytes are left of the chunk: less than framing
  std::vector<Piece> pieces;
  message.grant(240, pieces);
  ASSERT_EQ(pieces.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pieces[i].block, i * 11);
    EXPECT_EQ(pieces[i].blocks, 11u);
    EXPECT_EQ(pieces[i].last_of_chunk, i == 2);
  }
}

// Whatever is put together: each byte is sent once and in order, and what a grant sends fits the time for which its ports are taken.
TEST(MegaMessage, SendsEveryByteOnceInOrderAndKeepsWithinItsGrants) {
  for (std::uint64_t seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const MegaLayout layout{.chunk_bytes = 64u << rng.below(4),
                            .framing_blocks = static_cast<std::uint32_t>(rng.below(6))};
    MegaMessage message(layout);
    std::vector<std::uint32_t> writes;
    for (std::uint64_t i = 0, n = 1 + rng.below(20); i < n; ++i) {
      writes.push_back(1 + static_cast<std::uint32_t>(rng.below(rng.below(2) == 0 ? 80 : 700)));
      const std::uint32_t with = message.bytes_with(writes.back());
      message.add(writes.back());
      ASSERT_EQ(message.bytes(), with);
    }
    std::size_t write = 0;
    std::uint32_t sent = 0;  // of it
    std::uint32_t granted = 0;
    std::vector<Piece> pieces;
    while (!message.all_granted()) {
      const std::uint32_t bytes = std::min(layout.chunk_bytes, message.bytes() - granted);
      message.grant(bytes, pieces);
      granted += bytes;
      ASSERT_FALSE(pieces.empty());
      std::uint32_t block = 0;
      for (const Piece& piece : pieces) {
        ASSERT_EQ(piece.write, write);
        ASSERT_EQ(piece.from, sent);
        ASSERT_EQ(piece.block, block);  // none between two
        ASSERT_EQ(piece.blocks, layout.framing_blocks + (piece.bytes + 7) / 8);
        ASSERT_EQ(piece.last_of_chunk, &piece == &pieces.back());
        block += piece.blocks;
        sent += piece.bytes;
        ASSERT_EQ(piece.last_of_write, sent == writes[write]);
        if (!piece.last_of_write) continue;
        ++write;
        sent = 0;
      }
      ASSERT_LE(block, layout.framing_blocks + (bytes + 7) / 8);
    }
    ASSERT_EQ(write, writes.size());
  }
}

}  // namespace
}  // namespace sluice::edm
