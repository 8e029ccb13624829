// Clover on the simulated rack: small runs, of which something certain can be said.
#include "sim/load/clover_load.h"

#include <gtest/gtest.h>

#include <utility>

#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

CloverWorkload small(const char* system, std::uint64_t writes_percent) {
  CloverWorkload workload;
  workload.system = system;
  workload.threads = 24;
  workload.machines = 3;
  workload.writes_percent = writes_percent;
  workload.keys = 64;
  workload.node_memory = std::uint64_t{32} << 20;
  workload.operation_cost = workload.swap_cost = {};
  workload.step_cost = Duration::microseconds(1);
  workload.step_cost_all_cores = Duration::microseconds(1);
  workload.write_cost = Duration::microseconds(1);
  workload.write_cost_all_cores = Duration::microseconds(1);
  workload.warm_up = Duration::microseconds(500);
  workload.measure = Duration::milliseconds(1);
  return workload;
}

TEST(CloverLoad, ReadsWithOneTryWhereNobodyWrites) {
  const CloverResult result = run_clover_load(connectx5(), small("clover", 0), 1);
  EXPECT_EQ(result.problem, "");
  EXPECT_NEAR(metric(result, "success_percent"), 100, 1);
  EXPECT_NEAR(metric(result, "lookups_per_operation"), 0, 0.01);
  // Node and shortcut, each a request and an answer.
  EXPECT_NEAR(metric(result, "packets_per_operation"), 4, 0.1);
  EXPECT_NEAR(metric(result, "three_packets_percent"), 75, 2);
  // 24 threads, about 4 us each: two READs at once, for both together 1 us of the thread's own.
  EXPECT_NEAR(metric(result, "throughput"), 6, 0.7);
}

// A keeper that has slept for long WRITEs 64 words at once, and looks at what has come of them now and then.
TEST(CloverLoad, ALookFindsAsManyCompletionsAsTheHardwareSays) {
  const auto trace = [](std::uint64_t poll_batch) {
    Hardware hardware = connectx5();
    hardware.host.poll_batch = poll_batch;
    hardware.host.poll_cost = Duration::microseconds(20);
    CloverWorkload workload = small("steering", 100);
    workload.keys = 1024;
    workload.theta_thousandths = 0;
    workload.keeper_nap = Duration::milliseconds(1);
    workload.measure = Duration::milliseconds(3);
    const CloverResult result = run_clover_load(hardware, workload, 1);
    EXPECT_EQ(result.problem, "");
    return result.trace_hash;
  };
  EXPECT_NE(trace(16), trace(HostParameters::kMostPolled));
}

TEST(CloverLoad, NeedsManyTriesUnderContentionAndHardlyMoreThanOneWithTheBox) {
  const auto of = [](const char* system) {
    CloverWorkload workload = small(system, 50);
    workload.warm_up = Duration::milliseconds(2);  // until the box has met all keys
    return run_clover_load(connectx5(), workload, 1);
  };
  const CloverResult alone = of("clover");
  const CloverResult writes = of("write_steering");
  const CloverResult both = of("steering");
  for (const CloverResult* result : {&alone, &writes, &both}) EXPECT_EQ(result->problem, "");
  EXPECT_GT(metric(alone, "swaps_lost_per_operation"), 0.2);
  EXPECT_LT(metric(writes, "swaps_lost_per_operation"), 0.05);
  EXPECT_LT(metric(alone, "success_percent"), 50);
  EXPECT_GT(metric(both, "success_percent"), 90);
  EXPECT_GT(metric(both, "throughput"), 3 * metric(alone, "throughput"));
  EXPECT_LT(metric(both, "bytes_per_operation"), metric(alone, "bytes_per_operation") / 2);
}

