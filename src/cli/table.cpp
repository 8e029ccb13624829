#include "cli/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice::cli {
namespace {

// In letters, of UTF-8.
std::size_t width_of(const std::string& cell) {
  return static_cast<std::size_t>(
      std::ranges::count_if(cell, [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

}  // namespace

Table::Table(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    numbers_.push_back(heading.starts_with('>'));
    if (numbers_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void Table::add(std::vector<std::string> cells) {
  SLUICE_CHECK(cells.size() == numbers_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(numbers_.size(), 0);  // 0: left out
  for (std::size_t column = 0; column < widths.size(); ++column) {
    for (std::size_t row = 1; row < rows_.size(); ++row)
      widths[column] = std::max(widths[column], width_of(rows_[row][column]));
    if (widths[column] != 0 || empty()) widths[column] = std::max(widths[column], width_of(rows_[0][column]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t column = 0; column < widths.size(); ++column) {
      if (widths[column] == 0) continue;
      const std::string blanks(widths[column] - width_of(row[column]), ' ');
      line += (line.empty() ? "" : " ") + (numbers_[column] ? blanks + row[column] : row[column] + blanks);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

}  // namespace sluice::cli
