// Where keys were last seen: their slots, and the words in them. A key has one place in it, shared with others.
//
// Use:        the slot's address is worth a READ of 8 bytes for ever; the word lets the object be read in the same round trip, but only while fresh
//             (Connection::fresh), and not when it was wrong too often lately: the adaptive part.
// Threads:    the client's.
// Source:     FUSEE (FAST 2023) §4.6.
#pragma once

#include <bit>
#include <vector>

#include "base/time.h"
#include "fusee/layout.h"

namespace sluice::fusee {

class SlotCache {
 public:
  struct Entry {
    Key key = 0;
    Place slot;
    Word word{};  // raw 0: nothing is known of the key
    std::uint64_t sequence = 0;
    Time seen;
    std::uint16_t misses = 0;  // of the last 16 times: was the word wrong?
  };

  // REQUIRES: a power of two, not 1.
  explicit SlotCache(std::size_t places)
      : entries_(places), shift_(64 - static_cast<int>(std::bit_width(places - 1))) {}

  // Nothing, or what is known of the key.
  Entry* find(Key key) {
    Entry& entry = at(key);
    return entry.word.raw != 0 && entry.key == key ? &entry : nullptr;
  }
  void put(Key key, Place slot, Word word, std::uint64_t sequence, Time seen) {
    Entry& entry = at(key);
    const bool same = entry.word.raw != 0 && entry.key == key;
    entry = {key, slot, word, sequence, seen, same ? entry.misses : std::uint16_t{0}};
  }
  void forget(Key key) {
    if (Entry* const entry = find(key)) entry->word = {};
  }
  static void note(Entry& entry, bool right) {
    entry.misses = static_cast<std::uint16_t>(entry.misses << 1 | (right ? 0 : 1));
  }
  static bool doubtful(const Entry& entry, std::uint32_t most) {
    return static_cast<std::uint32_t>(std::popcount(entry.misses)) > most;
  }

 private:
  Entry& at(Key key) { return entries_[key * 0x9E37'79B9'7F4A'7C15 >> shift_]; }
  std::vector<Entry> entries_;
  int shift_;
};

}  // namespace sluice::fusee
