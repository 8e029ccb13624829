// What comes to a host over two mirrored networks: of each unit the copy that is first is taken, and the other one let pass.
//
// Copies:     are told by what they say, not by their place. Links that differ by a nanosecond have the two switches see requests of different hosts in
//             another order, and so grant in another order; EDM §3.3 takes for granted that they do not. What both bring is the same all the same: each
//             grants the chunks of a message as the other does. Of what either keeps in order (a pair's requests, a sender's data) the first copies
//             are in that order, too.
// Limits:     of what one network alone ever brings, a read that the other has refused, a later unit that says the same is taken with its second copy.
//             A network that is kMostBehind units behind the other counts as one that has stopped: late copies would be taken for new ones.
// Threads:    one owner. Allocates for each unit that one network alone has brought.
// Source:     EDM §3.3.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "edm/memory_blocks.h"

namespace sluice::edm {

class MirroredUnits {
 public:
  static constexpr std::uint64_t kMostBehind = 1'024;

  // A unit has come over network 0 or 1. True: it is the first copy.
  bool first(unsigned network, const Unit& unit) {
    const auto entry = balance_.try_emplace(digest_of(unit), 0).first;
    const std::int64_t step = network == 0 ? 1 : -1;
    const bool is_first = entry->second * step >= 0;
    entry->second += step;
    is_first ? ++alone_[network] : --alone_[1 - network];
    if (entry->second == 0) balance_.erase(entry);
    return is_first;
  }
  // Units that the other network alone has brought.
  std::uint64_t behind(unsigned network) const { return alone_.at(1 - network); }

 private:
  // FNV-1a, over words.
  static std::uint64_t digest_of(const Unit& unit) {
    std::uint64_t digest = 0xcbf29ce484222325u;
    const auto add = [&](std::uint64_t word) {
      digest = (digest ^ word) * 0x100000001b3u;
      digest ^= digest >> 32;
    };
    add(static_cast<std::uint64_t>(unit.kind) | static_cast<std::uint64_t>(unit.op) << 8 |
        std::uint64_t{unit.last} << 16 | std::uint64_t{unit.of_response} << 17 | std::uint64_t{unit.more} << 18);
    add(unit.port.value | std::uint64_t{unit.to.value} << 16 | std::uint64_t{unit.id.value} << 32);
    add(unit.bytes);
    add(unit.address);
    for (const std::uint8_t byte : unit.data) add(byte);
    return digest;
  }

  std::map<std::uint64_t, std::int64_t> balance_;  // by digest: what network 0 has brought more often than 1, or less
  std::array<std::uint64_t, 2> alone_{};
};

}  // namespace sluice::edm
