// The messages of EDM's published traces, from the rules of the program that draws them.
//
// That program draws from the C library's rand(), seeded with 0, so its messages are the same whoever runs it: who sends how much to whom, and when. Which of
// them are reads its next step draws from chance; so does generate_trace().
//
// Chance:  as glibc draws it, in doubles as the program computes them. What log() rounds otherwise is 10^-10 of a slot.
// Source:  github.com/wegul/EDM-tracegen: its Poisson generator, `smooth_cdf`, 144 hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/edm/edm_trace.h"

namespace sluice::sim {

inline constexpr std::uint32_t kPublishedNodes = 144;

// rand() of glibc (its TYPE_3: an additive feedback generator of 31 words) after srand(seed).
class GlibcRand {
 public:
  static constexpr std::uint32_t kMost = 0x7FFF'FFFF;

  explicit GlibcRand(std::uint32_t seed);
  std::uint32_t next();

 private:
  static constexpr std::size_t kWords = 31;
  static constexpr std::size_t kLag = 3;
  std::uint32_t state_[kWords];
  std::size_t at_ = kLag;
};

// `spec.messages` of them, all of them writes, in the order of time. REQUIRES: spec.nodes == kPublishedNodes.
std::vector<TraceRow> published_messages(const TraceSpec& spec);

}  // namespace sluice::sim
