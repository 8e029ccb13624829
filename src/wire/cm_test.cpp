#include "wire/cm.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice::wire {
namespace {

// Random data under each attribute, reserved bits and all.
std::array<std::uint8_t, kMadSize> random_mad(Rng& rng, std::uint16_t attribute) {
  std::array<std::uint8_t, kMadSize> mad;
  for (auto& byte : mad) byte = static_cast<std::uint8_t>(rng.next());
  MadHeader{.transaction_id = rng.next(), .attribute_id = attribute}.write(mad.data());
  return mad;
}

class CmMessages : public testing::TestWithParam<std::uint16_t> {};
INSTANTIATE_TEST_SUITE_P(All, CmMessages,
                         testing::Values(CmReq::kAttribute, CmRep::kAttribute, CmRtu::kAttribute, CmRej::kAttribute,
                                         CmMra::kAttribute, CmDreq::kAttribute, CmDrep::kAttribute,
                                         CmSidrReq::kAttribute, CmSidrRep::kAttribute));

TEST_P(CmMessages, ReadWhatTheyWrote) {
  Rng rng(GetParam());
  for (int i = 0; i < 1000; ++i) {
    const auto mad = random_mad(rng, GetParam());
    const auto parsed = parse_cm(mad);
    ASSERT_TRUE(parsed);
    std::array<std::uint8_t, kMadSize> written;
    written.fill(0xEE);
    write_cm(written.data(), *parsed);
    ASSERT_EQ(parse_cm(written), parsed);
    for (std::size_t byte = 0; byte < kMadSize; ++byte) {
      // Nothing appears that was not there: what differs is a reserved bit, now zero.
      ASSERT_EQ(written[byte] & ~mad[byte], 0) << byte;
    }
  }
}

// Every bit of a message is either a field, and then kept, or reserved, and then dropped. IBTA says how many are which.
TEST_P(CmMessages, KeepEveryBitThatIsNotReserved) {
  std::size_t reserved_bits = 0;
  switch (GetParam()) {
    case CmReq::kAttribute: reserved_bits = 32 + 32 + 2 * (6 + 3 + 3); break;
    case CmRep::kAttribute: reserved_bits = 8 + 8 + 8 + 4; break;
    case CmRej::kAttribute: reserved_bits = 6 + 1; break;
    case CmMra::kAttribute: reserved_bits = 6 + 3; break;
    case CmDreq::kAttribute: reserved_bits = 8; break;
    case CmSidrReq::kAttribute: reserved_bits = 16; break;
    case CmSidrRep::kAttribute: reserved_bits = 16 + 8; break;
    default: break;
  }
  std::size_t dropped = 0;
  for (std::size_t bit = MadHeader::kSize * 8; bit < kMadSize * 8; ++bit) {
    std::array<std::uint8_t, kMadSize> mad{};
    MadHeader{.attribute_id = GetParam()}.write(mad.data());
    mad[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    std::array<std::uint8_t, kMadSize> written;
    write_cm(written.data(), parse_cm(mad).value());
    if (written != mad) ++dropped;
  }
  EXPECT_EQ(dropped, reserved_bits);
}

TEST(Cm, RefusesWhatIsNoMessage) {
  Rng rng(1);
  const auto good = random_mad(rng, CmReq::kAttribute);
  ASSERT_TRUE(parse_cm(good));
  EXPECT_FALSE(parse_cm(ByteView(good).first(kMadSize - 1)));
  EXPECT_FALSE(parse_cm(ByteView{}));
  for (const std::size_t byte : {0U, 1U, 2U, 3U, 17U}) {  // version, class, class version, method, attribute
    auto bad = good;
    bad[byte] ^= 0x40;
    EXPECT_FALSE(parse_cm(bad)) << byte;
  }
}

TEST(Cm, TravelsInAFrameFromQpOneToQpOne) {
  for (const char* ip : {"10.0.0.", "fd00::"}) {
    const HeaderTemplate headers({.source = Gid::parse(std::string(ip) + "1").value(),
                                  .destination = Gid::parse(std::string(ip) + "2").value()});
    const CmMad mad{.transaction_id = 0x1'2345'6789,
                    .message = CmRep{.local_comm_id = CommId(7), .local_qpn = Qpn(0x13), .starting_psn = Psn(99)}};
    std::array<std::uint8_t, 512> frame{};
    const std::size_t length = write_cm_frame(frame.data(), headers, Psn(3), mad);
    EXPECT_EQ(length, cm_frame_size(headers));
    ParsedFrame parsed;
    ASSERT_EQ(parse_and_verify({frame.data(), length}, parsed), Verdict::kOk);
    EXPECT_EQ(parsed.psn, Psn(3));
    EXPECT_EQ(get<Deth>(frame.data(), parsed).source, kCmQpn);
    EXPECT_EQ(parse_cm(frame.data(), parsed), mad);

    parsed.destination = Qpn(2);
    EXPECT_FALSE(parse_cm(frame.data(), parsed));
  }
}

TEST(Cm, DoesNotTrustAnotherQkey) {
  const HeaderTemplate headers({.source = Gid::from({1}), .destination = Gid::from({2})});
  std::array<std::uint8_t, 512> frame{};
  const std::size_t length = write_cm_frame(frame.data(), headers, Psn(3), {});
  ParsedFrame parsed;
  ASSERT_EQ(parse({frame.data(), length}, parsed), Verdict::kOk);
  frame[parsed.extended_offset()] ^= 1;
  EXPECT_FALSE(parse_cm(frame.data(), parsed));
}

TEST(Cm, NamesPortsAndTimesAsRdmaCmDoes) {
  EXPECT_EQ(rdma_service(7174).value, 0x0000'0000'0106'1C06u);
  EXPECT_EQ(rdma_datagram_service(7174).value, 0x0000'0000'0111'1C06u);
  EXPECT_EQ(cm_timeout(0), Duration::nanoseconds(4096));
  EXPECT_EQ(cm_timeout(20).milliseconds(), 4294);
}

TEST(IpCm, KeepsAddressesOfBothKinds) {
  for (const char* ip : {"10.77.0.", "fd00::"}) {
    const IpCmHeader h{.source_port = 0x80D0,
                       .source = Gid::parse(std::string(ip) + "11").value(),
                       .destination = Gid::parse(std::string(ip) + "12").value()};
    std::array<std::uint8_t, IpCmHeader::kSize> bytes;
    h.write(bytes.data());
    EXPECT_EQ(IpCmHeader::parse(bytes.data()), h);
    bytes[1] = 0x50;
    EXPECT_FALSE(IpCmHeader::parse(bytes.data()));
  }
}

}  // namespace
}  // namespace sluice::wire
