#include "wire/text.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::wire {
namespace {

std::vector<std::uint8_t> frame_of(Opcode opcode, std::vector<std::uint8_t> body, std::uint8_t pad = 0,
                                   bool ack_request = false) {
  const HeaderTemplate headers(
      {.source = Gid::parse("10.0.0.1").value(), .destination = Gid::parse("10.0.0.2").value()});
  std::vector<std::uint8_t> frame(headers.frame_size(Bth::kSize + body.size()));
  std::uint8_t* p = frame.data() + headers.write(frame.data(), Bth::kSize + body.size());
  Bth{.opcode = opcode, .pad_count = pad, .destination = Qpn(0x11), .ack_request = ack_request, .psn = Psn(123)}.write(
      p);
  std::copy(body.begin(), body.end(), p + Bth::kSize);
  headers.seal(frame.data(), frame.size() - kIcrcSize);
  return frame;
}

TEST(Text, TellsAWriteInOneLine) {
  std::vector<std::uint8_t> body(Reth::kSize + 64);
  Reth{.virtual_address = 0x7f00, .rkey = RKey(0x42), .length = 64}.write(body.data());
  const auto frame = frame_of(Opcode::kRcWriteOnly, body, 0, true);
  EXPECT_EQ(
      describe(frame),
      "10.0.0.1 > 10.0.0.2 RC RDMA_WRITE_ONLY qpn 0x11 psn 123 A va 0x7f00 rkey 0x42 len 64 | payload 64 | icrc ok");
}

TEST(Text, SaysWhenTheIcrcIsWrong) {
  auto frame = frame_of(Opcode::kRcSendOnly, {1, 2, 3, 0}, 1);
  frame.back() ^= 1;
  EXPECT_EQ(describe(frame), "10.0.0.1 > 10.0.0.2 RC SEND_ONLY qpn 0x11 psn 123 | payload 3 | icrc BAD");
}

TEST(Text, ReadsEverySyndrome) {
  const auto said = [](Aeth aeth) {
    std::vector<std::uint8_t> body(Aeth::kSize);
    aeth.write(body.data());
    return describe(frame_of(Opcode::kRcAcknowledge, body));
  };
  EXPECT_EQ(said(Aeth::ack(7)), "10.0.0.1 > 10.0.0.2 RC ACKNOWLEDGE qpn 0x11 psn 123 ack msn 7 | icrc ok");
  EXPECT_NE(said(Aeth::ack(7, 5)).find("ack credits 6 msn 7"), std::string::npos);
  EXPECT_NE(said(Aeth::rnr_nak(7, 12)).find("rnr-nak wait 640 us msn 7"), std::string::npos);
  EXPECT_NE(said(Aeth::nak(7, NakCode::kRemoteAccessError)).find("nak remote access error msn 7"), std::string::npos);
}

TEST(Text, ReadsAtomicsAndTheirAnswers) {
  std::vector<std::uint8_t> body(AtomicEth::kSize);
  AtomicEth{.virtual_address = 0x10, .rkey = RKey(2), .swap_or_add = 3, .compare = 4}.write(body.data());
  EXPECT_NE(describe(frame_of(Opcode::kRcCompareSwap, body)).find("va 0x10 rkey 0x2 swap/add 0x3 compare 0x4"),
            std::string::npos);
  body.assign(Aeth::kSize + AtomicAckEth::kSize, 0);
  AtomicAckEth{0x99}.write(body.data() + Aeth::kSize);
  EXPECT_NE(describe(frame_of(Opcode::kRcAtomicAcknowledge, body)).find("original 0x99"), std::string::npos);
}

TEST(Text, ReadsConnectionManagement) {
  const HeaderTemplate headers({.source = Gid::parse("fd00::1").value(), .destination = Gid::parse("fd00::2").value()});
  std::vector<std::uint8_t> frame(cm_frame_size(headers));
  const CmReq req{.local_comm_id = CommId(0xAB),
                  .service_id = rdma_service(7174),
                  .local_qpn = Qpn(0x13),
                  .starting_psn = Psn(9),
                  .path_mtu = 5};
  write_cm_frame(frame.data(), headers, Psn(0), {.transaction_id = 1, .message = req});
  EXPECT_NE(describe(frame).find(
                "fd00::1 > fd00::2 UD SEND_ONLY qpn 0x1 psn 0 from qpn 0x1 qkey 0x80010000 | CM REQ comm 0xab "
                "service 0x1061c06 qpn 0x13 psn 9 mtu 4096"),
            std::string::npos)
      << describe(frame);
}

TEST(Text, TellsOfACutFrameWhatIsThere) {
  std::vector<std::uint8_t> body(Reth::kSize + 64);
  Reth{.virtual_address = 0x7f00, .rkey = RKey(0x42), .length = 64}.write(body.data());
  const auto frame = frame_of(Opcode::kRcWriteOnly, body);
  const auto first = [&](std::size_t bytes) { return describe_cut(ByteView(frame).first(bytes), frame.size()); };
  constexpr std::size_t kHeaders = 14 + 20 + 8 + 12 + 16;
  ASSERT_EQ(frame.size(), kHeaders + 64 + 4);
  const std::string told =
      "10.0.0.1 > 10.0.0.2 RC RDMA_WRITE_ONLY qpn 0x11 psn 123 va 0x7f00 rkey 0x42 len 64 | payload 64 | cut, ";
  EXPECT_EQ(first(kHeaders + 10), told + "80 of 138 bytes");
  EXPECT_EQ(first(kHeaders), told + "70 of 138 bytes");
  // A header that is not whole says nothing.
  EXPECT_EQ(first(kHeaders - 1), "00:00:00:00:00:00 > 00:00:00:00:00:00 type 0x0800 | cut, 69 of 138 bytes");
  EXPECT_EQ(first(3), "a frame of 138 bytes | cut, 3 of 138 bytes");
}

TEST(Text, MakesNoRoomForALengthThatACaptureOnlySays) {
  const auto frame = frame_of(Opcode::kRcSendOnly, std::vector<std::uint8_t>(64));
  const auto claimed = [&](std::size_t length) { return describe_cut(ByteView(frame).first(60), length); };
  EXPECT_NE(claimed(0xFFFFFFFF).find("payload 64 | cut, 60 of 4294967295 bytes"), std::string::npos)
      << claimed(0xFFFFFFFF);
  EXPECT_NE(claimed(~std::size_t{0}).find("payload 64 | cut, 60 of"), std::string::npos);
  EXPECT_NE(claimed(10).find("cut, 60 of 10 bytes"), std::string::npos) << "nor less than there is";
}

TEST(Text, NamesWhatIsNoRoce) {
  EXPECT_EQ(describe(ByteView{}), "0 bytes: truncated Ethernet header");
  std::vector<std::uint8_t> arp(EthernetHeader::kSize + ArpPacket::kSize);
  EthernetHeader{.destination = MacAddress::broadcast(), .ether_type = kEtherTypeArp}.write(arp.data());
  ArpPacket{.sender_ip = {0x0A000001}, .target_ip = {0x0A000002}}.write(arp.data() + EthernetHeader::kSize);
  EXPECT_EQ(describe(arp), "ARP who has 10.0.0.2? tell 10.0.0.1");
  arp[12] = 0x88;
  EXPECT_NE(describe(arp).find("type 0x8806, 42 bytes: not IP"), std::string::npos);
}

}  // namespace
}  // namespace sluice::wire
