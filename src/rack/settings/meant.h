// Meant: which of the words there are somebody may have meant by one that there is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::rack {

// How many letters are to be put in, left out, replaced or swapped with their neighbour to make one word of the other.
std::size_t letters_between(std::string_view a, std::string_view b);

class Meant {
 public:
  // `word` outlives it.
  explicit Meant(std::string_view word) : word_(word) {}

  // `as`: how the message calls it.
  void offer(std::string_view word, std::string as);
  // "; did you mean `sluice box`?", the nearest first, or nothing.
  std::string text();

 private:
  std::string_view word_;
  std::vector<std::pair<std::size_t, std::string>> found_;
};

}  // namespace sluice::rack
