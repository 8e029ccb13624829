// How the issuing side touches its block: words and bytes, and which of the stores may become visible before which.
//
// Order:      a store() or copy_in() may be seen before earlier ones, a publish() only after all that precede it. load() acquires.
//             On x86 all of them are plain moves. ring_explorer_test.cpp has another one, with which every order is tried.
// Units:      offsets in bytes from the start of the channel; words are 8-byte aligned.
// Source:     Cowbird §4.3.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sluice::cowbird {

class PlainWords {
 public:
  explicit PlainWords(std::uint8_t* block) : block_(block) {}

  std::uint64_t load(std::size_t at) const { return word(at).load(std::memory_order_acquire); }
  void store(std::size_t at, std::uint64_t value) { word(at).store(value, std::memory_order_relaxed); }
  void publish(std::size_t at, std::uint64_t value) { word(at).store(value, std::memory_order_release); }
  void copy_in(std::size_t at, const void* from, std::size_t length) { copy_small(block_ + at, from, length); }
  void copy_out(void* to, std::size_t at, std::size_t length) const { copy_small(to, block_ + at, length); }

  // Makes the line this core's by storing what stands there. REQUIRES: nobody else writes the word.
  void own(std::size_t at) { store(at, word(at).load(std::memory_order_relaxed)); }
  // Asks for a line that will be read soon; it may lie beyond the block.
  void look_soon(std::size_t at) const { __builtin_prefetch(block_ + at); }

 private:
  std::atomic_ref<std::uint64_t> word(std::size_t at) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(block_ + at));
  }
  // The sizes that programs really use become single moves.
  static void copy_small(void* to, const void* from, std::size_t length) {
    switch (length) {
      case 8: std::memcpy(to, from, 8); return;
      case 16: std::memcpy(to, from, 16); return;
      case 64: std::memcpy(to, from, 64); return;
      default: std::memcpy(to, from, length);
    }
  }

  std::uint8_t* block_;
};

}  // namespace sluice::cowbird
