// 1RMA's software, one layer at a time: the executor alone with a thousand destinations; both nodes and their hub in one thread, sealed
// and plain; RC over the same cables, beside them; AES-GCM alone.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "onerma/test_world.h"
#include "rc/two_adapters.h"

namespace sluice::onerma {
namespace {

constexpr std::uint64_t kBase = 0x10000;
constexpr std::uint32_t kOne = CongestionWindow::kOne;

// Issue, pace, complete: no frames, no cryptography. A poll every microsecond of the world's time; what was sent five polls ago ends.
void executor_path(benchmark::State& state) {
  const auto destinations = static_cast<std::size_t>(state.range(0));
  SolicitationWindow window(1 << 24);
  CommandSlots slots({.slots = 1024}, window);
  const Algorithm1 policy;
  ExecutorParameters parameters;
  parameters.first_local = 256 * kOne;
  parameters.remote_target = Duration::microseconds(50);
  parameters.pacing_slack = Duration::microseconds(2);  // polled once a microsecond
  Executor executor(parameters, policy, slots);
  struct Load {
    Request request;
    Executor* executor = nullptr;
    std::uint64_t* done = nullptr;
  };
  std::uint64_t done = 0;
  std::array<std::uint8_t, 64> bytes{};
  std::vector<Load> loads(2 * destinations);
  Time now = Time::at(Duration::milliseconds(1));
  for (std::size_t i = 0; i < destinations; ++i) executor.add_path();
  for (std::size_t i = 0; i < loads.size(); ++i) {
    Load& load = loads[i];
    load.executor = &executor;
    load.done = &done;
    load.request = {.op = OpKind::kRead,
                    .path = PathId(static_cast<std::uint32_t>(i % destinations)),
                    .local = bytes,
                    .on_complete = [](Time at, Request& request, const Completion&) {
                      auto& self = *static_cast<Load*>(request.context);
                      ++*self.done;
                      self.executor->submit(at, request);
                    }};
    load.request.context = &load;
    executor.submit(now, load.request);
  }
  std::array<std::vector<Slot*>, 6> wire;
  for (auto& line : wire) line.reserve(2048);
  std::size_t turn = 0;
  for (auto _ : state) {
    now = now + Duration::microseconds(1);
    turn = (turn + 1) % wire.size();
    for (Slot* const slot : wire[turn]) slots.complete(now, *slot, Status::kOk);
    wire[turn].clear();
    if (slots.next_deadline() <= now) slots.expire(now);
    executor.poll(now);
    while (Slot* const slot = slots.next_to_send()) {
      slots.on_sent(now, *slot);
      wire[turn].push_back(slot);
    }
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(done));
  state.counters["ops_per_poll"] = static_cast<double>(done) / static_cast<double>(state.iterations());
}
BENCHMARK(executor_path)->Arg(1)->Arg(100)->Arg(1000);

NodeConfig roomy(Protection protection) {
  NodeConfig config;
  config.protection = protection;
  config.allow_plain = protection == Protection::kPlain;
  config.window_bytes = 1 << 20;
  config.target.nack_bytes = 1 << 22;
  config.slots.timeout = config.target.pull_timeout = Duration::milliseconds(10);
  config.slots.dispatch_timeout = Duration::milliseconds(10);
  return config;
}

// Both nodes, their hub and cables in this thread; 64 operations a round, straight into the slots.
void whole_stack(benchmark::State& state, OpKind op, Protection protection) {
  constexpr std::size_t kDepth = 64;
  World world;
  World::Host& a = world.add_host(roomy(protection));
  World::Host& b = world.add_host(roomy(protection));
  std::vector<std::uint8_t> memory(kMaxOp);
  const RegionId region = b.node->regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
  const GrantId grant = a.node->initiator().add_grant(b.node->address(),
                                                      *b.node->regions().grant(region, InitiatorId(1), {Rights::kAll}));
  std::vector<std::uint8_t> local(static_cast<std::size_t>(state.range(0)));
  CompletionRing ring(kDepth);
  std::uint64_t bad = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      a.node->initiator().issue(world.now,
                                {.op = op, .grant = grant, .address = kBase, .local = local, .completions = &ring});
    }
    for (std::size_t done = 0; done < kDepth;) {
      world.round();
      for (; !ring.empty(); ++done) bad += ring.pop().status == Status::kOk ? 0u : 1u;
    }
  }
  if (bad != 0) state.SkipWithError("operations failed");
  state.SetItemsProcessed(state.iterations() * std::int64_t{kDepth});
  state.SetBytesProcessed(state.iterations() * std::int64_t{kDepth} * state.range(0));
}
BENCHMARK_CAPTURE(whole_stack, read_sealed, OpKind::kRead, Protection::kSealed)->Arg(64)->Arg(4096);
BENCHMARK_CAPTURE(whole_stack, read_plain, OpKind::kRead, Protection::kPlain)->Arg(64)->Arg(4096);
BENCHMARK_CAPTURE(whole_stack, write_sealed, OpKind::kWrite, Protection::kSealed)->Arg(64)->Arg(4096);
BENCHMARK_CAPTURE(whole_stack, write_plain, OpKind::kWrite, Protection::kPlain)->Arg(64)->Arg(4096);

