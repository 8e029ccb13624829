#include "verbs/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sluice::verbs {
namespace {

std::optional<Result<Settings>> read(const std::map<std::string, std::string>& variables) {
  return read_settings([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(VerbsSettings, ALoopbackNeedsNoAddressOfItsOwn) {
  const auto alone = read({{"SLUICE_PORT", "loopback"}});
  ASSERT_TRUE(alone && *alone);
  EXPECT_EQ((*alone)->port, "");
  EXPECT_EQ((*alone)->gids[1].v4().to_string(), "10.77.0.1");
  const auto named = read({{"SLUICE_PORT", "loopback"}, {"SLUICE_IP", "10.77.0.9"}});
  ASSERT_TRUE(named && *named);
  EXPECT_EQ((*named)->gids[1].v4().to_string(), "10.77.0.9");
}

TEST(VerbsSettings, AnyOtherPortDoes) {
  const auto nobody = read({{"SLUICE_PORT", "shm:/tmp/c"}});
  ASSERT_TRUE(nobody);
  ASSERT_FALSE(*nobody);
  EXPECT_THAT(nobody->error().message, testing::HasSubstr("SLUICE_IP is not set"));
  EXPECT_FALSE(read({}));
}

TEST(VerbsSettings, CongestionControlIsThereWhenAskedForAndHasALineRate) {
  const auto dcqcn = [](const std::map<std::string, std::string>& more) {
    std::map<std::string, std::string> all{{"SLUICE_PORT", "loopback"}};
    all.insert(more.begin(), more.end());
    return *read(all);
  };
  EXPECT_FALSE(dcqcn({})->dcqcn);
  EXPECT_FALSE(dcqcn({{"SLUICE_DCQCN", "0"}, {"SLUICE_LINE_RATE", "nonsense"}})->dcqcn);
  EXPECT_TRUE(dcqcn({{"SLUICE_DCQCN", "1"}})->dcqcn);
  EXPECT_EQ(dcqcn({{"SLUICE_DCQCN", "1"}})->line_rate, 40'000'000'000u);
  EXPECT_EQ(dcqcn({{"SLUICE_DCQCN", "1"}, {"SLUICE_LINE_RATE", "25000"}})->line_rate, 25'000'000'000u);
  for (const char* const wrong : {"0", "", "fast", "1000001", "10Gb"})
    EXPECT_FALSE(dcqcn({{"SLUICE_DCQCN", "1"}, {"SLUICE_LINE_RATE", wrong}})) << wrong;
  EXPECT_FALSE(dcqcn({{"SLUICE_DCQCN", "yes"}}));
}

}  // namespace
}  // namespace sluice::verbs
