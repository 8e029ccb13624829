// Memory's blocks and frames on one link: what goes in comes out, in order, the decoder's stream is legal, and nobody waits longer than he must.
#include "edm/preemption.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>

#include "base/rng.h"

namespace sluice::edm {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Policy = TransmitMultiplexer::Policy;
using Neighbour = TransmitMultiplexer::Neighbour;

struct OwnedUnit {
  Unit unit;
  Bytes data;
};
bool same(const Unit& a, const Unit& b) {
  return a.kind == b.kind && a.port == b.port && a.to == b.to && a.id == b.id && a.bytes == b.bytes && a.op == b.op &&
         a.last == b.last && a.more == b.more && a.of_response == b.of_response && a.address == b.address &&
         std::ranges::equal(a.data, b.data);
}

OwnedUnit drawn_unit(Rng& rng) {
  static constexpr std::array kKinds{UnitKind::kReadLine, UnitKind::kReadShort, UnitKind::kRead,
                                     UnitKind::kWrite,    UnitKind::kModify,    UnitKind::kResponse,
                                     UnitKind::kNull,     UnitKind::kNotify,    UnitKind::kGrant};
  OwnedUnit out;
  Unit& u = out.unit;
  u.kind = kKinds.at(rng.below(kKinds.size()));
  u.port = PortId(static_cast<std::uint16_t>(rng.below(kMaxPorts)));
  u.id = MessageId(static_cast<std::uint8_t>(rng.below(256)));
  const bool carries = u.kind == UnitKind::kWrite || u.kind == UnitKind::kResponse;
  if (u.kind == UnitKind::kResponse || u.kind == UnitKind::kNull)
    u.to = PortId(static_cast<std::uint16_t>(rng.below(kMaxPorts)));
  if (u.kind == UnitKind::kReadLine) {
    u.bytes = kLineBytes;
    u.address = rng.below(kMaxLine + 1) * kLineBytes;
  } else if (u.kind != UnitKind::kNull && u.kind != UnitKind::kModify) {
    u.bytes = static_cast<std::uint32_t>(
        1 + rng.below(carries ? (rng.below(8) == 0 ? kMaxChunkBytes : 256) : kMaxMessageBytes));
  }
  if (u.kind == UnitKind::kModify) u.op = static_cast<ModifyOp>(1 + rng.below(3));
  if (u.kind == UnitKind::kWrite) u.more = rng.below(4) == 0;
  if (u.kind == UnitKind::kRead || u.kind == UnitKind::kWrite || u.kind == UnitKind::kModify) u.address = rng.next();
  if (u.kind == UnitKind::kReadShort) u.address = rng.below(kMaxShortAddress + 1);
  if (carries || u.kind == UnitKind::kGrant) u.last = rng.below(2) == 0;
  if (u.kind == UnitKind::kGrant) u.of_response = rng.below(2) == 0;
  if (carries) out.data.resize(u.bytes);
  if (u.kind == UnitKind::kModify) out.data.resize(u.op == ModifyOp::kCompareAndSwap ? 16 : 8);
  for (auto& byte : out.data) byte = static_cast<std::uint8_t>(rng.below(256));
  u.data = out.data;
  return out;
}
Bytes drawn_frame(Rng& rng) {
  Bytes frame(64 + rng.below(rng.below(4) == 0 ? 1'460 : 100));
  for (auto& byte : frame) byte = static_cast<std::uint8_t>(rng.below(256));
  return frame;
}

TEST(MemoryBlocks, ReadsEveryUnitThatItWrites) {
  Rng rng(1);
  UnitReader reader;
  std::array<Block, kMaxUnitBlocks> blocks;
  for (int i = 0; i < 20'000; ++i) {
    const OwnedUnit sent = drawn_unit(rng);
    const std::size_t n = write_unit(sent.unit, blocks);
    ASSERT_EQ(n, unit_blocks(sent.unit));
    for (std::size_t b = 0; b + 1 < n; ++b) ASSERT_EQ(reader.take(blocks[b]), UnitVerdict::kMore);
    ASSERT_EQ(reader.take(blocks[n - 1]), UnitVerdict::kWhole);
    ASSERT_TRUE(same(reader.unit(), sent.unit));
  }
}

TEST(MemoryBlocks, LiesInBitsAsItsTableSays) {
  std::array<Block, kMaxUnitBlocks> blocks;
  const Bytes data{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Unit write{.kind = UnitKind::kWrite,
                   .port = PortId(0x155),
                   .id = MessageId(0xa5),
                   .bytes = 9,
                   .last = true,
                   .address = 0x1122334455667788u,
                   .data = data};
  ASSERT_EQ(write_unit(write, blocks), 5u);
  const std::uint64_t header =
      0x1d | 2u << 8 | 0x155u << 11 | std::uint64_t{0xa5} << 20 | std::uint64_t{9} << 28 | std::uint64_t{1} << 55;
  EXPECT_EQ(blocks[0].payload << 8 >> 8, header);
  EXPECT_EQ(blocks[0].sync, Sync::kControl);
  EXPECT_EQ(blocks[1], (Block{Sync::kData, 0x1122334455667788u}));
  EXPECT_EQ(blocks[2], (Block{Sync::kData, 0x0807060504030201u}));
  EXPECT_EQ(blocks[3], (Block{Sync::kData, 9}));
  EXPECT_EQ(blocks[4].type(), 0x2e);
  EXPECT_EQ(blocks[4].payload >> 40 & 0xffff, 0u);
  EXPECT_EQ(destination_of(blocks[0]), PortId(0x155));

  Unit answer{.kind = UnitKind::kResponse, .port = PortId(1), .to = PortId(0x1aa), .bytes = 9, .data = data};
  ASSERT_EQ(write_unit(answer, blocks), 4u);
  EXPECT_EQ(blocks[0].payload << 8 >> 8,
            0x1d | 4u << 8 | 1u << 11 | std::uint64_t{9} << 28 | std::uint64_t{0x1aa} << 43);
  EXPECT_EQ(destination_of(blocks[0]), PortId(0x1aa));
  answer = {.kind = UnitKind::kNull, .port = PortId(1), .to = PortId(0x1aa), .data = {}};
  ASSERT_EQ(write_unit(answer, blocks), 1u);
  EXPECT_EQ(blocks[0].payload << 8 >> 8, 0x48 | 5u << 8 | 1u << 11 | std::uint64_t{0x1aa} << 43);
  EXPECT_EQ(destination_of(blocks[0]), PortId(0x1aa));

  const Unit read{.kind = UnitKind::kReadShort,
                  .port = PortId(0x155),
                  .id = MessageId(0xa5),
                  .bytes = 1'000,
                  .address = 0xfeedbeefcafeu,
                  .data = {}};
  ASSERT_EQ(write_unit(read, blocks), 2u);
  EXPECT_EQ(blocks[0].payload << 8 >> 8,
            0x1d | 6u << 8 | 0x155u << 11 | std::uint64_t{0xa5} << 20 | std::uint64_t{1'000} << 28);
  EXPECT_EQ(blocks[1].payload << 8 >> 8, 0x2e | std::uint64_t{0xfeedbeefcafeu} << 8);
}

TEST(MemoryBlocks, AReadsRequestIsAsShortAsItsAddressAllows) {
  const auto blocks = [](std::uint64_t address, std::uint32_t bytes) {
    return unit_blocks({.kind = read_kind(address, bytes), .bytes = bytes, .address = address, .data = {}});
  };
  EXPECT_EQ(blocks(kMaxLine * kLineBytes, kLineBytes), 1u);
  EXPECT_EQ(blocks((kMaxLine + 1) * kLineBytes, kLineBytes), 2u);
  EXPECT_EQ(blocks(0, kLineBytes + 1), 2u);
  EXPECT_EQ(blocks(8, kLineBytes), 2u);
  EXPECT_EQ(blocks(kMaxShortAddress, 1), 2u);
  EXPECT_EQ(blocks(kMaxShortAddress + 1, 1), 3u);
}

TEST(MemoryBlocks, HasTypesThatClashWithNoneAndBecomeNoneByAFlippedBit) {
  std::vector<unsigned> standard;
  std::vector<unsigned> ours;
  for (unsigned type = 0; type < 256; ++type) {
    if (decode({Sync::kControl, type}) != kErrorLanes) standard.push_back(type);
    if (is_memory_control({Sync::kControl, type})) ours.push_back(type);
  }
  ASSERT_EQ(standard.size(), 15u);
  ASSERT_EQ(ours.size(), 5u);
  for (const unsigned a : ours) {
    for (const unsigned b : standard) EXPECT_GE(std::popcount(a ^ b), 2);
    for (const unsigned b : ours) EXPECT_TRUE(a == b || std::popcount(a ^ b) >= 4);
  }
}

// What one, two or three flipped bits of the payloads do (three is what the descrambler makes of one on the line).
TEST(MemoryBlocks, NoticesFlippedBits) {
  Rng rng(2);
  std::array<Block, kMaxUnitBlocks> blocks;
  for (int i = 0; i < 20'000; ++i) {
    const OwnedUnit sent = drawn_unit(rng);
    const std::size_t n = write_unit(sent.unit, blocks);
    if (n > 40) continue;
    std::array<Block, kMaxUnitBlocks> before = blocks;
    for (std::uint64_t flips = 1 + rng.below(3); flips != 0; --flips)
      blocks[rng.below(n)].payload ^= std::uint64_t{1} << rng.below(64);
    if (std::equal(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(n), before.begin())) continue;
    UnitReader reader;
    for (std::size_t b = 0; b < n; ++b) ASSERT_NE(reader.take(blocks[b]), UnitVerdict::kWhole) << "round " << i;
  }
}

// One flipped bit on the line is three behind the descrambler, most of them in the next block: of another message perhaps, or of a grant inside this one.
TEST(MemoryBlocks, OneFlippedBitOnTheLineMakesNoUnitThatWasNotSent) {
  Rng rng(6);
  std::array<Block, kMaxUnitBlocks> blocks;
  std::uint64_t lost_two = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<OwnedUnit> sent;
    std::vector<Block> line{kIdleBlock};
    for (int u = 0; u < 4; ++u) {
      OwnedUnit& one = sent.emplace_back(drawn_unit(rng));
      const std::size_t n = write_unit(one.unit, blocks);
      if (n > 40) {
        sent.pop_back();
        continue;
      }
      const bool inside = n == 1 && line.size() > 2 && rng.below(2) == 0 && line.back() != kIdleBlock;
      line.insert(inside ? line.end() - 1 : line.end(), blocks.begin(),
                  blocks.begin() + static_cast<std::ptrdiff_t>(n));
    }
    line.push_back(kIdleBlock);
    Scrambler scrambler;
    Descrambler descrambler;
    const std::uint64_t spoilt = rng.below(line.size());
    UnitReader reader;
    std::size_t whole = 0;
    for (std::size_t b = 0; b < line.size(); ++b) {
      std::uint64_t payload = scrambler.scramble(line[b].payload);
      if (b == spoilt) payload ^= std::uint64_t{1} << rng.below(64);
      const Block came{line[b].sync, descrambler.descramble(payload)};
      if (reader.take(came) != UnitVerdict::kWhole) continue;
      ++whole;
      EXPECT_TRUE(std::ranges::any_of(sent, [&](const OwnedUnit& one) { return same(one.unit, reader.unit()); }))
          << "round " << i;
    }
    EXPECT_LE(whole, sent.size());
    lost_two += whole + 2 <= sent.size() ? 1u : 0u;
  }
  EXPECT_GT(lost_two, 1'000u);
}

// One flipped bit of a sync header, which no CRC covers.
TEST(MemoryBlocks, ABlockWhoseSyncHeaderIsNeitherOfTheTwoIsNoPartOfAUnit) {
  Rng rng(5);
  std::array<Block, kMaxUnitBlocks> blocks;
  for (int i = 0; i < 5'000; ++i) {
    const OwnedUnit sent = drawn_unit(rng);
    const std::size_t n = write_unit(sent.unit, blocks);
    const std::size_t spoilt = rng.below(n);
    blocks[spoilt].sync = rng.below(2) == 0 ? Sync{0b00} : Sync{0b11};
    EXPECT_FALSE(is_memory_control(blocks[spoilt]));
    EXPECT_FALSE(goes_through(blocks[spoilt]));
    EXPECT_FALSE(begins_write(blocks[spoilt]));
    UnitReader reader;
    for (std::size_t b = 0; b < n; ++b) ASSERT_NE(reader.take(blocks[b]), UnitVerdict::kWhole) << "round " << i;
    ReceiveSeparator separator;
    for (std::size_t b = 0; b < spoilt; ++b) EXPECT_TRUE(separator.receive(blocks[b]));
    EXPECT_FALSE(separator.receive(blocks[spoilt]));
  }
}

TEST(MemoryBlocks, DataThatLookLikeAGrantAreNoneWhenABitOfTheirSyncHeaderIsFlipped) {
  Block grant;
  write_unit({.kind = UnitKind::kGrant, .bytes = 256, .data = {}}, {&grant, 1});
  std::array<Block, kMaxUnitBlocks> blocks;
  Bytes data(24);
  store_le(data.data() + 8, grant.payload);
  write_unit({.kind = UnitKind::kResponse, .bytes = 24, .data = data}, blocks);
  ASSERT_EQ(blocks[2].payload, grant.payload);
  for (const Sync sync : {Sync{0b00}, Sync{0b11}}) {
    UnitReader reader;
    EXPECT_EQ(reader.take(blocks[0]), UnitVerdict::kMore);
    EXPECT_EQ(reader.take(blocks[1]), UnitVerdict::kMore);
    EXPECT_EQ(reader.take({sync, blocks[2].payload}), UnitVerdict::kBadCheck);
  }
}

TEST(MemoryBlocks, NamesWhatIsWrong) {
  std::array<Block, kMaxUnitBlocks> blocks;
  const Bytes data(24);
  const std::size_t n = write_unit({.kind = UnitKind::kResponse, .bytes = 24, .data = data}, blocks);
  ASSERT_EQ(n, 5u);
  UnitReader reader;
  EXPECT_EQ(reader.take(blocks[1]), UnitVerdict::kOutOfPlace);
  EXPECT_EQ(reader.take(blocks[4]), UnitVerdict::kOutOfPlace);
  reader.take(blocks[0]);
  reader.take(blocks[1]);
  EXPECT_EQ(reader.take(blocks[4]), UnitVerdict::kBadLength);
  reader.take(blocks[0]);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(reader.take(blocks[1]), UnitVerdict::kMore);
  EXPECT_EQ(reader.take(blocks[1]), UnitVerdict::kBadLength);
  reader.take(blocks[0]);
  EXPECT_EQ(reader.take(blocks[0]), UnitVerdict::kOutOfPlace);
  for (int i = 1; i < 4; ++i) reader.take(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(reader.take(blocks[4]), UnitVerdict::kWhole);
}

struct Link {
  TransmitMultiplexer transmit;
  ReceiveSeparator receive{};
  Scrambler scrambler{};
  Descrambler descrambler{};
  LaneWriter writer{};
  LaneReader reader{};
  UnitReader units{};
  StreamRule rule{};
  std::deque<Lanes> mac{};  // what the MAC has to send
  std::vector<Bytes> frames_came{};
  std::uint64_t blocks = 0;
  bool started = false;

  void send(const Bytes& frame) {
    std::vector<Lanes> lanes;
    writer.frame(frame, lanes);
    writer.idle(lanes);
    mac.insert(mac.end(), lanes.begin(), lanes.end());
  }
  // A block's time. Returns whether a unit of memory came.
  bool turn() {
    if (transmit.frame_has_room() && !mac.empty()) {
      transmit.offer_frame(encode(mac.front()));
      mac.pop_front();
    }
    Block block = transmit.next();
    block.payload = descrambler.descramble(scrambler.scramble(block.payload));
    ++blocks;
    bool whole = false;
    if (receive.receive(block)) {
      const UnitVerdict verdict = units.take(block);
      EXPECT_TRUE(verdict == UnitVerdict::kWhole || verdict == UnitVerdict::kMore) << to_string(verdict);
      whole = verdict == UnitVerdict::kWhole;
    }
    const Block decoded = receive.next();
    EXPECT_TRUE(rule.accept(decoded)) << fmt::format("block {}: {:016x}", blocks, decoded.payload);
    reader.take(decode(decoded), frames_came);
    return whole;
  }
};

TEST(Preemption, WhateverIsMixedInEverythingComesOutAsItWentIn) {
  for (std::uint64_t seed = 0; seed < 1'500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    Link link{.transmit{rng.below(2) == 0 ? Policy::kFair : Policy::kMemoryFirst, Neighbour::kEdm}};
    std::vector<Bytes> frames;
    // Single blocks may overtake messages, but no NULL does: each kind keeps its order.
    const auto overtakes = [](const Unit& unit) { return unit_blocks(unit) == 1 && unit.kind != UnitKind::kNull; };
    std::deque<OwnedUnit> singles;
    std::deque<OwnedUnit> messages;
    const std::uint64_t frame_rate = 1 + rng.below(60);
    const std::uint64_t unit_rate = 1 + rng.below(60);
    int units_sent = 0;
    for (int block = 0; block < 1'500; ++block) {
      if (block < 600 && rng.below(frame_rate) == 0 && link.mac.size() < 400)
        link.send(frames.emplace_back(drawn_frame(rng)));
      if (block < 600 && rng.below(unit_rate) == 0) {
        OwnedUnit unit = drawn_unit(rng);
        if (link.transmit.offer(unit.unit)) {
          (overtakes(unit.unit) ? singles : messages).push_back(std::move(unit));
          ++units_sent;
        }
      }
      ASSERT_LE(link.transmit.frame_waiting(), TransmitMultiplexer::kFrameBlocks);
      if (link.turn()) {
        auto& expected = overtakes(link.units.unit()) ? singles : messages;
        ASSERT_FALSE(expected.empty());
        ASSERT_TRUE(same(link.units.unit(), expected.front().unit));
        expected.pop_front();
      }
      if (HasFailure()) return;
    }
    for (int block = 0; block < 40'000 && link.frames_came.size() < frames.size(); ++block) {
      if (!link.turn()) continue;
      (overtakes(link.units.unit()) ? singles : messages).pop_front();
    }
    ASSERT_EQ(link.frames_came, frames);
    EXPECT_EQ(link.reader.broken(), 0u);
    EXPECT_EQ(link.receive.counters().broken_messages + link.receive.counters().frames_too_long, 0u);
    EXPECT_GT(units_sent, 0);
  }
}

// An answer's NULL goes along a circuit as its other answers' chunks do: it would take the next one's place.
TEST(Preemption, ANullDoesNotOvertakeTheAnswersBeforeIt) {
  const Bytes data(64, 1);
  const Unit answer{.kind = UnitKind::kResponse, .id = MessageId(1), .bytes = 64, .data = data};
  const Unit null{.kind = UnitKind::kNull, .id = MessageId(2), .data = {}};
  const Unit grant{.kind = UnitKind::kGrant, .id = MessageId(3), .bytes = 64, .data = {}};
  std::array<Block, kMaxUnitBlocks> blocks;
  for (const bool as_blocks : {false, true}) {
    Link link{.transmit{Policy::kFair, Neighbour::kEdm}};
    for (const Unit& unit : {answer, null, grant}) {
      const std::size_t n = as_blocks ? write_unit(unit, blocks) : 0;
      for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(link.transmit.offer(blocks[i]));
      ASSERT_TRUE(as_blocks || link.transmit.offer(unit));
    }
    std::vector<UnitKind> came;
    for (int i = 0; i < 20; ++i) {
      if (link.turn()) came.push_back(link.units.unit().kind);
    }
    EXPECT_EQ(came, (std::vector{UnitKind::kGrant, UnitKind::kResponse, UnitKind::kNull}));
  }
}

// How many blocks a one-block request waits behind a frame of that many bytes that has just begun.
TEST(Preemption, ARequestGoesBetweenTheBlocksOfAFrame) {
  for (const std::size_t bytes : {64u, 1'500u, 9'000u}) {
    Link link{.transmit{Policy::kFair, Neighbour::kEdm}};
    link.send(Bytes(bytes, 7));
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(link.turn());
    ASSERT_TRUE(link.transmit.offer({.kind = UnitKind::kReadLine, .bytes = 64, .address = 640, .data = {}}));
    EXPECT_TRUE(link.turn()) << bytes;
    for (int i = 0; i < 3'000; ++i) link.turn();
    EXPECT_EQ(link.frames_came, std::vector<Bytes>{Bytes(bytes, 7)});
  }
}

TEST(Preemption, FairGivesFramesAsManyBlocksAsMemoryAndMemoryFirstNone) {
  for (const Policy policy : {Policy::kFair, Policy::kMemoryFirst}) {
    Link link{.transmit{policy, Neighbour::kEdm}};
    link.send(Bytes(9'000, 7));
    const Bytes data(256, 1);
    std::uint64_t memory = 0;
    constexpr int kTurns = 700;
    for (int i = 0; i < kTurns; ++i) {
      while (link.transmit.memory_waiting() < 100) {
        ASSERT_TRUE(link.transmit.offer({.kind = UnitKind::kResponse, .bytes = 256, .data = data}));
      }
      if (link.turn()) memory += 34;
    }
    if (policy == Policy::kFair) {
      EXPECT_NEAR(static_cast<double>(memory), kTurns / 2, 40);
    } else {
      EXPECT_GT(memory, kTurns - 40u);
    }
  }
}

// Memory always has something; frames of that many bytes come for so many per cent of the link's time, to a MAC that sends idle blocks when it has none.
// Returns what they get.
double percent_of_frames(std::size_t bytes, std::size_t percent) {
  Link link{.transmit{Policy::kFair, Neighbour::kEdm}};
  const std::size_t blocks = (bytes + 20 + 7) / 8;  // with preamble, /T/ and the least gap
  const Bytes data(256, 1);
  constexpr std::size_t kTurns = 50'000;
  std::size_t sent = 0;
  for (std::size_t i = 0; i < kTurns; ++i) {
    if (link.mac.empty() && sent * blocks * 100 <= i * percent) {
      link.send(Bytes(bytes, 7));
      ++sent;
    }
    if (link.mac.empty()) link.mac.push_back(kIdleLanes);
    while (link.transmit.memory_waiting() < 100) {
      EXPECT_TRUE(link.transmit.offer({.kind = UnitKind::kResponse, .bytes = 256, .data = data}));
    }
    link.turn();
  }
  return 100.0 * static_cast<double>(link.frames_came.size() * blocks) / kTurns;
}

TEST(Preemption, FairIsFairToFramesWithGapsBetweenThem) {
  for (const std::size_t bytes : {64u, 1'500u}) {
    EXPECT_NEAR(percent_of_frames(bytes, 100), 50, 5) << bytes;
    EXPECT_NEAR(percent_of_frames(bytes, 90), 50, 5) << bytes;
    EXPECT_NEAR(percent_of_frames(bytes, 40), 40, 2) << bytes;
    EXPECT_NEAR(percent_of_frames(bytes, 20), 20, 1) << bytes;
  }
}

// However long memory has had the link for itself.
TEST(Preemption, AFrameAfterIdleTimeWaitsForOneMessageAndDoesNotStopMemory) {
  Link link{.transmit{Policy::kFair, Neighbour::kEdm}};
  link.mac.insert(link.mac.end(), 20'000, kIdleLanes);
  const Bytes data(256, 1);
  std::uint64_t memory = 0;
  int began = -1;
  const auto turn = [&](int i) {
    while (link.transmit.memory_waiting() < 100) {
      EXPECT_TRUE(link.transmit.offer({.kind = UnitKind::kResponse, .bytes = 256, .data = data}));
    }
    if (link.turn()) ++memory;
    if (began < 0 && link.receive.waiting() > 1) began = i;
  };
  for (int i = 0; !link.mac.empty(); ++i) turn(i);
  link.send(Bytes(9'000, 7));
  memory = 0;
  for (int i = 0; i < 1'000; ++i) turn(i);
  EXPECT_GE(began, 0);
  EXPECT_LE(began, 4 + 34);
  EXPECT_GE(memory, 12u);
}

TEST(Preemption, TakesIdleBlocksForMemoryAndHoldsNobodyUp) {
  Link link{.transmit{Policy::kFair, Neighbour::kEdm}};
  link.mac.insert(link.mac.end(), 100, kIdleLanes);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(link.transmit.offer({.kind = UnitKind::kNotify, .bytes = 8, .data = {}}));
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(link.turn());
  EXPECT_EQ(link.mac.size(), 40u);
}

TEST(Preemption, ANeighbourWithoutEdmIsSentNoneOfItsBlocks) {
  Link link{.transmit{Policy::kMemoryFirst, Neighbour::kPlain}};
  link.send(Bytes(200, 7));
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(link.transmit.offer({.kind = UnitKind::kNotify, .bytes = 8, .data = {}}));
    EXPECT_FALSE(link.turn());
  }
  EXPECT_EQ(link.frames_came.size(), 1u);
}

TEST(Preemption, DropsAFrameThatIsTooLongAndGoesOn) {
  Link link{.transmit{Policy::kFair, Neighbour::kEdm}, .receive = ReceiveSeparator(100)};
  link.send(Bytes(64, 1));
  link.send(Bytes(2'000, 2));
  link.send(Bytes(64, 3));
  for (int i = 0; i < 600; ++i) link.turn();
  EXPECT_EQ(link.frames_came, (std::vector<Bytes>{Bytes(64, 1), Bytes(64, 3)}));
  EXPECT_EQ(link.receive.counters().frames_too_long, 1u);
}

// Clause 49 lets an /E/ stand before an /S/ and behind a /T/.
TEST(Preemption, AFrameBesideErrorCharactersIsAFrame) {
  for (const unsigned at : {0u, 3u, 8u + 5u, 8u + 7u}) {
    std::vector<Lanes> lanes{kIdleLanes};
    lanes[0].set(4, lane::kStart, true);
    for (unsigned i = 5; i < 8; ++i) lanes[0].set(i, 0x55, false);
    for (std::uint64_t i = 0; i < 9; ++i) lanes.push_back({0x0101010101010101u * (i + 1), 0});
    Lanes last = kIdleLanes;
    last.set(4, lane::kTerminate, true);
    for (unsigned i = 0; i < 4; ++i) last.set(i, 0x66, false);
    lanes.push_back(last);
    (at < 8 ? lanes.front() : lanes.back()).set(at % 8, lane::kError, true);
    ReceiveSeparator receive;
    LaneReader reader;
    StreamRule rule;
    std::vector<Bytes> frames;
    Block single;
    write_unit({.kind = UnitKind::kNotify, .bytes = 8, .data = {}}, {&single, 1});
    const auto turn = [&](const Block& block) {
      receive.receive(block);
      const Block out = receive.next();
      EXPECT_TRUE(rule.accept(out));
      reader.take(decode(out), frames);
    };
    for (const Lanes& one : lanes) {
      turn(encode(one));
      turn(single);
    }
    for (int i = 0; i < 30; ++i) turn(kIdleBlock);
    EXPECT_EQ(frames.size(), 1u) << at;
    EXPECT_EQ(reader.broken(), 0u) << at;
  }
}

// The type of a request's last block is spoilt, and the sync header of the next one's first block: what is left begins with the one's address, and ends with
// the other's check, or address.
TEST(Preemption, TheBeginningOfOneMessageAndTheEndOfAnotherMakeNoUnit) {
  for (const UnitKind kind : {UnitKind::kReadShort, UnitKind::kRead}) {
    ReceiveSeparator receive;
    UnitReader reader;
    std::array<Block, 2> first;
    std::array<Block, 3> second;
    write_unit({.kind = UnitKind::kReadShort, .id = MessageId(1), .bytes = 8, .address = 0x1000, .data = {}}, first);
    const std::size_t blocks =
        write_unit({.kind = kind, .id = MessageId(2), .bytes = 8, .address = 0x2000, .data = {}}, second);
    first[1].payload ^= 1;
    second[0].sync = Sync{0b00};
    const auto take = [&](const Block& block) {
      if (receive.receive(block)) {
        EXPECT_NE(reader.take(block), UnitVerdict::kWhole);
      } else {
        reader.reset();
      }
    };
    for (const Block& block : first) take(block);
    for (std::size_t i = 0; i < blocks; ++i) take(second.at(i));
  }
}

TEST(Preemption, AMessageThatIsBrokenOffIsCountedAndTheFrameBehindItComes) {
  ReceiveSeparator receive;
  std::array<Block, kMaxUnitBlocks> blocks;
  const Bytes data(64);
  write_unit({.kind = UnitKind::kResponse, .bytes = 64, .data = data}, blocks);
  EXPECT_TRUE(receive.receive(blocks[0]));
  EXPECT_TRUE(receive.receive(blocks[1]));
  EXPECT_FALSE(receive.receive(kIdleBlock));
  EXPECT_EQ(receive.counters().broken_messages, 1u);
  EXPECT_FALSE(receive.receive({Sync::kData, 5}));
}

}  // namespace
}  // namespace sluice::edm
