#include <gtest/gtest.h>

#include "rc/fault_world.h"

namespace sluice::rc {
namespace {

class Faults : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Faults, EveryOperationTakesEffectOnceWhateverTheCableDoes) {
  std::uint64_t completed = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const FaultResult result = run_under_faults({.seed = seed,
                                                 .rate_per_million = GetParam(),
                                                 .operations = 400,
                                                 .mtu = 256u << (seed % 5),
                                                 .coalesce_acks = seed % 2 == 0,
                                                 .advertise_credits = seed % 3 == 0});
    ASSERT_EQ(result.failure, "") << "seed " << seed;
    EXPECT_EQ(result.completed + result.unknown, 400u);
    completed += result.completed;
  }
  EXPECT_GT(completed, GetParam() <= 10'000 ? 7'990u : 6'000u);
}

INSTANTIATE_TEST_SUITE_P(Rates, Faults, ::testing::Values(0, 10'000, 100'000),
                         [](const auto& rate) { return std::to_string(rate.param / 10'000) + "Percent"; });

TEST(FaultWorld, RunsTheSameFromTheSameSeed) {
  const FaultOptions options{.seed = 77, .rate_per_million = 50'000, .operations = 300};
  EXPECT_EQ(run_under_faults(options).trace_hash, run_under_faults(options).trace_hash);
}

}  // namespace
}  // namespace sluice::rc
