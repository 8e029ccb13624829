// The model of the NIC alone against the paper's Figures 1 to 4; and that a run depends on its seed alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sim/experiment/experiment.h"
#include "sim/load/order_load.h"
#include "sim/load/verbs_load.h"

namespace sluice::sim {
namespace {

std::string file(const std::string& name) { return SLUICE_SOURCE_DIR "/experiments/" + name + ".toml"; }

class Calibration : public ::testing::TestWithParam<const char*> {};

TEST_P(Calibration, IsWithinTenPercentOfEveryPointOfThePaper) {
  const auto loaded = load_experiment(file(GetParam()));
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  int compared = 0;
  for (const Point& point : loaded->points) {
    const double paper = loaded->paper_at(point, loaded->y);
    if (std::isnan(paper)) continue;
    const PointResult result = run_point(*loaded, point);
    EXPECT_EQ(result.problem, "");
    EXPECT_NEAR(result.metric(loaded->y), paper, paper * 0.10)
        << loaded->series[point.series] << " " << loaded->x << " = " << loaded->xs[point.x];
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Figures, Calibration, ::testing::Values("fig01", "fig02", "fig03", "fig04"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(OrderLoad, ReordersAFewAndRarelyByMoreThanAHandful) {
  const auto hardware = load_hardware(file("hardware/connectx5"));
  ASSERT_TRUE(hardware.has_value());
  const OrderResult result = run_order_load(*hardware, {.requests = 200'000}, 1);
  // SwordBox §3.1: 97 % in order, most of the rest by one to five, some by up to 13 or 15.
  EXPECT_NEAR(100 * (1 - result.share_of(1)), 3, 0.5);
  std::int64_t most = 0;
  std::uint64_t few = 0;
  std::uint64_t out_of_order = 0;
  for (const auto& [gap, count] : result.gaps) {
    most = std::max(most, std::abs(gap));
    if (gap != 1) out_of_order += count;
    if (gap != 1 && std::abs(gap) <= 5) few += count;
  }
  EXPECT_GE(most, 11);
  EXPECT_LE(most, 24);
  EXPECT_GT(few, out_of_order * 8 / 10);
}

// A port with a queue of nothing drops all.
Hardware without_a_way() {
  Hardware hardware = load_hardware(file("hardware/connectx5")).value();
  hardware.net_switch.queue_bytes = 0;
  return hardware;
}

TEST(OrderLoad, SaysWhyThereIsNoOrder) {
  const auto hardware = load_hardware(file("hardware/connectx5"));
  EXPECT_EQ(run_order_load(hardware.value(), {.requests = 2}, 1).problem, "");
  EXPECT_EQ(run_order_load(hardware.value(), {.requests = 1}, 1).problem,
            "no two answers came, so there is no gap: make `requests` more, or `interval` longer");
  EXPECT_EQ(run_order_load(without_a_way(), {.interval = Duration::milliseconds(10), .requests = 200}, 1).problem,
            "an operation ended as transport retry counter exceeded");
  EXPECT_EQ(run_order_load(hardware.value(), {.queue_pairs = 1, .bytes = 4096, .interval = Duration::nanoseconds(1)}, 1)
                .problem,
            "requests come faster than they are answered, and a queue pair is full: interval is too short");
}

// Queue pairs that have given up would take requests, and fail them, until the end.
TEST(VerbsLoad, StopsWhereAnOperationFailsAndSaysWhatFailedFirst) {
  VerbsWorkload workload;
  workload.queue_pairs = 4;
  workload.in_flight = 16;
  workload.measure = Duration::seconds(5);
  const VerbsResult result = run_verbs_load(without_a_way(), workload, 1);
  EXPECT_EQ(result.problem, "an operation ended as transport retry counter exceeded");
  EXPECT_LT(result.events, 10'000u);
}

VerbsResult through_box(const char* box, Duration packet_cost) {
  const auto hardware = load_hardware(file("hardware/connectx5"));
  VerbsWorkload workload;
  workload.operation = "cas";
  workload.addresses = "same";
  workload.queue_pairs = 20;
  workload.box = box;
  workload.box_packet_cost = packet_cost;
  return run_verbs_load(hardware.value(), workload, 1);
}

TEST(VerbsLoad, IsAsFastAsTheBoxsCoreAllowsOrTheAtomicUnit) {
  constexpr Duration kSlow = Duration::nanoseconds(250);  // 2 M operations a second, of two packets each
  EXPECT_NEAR(through_box("watching", kSlow).per_second / 1e6, 2.0, 0.05);
  EXPECT_NEAR(through_box("words", kSlow).per_second / 1e6, 2.0, 0.05);
  EXPECT_NEAR(through_box("watching", {}).per_second / 1e6, 2.93, 0.1);
  EXPECT_GT(through_box("words", {}).per_second / 1e6, 2 * 2.93);
}

VerbsResult small_run(std::uint64_t seed) {
  const auto hardware = load_hardware(file("hardware/connectx5"));
  VerbsWorkload workload;
  workload.operation = "cas";
  workload.queue_pairs = 24;
  workload.in_flight = 4;
  workload.measure = Duration::microseconds(150);
  return run_verbs_load(hardware.value(), workload, seed);
}

TEST(Determinism, TheSameSeedGivesTheSameTrace) {
  const VerbsResult a = small_run(5);
  const VerbsResult b = small_run(5);
  EXPECT_EQ(a.trace_hash, b.trace_hash);
  EXPECT_EQ(a.events, b.events);
  EXPECT_NE(a.trace_hash, small_run(6).trace_hash);
}

// What CI builds (g++ and clang, with and without sanitizers) must agree on. The value itself changes when the protocol, the model or the
// hardware file does: then take the new one, which this test prints.
TEST(Determinism, GivesTheSameTraceWhateverTheCompiler) { EXPECT_EQ(small_run(5).trace_hash, 0x5158'ED52'82BE'804Bu); }

}  // namespace
}  // namespace sluice::sim
