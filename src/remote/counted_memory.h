// Remote memory with an account of its use, and waits that grow: what the clients of the stores share.
//
// Threads:    one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/rng.h"
#include "base/time.h"
#include "remote/remote_memory.h"

namespace sluice::remote {

struct AccessCounters {
  std::uint64_t round_trips = 0;  // waits for remote memory; operations started together count once
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t swaps = 0;
  std::uint64_t bytes = 0;  // payload of reads and writes, 8 for a swap
};

// How long to wait before the next try: between half of `backoff` and the whole. The next time twice as long, up to `most`.
inline Duration draw_back_off(Duration& backoff, Duration most, Rng& rng) {
  const auto whole = static_cast<std::uint64_t>(backoff.picoseconds());
  const auto drawn = static_cast<std::int64_t>(whole / 2 + rng.below(whole / 2 + 1));
  backoff = std::min(backoff * 2, most);
  return Duration::picoseconds(drawn);
}

// Counters is an AccessCounters with what else the client counts. What the functions return is to be waited for at once.
template <class Counters>
class CountedMemory {
 public:
  CountedMemory(RemoteMemory& m, Rng r) : memory(m), scheduler(m.scheduler()), rng(r) {}
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  Time now() const { return scheduler.now(); }
  auto read(RemoteAddress from, MutableBytes into) {
    count(counters.reads, into.size());
    return memory.read(from, into);
  }
  auto write(RemoteAddress to, ByteView bytes) {
    count(counters.writes, bytes.size());
    return memory.write(to, bytes);
  }
  auto swap(RemoteAddress at, std::uint64_t compare, std::uint64_t value) {
    count(counters.swaps, 8);
    return memory.compare_and_swap(at, compare, value);
  }
  // Several, submitted together in their order.
  auto all(std::span<Operation> operations) {
    ++counters.round_trips;
    for (const auto& o : operations) {
      using enum OpKind;
      ++(o.kind == kRead ? counters.reads : o.kind == kWrite ? counters.writes : counters.swaps);
      counters.bytes += o.kind == kRead || o.kind == kWrite ? o.local.size() : 8;
    }
    return memory.all(operations);
  }
  // While another coroutine of the same client is at something: time passes, whatever the configuration says.
  auto wait_for_another(Duration pause) { return scheduler.sleep_for(std::max(pause, Duration::nanoseconds(100))); }
  // Sleeps: the first time for up to `first`, then longer each time.
  auto back_off(Duration& backoff, Duration first, Duration most) {
    if (backoff == Duration{}) backoff = first;
    return scheduler.sleep_for(draw_back_off(backoff, most, rng));
  }

  RemoteMemory& memory;
  Scheduler& scheduler;
  Rng rng;
  Counters counters;

 private:
  void count(std::uint64_t& kind, std::size_t bytes) {
    ++kind;
    ++counters.round_trips;
    counters.bytes += bytes;
  }
};

}  // namespace sluice::remote
