#include "workload/ycsb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "workload/value.h"

namespace sluice::workload {
namespace {

double zeta(std::uint64_t n, double theta) {
  double sum = 0;
  for (std::uint64_t i = n; i > 0; --i) sum += std::pow(static_cast<double>(i), -theta);
  return sum;
}

// Pearson's statistic of drawn ranks against the exact distribution, ranks that are expected under 20 times taken together.
double chi_square_per_class(const Zipf& zipf, double theta, int draws) {
  Rng rng(1);
  std::vector<double> seen(zipf.items());
  for (int i = 0; i < draws; ++i) seen.at(zipf.draw(rng)) += 1;
  const double z = zeta(zipf.items(), theta);
  double chi = 0;
  double classes = 0;
  double expected = 0;
  double got = 0;
  for (std::uint64_t i = 0; i < zipf.items(); ++i) {
    expected += draws * std::pow(static_cast<double>(i + 1), -theta) / z;
    got += seen[i];
    if (expected < 20 && i + 1 != zipf.items()) continue;
    chi += (got - expected) * (got - expected) / expected;
    classes += 1;
    expected = got = 0;
  }
  return chi / classes;
}

TEST(Zipf, DrawsTheDistributionOfGrayEtAlAtEveryTheta) {
  for (const std::uint32_t theta : {0u, 500u, 990u, 1000u, 1500u}) {
    for (const std::uint64_t items : {1u, 10u, 1024u, 100'000u}) {
      const Zipf zipf(items, theta);
      EXPECT_LT(chi_square_per_class(zipf, theta / 1000.0, 400'000), 1.35) << theta << " " << items;
    }
  }
}

TEST(Zipf, GivesTheHottestOfAThousandKeysItsShareAsYcsbDoes) {
  const Zipf zipf(1024, Zipf::kYcsbTheta);
  Rng rng(2);
  int hottest = 0;
  for (int i = 0; i < 1'000'000; ++i) hottest += zipf.draw(rng) == 0;
  EXPECT_NEAR(hottest, 1e6 / zeta(1024, 0.99), 1500);
}

TEST(Zipf, DrawsAsManyOfEitherHalfWhereAllWeighAlike) {
  for (const std::uint64_t items : {std::uint64_t{10'000'000'000}, std::uint64_t{1} << 40}) {
    const Zipf zipf(items, 0);
    Rng rng(3);
    int lower = 0;
    for (int i = 0; i < 100'000; ++i) lower += zipf.draw(rng) < items / 2 ? 1 : 0;
    EXPECT_NEAR(lower, 50'000, 800) << items;
  }
}

TEST(Zipf, ApproximatesRanksBeyondTheExactOnes) {
  // With theta 1, as many draws fall between 10^5 and 10^6 as between 10^6 and 10^7.
  const Zipf zipf(10'000'000, 1000);
  Rng rng(3);
  std::map<int, int> decades;
  for (int i = 0; i < 400'000; ++i) ++decades[static_cast<int>(std::log10(static_cast<double>(zipf.draw(rng) + 1)))];
  const double z = zeta(10'000'000, 1);
  for (const int decade : {4, 5, 6}) EXPECT_NEAR(decades[decade], 400'000 * std::log(10) / z, 1000) << decade;
}

// Golden: draws must never change with machine or compiler.
TEST(Zipf, DrawsTheSameOnEveryMachineAndCompiler) {
  Rng rng(4);
  const Zipf zipf(1'000'000, 990);
  std::uint64_t hash = 0;
  for (int i = 0; i < 100'000; ++i) hash = hash * 0x100000001B3u + zipf.draw(rng);
  EXPECT_EQ(hash, 9920599841245872329u);
}

TEST(KeyChooser, ScattersHotKeysWhenScrambled) {
  const KeySpace keys(1000);
  const KeyChooser chooser(KeyDistribution::kScrambledZipfian, 1000);
  Rng rng(5);
  std::vector<int> seen(1000);
  for (int i = 0; i < 200'000; ++i) ++seen.at(chooser.choose(keys, rng));
  // YCSB's zeta for 10^10 items at .99 is 26.469: the hottest key has 1/26.5 of the draws, wherever the hash puts it.
  EXPECT_NEAR(*std::max_element(seen.begin(), seen.end()), 200'000 / 26.469, 700);
  EXPECT_LT(seen[0], 2000);
}

TEST(KeyChooser, PrefersTheLatestAndFollowsInsertions) {
  KeySpace keys(100);
  const KeyChooser chooser(KeyDistribution::kLatest, 100);
  Rng rng(6);
  for (int i = 0; i < 10; ++i) keys.acknowledge(keys.reserve());
  std::vector<int> seen(110);
  for (int i = 0; i < 100'000; ++i) ++seen.at(chooser.choose(keys, rng));
  EXPECT_EQ(std::max_element(seen.begin(), seen.end()) - seen.begin(), 109);
  EXPECT_NEAR(seen[109], 100'000 / zeta(110, 0.99), 1000);
}

TEST(KeyChooser, PrefersTheLatestHoweverManyAreInserted) {
  KeySpace keys(10);
  const KeyChooser chooser(KeyDistribution::kLatest, 10);
  Rng rng(6);
  for (int i = 0; i < 990; ++i) keys.acknowledge(keys.reserve());
  std::vector<int> seen(1000);
  for (int i = 0; i < 200'000; ++i) ++seen.at(chooser.choose(keys, rng));
  EXPECT_NEAR(seen[999], 200'000 / zeta(1000, 0.99), 1000);
  EXPECT_GT(std::accumulate(seen.begin(), seen.begin() + 500, 0), 200'000 / 20);  // the older half: 9 %
}

TEST(KeyChooser, DrawsWhatIsInsertedFromEveryDistributionOfKeysAndLeavesTheHotOnesHot) {
  using enum KeyDistribution;
  for (const KeyDistribution distribution : {kUniform, kZipfian, kScrambledZipfian}) {
    KeySpace keys(1000);
    const KeyChooser chooser(distribution, 1000);
    Rng rng(7);
    const auto hottest_and_new = [&] {
      std::vector<int> seen(keys.count());
      for (int i = 0; i < 100'000; ++i) ++seen.at(chooser.choose(keys, rng));
      return std::pair{std::max_element(seen.begin(), seen.end()) - seen.begin(),
                       std::accumulate(seen.begin() + 1000, seen.end(), 0)};
    };
    for (int i = 0; i < 1000; ++i) keys.acknowledge(keys.reserve());
    const auto before = hottest_and_new();
    // Uniformly the newer half gets a half; the ranks of Zipf's say what it gets, and scrambled it is the hash of the hot ones that does.
    EXPECT_GT(before.second, distribution == kZipfian ? 6'000 : 30'000) << to_string(distribution);
    keys.acknowledge(keys.reserve());
    if (distribution == kUniform) continue;
    EXPECT_EQ(hottest_and_new().first, before.first) << to_string(distribution);
  }
}

TEST(KeyChooser, ScrambledHotKeysStayAsHotAsTheyWereWhileOthersAreInserted) {
  KeySpace keys(1000);
  const KeyChooser chooser(KeyDistribution::kScrambledZipfian, 1000);
  const auto drawn = [&] {
    Rng rng(8);
    std::vector<int> seen(keys.count());
    for (int i = 0; i < 200'000; ++i) ++seen.at(chooser.choose(keys, rng));
    return seen;
  };
  const auto hottest_of = [](const std::vector<int>& seen) {
    return std::max_element(seen.begin(), seen.end()) - seen.begin();
  };
  const auto hottest = hottest_of(drawn());
  for (const std::uint64_t count : {1001u, 1500u, 2000u, 2001u, 3000u}) {
    while (keys.count() < count) keys.acknowledge(keys.reserve());
    const auto seen = drawn();
    const auto now = hottest_of(seen);
    // Only when a key is inserted may it take over from the one that had its hash until then.
    EXPECT_EQ(now % 1000, hottest) << count;
    EXPECT_NEAR(seen[static_cast<std::size_t>(now)], 200'000 / 26.469, 700) << count;
  }
}

TEST(KeySpace, HasEachKeyOnceInTurn) {
  std::vector<int> seen(100);
  for (std::uint32_t thread = 0; thread < 4; ++thread) {
    KeySpace keys(100, {.thread = thread, .threads = 4});
    for (int i = 0; i < 25; ++i) ++seen.at(keys.in_turn());
    EXPECT_EQ(keys.in_turn(), thread);
  }
  EXPECT_EQ(seen, std::vector<int>(100, 1));
}

TEST(KeySpace, OffersAnInsertedKeyOnlyWhenAllBeforeItHaveEnded) {
  KeySpace keys(10, {.thread = 1, .threads = 4});
  const Key a = keys.reserve();
  const Key b = keys.reserve();
  EXPECT_EQ(a, 11u);
  EXPECT_EQ(b, 15u);
  keys.acknowledge(b);
  EXPECT_EQ(keys.count(), 10u);
  keys.acknowledge(a);
  EXPECT_EQ(keys.count(), 12u);
  EXPECT_EQ(keys.at(9), 9u);
  EXPECT_EQ(keys.at(10), a);
  EXPECT_EQ(keys.at(11), b);
}

TEST(KeyDistribution, IsReadByTheNameThatItIsPrintedWith) {
  using enum KeyDistribution;
  for (const KeyDistribution distribution : {kUniform, kZipfian, kScrambledZipfian, kLatest, kSequential})
    EXPECT_EQ(parse_distribution(to_string(distribution)), distribution);
  EXPECT_EQ(parse_distribution("scrambled"), kScrambledZipfian);
  const auto unknown = parse_distribution("zipf");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("uniform, zipfian, scrambled, latest, sequential"), std::string::npos);
}

TEST(Mix, HasTheSharesThatYcsbDefines) {
  Rng rng(7);
  const auto shares = [&rng](std::string_view name) {
    std::vector<int> seen(kActions);
    const auto mix = Mix::parse(name);
    EXPECT_TRUE(mix.has_value());
    for (int i = 0; i < 10'000; ++i) ++seen.at(static_cast<std::size_t>(mix->draw(rng)));
    return seen;
  };
  EXPECT_NEAR(shares("A")[1], 5000, 250);
  EXPECT_NEAR(shares("B")[1], 500, 100);
  EXPECT_EQ(shares("C")[0], 10'000);
  EXPECT_NEAR(shares("D")[2], 500, 100);
  EXPECT_NEAR(shares("E")[3], 9500, 100);
  EXPECT_NEAR(shares("F")[4], 5000, 250);
  EXPECT_NEAR(shares("w20")[1], 2000, 200);
  EXPECT_NEAR(shares("w5")[1], 500, 100);
  EXPECT_EQ(shares("w100")[1], 10'000);
  EXPECT_EQ(shares("w0")[0], 10'000);
  for (const auto* bad : {"G", "", "w", "w101", "wx", "AB"}) EXPECT_FALSE(Mix::parse(bad).has_value()) << bad;
  EXPECT_FALSE(Mix::parse("E")->impossible_for({.scan = false}).empty());
  EXPECT_TRUE(Mix::parse("E")->impossible_for({.scan = true}).empty());
}

TEST(Value, TellsItsWriterAndEveryDamagedByte) {
  for (const std::size_t size : {8u, 12u, 16u, 24u, 29u, 128u, 1000u}) {
    std::vector<std::uint8_t> value(size);
    const auto id = value_id(7, 123456789);
    fill_value(42, id, value);
    EXPECT_EQ(verify_value(42, value), id);
    EXPECT_EQ(writer_of(id), 7u);
    EXPECT_EQ(sequence_of(id), 123456789u);
    if (size < 24) continue;
    EXPECT_FALSE(verify_value(43, value).has_value());
    for (auto& byte : value) {
      byte ^= 0x10;
      EXPECT_FALSE(verify_value(42, value).has_value());
      byte ^= 0x10;
    }
  }
  EXPECT_FALSE(verify_value(0, std::vector<std::uint8_t>(64)).has_value());
}

}  // namespace
}  // namespace sluice::workload