// The same of RC: two adapters on one cable, without a hub, MTU 4096.
void rc_stack(benchmark::State& state, rc::SendOp op) {
  constexpr std::size_t kDepth = 64;
  rc::TwoAdapters world;
  std::vector<std::uint8_t> memory(kMaxOp);
  const memory::Key key = world.region(world.b, memory, kBase);
  const auto pair = world.connect({.depth = 2 * kDepth, .mtu = 4096});
  std::vector<std::uint8_t> local(static_cast<std::size_t>(state.range(0)));
  std::array<rc::Completion, 32> burst;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      const rc::Sge sge = rc::Sge::of(local);
      world.a.adapter->post_send(world.now, *pair.a,
                                 {.id = i, .op = op, .sges = {&sge, 1}, .remote_address = kBase, .remote_key = key});
    }
    for (std::size_t done = 0; done < kDepth;) {
      world.round();
      while (const std::size_t n = world.a.completions->poll(burst)) done += n;
    }
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kDepth});
  state.SetBytesProcessed(state.iterations() * std::int64_t{kDepth} * state.range(0));
}
BENCHMARK_CAPTURE(rc_stack, read, rc::SendOp::kRead)->Arg(64)->Arg(4096);
BENCHMARK_CAPTURE(rc_stack, write, rc::SendOp::kWrite)->Arg(64)->Arg(4096);

// One frame sealed and opened.
void seal_and_open(benchmark::State& state) {
  const auto body = static_cast<std::size_t>(state.range(0));
  Sealer sealer(test_key(1)), opener(test_key(1));
  std::vector<std::uint8_t> frame(FrameWriter::frame_size(body));
  const FrameWriter writer({}, {}, kUdpPort);
  Header header{.kind = Kind::kData};
  writer.write(frame.data(), {}, header, body);
  for (auto _ : state) {
    ++header.op.value;
    header.write(frame.data() + kNetworkSize);
    sealer.seal(frame.data(), header, body);
    if (!opener.open(frame.data(), header, body)) state.SkipWithError("not opened");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(seal_and_open)->Arg(0)->Arg(12)->Arg(64)->Arg(4096);

// What a target pays for an initiator whose key is not in its cache.
void derive_and_set(benchmark::State& state) {
  const RegionKey key(test_key(1));
  Sealer sealer;
  InitiatorId initiator{};
  for (auto _ : state) {
    ++initiator.value;
    sealer.set_key(key.derive(RegionId(1), initiator, kMayRead));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(derive_and_set);

}  // namespace
}  // namespace sluice::onerma
