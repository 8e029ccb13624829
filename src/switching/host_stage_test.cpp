#include "switching/host_stage.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "wire/bth.h"
#include "wire/cm.h"
#include "wire/frame.h"

namespace sluice::switching {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr wire::MacAddress kHost{{2, 0, 10, 77, 0, 9}};
constexpr wire::MacAddress kPeer{{2, 0, 10, 77, 0, 1}};

wire::MacAddress program(std::uint8_t place) { return HostStage::mac_at(kHost, place); }

// A datagram to a queue pair, carrying `payload`.
Bytes packet(const wire::MacAddress& from, const wire::MacAddress& to, std::uint32_t qpn, const Bytes& payload) {
  const wire::HeaderTemplate headers({.source_mac = from,
                                      .destination_mac = to,
                                      .source = wire::Gid::from({0x0A4D'0001}),
                                      .destination = wire::Gid::from({0x0A4D'0009})});
  const std::size_t body = wire::Bth::kSize + wire::Deth::kSize + payload.size();
  Bytes frame(headers.frame_size(body));
  std::uint8_t* at = frame.data() + headers.write(frame.data(), body);
  wire::Bth{.opcode = wire::Opcode::kUdSendOnly, .destination = wire::Qpn(qpn)}.write(at);
  at += wire::Bth::kSize;
  wire::Deth{.qkey = wire::kCmQkey, .source = wire::Qpn(1)}.write(at);
  std::copy(payload.begin(), payload.end(), at + wire::Deth::kSize);
  headers.seal(frame.data(), headers.bth_offset() + body);
  return frame;
}

// A MAD of the CM whose body begins with these two words; `service` follows in requests.
Bytes mad(std::uint16_t attribute, std::uint32_t first, std::uint32_t second, std::uint64_t service = 0) {
  Bytes bytes(wire::kMadSize);
  wire::MadHeader header;
  header.attribute_id = attribute;
  header.write(bytes.data());
  store_be(bytes.data() + 24, first);
  store_be(bytes.data() + 28, second);
  if (service != 0) store_be(bytes.data() + 32, service);
  return bytes;
}

class HostStageTest : public testing::Test, public port::FrameSink {
 protected:
  // The MAC to which the frame then goes.
  wire::MacAddress pass(Bytes frame) {
    Packet packet{.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())}};
    stage_.process(Time(), {&packet, 1}, *this);
    dropped_ = packet.action == Packet::Action::kDrop;
    wire::MacAddress to;
    std::copy_n(frame.begin(), std::min<std::size_t>(frame.size(), 6), to.bytes.begin());
    return to;
  }
  std::uint8_t* reserve(std::size_t length) override {
    if (full_) return nullptr;
    room_.resize(length);
    return room_.data();
  }
  void commit(std::size_t length) override {
    sent_.emplace_back(room_.begin(), room_.begin() + static_cast<long>(length));
  }

  HostStage stage_{kHost, [](std::uint32_t service) -> std::optional<std::uint8_t> {
                     if (service == 0x06'1D2F) return 7;
                     return std::nullopt;
                   }};
  Bytes room_;
  std::vector<Bytes> sent_;
  bool dropped_ = false;
  bool full_ = false;
};

TEST_F(HostStageTest, GivesAPacketToTheProgramThatItsQueuePairNumberNames) {
  for (const auto learned : std::array<std::uint8_t, 3>{0, 3, 5}) {
    EXPECT_EQ(pass(packet(kPeer, program(learned), 0x05'0123, Bytes(8))), program(5)) << "sent to " << int{learned};
  }
}

TEST_F(HostStageTest, LeavesWhatIsForOthersAndWhatIsNoRocePacket) {
  EXPECT_EQ(pass(packet(program(2), kPeer, 0x05'0123, Bytes(8))), kPeer);
  Bytes arp(60, 0);
  wire::EthernetHeader{program(3), kPeer, wire::kEtherTypeArp}.write(arp.data());
  EXPECT_EQ(pass(arp), program(3));
  EXPECT_EQ(pass(Bytes{2, 0, 10}), (wire::MacAddress{{2, 0, 10}})) << "too short to be a frame";
}

TEST_F(HostStageTest, GivesARequestToWhoListensAndAnyOtherMadToWhoseIdItNames) {
  const auto listened = wire::rdma_service(0x1D2F).value;
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmReq::kAttribute, 0x0400'0001, 0, listened))), program(7));
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmSidrReq::kAttribute, 0x0400'0001, 0, listened))), program(7));
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmReq::kAttribute, 1, 0, listened + 1))), program(1))
      << "nobody listens: rejected where it was sent";
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmRep::kAttribute, 0x0400'0001, 0x0900'0002))), program(9));
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmSidrRep::kAttribute, 0x0900'0001, 0))), program(9));
}

TEST_F(HostStageTest, LeavesMadsThatAreNotTheConnectionManagersAndServicesThatAreNoPorts) {
  Bytes other_class = mad(wire::CmRep::kAttribute, 0x0400'0001, 0x0900'0002);
  ++other_class[1];  // management class
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, other_class)), program(1));
  const std::uint64_t other_space = wire::rdma_service(0x1D2F).value + (std::uint64_t{1} << 24);
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, mad(wire::CmReq::kAttribute, 0x0400'0001, 0, other_space))), program(1));
  Bytes cut = mad(wire::CmRep::kAttribute, 0x0400'0001, 0x0900'0002);
  cut.resize(cut.size() - 4);
  EXPECT_EQ(pass(packet(kPeer, program(1), 1, cut)), program(1));
}

TEST_F(HostStageTest, GivesAProgramBackWhatItSendsToItself) {
  const Bytes frame = packet(program(5), program(5), 0x05'0123, Bytes(8));
  pass(frame);
  EXPECT_TRUE(dropped_) << "a switch would";
  EXPECT_EQ(sent_, std::vector<Bytes>{frame});
  pass(packet(program(4), program(4), 0x05'0123, Bytes(8)));
  EXPECT_FALSE(dropped_) << "to another program of the host";
  full_ = true;
  pass(frame);
  EXPECT_FALSE(dropped_) << "there is no room: the switch drops and counts it";
}

}  // namespace
}  // namespace sluice::switching
