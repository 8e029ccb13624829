// What RemoteMemory costs over the verbs below it: the same 8-byte READs posted raw, submitted, and awaited.
//
// Both adapters and their cable run in this thread, so that the difference between two lines is the layer's own cost.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "rc/remote_rc.h"
#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

constexpr std::size_t kDepth = 64;
constexpr std::uint64_t kBase = 0x10000;
constexpr remote::NodeId kNode{1};

struct World {
  TwoAdapters adapters;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4096);
  memory::Key key = adapters.region(adapters.b, memory, kBase);
  TwoAdapters::Pair pair = adapters.connect({.depth = 2 * kDepth});
  std::array<std::uint64_t, kDepth> into{};
};

MutableBytes as_bytes(std::uint64_t& word) { return {reinterpret_cast<std::uint8_t*>(&word), sizeof word}; }

void read_raw(benchmark::State& state) {
  World w;
  std::array<Completion, 32> burst;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      const Sge sge = Sge::of(as_bytes(w.into[i]));
      w.adapters.a.adapter->post_send(
          w.adapters.now, *w.pair.a,
          {.id = i, .op = SendOp::kRead, .sges = {&sge, 1}, .remote_address = kBase + 8 * i, .remote_key = w.key});
    }
    for (std::size_t done = 0; done < kDepth;) {
      w.adapters.round();
      while (const std::size_t n = w.adapters.a.completions->poll(burst)) done += n;
    }
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kDepth});
}
BENCHMARK(read_raw);

void read_submitted(benchmark::State& state) {
  World w;
  remote::Scheduler scheduler;
  RemoteRc remote(scheduler, *w.adapters.a.adapter, *w.adapters.a.completions);
  remote.add_node(kNode, *w.pair.a);
  std::array<remote::Operation, kDepth> operations;
  std::size_t done = 0;
  for (auto _ : state) {
    done = 0;
    for (std::size_t i = 0; i < kDepth; ++i) {
      operations[i] = {.kind = remote::OpKind::kRead,
                       .remote = {kNode, remote::RegionKey(w.key.value), kBase + 8 * i},
                       .local = as_bytes(w.into[i])};
      operations[i].context = &done;
      operations[i].on_complete = [](remote::Operation& o) { ++*static_cast<std::size_t*>(o.context); };
      remote.submit(operations[i]);
    }
    while (done < kDepth) {
      w.adapters.round();
      remote.poll(w.adapters.now);
    }
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kDepth});
}
BENCHMARK(read_submitted);

remote::Task<void> reader(RemoteRc& remote, remote::RemoteAddress from, std::uint64_t& into, std::size_t& done) {
  for (;;) {
    const remote::Status status = co_await remote.read(from, as_bytes(into));
    benchmark::DoNotOptimize(status);
    ++done;
  }
}

void read_awaited(benchmark::State& state) {
  World w;
  remote::Scheduler scheduler;
  RemoteRc remote(scheduler, *w.adapters.a.adapter, *w.adapters.a.completions);
  remote.add_node(kNode, *w.pair.a);
  std::size_t done = 0;
  for (std::size_t i = 0; i < kDepth; ++i) {
    scheduler.spawn(reader(remote, {kNode, remote::RegionKey(w.key.value), kBase + 8 * i}, w.into[i], done));
  }
  std::size_t target = 0;
  for (auto _ : state) {
    target += kDepth;
    while (done < target) {  // NOLINT(bugprone-infinite-loop): the readers count
      scheduler.run(w.adapters.now);
      w.adapters.round();
      remote.poll(w.adapters.now);
    }
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kDepth});
}
BENCHMARK(read_awaited);

}  // namespace
}  // namespace sluice::rc
