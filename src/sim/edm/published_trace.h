// The messages of EDM's published traces, from the rules of the program that draws them.
//
// That program draws from the C library's rand(), seeded with 0, so its messages are the same whoever runs it: who sends how much to whom, and when. Which of
// them are reads its next step draws from chance; so does generate_trace().
//
// Chance:  as glibc draws it, in doubles as the program computes them. What log() rounds otherwise is 10^-10 of a slot.
// Source:  github.com/wegul/EDM-tracegen: its Poisson generator, `smooth_cdf`, 144 hosts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "sim/edm/edm_trace.h"

namespace sluice::sim {

inline constexpr std::uint32_t kPublishedNodes = 144;

// rand() after srand(seed) of the GNU C library, which is its random_r() with a state of our own.
class GlibcRand {
 public:
  static constexpr std::uint32_t kMost = RAND_MAX;

  explicit GlibcRand(std::uint32_t seed) { initstate_r(seed, state_, sizeof state_, &data_); }
  GlibcRand(const GlibcRand&) = delete;
  GlibcRand& operator=(const GlibcRand&) = delete;
  std::uint32_t next() {
    std::int32_t drawn = 0;
    random_r(&data_, &drawn);
    return static_cast<std::uint32_t>(drawn);
  }

 private:
  random_data data_{};
  char state_[128] = {};
};

// `spec.messages` of them, all of them writes, in the order of time. REQUIRES: spec.nodes == kPublishedNodes.
std::vector<TraceRow> published_messages(const TraceSpec& spec);

}  // namespace sluice::sim
