// EDM's hardware as numbers: links, hosts and the scheduler's clock. Where each comes from: experiments/hardware/edm_*.toml.
//
// Errors:  as hardware.h.
// Source:  EDM §3.2, §4.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace sluice::sim {

// What files of EDM's hardware may say: with these, whatever passes over it takes a time that can be told in picoseconds.
inline constexpr std::uint64_t kSlowestLinkMbps = 1;
inline constexpr Duration kShortestCycle = Duration::picoseconds(1);
inline constexpr Duration kLongestStage = Duration::milliseconds(1);

struct EdmHardware {
  std::string name;
  std::string text;  // the file
  std::uint64_t bits_per_second = 0;
  Duration propagation{};     // of a link, one way, with all that a block passes besides
  Duration host_latency{};    // from a grant's coming to the first block it lets go
  Duration switch_latency{};  // from a block's coming to its going, or to the scheduler's knowing of it
  Duration iteration{};       // three cycles of the scheduler
  // Stages that the published simulation does not tell apart.
  Duration request_latency{};  // from a message's coming to the first block of its /N/ or RREQ
  Duration notify_latency{};   // from its coming to the scheduler's knowing of it; 0: as switch_latency
  Duration answer_latency{};   // from an RREQ's coming to the answer's first block; 0: as host_latency
  Duration receive_latency{};  // from data's coming to their having been processed

  Duration block() const {
    return Duration::picoseconds(static_cast<std::int64_t>(64'000'000'000'000u / bits_per_second));
  }
  // Of a trace: half of what picoseconds can tell, the rest being for what its messages take.
  std::int64_t last_slot() const { return Duration::picoseconds(std::int64_t{1} << 62) / block(); }
  // Rounded to whole blocks.
  std::int64_t blocks(Duration duration) const { return (duration + block() / 2) / block(); }
  std::int64_t hop_blocks() const { return blocks(propagation); }
  std::int64_t host_blocks() const { return blocks(host_latency); }
  std::int64_t switch_blocks() const { return blocks(switch_latency); }
  std::int64_t request_blocks() const { return blocks(request_latency); }
  std::int64_t notify_blocks() const { return notify_latency == Duration{} ? switch_blocks() : blocks(notify_latency); }
  std::int64_t answer_blocks() const { return answer_latency == Duration{} ? host_blocks() : blocks(answer_latency); }
  std::int64_t receive_blocks() const { return blocks(receive_latency); }
};

Result<EdmHardware> load_edm_hardware(const std::string& path);
Result<EdmHardware> parse_edm_hardware(std::string text, const std::string& path);

}  // namespace sluice::sim
