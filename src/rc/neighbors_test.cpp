#include "rc/neighbors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "rc/neighbor_discovery.h"

namespace sluice::rc {
namespace {

using wire::Gid;
using wire::MacAddress;

const MacAddress kUs = *MacAddress::parse("02:00:00:00:00:01");
const MacAddress kPeer = *MacAddress::parse("02:00:00:00:00:02");
const Gid kUs4 = *Gid::parse("10.0.0.1");
const Gid kPeer4 = *Gid::parse("10.0.0.2");
const Gid kUs6 = *Gid::parse("fe80::a");
const Gid kPeer6 = *Gid::parse("fe80::b");

// Made by scapy 2.5, so that both our reading and our writing are checked by another's work.
constexpr std::string_view kArpRequestFromPeer =
    "ffffffffffff020000000002080600010800060400010200000000020a0000020000000000000a000001";
constexpr std::string_view kArpReplyOfOurs =
    "020000000002020000000001080600010800060400020200000000010a0000010200000000020a000002";
constexpr std::string_view kArpRequestOfOurs =
    "ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002";
constexpr std::string_view kArpReplyFromPeer =
    "020000000001020000000002080600010800060400020200000000020a0000020200000000010a000001";
constexpr std::string_view kProbeOfOurs =
    "ffffffffffff02000000000108060001080006040001020000000001000000000000000000000a000001";
constexpr std::string_view kSolicitationFromPeer =
    "3333ff00000a02000000000286dd6000000000203afffe80000000000000000000000000000bff0200000000000000000001ff00000a"
    "87007a7c00000000fe80000000000000000000000000000a0101020000000002";
constexpr std::string_view kAdvertisementOfOurs =
    "02000000000202000000000186dd6000000000203afffe80000000000000000000000000000afe80000000000000000000000000000b"
    "8800180160000000fe80000000000000000000000000000a0201020000000001";
constexpr std::string_view kSolicitationOfOurs =
    "3333ff00000b02000000000186dd6000000000203afffe80000000000000000000000000000aff0200000000000000000001ff00000b"
    "87007a7c00000000fe80000000000000000000000000000b0101020000000001";
constexpr std::string_view kAdvertisementFromPeer =  // S set, O clear
    "02000000000102000000000286dd6000000000203afffe80000000000000000000000000000bfe80000000000000000000000000000a"
    "880037ff40000000fe80000000000000000000000000000b0201020000000002";
constexpr std::string_view kAddressProbeFromPeer =
    "3333ff00000a02000000000286dd6000000000183aff00000000000000000000000000000000ff0200000000000000000001ff00000a"
    "87007c1300000000fe80000000000000000000000000000a";
constexpr std::string_view kAdvertisementOfOursToAll =
    "33330000000102000000000186dd6000000000203afffe80000000000000000000000000000aff020000000000000000000000000001"
    "8800578920000000fe80000000000000000000000000000a0201020000000001";

std::vector<std::uint8_t> from_hex(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(ByteView bytes) {
  std::string text;
  for (const std::uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

class Frames : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    if (full) return nullptr;
    buffer_.assign(length, 0xEE);
    return buffer_.data();
  }
  void commit(std::size_t length) override {
    buffer_.resize(length);
    frames.push_back(to_hex(buffer_));
  }
  std::vector<std::string> take() { return std::exchange(frames, {}); }

  std::vector<std::string> frames;
  bool full = false;

 private:
  std::vector<std::uint8_t> buffer_;
};

Time at_ms(std::int64_t ms) { return Time::at(Duration::milliseconds(ms)); }

class NeighborsTest : public testing::Test {
 protected:
  bool receive(std::string_view hex) { return neighbors.on_frame(now, from_hex(hex)); }
  std::vector<std::string> sent() {
    while (neighbors.poll_transmit(now, frames)) {
    }
    return frames.take();
  }

  Time now = at_ms(5);
  Neighbors neighbors{{.mac = kUs, .own = {kUs4, kUs6}, .capacity = 4}};
  Frames frames;
};

using Hexes = std::vector<std::string>;

TEST_F(NeighborsTest, AnswersArpForItsOwnAddressOnly) {
  EXPECT_TRUE(receive(kArpRequestFromPeer));
  EXPECT_EQ(sent(), Hexes{std::string(kArpReplyOfOurs)});
  std::string other(kArpRequestFromPeer);
  other.replace(other.size() - 2, 2, "09");
  EXPECT_TRUE(receive(other));
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(neighbors.counters().answered, 1u);
}

TEST_F(NeighborsTest, AnswersSolicitationsAndAddressProbes) {
  EXPECT_TRUE(receive(kSolicitationFromPeer));
  EXPECT_EQ(sent(), Hexes{std::string(kAdvertisementOfOurs)});
  EXPECT_TRUE(receive(kAddressProbeFromPeer));
  EXPECT_EQ(sent(), Hexes{std::string(kAdvertisementOfOursToAll)});
}

TEST_F(NeighborsTest, ResolvesAnIpv4Address) {
  EXPECT_EQ(neighbors.lookup(kPeer4), std::nullopt);
  neighbors.resolve(now, kPeer4);
  neighbors.resolve(now, kPeer4);
  EXPECT_EQ(sent(), Hexes{std::string(kArpRequestOfOurs)}) << "asked once, however often it is wanted";
  EXPECT_FALSE(neighbors.poll_resolution());
  EXPECT_TRUE(receive(kArpReplyFromPeer));
  EXPECT_EQ(neighbors.lookup(kPeer4), kPeer);
  const auto resolution = neighbors.poll_resolution();
  ASSERT_TRUE(resolution);
  EXPECT_EQ(resolution->gid, kPeer4);
  EXPECT_EQ(resolution->mac, kPeer);
  EXPECT_FALSE(neighbors.poll_resolution());
}

TEST_F(NeighborsTest, ResolvesAnIpv6Address) {
  neighbors.resolve(now, kPeer6);
  EXPECT_EQ(sent(), Hexes{std::string(kSolicitationOfOurs)});
  EXPECT_TRUE(receive(kAdvertisementFromPeer));
  EXPECT_EQ(neighbors.lookup(kPeer6), kPeer);
}

TEST_F(NeighborsTest, TakesTheQuestionOfWhomItAsksForAsTheAnswer) {
  neighbors.resolve(now, kPeer4);
  receive(kArpRequestFromPeer);
  EXPECT_EQ(neighbors.lookup(kPeer4), kPeer);
}

TEST_F(NeighborsTest, LearnsNothingThatItDidNotAskFor) {
  receive(kArpReplyFromPeer);
  receive(kArpRequestFromPeer);
  receive(kAdvertisementFromPeer);
  EXPECT_EQ(neighbors.size(), 0u);
  EXPECT_EQ(neighbors.counters().unsolicited, 2u);
  EXPECT_FALSE(neighbors.poll_resolution());
}

TEST_F(NeighborsTest, FollowsAKnownNeighbourToAnotherMac) {
  neighbors.resolve(now, kPeer4);
  receive(kArpReplyFromPeer);
  neighbors.poll_resolution();
  std::string moved(kArpRequestFromPeer);
  moved.replace(44, 12, "020000000077");  // its sender, asking from another card
  receive(moved);
  EXPECT_EQ(neighbors.lookup(kPeer4), *MacAddress::parse("02:00:00:00:00:77"));
  const auto resolution = neighbors.poll_resolution();
  ASSERT_TRUE(resolution);
  EXPECT_EQ(resolution->mac, *MacAddress::parse("02:00:00:00:00:77"));
  EXPECT_EQ(neighbors.counters().changed, 1u);
}

TEST_F(NeighborsTest, OverridesAKnownIpv6NeighbourOnlyWhenToldTo) {
  neighbors.resolve(now, kPeer6);
  receive(kAdvertisementFromPeer);
  NeighborMessage moved{.kind = NeighborMessage::Kind::kAdvertisement,
                        .source_mac = kPeer,
                        .destination_mac = kUs,
                        .source = kPeer6,
                        .destination = kUs6,
                        .target = kPeer6,
                        .link_layer = *MacAddress::parse("02:00:00:00:00:77"),
                        .solicited = true,
                        .override_known = false};
  std::vector<std::uint8_t> frame(NeighborMessage::kFrameSize);
  moved.write(frame.data());
  neighbors.on_frame(now, frame);
  EXPECT_EQ(neighbors.lookup(kPeer6), kPeer);
  moved.override_known = true;
  moved.write(frame.data());
  neighbors.on_frame(now, frame);
  EXPECT_EQ(neighbors.lookup(kPeer6), moved.link_layer);
}

TEST_F(NeighborsTest, AsksAgainAndAgainAndThenGivesUp) {
  neighbors.resolve(now, kPeer4);
  std::size_t asked = sent().size();
  std::vector<std::int64_t> waits;
  while (neighbors.next_deadline() != Time::never()) {
    const Time due = neighbors.next_deadline();
    waits.push_back((due - now).milliseconds());
    neighbors.on_deadline(due - Duration::picoseconds(1));
    EXPECT_TRUE(sent().empty()) << "too early";
    now = due;
    neighbors.on_deadline(now);
    asked += sent().size();
  }
  EXPECT_EQ(asked, 8u);
  EXPECT_EQ(waits, (std::vector<std::int64_t>{20, 40, 80, 160, 320, 640, 1000, 1000}));
  const auto resolution = neighbors.poll_resolution();
  ASSERT_TRUE(resolution);
  EXPECT_EQ(resolution->gid, kPeer4);
  EXPECT_EQ(resolution->mac, std::nullopt);
  neighbors.resolve(now, kPeer4);
  EXPECT_EQ(sent().size(), 1u) << "a failure is not remembered";
}

TEST_F(NeighborsTest, ForgetsWhatItHasNotHeardOfForLong) {
  neighbors.resolve(now, kPeer4);
  receive(kArpReplyFromPeer);
  now = now + Duration::seconds(599);
  neighbors.on_deadline(now);
  EXPECT_TRUE(neighbors.lookup(kPeer4));
  receive(kArpRequestFromPeer);  // heard of again
  now = now + Duration::seconds(599);
  neighbors.on_deadline(now);
  EXPECT_TRUE(neighbors.lookup(kPeer4));
  now = now + Duration::seconds(1);
  neighbors.on_deadline(now);
  EXPECT_FALSE(neighbors.lookup(kPeer4));
  EXPECT_EQ(neighbors.next_deadline(), Time::never());
}

TEST_F(NeighborsTest, MakesRoomByForgettingTheNeighbourHeardOfLongestAgo) {
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Gid gid = Gid::from(wire::Ipv4Address{0x0A000064 + i});
    neighbors.resolve(now, gid);
    if (i == 3) continue;  // under way: not forgotten
    std::string reply(kArpReplyFromPeer);
    reply.replace(62, 2, to_hex(std::array{static_cast<std::uint8_t>(0x64 + i)}));
    now = now + Duration::milliseconds(1);
    receive(reply);
    ASSERT_TRUE(neighbors.lookup(gid)) << i;
  }
  neighbors.resolve(now, kPeer4);
  EXPECT_EQ(neighbors.size(), 4u);
  EXPECT_FALSE(neighbors.lookup(Gid::from({0x0A000064})));
  EXPECT_TRUE(neighbors.lookup(Gid::from({0x0A000065})));
  EXPECT_EQ(neighbors.counters().evicted, 1u);
}

TEST_F(NeighborsTest, QuestionsTakeAtMostHalfOfTheRoomFromThoseThatAreKnown) {
  for (std::uint32_t i = 0; i < 4; ++i) {
    neighbors.resolve(now, Gid::from(wire::Ipv4Address{0x0A000064 + i}));
    std::string reply(kArpReplyFromPeer);
    reply.replace(62, 2, to_hex(std::array{static_cast<std::uint8_t>(0x64 + i)}));
    receive(reply);
  }
  for (std::uint32_t i = 0; i < 4; ++i) neighbors.resolve(now, Gid::from(wire::Ipv4Address{0x0A000074 + i}));
  EXPECT_EQ(neighbors.counters().evicted, 2u);
  EXPECT_EQ(neighbors.counters().failed, 2u);
  EXPECT_TRUE(neighbors.lookup(Gid::from({0x0A000066})));
  EXPECT_TRUE(neighbors.lookup(Gid::from({0x0A000067})));
}

TEST_F(NeighborsTest, RefusesWhenAllItsRoomIsTakenByQuestions) {
  for (std::uint32_t i = 0; i < 4; ++i) neighbors.resolve(now, Gid::from({0x0A000064 + i}));
  neighbors.resolve(now, kPeer4);
  const auto resolution = neighbors.poll_resolution();
  ASSERT_TRUE(resolution);
  EXPECT_EQ(resolution->gid, kPeer4);
  EXPECT_FALSE(resolution->mac);
}

TEST_F(NeighborsTest, KnowsItselfAndMulticastWithoutAsking) {
  EXPECT_EQ(neighbors.lookup(kUs4), kUs);
  EXPECT_EQ(neighbors.lookup(kUs6), kUs);
  EXPECT_EQ(neighbors.lookup(*Gid::parse("224.129.2.3")), *MacAddress::parse("01:00:5e:01:02:03"));
  EXPECT_EQ(neighbors.lookup(*Gid::parse("ff02::1:ff00:b")), *MacAddress::parse("33:33:ff:00:00:0b"));
  neighbors.resolve(now, kUs4);
  EXPECT_TRUE(sent().empty());
  ASSERT_TRUE(neighbors.poll_resolution());
}

TEST_F(NeighborsTest, CannotAskForAnAddressOfAKindItDoesNotHave) {
  Neighbors only_v4({.mac = kUs, .own = {kUs4}});
  only_v4.resolve(now, kPeer6);
  EXPECT_FALSE(only_v4.poll_transmit(now, frames));
  const auto resolution = only_v4.poll_resolution();
  ASSERT_TRUE(resolution);
  EXPECT_FALSE(resolution->mac);
}

TEST_F(NeighborsTest, AsksFromAnAddressOfTheSameScope) {
  Neighbors both({.mac = kUs, .own = {*Gid::parse("fd00::1"), kUs6}});
  both.resolve(now, kPeer6);
  both.poll_transmit(now, frames);
  EXPECT_EQ(frames.take(), Hexes{std::string(kSolicitationOfOurs)});
}

TEST_F(NeighborsTest, KeepsWhatItWantsToSayWhileTheSinkIsFull) {
  frames.full = true;
  receive(kArpRequestFromPeer);
  neighbors.resolve(now, kPeer4);
  EXPECT_TRUE(sent().empty());
  frames.full = false;
  EXPECT_EQ(sent(), (Hexes{std::string(kArpReplyOfOurs), std::string(kArpRequestOfOurs)}));
}

TEST_F(NeighborsTest, NoTryIsSpentWhileNothingCanLeave) {
  frames.full = true;
  neighbors.resolve(now, kPeer4);
  for (int i = 0; i < 1000; ++i) {
    sent();
    now = std::max(now, neighbors.next_deadline());
    neighbors.on_deadline(now);
  }
  EXPECT_EQ(neighbors.poll_resolution(), std::nullopt);
  frames.full = false;
  std::size_t asked = sent().size();
  while (neighbors.next_deadline() != Time::never()) {
    now = neighbors.next_deadline();
    neighbors.on_deadline(now);
    asked += sent().size();
  }
  EXPECT_EQ(asked, 8u);
  EXPECT_TRUE(neighbors.poll_resolution());
}

TEST_F(NeighborsTest, BoundsTheAnswersInLine) {
  for (std::size_t i = 0; i < Neighbors::kMaxAnswers + 3; ++i) receive(kArpRequestFromPeer);
  EXPECT_EQ(neighbors.counters().answers_dropped, 3u);
  EXPECT_EQ(sent().size(), Neighbors::kMaxAnswers);
}

TEST_F(NeighborsTest, CountsWhoeverClaimsItsAddress) {
  std::string claim(kArpReplyFromPeer);
  claim.replace(56, 8, "0a000001");
  receive(claim);
  EXPECT_EQ(neighbors.counters().conflicts, 1u);
  EXPECT_EQ(neighbors.lookup(kUs4), kUs);
}

TEST_F(NeighborsTest, FindsWhoHasItsAddressByAProbeThatNobodyLearnsFrom) {
  frames.full = true;
  neighbors.probe();
  EXPECT_TRUE(sent().empty());
  frames.full = false;
  EXPECT_EQ(sent(), Hexes{std::string(kProbeOfOurs)});
  EXPECT_TRUE(sent().empty());
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(neighbors.next_deadline(), now + Duration::milliseconds(200));
    now = neighbors.next_deadline();
    neighbors.on_deadline(now);
    EXPECT_EQ(sent(), Hexes{std::string(kProbeOfOurs)});
    EXPECT_TRUE(sent().empty());
  }
  EXPECT_EQ(neighbors.next_deadline(), Time::never());
  Neighbors twin({.mac = kPeer, .own = {kUs4}});
  Frames answers;
  EXPECT_TRUE(twin.on_frame(now, from_hex(kProbeOfOurs)));
  EXPECT_EQ(twin.counters().conflicts, 0u);
  while (twin.poll_transmit(now, answers)) continue;
  for (const std::string& answer : answers.take()) receive(answer);
  EXPECT_EQ(neighbors.counters().conflicts, 1u);
}

TEST_F(NeighborsTest, LeavesOtherFramesToOthers) {
  EXPECT_FALSE(receive("0200000000010200000000020800450000"));
  EXPECT_FALSE(receive("02000000"));
  std::string echo(kSolicitationFromPeer);
  echo.replace(108, 2, "80");  // ICMPv6 echo request
  EXPECT_FALSE(receive(echo));
}

TEST_F(NeighborsTest, RefusesEveryBrokenSolicitation) {
  // A wrong bit anywhere under the checksum, in the hop limit or in the version.
  const auto whole = from_hex(kSolicitationFromPeer);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    const std::size_t byte = bit / 8;
    if (byte < 14 || (byte > 14 && byte < 21)) continue;  // Ethernet; traffic class, flow label, length, next header
    if (byte == 14 && bit % 8 < 4) continue;
    auto frame = whole;
    frame[byte] = static_cast<std::uint8_t>(frame[byte] ^ 1 << bit % 8);
    EXPECT_FALSE(NeighborMessage::parse(frame)) << bit;
  }
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(NeighborMessage::parse(ByteView(whole).first(length))) << length;
  }
}

TEST_F(NeighborsTest, SurvivesNoise) {
  Rng rng(3);
  const std::vector<std::vector<std::uint8_t>> seeds = {from_hex(kArpRequestFromPeer), from_hex(kArpReplyFromPeer),
                                                        from_hex(kSolicitationFromPeer),
                                                        from_hex(kAdvertisementFromPeer)};
  for (int i = 0; i < 20'000; ++i) {
    auto frame = seeds[rng.below(seeds.size())];
    for (std::uint64_t n = rng.below(4); n > 0; --n)
      frame[rng.below(frame.size())] = static_cast<std::uint8_t>(rng.next());
    frame.resize(rng.below(frame.size() + 1));
    neighbors.on_frame(now, frame);
    if (rng.below(8) == 0) neighbors.resolve(now, rng.below(2) == 0 ? kPeer4 : kPeer6);
    now = now + Duration::microseconds(static_cast<std::int64_t>(rng.below(50'000)));
    neighbors.on_deadline(now);
    sent();
    ASSERT_LE(neighbors.size(), 4u);
  }
}

}  // namespace
}  // namespace sluice::rc
