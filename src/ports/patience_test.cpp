#include "ports/patience.h"

#include <gtest/gtest.h>

namespace sluice::ports {
namespace {

Time at(std::int64_t ms) { return Time::at(Duration::milliseconds(ms)); }

TEST(Patience, EndsWhenWhatWaitedFirstHasNotLeftInTime) {
  Patience patience;
  EXPECT_FALSE(patience.ends(at(1000), 10, 4));
  EXPECT_FALSE(patience.ends(at(1049), 14, 8)) << "others came behind";
  EXPECT_TRUE(patience.ends(at(1050), 14, 5)) << "one of the four still waits";
}

TEST(Patience, BeginsAnewWithWhatIsHeldWhenThatHasLeft) {
  Patience patience;
  EXPECT_FALSE(patience.ends(at(1000), 10, 4));
  EXPECT_FALSE(patience.ends(at(1040), 20, 10));
  EXPECT_FALSE(patience.ends(at(1089), 30, 11));
  EXPECT_TRUE(patience.ends(at(1090), 30, 11)) << "a device that takes a little now and then keeps none for ever";
}

TEST(Patience, DoesNotRememberWhatHasBeenDropped) {
  Patience patience;
  EXPECT_FALSE(patience.ends(at(1000), 10, 10));
  EXPECT_TRUE(patience.ends(at(1100), 10, 10));
  EXPECT_FALSE(patience.ends(at(1200), 11, 1));
}

}  // namespace
}  // namespace sluice::ports
