// The key-value store on EDM's testbed: Figure 6's accounting against blocks counted by hand, Figure 7 against its ends.
#include "sim/edm/edm_ycsb.h"

#include <gtest/gtest.h>

#include <map>

namespace sluice::sim {
namespace {

EdmTestbedHardware hardware() {
  auto loaded = load_edm_testbed_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_testbed.toml");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return *loaded;
}
std::map<std::string, double> measured(const EdmYcsbWorkload& workload) {
  const auto metrics = run_edm_ycsb(hardware(), workload, 1);
  return {metrics.begin(), metrics.end()};
}
EdmYcsbWorkload store(const char* stack, std::uint64_t writes_per_mille) {
  EdmYcsbWorkload workload;
  workload.stack = stack;
  workload.writes_per_mille = writes_per_mille;
  workload.requests = 2'000;
  return workload;
}

TEST(EdmYcsb, AWriteTakesSeventeenBlocksOfTheLinkUp) {
  // /N/; /MS/, the address, 13 of data, /MT/: 17 blocks of 2.56 ns.
  EXPECT_NEAR(measured(store("edm", 1'000))["up_writes"], 1e3 / (17 * 2.56), 1e-6);
  // RoCEv2: 98 bytes besides 100 of data.
  EXPECT_NEAR(measured(store("rocev2", 1'000))["up_writes"], 1e3 / (198.0 / 8 * 2.56), 1e-6);
}

TEST(EdmYcsb, OnSlowHardwareAReadIsAnswered) {
  EdmTestbedHardware slow = hardware();
  slow.cycle = slow.propagation = kLongestStage;
  const auto metrics = run_edm_ycsb(slow, store("edm", 500), 1);
  EXPECT_GT(metrics.front().second, 0);
}

TEST(EdmYcsb, ThePublishedCountHasTwoBlocksForAReadAndFifteenForAWrite) {
  const auto up_writes = [](const char* stack, std::uint64_t writes_per_mille) {
    EdmYcsbWorkload workload = store(stack, writes_per_mille);
    workload.count = "published";
    workload.requests = 100'000;
    return measured(workload)["up_writes"];
  };
  EXPECT_NEAR(up_writes("edm", 1'000), 1e3 / (15 * 2.56), 1e-6);
  EXPECT_NEAR(up_writes("rocev2", 1'000), 1e3 / (23.5 * 2.56), 1e-6);
  // YCSB's A: as many reads, of 2 and 9.5.
  EXPECT_NEAR(up_writes("edm", 500), 1e3 / (17 * 2.56), 0.1);
  EXPECT_NEAR(up_writes("rocev2", 500), 1e3 / (33 * 2.56), 0.1);
}

TEST(EdmYcsb, WhatIsReadFillsTheLinkDown) {
  // A kilobyte in four chunks, two blocks besides each: 136 blocks at best.
  const double most = 1e3 / (136 * 2.56);
  const double reads = measured(store("edm", 0))["requests"];
  EXPECT_LE(reads, most);
  EXPECT_GT(reads, 0.8 * most);
  EXPECT_NEAR(measured(store("rocev2", 0))["requests"], 1e3 / ((1'024 + 86.0) / 8 * 2.56), 1e-6);
}

TEST(EdmYcsb, LatencyIsDramsWhenAllIsLocalAndTableOnesWhenNothingIs) {
  EdmYcsbWorkload workload = store("edm", 0);
  workload.figure = "latency";
  workload.local_percent = 100;
  EXPECT_NEAR(measured(workload)["mean_ns"], 81.92, 1e-6);
  workload.local_percent = 0;
  EXPECT_NEAR(measured(workload)["mean_ns"], 299.52 + 2 * 81.92, 1e-6);
  workload.writes_per_mille = 1'000;
  EXPECT_NEAR(measured(workload)["mean_ns"], 296.96 + 81.92, 1e-6);
  workload.stack = "cxl";
  EXPECT_NEAR(measured(workload)["mean_ns"], 112.64 + 2 * 81.92, 1e-6);
}

}  // namespace
}  // namespace sluice::sim
