// What remote reads cost the application's thread: issuing and completing them with Cowbird, a real engine on another core, and beside it
// ibv_post_send and ibv_poll_cq through our own verbs library, the pool in another process.
//
// The engine (a thread here, so that one program can be run) serves the rings all the while. 100 reads are issued and, once they are
// all done, completed, as in Figure 2 of the paper: "when the poll is called, the result is immediately available". Waiting in between is
// not the application's work, and not timed. A block, the unit of which counters are medians, is ten times that: 1,000 reads.
//   issue, complete: ns a read.   total: their sum.   mean: over all blocks, interrupted or not.
//   cycles: total in cycles, by a chain of dependent additions timed in each block (this kind of machine changes its clock).
// verbs/polling: the completions are polled for at once, so that the software NIC's work in the program's thread counts.
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
#include "verbs_pool.h"

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

// Nanoseconds of a cycle, now.
double cycle_ns() {
  constexpr int kAdds = 2000;
  std::uint64_t x = 1;
  const auto begin = steady_clock::now();
  for (int i = 0; i < kAdds; ++i) asm volatile("add $1, %0" : "+r"(x));
  return seconds(steady_clock::now() - begin) * 1e9 / kAdds;
}

constexpr int kRounds = 10;

// What a block took, and of all blocks the counters.
class Blocks {
 public:
  explicit Blocks(benchmark::State& state) : state_(state) {}
  void issued(steady_clock::duration d) { issue_ += d; }
  void completed(steady_clock::duration d) { complete_ += d; }
  void end() {
    state_.SetIterationTime(seconds(issue_) + seconds(complete_));
    const double issue = seconds(issue_) * 1e9 / kReads, complete = seconds(complete_) * 1e9 / kReads;
    issuing_.push_back(issue);
    completing_.push_back(complete);
    totals_.push_back(issue + complete);
    sum_ += issue + complete;
    cycles_.push_back((issue + complete) / cycle_ns());
    issue_ = complete_ = {};
  }
  void report() {
    state_.SetItemsProcessed(static_cast<std::int64_t>(totals_.size() * kReads));
    state_.counters["mean"] = sum_ / static_cast<double>(totals_.size());
    state_.counters["issue"] = median(issuing_);
    state_.counters["complete"] = median(completing_);
    state_.counters["total"] = median(totals_);
    state_.counters["cycles"] = median(cycles_);
  }

 private:
  static constexpr std::size_t kReads = kRounds * kDepth;
  benchmark::State& state_;
  steady_clock::duration issue_{}, complete_{};
  double sum_ = 0;
  std::vector<double> issuing_, completing_, totals_, cycles_;
};

std::uint64_t next(std::uint64_t offset) { return (offset + 4096 + 64) % (kPool - 4096); }

// `grouped`: through a poll group, as poll_add and poll_wait do.
void cowbird_read(benchmark::State& state, bool grouped) {
  Bench bench;
  cowbird::Channel& channel = bench.channel();
  cowbird::PollGroup group(channel);
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  std::vector<std::uint8_t> into(kDepth * bytes);
  cowbird::Completion done[kDepth];
  std::uint64_t issued = 0, offset = 0;
  Blocks blocks(state);
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = steady_clock::now();
      for (std::size_t i = 0; i < kDepth; ++i) {
        const auto id = channel.async_read(0, offset = next(offset), into.data() + i * bytes, bytes);
        if (grouped) group.add(cowbird::RequestId(id));
      }
      blocks.issued(steady_clock::now() - begin);
      bench.wait_for(issued += kDepth);
      const auto again = steady_clock::now();
      const std::size_t n = grouped ? group.collect(done) : channel.collect(done);
      blocks.completed(steady_clock::now() - again);
      if (n != kDepth) return state.SkipWithError("not all were complete");
    }
    blocks.end();
  }
  blocks.report();
}

bench::VerbsPool& verbs_pool() {
  static bench::VerbsPool pool;
  return pool;
}

void verbs_read(benchmark::State& state, bool polling) {
  bench::VerbsPool& pool = verbs_pool();
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  std::uint64_t offset = 0;
  Blocks blocks(state);
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      std::memset(pool.local(), 0, kDepth * bytes);
      const auto begin = steady_clock::now();
      for (std::size_t i = 0; i < kDepth; ++i) pool.post_read(offset = next(offset), i * bytes, bytes);
      blocks.issued(steady_clock::now() - begin);
      if (!polling) {  // READs take effect in their order; the NIC's own thread does them
        volatile std::uint8_t* const last = pool.local() + kDepth * bytes - 1;
        while (*last == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(5));
      }
      const auto again = steady_clock::now();
      for (int n = 0; n < static_cast<int>(kDepth);) n += pool.poll();
      blocks.completed(steady_clock::now() - again);
    }
    blocks.end();
  }
  blocks.report();
}

// First the one that forks.
BENCHMARK_CAPTURE(verbs_read, ready, false)->Arg(8)->Iterations(200)->UseManualTime();
BENCHMARK_CAPTURE(verbs_read, polling, true)->Arg(8)->Iterations(1000)->UseManualTime();
BENCHMARK_CAPTURE(cowbird_read, collect, false)->Arg(8)->Iterations(10'000)->UseManualTime();
BENCHMARK_CAPTURE(cowbird_read, group, true)->Arg(8)->Iterations(10'000)->UseManualTime();
BENCHMARK_CAPTURE(cowbird_read, collect, false)->Arg(64)->Arg(512)->Iterations(1000)->UseManualTime();

}  // namespace
