// rc_soak: many seeds of random work over an impaired cable, each effect checked against a model (rc/fault_world.h).
//
// One line a rate: what completed, what a broken connection left unknown, how often it was connected anew. A failure names the seed;
// with --first SEED --seeds 1 and the same rate and operations it repeats exactly. Exits with 1 when any seed failed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <vector>

#include "rc/fault_world.h"

namespace {

using sluice::rc::FaultOptions;
using sluice::rc::FaultResult;

struct Soak {
  std::uint64_t first = 1;
  std::uint64_t seeds = 200;
  std::uint32_t operations = 5'000;
  std::vector<double> percents{1, 10};
};

// What a seed varies besides the work: the MTU, and how ACKs are given.
FaultOptions options_of(std::uint64_t seed, std::uint32_t rate, std::uint32_t operations) {
  return {.seed = seed,
          .rate_per_million = rate,
          .operations = operations,
          .mtu = 256u << seed % 5,
          .coalesce_acks = seed % 3 != 0,
          .advertise_credits = seed % 4 == 0};
}

std::uint64_t run_rate(const Soak& soak, double percent) {
  const auto began = std::chrono::steady_clock::now();
  FaultResult sum;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = soak.first; seed < soak.first + soak.seeds; ++seed) {
    const auto rate = static_cast<std::uint32_t>(percent * 10'000);
    const FaultResult result = sluice::rc::run_under_faults(options_of(seed, rate, soak.operations));
    sum.completed += result.completed;
    sum.unknown += result.unknown;
    sum.reconnects += result.reconnects;
    sum.retransmits += result.retransmits;
    if (result.failure.empty()) continue;
    ++failed;
    fmt::print("FAILED at {} %: {}\n  again: rc_soak --rate {} --first {} --seeds 1 --operations {}\n", percent,
               result.failure, percent, seed, soak.operations);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  fmt::print(
      "{:>5} %  {:>5} seeds  {:>9} completed  {:>7} unknown  {:>6} reconnects  {:>9} packets sent again  {} failed  "
      "{:.0f} s\n",
      percent, soak.seeds, sum.completed, sum.unknown, sum.reconnects, sum.retransmits, failed, took.count());
  std::fflush(stdout);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  Soak soak;
  CLI::App app{
      "Random work of all kinds over a cable that drops, duplicates, reorders and corrupts, checked against a model."};
  app.add_option("--seeds", soak.seeds, "how many")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--first", soak.first, "the first seed")->capture_default_str();
  app.add_option("--operations", soak.operations, "of each seed")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rate", soak.percents, "percent of frames, for each of the four faults, in both directions")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 50.0));
  CLI11_PARSE(app, argc, argv);
  std::uint64_t failed = 0;
  for (const double percent : soak.percents) failed += run_rate(soak, percent);
  return failed == 0 ? 0 : 1;
}
