#include "sim/tcp/cubic.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::sim {
namespace {

constexpr std::uint32_t kMss = 1000;
constexpr Duration kRoundTrip = Duration::milliseconds(100);

// One round trip after the other, in each of which a whole window is acknowledged, segment by segment.
class Path {
 public:
  explicit Path(std::uint64_t initial_segments) : cubic(kMss, initial_segments * kMss) {}
  void round_trip() {
    const std::uint64_t segments = cubic.window() / kMss;
    for (std::uint64_t i = 0; i < segments; ++i) cubic.on_ack(now, kMss, kRoundTrip);
    now = now + kRoundTrip;
  }
  double segments() const { return static_cast<double>(cubic.window()) / kMss; }

  Cubic cubic;
  Time now = Time::at(Duration::seconds(1));
};

TEST(Cubic, DoublesARoundTripInSlowStart) {
  Path path(10);
  for (int i = 0; i < 5; ++i) path.round_trip();
  EXPECT_EQ(path.cubic.window(), 320u * kMss);
  EXPECT_TRUE(path.cubic.in_slow_start());
}

TEST(Cubic, KeepsSevenTenthsAtALossAndComesBackToWhereItWas) {
  Path path(1000);
  path.cubic.on_loss();
  EXPECT_EQ(path.cubic.window(), 700u * kMss);
  EXPECT_FALSE(path.cubic.in_slow_start());
  // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s: there it is flat.
  const double plateau = std::cbrt(1000 * 0.3 / 0.4);
  while ((path.now - Time::at(Duration::seconds(1))).milliseconds() < std::llround(plateau * 1000)) path.round_trip();
  EXPECT_NEAR(path.segments(), 1000, 5);
  for (int i = 0; i < 20; ++i) path.round_trip();  // 2 s later: 0.4 * 2^3
  EXPECT_NEAR(path.segments(), 1000 + 0.4 * 8, 3);
}

// RFC 9438 §4.3: where W_cubic is below what Reno would have, 3 (1 - beta) / (1 + beta) segments a round trip.
TEST(Cubic, GrowsAsRenoDoesWhereThatIsFaster) {
  Path path(100);
  path.cubic.on_loss();
  const double before = path.segments();
  const Time began = path.now;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t segments = path.cubic.window() / kMss;
    for (std::uint64_t s = 0; s < segments; ++s) path.cubic.on_ack(path.now, kMss, Duration::milliseconds(1));
    path.now = path.now + Duration::milliseconds(1);
  }
  EXPECT_EQ((path.now - began).milliseconds(), 40);
  EXPECT_NEAR(path.segments() - before, 40 * 9.0 / 17, 1);
}

TEST(Cubic, LeavesRoomToOthersWhenItHasLessThanTheLastTime) {
  Path path(1000);
  path.cubic.on_loss();
  path.cubic.on_loss();  // with 700, fewer than 1,000: it aims at 0.85 of them, from 490
  EXPECT_NEAR(path.segments(), 490, 1);
  const double plateau = std::cbrt((595 - 490) / 0.4);
  while ((path.now - Time::at(Duration::seconds(1))).milliseconds() < std::llround(plateau * 1000)) path.round_trip();
  EXPECT_NEAR(path.segments(), 595, 3);
}

TEST(Cubic, CutsItsThresholdOnceForWhatIsLostAgainAndAgain) {
  Path path(100);
  path.cubic.on_timeout();
  path.cubic.on_timeout(true);
  EXPECT_EQ(path.cubic.window(), kMss);
  for (int i = 0; i < 6; ++i) path.round_trip();
  EXPECT_EQ(path.cubic.window(), 64u * kMss);
  EXPECT_TRUE(path.cubic.in_slow_start());
}

TEST(Cubic, BeginsAnewAfterATimeOut) {
  Path path(100);
  path.cubic.on_timeout();
  EXPECT_EQ(path.cubic.window(), kMss);
  EXPECT_TRUE(path.cubic.in_slow_start());
  for (int i = 0; i < 7; ++i) path.round_trip();
  EXPECT_FALSE(path.cubic.in_slow_start());
  EXPECT_NEAR(path.segments(), 70, 30);
}

TEST(Cubic, NeverHasLessThanTwoSegmentsAfterALoss) {
  Path path(2);
  for (int i = 0; i < 5; ++i) path.cubic.on_loss();
  EXPECT_EQ(path.cubic.window(), 2u * kMss);
}

}  // namespace
}  // namespace sluice::sim
