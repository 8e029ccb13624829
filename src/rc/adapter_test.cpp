// The adapter: frames that are not for a queue pair change one counter and nothing else; what is for one reaches it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "rc/connection_manager.h"
#include "rc/crafted_peer.h"
#include "rc/two_adapters.h"
#include "wire/bth.h"
#include "wire/cm.h"
#include "wire/ethernet.h"
#include "wire/frame.h"

namespace sluice::rc {
namespace {

using enum wire::Opcode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Packet = CraftedPeer::Packet;
using Frame = std::vector<std::uint8_t>;

std::map<std::string, std::uint64_t> values(const AdapterCounters& counters) {
  std::map<std::string, std::uint64_t> out;
  counters.for_each([&](const char* name, const char*, std::uint64_t value) { out[name] = value; });
  return out;
}

class AdapterTest : public ::testing::Test {
 protected:
  Packet write(std::size_t length = 8, Psn psn = Psn(0x1000)) const {
    return {.opcode = kRcWriteOnly,
            .psn = psn,
            .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, static_cast<std::uint32_t>(length)),
            .payload = std::vector<std::uint8_t>(length, 0x5A)};
  }
  Frame frame(const std::function<void(wire::AddressVector&, wire::Bth&)>& vary = {}) const {
    wire::AddressVector way = CraftedPeer::way_to_us();
    wire::Bth bth{.destination = p.pair->qpn()};
    if (vary) vary(way, bth);
    return p.frame_of(write(), way, bth);
  }
  // The names of the counters that moved, by how much.
  std::map<std::string, std::uint64_t> moved_by(const Frame& frame) {
    const auto before = values(p.counters());
    p.deliver(frame);
    std::map<std::string, std::uint64_t> moved;
    for (const auto& [name, value] : values(p.counters())) {
      if (value != before.at(name)) moved[name] = value - before.at(name);
    }
    return moved;
  }
  void expect_only(const Frame& frame, const std::string& counter) {
    EXPECT_THAT(moved_by(frame), UnorderedElementsAre(Pair("rx_frames", 1), Pair(counter, 1)));
    EXPECT_THAT(p.answers(), IsEmpty());
    EXPECT_THAT(p.completed(), IsEmpty());
    EXPECT_TRUE(p.memory_untouched());
    EXPECT_EQ(p.pair->expected_psn(), Psn(0x1000));
    EXPECT_EQ(p.adapter->next_deadline(), Time::never());
    // And the queue pair is as well as before.
    CraftedPeer& q = p;
    EXPECT_EQ(q.pair->state(), QpState::kReadyToSend);
  }

  CraftedPeer p;
};

TEST_F(AdapterTest, TakesAWholeFrameOfThePeer) {
  EXPECT_THAT(moved_by(frame()), UnorderedElementsAre(Pair("rx_frames", 1), Pair("rx_requests", 1)));
  EXPECT_EQ(p.region()[0], 0x5A);
  EXPECT_THAT(p.answers(), SizeIs(1));
}

TEST_F(AdapterTest, TakesAFrameWithEthernetPaddingAndAVlanTag) {
  Frame padded = frame();
  padded.resize(padded.size() + 20);
  EXPECT_THAT(moved_by(padded), UnorderedElementsAre(Pair("rx_frames", 1), Pair("rx_requests", 1)));
  p.answers();
  wire::AddressVector way = CraftedPeer::way_to_us();
  way.vlan_tci = 5;
  p.deliver(p.frame_of(write(8, Psn(0x1001)), way, {.destination = p.pair->qpn()}));
  EXPECT_EQ(p.counters().rx_requests, 2u);
}

TEST_F(AdapterTest, DropsEveryTruncation) {
  const Frame whole = frame();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    Frame cut(whole.begin(), whole.begin() + static_cast<long>(length));
    p.deliver(cut);
  }
  EXPECT_EQ(p.counters().rx_malformed, whole.size());
  EXPECT_EQ(p.counters().rx_requests, 0u);
  EXPECT_TRUE(p.memory_untouched());
}

TEST_F(AdapterTest, DropsEveryFlippedBitThatTheIcrcCovers) {
  const Frame whole = frame();
  std::set<std::size_t> taken;  // bytes of which a bit may change
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Frame flipped = whole;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    CraftedPeer q;
    q.deliver(flipped);
    if (q.counters().rx_requests != 0) {
      taken.insert(bit / 8);
    } else {
      EXPECT_TRUE(q.memory_untouched());
    }
  }
  // The sender's MAC, the UDP checksum, and the byte of FECN and BECN. What else routers may change, the IP checksum covers.
  EXPECT_THAT(taken, ElementsAre(6, 7, 8, 9, 10, 11, 40, 41, 46));
}

