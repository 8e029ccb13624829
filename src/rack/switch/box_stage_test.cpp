#include "rack/switch/box_stage.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "nic/poll_loop.h"
#include "rack/switch/sharded_box.h"
#include "switching/frame_buffer.h"
#include "switching/learning_switch.h"
#include "wire/frame.h"

namespace sluice::rack {
namespace {

using nlohmann::json;
using testing::HasSubstr;

BoxSettings settings_of(const std::string& box) {
  BoxSettings settings;
  settings.box = box;
  settings.words = 16;
  settings.connections = 16;
  settings.held_frames = 32;
  return settings;
}

// A WRITE of 8 bytes from 10.0.0.1 to 10.0.0.2, or what has its shape.
std::vector<std::uint8_t> write_frame(std::uint8_t opcode) {
  wire::AddressVector route;
  route.source = wire::Gid::from(wire::Ipv4Address{0x0A000001});
  route.destination = wire::Gid::from(wire::Ipv4Address{0x0A000002});
  const wire::HeaderTemplate headers(route);
  constexpr std::size_t kTransport = wire::Bth::kSize + wire::Reth::kSize + 8;
  std::vector<std::uint8_t> frame(headers.frame_size(kTransport));
  std::uint8_t* const at = frame.data() + headers.write(frame.data(), kTransport);
  wire::Bth{.opcode = static_cast<wire::Opcode>(opcode), .destination = wire::Qpn(9)}.write(at);
  wire::Reth{.virtual_address = 0x1000, .rkey = wire::RKey(7), .length = 8}.write(at + wire::Bth::kSize);
  headers.seal(frame.data(), frame.size() - wire::kIcrcSize);
  return frame;
}

TEST(BoxStage, WhatIsNestedIsRefusedWithoutRepeatingIt) {
  BoxStage stage(settings_of("clover"), Time());
  constexpr std::size_t kDepth = 500'000;
  const std::string nested = std::string(kDepth, '[') + std::string(kDepth, ']');
  const auto changed = stage.change(R"({"on": )" + nested + "}");
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().message, "on = […]: must be true or false");
  EXPECT_EQ(stage.change(R"({"rules": {"clover-reads": {"a": 1}}})").error().message,
            "clover-reads = {…}: must be true or false");
}

TEST(BoxStage, AskedWhetherItMayChangeItDoesNot) {
  BoxStage stage(settings_of("clover"), Time());
  ASSERT_TRUE(stage.may_change(R"({"on": false})"));
  EXPECT_TRUE(json::parse(stage.status_json(0))["on"]);
  stage.make_change(R"({"on": false})");
  EXPECT_FALSE(json::parse(stage.status_json(0))["on"]);
}

TEST(BoxStage, TakesAsFewHeldFramesAsASwitchCanBeStartedWithAndNoFewer) {
  BoxStage stage(settings_of("clover"), Time());
  for (const char* const few : {"0", "1", "15", "33"}) {
    const auto refused = stage.change(fmt::format(R"({{"held-frames": {}}})", few));
    ASSERT_FALSE(refused) << few;
    EXPECT_THAT(refused.error().message, HasSubstr("must be 16 to 32"));
  }
  EXPECT_TRUE(stage.change(R"({"held-frames": 16})"));
}

// However long a store's appends are given.
TEST(BoxStage, OperationsOnWordsAreSentAgainBeforeTheirConnectionIsGivenUp) {
  BoxSettings settings = settings_of("clover+words");
  settings.repair_after = Duration::seconds(1);
  settings.flight = Duration::milliseconds(100);
  const swordbox::MultiplexerConfig config = BoxStage::words_config(settings);
  EXPECT_LE(config.repair_after + config.repair_after, config.give_up_after);
  settings.repair_after = Duration::milliseconds(1);
  EXPECT_EQ(BoxStage::words_config(settings).repair_after, Duration::milliseconds(1));
}

// Also a packet that says of itself what no box understands.
TEST(ShardedBox, NothingThatMayChangeMemoryPassesItsBoxes) {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  nic::PollLoop loop;
  switching::LearningSwitch machine({});
  BoxSettings settings = settings_of("words");
  settings.servers = {"10.0.0.2"};
  settings.cores = 2;
  auto box = ShardedBox::start(folder, settings, Duration(), loop, machine);
  ASSERT_TRUE(box) << box.error().message;
  constexpr std::uint8_t kFlush = 0x1C;
  constexpr std::uint8_t kXrcWriteOnly = 0xAA;
  for (const std::uint8_t opcode : {static_cast<std::uint8_t>(wire::Opcode::kRcWriteOnly),
                                    static_cast<std::uint8_t>(wire::Opcode::kUcWriteOnly), kFlush, kXrcWriteOnly}) {
    std::vector<std::uint8_t> frame = write_frame(opcode);
    switching::Packet packet{.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())}};
    switching::FrameBuffer made;
    (*box)->process(Time(), std::span(&packet, 1), made);
    EXPECT_EQ(packet.action, switching::Packet::Action::kDrop) << int{opcode};
  }
  box->reset();
  std::filesystem::remove_all(folder);
}

TEST(ShardedBox, ChangesAllShardsOrNone) {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  nic::PollLoop loop;
  switching::LearningSwitch machine({});
  BoxSettings settings = settings_of("clover");
  settings.cores = 2;
  auto box = ShardedBox::start(folder, settings, Duration(), loop, machine);
  ASSERT_TRUE(box) << box.error().message;
  const auto refused = (*box)->change(R"({"held-frames": 16, "order": "strict", "rules": {"unheard-of": true}})");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("unheard-of"));
  EXPECT_EQ(json::parse((*box)->status_json(0))["order"], "pipelined");
  EXPECT_EQ(json::parse((*box)->status_json(0))["limits"]["held_frames"], 32);
  ASSERT_TRUE((*box)->change(R"({"held-frames": 16, "order": "strict"})"));
  EXPECT_EQ(json::parse((*box)->status_json(0))["order"], "strict");
  EXPECT_EQ(json::parse((*box)->status_json(0))["limits"]["held_frames"], 16);
  box->reset();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::rack
