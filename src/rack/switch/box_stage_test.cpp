#include "rack/switch/box_stage.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "nic/poll_loop.h"
#include "rack/switch/sharded_box.h"
#include "switching/learning_switch.h"

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
