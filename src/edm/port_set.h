// A set of ports, as bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "edm/types.h"

namespace sluice::edm {

class PortSet {
 public:
  bool has(std::uint32_t port) const { return (words_[port / 64] >> port % 64 & 1) != 0; }
  void add(std::uint32_t port) { words_[port / 64] |= std::uint64_t{1} << port % 64; }
  void remove(std::uint32_t port) { words_[port / 64] &= ~(std::uint64_t{1} << port % 64); }
  bool empty() const {
    std::uint64_t any = 0;
    for (const std::uint64_t word : words_) any |= word;
    return any == 0;
  }
  void add_all(const PortSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  friend PortSet both(const PortSet& a, const PortSet& b) {
    PortSet out;
    for (std::size_t i = 0; i < a.words_.size(); ++i) out.words_[i] = a.words_[i] & b.words_[i];
    return out;
  }
  // Calls visit(port) for each, the lowest first. What visit adds or removes may or may not be visited.
  template <class Visit>
  void each(Visit&& visit) const {
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        visit(i * 64 + static_cast<std::uint32_t>(std::countr_zero(word)));
    }
  }

 private:
  std::array<std::uint64_t, kMaxPorts / 64> words_{};
};

}  // namespace sluice::edm
