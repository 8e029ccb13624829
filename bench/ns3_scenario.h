// The scenario of beside_ns3 as ns-3 runs it. Plain C++17, which is what ns-3's headers are.
#pragma once

#include <cstdint>

namespace sluice::bench {

// Machines around one switch: every client keeps `in_flight` UDP requests open at the servers, each in turn, until it has `requests` answers.
struct StarScenario {
  std::uint32_t clients = 0;
  std::uint32_t servers = 0;
  std::uint32_t in_flight = 0;
  std::uint64_t requests = 0;
  std::uint32_t bytes = 0;  // of UDP payload, either way
  std::uint64_t bits_per_second = 0;
  std::int64_t link_delay_ns = 0;
};

struct StarOutcome {
  std::uint64_t packets = 0;  // that arrived at their end
  std::uint64_t events = 0;
  double simulated_us = 0;  // when the last packet arrived
};

// In the middle a router with point-to-point devices, or a learning bridge with ns-3's simple devices (its CSMA ones are half duplex).
enum class Middle { kRouter, kBridge };

StarOutcome run_in_ns3(const StarScenario& scenario, Middle middle);

}  // namespace sluice::bench
