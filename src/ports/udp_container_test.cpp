#include "ports/udp_container.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/rng.h"

namespace sluice::ports {
namespace {

using port::kMaxFrame;

constexpr ContainerHeader kHeader{.kind = ContainerKind::kData, .sender = SessionId(7), .receiver = SessionId(9)};

bool put(ContainerTrain& train, std::uint8_t fill, std::size_t length) {
  std::uint8_t* room = train.reserve(length);
  if (room == nullptr) return false;
  std::fill_n(room, length, fill);
  train.commit(length);
  return true;
}

// The frames of all datagrams, in order; fails on anything wrong.
std::vector<std::vector<std::uint8_t>> unpack(ContainerTrain& train) {
  std::vector<std::vector<std::uint8_t>> frames;
  for (const auto& datagram : train.datagrams()) {
    const auto bytes = train.bytes(datagram);
    const auto header = ContainerHeader::parse(bytes);
    EXPECT_TRUE(header && header->sender == kHeader.sender && header->receiver == kHeader.receiver);
    ContainerReader reader(bytes);
    std::uint32_t count = 0;
    for (; const auto frame = reader.next(); ++count) frames.emplace_back(frame->data, frame->data + frame->length);
    EXPECT_FALSE(reader.malformed());
    EXPECT_EQ(count, datagram.frames);
  }
  return frames;
}

TEST(UdpContainer, CarriesManyFramesInOneDatagram) {
  ContainerTrain train(1 << 16);
  for (std::uint8_t i = 0; i < 100; ++i) ASSERT_TRUE(put(train, i, 60u + i));
  train.close(kHeader);
  ASSERT_EQ(train.datagrams().size(), 1u);
  const auto frames = unpack(train);
  ASSERT_EQ(frames.size(), 100u);
  for (std::uint8_t i = 0; i < 100; ++i) EXPECT_EQ(frames[i], std::vector<std::uint8_t>(60u + i, i));
}

TEST(UdpContainer, BeginsANewDatagramWhereAFrameNoLongerFits) {
  ContainerTrain train(1 << 16);
  train.set_datagram(1472, Padding::kNone);
  for (std::uint8_t i = 0; i < 50; ++i) ASSERT_TRUE(put(train, i, 100));
  train.close(kHeader);
  ASSERT_EQ(train.datagrams().size(), 4u);
  for (const auto& datagram : train.datagrams()) EXPECT_LE(datagram.length, 1472u);
  EXPECT_EQ(unpack(train).size(), 50u);
}

TEST(UdpContainer, PadsAllButTheLastToEqualLengthSideBySide) {
  ContainerTrain train(1 << 16);
  train.set_datagram(1472, Padding::kToFullSize);
  for (std::uint8_t i = 0; i < 50; ++i) ASSERT_TRUE(put(train, i, 101));
  train.close(kHeader);
  const auto datagrams = train.datagrams();
  ASSERT_EQ(datagrams.size(), 4u);
  for (std::size_t i = 0; i + 1 < datagrams.size(); ++i) {
    EXPECT_EQ(datagrams[i].length, 1472u);
    EXPECT_EQ(datagrams[i].offset + datagrams[i].length, datagrams[i + 1].offset);
  }
  EXPECT_LT(datagrams.back().length, 1472u);
  EXPECT_EQ(unpack(train).size(), 50u);
}

TEST(UdpContainer, GivesAFrameBeyondTheLimitADatagramOfItsOwn) {
  ContainerTrain train(1 << 16);
  train.set_datagram(1472, Padding::kToFullSize);
  ASSERT_TRUE(put(train, 1, 100));
  ASSERT_TRUE(put(train, 2, kMaxFrame));
  ASSERT_TRUE(put(train, 3, 100));
  train.close(kHeader);
  ASSERT_EQ(train.datagrams().size(), 3u);
  EXPECT_EQ(train.datagrams()[1].length, kContainerHeader + kRecordPrefix + kMaxFrame);
  const auto frames = unpack(train);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[1].size(), kMaxFrame);
}

TEST(UdpContainer, RefusesWhenItsBufferIsFullAndGoesOnOnceSent) {
  ContainerTrain train(16 << 10);
  train.set_datagram(1000, Padding::kNone);
  std::size_t count = 0;
  while (put(train, 1, 200)) ++count;
  EXPECT_GE(count, 60u);
  train.close(kHeader);
  EXPECT_EQ(unpack(train).size(), count);
  train.sent(train.datagrams().size());
  EXPECT_TRUE(train.empty());
  EXPECT_TRUE(put(train, 1, 200));
}

TEST(UdpContainer, KeepsWhatWasNotSentYetAndAppends) {
  ContainerTrain train(1 << 16);
  train.set_datagram(1000, Padding::kNone);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(put(train, 1, 300));
  train.close(kHeader);
  ASSERT_EQ(train.datagrams().size(), 3u);
  train.sent(2);
  ASSERT_TRUE(put(train, 2, 300));
  train.close(kHeader);
  EXPECT_EQ(train.datagrams().size(), 2u);
  const auto frames = unpack(train);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[3][0], 2);
}

