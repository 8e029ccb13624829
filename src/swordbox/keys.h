// Tracked keys: what the box believes about the chain of each, and who waits for it.
//
// Invariant:  opened - committed is the number of links opened and not yet committed, some of which may have failed.
// Invariant:  while `exclusive` is set nobody links behind the newest link: it may yet be refused.
// Limits:     one cache line a key.
// Source:     docs/design/swordbox.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "swordbox/flat_index.h"
#include "swordbox/history.h"
#include "swordbox/waiting.h"

namespace sluice::swordbox {

// What a tracked key has got since it is tracked; for people.
struct KeyUse {
  std::uint32_t writes_steered = 0;
  std::uint32_t reads_steered = 0;
};

struct alignas(64) KeyState {
  std::uint64_t key = 0;
  Place tail = 0;               // 0: not known
  std::uint64_t free_word = 0;  // that stands in the tail's next word
  std::uint32_t tail_entry = kNone;
  std::uint32_t opened = 0;  // number of the newest link
  std::uint32_t committed = 0;
  std::uint32_t first_open = kNone;
  std::uint32_t last_open = kNone;
  WaitingLine requests;
  WaitingLine responses;
  KeyUse use;
  std::uint16_t generation = 0;       // of this place in the table
  std::uint16_t tail_words : 14 = 0;  // length of the tail in units of 4 bytes, kMostWords: or more
  bool exclusive : 1 = false;
  bool broken : 1 = false;  // the chain is not what the box took it for, and others depended on it: hands off

  static constexpr std::uint32_t kMostWords = 0x3FFF;

  void set_tail(const HistoryEntry& node, std::uint32_t entry) {
    tail = node.place;
    tail_entry = entry;
    tail_words = std::min<std::uint32_t>(node.words, kMostWords) & kMostWords;
  }
  // Whether the tail is known to have so many bytes.
  bool tail_has(std::uint32_t bytes) const { return tail_words != kMostWords && tail_words * 4u == bytes; }
  bool idle() const { return first_open == kNone && requests.empty() && responses.empty(); }
};
static_assert(sizeof(KeyState) == 64);

class Keys {
 public:
  explicit Keys(std::uint32_t most) : states_(most), tracked_(most), index_(most) {
    for (std::uint32_t i = most; i-- > 0;) free_.push_back(i);
  }
  std::uint32_t find(std::uint64_t key) const {
    return index_.find(mix(key), [&](std::uint32_t i) { return states_[i].key == key; });
  }
  // Whether this key stands at `place` and its tail is known.
  bool has_tail_at(std::uint32_t place, std::uint64_t key) const {
    return place < states_.size() && states_[place].key == key && states_[place].tail != 0;
  }
  void prefetch(std::uint64_t key) const { index_.prefetch(mix(key)); }
  // And, when that is here, the key's state.
  void prefetch_likely(std::uint64_t key) const {
    const std::uint32_t guess = index_.guess(mix(key));
    if (guess != kNone) prefetch_state(guess);
  }
  void prefetch_state(std::uint32_t i) const { sluice::prefetch(&states_[i]); }
  KeyState& operator[](std::uint32_t i) { return states_[i]; }
  const KeyState& operator[](std::uint32_t i) const { return states_[i]; }
  bool is_tracked(std::uint32_t i) const { return tracked_[i] != 0; }
  // The places of all keys, in no order that means anything.
  std::vector<std::uint32_t> places() const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < reach_; ++i) {
      if (is_tracked(i)) out.push_back(i);
    }
    return out;
  }
  // All keys ever added have places below this.
  std::uint32_t reach() const { return reach_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(states_.size() - free_.size()); }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(states_.size()); }
  std::size_t bytes() const { return bytes_of(states_) + bytes_of(tracked_) + index_.bytes() + bytes_of(free_); }

  // REQUIRES: not there, not full.
  std::uint32_t add(std::uint64_t key) {
    const std::uint32_t i = free_.back();
    free_.pop_back();
    const std::uint16_t generation = states_[i].generation;
    states_[i] = KeyState{};
    states_[i].key = key;
    states_[i].generation = generation;
    tracked_[i] = 1;
    reach_ = std::max(reach_, i + 1);
    index_.insert(mix(key), i);
    return i;
  }
  // REQUIRES: idle.
  void remove(std::uint32_t i) {
    index_.erase(mix(states_[i].key), i, [this](std::uint32_t n) { return mix(states_[n].key); });
    ++states_[i].generation;
    states_[i].tail = 0;
    tracked_[i] = 0;
    free_.push_back(i);
  }

 private:
  Table<KeyState> states_;
  std::vector<std::uint8_t> tracked_;  // by place: 1, or 0 where there is no key
  FlatIndex index_;
  std::vector<std::uint32_t> free_;
  std::uint32_t reach_ = 0;
};

}  // namespace sluice::swordbox
