// FUSEE and Sherman on the simulated rack: small runs, of which something certain can be said.
#include "sim/load/store_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/effort_test.h"
#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

StoreWorkload small(const char* store, std::uint64_t writes_percent) {
  StoreWorkload workload;
  workload.store = store;
  workload.threads = 24;
  workload.machines = 3;
  workload.memory_nodes = 2;
  workload.writes_percent = writes_percent;
  workload.keys = 64;
  workload.value_bytes = 32;
  workload.node_memory = std::uint64_t{64} << 20;
  workload.locks = 256;
  workload.step_cost = Duration::microseconds(1);
  workload.step_cost_all_cores = Duration::microseconds(1);
  workload.warm_up = Duration::microseconds(500);
  workload.measure = Duration::milliseconds(1);
  return workload;
}

TEST(StoreLoad, FuseeReadsInOneRoundTripWithItsCacheAndInTwoWithout) {
  StoreWorkload workload = small("fusee", 0);
  const StoreLoadResult words = run_store_load(connectx5(), workload, 1);
  workload.cache = "slots";
  const StoreLoadResult slots = run_store_load(connectx5(), workload, 1);
  workload.cache = "none";
  const StoreLoadResult none = run_store_load(connectx5(), workload, 1);
  for (const auto* result : {&words, &slots, &none}) EXPECT_EQ(result->problem, "");
  EXPECT_NEAR(metric(words, "round_trips_per_operation"), 1, 0.05);
  EXPECT_NEAR(metric(slots, "round_trips_per_operation"), 2, 0.01);
  EXPECT_NEAR(metric(none, "round_trips_per_operation"), 2, 0.15);
  // 24 threads, about 4 us a round trip.
  EXPECT_NEAR(metric(words, "throughput"), 6, 1);
  EXPECT_NEAR(metric(words, "throughput") / metric(slots, "throughput"), 2, 0.2);
}

TEST(StoreLoad, FuseeWritesFasterTheFewerReplicasItsIndexHas) {
  StoreWorkload workload = small("fusee", 100);
  workload.keys = 4096;
  workload.distribution = "uniform";
  workload.theta_thousandths = 0;
  workload.cache = "none";
  const StoreLoadResult twice = run_store_load(connectx5(), workload, 1);
  workload.index_replicas = 1;
  const StoreLoadResult once = run_store_load(connectx5(), workload, 1);
  EXPECT_EQ(twice.problem, "");
  EXPECT_EQ(once.problem, "");
  // The slot is found, then the object; the new one written; a CAS on the backup, one on the primary; beside the next operation, the mark.
  EXPECT_NEAR(metric(twice, "round_trips_per_operation"), 6, 0.3);
  EXPECT_NEAR(metric(twice, "round_trips_per_operation") - metric(once, "round_trips_per_operation"), 1, 0.3);
  EXPECT_GT(metric(once, "throughput"), 1.1 * metric(twice, "throughput"));
}

TEST(StoreLoad, ShermanReadsALeafAtOnceAndHandsLocksOver) {
  const StoreLoadResult reads = run_store_load(connectx5(), small("sherman", 0), 1);
  EXPECT_EQ(reads.problem, "");
  EXPECT_NEAR(metric(reads, "round_trips_per_operation"), 1, 0.02);
  EXPECT_NEAR(metric(reads, "throughput"), 6, 1);
  StoreWorkload workload = small("sherman", 100);
  workload.keys = 4;
  const StoreLoadResult shared = run_store_load(connectx5(), workload, 1);
  workload.local_locks = "thread";
  const StoreLoadResult alone = run_store_load(connectx5(), workload, 1);
  EXPECT_EQ(shared.problem, "");
  EXPECT_EQ(alone.problem, "");
  EXPECT_GT(metric(shared, "hand_overs_per_operation"), 0.3);
  EXPECT_EQ(metric(alone, "hand_overs_per_operation"), 0);
  EXPECT_LT(metric(shared, "swaps_lost_per_operation"), metric(alone, "swaps_lost_per_operation") / 2);
}

TEST(StoreLoad, TheBoxTakesCasesOnALockOffTheAtomicUnit) {
  StoreWorkload workload = small("sherman", 100);
  workload.keys = 1;
  workload.machines = 1;
  workload.memory_nodes = 1;
  workload.local_locks = "thread";
  workload.lock_memory = "host";
  workload.box = "watching";
  const StoreLoadResult by_nic = run_store_load(connectx5(), workload, 1);
  workload.box = "words";
  const StoreLoadResult by_box = run_store_load(connectx5(), workload, 1);
  EXPECT_EQ(by_nic.problem, "");
  EXPECT_EQ(by_box.problem, "");
  EXPECT_NEAR(metric(by_nic, "swap_throughput"), 2.9, 0.2);  // 341 ns an address
  EXPECT_GT(metric(by_box, "swap_throughput"), 1.3 * metric(by_nic, "swap_throughput"));
  EXPECT_GT(metric(by_box, "throughput"), metric(by_nic, "throughput"));
}