TEST_F(AdapterTest, DropsAFrameForAnotherStation) {
  expect_only(frame([](auto& way, auto&) { way.destination_mac.bytes[5] = 9; }), "rx_not_ours");
  expect_only(frame([](auto& way, auto&) { way.destination_mac = wire::MacAddress::broadcast(); }), "rx_not_ours");
}

TEST_F(AdapterTest, DropsAFrameForAnotherAddress) {
  expect_only(frame([](auto& way, auto&) { way.destination = wire::Gid::from(wire::Ipv4Address{0x0A000009}); }),
              "rx_not_ours");
  expect_only(frame([](auto& way, auto&) {
                way.source = wire::Gid::parse("fe80::2").value();
                way.destination = wire::Gid::parse("fe80::1").value();
              }),
              "rx_not_ours");
}

TEST_F(AdapterTest, DropsAFrameOfABadIcrc) {
  Frame bad = frame();
  bad.back() ^= 1;
  expect_only(bad, "rx_bad_icrc");
}

TEST_F(AdapterTest, DropsWhatIsNoRoce) {
  Frame other = frame();
  store_be<std::uint16_t>(other.data() + 12, 0x88CC);
  expect_only(other, "rx_not_ours");
  Frame port = frame();
  store_be<std::uint16_t>(port.data() + 14 + 20 + 2, 4790);
  expect_only(port, "rx_not_ours");
}

TEST_F(AdapterTest, DropsAnUnknownOpcode) {
  Frame unknown = frame();
  unknown[14 + 28] = 0x1F;
  expect_only(unknown, "rx_malformed");
}

TEST_F(AdapterTest, DropsAForeignPartition) {
  expect_only(frame([](auto&, wire::Bth& bth) { bth.pkey = 0x8001; }), "rx_bad_pkey");
  EXPECT_THAT(moved_by(frame([](auto&, wire::Bth& bth) { bth.pkey = 0x7FFF; })),
              UnorderedElementsAre(Pair("rx_frames", 1), Pair("rx_requests", 1)))
      << "a limited member of ours";
}

