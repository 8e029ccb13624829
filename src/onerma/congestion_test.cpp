#include "onerma/congestion.h"

#include <gtest/gtest.h>

namespace sluice::onerma {
namespace {

constexpr std::uint32_t kOne = CongestionWindow::kOne;
constexpr Duration kRtt = Duration::microseconds(5);
constexpr Duration kTarget = Duration::microseconds(2);
const Time kStart = Time::at(Duration::milliseconds(1));

CongestionWindow of(double operations) { return {.size = static_cast<std::uint32_t>(operations * kOne)}; }
double size_of(const CongestionWindow& w) { return static_cast<double>(w.size) / kOne; }

TEST(Algorithm1, AWindowOfOneOrMoreGrowsByAQuarterARoundTrip) {
  const Algorithm1 policy;
  auto w = of(8);
  for (int i = 0; i < 8; ++i) policy.on_success(kStart, w, Duration::microseconds(1), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 8.25, 0.01);
}

TEST(Algorithm1, AWindowBelowOneGrowsByAQuarterAnOperation) {
  const Algorithm1 policy;
  auto w = of(0.25);
  policy.on_success(kStart, w, Duration{}, kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 0.5, 0.001);
}

TEST(Algorithm1, GrowthEndsAtTheLargestWindow) {
  const Algorithm1 policy({.largest = 4 * kOne});
  auto w = of(3.99);
  for (int i = 0; i < 100; ++i) policy.on_success(kStart, w, Duration{}, kTarget, kRtt);
  EXPECT_EQ(w.size, 4 * kOne);
}

TEST(Algorithm1, ALateOperationCutsInProportionToItsLateness) {
  const Algorithm1 policy;
  auto w = of(10);
  // 1 - 0.8 * (2.5 - 2) / 2.5 = 0.84
  policy.on_success(kStart, w, Duration::nanoseconds(2500), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 8.4, 0.01);
}

TEST(Algorithm1, ACutIsAtMostByHalf) {
  const Algorithm1 policy;
  auto w = of(10);
  policy.on_success(kStart, w, Duration::milliseconds(1), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 5, 0.001);
}

TEST(Algorithm1, ThereIsOneCutARoundTrip) {
  const Algorithm1 policy;
  auto w = of(16);
  policy.on_success(kStart, w, Duration::milliseconds(1), kTarget, kRtt);
  policy.on_success(kStart + kRtt - Duration::picoseconds(1), w, Duration::milliseconds(1), kTarget, kRtt);
  policy.on_failure(kStart + kRtt - Duration::picoseconds(1), w, kRtt);
  EXPECT_NEAR(size_of(w), 8, 0.001);
  policy.on_success(kStart + kRtt, w, Duration::milliseconds(1), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 4, 0.001);
}

TEST(Algorithm1, WhatComesWithinARoundTripMayDeepenTheCutButNotRepeatIt) {
  const Algorithm1 policy({.deepen = kOne * 8 / 10});
  auto w = of(10);
  policy.on_success(kStart, w, Duration::nanoseconds(2500), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 8.4, 0.01);
  policy.on_success(kStart + kRtt / 4, w, Duration::nanoseconds(2600), kTarget, kRtt);  // asks for 0.815
  EXPECT_NEAR(size_of(w), 8.4, 0.01);
  policy.on_success(kStart + kRtt / 2, w, Duration::nanoseconds(3200), kTarget,
                    kRtt);  // asks for 0.7, of what it was before the first
  EXPECT_NEAR(size_of(w), 7, 0.001);
  policy.on_success(kStart + kRtt - Duration::picoseconds(1), w, Duration::milliseconds(1), kTarget, kRtt);
  policy.on_success(kStart + kRtt - Duration::picoseconds(1), w, Duration::milliseconds(1), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 5, 0.001);
  policy.on_success(kStart + kRtt, w, Duration::milliseconds(1), kTarget, kRtt);
  EXPECT_NEAR(size_of(w), 2.5, 0.001);
}

TEST(Algorithm1, AFailureCutsToATenthButNotBelowTheSmallest) {
  const Algorithm1 policy;
  auto w = of(16);
  policy.on_failure(kStart, w, kRtt);
  EXPECT_NEAR(size_of(w), 1.6, 0.01);
  for (int i = 1; i < 10; ++i) policy.on_failure(kStart + kRtt * i, w, kRtt);
  EXPECT_NEAR(size_of(w), 0.01, 0.0001);
}

TEST(Algorithm1, ASpreadTargetIsLongerForASmallerWindow) {
  const Algorithm1 policy({.spread = Duration::microseconds(2)});
  const auto grows = [&](double window, double delay_us) {
    auto w = of(window);
    policy.on_success(kStart, w, Duration::nanoseconds(static_cast<std::int64_t>(delay_us * 1000)), kTarget, kRtt);
    return size_of(w) > window;
  };
  EXPECT_TRUE(grows(1, 3.99));  // 2 + 2 / 1
  EXPECT_FALSE(grows(1, 4.01));
  EXPECT_TRUE(grows(16, 2.49));  // 2 + 2 / 4
  EXPECT_FALSE(grows(16, 2.51));
  EXPECT_TRUE(grows(0.02, 9.9));  // at most four times
  EXPECT_FALSE(grows(0.02, 10.1));
}

TEST(CongestionWindow, PacesAtAWindowARoundTrip) {
  EXPECT_EQ(of(5).interval(kRtt), Duration::microseconds(1));
  EXPECT_EQ(of(0.5).interval(kRtt), Duration::microseconds(10));
  EXPECT_EQ(of(0.5).operations(), 1u);
  EXPECT_EQ(of(2.9).operations(), 2u);
}

}  // namespace
}  // namespace sluice::onerma
