// The scheduler as software: nanoseconds a grant, for as many ports as the paper's cluster and its switch have. And the simulated cluster around it: how its
// cost grows with messages, and with nodes that have as many messages each. And the stage of the rack's switch, for packets that it lets pass.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "base/rng.h"
#include "edm/scheduler.h"
#include "rack/switch/edm_stage.h"
#include "sim/edm/edm_cluster.h"
#include "switching/frame_buffer.h"
#include "wire/frame.h"

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

// Packets of answers, 32 of one node at a time, to readers drawn by chance, of 64 hosts that have all asked each other for something.
void stage_answers(benchmark::State& state, const char* wish) {
  constexpr std::uint32_t kHosts = 64;
  constexpr std::uint32_t kBurst = 32;
  const auto packet = [](std::uint32_t from, std::uint32_t to, wire::Opcode opcode, std::size_t payload) {
    const auto mac = [](std::uint32_t host) {
      return wire::MacAddress{{2, 0, 0, 0, 0, static_cast<std::uint8_t>(host)}};
    };
    const auto gid = [](std::uint32_t host) { return wire::Gid::from(wire::Ipv4Address{0x0A4D'0001u + host}); };
    const wire::HeaderTemplate headers(
        {.source_mac = mac(from), .destination_mac = mac(to), .source = gid(from), .destination = gid(to)});
    const std::size_t transport = wire::Bth::kSize + wire::opcode_traits(opcode).extended_length + payload;
    std::vector<std::uint8_t> bytes(headers.frame_size(transport));
    const std::size_t at = headers.write(bytes.data(), transport);
    wire::Bth{.opcode = opcode, .destination = wire::Qpn(0x11)}.write(bytes.data() + at);
    if (opcode == wire::Opcode::kRcReadRequest)
      wire::Reth{0, wire::RKey(1), 64}.write(bytes.data() + at + wire::Bth::kSize);
    headers.seal(bytes.data(), at + transport);
    return bytes;
  };
  rack::EdmStage stage({});
  switching::FrameBuffer outbox;
  Time now = Time::at(Duration::seconds(1));
  const auto pass = [&](std::vector<std::vector<std::uint8_t>>& frames, std::size_t first, std::size_t count) {
    std::array<switching::Packet, kBurst> packets;
    for (std::size_t i = 0; i < count; ++i) {
      auto& bytes = frames[first + i];
      packets.at(i) = {{bytes.data(), static_cast<std::uint32_t>(bytes.size())}, {}, {}};
    }
    stage.process(now, std::span(packets).first(count), outbox);
  };
  std::vector<std::vector<std::uint8_t>> requests;
  for (std::uint32_t from = 0; from < kHosts; ++from) {
    for (std::uint32_t to = 0; to < kHosts; ++to) {
      if (from != to) requests.push_back(packet(from, to, wire::Opcode::kRcReadRequest, 0));
    }
  }
  for (std::size_t i = 0; i < requests.size(); ++i, now = now + Duration::microseconds(1)) {
    pass(requests, i, 1);
    outbox.clear();
  }
  Rng rng(1);
  std::vector<std::vector<std::uint8_t>> answers;
  for (std::uint32_t i = 0; i < kHosts * kBurst; ++i) {
    const std::uint32_t node = i / kBurst;
    const std::uint32_t reader = (node + 1 + static_cast<std::uint32_t>(rng.below(kHosts - 1))) % kHosts;
    answers.push_back(packet(node, reader, wire::Opcode::kRcReadResponseOnly, 64));
  }
  if (!stage.change(wish)) return state.SkipWithError("refused");
  std::size_t next = 0;
  for (auto _ : state) {
    pass(answers, next, kBurst);
    next = (next + kBurst) % answers.size();
  }
  state.counters["ns/packet"] = benchmark::Counter(static_cast<double>(state.iterations()) * kBurst,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(stage_answers, granting, R"({"on": true})");
BENCHMARK_CAPTURE(stage_answers, off, R"({"on": false})");

}  // namespace
