// What the parts of the switch share: port numbers, verdicts, counters.
//
// Source:  IEEE 802.1D §7 (learning and forwarding).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/strong.h"

namespace sluice::switching {

using PortNumber = Strong<struct PortNumberTag, std::uint16_t>;

// Every way for a frame to go nowhere.
enum class DropReason : std::uint8_t {
  kRunt,             // shorter than an Ethernet header
  kBadSource,        // a multicast address as the source, or the router's own
  kSamePort,         // the destination is where the frame came from
  kFloodLimit,       // more floods from this port than storm control lets through
  kQueueFull,        // the way out is full, and so is its queue
  kStage,            // the pipeline stage took it
  kRouterUnknown,    // routed: no route, or the neighbour's MAC is not known (yet)
  kRouterTtl,        // routed: its hops are used up
  kRouterMalformed,  // routed: no sound IPv4 packet
};
inline constexpr std::size_t kDropReasons = static_cast<std::size_t>(DropReason::kRouterMalformed) + 1;
std::string_view to_string(DropReason reason);

// Of one port, as the switch sees it: rx came in there, tx went out there. Drops count where the frame came in, except kQueueFull, which
// counts where it should have gone out.
struct PortStatistics {
  std::uint64_t rx_frames = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t tx_frames = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t flooded = 0;  // frames from here that went to all
  std::uint64_t queued = 0;   // frames to here that had to wait in the queue
  std::uint64_t ecn_marked = 0;
  std::array<std::uint64_t, kDropReasons> drops{};

  std::uint64_t& dropped(DropReason reason) { return drops[static_cast<std::size_t>(reason)]; }
  std::uint64_t dropped(DropReason reason) const { return drops[static_cast<std::size_t>(reason)]; }
  std::uint64_t all_drops() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t n : drops) sum += n;
    return sum;
  }
};

}  // namespace sluice::switching
