// History: which key's node lies at an address, learned from the WRITEs that pass. Hashed, bounded, forgetful.
//
// Life:       a WRITE of a node claims a place -> kWritten -> its CAS goes out: kOpen (a link that the box watches) or kTried (not watched) ->
//             kTail -> kPast. A WRITE of another key to the same address replaces it.
// Invariant:  entries that are kOpen or kTail are never replaced by a collision, so that their index stays good.
// Invariant:  only a node that is kWritten or kReady may be linked elsewhere than its client says: its CAS has not been out before.
// Limits:     a power of two of entries, four to a set, 32 bytes each.
// Source:     SwordBox §4.4.2 (hashed history array); matching by pointer is ours.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/prefetch.h"
#include "base/time.h"
#include "swordbox/connections.h"
#include "swordbox/flat_index.h"
#include "swordbox/memory_use.h"

namespace sluice::swordbox {

enum class NodeState : std::uint8_t {
  kEmpty,
  kWritten,  // its WRITE has passed; whether it has been acknowledged, its connection tells
  kReady,    // its WRITE has been acknowledged, its CAS is not out
  kTried,    // a CAS is out that may or may not link it; its connection and PSN stand in the entry
  kOpen,     // a link under watch
  kTail,
  kPast,  // linked, or nobody knows
};

// Region and address of a node in one word.
using Place = std::uint64_t;
inline constexpr std::uint64_t kAddressBits = (std::uint64_t{1} << 48) - 1;
constexpr Place place_of(std::uint16_t region, std::uint64_t address) { return std::uint64_t{region} << 48 | address; }
constexpr std::uint64_t address_of(Place place) { return place & kAddressBits; }
constexpr std::uint16_t region_of(Place place) { return static_cast<std::uint16_t>(place >> 48); }
inline constexpr Place kNoPlace = ~Place{0};  // of no region

class alignas(32) HistoryEntry {
 public:
  Place place = kNoPlace;
  std::uint64_t key = 0;
  std::uint64_t free_word = 0;  // its next word as it was written, unless has_key_place()
  std::uint16_t words = 0;      // length of the node in units of 4 bytes

  NodeState state() const { return static_cast<NodeState>(marks_ & 7); }
  void set_state(NodeState state) { marks_ = static_cast<std::uint8_t>((marks_ & ~7) | static_cast<int>(state)); }

  void become_empty() {
    place = kNoPlace;
    set_state(NodeState::kEmpty);
  }

  // The packet that the state waits for: the last one of the node's WRITE, or (kTried) its CAS.
  struct Awaited {
    ConnectionIndex connection = 0;  // its low 16 bits
    std::uint8_t end = 0;
    std::uint8_t generation = 0;  // low 4 bits, of the connection's place
    Psn psn{};
    friend bool operator==(const Awaited&, const Awaited&) = default;
  };
  Awaited awaited() const {
    return {connection_, static_cast<std::uint8_t>(marks_ >> 3 & 1), static_cast<std::uint8_t>(marks_ >> 4),
            Psn(load_be24(psn_.data()))};
  }
  void await(const Awaited& a) {
    connection_ = static_cast<std::uint16_t>(a.connection);
    marks_ = static_cast<std::uint8_t>((marks_ & 7) | (a.end & 1) << 3 | a.generation << 4);
    store_be24(psn_.data(), a.psn.value());
  }

