#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "base/bytes.h"
#include "base/histogram.h"
#include "base/rng.h"
#include "base/time.h"

namespace sluice {
namespace {

TEST(Bytes, StoresBigEndianAndReadsItBack) {
  std::array<std::uint8_t, 8> b{};
  store_be<std::uint32_t>(b.data(), 0x01020304);
  EXPECT_EQ(b[0], 1);
  EXPECT_EQ(b[3], 4);
  EXPECT_EQ(load_be<std::uint32_t>(b.data()), 0x01020304u);
  store_be24(b.data(), 0xABCDEF);
  EXPECT_EQ(b[0], 0xAB);
  EXPECT_EQ(load_be24(b.data()), 0xABCDEFu);
}

TEST(Rng, DrawsTheSameSequenceFromTheSameSeed) {
  Rng a(42);
  Rng b(42);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
}

// xoshiro256** with the state that splitmix64 makes of the seed, by an implementation of its own from Blackman and Vigna's text.
TEST(Rng, DrawsWhatItsAuthorsSay) {
  Rng rng(42);
  for (const std::uint64_t expected : {0x15780B2E0C2EC716ull, 0x6104D9866D113A7Eull, 0xAE17533239E499A1ull})
    EXPECT_EQ(rng.next(), expected);
}

TEST(Rng, ForksByNameIndependentlyOfDrawsMade) {
  Rng a(42);
  const auto before = a.fork("link").next();
  a.next();
  EXPECT_EQ(a.fork("link").next(), before);
  EXPECT_NE(a.fork("other").next(), before);
}

TEST(Rng, StaysBelowItsBoundAndReachesEveryValue) {
  Rng rng(7);
  std::array<int, 10> seen{};
  for (int i = 0; i < 10'000; ++i) ++seen.at(rng.below(10));
  for (const int n : seen) EXPECT_GT(n, 800);
}

TEST(Histogram, ReportsQuantilesWithinOnePercent) {
  Histogram h;
  for (int i = 1; i <= 100'000; ++i) h.record(i);
  EXPECT_EQ(h.count(), 100'000u);
  EXPECT_NEAR(static_cast<double>(h.at_quantile(0.5)), 50'000, 500);
  EXPECT_NEAR(static_cast<double>(h.at_quantile(0.99)), 99'000, 990);
  EXPECT_EQ(h.at_quantile(1.0), 100'000);
}

TEST(Histogram, ItsQuantileIsTheLeastValueThatSoManyDoNotExceed) {
  Histogram h;
  for (std::int64_t n = 1; n <= 250; ++n) {
    h.record(n);
    for (const std::int64_t per_mille : {1, 10, 70, 500, 900, 990, 999, 1000}) {
      const std::int64_t least = (per_mille * n + 999) / 1000;
      EXPECT_EQ(h.at_quantile(static_cast<double>(per_mille) / 1000), least) << per_mille << " of " << n;
    }
  }
}

TEST(Histogram, HoldsTheWholeRange) {
  Histogram h;
  h.record(0);
  h.record(std::int64_t{1} << 61);
  EXPECT_EQ(h.at_quantile(0.0), 0);
  EXPECT_EQ(h.at_quantile(1.0), std::int64_t{1} << 61);
  h.record(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(h.at_quantile(1.0), std::numeric_limits<std::int64_t>::max());
}

TEST(Histogram, CanBeRebuiltFromItsBuckets) {
  Histogram h;
  for (std::int64_t v = 1; v < 1'000'000; v = v * 21 / 20 + 1) h.record(v, static_cast<std::uint64_t>(v % 7));
  Histogram again;
  std::int64_t last = -1;
  h.visit([&](std::int64_t edge, std::uint64_t count) {
    EXPECT_GT(edge, last);
    last = edge;
    again.record(edge, count);
  });
  EXPECT_EQ(again.count(), h.count());
  for (const double q : {0.01, 0.5, 0.99, 1.0}) EXPECT_EQ(again.at_quantile(q), h.at_quantile(q));
}

TEST(Histogram, OfNothingIsAllZero) {
  Histogram h;
  h.record(7, 0);
  EXPECT_EQ(h.count(), 0u);
  EXPECT_EQ(h.min(), 0);
  EXPECT_EQ(h.max(), 0);
  EXPECT_EQ(h.mean(), 0);
  EXPECT_EQ(h.at_quantile(0.5), 0);
  h.record(9);
  h.merge(Histogram());
  EXPECT_EQ(h.min(), 9);
  EXPECT_EQ(h.max(), 9);
}

TEST(Histogram, ItsMeanIsThatOfTheValuesThemselves) {
  Histogram h;
  h.record(1'000'001, 3);
  h.record(1);
  EXPECT_DOUBLE_EQ(h.mean(), 750'001);
  Histogram copy;
  copy.record(5);
  copy = h;
  EXPECT_DOUBLE_EQ(copy.mean(), 750'001);
  EXPECT_EQ(copy.count(), 4u);
  copy.merge(h);
  EXPECT_DOUBLE_EQ(copy.mean(), 750'001);
  EXPECT_EQ(h.count(), 4u) << "a copy is one";
}

TEST(Histogram, MergesAsIfRecordedTogether) {
  Histogram a;
  Histogram b;
  a.record(5);
  b.record(500);
  a.merge(b);
  EXPECT_EQ(a.count(), 2u);
  EXPECT_EQ(a.min(), 5);
  EXPECT_EQ(a.max(), 500);
  b.merge(a);
  EXPECT_EQ(b.count(), 3u);
  EXPECT_EQ(b.min(), 5);
  EXPECT_EQ(b.max(), 500);
}

}  // namespace
}  // namespace sluice
