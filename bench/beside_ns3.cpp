// The simulator beside ns-3, in one run: machines around one switch that ask and answer in plain UDP. Packets that arrived at their end, a second
// of processor time; rounds in turn, medians.
//
// usage: beside_ns3 [ROUNDS [REQUESTS]]    REQUESTS of each client
//
// ns-3 (Debian: libns3-dev) runs it twice, with a router between point-to-point devices, and with a bridge between simple ones: the faster counts.
// Sluice's frames carry real headers and checksums, ns-3's are without checksums. Without ns-3: "skipped", and Sluice's speed alone.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "ns3_scenario.h"
#include "sim/load/udp_load.h"

namespace sluice::bench {
namespace {

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

StarOutcome run_in_sluice(const StarScenario& s) {
  sim::UdpWorkload workload;
  workload.clients = s.clients;
  workload.servers = s.servers;
  workload.in_flight = s.in_flight;
  workload.requests = s.requests;
  workload.request_bytes = workload.answer_bytes = s.bytes;
  workload.link = {.bits_per_second = s.bits_per_second, .delay = Duration::nanoseconds(s.link_delay_ns)};
  const sim::UdpResult result = sim::run_udp_load(workload);
  if (!result.problem.empty()) {
    fmt::print(stderr, "beside_ns3: {}\n", result.problem);
    std::exit(1);
  }
  return {.packets = result.packets,
          .events = result.events,
          .simulated_us = static_cast<double>(result.took.picoseconds()) / 1e6};
}

struct Contender {
  const char* name;
  StarOutcome (*run)(const StarScenario&);
  StarOutcome last{};
  std::vector<double> rates{};  // packets a second

  double median() const {
    std::vector<double> sorted = rates;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

void measure(Contender& contender, const StarScenario& scenario) {
  const double begun = processor_seconds();
  contender.last = contender.run(scenario);
  contender.rates.push_back(static_cast<double>(contender.last.packets) / (processor_seconds() - begun));
}

int run(int rounds, std::uint64_t requests) {
  const StarScenario scenario{.clients = 32,
                              .servers = 8,
                              .in_flight = 8,
                              .requests = requests,
                              .bytes = 64,
                              .bits_per_second = 100'000'000'000,
                              .link_delay_ns = 500};
  std::vector<Contender> contenders{{.name = "Sluice", .run = run_in_sluice}};
#ifdef SLUICE_HAS_NS3
  contenders.push_back(
      {.name = "ns-3, router", .run = [](const StarScenario& s) { return run_in_ns3(s, Middle::kRouter); }});
  contenders.push_back(
      {.name = "ns-3, bridge", .run = [](const StarScenario& s) { return run_in_ns3(s, Middle::kBridge); }});
#else
  fmt::print("skipped: built without ns-3 (Debian: libns3-dev), so there is nothing to compare with\n");
#endif
  for (int round = 0; round < rounds; ++round) {
    for (Contender& contender : contenders) measure(contender, scenario);
  }
  fmt::print("{} clients with {} requests of {} bytes in flight, {} servers, 100 Gb/s; {} rounds\n", scenario.clients,
             scenario.in_flight, scenario.bytes, scenario.servers, rounds);
  fmt::print("{:<14} {:>12} {:>14} {:>14} {:>14}\n", "", "packets", "events", "simulated, us", "packets/s");
  double ns3 = 0;
  for (const Contender& c : contenders) {
    fmt::print("{:<14} {:>12} {:>14} {:>14.1f} {:>14.0f}\n", c.name, c.last.packets, c.last.events, c.last.simulated_us,
               c.median());
    if (&c != &contenders.front()) ns3 = std::max(ns3, c.median());
  }
  for (const Contender& c : contenders) {
    if (c.last.packets == contenders.front().last.packets) continue;
    fmt::print(stderr, "beside_ns3: {} did something else\n", c.name);
    return 1;
  }
  if (ns3 > 0) fmt::print("Sluice's packets a second over ns-3's: {:.1f}x\n", contenders.front().median() / ns3);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const long long requests = argc > 2 ? std::atoll(argv[2]) : 5'000;
  if (argc > 3 || rounds < 1 || requests < 1) {
    fmt::print(stderr, "usage: beside_ns3 [ROUNDS [REQUESTS]]\n");
    return 2;
  }
  return sluice::bench::run(rounds, static_cast<std::uint64_t>(requests));
}
