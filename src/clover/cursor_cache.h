// A client's cursors: for each key the node that was last seen at the end of its chain, and when.
//
// Invariant:  a cursor is used only while fresh: until `confirmed` + the store's cursor lifetime.
// Limits:     fixed size; four cursors share a set, and the one confirmed longest ago gives way.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "clover/layout.h"

namespace sluice::clover {

struct Cursor {
  NodePointer node;
  Time confirmed;  // it was the tail at this time or later; or was named by the metadata server after it
};

class CursorCache {
 public:
  // For at least `entries` keys.
  explicit CursorCache(std::size_t entries) : sets_(std::bit_ceil(entries / kWays + 1)) {}

  // nullptr when there is none.
  const Cursor* find(Key key) const {
    for (const auto& way : set_of(key)) {
      if (way.cursor.node && way.key == key) return &way.cursor;
    }
    return nullptr;
  }
  // Unless a cursor is known that was confirmed later.
  void store(Key key, Cursor cursor) {
    auto& set = sets_[index(key)];
    Way* victim = &set[0];
    for (auto& way : set) {
      if (way.cursor.node && way.key == key) {
        if (way.cursor.confirmed <= cursor.confirmed) way.cursor = cursor;
        return;
      }
      if (!way.cursor.node) {
        victim = &way;
      } else if (victim->cursor.node && way.cursor.confirmed < victim->cursor.confirmed) {
        victim = &way;
      }
    }
    *victim = {key, cursor};
  }
  // Forgets the cursor if it still names `node`.
  void drop(Key key, NodePointer node) {
    for (auto& way : sets_[index(key)]) {
      if (way.key == key && way.cursor.node == node) way.cursor.node = {};
    }
  }
  void clear() { sets_.assign(sets_.size(), Set{}); }
  std::size_t capacity() const { return sets_.size() * kWays; }

 private:
  static constexpr std::size_t kWays = 4;
  struct Way {
    Key key = 0;
    Cursor cursor;
  };
  using Set = std::array<Way, kWays>;
  std::size_t index(Key key) const { return key_hash(key) & (sets_.size() - 1); }
  const Set& set_of(Key key) const { return sets_[index(key)]; }

  std::vector<Set> sets_;
};

}  // namespace sluice::clover