// As published: whoever looks for a tail reads the key's shortcut with his first READ; our own clients have none.
TEST(CloverLoad, HasShortcutsInThePapersClientsAlone) {
  for (const auto& [client, shortcuts] : {std::pair("paper", 1.0), {"paper without shortcuts", 0.0}, {"sluice", 0.0}}) {
    CloverWorkload workload = small("clover", 0);
    workload.client = client;
    const CloverResult result = run_clover_load(connectx5(), workload, 1);
    EXPECT_EQ(result.problem, "") << client;
    EXPECT_NEAR(metric(result, "shortcuts_per_operation"), shortcuts, 0.01) << client;
    EXPECT_NEAR(metric(result, "reads_per_operation"), 1, 0.01) << client;
  }
}

// A walk that goes on at a shortcut is shorter than one along the whole chain. A machine that comes to a key seldom has a long way to go.
TEST(CloverLoad, TakesFewerStepsByShortcutsWhereChainsAreLong) {
  CloverWorkload workload = small("write_steering", 50);  // writes are fast, READs are not steered
  workload.keys = 512;
  workload.theta_thousandths = 0;
  const CloverResult with = run_clover_load(connectx5(), workload, 1);
  workload.client = "paper without shortcuts";
  const CloverResult without = run_clover_load(connectx5(), workload, 1);
  EXPECT_EQ(with.problem + without.problem, "");
  EXPECT_LT(metric(with, "walks_per_operation"), metric(without, "walks_per_operation"));
}

// One machine's shortcuts name nodes as old as its batches take: everybody's walks begin there.
TEST(CloverLoad, WalksFartherWhereAMachinesKeepersAreSlow) {
  CloverWorkload workload = small("clover", 50);
  workload.keys = 512;
  workload.theta_thousandths = 0;
  workload.warm_up = Duration::milliseconds(2);
  const CloverResult fast = run_clover_load(connectx5(), workload, 1);
  workload.slow_machines = 1;
  workload.slow_batch = Duration::milliseconds(1);
  const CloverResult slow = run_clover_load(connectx5(), workload, 1);
  EXPECT_EQ(fast.problem + slow.problem, "");
  EXPECT_GT(metric(slow, "walks_per_operation"), 1.2 * metric(fast, "walks_per_operation"));
  EXPECT_LT(metric(slow, "throughput"), metric(fast, "throughput"));
}

// What an operation costs is paid by all, what a CAS does by those who write.
TEST(CloverLoad, ChargesOperationsAndCases) {
  const auto us_of = [](std::uint64_t writes_percent, Duration operation, Duration swap) {
    CloverWorkload workload = small("steering", writes_percent);
    workload.operation_cost = operation;
    workload.swap_cost = swap;
    const CloverResult result = run_clover_load(connectx5(), workload, 1);
    EXPECT_EQ(result.problem, "");
    return static_cast<double>(workload.threads) / metric(result, "throughput");
  };
  const Duration us = Duration::microseconds(1);
  EXPECT_NEAR(us_of(0, us * 2, {}) - us_of(0, {}, {}), 2, 0.1);
  EXPECT_NEAR(us_of(0, {}, us * 2), us_of(0, {}, {}), 0.01);
  EXPECT_NEAR(us_of(100, {}, us * 2) - us_of(100, {}, {}), 2, 0.3);
}

TEST(CloverLoad, HoldsUpWhatIsBehindAContendedCasOnASharedQueuePair) {
  CloverWorkload workload = small("clover", 10);
  workload.threads = 90;
  workload.warm_up = Duration::milliseconds(5);
  workload.measure = Duration::milliseconds(10);
  workload.queue_pairs = 0;
  const CloverResult own = run_clover_load(connectx5(), workload, 1);
  workload.queue_pairs = 1;
  const CloverResult shared = run_clover_load(connectx5(), workload, 1);
  EXPECT_EQ(own.problem + shared.problem, "");
  EXPECT_LT(metric(shared, "throughput"), 0.95 * metric(own, "throughput"));
}

