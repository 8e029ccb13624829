#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/rng.h"
#include "wire/address.h"
#include "wire/bth.h"
#include "wire/ethernet.h"
#include "wire/ip.h"

namespace sluice::wire {
namespace {

template <class H>
class Header : public testing::Test {};
using Headers = testing::Types<EthernetHeader, VlanTag, ArpPacket, Ipv4Header, Ipv6Header, UdpHeader, Bth, Reth, Aeth,
                               AtomicEth, MaskedAtomicEth, AtomicAckEth, ImmDt, Ieth, Deth>;
TYPED_TEST_SUITE(Header, Headers);

TYPED_TEST(Header, WritesWhatItRead) {
  Rng rng(42);
  for (int i = 0; i < 1000; ++i) {
    std::array<std::uint8_t, TypeParam::kSize> original;
    for (auto& byte : original) byte = static_cast<std::uint8_t>(rng.next());
    std::array<std::uint8_t, TypeParam::kSize> written;
    written.fill(static_cast<std::uint8_t>(~original[0]));
    TypeParam::parse(original.data()).write(written.data());
    ASSERT_EQ(written, original);
  }
}

TEST(Bth, PutsItsFieldsWhereIbtaSays) {
  std::array<std::uint8_t, Bth::kSize> bytes;
  Bth{.opcode = Opcode::kRcCompareSwap,
      .solicited = true,
      .migrated = false,
      .pad_count = 2,
      .pkey = 0x8001,
      .becn = true,
      .destination = Qpn(0x123456),
      .ack_request = true,
      .psn = Psn(0xABCDEF)}
      .write(bytes.data());
  const std::array<std::uint8_t, Bth::kSize> expected = {0x13, 0xA0, 0x80, 0x01, 0x40, 0x12,
                                                         0x34, 0x56, 0x80, 0xAB, 0xCD, 0xEF};
  EXPECT_EQ(bytes, expected);
}

template <class H>
std::vector<std::uint8_t> bytes_of(const H& header) {
  std::vector<std::uint8_t> bytes(H::kSize);
  header.write(bytes.data());
  return bytes;
}

// IBTA §9.3: figures of the extended transport headers.
TEST(ExtendedHeaders, PutTheirFieldsWhereIbtaSays) {
  using Bytes = std::vector<std::uint8_t>;
  EXPECT_EQ(bytes_of(Reth{0x0102030405060708, RKey(0x11121314), 0x21222324}),
            (Bytes{1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24}));
  EXPECT_EQ(bytes_of(Aeth{.syndrome = 0x62, .msn = 0x010203}), (Bytes{0x62, 1, 2, 3}));
  EXPECT_EQ(bytes_of(AtomicEth{0x0102030405060708, RKey(0x11121314), 0x2122232425262728, 0x3132333435363738}),
            (Bytes{1,    2,    3,    4,    5,    6,    7,    8,    0x11, 0x12, 0x13, 0x14, 0x21, 0x22,
                   0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38}));
  EXPECT_EQ(bytes_of(AtomicAckEth{0x0102030405060708}), (Bytes{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(bytes_of(ImmDt{0x01020304}), (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(bytes_of(Ieth{RKey(0x01020304)}), (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(bytes_of(Deth{.qkey = QKey(0x01020304), .source = Qpn(0x111213)}),
            (Bytes{1, 2, 3, 4, 0, 0x11, 0x12, 0x13}));
}

TEST(Ipv6, PutsItsFieldsWhereRfc8200Says) {
  const auto bytes = bytes_of(Ipv6Header{.traffic_class = 0xAB,
                                         .flow_label = 0xCDEF1,
                                         .payload_length = 0x1234,
                                         .hop_limit = 7,
                                         .source = Gid::parse("fd00::1").value(),
                                         .destination = Gid::parse("fe00::2").value()});
  EXPECT_EQ(std::vector(bytes.begin(), bytes.begin() + 9),
            (std::vector<std::uint8_t>{0x6A, 0xBC, 0xDE, 0xF1, 0x12, 0x34, 17, 7, 0xFD}));
  EXPECT_EQ(bytes[23], 1);
  EXPECT_EQ(bytes[24], 0xFE);
  EXPECT_EQ(bytes[39], 2);
}

TEST(Aeth, TellsAcksFromNaksFromRnrNaks) {
  EXPECT_TRUE(Aeth::ack(5).is_ack());
  EXPECT_FALSE(Aeth::ack(5).has_credits());
  EXPECT_EQ(Aeth::ack(5).syndrome, 0x1F);
  EXPECT_EQ(Aeth::ack(5, 10).credits(), 32u);
  EXPECT_TRUE(Aeth::rnr_nak(5, 12).is_rnr_nak());
  EXPECT_EQ(Aeth::rnr_nak(5, 12).rnr_delay(), Duration::microseconds(640));
  EXPECT_TRUE(Aeth::nak(5, NakCode::kRemoteAccessError).is_nak());
  EXPECT_EQ(Aeth::nak(5, NakCode::kRemoteAccessError).syndrome, 0x62);
  EXPECT_EQ((Aeth{.syndrome = 0x40}.type()), Aeth::Type::kReserved);
}

TEST(Aeth, DecodesTheTablesOfIbta) {
  EXPECT_EQ(rnr_delay_of(0), Duration::microseconds(655'360));
  EXPECT_EQ(rnr_delay_of(1), Duration::microseconds(10));
  EXPECT_EQ(rnr_delay_of(31), Duration::microseconds(491'520));
  EXPECT_EQ(credits_of(0), 0u);
  EXPECT_EQ(credits_of(7), 12u);
  EXPECT_EQ(credits_of(30), 32'768u);
  // From 2 on, two codes a doubling.
  for (std::uint8_t code = 3; code + 2 < 31; ++code) EXPECT_EQ(credits_of(code + 2), 2 * credits_of(code)) << int{code};
  for (std::uint8_t code = 3; code + 2 < 32; ++code)
    EXPECT_EQ(rnr_delay_of(code + 2), rnr_delay_of(code) * 2) << int{code};
}

TEST(Aeth, EncodesCreditsDownwardsAndDelaysUpwards) {
  for (std::uint8_t code = 0; code < Aeth::kNoCredits; ++code) EXPECT_EQ(credit_code_of(credits_of(code)), code);
  EXPECT_EQ(credit_code_of(5), credit_code_of(4));
  EXPECT_EQ(credit_code_of(1'000'000), 30);
  for (std::uint8_t code = 0; code < 32; ++code) EXPECT_EQ(rnr_timer_code_of(rnr_delay_of(code)), code);
  EXPECT_EQ(rnr_timer_code_of(Duration::nanoseconds(1)), 1);
  EXPECT_EQ(rnr_timer_code_of(Duration::microseconds(11)), 2);
  EXPECT_EQ(rnr_timer_code_of(Duration::seconds(10)), 0);
}

TEST(Ipv4, KnowsTheChecksumOfAKnownHeader) {
  // RFC 1071 style example: 45 00 00 73 00 00 40 00 40 11 [b8 61] c0 a8 00 01 c0 a8 00 c7.
  std::array<std::uint8_t, 20> header = {0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11,
                                         0xB8, 0x61, 0xC0, 0xA8, 0x00, 0x01, 0xC0, 0xA8, 0x00, 0xC7};
  EXPECT_EQ(ipv4_checksum(header.data()), 0xB861);
  EXPECT_TRUE(ipv4_checksum_is_right(header.data()));
  header[11] ^= 1;
  EXPECT_FALSE(ipv4_checksum_is_right(header.data()));
}

TEST(Ipv4, PatchesItsChecksumAsIfSummedAnew) {
  Rng rng(3);
  std::array<std::uint8_t, 20> header;
  for (int i = 0; i < 10'000; ++i) {
    for (auto& byte : header) byte = static_cast<std::uint8_t>(rng.next());
    header[0] = 0x45;
    const std::uint16_t checksum = ipv4_checksum(header.data());
    const std::size_t at = 2 * rng.below(10);
    if (at == 10 || at == 0) continue;
    const auto before = load_be<std::uint16_t>(header.data() + at);
    const auto after = static_cast<std::uint16_t>(rng.below(4) == 0 ? 0xFFFF * rng.below(2) : rng.next());
    store_be(header.data() + at, after);
    ASSERT_EQ(patch_checksum(checksum, before, after), ipv4_checksum(header.data())) << i;
  }
}

TEST(Psn, WrapsAndMeasuresSignedDistance) {
  EXPECT_EQ(Psn(0xFFFFFF) + 1, Psn(0));
  EXPECT_EQ(Psn(0) - 1, Psn(0xFFFFFF));
  EXPECT_EQ(Psn(2).since(Psn(0xFFFFFE)), 4);
  EXPECT_EQ(Psn(0xFFFFFE).since(Psn(2)), -4);
  EXPECT_EQ(Psn(0x800000).since(Psn(0)), -0x800000);
  EXPECT_EQ(Psn(0x7FFFFF).since(Psn(0)), 0x7FFFFF);
}

TEST(Addresses, ReadWhatTheyPrint) {
  for (const char* text : {"10.0.0.1", "255.255.255.255", "fe80::1", "2001:db8::42"}) {
    EXPECT_EQ(Gid::parse(text).value().to_string(), text);
  }
  EXPECT_EQ(MacAddress::parse("02:00:0a:4D:00:01").value().to_string(), "02:00:0a:4d:00:01");
  EXPECT_EQ(Ipv4Address::parse("10.1.2.3").value().value, 0x0A010203u);
  EXPECT_TRUE(Gid::parse("::ffff:10.0.0.1").value().is_v4());
  EXPECT_FALSE(Gid::parse("::1").value().is_v4());
}

TEST(Addresses, RefuseNonsenseAndSayWhatIsAllowed) {
  for (const char* text : {"", "10.0.0", "10.0.0.256", "10.0.0.1 ", "fe80:::1", "localhost"}) {
    const auto gid = Gid::parse(text);
    ASSERT_FALSE(gid) << text;
    EXPECT_NE(gid.error().message.find("like 10.0.0.1"), std::string::npos);
  }
  for (const char* text :
       {"", "02:00:0a:4d:00", "02:00:0a:4d:00:0g", "02-00-0a-4d-00-01", "02:00:0a:4d:00:001", "+2:00:0a:4d:00:01"}) {
    EXPECT_FALSE(MacAddress::parse(text)) << text;
  }
}

}  // namespace
}  // namespace sluice::wire
