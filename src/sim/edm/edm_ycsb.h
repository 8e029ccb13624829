// A key-value store on EDM's testbed under YCSB: requests a second (Figure 6) and latency by how many objects are local (Figure 7), with EDM, RoCEv2 and CXL.
//
// Metrics:  up_writes  Figure 6 as its authors count: writes, over the time that the compute node's link up is taken by all requests; M/s
//                      with count = "published" (and then nothing else) by the artifact's blocks for a request instead of those that there are
//           requests   all requests over the time that they take: with EDM block by block on the testbed, three reads and three writes under way (X); with
//                      RoCEv2 at most what the busier way of the link allows; M/s
//           mean_ns    of a request's latency, one at a time (Figure 7)
// Requests: a read of 1 KB, a write of 100 B (EDM §4.2.2). For Figure 7 lines of 64 B, as in Table 1: a remote read is the memory node's DRAM and the compute
//           node's, a remote write likewise; EDM reads the compute node's while /N/ and /G/ pass. A local one is DRAM once.
// Source:   EDM §4.2.2, Figures 6 and 7; the artifact for what is counted (wegul/EDM, hwsimu/src/utilization.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/edm/edm_testbed.h"

namespace sluice::sim {

struct EdmYcsbWorkload {
  std::string figure = "throughput";  // or latency
  std::string stack = "edm";          // edm, rocev2; cxl for latency alone
  std::string count = "measured";     // or published: of throughput
  std::uint64_t writes_per_mille = 500;
  std::uint64_t requests = 3'000;
  std::uint64_t objects = 1'000;
  std::uint64_t local_percent = 50;  // of the objects; which ones, chance says

  void read(Fields& fields);
};

std::vector<std::pair<std::string, double>> run_edm_ycsb(const EdmTestbedHardware& hardware,
                                                         const EdmYcsbWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
