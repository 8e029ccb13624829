// The 64b/66b code against the figures of Clause 49, and the scrambler against one that goes bit by bit.
#include "edm/pcs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "base/rng.h"

namespace sluice::edm {
namespace {

// "S 11 22 T I E Q" …: two letters a lane for data, one for a control character.
Lanes lanes_of(const std::vector<std::string>& each) {
  Lanes out;
  for (unsigned i = 0; i < 8; ++i) {
    const std::string& one = each.at(i);
    if (one == "S") out.set(i, lane::kStart, true);
    if (one == "T") out.set(i, lane::kTerminate, true);
    if (one == "I") out.set(i, lane::kIdle, true);
    if (one == "L") out.set(i, 0x06, true);
    if (one == "E") out.set(i, lane::kError, true);
    if (one == "Q") out.set(i, lane::kSequence, true);
    if (one == "F") out.set(i, lane::kSignal, true);
    if (one == "R") out.set(i, 0x7c, true);  // reserved2
    if (one.size() == 2) out.set(i, static_cast<std::uint8_t>(std::stoul(one, nullptr, 16)), false);
  }
  return out;
}

TEST(Pcs, EncodesEveryFormatOfTheStandardAsItsFigureDoes) {
  // Figure 49-7, worked out by hand: data D_i as 1i, so that each byte tells its lane.
  const std::vector<std::tuple<std::vector<std::string>, Sync, std::uint64_t>> formats{
      {{"10", "11", "12", "13", "14", "15", "16", "17"}, Sync::kData, 0x1716151413121110u},
      {{"I", "I", "I", "I", "I", "I", "I", "I"}, Sync::kControl, 0x000000000000001eu},
      {{"E", "E", "E", "E", "E", "E", "E", "E"}, Sync::kControl, 0x3c78f1e3c78f1e1eu},
      {{"I", "I", "I", "L", "I", "I", "I", "I"}, Sync::kControl, std::uint64_t{0x06} << 29 | 0x1e},
      {{"R", "I", "I", "I", "I", "I", "I", "I"}, Sync::kControl, std::uint64_t{0x4b} << 8 | 0x1e},
      {{"I", "I", "I", "I", "Q", "15", "16", "17"}, Sync::kControl, 0x171615000000002du},
      {{"I", "I", "I", "I", "F", "15", "16", "17"}, Sync::kControl, 0x171615f00000002du},
      {{"I", "I", "I", "I", "S", "15", "16", "17"}, Sync::kControl, 0x1716150000000033u},
      {{"Q", "11", "12", "13", "S", "15", "16", "17"}, Sync::kControl, 0x1716150013121166u},
      {{"F", "11", "12", "13", "Q", "15", "16", "17"}, Sync::kControl, 0x1716150f13121155u},
      {{"S", "11", "12", "13", "14", "15", "16", "17"}, Sync::kControl, 0x1716151413121178u},
      {{"Q", "11", "12", "13", "I", "I", "I", "I"}, Sync::kControl, 0x000000001312114bu},
      {{"T", "I", "I", "I", "I", "I", "I", "I"}, Sync::kControl, 0x0000000000000087u},
      {{"10", "T", "I", "I", "I", "I", "I", "I"}, Sync::kControl, 0x0000000000001099u},
      {{"10", "11", "T", "I", "I", "I", "I", "I"}, Sync::kControl, 0x00000000001110aau},
      {{"10", "11", "12", "T", "I", "I", "I", "I"}, Sync::kControl, 0x00000000121110b4u},
      {{"10", "11", "12", "13", "T", "I", "I", "I"}, Sync::kControl, 0x00000013121110ccu},
      {{"10", "11", "12", "13", "14", "T", "I", "I"}, Sync::kControl, 0x00001413121110d2u},
      {{"10", "11", "12", "13", "14", "15", "T", "I"}, Sync::kControl, 0x00151413121110e1u},
      {{"10", "11", "12", "13", "14", "15", "16", "T"}, Sync::kControl, 0x16151413121110ffu},
      {{"10", "T", "E", "I", "I", "I", "I", "I"}, Sync::kControl, std::uint64_t{0x1e} << 22 | 0x1099},
  };
  for (const auto& [text, sync, payload] : formats) {
    const Lanes lanes = lanes_of(text);
    const Block block = encode(lanes);
    EXPECT_EQ(block, (Block{sync, payload})) << fmt::format("{:016x} for {}", block.payload, fmt::join(text, " "));
    EXPECT_EQ(decode(block), lanes) << fmt::format("{}", fmt::join(text, " "));
  }
}

TEST(Pcs, MakesTheErrorBlockOfWhatNoFormatHas) {
  const Block error = encode(kErrorLanes);
  for (const std::vector<std::string>& text : {std::vector<std::string>{"I", "S", "12", "13", "14", "15", "16", "17"},
                                               {"10", "I", "12", "13", "14", "15", "16", "17"},
                                               {"S", "11", "12", "13", "T", "I", "I", "I"},
                                               {"10", "11", "12", "I", "I", "I", "I", "I"},
                                               {"I", "I", "E", "I", "I", "I", "I", "I"},
                                               {"E", "E", "E", "E", "E", "E", "E", "I"},
                                               {"T", "I", "I", "I", "S", "15", "16", "17"}}) {
    EXPECT_EQ(encode(lanes_of(text)), error) << fmt::format("{}", fmt::join(text, " "));
  }
  Lanes unknown = kIdleLanes;
  unknown.set(3, 0x77, true);
  EXPECT_EQ(encode(unknown), error);
}

TEST(Pcs, DecodesNoTypeAndNoCodeThatTheStandardLacks) {
  int types = 0;
  for (std::uint64_t type = 0; type < 256; ++type) types += decode({Sync::kControl, type}) != kErrorLanes ? 1 : 0;
  EXPECT_EQ(types, 15);
  EXPECT_EQ(decode({Sync::kControl, std::uint64_t{0x01} << 8 | 0x1e}), kErrorLanes);
  EXPECT_EQ(decode({Sync::kControl, std::uint64_t{0x3} << 36 | 0x2d}), kErrorLanes);
  EXPECT_EQ(class_of(encode(kErrorLanes)), BlockClass::kInvalid);
}

// Clause 49's R_TYPE: an /E/ is out of place only in a block of eight control characters.
TEST(Pcs, AnErrorCharacterSpoilsABlockOfControlCharactersAndNoOtherOne) {
  const std::uint64_t error_in_lane_2 = std::uint64_t{0x1e} << 22;
  EXPECT_EQ(decode({Sync::kControl, error_in_lane_2 | 0x1e}), kErrorLanes);
  EXPECT_EQ(class_of({Sync::kControl, error_in_lane_2 | 0x1e}), BlockClass::kInvalid);
  const auto class_of_lanes = [](const std::vector<std::string>& text) { return class_of(encode(lanes_of(text))); };
  EXPECT_EQ(class_of_lanes({"I", "E", "I", "I", "S", "15", "16", "17"}), BlockClass::kStart);
  EXPECT_EQ(class_of_lanes({"10", "T", "I", "E", "I", "I", "I", "I"}), BlockClass::kTerminate);
  EXPECT_EQ(class_of_lanes({"Q", "11", "12", "13", "I", "I", "E", "I"}), BlockClass::kControl);
}

TEST(Pcs, ABlockWhoseSyncHeaderIsNeitherOfTheTwoIsNoneWhateverItsPayloadSays) {
  for (const Sync sync : {Sync{0b00}, Sync{0b11}}) {
    for (std::uint64_t type = 0; type < 256; ++type) {
      EXPECT_EQ(decode({sync, type}), kErrorLanes) << type;
      EXPECT_EQ(class_of({sync, type}), BlockClass::kInvalid) << type;
    }
    const Block start = encode(lanes_of({"S", "11", "12", "13", "14", "15", "16", "17"}));
    const Block end = encode(lanes_of({"10", "T", "I", "I", "I", "I", "I", "I"}));
    StreamRule rule;
    EXPECT_FALSE(rule.accept({sync, kIdleBlock.payload}));
    EXPECT_FALSE(rule.accept({sync, start.payload}));
    EXPECT_TRUE(rule.accept(start));
    EXPECT_FALSE(rule.accept({sync, end.payload}));
    EXPECT_FALSE(rule.in_frame());
  }
}

TEST(Pcs, EveryBlockThatDecodesEncodesToWhatDecodesTheSame) {
  Rng rng(1);
  for (int i = 0; i < 100'000; ++i) {
    Block block{rng.below(4) == 0 ? Sync::kData : Sync::kControl, rng.next()};
    static constexpr std::array<std::uint8_t, 15> kTypes{0x1e, 0x2d, 0x33, 0x66, 0x55, 0x78, 0x4b, 0x87,
                                                         0x99, 0xaa, 0xb4, 0xcc, 0xd2, 0xe1, 0xff};
    if (!block.is_data()) block.payload = (block.payload & ~std::uint64_t{0xff}) | kTypes.at(rng.below(15));
    const Lanes lanes = decode(block);
    ASSERT_EQ(decode(encode(lanes)), lanes);
  }
}

TEST(Pcs, KnowsWhatMayFollowWhat) {
  const Block start = encode(lanes_of({"S", "11", "12", "13", "14", "15", "16", "17"}));
  const Block data{Sync::kData, 1};
  const Block end = encode(lanes_of({"10", "T", "I", "I", "I", "I", "I", "I"}));
  StreamRule rule;
  for (const Block& block : {kIdleBlock, start, data, data, end, start, end, kIdleBlock})
    EXPECT_TRUE(rule.accept(block));
  EXPECT_FALSE(rule.accept(data));
  EXPECT_FALSE(rule.accept(end));
  EXPECT_TRUE(rule.accept(start));
  EXPECT_FALSE(rule.accept(start));
  EXPECT_FALSE(StreamRule(rule).accept(kIdleBlock));
  EXPECT_FALSE(rule.accept(encode(kErrorLanes)));
}

TEST(Scrambler, IsTheOneThatGoesBitByBit) {
  Rng rng(2);
  Scrambler scrambler(0x123456789abcdef0u);
  std::vector<bool> line(64);
  for (unsigned i = 0; i < 64; ++i) line[i] = (0x123456789abcdef0u >> i & 1) != 0;
  for (int word = 0; word < 1'000; ++word) {
    const std::uint64_t payload = rng.next();
    std::uint64_t expected = 0;
    for (unsigned i = 0; i < 64; ++i) {
      const bool bit = ((payload >> i & 1) != 0) != (line[line.size() - 39] != line[line.size() - 58]);
      line.push_back(bit);
      expected |= std::uint64_t{bit} << i;
    }
    ASSERT_EQ(scrambler.scramble(payload), expected);
  }
}

TEST(Scrambler, IsUndoneAfterOneBlockWhateverTheStateWas) {
  Rng rng(3);
  Scrambler scrambler(rng.next());
  Descrambler descrambler;
  descrambler.descramble(scrambler.scramble(rng.next()));
  for (int i = 0; i < 1'000; ++i) {
    const std::uint64_t payload = rng.next();
    ASSERT_EQ(descrambler.descramble(scrambler.scramble(payload)), payload);
  }
}

TEST(Scrambler, MakesThreeOfAFlippedBit) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    Scrambler scrambler;
    Descrambler descrambler;
    int wrong = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t sent = scrambler.scramble(0x55);
      const std::uint64_t flipped = i == 1 ? sent ^ std::uint64_t{1} << bit : sent;
      wrong += std::popcount(descrambler.descramble(flipped) ^ 0x55);
    }
    EXPECT_EQ(wrong, 3);
  }
}

