// The simulator: events a second of the bare loop, of a rack under verbs, and of a rack of Clover with SwordBox in its switch.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "base/rng.h"
#include "sim/load/clover_load.h"
#include "sim/load/verbs_load.h"
#include "sim/world/event_loop.h"

namespace sluice::sim {
namespace {

// A 100 Gb/s rack; round numbers, since only speed is asked for here.
Hardware rack() {
  Hardware hardware;
  const auto ns = [](std::int64_t n) { return Duration::nanoseconds(n); };
  hardware.nic = {.packet_interval = ns(5),
                  .requester_qp_interval = ns(40),
                  .responder_qp_interval = ns(53),
                  .responder_qp_interval_device = ns(45),
                  .transmit_latency = ns(130),
                  .receive_latency = ns(90),
                  .completion_latency = ns(400),
                  .doorbell_latency = ns(170),
                  .fetch_latency = ns(620),
                  .work_requests_kept = 104,
                  .work_requests_lost = 136,
                  .inline_bytes = 220,
                  .read_latency = ns(500),
                  .read_interval = ns(6),
                  .atomic_latency = ns(400),
                  .atomic_address_interval = ns(341),
                  .atomic_qp_interval = ns(341),
                  .atomic_interval = ns(19)};
  hardware.link = {.bits_per_second = 100'000'000'000, .delay = ns(15)};
  hardware.net_switch = {.pipeline_latency = ns(350), .queue_bytes = 4 << 20};
  hardware.host = {.cores = 16,
                   .threads_per_core = 2,
                   .time_slice = Duration::milliseconds(3),
                   .poll_batch = 4,
                   .poll_cost = ns(70),
                   .completion_cost = ns(90),
                   .post_cost = ns(32),
                   .doorbell_cost = ns(100)};
  return hardware;
}

// Fires again after a time of its own, like a pipe that never runs dry.
class Ticker final : public Event {
 public:
  Ticker(EventLoop& loop, Duration step) : loop_(loop), step_(step) { loop.schedule(*this, Time::at(step)); }
  void fire(Time now) override { loop_.schedule(*this, now + step_); }

 private:
  EventLoop& loop_;
  Duration step_;
};

void BareLoop(benchmark::State& state) {
  EventLoop loop;
  Rng rng(1);
  std::vector<std::unique_ptr<Ticker>> tickers;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    tickers.push_back(
        std::make_unique<Ticker>(loop, Duration::picoseconds(static_cast<std::int64_t>(10'000 + rng.below(100'000)))));
  }
  for (auto _ : state) loop.run_until(loop.now() + Duration::microseconds(10));
  state.counters["events"] = benchmark::Counter(static_cast<double>(loop.fired()), benchmark::Counter::kIsRate);
}
BENCHMARK(BareLoop)->Arg(16)->Arg(256)->Arg(4096);

void VerbsRack(benchmark::State& state) {
  const Hardware hardware = rack();
  VerbsWorkload workload;
  workload.queue_pairs = 24;
  workload.in_flight = 8;
  std::uint64_t events = 0;
  std::uint64_t packets = 0;
  for (auto _ : state) {
    const VerbsResult result = run_verbs_load(hardware, workload, 1);
    events += result.events;
    packets += result.packets;
  }
  state.counters["events"] = benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
  state.counters["packets"] = benchmark::Counter(static_cast<double>(packets), benchmark::Counter::kIsRate);
}
BENCHMARK(VerbsRack)->Unit(benchmark::kMillisecond);

void CloverRack(benchmark::State& state) {
  const Hardware hardware = rack();
  CloverWorkload workload;
  workload.system = state.range(0) == 0 ? "clover" : "steering";
  workload.threads = 224;
  workload.step_cost = Duration::microseconds(1);
  workload.step_cost_all_cores = Duration::nanoseconds(1500);
  workload.write_cost = Duration::microseconds(1);
  std::uint64_t events = 0;
  for (auto _ : state) events += run_clover_load(hardware, workload, 1).events;
  state.counters["events"] = benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
}
BENCHMARK(CloverRack)->ArgName("box")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::sim
