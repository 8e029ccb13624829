// 1RMA at 100 Gb/s in virtual time: what the paper claims of congestion control and solicitation, on our models.
#include "sim/load/onerma_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

constexpr std::uint32_t kOne = onerma::CongestionWindow::kOne;
constexpr double kLine = 100e9 / 8;  // bytes a second
// Not as printed: with one target for all, who comes second may stay second where nothing happens by chance (docs/onerma.md).
const onerma::Algorithm1Parameters kAlgorithm{.spread = Duration::microseconds(2), .deepen = kOne * 8 / 10};

onerma::ExecutorParameters parameters(double first_remote) {
  onerma::ExecutorParameters p;
  p.base_rtt = Duration::nanoseconds(2500);
  p.remote_target = Duration::nanoseconds(3500);
  p.write_target = Duration::microseconds(16);
  p.local_target = Duration::microseconds(5);
  p.first_local = 64 * kOne;
  p.first_remote = static_cast<std::uint32_t>(first_remote * kOne);
  return p;
}

Time us(std::int64_t n) { return Time::at(Duration::microseconds(n)); }

double rate(const OnermaUser& user, Time from, Time to) {
  return static_cast<double>(user.bytes_between(from, to)) * 1e12 / static_cast<double>((to - from).picoseconds());
}