  // kPast, and since when. Units of 2^26 ps, about 67 us.
  void become_past(Time now) {
    marks_ = static_cast<std::uint8_t>(static_cast<int>(NodeState::kPast) | (has_key_place() ? kHasKeyPlace : 0));
    const auto since = static_cast<std::uint64_t>(now.since_start().picoseconds()) >> kTimeShift;
    connection_ = static_cast<std::uint16_t>(since >> 24);
    store_be24(psn_.data(), static_cast<std::uint32_t>(since & Psn::kMask));
  }
  // REQUIRES: state() is kPast.
  Time past_since() const {
    const auto since = std::uint64_t{connection_} << 24 | load_be24(psn_.data());
    return Time::at(Duration::picoseconds(static_cast<std::int64_t>(since << kTimeShift)));
  }
  // Where among the tracked keys that of a kPast node stands. Its next word as it was written makes room for it: nobody asks for that any
  // more until the node is written anew.
  // REQUIRES: state() is kPast.
  void note_key_place(std::uint32_t key_place) {
    free_word = key_place;
    marks_ |= kHasKeyPlace;
  }
  bool has_key_place() const { return state() == NodeState::kPast && (marks_ & kHasKeyPlace) != 0; }
  // By now the place may be another key's. kNone: not noted.
  std::uint32_t key_place() const { return has_key_place() ? static_cast<std::uint32_t>(free_word) : kNone; }

 private:
  static constexpr int kTimeShift = 26;
  static constexpr int kHasKeyPlace = 8;  // among the marks of a kPast node

  std::uint16_t connection_ = 0;
  std::array<std::uint8_t, 3> psn_{};
  std::uint8_t marks_ = 0;  // state, end, generation; of kPast: kHasKeyPlace
};
static_assert(sizeof(HistoryEntry) == 32);

class History {
 public:
  explicit History(std::size_t entries)
      : entries_(std::bit_ceil(entries < kWays ? kWays : entries)), sets_mask_(entries_.size() / kWays - 1) {}

  // Index of the node at `place`, or kNone. Which of a set it is cannot be foreseen: all are looked at, without a question in between.
  std::uint32_t find(Place place) const {
    const std::size_t set = set_of(place);
    unsigned same = 0;
    for (std::size_t k = 0; k < kWays; ++k) same |= static_cast<unsigned>(entries_[set + k].place == place) << k;
    return same == 0 ? kNone : static_cast<std::uint32_t>(set) + static_cast<std::uint32_t>(std::countr_zero(same));
  }
  // An entry for `place`, which is not there: an empty one or one that may be forgotten. kNone: all are in use.
  std::uint32_t claim(Place place) {
    const std::size_t set = set_of(place);
    std::size_t victim = entries_.size();
    int least = 4;
    ++turn_;
    for (std::size_t k = 0; k < kWays; ++k) {
      const std::size_t i = set + (k + turn_) % kWays;
      const int worth = worth_of(entries_[i].state());
      if (worth < least) {
        least = worth;
        victim = i;
      }
    }
    if (victim == entries_.size()) return kNone;
    entries_[victim] = HistoryEntry{};
    entries_[victim].place = place;
    entries_[victim].set_state(NodeState::kPast);
    return static_cast<std::uint32_t>(victim);
  }
  HistoryEntry& operator[](std::uint32_t i) { return entries_[i]; }
  const HistoryEntry& operator[](std::uint32_t i) const { return entries_[i]; }
  void prefetch(Place place) const {
    const std::size_t set = set_of(place);
    sluice::prefetch(&entries_[set]);
    sluice::prefetch(&entries_[set + kWays / 2]);
  }
  std::size_t size() const { return entries_.size(); }
  std::size_t bytes() const { return bytes_of(entries_); }

 private:
  static constexpr std::size_t kWays = 4;

  // 4: never to be replaced.
  static int worth_of(NodeState state) {
    switch (state) {
      case NodeState::kEmpty: return 0;
      case NodeState::kPast: return 1;
      case NodeState::kTried: return 2;
      case NodeState::kWritten:
      case NodeState::kReady: return 3;
      case NodeState::kOpen:
      case NodeState::kTail: return 4;
    }
    return 4;
  }
  std::size_t set_of(Place place) const { return (mix(place) & sets_mask_) * kWays; }

  Table<HistoryEntry> entries_;
  std::size_t sets_mask_;
  std::uint32_t turn_ = 0;
};

}  // namespace sluice::swordbox
