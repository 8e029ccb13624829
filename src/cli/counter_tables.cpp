#include "cli/counter_tables.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "port/port.h"
#include "rc/counters.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

struct Line {
  std::string name;
  std::string_view meaning;
  std::uint64_t value;
};

template <class Counters>
void add_lines(std::vector<Line>& lines, const json& counted, const std::string& prefix) {
  Counters().for_each([&](const char* name, std::string_view meaning, std::uint64_t) {
    const auto value = counted.value<std::uint64_t>(name, 0);
    if (value != 0) lines.push_back({prefix + name, meaning, value});
  });
}

std::string table(const json& counted) {
  std::vector<Line> lines;
  add_lines<port::PortCounters>(lines, counted.at("port"), "port_");
  add_lines<rc::AdapterCounters>(lines, counted.at("nic"), "");
  std::string text =
      fmt::format("the NIC of {} (process {}, {}) has counted{}:\n", counted.at("program").get<std::string>(),
                  counted.at("process").get<std::uint64_t>(), counted.at("address").get<std::string>(),
                  counted.at("complete").get<bool>() ? "" : ", but for its last second");
  for (const Line& line : lines) text += fmt::format("  {:<22} {:>15}  {}\n", line.name, line.value, line.meaning);
  return lines.empty() ? text + "  nothing\n" : text;
}

}  // namespace

std::string counter_tables(const std::string& folder) {
  std::error_code error;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".new") files.insert(entry.path());  // of a program killed while it wrote
  }
  std::string text;
  for (const auto& path : files) {
    std::ifstream file(path);
    const json counted = json::parse(file, nullptr, false);
    if (!counted.is_discarded()) text += table(counted);
  }
  return text.empty() ? "no program has opened the device: nothing was counted\n" : text;
}

bool are_counters(const std::string& file) {
  std::ifstream in(file);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const json counted = json::parse(text, nullptr, false);
  return text.empty() || (counted.is_object() && counted.contains("nic") && counted.contains("complete"));
}

}  // namespace sluice::cli
