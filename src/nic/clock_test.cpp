#include "nic/clock.h"

#include <gtest/gtest.h>

namespace sluice::nic {
namespace {

TEST(ClockDeathTest, EndsWithAWordBeforeDeadlinesPassTheEndOfTime) {
  const Clock old(Clock::kLongest - Duration::seconds(60));
  EXPECT_GT(old.now() + Duration::seconds(12 * 60 * 60), old.now());
  EXPECT_DEATH(static_cast<void>(Clock(Clock::kLongest).now()), "at most 106 days");
}

}  // namespace
}  // namespace sluice::nic
