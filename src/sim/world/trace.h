// Trace hash: one number that two runs share only if every packet arrived everywhere at the same picosecond with the same bytes.
//
// Source:  FNV-1a's step on 64-bit words; a frame's ICRC stands for its contents.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/time.h"

namespace sluice::sim {

class Trace {
 public:
  void arrival(Time now, std::uint32_t node, ByteView frame) {
    ++packets_;
    mix(static_cast<std::uint64_t>(now.since_start().picoseconds()));
    std::uint64_t end = 0;
    if (frame.size() >= sizeof end) end = load_le<std::uint64_t>(frame.data() + frame.size() - sizeof end);
    mix(end ^ std::uint64_t{node} << 40 ^ std::uint64_t{frame.size()} << 20);
  }
  // For worlds without packets.
  void note(std::uint64_t word) { mix(word); }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t packets() const { return packets_; }

 private:
  void mix(std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x0000'0100'0000'01B3u;
    hash_ ^= hash_ >> 29;
  }
  std::uint64_t hash_ = 0xCBF2'9CE4'8422'2325u;
  std::uint64_t packets_ = 0;
};

}  // namespace sluice::sim
