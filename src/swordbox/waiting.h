// Waiting lines: directions whose first held packet waits for something, in the order in which they came.
//
// Invariant:  a direction stands in at most one line. Lines stay where they are as long as somebody stands in them.
// Threads:    one owner. No allocation after construction.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "swordbox/flat_index.h"
#include "swordbox/memory_use.h"

namespace sluice::swordbox {

// A direction of a connection, as one number.
using DirectionToken = std::uint32_t;

// Directions that wait, first come first: a ring, each with its successor in `all`, whose entries have a `next`.
struct WaitingLine {
  DirectionToken last = kNone;  // its successor is the first

  bool empty() const { return last == kNone; }
  // REQUIRES: it stands in no line.
  template <class Waiting>
  void append(std::vector<Waiting>& all, DirectionToken direction) {
    all[direction].next = empty() ? direction : std::exchange(all[last].next, direction);
    last = direction;
  }
  // REQUIRES: it stands in this line.
  template <class Waiting>
  void remove(std::vector<Waiting>& all, DirectionToken direction) {
    DirectionToken earlier = last;
    while (all[earlier].next != direction) earlier = all[earlier].next;
    all[earlier].next = all[direction].next;
    if (last == direction) last = earlier == direction ? kNone : earlier;
  }
  // Empties the line into `ready`, in order.
  template <class Waiting>
  void wake(std::vector<Waiting>& all, std::vector<DirectionToken>& ready) {
    if (empty()) return;
    DirectionToken d = all[last].next;
    for (const DirectionToken end = std::exchange(last, kNone);;) {
      const bool is_last = d == end;
      ready.push_back(d);
      d = std::exchange(all[d], Waiting{}).next;
      if (is_last) return;
    }
  }
};

class WaitingRoom {
 public:
  explicit WaitingRoom(std::size_t directions) : waiting_(directions) {}

  // REQUIRES: it does not wait yet.
  void wait(WaitingLine& line, DirectionToken direction) {
    Waiting& waiting = waiting_[direction];
    SLUICE_CHECK(waiting.line == nullptr);
    waiting.line = &line;
    line.append(waiting_, direction);
  }
  // All of the line are ready.
  void wake(WaitingLine& line, std::vector<DirectionToken>& ready) { line.wake(waiting_, ready); }
  // Takes it out of the line where it stands, if any.
  void leave(DirectionToken direction) {
    Waiting& waiting = waiting_[direction];
    if (waiting.line == nullptr) return;
    waiting.line->remove(waiting_, direction);
    waiting = {};
  }
  std::size_t bytes() const { return bytes_of(waiting_); }

 private:
  struct Waiting {
    DirectionToken next = kNone;
    WaitingLine* line = nullptr;
  };
  std::vector<Waiting> waiting_;
};

}  // namespace sluice::swordbox
