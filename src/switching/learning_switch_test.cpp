#include "switching/learning_switch.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "base/rng.h"
#include "switching/stage_chain.h"
#include "wire/ethernet.h"
#include "wire/frame.h"
#include "wire/icrc.h"
#include "wire/ip.h"

namespace sluice::switching {
namespace {

using Bytes = std::vector<std::uint8_t>;

// A port's way out that keeps what it is given, up to `room` frames.
class Tray final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    if (frames.size() >= room) return nullptr;
    space_.resize(length);
    return space_.data();
  }
  void commit(std::size_t length) override {
    frames.emplace_back(space_.begin(), space_.begin() + static_cast<long>(length));
  }

  std::vector<Bytes> take() { return std::exchange(frames, {}); }

  std::size_t room = 1'000'000;
  std::vector<Bytes> frames;

 private:
  Bytes space_;
};

constexpr wire::MacAddress mac(std::uint8_t last) { return {{2, 0, 0, 0, 0, last}}; }

Bytes frame(const wire::MacAddress& to, const wire::MacAddress& from, std::uint8_t content = 0,
            std::size_t length = 60) {
  Bytes bytes(length, content);
  wire::EthernetHeader{to, from, 0x88B5}.write(bytes.data());
  return bytes;
}

class SwitchTest : public testing::Test {
 protected:
  void build(SwitchConfig config, std::size_t ports = 3) {
    machine_ = std::make_unique<LearningSwitch>(config);
    for (std::size_t i = 0; i < ports; ++i)
      ASSERT_EQ(machine_->attach(now_, trays_[i]), PortNumber(static_cast<std::uint16_t>(i)));
  }
  void SetUp() override { build({}); }

  void receive(std::uint16_t port, std::vector<Bytes> frames) {
    std::vector<port::Frame> burst;
    for (Bytes& f : frames) burst.push_back({f.data(), static_cast<std::uint32_t>(f.size())});
    machine_->process(now_, PortNumber(port), burst);
  }
  std::uint64_t drops(std::uint16_t port, DropReason reason) {
    return machine_->statistics(PortNumber(port)).dropped(reason);
  }

  Time now_ = Time::at(Duration::seconds(1));
  std::array<Tray, 4> trays_;
  std::unique_ptr<LearningSwitch> machine_;
};

TEST_F(SwitchTest, FloodsAnUnknownDestinationToAllOthers) {
  receive(0, {frame(mac(2), mac(1))});
  EXPECT_EQ(trays_[0].frames.size(), 0u);
  EXPECT_EQ(trays_[1].frames, std::vector<Bytes>{frame(mac(2), mac(1))});
  EXPECT_EQ(trays_[2].frames, std::vector<Bytes>{frame(mac(2), mac(1))});
  EXPECT_EQ(machine_->statistics(PortNumber(0)).flooded, 1u);
}

