// Hold buffer: whole frames that wait, in one queue for each direction of a connection.
//
// Life:       push -> front ... pop, in order; purge when the connection goes.
// Limits:     so many frames altogether; then push() refuses, and the caller drops: RC sends again.
// Threads:    one owner. No allocation after construction; memory is touched only when used.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "port/port.h"
#include "swordbox/connections.h"
#include "swordbox/memory_use.h"

namespace sluice::swordbox {

class HoldBuffer {
 public:
  explicit HoldBuffer(std::uint32_t frames)
      : bytes_(std::make_unique_for_overwrite<std::uint8_t[]>(std::size_t{frames} * port::kMaxFrame)), slots_(frames) {
    for (std::uint32_t i = frames; i-- > 0;) free_.push_back(i);
  }

  // Copies the frame to the end of the direction's queue. False: full.
  bool push(Direction& direction, const port::Frame& frame) {
    if (free_.empty()) return false;
    const std::uint32_t i = free_.back();
    free_.pop_back();
    std::memcpy(data(i), frame.data, frame.length);
    slots_[i] = {.length = frame.length, .next = i};
    if (direction.holds()) std::swap(slots_[i].next, slots_[direction.held_last].next);
    direction.held_last = i;
    return true;
  }
  // REQUIRES of both: something waits.
  port::Frame front(const Direction& direction) const {
    const std::uint32_t i = slots_[direction.held_last].next;
    return {data(i), slots_[i].length};
  }
  void pop(Direction& direction) {
    const std::uint32_t i = slots_[direction.held_last].next;
    if (i == direction.held_last) {
      direction.held_last = kNone;
    } else {
      slots_[direction.held_last].next = slots_[i].next;
    }
    free_.push_back(i);
  }
  // Returns how many waited.
  std::uint32_t purge(Direction& direction) {
    std::uint32_t purged = 0;
    for (; direction.holds(); ++purged) pop(direction);
    return purged;
  }
  std::size_t capacity() const { return slots_.size(); }
  std::size_t bytes() const { return slots_.size() * port::kMaxFrame + bytes_of(slots_) + bytes_of(free_); }
  std::size_t used() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    std::uint32_t length = 0;
    std::uint32_t next = kNone;  // behind the last comes the first
  };
  std::uint8_t* data(std::uint32_t i) const { return bytes_.get() + std::size_t{i} * port::kMaxFrame; }

  std::unique_ptr<std::uint8_t[]> bytes_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace sluice::swordbox
