// The paper's hash probe: one thread looks random records up, of which a twentieth lies in local memory and the rest remotely.
//
// hash_probe ENGINE-SOCKET: beside a running rack (`sluice rack up --no-metadata`, `sluice cowbird engine`). In one run, for records of 8 to 512
// bytes: all in local memory; asynchronous READs through our verbs library (pool in a process of its own on a shared-memory cable) with
// up to 100 under way; Cowbird with up to 100 under way; and both with one at a time, for latency. Every record is checked.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "libcowbird/cowbird.h"
#include "verbs_pool.h"

namespace {

using namespace sluice;
using std::chrono::steady_clock;

constexpr std::size_t kTable = bench::VerbsPool::kBytes;
constexpr std::uint8_t kFill = bench::VerbsPool::kFill;
constexpr std::uint64_t kLocalIn = 20;  // one record of so many is local
constexpr std::size_t kMostDepth = 100;
constexpr std::uint32_t kLongest = 512;
constexpr std::uint64_t kSpins = 32;  // vain looks before a yield
constexpr auto kDuration = std::chrono::milliseconds(700);

[[noreturn]] void die(const char* what) {
  fmt::print(stderr, "hash_probe: {}\n", what);
  std::exit(1);
}

// Ways to read a record into a slot; completions come in the order of issue.
class Local {
 public:
  Local() : table_(kTable, kFill) {}
  void read(std::uint64_t at, std::size_t slot, std::uint32_t bytes) {
    std::memcpy(into(slot), table_.data() + at, bytes);
    ++done_;
  }
  int poll() { return std::exchange(done_, 0); }
  std::uint8_t* into(std::size_t slot) { return into_ + slot * kLongest; }

 private:
  std::vector<std::uint8_t> table_;
  std::uint8_t into_[kMostDepth * kLongest] = {};
  int done_ = 0;
};

class Verbs {
 public:
  explicit Verbs(bench::VerbsPool& pool) : pool_(pool) {}
  void read(std::uint64_t at, std::size_t slot, std::uint32_t bytes) { pool_.post_read(at, slot * kLongest, bytes); }
  int poll() { return pool_.poll(); }
  std::uint8_t* into(std::size_t slot) { return pool_.local() + slot * kLongest; }

 private:
  bench::VerbsPool& pool_;
};

class Cowbird {
 public:
  explicit Cowbird(const char* engine) {
    cowbird_options_t options{};
    options.engine = engine;
    cowbird_ = cowbird_open(&options);
    if (cowbird_ == nullptr || cowbird_region_add(cowbird_, "memory1", 0, kTable, 0) != 0) die(cowbird_last_error());
    thread_ = cowbird_thread(cowbird_, 0);
    group_ = cowbird_poll_create(thread_);
    fill();
  }
  ~Cowbird() { cowbird_close(cowbird_); }
  Cowbird(const Cowbird&) = delete;
  Cowbird& operator=(const Cowbird&) = delete;
  void read(std::uint64_t at, std::size_t slot, std::uint32_t bytes) {
    const auto id = cowbird_async_read(thread_, 0, at, into(slot), bytes);
    if (id < 0 || cowbird_poll_add(thread_, group_, id) != 0) die(cowbird_strerror(static_cast<int>(id)));
  }
  int poll() {
    cowbird_completion_t done[kMostDepth];
    const int n = cowbird_poll_wait(thread_, group_, done, kMostDepth, 0);
    for (int i = 0; i < n; ++i) {
      if (done[i].status != 0) die(cowbird_strerror(done[i].status));
    }
    if (n < 0) die(cowbird_strerror(n));
    return n;
  }
  std::uint8_t* into(std::size_t slot) { return into_ + slot * kLongest; }

 private:
  void fill() {
    std::vector<std::uint8_t> piece(1 << 16, kFill);
    for (std::uint64_t at = 0; at < kTable; at += piece.size()) {
      cowbird_completion_t done;
      const auto id = cowbird_async_write(thread_, 0, piece.data(), at, static_cast<std::uint32_t>(piece.size()));
      if (id < 0 || cowbird_poll_add(thread_, group_, id) != 0 ||
          cowbird_poll_wait(thread_, group_, &done, 1, 5'000'000) != 1 || done.status != 0) {
        die("the table cannot be written");
      }
    }
  }

  cowbird_t* cowbird_;
  cowbird_thread_t* thread_;
  int group_;
  std::uint8_t into_[kMostDepth * kLongest] = {};
};

// Looks records up for a while with `depth` reads under way.
template <class Way>
void probe(const char* name, Way& way, const std::vector<std::uint8_t>& local, std::uint32_t bytes, std::size_t depth) {
  Rng rng(bytes);
  steady_clock::time_point issued_at[kMostDepth];
  std::vector<std::uint32_t> latency;  // ns
  latency.reserve(1 << 20);
  std::uint64_t issued = 0, done = 0, probes = 0, wrong = 0, vain = 0;
  const std::uint64_t records = kTable / bytes;
  const auto begin = steady_clock::now();
  auto now = begin;
  while (now < begin + kDuration || done != issued) {
    while (issued - done < depth && now < begin + kDuration) {
      ++probes;
      const std::uint64_t record = rng.below(records);
      if (record % kLocalIn == 0) {
        wrong += local[record * bytes] != kFill ? 1u : 0u;
        continue;
      }
      const std::size_t slot = issued++ % depth;
      if (slot % 8 == 0 || depth == 1) now = steady_clock::now();  // the clock is dear
      issued_at[slot] = now;
      *way.into(slot) = 0;
      way.read(record * bytes, slot, bytes);
    }
    const int n = way.poll();
    // Engine, switch and memory node may be waiting for this core: one that only spins keeps them from it.
    if (n == 0 && ++vain % kSpins == 0) std::this_thread::yield();
    now = steady_clock::now();
    for (int i = 0; i < n; ++i, ++done) {
      const std::size_t slot = done % depth;
      wrong += way.into(slot)[0] != kFill || way.into(slot)[bytes - 1] != kFill ? 1u : 0u;
      if (latency.size() < latency.capacity()) {
        latency.push_back(static_cast<std::uint32_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now - issued_at[slot]).count()));
      }
    }
  }
  const double seconds = std::chrono::duration<double>(now - begin).count();
  std::sort(latency.begin(), latency.end());
  const auto at = [&](double quantile) {
    return latency.empty()
               ? 0.0
               : latency[static_cast<std::size_t>(quantile * static_cast<double>(latency.size() - 1))] / 1e3;
  };
  fmt::print("{:>6} {:>8} {:>6} {:>12.0f} {:>9.1f} {:>9.1f} {:>6}\n", bytes, name, depth,
             static_cast<double>(probes) / seconds, at(0.5), at(0.99), wrong);
  if (wrong != 0) die("wrong bytes");
}

}  // namespace

int main(int argc, char** argv) {
  bench::VerbsPool pool;  // forks
  Local all_local;
  Verbs verbs(pool);
  Cowbird cowbird(argc > 1 ? argv[1] : nullptr);
  const std::vector<std::uint8_t> local(kTable, kFill);
  fmt::print("{:>6} {:>8} {:>6} {:>12} {:>9} {:>9} {:>6}\n", "bytes", "way", "depth", "probes/s", "p50 us", "p99 us",
             "wrong");
  for (const std::uint32_t bytes : {8u, 64u, 256u, 512u}) {
    probe("local", all_local, local, bytes, kMostDepth);
    for (const std::size_t depth : {kMostDepth, std::size_t{1}}) {
      probe("verbs", verbs, local, bytes, depth);
      probe("cowbird", cowbird, local, bytes, depth);
    }
  }
}