TEST_F(SwitchTest, SendsToTheOnePortWhereTheDestinationWasSeen) {
  receive(1, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  receive(0, {frame(mac(2), mac(1), 7)});
  EXPECT_EQ(trays_[1].take(), std::vector<Bytes>{frame(mac(2), mac(1), 7)});
  EXPECT_TRUE(trays_[2].frames.empty());
  const PortStatistics& in = machine_->statistics(PortNumber(0));
  const PortStatistics& out = machine_->statistics(PortNumber(1));
  EXPECT_EQ(in.rx_frames, 1u);
  EXPECT_EQ(in.rx_bytes, 60u);
  EXPECT_EQ(out.tx_frames, 1u);
  EXPECT_EQ(out.tx_bytes, 60u);
  EXPECT_EQ(in.flooded, 0u);
}

TEST_F(SwitchTest, FollowsAStationThatMoves) {
  receive(1, {frame(mac(9), mac(2))});
  receive(2, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  receive(0, {frame(mac(2), mac(1))});
  EXPECT_TRUE(trays_[1].frames.empty());
  EXPECT_EQ(trays_[2].frames.size(), 1u);
  EXPECT_EQ(machine_->macs().moves(), 1u);
}

TEST_F(SwitchTest, FloodsAgainWhenAnAddressHasAged) {
  receive(1, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  now_ = now_ + Duration::seconds(300) - Duration::picoseconds(1);
  receive(0, {frame(mac(2), mac(1))});
  EXPECT_TRUE(trays_[2].take().empty()) << "not yet";
  now_ = now_ + Duration::picoseconds(1);
  receive(0, {frame(mac(2), mac(1))});
  EXPECT_EQ(trays_[2].take().size(), 1u);
}

TEST_F(SwitchTest, FloodsBroadcastsAndMulticasts) {
  receive(1, {frame(wire::MacAddress::broadcast(), mac(2)), frame({{1, 0, 0x5E, 0, 0, 1}}, mac(2))});
  EXPECT_EQ(trays_[0].frames.size(), 2u);
  EXPECT_EQ(trays_[2].frames.size(), 2u);
  EXPECT_TRUE(trays_[1].frames.empty());
}

TEST_F(SwitchTest, DropsRuntsBadSourcesAndHairpinsWithAReasonEach) {
  receive(0, {Bytes(13), frame(mac(2), wire::MacAddress::broadcast()), frame(mac(1), mac(1))});
  EXPECT_EQ(drops(0, DropReason::kRunt), 1u);
  EXPECT_EQ(drops(0, DropReason::kBadSource), 1u);
  EXPECT_EQ(drops(0, DropReason::kSamePort), 1u);
  for (const Tray& tray : trays_) EXPECT_TRUE(tray.frames.empty());
}

TEST_F(SwitchTest, HoldsFloodsDownToTheirRate) {
  build({.flood_rate = 1'000, .flood_burst = 10});
  for (int i = 0; i < 30; ++i) receive(0, {frame(wire::MacAddress::broadcast(), mac(1))});
  EXPECT_EQ(trays_[1].take().size(), 10u);
  EXPECT_EQ(drops(0, DropReason::kFloodLimit), 20u);
  now_ = now_ + Duration::milliseconds(5);
  for (int i = 0; i < 30; ++i) receive(0, {frame(wire::MacAddress::broadcast(), mac(1))});
  EXPECT_EQ(trays_[1].take().size(), 5u);
  receive(2, {frame(wire::MacAddress::broadcast(), mac(3))});
  EXPECT_EQ(trays_[1].take().size(), 1u) << "each port has a rate of its own";
}

TEST_F(SwitchTest, FloodsAtTheWholeRateHoweverMoreComes) {
  SwitchConfig config;
  config.flood_rate = 1000;
  config.flood_burst = 1;
  for (const std::int64_t every_us : {501, 700, 900, 999}) {
    build(config, 2);
    trays_[1].take();
    const Time until = now_ + Duration::seconds(1);
    for (; now_ < until; now_ = now_ + Duration::microseconds(every_us)) receive(0, {frame(mac(9), mac(1))});
    EXPECT_NEAR(static_cast<double>(trays_[1].take().size()), 1000, 5) << "one every " << every_us << " us";
  }
}

TEST_F(SwitchTest, QueuesForAFullPortAndKeepsTheOrder) {
  receive(1, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  trays_[1].room = 2;
  for (std::uint8_t i = 0; i < 10; ++i) receive(0, {frame(mac(2), mac(1), i, 60u + i)});
  EXPECT_EQ(machine_->drain(), 8u);
  std::vector<Bytes> arrived = trays_[1].take();
  receive(0, {frame(mac(2), mac(1), 10)});
  EXPECT_TRUE(trays_[1].frames.empty()) << "nothing overtakes the queue";
  while (machine_->drain() != 0) {
    for (Bytes& f : trays_[1].take()) arrived.push_back(std::move(f));
  }
  for (Bytes& f : trays_[1].take()) arrived.push_back(std::move(f));
  ASSERT_EQ(arrived.size(), 11u);
  for (std::uint8_t i = 0; i < 10; ++i) EXPECT_EQ(arrived[i], frame(mac(2), mac(1), i, 60u + i));
  EXPECT_EQ(machine_->statistics(PortNumber(1)).queued, 9u);
}

TEST_F(SwitchTest, DropsWhatItsQueueCannotHold) {
  build({.queue_bytes = 2 * port::kMaxFrame});
  receive(1, {frame(mac(9), mac(2))});
  trays_[1].room = 0;
  for (int i = 0; i < 5; ++i) receive(0, {frame(mac(2), mac(1), 0, 4'000)});
  EXPECT_EQ(drops(1, DropReason::kQueueFull), 3u);
  EXPECT_LE(machine_->queued_bytes(PortNumber(1)), 2 * port::kMaxFrame);
}

TEST_F(SwitchTest, ForgetsAPortThatIsDetachedAndGivesItsNumberAgain) {
  receive(1, {frame(mac(9), mac(2))});
  trays_[1].room = 0;
  receive(0, {frame(mac(2), mac(1))});
  machine_->detach(PortNumber(1));
  EXPECT_EQ(machine_->drain(), 0u) << "what waited for it is gone";
  for (Tray& tray : trays_) tray.take();
  receive(0, {frame(mac(2), mac(1))});
  EXPECT_EQ(trays_[2].frames.size(), 1u) << "unknown again: flooded";
  EXPECT_EQ(machine_->attach(now_, trays_[3]), PortNumber(1));
  EXPECT_EQ(machine_->statistics(PortNumber(1)).rx_frames, 0u);
}

TEST_F(SwitchTest, RefusesMorePortsThanItsLimit) {
  build({.max_ports = 3});
  EXPECT_EQ(machine_->attach(now_, trays_[3]), std::nullopt);
}

TEST_F(SwitchTest, DoesNotLearnBeyondItsTable) {
  build({.mac_slots = 16});
  for (std::uint8_t i = 1; i <= 20; ++i) receive(0, {frame(mac(200), mac(i))});
  EXPECT_EQ(machine_->macs().entries(now_).size(), 16u);
  EXPECT_EQ(machine_->macs().replaced(), 4u);
  now_ = now_ + Duration::seconds(300);
  receive(0, {frame(mac(200), mac(99))});
  EXPECT_EQ(machine_->macs().entries(now_).size(), 1u) << "the aged made room";
}

// --- the stage ---

// Drops frames whose content is 1, turns 2 into 3, and answers 4 with a frame of its own.
class TestStage final : public Stage {
 public:
  void process(Time, std::span<Packet> packets, port::FrameSink& outbox) override {
    bursts.push_back(packets.size());
    for (Packet& packet : packets) {
      std::uint8_t& content = packet.frame.data[20];
      if (content == 1) packet.action = Packet::Action::kDrop;
      if (content == 2) content = 3;
      if (content == 4) emit(outbox);
    }
  }
  Time next_deadline() const override { return deadline; }
  void on_deadline(Time, port::FrameSink& outbox) override {
    deadline = Time::never();
    emit(outbox);
  }

  void on_spare(Time now, const Ways& ways, port::FrameSink& outbox) override {
    if (ways.is_idle(now, mac(1))) emit(outbox);
  }

  static void emit(port::FrameSink& outbox) {
    const Bytes made = frame(mac(1), mac(77), 42);
    std::memcpy(outbox.reserve(made.size()), made.data(), made.size());
    outbox.commit(made.size());
  }

  std::vector<std::size_t> bursts;
  Time deadline = Time::never();
};

TEST_F(SwitchTest, AStageDropsEditsAndMakesPackets) {
  TestStage stage;
  machine_->set_stage(&stage);
  receive(1, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  receive(0, {frame(mac(2), mac(1), 1), frame(mac(2), mac(1), 2), frame(mac(2), mac(1), 4), frame(mac(2), mac(1), 5)});
  EXPECT_EQ(stage.bursts, (std::vector<std::size_t>{1, 4}));
  Bytes edited = frame(mac(2), mac(1), 2);
  edited[20] = 3;
  EXPECT_EQ(trays_[1].take(), (std::vector<Bytes>{edited, frame(mac(2), mac(1), 4), frame(mac(2), mac(1), 5)}));
  EXPECT_EQ(trays_[0].take(), std::vector<Bytes>{frame(mac(1), mac(77), 42)})
      << "made packets may go back where the burst came from";
  EXPECT_EQ(drops(0, DropReason::kStage), 1u);
}

TEST_F(SwitchTest, WhatAStageHasTakenTeachesItsSourceAndMayComeBackLater) {
  TestStage stage;
  machine_->set_stage(&stage);
  receive(0, {frame(mac(2), mac(1), 1)});  // taken: but its source is known from now on
  for (Tray& tray : trays_) EXPECT_TRUE(tray.frames.empty());
  Bytes back = frame(mac(1), mac(2), 7);
  machine_->forward_made(now_, {back.data(), static_cast<std::uint32_t>(back.size())});
  EXPECT_EQ(trays_[0].take(), std::vector<Bytes>{back});
  EXPECT_TRUE(trays_[1].frames.empty());
  receive(2, {frame(mac(2), mac(3), 5)});
  EXPECT_EQ(trays_[0].take().size(), 1u) << "what came back has taught nothing: its source is unknown, this is a flood";
  EXPECT_EQ(trays_[1].take().size(), 1u);
}

TEST_F(SwitchTest, AFloodOfWhatAStageGivesBackIsHeldDownToTheRateOfWhereItCameFrom) {
  build({.flood_rate = 1'000, .flood_burst = 10});
  receive(0, {frame(mac(1), mac(1))});
  for (int i = 0; i < 30; ++i) {
    Bytes back = frame(mac(2), mac(1));
    machine_->forward_made(now_, {back.data(), static_cast<std::uint32_t>(back.size())});
  }
  EXPECT_EQ(trays_[1].take().size(), 10u);
  EXPECT_EQ(drops(0, DropReason::kFloodLimit), 20u);
}

TEST_F(SwitchTest, AFloodOfWhatAStageGivesBackIsHeldDownAlsoWhereNobodyKnowsItsSource) {
  build({.flood_rate = 1'000, .flood_burst = 10});
  const auto give_back = [&](Bytes frame) {
    machine_->forward_made(now_, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  };
  for (int i = 0; i < 30; ++i) give_back(frame(mac(2), mac(1)));
  EXPECT_EQ(trays_[1].take().size(), 10u);
  EXPECT_EQ(machine_->strays().dropped(DropReason::kFloodLimit), 20u);
  now_ = now_ + Duration::milliseconds(5);
  for (int i = 0; i < 30; ++i) give_back(frame(mac(2), mac(1)));
  EXPECT_EQ(trays_[1].take().size(), 5u);
  give_back(Bytes(13));
  EXPECT_EQ(machine_->strays().dropped(DropReason::kRunt), 1u);
}

TEST_F(SwitchTest, AStageNeverSeesRuntsAndBadSources) {
  TestStage stage;
  machine_->set_stage(&stage);
  receive(0, {frame(mac(2), {{1, 0, 0, 0, 0, 1}}, 4), frame(mac(2), mac(1), 5), Bytes(13),
              frame(mac(2), wire::MacAddress::broadcast(), 2)});
  receive(0, {Bytes(3)});
  EXPECT_EQ(stage.bursts, std::vector<std::size_t>{1});
  EXPECT_EQ(trays_[1].take(), std::vector<Bytes>{frame(mac(2), mac(1), 5)});
  EXPECT_EQ(drops(0, DropReason::kBadSource), 2u);
  EXPECT_EQ(drops(0, DropReason::kRunt), 2u);
}

TEST_F(SwitchTest, WhatAStageGivesBackDoesNotGoBackWhereItCameFrom) {
  receive(0, {frame(mac(8), mac(1)), frame(mac(1), mac(8))});  // both are behind port 0
  for (Tray& tray : trays_) tray.take();
  const auto give_back = [&](Bytes frame) {
    machine_->forward_made(now_, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  };
  give_back(frame(mac(9), mac(1)));
  EXPECT_TRUE(trays_[0].take().empty()) << "a flood goes to all others";
  EXPECT_EQ(trays_[1].take().size(), 1u);
  EXPECT_EQ(trays_[2].take().size(), 1u);
  give_back(frame(mac(8), mac(1)));
  for (Tray& tray : trays_) EXPECT_TRUE(tray.take().empty());
  EXPECT_EQ(drops(0, DropReason::kSamePort), 2u) << "as the one that nobody took";
  give_back(frame(mac(1), mac(1)));
  EXPECT_EQ(trays_[0].take().size(), 1u) << "an adapter's loopback";
}

TEST_F(SwitchTest, AStageGetsItsDeadlines) {
  TestStage stage;
  stage.deadline = now_ + Duration::microseconds(3);
  machine_->set_stage(&stage);
  receive(0, {frame(mac(9), mac(1))});
  trays_[0].take();
  machine_->on_deadline(now_);
  EXPECT_TRUE(trays_[0].frames.empty()) << "early calls do nothing";
  EXPECT_EQ(machine_->next_deadline(), stage.deadline);
  now_ = stage.deadline;
  machine_->on_deadline(now_);
  EXPECT_EQ(trays_[0].take().size(), 1u);
}

TEST_F(SwitchTest, AStageMaySendWhereNothingElseWaits) {
  TestStage stage;
  machine_->set_stage(&stage);
  receive(0, {frame(mac(9), mac(1))});
  receive(1, {frame(mac(9), mac(2))});
  for (Tray& tray : trays_) tray.take();
  machine_->offer_spare(now_);
  EXPECT_EQ(trays_[0].take().size(), 1u);
  trays_[0].room = 0;
  receive(1, {frame(mac(1), mac(2), 5)});
  machine_->offer_spare(now_);
  EXPECT_EQ(machine_->statistics(PortNumber(0)).queued, 1u) << "only what was received waits";
  trays_[0].room = 10;
  machine_->drain();
  machine_->offer_spare(now_);
  EXPECT_EQ(trays_[0].take().size(), 2u);
}

TEST_F(SwitchTest, AStageMaySendBeforeAnythingElseHappened) {
  TestStage stage;
  receive(0, {frame(mac(9), mac(1))});
  trays_[0].take();
  machine_->set_stage(&stage);
  machine_->offer_spare(now_);
  EXPECT_EQ(trays_[0].take().size(), 1u);
}

TEST_F(SwitchTest, WhatTheFirstOfTwoStagesTakesTheSecondNeverSees) {
  TestStage first;
  TestStage second;
  StageChain chain(first, second);
  machine_->set_stage(&chain);
  receive(1, {frame(mac(9), mac(2), 5)});
  receive(0, {frame(mac(2), mac(1), 1), frame(mac(2), mac(1), 2), frame(mac(2), mac(1), 1), frame(mac(2), mac(1), 5)});
  EXPECT_EQ(first.bursts, (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(second.bursts, (std::vector<std::size_t>{1, 2}));
  Bytes edited = frame(mac(2), mac(1), 2);
  edited[20] = 3;
  EXPECT_EQ(trays_[1].take(), (std::vector<Bytes>{edited, frame(mac(2), mac(1), 5)}));
  first.deadline = now_ + Duration::microseconds(5);
  second.deadline = now_ + Duration::microseconds(3);
  EXPECT_EQ(machine_->next_deadline(), second.deadline);
  now_ = second.deadline;
  machine_->on_deadline(now_);
  EXPECT_EQ(second.deadline, Time::never());
  EXPECT_EQ(machine_->next_deadline(), first.deadline);
}

// --- RoCE packets: congestion marks and routing ---

Bytes roce_frame(const wire::MacAddress& to, const wire::MacAddress& from, std::string_view source,
                 std::string_view destination, std::uint8_t traffic_class = 2, std::uint8_t ttl = 64) {
  const wire::HeaderTemplate headers({.source_mac = from,
                                      .destination_mac = to,
                                      .source = wire::Gid::parse(source).value(),
                                      .destination = wire::Gid::parse(destination).value(),
                                      .vlan_tci = {},
                                      .traffic_class = traffic_class,
                                      .hop_limit = ttl});
  Bytes bytes(headers.frame_size(wire::Bth::kSize + 8));
  const std::size_t bth = headers.write(bytes.data(), wire::Bth::kSize + 8);
  wire::Bth transport;
  transport.opcode = wire::Opcode::kRcSendOnly;
  transport.destination = wire::Qpn(5);
  transport.write(&bytes[bth]);
  std::iota(bytes.begin() + static_cast<long>(bth + wire::Bth::kSize), bytes.end() - 4, std::uint8_t{1});
  headers.seal(bytes.data(), bytes.size() - 4);
  return bytes;
}

TEST_F(SwitchTest, MarksPacketsThatMeetALongQueue) {
  const Bytes capable = roce_frame(mac(2), mac(1), "10.0.0.1", "10.0.0.2", 2);
  const Bytes incapable = roce_frame(mac(2), mac(1), "10.0.0.1", "10.0.0.2", 0);
  build({.ecn_threshold_bytes = 3 * capable.size()});
  receive(1, {frame(mac(9), mac(2))});
  trays_[1].room = 0;
  for (int i = 0; i < 5; ++i) receive(0, {capable, incapable});
  trays_[1].room = 100;
  machine_->drain();
  const std::vector<Bytes> arrived = trays_[1].take();
  ASSERT_EQ(arrived.size(), 10u);
  EXPECT_EQ(machine_->statistics(PortNumber(1)).ecn_marked, 4u);
  EXPECT_EQ(arrived[0], capable) << "the first found a short queue";
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse_and_verify(arrived[i], parsed), wire::Verdict::kOk);
    if (i % 2 == 1) {
      EXPECT_EQ(arrived[i], incapable);
    }
    if (i % 2 == 0 && i >= 4) {
      EXPECT_EQ(parsed.ecn(), wire::Ecn::kCongestionExperienced);
    }
  }
}

class RoutingTest : public SwitchTest {
 protected:
  static constexpr wire::MacAddress kRouter = mac(250);

  void SetUp() override {
    SwitchConfig config;
    config.router.mac = kRouter;
    config.router.interfaces = {{wire::Ipv4Address::parse("10.0.0.254").value(), 24},
                                {wire::Ipv4Address::parse("10.0.1.254").value(), 24}};
    build(config);
  }

  static Bytes arp(std::uint16_t operation, const wire::MacAddress& from, std::string_view from_ip,
                   std::string_view target_ip, const wire::MacAddress& to = wire::MacAddress::broadcast()) {
    wire::ArpPacket packet;
    packet.operation = operation;
    packet.sender_mac = from;
    packet.sender_ip = wire::Ipv4Address::parse(from_ip).value();
    packet.target_ip = wire::Ipv4Address::parse(target_ip).value();
    Bytes bytes(42);
    wire::EthernetHeader{to, from, wire::kEtherTypeArp}.write(bytes.data());
    packet.write(bytes.data() + 14);
    return bytes;
  }
};

TEST_F(RoutingTest, AnswersArpForItsOwnAddressOnly) {
  receive(0, {arp(1, mac(1), "10.0.0.1", "10.0.0.254")});
  const auto answers = trays_[0].take();
  ASSERT_EQ(answers.size(), 1u);
  const auto answer = wire::ArpPacket::parse(answers[0].data() + 14);
  EXPECT_EQ(answer.operation, wire::ArpPacket::kReply);
  EXPECT_EQ(answer.sender_mac, kRouter);
  EXPECT_EQ(answer.sender_ip.to_string(), "10.0.0.254");
  EXPECT_TRUE(trays_[1].take().empty()) << "answered, not flooded";
  receive(0, {arp(1, mac(1), "10.0.0.1", "10.0.0.7")});
  EXPECT_TRUE(trays_[0].take().empty());
  EXPECT_EQ(trays_[1].take().size(), 1u);
}

TEST_F(RoutingTest, AsksForAnUnknownNeighborThenRoutesWithTheIcrcIntact) {
  const Bytes packet = roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2");
  receive(0, {packet});
  EXPECT_EQ(drops(0, DropReason::kRouterUnknown), 1u);
  const auto asked = trays_[1].take();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(wire::ArpPacket::parse(asked[0].data() + 14).target_ip.to_string(), "10.0.1.2");
  receive(1, {arp(2, mac(2), "10.0.1.2", "10.0.1.254", kRouter)});
  for (Tray& tray : trays_) tray.take();

  receive(0, {packet});
  EXPECT_TRUE(trays_[2].take().empty());
  const auto routed = trays_[1].take();
  ASSERT_EQ(routed.size(), 1u);
  wire::ParsedFrame parsed;
  ASSERT_EQ(wire::parse_and_verify(routed[0], parsed), wire::Verdict::kOk) << "header checksum and ICRC";
  const auto ethernet = wire::EthernetHeader::parse(routed[0].data());
  EXPECT_EQ(ethernet.destination, mac(2));
  EXPECT_EQ(ethernet.source, kRouter);
  EXPECT_EQ(wire::Ipv4Header::parse(routed[0].data() + 14).ttl, 63);
}

TEST_F(RoutingTest, KnowsTheNeighborsThatAskOthers) {
  receive(1, {arp(1, mac(2), "10.0.1.2", "10.0.1.3")});
  for (Tray& tray : trays_) tray.take();
  receive(0, {roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2")});
  EXPECT_EQ(trays_[1].take().size(), 1u);
  EXPECT_EQ(drops(0, DropReason::kRouterUnknown), 0u);
}

TEST_F(RoutingTest, AsksForTheNeighborOfWhatAStageGivesBackAndRoutesItToAnyPort) {
  receive(0, {frame(mac(9), mac(1))});
  for (Tray& tray : trays_) tray.take();
  const auto give_back = [&] {
    Bytes packet = roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2");
    machine_->forward_made(now_, {packet.data(), static_cast<std::uint32_t>(packet.size())});
  };
  give_back();
  EXPECT_EQ(drops(0, DropReason::kRouterUnknown), 1u);
  const auto asked = trays_[1].take();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(wire::ArpPacket::parse(asked[0].data() + 14).target_ip.to_string(), "10.0.1.2");
  receive(0, {arp(2, mac(2), "10.0.1.2", "10.0.1.254", kRouter)});
  for (Tray& tray : trays_) tray.take();
  give_back();
  EXPECT_EQ(trays_[0].take().size(), 1u) << "between two subnets behind one port";
  EXPECT_TRUE(trays_[1].take().empty());
}

TEST_F(RoutingTest, CountsWhatCannotBeRoutedOfWhatAStageMakesUnderNoPort) {
  Bytes packet = roce_frame(kRouter, mac(9), "10.0.0.9", "10.0.1.2");
  machine_->forward_made(now_, {packet.data(), static_cast<std::uint32_t>(packet.size())});
  EXPECT_EQ(machine_->strays().dropped(DropReason::kRouterUnknown), 1u);
  EXPECT_EQ(trays_[1].take().size(), 1u) << "and the neighbour is asked for";
}

TEST_F(RoutingTest, RefusesWhatCannotBeRoutedWithAReasonEach) {
  receive(1, {arp(2, mac(2), "10.0.1.2", "10.0.1.254", kRouter)});
  for (Tray& tray : trays_) tray.take();
  Bytes bad_checksum = roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2");
  bad_checksum[14 + 10] ^= 1;
  Bytes too_long = roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2");
  too_long[14 + 2] = 0xFF;
  Bytes named_otherwise = roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2");
  wire::EthernetHeader{kRouter, mac(1), wire::kEtherTypeArp}.write(named_otherwise.data());
  receive(0, {roce_frame(kRouter, mac(1), "10.0.0.1", "10.0.1.2", 0, 1), bad_checksum, too_long, named_otherwise,
              frame(kRouter, mac(1)), Bytes(frame(kRouter, mac(1), 0, 20)),
              roce_frame(kRouter, mac(1), "10.0.0.1", "10.9.9.9")});
  EXPECT_EQ(drops(0, DropReason::kRouterTtl), 1u);
  EXPECT_EQ(drops(0, DropReason::kRouterMalformed), 5u);
  EXPECT_EQ(drops(0, DropReason::kRouterUnknown), 1u);
  for (const Tray& tray : trays_) EXPECT_TRUE(tray.frames.empty());
}

// --- against a model: random traffic, every frame where the model says ---

TEST(EgressQueue, HoldsTheLongestFrameWhereverTheLastOneEnded) {
  EgressQueue queue(2 * port::kMaxFrame);
  const Bytes longest(port::kMaxFrame, 1);
  Tray tray;
  ASSERT_FALSE(queue.push({longest.data(), longest.size() - 4}).empty());
  queue.drain(tray, [](std::size_t) {});
  EXPECT_FALSE(queue.push(longest).empty()) << "it is empty, and has room for two";
}

TEST(EgressQueue, HoldsWhatAPlainQueueHolds) {
  Rng rng(7);
  EgressQueue queue(2 * port::kMaxFrame + 777);
  std::deque<Bytes> model;
  Tray tray;
  std::uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (rng.below(3) != 0) {
      Bytes f(1 + rng.below(step % 2 == 0 ? 200 : port::kMaxFrame));
      for (auto& b : f) b = static_cast<std::uint8_t>(rng.next());
      if (queue.push(f).empty()) {
        ++refused;
      } else {
        model.push_back(f);
      }
    } else {
      tray.room = rng.below(4);
      queue.drain(tray, [](std::size_t) {});
      for (const Bytes& f : tray.take()) {
        ASSERT_FALSE(model.empty());
        ASSERT_EQ(f, model.front()) << "step " << step;
        model.pop_front();
      }
    }
    ASSERT_EQ(queue.frames(), model.size());
  }
  EXPECT_GT(refused, 100u);
}

class KeepingTap final : public Tap {
 public:
  struct Seen {
    std::uint16_t port;
    Direction direction;
    Bytes frame;
    bool operator==(const Seen&) const = default;
  };
  void sees(PortNumber port, Direction direction, ByteView frame) override {
    seen.push_back({port.value, direction, {frame.begin(), frame.end()}});
  }
  void detached(PortNumber port) override { gone.push_back(port.value); }

  std::vector<Seen> seen;
  std::vector<std::uint16_t> gone;
};

TEST_F(SwitchTest, ATapSeesWhatComesAndWhatLeaves) {
  KeepingTap tap;
  machine_->set_tap(&tap);
  const Bytes hello = frame(wire::MacAddress::broadcast(), mac(1));
  const Bytes answer = frame(mac(1), mac(2), 7);
  trays_[0].room = 0;  // the answer waits in the queue: it has left, as far as the switch is concerned
  receive(0, {hello});
  receive(1, {answer});
  EXPECT_EQ(tap.seen, (std::vector<KeepingTap::Seen>{{0, Direction::kIn, hello},
                                                     {1, Direction::kOut, hello},
                                                     {2, Direction::kOut, hello},
                                                     {1, Direction::kIn, answer},
                                                     {0, Direction::kOut, answer}}));
  tap.seen.clear();
  trays_[0].room = 10;
  machine_->drain();
  receive(1, {frame(mac(2), mac(2))});  // goes nowhere
  EXPECT_EQ(tap.seen.size(), 1);
  machine_->detach(PortNumber(2));
  EXPECT_EQ(tap.gone, std::vector<std::uint16_t>{2});
  machine_->set_tap(nullptr);
  receive(0, {hello});
  EXPECT_EQ(tap.seen.size(), 1);
}

// It sees what a stage makes of a frame, and what it makes itself.
TEST_F(SwitchTest, ATapSeesBothSidesOfAStage) {
  class Changing final : public Stage {
   public:
    void process(Time, std::span<Packet> packets, port::FrameSink& outbox) override {
      for (Packet& packet : packets) packet.frame.data[20] = 9;
      const Bytes own = frame(mac(1), mac(3), 5);
      std::copy(own.begin(), own.end(), outbox.reserve(own.size()));
      outbox.commit(own.size());
    }
  } stage;
  receive(0, {frame(mac(9), mac(1))});
  KeepingTap tap;
  machine_->set_tap(&tap);
  machine_->set_stage(&stage);
  receive(1, {frame(mac(1), mac(2))});
  ASSERT_EQ(tap.seen.size(), 3);
  EXPECT_EQ(tap.seen[0].direction, Direction::kIn);
  EXPECT_EQ(tap.seen[0].frame[20], 0);
  EXPECT_EQ(tap.seen[1].direction, Direction::kOut);
  EXPECT_EQ(tap.seen[1].frame[20], 9);
  EXPECT_EQ(tap.seen[2].frame, frame(mac(1), mac(3), 5));
}

}  // namespace
}  // namespace sluice::switching
