// What Clover's own algorithm costs a core, remote memory being as near as a function call; and what judging a history costs.
//
// Put beside the cost of packets (rc_bench, port_bench), these say what share of a rack's time is the data structure's.
#include <benchmark/benchmark.h>

#include <vector>

#include "clover/client.h"
#include "clover/metadata.h"
#include "rack/clients/clover_store.h"
#include "remote/local.h"
#include "workload/linearizability.h"
#include "workload/runner.h"

namespace sluice {
namespace {

constexpr std::uint64_t kRecords = 100'000;

// A store with so much memory and so many loaded keys; time moves on as operations do, so that garbage is collected.
class LocalStore {
 public:
  LocalStore(std::uint32_t value_bytes, std::uint32_t replication, std::size_t clients) : fabric_({}) {
    std::vector<clover::Region> regions;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::uint64_t length = std::uint64_t{1} << 31;
      regions.push_back({fabric_.add_region(fabric_.add_node(), 0x10000, length), length});
    }
    server_ = std::make_unique<clover::MetadataServer>(clover::ServerConfig{
        .volumes = *clover::spread(regions, replication),
        .value_bytes = value_bytes,
        .cursor_lifetime = Duration::milliseconds(20),
        .max_flight = Duration::milliseconds(20),
    });
    for (std::size_t i = 0; i < clients; ++i) {
      auto& member = members_.emplace_back();
      member.memory = std::make_unique<remote::LocalMemory>(scheduler, fabric_);
      member.channel = std::make_unique<remote::LocalChannel>(scheduler, fabric_, *server_);
      member.client = std::make_unique<clover::Client>(*member.memory, *member.channel, clover::ClientConfig{}, Rng(i));
      member.store = std::make_unique<rack::CloverStore>(*member.client);
      stores.push_back(member.store.get());
      scheduler.spawn(live(*member.client));
    }
    run_some();
  }

  // Runs what is ready, up to so many resumptions, and lets a little time pass.
  void run_some() {
    const auto resumed = scheduler.run(now_, 1000);
    now_ = now_ + Duration::nanoseconds(static_cast<std::int64_t>(resumed) * 100 + 100);
  }

  remote::Scheduler scheduler;
  std::vector<workload::Store*> stores;

 private:
  static remote::Task<void> live(clover::Client& client) {
    co_await client.join();
    co_await client.maintain();
  }
  struct Member {
    std::unique_ptr<remote::LocalMemory> memory;
    std::unique_ptr<remote::LocalChannel> channel;
    std::unique_ptr<clover::Client> client;
    std::unique_ptr<rack::CloverStore> store;
  };
  remote::LocalFabric fabric_;
  std::unique_ptr<clover::MetadataServer> server_;
  std::vector<Member> members_;
  Time now_;
};

void run_mix(benchmark::State& state, const char* mix, std::uint32_t replication) {
  const auto value_bytes = static_cast<std::uint32_t>(state.range(0));
  LocalStore store(value_bytes, replication, 4);
  workload::Runner runner(store.scheduler, store.stores,
                          {.mix = *workload::Mix::parse(mix),
                           .records = kRecords,
                           .operations = 1'000,
                           .clients = 16,
                           .value_bytes = value_bytes});
  runner.start_load();
  while (!runner.done()) store.run_some();
  std::uint64_t operations = 0;
  std::uint64_t failed = 0;
  workload::StoreCost cost;
  for (auto _ : state) {
    runner.start_run();
    while (!runner.done()) store.run_some();
    const auto& result = runner.result();
    operations += result.operations();
    failed += result.operations() - result.with_outcome(workload::Outcome::kOk) + result.values_wrong;
    cost += result.cost;
  }
  if (failed != 0) state.SkipWithError("operations failed or read wrong values");
  state.SetItemsProcessed(static_cast<std::int64_t>(operations));
  const auto per_operation = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(operations); };
  state.counters["round_trips"] = per_operation(cost.round_trips);
  state.counters["bytes"] = per_operation(cost.remote_bytes);
}

BENCHMARK_CAPTURE(run_mix, reads, "C", 1)->Arg(128)->Arg(1000);
BENCHMARK_CAPTURE(run_mix, half_writes, "A", 1)->Arg(128)->Arg(1000);
BENCHMARK_CAPTURE(run_mix, writes, "w100", 1)->Arg(128)->Arg(1000);
BENCHMARK_CAPTURE(run_mix, half_writes_three_replicas, "A", 3)->Arg(128);

void judge_history(benchmark::State& state) {
  // A register under 64 clients: instants of effect ten apart, intervals around them.
  const auto operations = static_cast<std::uint64_t>(state.range(0));
  const auto keys = static_cast<std::uint64_t>(state.range(1));
  Rng rng(1);
  std::vector<workload::Event> events;
  std::vector<workload::ValueId> value(keys);
  for (std::uint64_t i = 0; i < operations; ++i) {
    const std::uint64_t key = rng.below(keys);
    const auto at = static_cast<std::int64_t>(i) * 10'000 + 1'000'000;
    workload::Event e{.key = key, .value = 0, .begin = 0, .end = 0, .client = static_cast<std::uint32_t>(i % 64)};
    e.begin = at - static_cast<std::int64_t>(rng.below(640'000));
    e.end = at + static_cast<std::int64_t>(rng.below(640'000)) + 1;
    e.outcome = workload::Outcome::kOk;
    switch (rng.below(10)) {
      case 0:
        e.kind = workload::EventKind::kErase;
        if (value[key] == 0) e.outcome = workload::Outcome::kNotFound;
        value[key] = 0;
        break;
      case 1:
      case 2:
      case 3:
      case 4:
        e.kind = workload::EventKind::kPut;
        e.value = value[key] = workload::value_id(1, i + 1);
        break;
      default:
        e.kind = workload::EventKind::kGet;
        e.value = value[key];
        if (e.value == 0) e.outcome = workload::Outcome::kNotFound;
    }
    events.push_back(e);
  }
  for (auto _ : state) {
    const auto verdict = workload::check_linearizable(events, {.conditions = keys > 1});
    if (!verdict.linearizable() || verdict.undecided != 0) state.SkipWithError("a right history was not judged right");
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(operations) * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(judge_history)
    ->Args({1'000'000, 1})
    ->Args({1'000'000, 1'000})
    ->Args({1'000'000, 100'000})
    ->Unit(benchmark::kMillisecond);

void draw_keys(benchmark::State& state) {
  const workload::KeySpace keys(kRecords);
  const workload::KeyChooser chooser(static_cast<workload::KeyDistribution>(state.range(0)), kRecords);
  Rng rng(1);
  for (auto _ : state) benchmark::DoNotOptimize(chooser.choose(keys, rng));
}
BENCHMARK(draw_keys)->DenseRange(0, 3);

}  // namespace
}  // namespace sluice
