#include "onerma/message.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"

namespace sluice::onerma {
namespace {

const Peer kTo{wire::MacAddress{{2, 0, 0, 0, 0, 2}}, wire::Ipv4Address{0x0A000002}, kUdpPort};
const FrameWriter kWriter(wire::MacAddress{{2, 0, 0, 0, 0, 1}}, wire::Ipv4Address{0x0A000001}, kUdpPort);

Header sample(Kind kind) {
  Header h{.kind = kind,
           .rights = kMayRead | kMayRekey,
           .op = OpId(0x1122'3344'5566'7788),
           .initiator = InitiatorId(0x99AA'BBCC'DDEE'FF00),
           .region = RegionId(0x0102'0304),
           .generation = Generation(0x0506'0708),
           .boot = Boot(0x0A'0B0C)};
  if (!is_request(kind)) h.counter = 0x0D0E'0F10'1112'1314;
  if (kind == Kind::kData) h.pull_boot = Boot(0x15'1617);
  if (kind == Kind::kData || kind == Kind::kPull) h.place = 0x1819;
  if (kind == Kind::kCompletion || kind == Kind::kRefusal) h.status = Status::kNack;
  return h;
}

std::size_t body_of(Kind kind) {
  switch (kind) {
    case Kind::kReadRequest:
    case Kind::kWriteRequest: return kRequestBody;
    case Kind::kData:
    case Kind::kReadResponse: return 100;
    case Kind::kRefusal: return kRefusalBody;
    default: return 0;
  }
}

std::vector<std::uint8_t> frame_of(const Header& header, std::size_t body) {
  std::vector<std::uint8_t> frame(FrameWriter::frame_size(body), 0xEE);
  kWriter.write(frame.data(), kTo, header, body);
  return frame;
}

constexpr Kind kKinds[] = {Kind::kReadRequest,  Kind::kWriteRequest, Kind::kRekeyRequest, Kind::kData,
                           Kind::kReadResponse, Kind::kPull,         Kind::kCompletion,   Kind::kRefusal};

TEST(Message, EveryKindReadsBackAsWritten) {
  for (const Kind kind : kKinds) {
    const auto frame = frame_of(sample(kind), body_of(kind));
    Message message;
    ASSERT_EQ(parse(frame, message), Verdict::kOk) << static_cast<int>(kind);
    EXPECT_EQ(message.header, sample(kind));
    EXPECT_EQ(message.body_length, body_of(kind));
    EXPECT_EQ(message.from.ip.value, 0x0A000001u);
    EXPECT_EQ(message.from.mac, (wire::MacAddress{{2, 0, 0, 0, 0, 1}}));
    EXPECT_EQ(message.to, kTo.ip);
  }
}

TEST(Message, TheChecksumOfEveryFramesIpHeaderIsRight) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t body = rng.below(kMaxOp + 1);
    const Peer to{{}, wire::Ipv4Address{static_cast<std::uint32_t>(rng.next())}, 1};
    std::vector<std::uint8_t> frame(FrameWriter::frame_size(body));
    kWriter.write(frame.data(), to, sample(Kind::kData), body);
    ASSERT_TRUE(wire::ipv4_checksum_is_right(frame.data() + wire::EthernetHeader::kSize));
  }
}

TEST(Message, AFrameCutAnywhereIsRefused) {
  for (const Kind kind : kKinds) {
    const auto frame = frame_of(sample(kind), body_of(kind));
    for (std::size_t length = 0; length < frame.size(); ++length) {
      Message message;
      EXPECT_NE(parse(ByteView(frame).first(length), message), Verdict::kOk);
    }
  }
}

TEST(Message, PaddingBehindTheFrameIsIgnored) {
  auto frame = frame_of(sample(Kind::kPull), 0);
  frame.resize(frame.size() + 40, 0x77);
  Message message;
  ASSERT_EQ(parse(frame, message), Verdict::kOk);
  EXPECT_EQ(message.body_length, 0u);
}

TEST(Message, EachWayToBeWrongHasItsVerdict) {
  const auto verdict_with = [](std::size_t at, std::uint8_t value, Kind kind = Kind::kReadRequest) {
    auto frame = frame_of(sample(kind), body_of(kind));
    frame[at] = value;
    Message message;
    return parse(frame, message);
  };
  EXPECT_EQ(verdict_with(12, 0x86), Verdict::kNotOurs);           // ether type
  EXPECT_EQ(verdict_with(14, 0x46), Verdict::kBadNetworkHeader);  // IP options
  EXPECT_EQ(verdict_with(23, 6), Verdict::kNotOurs);              // TCP
  EXPECT_EQ(verdict_with(20, 0x20), Verdict::kBadNetworkHeader);  // more fragments
  EXPECT_EQ(verdict_with(24, 0x5A), Verdict::kBadNetworkHeader);  // IP checksum
  EXPECT_EQ(verdict_with(36, 0x12), Verdict::kNotOurs);           // UDP port
  EXPECT_EQ(verdict_with(39, 9), Verdict::kBadNetworkHeader);     // UDP length
  EXPECT_EQ(verdict_with(kNetworkSize, 2), Verdict::kBadVersion);
  EXPECT_EQ(verdict_with(kNetworkSize + 1, 0), Verdict::kUnknownKind);
  EXPECT_EQ(verdict_with(kNetworkSize + 1, 9), Verdict::kUnknownKind);
  EXPECT_EQ(verdict_with(kNetworkSize + 1, 3), Verdict::kBadLength);  // a Rekey with a read's body
  EXPECT_EQ(verdict_with(kNetworkSize + 2, 2), Verdict::kBadField);   // flags
  EXPECT_EQ(verdict_with(kNetworkSize + 3, 8), Verdict::kBadField);   // rights
  EXPECT_EQ(verdict_with(kNetworkSize + 4, 1), Verdict::kBadField);   // a request has no status
  EXPECT_EQ(verdict_with(kNetworkSize + 4, kStatusCount, Kind::kCompletion), Verdict::kBadField);
  EXPECT_EQ(verdict_with(kNetworkSize + 4, 0, Kind::kRefusal), Verdict::kBadField);
  EXPECT_EQ(verdict_with(kNetworkSize + 5, 1), Verdict::kBadField);
  EXPECT_EQ(verdict_with(kNetworkSize + 7, 1), Verdict::kBadField);   // a place
  EXPECT_EQ(verdict_with(kNetworkSize + 32, 1), Verdict::kBadField);  // 24 bits of Boot
  EXPECT_EQ(verdict_with(kNetworkSize + 39, 1), Verdict::kBadField);
  EXPECT_EQ(verdict_with(kNetworkSize + 47, 1), Verdict::kBadField);  // a request has no counter
}

TEST(Message, NoncesOfWhatOneKeySealsDiffer) {
  std::set<Nonce> seen;
  for (const Kind kind : kKinds) {
    if (kind == Kind::kRefusal) continue;  // sealed by nobody
    Header h = sample(kind);
    // A counter and an OpId of one value.
    h.op = OpId(7);
    h.counter = is_request(kind) ? 0 : 7;
    const bool target = !is_to_target(kind);
    EXPECT_TRUE(seen.insert(nonce_of(h)).second || (target && seen.contains(nonce_of(h))));
    if (target) {
      h.counter = 8 + static_cast<std::uint64_t>(kind);  // a target counts: no two answers have one
      EXPECT_TRUE(seen.insert(nonce_of(h)).second);
    }
  }
}

TEST(Message, APlainFramesChecksumFindsEveryFlippedBit) {
  auto frame = frame_of(sample(Kind::kReadResponse), 100);
  write_checksum(frame.data(), 100);
  ASSERT_TRUE(checksum_is_right(frame.data(), 100));
  for (std::size_t bit = (kNetworkSize)*8; bit < frame.size() * 8; ++bit) {
    frame[bit / 8] = static_cast<std::uint8_t>(frame[bit / 8] ^ (1u << bit % 8));
    EXPECT_FALSE(checksum_is_right(frame.data(), 100)) << bit;
    frame[bit / 8] = static_cast<std::uint8_t>(frame[bit / 8] ^ (1u << bit % 8));
  }
}

}  // namespace
}  // namespace sluice::onerma
