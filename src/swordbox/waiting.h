// Waiting lines: directions whose first held packet waits for something, in the order in which they came.
//
// Invariant:  a direction stands in at most one line. Lines stay where they are as long as somebody stands in them.
// Threads:    one owner. No allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "swordbox/flat_index.h"
#include "swordbox/memory_use.h"

namespace sluice::swordbox {

// A direction of a connection, as one number.
using DirectionToken = std::uint32_t;

// Directions that wait, first come first.
struct WaitingLine {
  DirectionToken first = kNone;
  DirectionToken last = kNone;

  bool empty() const { return first == kNone; }
};

class WaitingRoom {
 public:
  explicit WaitingRoom(std::size_t directions) : waiting_(directions) {}

  // REQUIRES: it does not wait yet.
  void wait(WaitingLine& line, DirectionToken direction) {
    Waiting& waiting = waiting_[direction];
    SLUICE_CHECK(waiting.line == nullptr);
    waiting = {kNone, &line};
    (line.last == kNone ? line.first : waiting_[line.last].next) = direction;
    line.last = direction;
  }
  // All of the line are ready.
  void wake(WaitingLine& line, std::vector<DirectionToken>& ready) {
    for (DirectionToken d = line.first; d != kNone;) {
      const DirectionToken next = waiting_[d].next;
      waiting_[d] = {};
      ready.push_back(d);
      d = next;
    }
    line = {};
  }
  // Takes it out of the line where it stands, if any.
  void leave(DirectionToken direction) {
    Waiting& waiting = waiting_[direction];
    if (waiting.line == nullptr) return;
    WaitingLine& line = *waiting.line;
    DirectionToken earlier = kNone;
    for (DirectionToken d = line.first; d != direction; d = waiting_[d].next) earlier = d;
    (earlier == kNone ? line.first : waiting_[earlier].next) = waiting.next;
    if (line.last == direction) line.last = earlier;
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
