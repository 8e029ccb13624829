#include "sim/load/udp_load.h"

#include <gtest/gtest.h>

namespace sluice::sim {
namespace {

UdpWorkload small() {
  UdpWorkload workload;
  workload.clients = 4;
  workload.servers = 2;
  workload.in_flight = 3;
  workload.requests = 50;
  workload.link = {.bits_per_second = 100'000'000'000, .delay = Duration::nanoseconds(100)};
  workload.switch_latency = Duration::nanoseconds(350);
  return workload;
}

TEST(UdpLoad, AnswersEveryRequestOnce) {
  const UdpResult result = run_udp_load(small());
  EXPECT_EQ(result.problem, "");
  EXPECT_EQ(result.packets, 2u * 4 * 50);
}

TEST(UdpLoad, TakesTheTimeOfFourLinksAndTwoSwitchesWhenAlone) {
  UdpWorkload alone = small();
  alone.clients = 1;
  alone.in_flight = 1;
  alone.requests = 10;
  const UdpResult result = run_udp_load(alone);
  EXPECT_EQ(result.problem, "");
  // 106 bytes and FCS, preamble, gap: 130 bytes at 100 Gb/s are 10.4 ns, on each of four links.
  const Duration link = Duration::nanoseconds(100) + Duration::picoseconds(10'400);
  EXPECT_EQ(result.took, (link * 4 + Duration::nanoseconds(350) * 2) * 10);
}

TEST(UdpLoad, IsTheSameEachTimeAndAnotherWithAnotherRate) {
  EXPECT_EQ(run_udp_load(small()).trace_hash, run_udp_load(small()).trace_hash);
  UdpWorkload slower = small();
  slower.link.bits_per_second = 10'000'000'000;
  EXPECT_NE(run_udp_load(small()).trace_hash, run_udp_load(slower).trace_hash);
}

}  // namespace
}  // namespace sluice::sim
