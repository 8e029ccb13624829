// Solicitation window: the bytes that a node has asked others to send it and that have not come. One for all that a node solicits: the
// reads of its initiators and the writes to its target may share it.
//
// Turns:      who is refused room waits. The two sides take equal bytes of what both want: the one that has had more may not take what the
//             other waits for, else whoever comes first with each frame that arrives would have the window to itself for ever.
// Invariant:  asked-for bytes never pass the limit.
// Units:      bytes of frames.
// Source:     1RMA §4.3 as §6.1 tells of it (finite, reclaimed by time-outs); its size is ours: docs/design/onerma.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "onerma/message.h"
#include "onerma/types.h"

namespace sluice::onerma {

class SolicitationWindow {
 public:
  enum class Side : std::uint8_t { kReads, kPulls };

  explicit SolicitationWindow(std::uint32_t bytes) : limit_(bytes) {}

  // False: not now, and the side waits from now on for as many, until it takes some or says that it wants nothing. A yes alone ends no wait.
  bool has_room(Side side, std::uint32_t bytes) {
    const bool yes = bytes + kept_for_other(side) <= limit_ - used_;
    std::uint32_t& waiting = waiting_[index(side)];
    if (!yes || waiting != 0) waiting = bytes;
    return yes;
  }
  void want_nothing(Side side) {
    waiting_[index(side)] = 0;
    ahead_ = 0;
  }
  // REQUIRES: has_room(side, bytes), which has not changed since.
  void take(Side side, std::uint32_t bytes) {
    SLUICE_CHECK(bytes <= limit_ - used_);
    if (waiting_[1 - index(side)] != 0) {
      ahead_ += side == Side::kReads ? std::int64_t{bytes} : -std::int64_t{bytes};
      ahead_ = std::clamp(ahead_, -kMostAhead, kMostAhead);
    }
    waiting_[index(side)] = 0;
    used_ += bytes;
    most_ = used_ > most_ ? used_ : most_;
  }
  void give_back(std::uint32_t bytes) {
    SLUICE_CHECK(bytes <= used_);
    used_ -= bytes;
  }
  std::uint32_t limit() const { return limit_; }
  std::uint32_t used() const { return used_; }
  std::uint32_t most_used() const { return most_; }

 private:
  static constexpr std::int64_t kMostAhead = FrameWriter::frame_size(kMaxOp);

  static constexpr std::size_t index(Side side) { return static_cast<std::size_t>(side); }
  std::uint32_t kept_for_other(Side side) const {
    const bool ahead = side == Side::kReads ? ahead_ > 0 : ahead_ < 0;
    return ahead ? waiting_[1 - index(side)] : 0;
  }

  std::uint32_t limit_;
  std::uint32_t used_ = 0;
  std::uint32_t most_ = 0;
  std::uint32_t waiting_[2] = {0, 0};  // what each side has been refused and not had since
  std::int64_t ahead_ = 0;  // bytes that reads have taken while pulls waited, less those of pulls while reads did
};

}  // namespace sluice::onerma
