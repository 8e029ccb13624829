// One direction of an impaired port: takes frames in, draws what happens to each, gives them out when their time has come.
//
// Life:       slot -> write the frame -> push ... -> stamp(now) -> next(now) until none is due -> give_back.
// Invariant:  what happens to the n-th frame depends on seed, n and its length alone, not on time or on other draws; each
//             kind of impairment has a generator of its own.
// Limits:     kSlots frames at once, duplicates included; then slot() is nullptr, until grow().
// Threads:    one owner, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "base/time.h"
#include "port/impairment.h"
#include "port/port.h"

namespace sluice::port {

// What was done, in frames.
struct ImpairmentCounters {
  std::uint64_t frames = 0;  // that came in
  std::uint64_t dropped = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
};

class ImpairedLink {
 public:
  static constexpr std::size_t kSlots = 4096;

  ImpairedLink(const Impairment& impairment, const Rng& rng);

  // Frames that certainly find room, each with its duplicate.
  std::size_t room() const { return free_.size() / 2; }
  // Room for one frame of any length, or nullptr; the same until push().
  std::uint8_t* slot();
  // Room for twice as many frames as before. What next() gave out stays where it is.
  void grow();
  // The frame in slot() has this length. REQUIRES: slot() was not nullptr.
  void push(std::size_t length);
  // Everything pushed so far entered the link now.
  void stamp(Time now);
  // The next frame that is due, or nothing. Its bytes stay until give_back().
  std::optional<Frame> next(Time now);
  // Takes back all frames that next() gave out.
  void give_back();
  // Forgets all frames that wait, and says how many these were. What next() gave out stays until give_back().
  std::size_t drop_waiting();
  // The same, of those alone that have not entered the link yet: stamp().
  std::size_t drop_unstamped();
  // When the first of the waiting frames is due.
  Time next_deadline() const;

  const ImpairmentCounters& counters() const { return counters_; }

 private:
  using SlotIndex = std::uint32_t;
  struct Entry {
    SlotIndex slot = 0;
    std::uint32_t length = 0;
    std::uint32_t reach = 0;  // 0: leaves when due; else after as many later frames
    Time due;
  };
  struct Held {
    Entry entry;
    std::uint64_t after = 0;  // leaves once so many frames have left
  };

  std::uint8_t* bytes(SlotIndex slot) const { return slots_[slot / kSlots].get() + slot % kSlots * kMaxFrame; }
  Entry& queued(std::uint64_t count) { return queue_[count & (queue_.size() - 1)]; }
  void add_slots();
  std::optional<Entry> leave_held(Time now);
  std::optional<Entry> leave_queue(Time now);
  void corrupt(MutableBytes frame);

  Impairment impairment_;
  Rng drop_, duplicate_, reorder_, corrupt_;
  std::vector<std::unique_ptr<std::uint8_t[]>> slots_;  // kSlots each, untouched until used
  std::vector<SlotIndex> free_;                         // used last in, first out: few slots, warm ones
  std::vector<SlotIndex> lent_;
  std::vector<Entry> queue_;  // a power of two; a ring: taken_ <= stamped_ <= pushed_
  std::uint64_t pushed_ = 0;
  std::uint64_t stamped_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t left_ = 0;  // frames given out by next()
  std::vector<Held> held_;
  ImpairmentCounters counters_;
};

}  // namespace sluice::port