// 24 threads on three machines: each machine notes one latency at a time, and what that takes is in none of them.
TEST(CloverLoad, NotesLatenciesOneAfterAnotherAndOutsideOfThem) {
  CloverWorkload workload = small("clover", 0);
  const CloverResult unnoted = run_clover_load(connectx5(), workload, 1);
  workload.log_cost = Duration::microseconds(2);
  const CloverResult noted = run_clover_load(connectx5(), workload, 1);
  EXPECT_EQ(unnoted.problem + noted.problem, "");
  EXPECT_NEAR(metric(noted, "throughput"), 3 * 0.5, 0.02);
  EXPECT_GT(metric(unnoted, "throughput"), 3 * metric(noted, "throughput"));
  EXPECT_LE(metric(noted, "read_p99_us"), 1.05 * metric(unnoted, "read_p99_us"));
}

TEST(CloverLoad, SharesConnectionsAndReplacesCasesWhileItSteers) {
  CloverWorkload one = small("steering", 50);
  one.lock_threads = 24;
  const CloverResult by_nic = run_clover_load(connectx5(), one, 1);
  one.system = "steering+words";
  const CloverResult by_box = run_clover_load(connectx5(), one, 1);
  EXPECT_EQ(by_nic.problem, "");
  EXPECT_EQ(by_box.problem, "");
  // One address takes 341 ns a CAS.
  EXPECT_NEAR(metric(by_nic, "lock_throughput"), 2.9, 0.3);
  EXPECT_GT(metric(by_box, "lock_throughput"), 2 * metric(by_nic, "lock_throughput"));
  EXPECT_NEAR(metric(by_box, "throughput"), metric(by_nic, "throughput"), 0.2 * metric(by_nic, "throughput"));
}

CloverWorkload over_edm(const char* mix) {
  CloverWorkload workload = small("clover", 0);
  workload.mix = mix;
  workload.transport = "edm";
  return workload;
}

TEST(CloverLoad, IsLinearizableOverEdm) {
  for (const char* mix : {"A", "F"}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
      EXPECT_EQ(check_clover_load(with_edm(connectx5()), over_edm(mix), 3'000, seed).problem, "")
          << mix << ", seed " << seed;
  }
}

TEST(CloverLoad, IsFasterOverEdmTheMoreOfAnOperationIsTheNetwork) {
  for (const char* mix : {"A", "B", "F"}) {
    CloverWorkload workload = over_edm(mix);
    const CloverResult near = run_clover_load(with_edm(connectx5()), workload, 1);
    workload.edm.host = "bus";
    const CloverResult bus = run_clover_load(with_edm(connectx5()), workload, 1);
    workload.transport = "rc";
    const CloverResult rc = run_clover_load(with_edm(connectx5()), workload, 1);
    for (const CloverResult* result : {&near, &bus, &rc}) EXPECT_EQ(result->problem, "") << mix;
    EXPECT_GT(metric(near, "throughput"), metric(bus, "throughput")) << mix;
    EXPECT_LT(metric(near, "p50_us"), metric(rc, "p50_us")) << mix;
  }
}

TEST(CloverLoad, SaysWhyThereIsNoSuchRack) {
  EXPECT_NE(run_clover_load(connectx5(), over_edm("A"), 1).problem, "");
  CloverWorkload steered = over_edm("A");
  steered.system = "steering";
  EXPECT_NE(run_clover_load(with_edm(connectx5()), steered, 1).problem, "");
  CloverWorkload many = over_edm("A");
  many.threads = many.machines = 512;  // and the memory node
  EXPECT_EQ(run_clover_load(with_edm(connectx5()), many, 1).problem,
            "EDM's switch has 512 ports, and with the memory's there are 513 machines");
}

TEST(CloverLoad, DependsOnItsSeedAlone) {
  const CloverResult over = run_clover_load(with_edm(connectx5()), over_edm("A"), 3);
  EXPECT_EQ(over.trace_hash, run_clover_load(with_edm(connectx5()), over_edm("A"), 3).trace_hash);

  const CloverResult a = run_clover_load(connectx5(), small("steering", 50), 3);
  const CloverResult b = run_clover_load(connectx5(), small("steering", 50), 3);
  EXPECT_EQ(a.trace_hash, b.trace_hash);
  EXPECT_EQ(a.events, b.events);
  EXPECT_NE(a.trace_hash, run_clover_load(connectx5(), small("steering", 50), 4).trace_hash);
}

}  // namespace
}  // namespace sluice::sim
