// Completions of one user of an initiator, in the order in which operations ended.
//
// Invariant:  as many operations may be open as the ring has places: a completion always finds one.
// Limits:     capacity is a power of two; nothing is allocated after construction.
// Source:     1RMA §4.5: {CommandSlotId, issue_delay, total_delay, status}.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/time.h"
#include "onerma/types.h"

namespace sluice::onerma {

struct Completion {
  std::uint64_t user = 0;  // the command's
  Duration issue_delay;    // until it was sent; for a write also what its data then waited here
  Duration total_delay;    // until it ended
  std::uint16_t length = 0;
  SlotId slot{};
  OpKind op{};
  Status status{};
  bool data_left = false;  // of a write or Rekey: without, nothing has happened or will

  // What network and target took.
  Duration remote_delay() const { return total_delay - issue_delay; }
};

class CompletionRing {
 public:
  explicit CompletionRing(std::uint32_t capacity) : ring_(capacity) {
    SLUICE_CHECK(capacity != 0 && (capacity & (capacity - 1)) == 0);
  }

  bool full() const { return open_ == ring_.size(); }
  bool empty() const { return pushed_ == popped_; }
  // Operations issued whose completions have not been taken.
  std::uint32_t open() const { return open_; }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(ring_.size()); }

  // The number under which the initiator knows its user; kNobody until it has issued something.
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  std::uint32_t user() const { return user_; }
  void set_user(std::uint32_t user) { user_ = user; }

  // Called by the initiator. REQUIRES: !full().
  void reserve() { ++open_; }
  void push(const Completion& completion) { ring_[pushed_++ & (ring_.size() - 1)] = completion; }
  // REQUIRES: !empty().
  Completion pop() {
    --open_;
    return ring_[popped_++ & (ring_.size() - 1)];
  }

 private:
  std::vector<Completion> ring_;
  std::uint64_t pushed_ = 0;
  std::uint64_t popped_ = 0;
  std::uint32_t open_ = 0;
  std::uint32_t user_ = kNobody;
};

}  // namespace sluice::onerma
