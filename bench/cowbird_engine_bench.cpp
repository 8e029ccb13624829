// Cowbird's engines alone, on one core: what a read costs them. The application's calls and the ends that answer are not timed.
//
// spot:    rings and pool elsewhere: what moves their bytes is not timed. Near: the pool is memory of the engine's process, 1 GiB, and copying records out of it,
//          at random, is the engine's work. The second argument: channels, in turn; the third: the pool is on large pages.
// switch:  packets in, packets out; two passive ends answer each burst of requests, and what the engine does with the burst of answers is
//          timed. A read of up to an MTU is a READ and its response, a WRITE and its ACK; probes, entries and progress are shared by many.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/rng.h"
#include "cowbird/channel.h"
#include "cowbird/engine.h"
#include "cowbird/switch_engine.h"
#include "remote/mapped.h"
#include "tests/scenario/outbox.h"
#include "wire/frame.h"

namespace {

using namespace sluice;
using std::chrono::steady_clock;

constexpr std::size_t kDepth = 100;
constexpr std::size_t kPoolBytes = 1 << 20;
constexpr std::size_t kManyBytes = 1u << 30;  // far beyond any cache
constexpr std::uint64_t kBlockBase = 0x10'0000;
constexpr std::uint64_t kPoolBase = 0x7000'0000;
constexpr std::uint32_t kMtu = 1024;
constexpr Duration kStep = Duration::nanoseconds(500);
constexpr int kMostSteps = 100'000;

double seconds(steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// An application's side: rings in memory, and reads of them.
class Application {
 public:
  explicit Application(std::size_t pool_bytes, std::uint64_t seed = 1) : pool_bytes_(pool_bytes), rng_(seed) {
    regions[0].length = pool_bytes;
    layout.write(block().data());
    regions[0].write(block().data() + cowbird::InstanceLayout::kRegions);
    channel = std::make_unique<cowbird::Channel>(block().subspan(layout.channel_at(0)), layout.channel(), regions);
    channel->set_regions_generation(1);
  }
  MutableBytes block() { return {reinterpret_cast<std::uint8_t*>(words_.data()), words_.size() * 8}; }
  void issue(std::uint32_t bytes) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      const std::uint64_t offset = rng_.below(pool_bytes_ / 64 - 64) * 64;
      channel->async_read(0, offset, into_.data() + i * bytes, bytes);
    }
    under_way_ += kDepth;
  }
  bool all_done() {
    cowbird::Completion done[kDepth];
    under_way_ -= channel->collect(done);
    return under_way_ == 0;
  }

  cowbird::InstanceLayout layout{};
  std::vector<cowbird::Region> regions{{.node = 1, .key = 1, .base = kPoolBase}};
  std::unique_ptr<cowbird::Channel> channel;

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(layout.bytes() / 8);
  std::vector<std::uint8_t> into_ = std::vector<std::uint8_t>(kDepth * kMtu);
  std::size_t under_way_ = 0;
  std::size_t pool_bytes_;
  Rng rng_;
};

// Memory whose operations wait: what moves their bytes elsewhere (a NIC, a memory node) is not timed, what the engine makes of their completion is.
class Elsewhere final : public remote::RemoteMemory {
 public:
  explicit Elsewhere(remote::Scheduler& scheduler) : RemoteMemory(scheduler), bytes_(scheduler) {}
  void add(remote::RemoteAddress start, MutableBytes bytes) { bytes_.add(start, bytes); }

  remote::Capabilities capabilities() const override { return bytes_.capabilities(); }
  void submit(remote::Operation& operation) override { submitted_.push_back(&operation); }
  void carry_out() {
    for (; !submitted_.empty(); submitted_.pop_front()) {
      remote::Operation& operation = *submitted_.front();
      operation.status = operation.kind == remote::OpKind::kRead ? bytes_.read_now(operation.remote, operation.local)
                                                                 : bytes_.write_now(operation.remote, operation.local);
      done_.push_back(&operation);
    }
  }
  void deliver() {
    for (remote::Operation* const operation : done_) complete(*operation, operation->status);
    done_.clear();
  }

 private:
  remote::MappedMemory bytes_;
  std::deque<remote::Operation*> submitted_;
  std::vector<remote::Operation*> done_;
};

