#include "onerma/region_keys.h"

#include <gtest/gtest.h>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

Grant grant_of(std::uint32_t generation) {
  return {.region = RegionId(7), .generation = Generation(generation), .key = test_key(generation)};
}

std::uint32_t present(const RegionKeys& keys) { return keys.present().generation.value; }

TEST(RegionKeys, OneAloneIsKeptWhenItIsRefused) {
  RegionKeys keys(grant_of(1));
  EXPECT_FALSE(keys.refused());
  EXPECT_EQ(present(keys), 1u);
}

TEST(RegionKeys, AnAnnouncedOneIsTriedAndTheFirstAgainBeforeAllAreRefused) {
  RegionKeys keys(grant_of(1));
  keys.announce(grant_of(2));
  EXPECT_EQ(present(keys), 1u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 2u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 1u);
  EXPECT_FALSE(keys.refused());
  keys.try_anew();
  EXPECT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 2u);
}

TEST(RegionKeys, TheOneThatWorksEndsThoseBeforeItAndLeavesThoseAfter) {
  RegionKeys keys(grant_of(1));
  keys.announce(grant_of(2));
  keys.works();
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 2u) << "the announced one was forgotten because the first still worked";
  keys.announce(grant_of(3));
  keys.works();
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 3u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 2u);
  EXPECT_FALSE(keys.refused());
}

TEST(RegionKeys, WhoWasIdleForManyAnnouncementsTriesTheNewestAndKeepsTheFirst) {
  RegionKeys keys(grant_of(1));
  for (std::uint32_t generation = 2; generation < 100; ++generation) keys.announce(grant_of(generation));
  EXPECT_EQ(present(keys), 1u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 99u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 98u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 1u);
}

TEST(RegionKeys, AnAnnouncementBeyondTheLimitLeavesThePresentOne) {
  for (int refusals = 0; refusals < 3; ++refusals) {
    RegionKeys keys(grant_of(1));
    keys.announce(grant_of(2));
    keys.announce(grant_of(3));
    for (int i = 0; i < refusals; ++i) ASSERT_TRUE(keys.refused());
    const std::uint32_t before = present(keys);
    keys.announce(grant_of(4));
    EXPECT_EQ(present(keys), before);
    ASSERT_TRUE(keys.refused());
    EXPECT_NE(present(keys), before);
  }
}

TEST(RegionKeys, AReplacementIsTheOneAndOnlyWhatIsNewerIsLeft) {
  RegionKeys keys(grant_of(1));
  keys.announce(grant_of(2));
  keys.replace(grant_of(2));
  EXPECT_EQ(present(keys), 2u);
  EXPECT_FALSE(keys.refused());
  keys.announce(grant_of(4));
  keys.replace(grant_of(3));
  EXPECT_EQ(present(keys), 3u);
  ASSERT_TRUE(keys.refused());
  EXPECT_EQ(present(keys), 4u);
}

// A target that restarts begins anew with generations.
TEST(RegionKeys, AReplacementMayBeOfALowerGeneration) {
  RegionKeys keys(grant_of(9));
  keys.replace(grant_of(1));
  EXPECT_EQ(present(keys), 1u);
  EXPECT_FALSE(keys.refused());
}

}  // namespace
}  // namespace sluice::onerma
