// Cowbird's engines alone, on one core: what a read costs them. The application's calls and the ends that answer are not timed.
//
// spot:    over memory mapped on both sides, so that no transport is in it.
// switch:  packets in, packets out; two passive ends answer each burst of requests, and what the engine does with the burst of answers is
//          timed. A read of up to an MTU is a READ and its response, a WRITE and its ACK; probes, entries and progress are shared by many.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

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
constexpr std::uint64_t kBlockBase = 0x10'0000;
constexpr std::uint64_t kPoolBase = 0x7000'0000;
constexpr std::uint32_t kMtu = 1024;
constexpr Duration kStep = Duration::nanoseconds(500);
constexpr int kMostSteps = 100'000;

double seconds(steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// An application's side: rings in memory, and reads of them.
class Application {
 public:
  Application() {
    layout.write(block().data());
    regions[0].write(block().data() + cowbird::InstanceLayout::kRegions);
    channel = std::make_unique<cowbird::Channel>(block().subspan(layout.channel_at(0)), layout.channel(), regions);
    channel->set_regions_generation(1);
  }
  MutableBytes block() { return {reinterpret_cast<std::uint8_t*>(words_.data()), words_.size() * 8}; }
  void issue(std::uint32_t bytes) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      offset_ = (offset_ + 4096 + 64) % (kPoolBytes - 4096);
      channel->async_read(0, offset_, into_.data() + i * bytes, bytes);
    }
    under_way_ += kDepth;
  }
  bool all_done() {
    cowbird::Completion done[kDepth];
    under_way_ -= channel->collect(done);
    return under_way_ == 0;
  }

  cowbird::InstanceLayout layout{};
  std::vector<cowbird::Region> regions{{.node = 1, .key = 1, .base = kPoolBase, .length = kPoolBytes}};
  std::vector<std::uint8_t> pool = std::vector<std::uint8_t>(kPoolBytes, 0x5a);
  std::unique_ptr<cowbird::Channel> channel;

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(layout.bytes() / 8);
  std::vector<std::uint8_t> into_ = std::vector<std::uint8_t>(kDepth * kMtu);
  std::size_t under_way_ = 0;
  std::uint64_t offset_ = 0;
};

void spot(benchmark::State& state) {
  Application application;
  remote::Scheduler scheduler;
  remote::MappedMemory compute(scheduler), memory(scheduler);
  const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(1), kBlockBase};
  compute.add(at, application.block());
  memory.add({remote::NodeId(1), remote::RegionKey(1), kPoolBase}, application.pool);
  cowbird::Engine engine(scheduler, compute, at, application.layout, 0, memory, {});
  scheduler.spawn(engine.run());
  Time now;
  for (auto _ : state) {
    application.issue(static_cast<std::uint32_t>(state.range(0)));
    double took = 0;
    for (int i = 0; i < kMostSteps && !application.all_done(); ++i) {
      const auto begin = steady_clock::now();
      scheduler.run(now = now + kStep);
      took += seconds(steady_clock::now() - begin);
    }
    state.SetIterationTime(took);
  }
  engine.stop();
  while (scheduler.live() != 0) scheduler.run(now = now + kStep);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kDepth));
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
    std::uint8_t* const memory = of_pool ? application_.pool.data() + (reth.virtual_address - kPoolBase)
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
  cowbird::ConnectionEnd host_ = end_of(1, 0x222), pool_ = end_of(2, 0x333), control_{};
};

void in_switch(benchmark::State& state) {
  Application application;
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

BENCHMARK(spot)->Arg(8)->Arg(64)->Arg(256)->Arg(512)->UseManualTime();
BENCHMARK(in_switch)->Arg(8)->Arg(64)->Arg(256)->Arg(512)->Arg(1024)->UseManualTime();

}  // namespace
