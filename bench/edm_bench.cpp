// The scheduler as software: nanoseconds a grant, for as many ports as the paper's cluster and its switch have.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/rng.h"
#include "edm/scheduler.h"

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

}  // namespace
