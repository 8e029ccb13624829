// Which requests are a target's first, by number.
#include "onerma/seen_requests.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"

namespace sluice::onerma {
namespace {

constexpr RegionId kRegion{7};
constexpr InitiatorId kInitiator{9};
constexpr Boot kBoot{3};

struct Bench {
  bool take(std::uint64_t sequence, InitiatorId initiator = kInitiator, Boot boot = kBoot, RegionId region = kRegion) {
    return seen.take(region, initiator, boot, OpId(sequence << 16 | 5));
  }
  SeenRequests seen{4};
};

TEST(SeenRequests, EachIsTakenOnceHoweverOftenItComes) {
  Bench b;
  for (std::uint64_t sequence = 1; sequence < 5000; ++sequence) {
    EXPECT_TRUE(b.take(sequence));
    EXPECT_FALSE(b.take(sequence));
    EXPECT_FALSE(b.take(1 + sequence / 2));
  }
}

// Others have had those between.
TEST(SeenRequests, GapsOfAnyWidthAreNoObstacle) {
  Bench b;
  std::uint64_t sequence = 1;
  EXPECT_TRUE(b.take(sequence));
  for (std::uint64_t gap = 1; gap < std::uint64_t{1} << 46; gap = gap * 3 / 2 + 1) {
    sequence += gap;
    EXPECT_TRUE(b.take(sequence)) << gap;
    EXPECT_FALSE(b.take(sequence)) << gap;
    EXPECT_EQ(b.take(sequence - 1), gap > 1) << gap;
  }
}

TEST(SeenRequests, InAnyOrderWithinTheWindowAllAreTakenAndNoneTwice) {
  Bench b;
  Rng rng(1);
  std::set<std::uint64_t> taken;
  std::uint64_t newest = 10'000;
  for (int i = 0; i < 100'000; ++i) {
    newest += rng.below(40);
    const std::uint64_t behind = rng.below(SeenRequests::kWindow - 64);
    EXPECT_EQ(b.take(newest), taken.insert(newest).second);
    EXPECT_EQ(b.take(newest - behind), taken.insert(newest - behind).second);
  }
}

TEST(SeenRequests, WhatIsTooLateIsRefusedSinceNobodyKnowsWhetherItHasCome) {
  Bench b;
  EXPECT_TRUE(b.take(10'000));
  EXPECT_TRUE(b.take(10'000 - SeenRequests::kWindow + 64));
  EXPECT_FALSE(b.take(10'000 - SeenRequests::kWindow - 64));
  EXPECT_FALSE(b.take(1));
  EXPECT_TRUE(b.take(10'001));
}

TEST(SeenRequests, AnotherLifeInitiatorOrRegionBeginsAnew) {
  Bench b;
  EXPECT_TRUE(b.take(10'000));
  EXPECT_TRUE(b.take(1, kInitiator, Boot(4)));
  EXPECT_TRUE(b.take(1, InitiatorId(10)));
  EXPECT_TRUE(b.take(1, kInitiator, kBoot, RegionId(8)));
  EXPECT_FALSE(b.take(10'000));
}

TEST(SeenRequests, WhoHasBeenIdleForLongestIsForgottenForWhoIsNew) {
  Bench b;
  for (std::uint64_t one = 1; one <= 4; ++one) EXPECT_TRUE(b.take(100, InitiatorId(one)));
  EXPECT_FALSE(b.take(100, InitiatorId(1)));  // a replay is a sign of life, too
  EXPECT_TRUE(b.take(100, InitiatorId(5)));   // in place of the second
  for (const std::uint64_t one : {1u, 3u, 4u, 5u}) EXPECT_FALSE(b.take(100, InitiatorId(one))) << one;
  EXPECT_TRUE(b.take(50, InitiatorId(2)));  // nothing is known of it
  for (std::uint64_t one = 10; one < 1000; ++one) EXPECT_TRUE(b.take(1, InitiatorId(one)));
  for (std::uint64_t one = 996; one < 1000; ++one) EXPECT_FALSE(b.take(1, InitiatorId(one)));
}

}  // namespace
}  // namespace sluice::onerma