// A pool's memory, filled once: that takes longer than what is measured.
MutableBytes records(bool large_pages) {
  static const std::array<void*, 2> all = [] {
    std::array<void*, 2> made{};
    for (const bool large : {false, true}) {
      made[large] = std::aligned_alloc(2u << 20, kManyBytes);
      if (made[large] == nullptr) std::abort();
      madvise(made[large], kManyBytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
      std::memset(made[large], 0x5a, kManyBytes);
    }
    return made;
  }();
  return {static_cast<std::uint8_t*>(all[large_pages]), kManyBytes};
}

// Channels of as many threads, `kDepth` reads of each at a time. `Pool`: MappedMemory, near; Elsewhere, over some network.
template <class Pool>
void spot(benchmark::State& state) {
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  std::deque<Application> applications;
  remote::Scheduler scheduler;
  Pool pool(scheduler);
  pool.add({remote::NodeId(1), remote::RegionKey(1), kPoolBase}, records(state.range(2) != 0));
  std::deque<Elsewhere> rings;
  std::deque<cowbird::Engine> engines;
  for (std::int64_t i = 0; i < state.range(1); ++i) {
    const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(1), kBlockBase};
    auto& application = applications.emplace_back(kManyBytes, static_cast<std::uint64_t>(i));
    rings.emplace_back(scheduler).add(at, application.block());
    scheduler.spawn(
        engines.emplace_back(scheduler, rings.back(), at, application.layout, 0, pool, cowbird::EngineConfig{}).run());
  }
  Time now;
  const auto carry_out = [&] {
    for (Elsewhere& ring : rings) ring.carry_out();
    if constexpr (std::is_same_v<Pool, Elsewhere>) pool.carry_out();
  };
  const auto run = [&] {
    for (Elsewhere& ring : rings) ring.deliver();
    if constexpr (std::is_same_v<Pool, Elsewhere>) pool.deliver();
    scheduler.run(now);
  };
  for (auto _ : state) {
    for (Application& application : applications) application.issue(bytes);
    double took = 0;
    bool done = false;
    for (int i = 0; i < kMostSteps && !done; ++i) {
      carry_out();
      now = std::max(now + Duration::nanoseconds(1), std::min(scheduler.next_deadline(), now + kStep));
      const auto begin = steady_clock::now();
      run();
      took += seconds(steady_clock::now() - begin);
      done = true;
      for (Application& application : applications) done = application.all_done() && done;
    }
    if (!done) return state.SkipWithError("the engine does not do what it should");
    state.SetIterationTime(took);
  }
  for (cowbird::Engine& engine : engines) engine.stop();
  while (scheduler.live() != 0) {
    carry_out();
    now = now + kStep;
    run();
  }
  state.SetItemsProcessed(state.iterations() * state.range(1) * static_cast<std::int64_t>(kDepth));
}

// Both passive ends: what they answer to a request.
class Ends {
 public:
  Ends(Application& application, cowbird::SwitchEngine& engine) : application_(application) {
    const auto attached = engine
                              .attach({}, {.layout = application.layout,
                                           .address = kBlockBase,
                                           .key = wire::RKey(1),
                                           .host = end_of(1, 0x111),
                                           .mtu = kMtu})
                              .value();
    control_ = attached.engine;
    const bool connected =
        engine.connect({}, attached.id, {.node = 1, .host = host_, .pool = pool_, .mtu = kMtu}).has_value() &&
        engine.set_regions({}, attached.id, 1, application.regions).has_value();
    if (!connected) std::abort();
  }
  // Empty: nothing is answered.
  std::vector<std::uint8_t> answer(ByteView frame) {
    wire::ParsedFrame parsed;
    if (wire::parse(frame, parsed) != wire::Verdict::kOk) return {};
    const bool of_pool = parsed.destination == pool_.qpn;
    const cowbird::ConnectionEnd from = of_pool ? pool_ : parsed.destination == host_.qpn ? host_ : end_of(1, 0x111);
    const cowbird::ConnectionEnd& to = of_pool ? host_ : parsed.destination == host_.qpn ? pool_ : control_;
    const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
    std::uint8_t* const memory = of_pool ? pool_bytes_.data() + (reth.virtual_address - kPoolBase)
                                         : application_.block().data() + (reth.virtual_address - kBlockBase);
    const bool read = parsed.traits().kind == wire::Kind::kReadRequest;
    if (!read) {
      const auto payload = wire::payload(frame.data(), parsed);
      std::memcpy(memory, payload.data(), payload.size());
    }
    return made(from, to, read ? wire::Opcode::kRcReadResponseOnly : wire::Opcode::kRcAcknowledge, parsed.psn,
                read ? ByteView(memory, reth.length) : ByteView());
  }

