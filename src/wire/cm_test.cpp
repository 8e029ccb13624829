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

// A message written bit by bit as the tables of IBTA §12.6 and §12.11 have it: places count from the first bit of a MAD's data.
class ByHand {
 public:
  explicit ByHand(std::uint16_t attribute) { MadHeader{.attribute_id = attribute}.write(mad_.data()); }
  ByHand& put(std::size_t byte, std::size_t bit, std::size_t width, std::uint64_t value) {
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t at = 8 * (MadHeader::kSize + byte) + bit + i;
      if ((value >> (width - 1 - i) & 1) != 0) mad_[at / 8] |= static_cast<std::uint8_t>(0x80 >> at % 8);
    }
    return *this;
  }
  ByHand& put(std::size_t byte, std::size_t width, std::uint64_t value) { return put(byte, 0, width, value); }
  std::optional<CmMessage> message() const {
    const auto parsed = parse_cm(mad_);
    return parsed ? std::optional(parsed->message) : std::nullopt;
  }

 private:
  std::array<std::uint8_t, kMadSize> mad_{};
};

template <std::size_t N>
std::array<std::uint8_t, N> with_ends(std::uint8_t first, std::uint8_t last) {
  std::array<std::uint8_t, N> bytes{};
  bytes.front() = first;
  bytes.back() = last;
  return bytes;
}

ByHand& put_path(ByHand& mad, std::size_t at, unsigned salt) {
  mad.put(at, 16, 0x1100 + salt).put(at + 2, 16, 0x2200 + salt);
  mad.put(at + 4, 8, 0x33).put(at + 19, 8, 0x44).put(at + 20, 8, 0x55).put(at + 35, 8, 0x66 + salt);
  mad.put(at + 36, 20, 0x98760 + salt).put(at + 39, 2, 6, 0x2A + salt);
  mad.put(at + 40, 8, 0x70 + salt).put(at + 41, 8, 0x80 + salt);
  return mad.put(at + 42, 0, 4, 9).put(at + 42, 4, 1, 1).put(at + 43, 0, 5, 0x12 + salt);
}
CmPath path_of(unsigned salt) {
  return {.local_lid = static_cast<std::uint16_t>(0x1100 + salt),
          .remote_lid = static_cast<std::uint16_t>(0x2200 + salt),
          .local_gid = {with_ends<16>(0x33, 0x44)},
          .remote_gid = {with_ends<16>(0x55, static_cast<std::uint8_t>(0x66 + salt))},
          .flow_label = 0x98760 + salt,
          .packet_rate = static_cast<std::uint8_t>(0x2A + salt),
          .traffic_class = static_cast<std::uint8_t>(0x70 + salt),
          .hop_limit = static_cast<std::uint8_t>(0x80 + salt),
          .service_level = 9,
          .subnet_local = true,
          .local_ack_timeout = static_cast<std::uint8_t>(0x12 + salt)};
}

TEST(Cm, RequestsHaveTheirFieldsWhereIbtaPutsThem) {
  ByHand mad(0x10);
  mad.put(0, 32, 0x01020304).put(8, 64, 0x1112131415161718).put(16, 64, 0x2122232425262728);
  mad.put(28, 32, 0x31323334).put(32, 24, 0x414243).put(35, 8, 0x51).put(36, 24, 0x616263).put(39, 8, 0x71);
  mad.put(40, 24, 0x818283).put(43, 0, 5, 0x13).put(43, 5, 2, 1).put(43, 7, 1, 1);
  mad.put(44, 24, 0x919293).put(47, 0, 5, 0x17).put(47, 5, 3, 5).put(48, 16, 0xA1A2);
  mad.put(50, 0, 4, 4).put(50, 4, 1, 0).put(50, 5, 3, 6).put(51, 0, 4, 0xB).put(51, 4, 1, 1).put(51, 5, 3, 2);
  put_path(mad, 52, 1);
  put_path(mad, 96, 2).put(140, 8, 0xC1).put(231, 8, 0xC2);
  EXPECT_EQ(mad.message(), CmMessage(CmReq{.local_comm_id = CommId(0x01020304),
                                           .service_id = ServiceId(0x1112131415161718),
                                           .local_ca_guid = 0x2122232425262728,
                                           .local_qkey = QKey(0x31323334),
                                           .local_qpn = Qpn(0x414243),
                                           .responder_resources = 0x51,
                                           .local_eecn = 0x616263,
                                           .initiator_depth = 0x71,
                                           .remote_eecn = 0x818283,
                                           .remote_cm_response_timeout = 0x13,
                                           .transport_service = 1,
                                           .end_to_end_flow_control = true,
                                           .starting_psn = Psn(0x919293),
                                           .local_cm_response_timeout = 0x17,
                                           .retry_count = 5,
                                           .pkey = 0xA1A2,
                                           .path_mtu = 4,
                                           .rdc_exists = false,
                                           .rnr_retry_count = 6,
                                           .max_cm_retries = 0xB,
                                           .srq = true,
                                           .extended_transport = 2,
                                           .primary = path_of(1),
                                           .alternate = path_of(2),
                                           .private_data = with_ends<92>(0xC1, 0xC2)}));
}

