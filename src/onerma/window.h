// Solicitation window: the bytes that a node has asked others to send it and that have not come. One for all that a node solicits: the
// reads of its initiators and the writes to its target may share it.
//
// Invariant:  asked-for bytes never pass the limit.
// Units:      bytes of frames.
// Source:     1RMA §4.3 as §6.1 tells of it (finite, reclaimed by time-outs); its size is ours: docs/design/onerma.md.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace sluice::onerma {

class SolicitationWindow {
 public:
  explicit SolicitationWindow(std::uint32_t bytes) : limit_(bytes) {}

  bool has_room(std::uint32_t bytes) const { return bytes <= limit_ - used_; }
  // REQUIRES: has_room(bytes).
  void take(std::uint32_t bytes) {
    SLUICE_CHECK(has_room(bytes));
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
  std::uint32_t limit_;
  std::uint32_t used_ = 0;
  std::uint32_t most_ = 0;
};

}  // namespace sluice::onerma
