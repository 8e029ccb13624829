// Tracked words: 64-bit words of remote memory that clients change by atomics, with the value that the box has determined for each.
//
// Invariant:  `known` says that `value` is what the word will be when everything under way has been executed. A word with replaced operations
//             under way (`open`) is known; one with an operation that passes by itself (`pass`) is not.
// Invariant:  an operation passes by itself only while no replaced one is open, and the other way round.
// Limits:     a fixed number; the idle are evicted in turn. 32 bytes each, and 8 or more in the index.
// Source:     SwordBox §4.2 (state caching); docs/design/swordbox.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "swordbox/flat_index.h"
#include "swordbox/table.h"
#include "swordbox/waiting.h"

namespace sluice::swordbox {

inline constexpr std::uint32_t kWordBytes = 8;

using WordIndex = std::uint32_t;

struct alignas(32) Word {
  static constexpr std::uint16_t kMostOpen = 0xFFFF;
  static constexpr std::uint8_t kNoRegion = 0xFF;

  std::uint64_t address = 0;
  std::uint64_t value = 0;
  WaitingLine line;
  std::uint32_t pass = kNone;  // the newest that is under way; of an unused one: the next unused one
  std::uint16_t open = 0;
  std::uint8_t region = kNoRegion;  // kNoRegion: unused
  bool known = false;

  // Without waiting for anything.
  bool can_be_replaced() const { return known && pass == kNone && line.empty() && open != kMostOpen; }
  bool under_way() const { return open != 0 || pass != kNone; }
  bool idle() const { return !under_way() && line.empty(); }
};
static_assert(sizeof(Word) == 32);

class Words {
 public:
  explicit Words(std::uint32_t most) : words_(most), index_(most), pages_(kPages) {}
  Word& operator[](WordIndex i) { return words_[i]; }
  const Word& operator[](WordIndex i) const { return words_[i]; }
  std::size_t size() const { return size_; }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(words_.size()); }
  std::size_t bytes() const { return bytes_of(words_) + index_.bytes() + bytes_of(pages_); }

  // The next region, from 0 on. Its name is what a packet says of it: where the same name and address may mean words of several regions,
  // find_named() is told which.
  void add_region(std::uint64_t name) { names_.push_back(name); }
  // Another region takes its place. REQUIRES: no word of it is tracked.
  void rename_region(std::uint16_t region, std::uint64_t name) { names_[region] = name; }

  WordIndex find(std::uint16_t region, std::uint64_t address) const {
    return find_named(names_[region], address, [region](std::uint16_t r) { return r == region; });
  }
  // Of the region for which is_it(region) holds among those of this name.
  template <class IsIt>
  [[gnu::always_inline]] WordIndex find_named(std::uint64_t name, std::uint64_t address, IsIt&& is_it) const {
    return index_.find(hash(name, address),
                       [&](WordIndex i) { return words_[i].address == address && is_it(words_[i].region); });
  }
  // In steps, so that the memory is on its way between them: the place in the index is asked for, then the word that find_named() would
  // look at first (kNone: it would find none), then looked at.
  std::uint64_t ask(std::uint64_t name, std::uint64_t address) const {
    const std::uint64_t asked = hash(name, address);
    index_.prefetch(asked);
    return asked;
  }
  WordIndex guess(std::uint64_t asked) const {
    const WordIndex guess = index_.guess(asked);
    if (guess != kNone) sluice::prefetch(&words_[guess]);
    return guess;
  }
  template <class IsIt>
  bool is(WordIndex guess, std::uint64_t address, IsIt&& is_it) const {
    const Word& word = words_[guess];
    return word.address == address && word.region != Word::kNoRegion && is_it(word.region);
  }
  // Whether any word of the page that the address lies in may be tracked. Cheap, sometimes wrong in saying yes.
  bool may_be_on_page(std::uint16_t region, std::uint64_t address) const { return pages_[page(region, address)] != 0; }

  // REQUIRES: not there. kNone: no word is idle.
  WordIndex add(std::uint16_t region, std::uint64_t address, std::uint64_t& evicted) {
    if (size_ == words_.size()) {
      if (!evict()) return kNone;
      ++evicted;
    }
    const WordIndex i = free_ != kNone ? free_ : never_used_++;
    if (i == free_) free_ = words_[i].pass;
    ++size_;
    words_[i] = Word{};
    words_[i].address = address;
    words_[i].region = static_cast<std::uint8_t>(region);
    index_.insert(hash(names_[region], address), i);
    ++pages_[page(region, address)];
    return i;
  }
  // REQUIRES: tracked, and idle.
  void drop(WordIndex i) {
    Word& word = words_[i];
    index_.erase(hash(names_[word.region], word.address), i,
                 [this](WordIndex n) { return hash(names_[words_[n].region], words_[n].address); });
    --pages_[page(word.region, word.address)];
    word.region = Word::kNoRegion;
    word.pass = free_;
    free_ = i;
    --size_;
  }
  static constexpr std::uint64_t kPageBytes = 4096;

 private:
  static constexpr std::size_t kPages = 1u << 14;
  static constexpr std::uint32_t kTries = 64;

  static std::uint64_t hash(std::uint64_t name, std::uint64_t address) { return mix(address ^ name); }
  std::size_t page(std::uint16_t region, std::uint64_t address) const {
    return hash(names_[region], address / kPageBytes) & (kPages - 1);
  }
  bool evict() {
    for (std::uint32_t k = 0; k < kTries && k < capacity(); ++k) {
      hand_ = (hand_ + 1) % capacity();
      const Word& word = words_[hand_];
      if (word.region == Word::kNoRegion || !word.idle()) continue;
      drop(hand_);
      return true;
    }
    return false;
  }

  Table<Word> words_;
  FlatIndex index_;
  std::vector<std::uint64_t> names_;  // by region
  std::vector<std::uint32_t> pages_;
  WordIndex free_ = kNone;    // evicted, by Word::pass
  WordIndex never_used_ = 0;  // these and all behind them
  std::size_t size_ = 0;
  WordIndex hand_ = 0;
};

}  // namespace sluice::swordbox