TEST(Cm, AnswersHaveTheirFieldsWhereIbtaPutsThem) {
  ByHand rep(0x13);
  rep.put(0, 32, 1).put(4, 32, 2).put(8, 32, 3).put(12, 24, 4).put(16, 24, 5).put(20, 24, 6).put(24, 8, 7);
  rep.put(25, 8, 8).put(26, 0, 5, 9).put(26, 5, 2, 2).put(26, 7, 1, 1).put(27, 0, 3, 5).put(27, 3, 1, 1);
  rep.put(28, 64, 10).put(36, 8, 11).put(231, 8, 12);
  EXPECT_EQ(rep.message(), CmMessage(CmRep{.local_comm_id = CommId(1),
                                           .remote_comm_id = CommId(2),
                                           .local_qkey = QKey(3),
                                           .local_qpn = Qpn(4),
                                           .local_eecn = 5,
                                           .starting_psn = Psn(6),
                                           .responder_resources = 7,
                                           .initiator_depth = 8,
                                           .target_ack_delay = 9,
                                           .failover_accepted = 2,
                                           .end_to_end_flow_control = true,
                                           .rnr_retry_count = 5,
                                           .srq = true,
                                           .local_ca_guid = 10,
                                           .private_data = with_ends<196>(11, 12)}));
  ByHand rtu(0x14);
  rtu.put(0, 32, 1).put(4, 32, 2).put(8, 8, 3).put(231, 8, 4);
  EXPECT_EQ(rtu.message(), CmMessage(CmRtu{CommId(1), CommId(2), with_ends<224>(3, 4)}));
  ByHand rej(0x12);
  rej.put(0, 32, 1).put(4, 32, 2).put(8, 0, 2, 2).put(9, 0, 7, 72).put(10, 16, 28);
  rej.put(12, 8, 3).put(83, 8, 4).put(84, 8, 5).put(231, 8, 6);
  EXPECT_EQ(rej.message(),
            CmMessage(CmRej{CommId(1), CommId(2), CmMessageKind::kOther, 72, CmRejectReason::kConsumerDefined,
                            with_ends<72>(3, 4), with_ends<148>(5, 6)}));
  ByHand mra(0x11);
  mra.put(0, 32, 1).put(4, 32, 2).put(8, 0, 2, 1).put(9, 0, 5, 0x15).put(10, 8, 3).put(231, 8, 4);
  EXPECT_EQ(mra.message(), CmMessage(CmMra{CommId(1), CommId(2), CmMessageKind::kRep, 0x15, with_ends<222>(3, 4)}));
}

TEST(Cm, PartingAndServiceMessagesHaveTheirFieldsWhereIbtaPutsThem) {
  ByHand dreq(0x15);
  dreq.put(0, 32, 1).put(4, 32, 2).put(8, 24, 3).put(12, 8, 4).put(231, 8, 5);
  EXPECT_EQ(dreq.message(), CmMessage(CmDreq{CommId(1), CommId(2), Qpn(3), with_ends<220>(4, 5)}));
  ByHand drep(0x16);
  drep.put(0, 32, 1).put(4, 32, 2).put(8, 8, 3).put(231, 8, 4);
  EXPECT_EQ(drep.message(), CmMessage(CmDrep{CommId(1), CommId(2), with_ends<224>(3, 4)}));
  ByHand request(0x17);
  request.put(0, 32, 1).put(4, 16, 2).put(8, 64, 3).put(16, 8, 4).put(231, 8, 5);
  EXPECT_EQ(request.message(), CmMessage(CmSidrReq{SidrRequestId(1), 2, ServiceId(3), with_ends<216>(4, 5)}));
  ByHand answer(0x18);
  answer.put(0, 32, 1).put(4, 8, 3).put(5, 8, 4).put(8, 24, 5).put(12, 64, 6).put(20, 32, 7);
  answer.put(24, 8, 8).put(95, 8, 9).put(96, 8, 10).put(231, 8, 11);
  EXPECT_EQ(answer.message(), CmMessage(CmSidrRep{SidrRequestId(1), SidrStatus::kNoQp, 4, Qpn(5), ServiceId(6), QKey(7),
                                                  with_ends<72>(8, 9), with_ends<136>(10, 11)}));
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
    // Version, IP version, port, source in the last four of sixteen bytes or in all of them, destination likewise (annex A11.4).
    EXPECT_EQ(bytes[1], h.source.is_v4() ? 0x40 : 0x60);
    EXPECT_EQ(load_be<std::uint16_t>(bytes.data() + 2), 0x80D0);
    EXPECT_EQ(bytes[4], h.source.is_v4() ? 0 : 0xFD);
    EXPECT_EQ(bytes[16], h.source.is_v4() ? 10 : 0);
    EXPECT_EQ(bytes[19], h.source.bytes[15]);
    EXPECT_EQ(bytes[35], h.destination.bytes[15]);
    bytes[1] = 0x50;
    EXPECT_FALSE(IpCmHeader::parse(bytes.data()));
  }
}

}  // namespace
}  // namespace sluice::wire
