// The scheduler as software: nanoseconds a grant, for as many ports as the paper's cluster and its switch have. And the simulated cluster around it: how its
// cost grows with messages, and with nodes that have as many messages each.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/rng.h"
#include "edm/scheduler.h"
#include "sim/edm/edm_cluster.h"

namespace {

using namespace sluice;

// All ports busy: every message that is done is followed by another one between two ports drawn by chance.
void saturated(benchmark::State& state, edm::Matching matching, std::uint32_t bytes) {
  const auto ports = static_cast<std::uint32_t>(state.range(0));
  edm::Scheduler scheduler({.ports = ports, .matching = matching});
  Rng rng(1);
  std::vector<edm::Demand> demands(1 << 16);
  for (edm::Demand& d : demands) {
    const auto source = static_cast<std::uint32_t>(rng.below(ports));
    const auto destination = (source + 1 + static_cast<std::uint32_t>(rng.below(ports - 1))) % ports;
    d = {.source = edm::PortId(static_cast<std::uint16_t>(source)),
         .destination = edm::PortId(static_cast<std::uint16_t>(destination)),
         .bytes = bytes};
  }
  std::size_t next = 0;
  Time now;
  const auto refill = [&] { scheduler.notify(now, demands[next++ % demands.size()]); };
  for (std::uint32_t i = 0; i < ports * 8; ++i) refill();
  std::uint64_t grants = 0;
  for (auto _ : state) {
    now = scheduler.next_deadline();
    scheduler.on_deadline(now);
    for (edm::Grant grant; scheduler.poll_grant(grant); ++grants) {
      if (grant.last) refill();
    }
  }
  state.counters["ns/grant"] =
      benchmark::Counter(static_cast<double>(grants), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["grants/s"] = benchmark::Counter(static_cast<double>(grants), benchmark::Counter::kIsRate);
  state.counters["waiting"] = static_cast<double>(scheduler.waiting_messages());
}

void greedy_64(benchmark::State& state) { saturated(state, edm::Matching::kGreedy, 64); }
void pim_64(benchmark::State& state) { saturated(state, edm::Matching::kPim, 64); }
void greedy_64k(benchmark::State& state) { saturated(state, edm::Matching::kGreedy, 65'536); }
void pim_64k(benchmark::State& state) { saturated(state, edm::Matching::kPim, 65'536); }
BENCHMARK(greedy_64)->Arg(144)->Arg(512);
BENCHMARK(pim_64)->Arg(144)->Arg(512);
BENCHMARK(greedy_64k)->Arg(144)->Arg(512);
BENCHMARK(pim_64k)->Arg(144)->Arg(512);

// Hadoop's messages at 40 Gb/s a node; PIM, a block's gap, ports held.
void cluster(benchmark::State& state, std::uint32_t nodes, std::uint64_t messages) {
  sim::EdmHardware hardware;
  hardware.bits_per_second = 100'000'000'000;
  hardware.propagation = Duration::nanoseconds(10);
  hardware.host_latency = hardware.switch_latency = Duration::picoseconds(640);
  hardware.iteration = Duration::nanoseconds(1);
  sim::ClusterSettings settings;
  settings.nodes = nodes;
  settings.gap_blocks = 1;
  settings.patience = Duration::picoseconds(1);
  sim::TraceSpec spec;
  spec.nodes = nodes;
  spec.messages = messages;
  spec.bits_per_second = 40'000'000'000;
  spec.reads_per_mille = 455;
  spec.sizes = {{{4, 0}, {4, 700}, {88, 800}, {167, 900}, {920, 1'000}}, 1460};
  const std::vector<sim::TraceRow> rows = sim::generate_trace(spec, 1);
  std::uint64_t chunks = 0;
  for (auto _ : state) chunks += run_cluster(hardware, settings, rows).chunks;
  state.counters["ns/chunk"] =
      benchmark::Counter(static_cast<double>(chunks), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetComplexityN(state.range(0));
}
void cluster_by_messages(benchmark::State& state) { cluster(state, 144, static_cast<std::uint64_t>(state.range(0))); }
void cluster_by_nodes(benchmark::State& state) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  cluster(state, nodes, std::uint64_t{nodes} * 28);
}
BENCHMARK(cluster_by_messages)->Unit(benchmark::kMillisecond)->RangeMultiplier(4)->Range(1'000, 64'000)->Complexity();
BENCHMARK(cluster_by_nodes)
    ->Unit(benchmark::kMillisecond)
    ->Arg(16)
    ->Arg(32)
    ->Arg(64)
    ->Arg(144)
    ->Arg(288)
    ->Arg(512)
    ->Complexity();

}  // namespace
