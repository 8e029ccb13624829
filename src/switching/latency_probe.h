// Latency probe: how long operations take between the switch and the memory behind it, from a sample of the packets that pass.
//
// A sample:   a request of one packet that wants an answer -> remembered when it comes in -> its answer, with the same PSN and the addresses
//             turned round, leaves to where the request came from -> the time between, as the switch's clock has it. What a stage
//             does in between (holding, steering, answering itself) is within.
// Invariant:  at most one sample is begun every kSpacing, kOpen are open at once; a newer one takes an older one's place.
// Errors:     an answer that never comes, or comes as part of a later one (a coalesced ACK), leaves no sample. A request that is sent again
//             counts from the first time.
// Threads:    the switch's owner. No allocation.
// Limits:     reliable connections. What the clock does not tell apart (a turn of the loop) is 0 us.
// Source:     IBTA vol. 1 §9.7.5.1 (which PSN answers which).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/time.h"
#include "port/port.h"
#include "wire/frame.h"

namespace sluice::switching {

// How many took how long; halves of octaves from 1 us to about 1 s.
struct LatencyCounts {
  static constexpr std::size_t kEdges = 41;
  // The upper edge of counts[i], in seconds; what is above the last edge is counted in counts[kEdges].
  static std::span<const double, kEdges> edges();

  std::array<std::uint64_t, kEdges + 1> counts{};
  std::uint64_t sum_ns = 0;  // a Duration would be full after weeks

  void add(Duration latency);
  std::uint64_t all() const;
};

class LatencyProbe {
 public:
  enum class Operation : std::uint8_t { kRead, kWrite, kAtomic, kSend };
  static constexpr std::size_t kOperations = 4;
  static std::string_view name_of(Operation operation);

  static constexpr Duration kSpacing = Duration::microseconds(20);
  static constexpr Duration kPause = Duration::microseconds(1);  // after a frame that begins no sample
  static constexpr std::size_t kOpen = 64;

  // A frame as it came, before anything is done to it.
  void comes(Time now, const port::Frame& frame) {
    if (now >= next_) begin(now, frame);
  }
  // A frame as it leaves.
  void leaves(Time now, ByteView frame) {
    if (open_ != 0) end(now, frame);
  }

  using Counts = std::array<LatencyCounts, kOperations>;  // by operation
  const Counts& counts() const { return counts_; }
  const LatencyCounts& of(Operation operation) const { return counts_[static_cast<std::size_t>(operation)]; }

 private:
  struct Sample {
    std::uint64_t key = 0;  // 0: free
    Time begin;
    Operation operation{};
  };
  static std::uint64_t key_of(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  Sample& place_of(std::uint64_t key) { return samples_[key % kOpen]; }
  void begin(Time now, const port::Frame& frame);
  void end(Time now, ByteView frame);

  Time next_;
  std::size_t open_ = 0;
  std::array<Sample, kOpen> samples_{};
  Counts counts_{};
};

}  // namespace sluice::switching
