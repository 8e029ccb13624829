// First in, first out, over elements of a vector, named by their index; any of them may leave out of turn.
//
// REQUIRES: Element has members `next` and `previous`, 16 bits each, for one list at a time; indexes below kNoIndex.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::onerma {

inline constexpr std::uint16_t kNoIndex = 0xFFFF;

template <class Element>
class IndexFifo {
 public:
  bool empty() const { return first_ == kNoIndex; }
  std::uint16_t first() const { return first_; }

  void push(std::vector<Element>& elements, std::uint16_t index) {
    Element& element = elements[index];
    element.next = kNoIndex;
    element.previous = last_;
    (last_ == kNoIndex ? first_ : elements[last_].next) = index;
    last_ = index;
  }
  void remove(std::vector<Element>& elements, std::uint16_t index) {
    const Element& element = elements[index];
    (element.previous == kNoIndex ? first_ : elements[element.previous].next) = element.next;
    (element.next == kNoIndex ? last_ : elements[element.next].previous) = element.previous;
  }

 private:
  std::uint16_t first_ = kNoIndex;
  std::uint16_t last_ = kNoIndex;
};

}  // namespace sluice::onerma
