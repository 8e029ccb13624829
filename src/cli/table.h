// Rows under headings, for people: each column as wide as it has to be, so that a narrow terminal is enough where it can be.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

class Table {
 public:
  // Columns whose heading begins with '>' have numbers: they end where the heading does.
  explicit Table(std::vector<std::string> headings);
  // As many cells as there are headings.
  void add(std::vector<std::string> cells);
  // But for the headings.
  bool empty() const { return rows_.size() == 1; }
  // A line each, without blanks at its end; a column with nothing in any row is left out, if there are rows.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the headings first
  std::vector<bool> numbers_;
};

}  // namespace sluice::cli