TEST_F(AdapterTest, DropsAPacketForNoQueuePair) {
  for (const std::uint32_t qpn : {0u, 0x10u, 0x12u, 0x10011u, 0xFF'FFFFu})
    expect_only(frame([&](auto&, wire::Bth& bth) { bth.destination = Qpn{qpn}; }), "rx_unknown_qp");
}

TEST_F(AdapterTest, DropsAPacketFromAnybodyButThePeer) {
  expect_only(frame([](auto& way, auto&) { way.source = wire::Gid::from(wire::Ipv4Address{0x0A000003}); }),
              "rx_wrong_source");
}

TEST_F(AdapterTest, DropsACongestionNoticeFromAnybodyButThePeer) {
  auto way = CraftedPeer::way_to_us();
  const Packet cnp{.opcode = kCnp, .ack_request = false, .extended = std::vector<std::uint8_t>(16)};
  way.source = wire::Gid::from(wire::Ipv4Address{0x0A000003});
  expect_only(p.frame_of(cnp, way, {.destination = p.pair->qpn()}), "rx_wrong_source");
  expect_only(p.frame_of(cnp), "rx_cnp");
}

TEST_F(AdapterTest, DropsAPacketOfAnotherTransport) {
  Packet unreliable = write();
  unreliable.opcode = kUcWriteOnly;
  expect_only(p.frame_of(unreliable), "rx_wrong_transport");
  expect_only(p.frame_of({.opcode = kUdSendOnly, .extended = std::vector<std::uint8_t>(8)}), "rx_wrong_transport");
}

TEST_F(AdapterTest, DropsAResponseToNothing) {
  expect_only(p.frame_of({.opcode = kRcAcknowledge, .psn = Psn(0x2000), .extended = CraftedPeer::aeth({})}),
              "rx_ignored_responses");
}

TEST_F(AdapterTest, DropsManagementDatagramsThatNobodyWaitsFor) {
  const auto mad = [&](wire::Opcode opcode, std::uint32_t qkey, std::size_t length) {
    Packet packet{.opcode = opcode,
                  .ack_request = false,
                  .extended = CraftedPeer::written(wire::Deth{.qkey = wire::QKey{qkey}, .source = Qpn{1}}),
                  .payload = std::vector<std::uint8_t>(length)};
    if (opcode == kRcSendOnly) packet.extended.clear();
    return p.frame_of(packet, CraftedPeer::way_to_us(), {.destination = Qpn{1}});
  };
  expect_only(mad(kUdSendOnly, 0x8001'0000, 255), "rx_wrong_transport");
  expect_only(mad(kRcSendOnly, 0x8001'0000, 256), "rx_wrong_transport");
  expect_only(mad(kUdSendOnly, 0x8001'0001, 256), "rx_ud_dropped");
  expect_only(mad(kUdSendOnly, 0x8001'0000, 256), "rx_ud_dropped");
}

class AdapterInState : public ::testing::TestWithParam<QpState> {};

TEST_P(AdapterInState, DropsPacketsThatTheStateDoesNotTake) {
  CraftedPeer p({.state = GetParam() == QpState::kError ? QpState::kInit : GetParam()});
  if (GetParam() == QpState::kError) p.must(p.modify({.state = QpState::kError}));
  p.deliver({.opcode = kRcWriteOnly,
             .psn = Psn(0x1000),
             .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, 1),
             .payload = {1}});
  EXPECT_EQ(p.counters().rx_wrong_state, 1u);
  EXPECT_THAT(p.answers(), IsEmpty());
  EXPECT_TRUE(p.memory_untouched());
}
INSTANTIATE_TEST_SUITE_P(States, AdapterInState, ::testing::Values(QpState::kReset, QpState::kInit, QpState::kError),
                         [](const auto& state) { return std::string(to_string(state.param)); });

TEST(AdapterStates, BeforeReadyToSendRequestsAreAnsweredAndResponsesDropped) {
  CraftedPeer p({.state = QpState::kReadyToReceive});
  p.deliver({.opcode = kRcAcknowledge, .psn = Psn(0x2000), .extended = CraftedPeer::aeth({})});
  EXPECT_EQ(p.counters().rx_wrong_state, 1u);
  p.deliver({.opcode = kRcWriteOnly,
             .psn = Psn(0x1000),
             .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, 1),
             .payload = {1}});
  EXPECT_THAT(p.answers(), SizeIs(1));
  EXPECT_THAT(p.events, ElementsAre(AsyncEvent::Kind::kCommunicationEstablished));
}

TEST(AdapterStates, OnlyARequestThatIsExecutedShowsThatThePeerIsConnected) {
  CraftedPeer p({.state = QpState::kReadyToReceive});
  Packet packet{.opcode = kRcWriteOnly,
                .psn = Psn(0x1000) - 100,
                .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, 1),
                .payload = {1}};
  for (const Psn psn : {Psn(0x1000) - 100, Psn(0x1000) + 100}) {
    packet.psn = psn;
    p.deliver(packet);
    EXPECT_THAT(p.events, IsEmpty()) << "a packet of another connection";
  }
  packet.psn = Psn(0x1000);
  p.deliver(packet);
  EXPECT_THAT(p.events, ElementsAre(AsyncEvent::Kind::kCommunicationEstablished));
}

TEST(AdapterCongestion, AnswersAMarkWithANoticeOnlyWhenThereIsAPath) {
  AdapterConfig config;
  config.dcqcn = true;
  for (const bool knows_mac : {true, false}) {
    CraftedPeer p({.knows_mac = knows_mac}, config);
    wire::AddressVector way = CraftedPeer::way_to_us();
    way.traffic_class = 3;
    const Packet packet{.opcode = kRcWriteOnly,
                        .psn = Psn(0x1000),
                        .ack_request = false,
                        .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, 1),
                        .payload = {1}};
    p.deliver(p.frame_of(packet, way, {.destination = p.pair->qpn()}));
    EXPECT_EQ(p.counters().rx_ecn_marked, 1u);
    const auto answers = p.answers();
    if (knows_mac) {
      ASSERT_THAT(answers, SizeIs(1));
      EXPECT_EQ(answers[0].opcode(), kCnp);
    } else {
      EXPECT_THAT(answers, IsEmpty());
      EXPECT_THAT(p.others, SizeIs(1)) << "an ARP request, and nothing else";
      EXPECT_EQ(load_be<std::uint16_t>(p.others[0].data() + 12), wire::kEtherTypeArp);
    }
  }
}

// Who sent what leaves through a link that takes `room` frames a round, by destination.
std::map<std::uint32_t, std::size_t> shares_of(Adapter& adapter, Time now, std::size_t room, int rounds) {
  std::map<std::uint32_t, std::size_t> shares;
  for (int round = 0; round < rounds; ++round) {
    FrameList sink;
    sink.room = room;
    while (adapter.poll_transmit(now, sink)) {
    }
    EXPECT_EQ(sink.frames.size(), room);
    for (const Frame& frame : sink.frames) {
      wire::ParsedFrame parsed;
      EXPECT_EQ(wire::parse_and_verify(frame, parsed), wire::Verdict::kOk);
      ++shares[parsed.destination.value];
    }
  }
  return shares;
}

TEST(AdapterTurns, AreTakenHoweverFewFramesTheSinkHasRoomFor) {
  constexpr std::size_t kFrames = 288;
  for (const std::size_t room : {1u, 8u, 9u, 16u, 24u}) {
    TwoAdapters world;
    std::vector<std::uint8_t> bytes(200'000);
    const Sge sge = Sge::of(bytes);
    const std::array pairs{world.connect(), world.connect(), world.connect()};
    world.settle();  // the peer's address
    for (const auto& pair : pairs) {
      ASSERT_EQ(world.a.adapter->post_send(world.now, *pair.a, {.op = SendOp::kWrite, .sges = {&sge, 1}}),
                PostError::kNone);
    }
    const auto shares = shares_of(*world.a.adapter, world.now, room, static_cast<int>(kFrames / room));
    ASSERT_THAT(shares, SizeIs(3)) << room;
    for (const auto& [qpn, frames] : shares) EXPECT_EQ(frames, kFrames / 3) << room;
  }
}

TEST(AdapterTurns, OfAnswersAndOfWorkAlternatePacketByPacket) {
  CraftedPeer p;
  for (std::uint32_t i = 0; i < 4; ++i) {
    p.deliver({.opcode = kRcReadRequest,
               .psn = Psn(0x1000) + 16 * i,
               .extended = CraftedPeer::reth(CraftedPeer::kBase, p.key, CraftedPeer::kSize)});
  }
  const Sge sge{CraftedPeer::kBase, 2048, p.key};
  p.post({.op = SendOp::kWrite, .sges = {&sge, 1}});
  std::vector<wire::Opcode> sent;
  for (int round = 0; round < 6; ++round) {  // where a sink is full, too
    FrameList sink;
    sink.room = 1;
    EXPECT_TRUE(p.adapter->poll_transmit(p.now, sink));
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse_and_verify(sink.frames.at(0), parsed), wire::Verdict::kOk);
    sent.push_back(parsed.opcode);
  }
  EXPECT_THAT(sent, ElementsAre(kRcReadResponseFirst, kRcWriteFirst, kRcReadResponseMiddle, kRcWriteLast,
                                kRcReadResponseMiddle, kRcReadResponseMiddle));
  p.post({.op = SendOp::kWrite, .sges = {&sge, 1}});
  EXPECT_THAT(p.answers(), SizeIs(64 - 4 + 2)) << "nothing of either is lost";
}

TEST(AdapterTurns, OfMadsAndOfAddressResolutionAlternate) {
  CraftedPeer p;
  p.adapter->connections();
  for (std::uint32_t i = 0; i < 4; ++i) {  // each is rejected
    wire::CmReq req{.local_comm_id = wire::CommId(i + 1), .service_id = wire::rdma_service(9), .path_mtu = 3};
    req.primary = {.local_gid = CraftedPeer::peer_gid(), .remote_gid = CraftedPeer::our_gid()};
    Frame frame(1000);
    frame.resize(wire::write_cm_frame(frame.data(), wire::HeaderTemplate(CraftedPeer::way_to_us()), Psn(0), {1, req}));
    p.deliver(frame);
  }
  Frame question(wire::EthernetHeader::kSize + wire::ArpPacket::kSize);
  wire::EthernetHeader{wire::MacAddress::broadcast(), CraftedPeer::kPeerMac, wire::kEtherTypeArp}.write(
      question.data());
  wire::ArpPacket{.operation = wire::ArpPacket::kRequest,
                  .sender_mac = CraftedPeer::kPeerMac,
                  .sender_ip = CraftedPeer::peer_gid().v4(),
                  .target_mac = {},
                  .target_ip = CraftedPeer::our_gid().v4()}
      .write(question.data() + wire::EthernetHeader::kSize);
  p.deliver(question);
  FrameList sink;
  sink.room = 2;
  while (p.adapter->poll_transmit(p.now, sink)) {
  }
  ASSERT_THAT(sink.frames, SizeIs(2));
  EXPECT_NE(sink.frames[0].size(), sink.frames[1].size()) << "an answer of each kind";
}

TEST(AdapterAddresses, ReachesAQueuePairByEachOfItsAddresses) {
  CraftedPeer p;
  AdapterConfig config;
  config.mac = CraftedPeer::kOurMac;
  const wire::Gid v6 = wire::Gid::parse("fe80::1").value();
  const wire::Gid peer6 = wire::Gid::parse("fe80::2").value();
  config.gids = {CraftedPeer::our_gid(), v6};
  Adapter adapter(config);
  const auto pd = adapter.create_domain();
  CompletionQueue* const cq = adapter.create_completion_queue(8);
  std::vector<std::uint8_t> bytes(64);
  const auto key = adapter.regions().add({.pd = pd, .bytes = bytes, .access = memory::kAllAccess}).value();
  QueuePair* const pair =
      adapter.create_queue_pair({.pd = pd, .send_completions = cq, .receive_completions = cq}).value();
  ASSERT_TRUE(adapter.modify({}, *pair, {.state = QpState::kInit, .access = memory::kAllAccess}));
  EXPECT_FALSE(adapter.modify(
      {}, *pair, {.state = QpState::kReadyToReceive, .remote_gid = peer6, .remote_qpn = Qpn{5}, .receive_psn = Psn(3)}))
      << "not from an IPv4 address";
  ASSERT_TRUE(adapter.modify({}, *pair,
                             {.state = QpState::kReadyToReceive,
                              .remote_gid = peer6,
                              .remote_mac = CraftedPeer::kPeerMac,
                              .source_gid_index = std::uint8_t{1},
                              .remote_qpn = Qpn{5},
                              .receive_psn = Psn(3)}));
  const Packet packet{
      .opcode = kRcWriteOnly, .psn = Psn(3), .extended = CraftedPeer::reth(0, key, 2), .payload = {1, 2}};
  auto frame = p.frame_of(packet,
                          {.source_mac = CraftedPeer::kPeerMac,
                           .destination_mac = CraftedPeer::kOurMac,
                           .source = peer6,
                           .destination = v6},
                          {.destination = pair->qpn()});
  adapter.on_frame({}, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  EXPECT_EQ(adapter.counters().rx_requests, 1u);
  EXPECT_EQ(bytes[1], 2);
}

TEST(AdapterQueuePairs, AQpnRestsBeforeItIsUsedAgain) {
  AdapterConfig config;
  config.limits.max_queue_pairs = 4;
  CraftedPeer p({.state = QpState::kReset}, config);
  const QueuePairConfig c{.pd = p.pd, .send_completions = p.completions, .receive_completions = p.completions};
  const Qpn first = p.pair->qpn();
  p.adapter->destroy(p.pair);
  std::vector<QueuePair*> pairs;
  for (int i = 0; i < 3; ++i) {
    pairs.push_back(p.adapter->create_queue_pair(c).value());
    EXPECT_NE(pairs.back()->qpn(), first);
  }
  EXPECT_EQ(p.adapter->create_queue_pair(c).value()->qpn(), first);
  EXPECT_FALSE(p.adapter->create_queue_pair(c));
  const Qpn second = pairs[1]->qpn();
  p.adapter->destroy(pairs[1]);
  EXPECT_EQ(p.adapter->find(second), nullptr);
  EXPECT_EQ(p.adapter->create_queue_pair(c).value()->qpn(), second);
}

TEST(AdapterQueuePairs, OneThatIsDestroyedLeavesTheLineTheClockAndTheCompletionQueue) {
  CraftedPeer p;
  const Sge sge{CraftedPeer::kBase, 8, p.key};
  p.post({.op = SendOp::kWrite, .sges = {&sge, 1}});
  p.answers();
  p.deliver({.opcode = kRcAcknowledge, .psn = Psn(0x2000), .extended = CraftedPeer::aeth({})});
  EXPECT_EQ(p.completions->size(), 1u);
  p.post({.op = SendOp::kWrite, .sges = {&sge, 1}});
  p.answers();
  EXPECT_NE(p.adapter->next_deadline(), Time::never());
  p.post({.op = SendOp::kWrite, .sges = {&sge, 1}});
  const auto late = p.frame_of({.opcode = kRcAcknowledge, .psn = Psn(0x2001), .extended = CraftedPeer::aeth({})});
  p.adapter->destroy(p.pair);
  EXPECT_EQ(p.adapter->next_deadline(), Time::never());
  EXPECT_EQ(p.completions->size(), 0u);
  EXPECT_THAT(p.answers(), IsEmpty());
  p.deliver(late);
  EXPECT_EQ(p.counters().rx_unknown_qp, 1u);
}

}  // namespace
}  // namespace sluice::rc
