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

}  // namespace
}  // namespace sluice::verbs