// More: SLUICE_SEEDS=200, from SLUICE_SEED on.
TEST(StoreLoad, IsLinearizableAlsoWherePacketsAreLostAndThroughTheBox) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(2); ++seed) {
    for (const char* const store : {"fusee", "sherman"}) {
      for (const bool faults : {false, true}) {
        StoreWorkload workload = small(store, 50);
        workload.threads = 3 + seed * 7 % 40;
        workload.keys = seed % 2 == 0 ? 200 : 16;
        workload.cache = seed % 3 == 0 ? "slots" : "words";
        workload.local_locks = seed % 3 == 0 ? "thread" : "machine";
        workload.client = seed % 4 == 0 ? "sluice" : "paper";
        workload.memory_nodes = 2 + seed % 2;
        workload.replicas = 1 + seed % 3 % workload.memory_nodes;
        if (faults) {
          workload.faults = "drop=0.5%,duplicate=0.5%,reorder=0.5%";
          workload.ack_timeout = 4;
        } else if (workload.store == "sherman") {
          workload.box = "words";
        }
        const StoreLoadResult result = check_store_load(connectx5(), workload, 3000, seed);
        ASSERT_EQ(result.problem, "") << store << (faults ? ", with faults" : "") << ", seed " << seed;
      }
    }
  }
}

StoreWorkload over_edm(const char* store, std::uint64_t writes_percent) {
  StoreWorkload workload = small(store, writes_percent);
  workload.transport = "edm";
  workload.lock_memory = "host";
  return workload;
}

TEST(StoreLoad, IsLinearizableOverEdm) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(2); ++seed) {
    for (const char* const store : {"fusee", "sherman"}) {
      StoreWorkload workload = over_edm(store, 50);
      workload.threads = 3 + seed * 7 % 40;
      workload.keys = seed % 2 == 0 ? 200 : 16;
      workload.edm.active = seed % 3 == 0 ? 16 : 3;
      const StoreLoadResult result = check_store_load(with_edm(connectx5()), workload, 3000, seed);
      ASSERT_EQ(result.problem, "") << store << ", seed " << seed;
    }
  }
}

TEST(StoreLoad, IsFasterOverEdmTheMoreOfAnOperationIsTheNetwork) {
  for (const char* const store : {"fusee", "sherman"}) {
    StoreWorkload workload = over_edm(store, 5);
    const StoreLoadResult near = run_store_load(with_edm(connectx5()), workload, 1);
    workload.edm.host = "bus";
    const StoreLoadResult bus = run_store_load(with_edm(connectx5()), workload, 1);
    workload.transport = "rc";
    const StoreLoadResult rc = run_store_load(connectx5(), workload, 1);
    for (const auto* result : {&near, &bus, &rc}) EXPECT_EQ(result->problem, "") << store;
    EXPECT_GT(metric(near, "throughput"), metric(bus, "throughput")) << store;
    EXPECT_LT(metric(near, "read_p50_us"), metric(rc, "read_p50_us")) << store;
  }
}

TEST(StoreLoad, DependsOnItsSeedAlone) {
  for (const char* const store : {"fusee", "sherman"}) {
    const StoreLoadResult a = run_store_load(connectx5(), small(store, 50), 3);
    const StoreLoadResult b = run_store_load(connectx5(), small(store, 50), 3);
    EXPECT_EQ(a.trace_hash, b.trace_hash);
    EXPECT_EQ(a.events, b.events);
    EXPECT_NE(a.trace_hash, run_store_load(connectx5(), small(store, 50), 4).trace_hash);
  }
}

TEST(StoreLoad, RefusesWhatNoStoreCanBe) {
  StoreWorkload workload = small("fusee", 50);
  workload.replicas = 3;
  EXPECT_EQ(run_store_load(connectx5(), workload, 1).problem, "there are more replicas than memory nodes");
  workload.replicas = 1;
  workload.index_replicas = 2;
  EXPECT_NE(run_store_load(connectx5(), workload, 1).problem, "");

  workload = over_edm("sherman", 50);
  EXPECT_NE(run_store_load(connectx5(), workload, 1).problem, "") << "hardware without EDM";
  workload.box = "words";
  EXPECT_NE(run_store_load(with_edm(connectx5()), workload, 1).problem, "");
  workload.box = "none";
  workload.threads = workload.machines = 600;
  EXPECT_THAT(run_store_load(with_edm(connectx5()), workload, 1).problem, ::testing::HasSubstr("has 512 ports"));
}

}  // namespace
}  // namespace sluice::sim