TEST(UdpContainer, ForgetsAReservation) {
  ContainerTrain train(1 << 16);
  ASSERT_NE(train.reserve(1000), nullptr);
  EXPECT_TRUE(train.empty());
  ASSERT_TRUE(put(train, 5, 10));
  train.close(kHeader);
  ASSERT_EQ(unpack(train).size(), 1u);
}

TEST(UdpContainer, RefusesForeignHeaders) {
  std::vector<std::uint8_t> bytes(kContainerHeader);
  kHeader.write(bytes.data());
  EXPECT_TRUE(ContainerHeader::parse(bytes));
  for (std::size_t length = 0; length < kContainerHeader; ++length) {
    EXPECT_FALSE(ContainerHeader::parse(ByteView(bytes).first(length)));
  }
  for (const std::size_t at : {0u, 1u, 2u, 3u}) {
    auto foreign = bytes;
    foreign[at] = 0xEE;
    EXPECT_FALSE(ContainerHeader::parse(foreign)) << at;
  }
}

TEST(UdpContainer, StopsAtARecordThatRunsOverTheEndOrIsTooLong) {
  std::vector<std::uint8_t> bytes(kContainerHeader + 2 + 10 + 2 + 10);
  kHeader.write(bytes.data());
  store_be<std::uint16_t>(&bytes[12], 10);
  for (const std::uint16_t length : std::to_array<std::uint16_t>({11, 0x1FFF, 0xFFFF})) {
    store_be<std::uint16_t>(&bytes[24], length);
    ContainerReader reader(bytes);
    EXPECT_TRUE(reader.next());
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.malformed());
    EXPECT_FALSE(reader.next());
  }
  std::vector<std::uint8_t> jumbo(20'000);
  kHeader.write(jumbo.data());
  store_be<std::uint16_t>(&jumbo[12], kMaxFrame + 1);
  ContainerReader reader(jumbo);
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.malformed());
}

TEST(UdpContainer, SurvivesAnyBytes) {
  Rng rng(5);
  for (int round = 0; round < 50'000; ++round) {
    std::vector<std::uint8_t> bytes(kContainerHeader + rng.below(200));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.below(4) == 0 ? rng.next() : 0);
    kHeader.write(bytes.data());
    ContainerReader reader(bytes);
    std::size_t total = 0;
    while (const auto frame = reader.next()) {
      ASSERT_GE(frame->data, bytes.data() + kContainerHeader);
      ASSERT_LE(frame->data + frame->length, bytes.data() + bytes.size());
      total += frame->length;
    }
    ASSERT_LE(total, bytes.size());
  }
}

}  // namespace
}  // namespace sluice::ports