 private:
  static cowbird::ConnectionEnd end_of(std::uint8_t number, std::uint32_t qpn) {
    return {{{2, 0, 0, 0, 0, number}}, wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number}), wire::Qpn(qpn), {}};
  }
  static std::vector<std::uint8_t> made(const cowbird::ConnectionEnd& from, const cowbird::ConnectionEnd& to,
                                        wire::Opcode opcode, wire::Psn psn, ByteView payload) {
    const wire::HeaderTemplate headers({.source_mac = from.mac,
                                        .destination_mac = to.mac,
                                        .source = from.gid,
                                        .destination = to.gid,
                                        .source_port = 0xC123});
    const std::uint8_t pad = wire::pad_for(payload.size());
    const std::size_t body = 4 + payload.size() + pad;
    std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + body));
    std::size_t at = headers.write(frame.data(), wire::Bth::kSize + body);
    wire::Bth{.opcode = opcode, .pad_count = pad, .destination = to.qpn, .psn = psn}.write(frame.data() + at);
    at += wire::Bth::kSize;
    wire::Aeth{wire::Aeth::kNoCredits, 1}.write(frame.data() + at);
    at += 4;
    std::ranges::copy(payload, frame.begin() + static_cast<std::ptrdiff_t>(at));
    headers.seal(frame.data(), at + payload.size() + pad);
    return frame;
  }

  Application& application_;
  std::vector<std::uint8_t> pool_bytes_ = std::vector<std::uint8_t>(kPoolBytes, 0x5a);
  cowbird::ConnectionEnd host_ = end_of(1, 0x222), pool_ = end_of(2, 0x333), control_{};
};

void in_switch(benchmark::State& state) {
  Application application(kPoolBytes);
  cowbird::SwitchEngine engine({{2, 0, 0, 0, 0, 0xFE}}, wire::Gid::from(wire::Ipv4Address{0x0A4D00FE}), {}, 1);
  Ends ends(application, engine);
  scenario::Outbox outbox;
  std::deque<std::vector<std::uint8_t>> answers;
  Time now;
  std::int64_t packets = 0;
  bool well = true;
  for (auto _ : state) {
    application.issue(static_cast<std::uint32_t>(state.range(0)));
    double took = 0;
    int steps = 0;
    for (; steps < kMostSteps && !application.all_done(); ++steps) {
      now = now + kStep;
      const auto begin = steady_clock::now();
      for (auto& frame : answers)
        well &= engine.on_frame(now, {frame.data(), static_cast<std::uint32_t>(frame.size())}, outbox);
      engine.on_deadline(now, outbox);
      engine.on_spare(
          now, [](const wire::MacAddress&) { return true; }, outbox);
      took += seconds(steady_clock::now() - begin);
      packets += static_cast<std::int64_t>(answers.size());
      answers.clear();
      outbox.drain([&](port::Frame frame) {
        ++packets;
        answers.push_back(ends.answer(frame.bytes()));
      });
    }
    if (!well || steps == kMostSteps) return state.SkipWithError("the engine does not do what it should");
    state.SetIterationTime(took);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kDepth));
  state.counters["packets"] = benchmark::Counter(static_cast<double>(packets), benchmark::Counter::kIsRate);
}

BENCHMARK(spot<Elsewhere>)->ArgsProduct({{8, 64, 256, 512}, {1, 16}, {0}})->UseManualTime();
BENCHMARK(spot<remote::MappedMemory>)->ArgsProduct({{8, 64, 256, 512}, {1, 16}, {0, 1}})->UseManualTime();
BENCHMARK(in_switch)->Arg(8)->Arg(64)->Arg(256)->Arg(512)->Arg(1024)->UseManualTime();

}  // namespace
