// UDP load: machines around one switch that ask one another in plain UDP and answer; no NIC model, no host cost: links and switch alone.
//
// Life:       run_udp_load(workload): every client keeps `in_flight` requests open at the servers, each in turn, until it has `requests`
//             answers.
// Real:       Ethernet, IPv4 and UDP headers, made and checked at both ends; the switch finds its way by MAC address.
// Metrics:    packets that arrived at their end, and the virtual time at which the last one did.
// Source:     the scenario that bench/beside_ns3.cpp gives ns-3 as well.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

struct UdpWorkload {
  std::uint32_t clients = 32;
  std::uint32_t servers = 8;
  std::uint32_t in_flight = 8;       // of each client
  std::uint64_t requests = 1'000;    // of each client
  std::uint32_t request_bytes = 64;  // of UDP payload, at least 8
  std::uint32_t answer_bytes = 64;   // … at least 8
  LinkParameters link{};             // of every machine
  Duration switch_latency{};
};

struct UdpResult {
  std::uint64_t packets = 0;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  Duration took{};
  std::string problem;  // not empty: not every request was answered rightly
};

UdpResult run_udp_load(const UdpWorkload& workload);

}  // namespace sluice::sim
