// What can happen to frames on one direction of a link, how often, and the text form in which users write it.
//
// Text:    "drop=1%,duplicate=0.5%,reorder=1%,corrupt=250ppm,delay=10us,seed=7". A key may begin with "tx." or "rx." to mean
//          one direction; without, both. What comes later overrides. "cut=5s" or "cut=10000": after that time from the first use, or so
//          many frames both ways together, nothing passes any more.
// Units:   probabilities in parts per million of frames.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace sluice::port {

// Of one direction.
struct Impairment {
  std::uint32_t drop = 0;       // the frame is gone
  std::uint32_t duplicate = 0;  // a second copy follows, up to kReorderReach frames later
  std::uint32_t reorder =
      0;  // the frame waits until 1 to kReorderReach later ones have passed, or kReorderHold is over
  std::uint32_t corrupt = 0;  // 1 to 8 bits anywhere in the frame are flipped
  Duration delay;             // of every frame

  friend bool operator==(const Impairment&, const Impairment&) = default;
  bool any() const { return (drop | duplicate | reorder | corrupt) != 0 || delay > Duration(); }
};

struct ImpairmentSpec {
  Impairment tx;
  Impairment rx;
  std::uint64_t seed = 1;
  Duration cut_after{};                // zero: never
  std::uint64_t cut_after_frames = 0;  // 0: never

  bool cuts() const { return cut_after > Duration() || cut_after_frames != 0; }
};

inline constexpr std::uint32_t kReorderReach = 8;
inline constexpr Duration kReorderHold = Duration::microseconds(50);

// The error names key and value and says what is allowed.
Result<ImpairmentSpec> parse_impairment(std::string_view text);
// "1%", "0.25%" or "250ppm" in parts per million; exact, in integers.
std::optional<std::uint32_t> parse_probability(std::string_view text);

}  // namespace sluice::port
