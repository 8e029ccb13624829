// How a measurement's result is printed: as a table for people or, with --json or --csv, for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/json_text.h"

namespace sluice::cli {

// As RFC 4180 has it; `quoted_if_needed` leaves alone what has no comma, quote or line end.
std::string quoted(const std::string& text);
std::string quoted_if_needed(const std::string& text);
// A line of names, then one of values for each row. All rows have the names of the first, in its order.
std::string csv_text(const std::vector<nlohmann::ordered_json>& rows);

// --json and --csv, of which one at most may be given.
class ResultFormat {
 public:
  void declare(Arguments& command);
  bool is_json() const { return json_; }

  // What is not asked for is not made: functions that return JSON, text, text.
  template <class Json, class Csv, class Table>
  std::string text(Json json, Csv csv, Table table) const {
    if (json_) return json_text(json()) + "\n";
    return csv_ ? csv() : table();
  }

 private:
  bool json_ = false;
  bool csv_ = false;
};

}  // namespace sluice::cli