TEST(Lanes, FramesComeOutAsTheyWentIn) {
  Rng rng(4);
  LaneWriter writer;
  LaneReader reader;
  StreamRule rule;
  std::vector<std::vector<std::uint8_t>> sent;
  std::vector<std::vector<std::uint8_t>> came;
  std::vector<Lanes> lanes;
  for (int i = 0; i < 2'000; ++i) {
    if (rng.below(3) == 0) writer.idle(lanes);
    auto& frame = sent.emplace_back(64 + rng.below(200));
    for (auto& byte : frame) byte = static_cast<std::uint8_t>(rng.below(256));
    writer.frame(frame, lanes);
  }
  writer.idle(lanes);
  std::array<int, 256> types{};
  for (const Lanes& one : lanes) {
    const Block block = encode(one);
    ASSERT_TRUE(rule.accept(block));
    if (!block.is_data()) ++types.at(block.type());
    reader.take(decode(block), came);
  }
  EXPECT_EQ(came, sent);
  EXPECT_EQ(reader.broken(), 0u);
  for (const std::size_t type : {0x1eu, 0x33u, 0x78u, 0x87u, 0x99u, 0xaau, 0xb4u, 0xccu, 0xd2u, 0xe1u, 0xffu})
    EXPECT_GT(types.at(type), 0);
}

TEST(Lanes, AFrameThatIsBrokenOffIsCountedAndDropped) {
  LaneReader reader;
  std::vector<std::vector<std::uint8_t>> came;
  reader.take(lanes_of({"S", "55", "55", "55", "55", "55", "55", "d5"}), came);
  reader.take(lanes_of({"10", "11", "12", "13", "E", "15", "16", "17"}), came);
  reader.take(lanes_of({"10", "T", "I", "I", "I", "I", "I", "I"}), came);
  EXPECT_TRUE(came.empty());
  EXPECT_EQ(reader.broken(), 1u);
}

}  // namespace
}  // namespace sluice::edm
