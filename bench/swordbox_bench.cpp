// What the box costs a packet: parse, look the connection up, judge, rewrite, patch the ICRC; in bursts of 32, in memory.
//
// Every turn a burst of requests goes through and then the answers that a memory node would give, so that both halves of the work are
// counted. Frames are made beforehand and copied into the burst's buffers under the clock, as a device would write them.
// cycles: a packet's work; copy: what of it is that copy, measured beside it.
// Arguments:  connections, tracked keys, Zipf (1) or uniform (0).
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "bench/swordbox_world.h"

namespace sluice::swordbox {
namespace {

constexpr std::int64_t kBatch = 256;  // bursts made before the clock runs

// Makes bursts with `make`, judges them under the clock.
template <class Make>
void run(benchmark::State& state, World& world, Make make) {
  std::vector<World::Saved> saved(static_cast<std::size_t>(kBatch));
  std::int64_t packets = 0;
  double seconds = 0;
  double copying = 0;
  CycleClock clock;
  const auto before = world.box().counters();
  while (state.KeepRunningBatch(kBatch * std::int64_t{kBurst})) {
    state.PauseTiming();
    for (auto& burst : saved) {
      make();
      world.save(burst);
    }
    clock.look();
    const double start = thread_seconds();
    for (const auto& burst : saved) {
      world.load(burst);
      benchmark::ClobberMemory();
    }
    const double copied = thread_seconds();
    state.ResumeTiming();
    for (const auto& burst : saved) {
      world.load(burst);
      world.settle(kBurst);
    }
    seconds += thread_seconds() - copied;
    copying += copied - start;
    packets += kBatch * std::int64_t{kBurst};
  }
  state.counters["cycles"] = seconds / static_cast<double>(packets) / clock.seconds();
  state.counters["copy"] = copying / static_cast<double>(packets) / clock.seconds();
  report(state, world, before, static_cast<std::size_t>(packets));
}

// READs and their answers, of no interest to any rule.
void Forward(benchmark::State& state) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  World world(connections, 16, true);
  run(state, world, ReadLoad::unwatched(world, connections));
}
BENCHMARK(Forward)->Arg(64)->Arg(4096);

// READs of old nodes, steered to the tail, and their answers.
void SteerReads(benchmark::State& state) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  const auto keys = static_cast<std::uint32_t>(state.range(1));
  World world(connections, keys, true);
  run(state, world, ReadLoad::steered(world, connections, keys, state.range(2) != 0));
}
BENCHMARK(SteerReads)->ArgsProduct({{64, 4096}, {1024, 1 << 20}, {0, 1}});

// Atomics of all connections on words, replaced by WRITEs on a shared one, and the server's ACKs, turned into Atomic ACKs.
void ReplaceAtomics(benchmark::State& state) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  const auto words = static_cast<std::uint32_t>(state.range(1));
  World world(connections, 16, false);
  run(state, world, AddLoad(world, connections, words, state.range(2) != 0));
}
BENCHMARK(ReplaceAtomics)->ArgsProduct({{64, 4096}, {1024, 1 << 20}, {0, 1}});
// Boxes on cores of their own, each with memory nodes of its own (shard.h).
BENCHMARK(ReplaceAtomics)->Name("ReplaceAtomicsSharded")->Args({64, 1024, 0})->ThreadRange(1, 2)->UseRealTime();
BENCHMARK(ReplaceAtomics)->Name("ReplaceAtomicsSharded")->Args({4096, 1 << 20, 0})->ThreadRange(1, 2)->UseRealTime();

// Whole appends by different clients: WRITE, ACK, CAS at an old node (steered), Atomic ACK; a burst of each in turn.
void SteerAppends(benchmark::State& state) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  const auto keys = static_cast<std::uint32_t>(state.range(1));
  KeyDraw draw(keys, state.range(2) != 0);
  World world(connections, keys, true);
  world.teach(keys);
  Rng rng(3);
  int step = 0;
  std::array<std::uint32_t, kBurst> who{};
  std::array<std::uint32_t, kBurst> key{};
  std::array<std::uint32_t, kBurst> psn{};
  std::array<std::uint64_t, kBurst> node{};
  std::uint64_t turn = 0;
  run(state, world, [&] {
    for (std::size_t k = 0; k < kBurst; ++k) {
      switch (step) {
        case 0:
          who[k] = static_cast<std::uint32_t>(rng.below(connections));
          key[k] = draw.draw();
          psn[k] = world.psn(who[k]);
          // Nodes of a hot key may meet in one burst: each its own address, used again after a long time.
          node[k] = 0x4000'0000'00u + (turn++ % (1u << 22)) * kStride;
          world.write_node(k, who[k], node[k], key[k]);
          break;
        case 1: world.ack(k, who[k], psn[k]); break;
        case 2:
          psn[k] = world.psn(who[k]);
          world.cas(k, who[k], World::address(key[k], 0), node[k], key[k]);
          break;
        default: world.swapped(k, who[k], psn[k], free_word(key[k])); break;
      }
    }
    step = (step + 1) % 4;
  });
}
BENCHMARK(SteerAppends)->ArgsProduct({{64, 4096}, {1024, 1 << 20}, {0, 1}});

}  // namespace
}  // namespace sluice::swordbox
