#include "rack/settings/meant.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sluice::rack {

namespace {

constexpr std::size_t kMostMeant = 3;

}  // namespace

std::size_t letters_between(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

void Meant::offer(std::string_view word, std::string as) {
  if (word_.empty()) return;
  const std::size_t most = word_.size() < 4 ? 1 : 2;
  const bool begun = word_.size() > 1 && word.starts_with(word_);
  const std::size_t far = begun ? 1 : letters_between(word_, word);
  if (far <= most) found_.emplace_back(far, std::move(as));
}

std::string Meant::text() {
  std::ranges::stable_sort(found_, {}, &std::pair<std::size_t, std::string>::first);
  std::vector<std::string> words;
  for (const auto& [far, as] : found_) {
    if (far == found_.front().first && words.size() < kMostMeant) words.push_back(fmt::format("`{}`", as));
  }
  return words.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(words, " or "));
}

}  // namespace sluice::rack
