// What Cowbird costs the application's thread: issuing and completing reads, with a real engine on another core.
//
// The engine (a thread here, so that one program can be run) serves the rings all the while. Timed are blocks of 100 issues and, once the
// engine has done them all, blocks of 100 completions, as in Figure 2 of the paper: "when the poll is called, the result is
// immediately available". Waiting for the engine in between is not the application's work, and not timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cowbird/channel.h"
#include "cowbird/engine.h"
#include "cowbird/poll_group.h"
#include "remote/mapped.h"

namespace {

using namespace sluice;
using std::chrono::steady_clock;

constexpr std::size_t kDepth = 100;
constexpr std::size_t kPool = 1 << 20;

struct Free {
  void operator()(std::uint8_t* p) const { std::free(p); }
};

std::unique_ptr<std::uint8_t[], Free> lines(std::size_t bytes) {
  const std::size_t whole = (bytes + 4095) / 4096 * 4096;
  auto* p = static_cast<std::uint8_t*>(std::aligned_alloc(4096, whole));
  std::memset(p, 0, whole);
  return std::unique_ptr<std::uint8_t[], Free>(p);
}

// An instance, a pool, and an engine that turns in a thread of its own.
class Bench {
 public:
  Bench() : block_(lines(layout_.bytes())), pool_(lines(kPool)) {
    layout_.write(block_.get());
    regions_.push_back({.node = 1, .key = 1, .base = 0, .length = kPool});
    regions_[0].write(block_.get() + cowbird::InstanceLayout::kRegions);
    channel_ = std::make_unique<cowbird::Channel>(
        MutableBytes(block_.get() + layout_.channel_at(0), layout_.channel().bytes), layout_.channel(), regions_);
    thread_ = std::thread([this] { serve(); });
  }
  ~Bench() {
    stop_ = true;
    thread_.join();
  }
  cowbird::Channel& channel() { return *channel_; }
  // Spins until the engine has published `count` reads in all; touches the line as seldom as a busy application does.
  void wait_for(std::uint64_t count) {
    auto* const word = reinterpret_cast<std::uint64_t*>(
        block_.get() + layout_.channel_at(0) + cowbird::ChannelLayout::kProgress + cowbird::ProgressLine::kReads);
    while (std::atomic_ref(*word).load(std::memory_order_acquire) < count) {
      for (int i = 0; i < 50; ++i) __builtin_ia32_pause();
    }
  }

 private:
  void serve() {
    remote::Scheduler scheduler;
    remote::MappedMemory compute(scheduler), memory(scheduler);
    const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(1), 0};
    compute.add(at, MutableBytes(block_.get(), layout_.bytes()));
    memory.add({remote::NodeId(1), remote::RegionKey(1), 0}, MutableBytes(pool_.get(), kPool));
    cowbird::Engine engine(scheduler, compute, at, layout_, 0, memory, {});
    scheduler.spawn(engine.run());
    const auto begin = steady_clock::now();
    while (scheduler.live() != 0) {
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - begin).count();
      scheduler.run(Time() + Duration::nanoseconds(ns));
      if (stop_) engine.stop();
    }
  }

  cowbird::InstanceLayout layout_{};
  std::unique_ptr<std::uint8_t[], Free> block_;
  std::unique_ptr<std::uint8_t[], Free> pool_;
  std::vector<cowbird::Region> regions_;
  std::unique_ptr<cowbird::Channel> channel_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

double seconds(steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Medians over blocks: one that was interrupted says nothing. A block: kDepth reads issued and completed. `grouped`: through a poll group, as poll_add and poll_wait do.
void read_cost(benchmark::State& state, bool grouped) {
  Bench bench;
  cowbird::Channel& channel = bench.channel();
  cowbird::PollGroup group(channel);
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  std::vector<std::uint8_t> into(kDepth * bytes);
  cowbird::Completion done[kDepth];
  std::uint64_t issued = 0, offset = 0;
  std::vector<double> issuing, completing;  // nanoseconds a request, of each block
  for (auto _ : state) {
    const auto begin = steady_clock::now();
    for (std::size_t i = 0; i < kDepth; ++i) {
      const auto id =
          channel.async_read(0, offset = (offset + 4096 + 64) % (kPool - 4096), into.data() + i * bytes, bytes);
      if (grouped) group.add(cowbird::RequestId(id));
    }
    const auto between = steady_clock::now();
    bench.wait_for(issued += kDepth);
    const auto again = steady_clock::now();
    const std::size_t n = grouped ? group.collect(done) : channel.collect(done);
    const auto end = steady_clock::now();
    if (n != kDepth) state.SkipWithError("not all were complete");
    issuing.push_back(seconds(between - begin) * 1e9 / kDepth);
    completing.push_back(seconds(end - again) * 1e9 / kDepth);
    state.SetIterationTime(seconds(between - begin) + seconds(end - again));
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(issued));
  state.counters["issue_ns"] = median(issuing);
  state.counters["complete_ns"] = median(completing);
}

BENCHMARK_CAPTURE(read_cost, collect, false)->Arg(8)->Arg(64)->Arg(512)->UseManualTime();
BENCHMARK_CAPTURE(read_cost, group, true)->Arg(8)->Arg(64)->Arg(512)->UseManualTime();

}  // namespace
