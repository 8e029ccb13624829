// The two simulations of EDM against each other: the same instant for every message where they must agree, a bound where they need not.
#include "sim/edm/edm_modes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/effort_test.h"
#include "base/rng.h"

namespace sluice::sim {
namespace {

EdmTestbedHardware hardware(const char* file) {
  return load_edm_testbed_hardware(fmt::format("{}/experiments/hardware/{}.toml", SLUICE_SOURCE_DIR, file)).value();
}

EdmModesWorkload drawn(Rng& rng) {
  EdmModesWorkload workload;
  workload.bed.hosts = 2 + static_cast<std::uint32_t>(rng.below(3));
  workload.bed.active_per_pair = 1 + static_cast<std::uint32_t>(rng.below(4));
  workload.bed.gap_blocks = static_cast<std::uint32_t>(rng.below(2));
  workload.bed.policy = rng.below(2) == 0 ? edm::Policy::kFirstCome : edm::Policy::kShortestRemaining;
  workload.bed.matching = rng.below(2) == 0 ? edm::Matching::kGreedy : edm::Matching::kPim;
  workload.bed.patience = Duration::nanoseconds(static_cast<std::int64_t>(rng.below(3) * 200));
  workload.messages = 200;
  workload.bits_per_second = (1 + rng.below(30)) * 1'000'000'000;
  workload.reads_per_mille = static_cast<std::uint32_t>(rng.below(1'001));
  workload.write_bytes = 1u << (3 + rng.below(9));
  workload.bed.mega_bytes = static_cast<std::uint32_t>(rng.below(2) * (64u << rng.below(8)));
  return workload;
}

TEST(EdmModes, OneMessageTakesAsLongInBothAndAsTable1Says) {
  EdmModesWorkload one;
  one.bed.hosts = 2;
  one.messages = 1;
  one.bits_per_second = 1'000'000'000;
  const EdmTestbedHardware bed = hardware("edm_testbed");
  const Duration longer = in_whole_blocks(bed).link() * 4 - bed.link() * 4;
  for (const std::uint32_t reads : {0u, 1'000u}) {
    one.reads_per_mille = reads;
    one.write_bytes = 1;
    const EdmModesOutcome outcome = run_both_modes(bed, one, 1);
    EXPECT_EQ(outcome.messages[0].on_testbed, outcome.messages[0].in_cluster);
    // A write of a byte: /MS/, address, the byte, /MT/. A line: /MS/, eight blocks, /MT/.
    const Duration table = reads == 0 ? Duration::picoseconds(296'960) : Duration::picoseconds(299'520);
    EXPECT_EQ(outcome.messages[0].on_testbed, table + longer + bed.block() * (reads == 0 ? 3 : 9));
  }
}

TEST(EdmModes, EveryMessageEndsAtTheSameInstantInBothUnderAnyLoad) {
  for (const char* file : {"edm_testbed", "edm_rack"}) {
    const EdmTestbedHardware bed = hardware(file);
    for (std::uint64_t seed = 0; seed < usual_effort(500); ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", file, seed));
      Rng rng(seed);
      EdmModesWorkload workload = drawn(rng);
      workload.pairs = EdmModesWorkload::Pairs::kApart;
      const EdmModesOutcome outcome = run_both_modes(bed, workload, seed);
      ASSERT_EQ(outcome.counts.held_requests, 0u);
      ASSERT_EQ(outcome.counts.met, 0u);
      for (const auto& message : outcome.messages) {
        ASSERT_EQ(message.on_testbed, message.in_cluster) << message.row.id << ": " << message.row.source << " to "
                                                          << message.row.destination << " at " << message.row.slot;
      }
    }
  }
}

// The testbed keeps a read's request behind data that its sender has written before; nothing else makes a difference.
TEST(EdmModes, TheyDifferOnlyWhereARequestWaitsForAWriteOfItsOwnSender) {
  const EdmTestbedHardware bed = hardware("edm_rack");
  double testbed = 0;
  double cluster = 0;
  std::uint64_t without = 0;
  for (std::uint64_t seed = 0; seed < usual_effort(300); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const EdmModesOutcome outcome = run_both_modes(bed, drawn(rng), seed);
    without += outcome.counts.held_requests == 0 ? 1 : 0;
    for (const auto& message : outcome.messages) {
      const bool may_differ = outcome.counts.held_requests != 0;
      ASSERT_TRUE(may_differ || message.on_testbed == message.in_cluster) << message.row.id;
      testbed += static_cast<double>(message.on_testbed.picoseconds());
      cluster += static_cast<double>(message.in_cluster.picoseconds());
    }
  }
  EXPECT_GT(without, usual_effort(20));
  EXPECT_NEAR(cluster / testbed, 1, 0.005);
}

}  // namespace
}  // namespace sluice::sim
