#include "cli/result_format.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>

namespace sluice::cli {
namespace {

std::string cell(const nlohmann::ordered_json& value) {
  if (value.is_number_float())
    return std::isfinite(value.get<double>()) ? fmt::format("{:.3f}", value.get<double>()) : "";
  return quoted_if_needed(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string(2, c) : std::string(1, c);
  return out + '"';
}

std::string quoted_if_needed(const std::string& text) {
  return text.find_first_of(",\"\r\n") == std::string::npos ? text : quoted(text);
}

std::string csv_text(const std::vector<nlohmann::ordered_json>& rows) {
  std::vector<std::string> names;
  if (!rows.empty())
    for (const auto& named : rows.front().items()) names.push_back(quoted_if_needed(named.key()));
  std::string out = fmt::format("{}\n", fmt::join(names, ","));
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const auto& value : row) cells.push_back(cell(value));
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

void ResultFormat::declare(Arguments& command) {
  const Argument json = command.flag("--json", json_, "result as JSON");
  command.flag("--csv", csv_, "result as CSV").excludes(json);
}

}  // namespace sluice::cli
