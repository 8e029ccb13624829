// The deadlines of many queue pairs, soonest first: a binary heap in which each stands at most once.
//
// Invariant:  a place stands in the heap if and only if its time is not never(); its owner removes it before it goes away.
// Cost:       logarithmic; nothing at all for who only asks whether a deadline came nearer.
// Limits:     reserve() says how many will be in it; set() never allocates then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"
#include "rc/work.h"

namespace sluice::rc {

class DeadlineHeap {
 public:
  // What an owner keeps.
  struct Place {
    Qpn qpn{};
    Time when = Time::never();
    std::uint32_t index = 0;
  };

  void reserve(std::size_t places) {
    if (heap_.capacity() < places) heap_.reserve(2 * places);
  }
  Time next() const { return heap_.empty() ? Time::never() : heap_.front()->when; }
  // REQUIRES: next() is not never().
  Place& first() { return *heap_.front(); }

  void set(Place& place, Time when) {
    if (when == Time::never()) return remove(place);
    if (place.when == Time::never()) {
      place.index = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back(&place);
    }
    place.when = when;
    sink(rise(place.index));
  }
  void remove(Place& place) {
    if (place.when == Time::never()) return;
    place.when = Time::never();
    const std::uint32_t hole = place.index;
    Place* const last = heap_.back();
    heap_.pop_back();
    if (last == &place) return;
    put(hole, last);
    sink(rise(hole));
  }

 private:
  void put(std::uint32_t index, Place* place) {
    heap_[index] = place;
    place->index = index;
  }
  void swap(std::uint32_t a, std::uint32_t b) {
    Place* const at_a = heap_[a];
    put(a, heap_[b]);
    put(b, at_a);
  }
  std::uint32_t rise(std::uint32_t index) {
    while (index != 0) {
      const std::uint32_t parent = (index - 1) / 2;
      if (heap_[parent]->when <= heap_[index]->when) break;
      swap(index, parent);
      index = parent;
    }
    return index;
  }
  void sink(std::uint32_t index) {
    for (;;) {
      std::uint32_t least = index;
      for (std::uint32_t child = 2 * index + 1; child <= 2 * index + 2; ++child) {
        if (child < heap_.size() && heap_[child]->when < heap_[least]->when) least = child;
      }
      if (least == index) return;
      swap(index, least);
      index = least;
    }
  }

  std::vector<Place*> heap_;
};

}  // namespace sluice::rc