TEST(OnermaSim, OneReaderFillsTheLinkAndKeepsItsQueueShort) {
  OnermaLoad load(connectx5(), parameters(8), kAlgorithm, 1);
  load.add_machine();
  load.add_machine();
  const OnermaUser& user = load.add_user({.machine = 0, .targets = {1}});
  load.run_until(us(1000));
  EXPECT_GT(rate(user, us(200), us(1000)), 0.93 * kLine);
  EXPECT_LT(user.latency_ns().at_quantile(0.99), 9'000);
  EXPECT_EQ(load.rack().dropped(), 0u);
}

// What happens after a second reader of one target comes, in round trips of the first.
struct Arrival {
  double reaction = 0;  // until the first one's window is less than it ever was in the 100 round trips before
  double fairness = 0;  // until Jain's index is above 0.95 for good, over 20 round trips each: in steps of 5
  double sum = 0;
};

Arrival arrive(double first_window, Time arrival) {
  OnermaLoad load(connectx5(), parameters(first_window), kAlgorithm, 1);
  for (int i = 0; i < 3; ++i) load.add_machine();
  OnermaUser& incumbent = load.add_user({.machine = 0, .targets = {2}});
  load.run_until(arrival);
  const Duration rtt = incumbent.rtt();
  OnermaUser& competitor = load.add_user({.machine = 1, .targets = {2}, .start = arrival});
  const Time end = arrival + Duration::microseconds(1500);
  load.run_until(end);
  const auto round_trips = [&](Time when) {
    return static_cast<double>((when - arrival).picoseconds()) / static_cast<double>(rtt.picoseconds());
  };
  EXPECT_EQ(load.rack().dropped(), 0u);
  const Time half = arrival + Duration::microseconds(750);
  return {.reaction = round_trips(incumbent.first_below(arrival, incumbent.least_window(arrival - rtt * 100, arrival))),
          .fairness = round_trips(load.fair_from(arrival, end, rtt * 20, 0.95)),
          .sum = rate(incumbent, half, end) + rate(competitor, half, end)};
}

// It comes when the first has all, at a hundred moments of some 27 round trips, for windows rise and fall over that long, and begins with a window of
// 1, 8 (the default) or 32.
TEST(OnermaSim, AnIncumbentReactsWithinThreeRoundTripsAndSharesAreFairWithinAHundred) {
  for (const double first : {1.0, 8.0, 32.0}) {
    std::vector<double> reactions, fairness, sums;
    for (int moment = 0; moment < 100; ++moment) {
      const Arrival seen = arrive(first, us(1000) + Duration::nanoseconds(1137) * moment);
      reactions.push_back(seen.reaction);
      fairness.push_back(seen.fairness);
      sums.push_back(seen.sum);
    }
    for (std::vector<double>* seen : {&reactions, &fairness, &sums}) std::ranges::sort(*seen);
    const auto late = std::ranges::count_if(reactions, [](double reaction) { return reaction > 2; });
    std::printf(
        "first window %2.0f: reaction after %.1f (median), %.1f RTTs (slowest), after more than 2: %d of 100; fair "
        "after %.0f, %.0f, %.0f RTTs (soonest, median, slowest); sum at least %.1f Gb/s\n",
        first, reactions[50], reactions.back(), static_cast<int>(late), fairness.front(), fairness[50], fairness.back(),
        sums.front() * 8 / 1e9);
    EXPECT_LE(reactions.back(), 3);
    EXPECT_LE(late, first < 8 ? 50 : 0);
    EXPECT_LE(fairness.back(), 100);
    EXPECT_GT(sums.front(), 0.9 * kLine);
  }
}

// All at once, from all sides, to one machine: it asks for no more than it has room for, whoever it asks.
TEST(OnermaSim, IncastLosesNeitherPacketsNorGoodput) {
  for (const std::size_t others : {8u, 32u, 64u}) {
    for (const onerma::OpKind op : {onerma::OpKind::kRead, onerma::OpKind::kWrite}) {
      OnermaLoad load(connectx5(), parameters(8), kAlgorithm, 1);
      for (std::size_t i = 0; i <= others; ++i) load.add_machine();
      std::vector<OnermaUser*> users;
      if (op == onerma::OpKind::kRead) {
        OnermaUserConfig config{.machine = 0, .op = op, .depth = 16};
        for (std::size_t i = 1; i <= others; ++i) config.targets.push_back(i);
        users.push_back(&load.add_user(config));
      } else {
        for (std::size_t i = 1; i <= others; ++i)
          users.push_back(&load.add_user({.machine = i, .targets = {0}, .op = op, .depth = 16}));
      }
      load.run_until(us(2000));
      double goodput = 0;
      for (const OnermaUser* user : users) goodput += rate(*user, us(500), us(2000));
      std::printf("%2zu %s: %.1f Gb/s, window used %u of %u bytes\n", others,
                  op == onerma::OpKind::kRead ? "read from" : "write to", goodput * 8 / 1e9,
                  load.machine(0).node().window().most_used(), load.machine(0).node().window().limit());
      EXPECT_EQ(load.rack().dropped(), 0u);
      EXPECT_GT(goodput, 0.9 * kLine);
      // Reads are held back by nothing but the window.
      const std::uint32_t used = load.machine(0).node().window().most_used();
      EXPECT_GT(used, op == onerma::OpKind::kRead ? 15 * onerma::kMaxOp : 0);
    }
  }
}

// Two users of one machine: one with many operations of 64 bytes, one with operations of 4 KB.
TEST(OnermaSim, SmallAndLargeOperationsOfTwoUsersDoNotStarveEachOther) {
  const auto run = [&](bool small, bool large) {
    OnermaLoad load(connectx5(), parameters(8), kAlgorithm, 1);
    for (int i = 0; i < 3; ++i) load.add_machine();
    std::pair<double, double> rates{};
    OnermaUser* const a = small ? &load.add_user({.machine = 0, .targets = {1}, .bytes = 64, .depth = 256}) : nullptr;
    OnermaUser* const b = large ? &load.add_user({.machine = 0, .targets = {2}, .depth = 64}) : nullptr;
    load.run_until(us(2000));
    if (a != nullptr) rates.first = rate(*a, us(500), us(2000)) / 64;
    if (b != nullptr) rates.second = rate(*b, us(500), us(2000));
    if (a != nullptr && b != nullptr) {
      EXPECT_LT(a->latency_ns().at_quantile(0.5), 10'000);
      EXPECT_LT(b->latency_ns().at_quantile(0.99), 15'000);
    }
    return rates;
  };
  const double small_alone = run(true, false).first;
  const double large_alone = run(false, true).second;
  const auto [small, large] = run(true, true);
  std::printf("64 B: alone %.2f M/s, beside 4 KB %.2f M/s; 4 KB: alone %.1f Gb/s, beside 64 B %.1f Gb/s\n",
              small_alone / 1e6, small / 1e6, large_alone * 8 / 1e9, large * 8 / 1e9);
  // Windows are in operations: both have about as many under way, and the large ones are 64 times as long.
  EXPECT_GT(small, small_alone / 8);
  EXPECT_GT(large, 0.5 * large_alone);
}

TEST(OnermaSim, TheSameSeedIsTheSameTrace) {
  const auto run = [] {
    OnermaLoad load(connectx5(), parameters(8), kAlgorithm, 7);
    for (int i = 0; i < 4; ++i) load.add_machine();
    for (std::size_t i = 1; i < 4; ++i) load.add_user({.machine = i, .targets = {0}, .op = onerma::OpKind::kWrite});
    load.run_until(us(300));
    return load.rack().trace.hash();
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace sluice::sim
