// Error log: what an engine has written of the requests that it reports as failed, as it stands in the application's memory (layout.h).
//
// Life:     bytes() are read from the block -> adopt() -> add() ... and bytes() written back, before the progress line that covers them.
// Limits:   kErrors that the application has not taken.
// Threads:  one owner.
#pragma once

#include <array>

#include "base/bytes.h"
#include "cowbird/layout.h"
#include "cowbird/request_id.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

class ErrorLog {
 public:
  MutableBytes bytes() { return bytes_; }
  // What the engine before this one has logged counts as taken until the application says otherwise.
  void adopt() { logged_ = taken_ = load_le<std::uint64_t>(bytes_.data()); }
  void set_taken(std::uint64_t taken) { taken_ = taken; }

  std::uint64_t logged() const { return logged_; }
  bool has_room() const { return logged_ - taken_ < kErrors; }
  // False: there is no room.
  bool add(const Entry& entry, Status status) {
    if (!has_room()) return false;
    std::uint8_t* const slot = bytes_.data() + kErrorBytes * (1 + logged_ % kErrors);
    const RequestId id(entry.type, entry.region, entry.sequence);
    store_le(slot, static_cast<std::uint64_t>(id.value()));
    store_le(slot + 8, static_cast<std::uint64_t>(status));
    store_le(bytes_.data(), ++logged_);
    return true;
  }

 private:
  std::array<std::uint8_t, kErrorBlock> bytes_{};
  std::uint64_t logged_ = 0;
  std::uint64_t taken_ = 0;  // by the application, as last seen
};

}  // namespace sluice::cowbird
