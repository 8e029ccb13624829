#include "rack/switch/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "wire/ethernet.h"

namespace sluice::rack {
namespace {

namespace pcapng = ports::pcapng;
using switching::Direction;
using switching::PortNumber;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr PortNumber kFirst{0};
constexpr PortNumber kSecond{1};

wire::MacAddress mac(std::uint8_t last) { return {{2, 0, 0, 0, 0, last}}; }

std::vector<std::uint8_t> frame(std::uint8_t to, std::uint8_t from, std::size_t length = 60) {
  std::vector<std::uint8_t> bytes(length, from);
  wire::EthernetHeader{mac(to), mac(from), 0x88B5}.write(bytes.data());
  return bytes;
}

std::shared_ptr<Capture> make(const CaptureWish& wish) {
  auto capture = Capture::make(wish);
  EXPECT_TRUE(capture) << capture.error().message;
  return *capture;
}

PortNames name_of(PortNumber port) { return {"port-" + std::to_string(port.value), ""}; }

struct Read {
  std::vector<std::string> interfaces{};
  struct Packet {
    std::string interface;
    pcapng::Direction direction;
    std::uint64_t lost_before;
    std::uint32_t original_length;
    std::vector<std::uint8_t> bytes;
  };
  std::vector<Packet> packets{};
  std::uint64_t lost = 0;  // as the statistics say
};

Read read(Capture& capture, Read all = {}) {
  capture.flush();
  pcapng::PcapngStream stream;
  for (std::string text = capture.next(name_of); !text.empty(); text = capture.next(name_of)) {
    stream.push(text);
    for (auto block = stream.next(); block && *block; block = stream.next()) {
      if ((*block)->type == pcapng::BlockType::kInterface) all.interfaces.push_back(pcapng::interface_name(**block));
      if ((*block)->type == pcapng::BlockType::kStatistics) all.lost = pcapng::lost_of(**block);
      if ((*block)->type != pcapng::BlockType::kPacket) continue;
      const auto packet = pcapng::packet_of(**block).value();
      all.packets.push_back({all.interfaces.at(packet.interface),
                             packet.direction,
                             packet.lost_before,
                             packet.original_length,
                             {packet.bytes.begin(), packet.bytes.end()}});
    }
  }
  return all;
}

TEST(Capture, KeepsWhatWasAskedFor) {
  const auto capture = make({.filter = "ether[12:2] = 0x88b5 and less 100", .of = {mac(1), mac(2)}, .snap = 64});
  capture->sees(kFirst, Direction::kIn, frame(9, 1, 80));
  capture->sees(kFirst, Direction::kOut, frame(9, 1));      // leaves
  capture->sees(kFirst, Direction::kIn, frame(9, 8));       // of others
  capture->sees(kFirst, Direction::kIn, frame(9, 1, 200));  // too long
  capture->sees(kSecond, Direction::kIn, frame(2, 9));
  const Read all = read(*capture);
  EXPECT_THAT(all.interfaces, ElementsAre("switch", "port-0", "port-1"));
  ASSERT_EQ(all.packets.size(), 2);
  EXPECT_EQ(all.packets[0].interface, "port-0");
  EXPECT_EQ(all.packets[0].direction, pcapng::Direction::kIn);
  EXPECT_EQ(all.packets[0].original_length, 80);
  EXPECT_EQ(all.packets[0].bytes, frame(9, 1, 64));
  EXPECT_EQ(all.packets[1].interface, "port-1");
  EXPECT_EQ(all.packets[1].bytes, frame(2, 9));
}

TEST(Capture, ANodesFramesAreThoseOfTheProgramsOnItsNic) {
  const auto capture = make({.of = {mac(1)}});
  const auto with_places = [](std::uint8_t to, std::uint8_t from) {
    auto bytes = frame(to, from);
    bytes[1] = 3;
    bytes[7] = 200;
    return bytes;
  };
  capture->sees(kFirst, Direction::kIn, with_places(9, 1));
  capture->sees(kFirst, Direction::kIn, with_places(1, 9));
  capture->sees(kFirst, Direction::kIn, with_places(8, 9));
  EXPECT_EQ(read(*capture).packets.size(), 2);
}

TEST(Capture, ANumberThatIsAnotherPortsIsAnotherInterface) {
  const auto capture = make({.in = false, .out = true});
  capture->sees(kFirst, Direction::kOut, frame(1, 2));
  capture->detached(kFirst);
  capture->sees(kFirst, Direction::kOut, frame(1, 3));
  const Read all = read(*capture);
  EXPECT_THAT(all.interfaces, ElementsAre("switch", "port-0", "port-0"));
  EXPECT_EQ(all.packets.size(), 2);
}

// A reader that does not come costs the switch nothing but what it counts; the next packet says how many those were.
TEST(Capture, WhatFindsNoRoomIsCounted) {
  const auto capture = make({});
  const std::size_t room = CaptureWish{}.buffer / 4'000;
  for (std::size_t i = 0; i < 2 * room; ++i) capture->sees(kFirst, Direction::kIn, frame(1, 2, 4'000));
  capture->detached(kFirst);
  Read all = read(*capture);
  const std::size_t kept = all.packets.size();
  EXPECT_GT(kept, room / 2);
  EXPECT_LT(kept, room);
  capture->sees(kFirst, Direction::kIn, frame(1, 2));
  capture->sees(kFirst, Direction::kIn, frame(1, 2));
  all = read(*capture, std::move(all));
  ASSERT_EQ(all.packets.size(), kept + 2);
  EXPECT_EQ(all.packets[kept].lost_before, 2 * room - kept);
  EXPECT_EQ(all.packets[kept + 1].lost_before, 0);
  EXPECT_EQ(all.interfaces.size(), 3);  // that the port had gone was kept
}

// Also when nothing comes any more that could say so.
TEST(Capture, WhatWasLostLastIsTold) {
  const auto capture = make({});
  for (std::size_t i = 0; i < 2 * CaptureWish{}.buffer / 4'000; ++i)
    capture->sees(kFirst, Direction::kIn, frame(1, 2, 4'000));
  const Read all = read(*capture);
  EXPECT_EQ(all.lost, 2 * CaptureWish{}.buffer / 4'000 - all.packets.size());
}

TEST(Capture, TheLongestFrameIsNoneTooLong) {
  const auto capture = make({});
  const std::size_t most = port::kMaxFrame;
  capture->sees(kFirst, Direction::kIn, frame(1, 2, most));
  capture->sees(kFirst, Direction::kIn, frame(1, 2, 60));
  const Read all = read(*capture);
  ASSERT_EQ(all.packets.size(), 2);
  EXPECT_EQ(all.packets[0].original_length, most);
  EXPECT_GT(all.packets[0].bytes.size(), most - 64);
  EXPECT_EQ(all.packets[1].bytes.size(), 60);
}

TEST(Capture, AFilterThatIsNoneIsRefused) {
  const auto capture = Capture::make({.filter = "udp prot 4791"});
  ASSERT_FALSE(capture);
  EXPECT_THAT(capture.error().message, HasSubstr("filter = \"udp prot 4791\": "));
  std::string ports = "udp port 1";
  while (ports.size() < Capture::kMostFilter) ports += " or udp port " + std::to_string(ports.size());
  EXPECT_THAT(Capture::make({.filter = ports}).error().message, HasSubstr("letters, and may have"));
  std::string hosts = "host 10.0.0.1";
  while (hosts.size() < Capture::kMostFilter - 40) hosts += " or host 10.0.0." + std::to_string(hosts.size() % 250);
  EXPECT_TRUE(Capture::make({.filter = hosts}));
  for (const char* const kernels : {"inbound", "outbound", "ifindex 3"})
    EXPECT_THAT(Capture::make({.filter = kernels}).error().message, HasSubstr("more than a frame's bytes")) << kernels;
}

TEST(Captures, GoOnUntilTheReaderLetsGo) {
  nic::PollLoop loop;
  switching::LearningSwitch machine({});
  struct Nowhere final : port::FrameSink {
    std::uint8_t* reserve(std::size_t) override { return nullptr; }
    void commit(std::size_t) override {}
  } nowhere;
  const auto port = machine.attach(loop.now(), nowhere);
  Captures captures(loop, machine);
  auto capture = make({});
  ASSERT_TRUE(captures.add(capture));
  auto bytes = frame(1, 2);
  std::array<port::Frame, 1> burst{{{bytes.data(), static_cast<std::uint32_t>(bytes.size())}}};
  machine.process(loop.now(), *port, burst);
  loop.turn();
  EXPECT_EQ(captures.open(), 1);
  EXPECT_EQ(read(*capture).packets.size(), 1);
  std::vector<std::shared_ptr<Capture>> more;
  for (std::size_t i = 1; i < Captures::kMost; ++i) ASSERT_TRUE(captures.add(more.emplace_back(make({}))));
  EXPECT_FALSE(captures.add(make({})));
  more.pop_back();
  EXPECT_TRUE(captures.add(make({})));  // in its place, though the loop has not turned
  more.clear();
  loop.turn();
  EXPECT_EQ(captures.open(), 1);
  capture.reset();
  loop.turn();
  EXPECT_EQ(captures.open(), 0);
  machine.process(loop.now(), *port, burst);
}

}  // namespace
}  // namespace sluice::rack
