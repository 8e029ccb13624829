#include "rack/box_stage.h"

#include <gtest/gtest.h>


namespace sluice::rack {
namespace {

BoxSettings settings_of(const std::string& box) {
  BoxSettings settings;
  settings.box = box;
  settings.words = 16;
  settings.connections = 16;
  settings.held_frames = 16;
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

}  // namespace
}  // namespace sluice::rack
