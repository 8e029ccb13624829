#include "cli/box_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace sluice::cli {
namespace {

using nlohmann::json;

std::uint64_t count_in(const json& status, const std::string& name) {
  return status["counters"].value(name, std::uint64_t{0});
}

std::string counter_table(const json& status, const json* before, double seconds) {
  struct Row {
    std::string name;
    std::uint64_t value;
  };
  std::vector<Row> rows;
  for (const auto& [name, value] : status["counters"].items()) {
    const std::uint64_t had = before != nullptr ? count_in(*before, name) : 0;
    if (value.get<std::uint64_t>() > had) rows.push_back({name, value.get<std::uint64_t>() - had});
  }
  std::ranges::sort(rows, std::greater<>{}, &Row::value);
  std::string text = fmt::format("\n{:>12}  {:<22} {}\n", before != nullptr ? "A SECOND" : "COUNT", "WHAT", "MEANING");
  for (const Row& row : rows) {
    const double value = static_cast<double>(row.value) / (before != nullptr ? seconds : 1);
    text += fmt::format("{:>12.0f}  {:<22} {}\n", value, row.name, status["meanings"].value(row.name, ""));
  }
  return text;
}

std::string key_table(const json& status) {
  if (status["top_keys"].empty()) return {};
  std::string text = fmt::format("\n{:<20} {:>8} {:>10} {:>14} {:>14} {}\n", "HOTTEST KEYS", "HEAT", "APPENDS",
                                 "WRITES STEERED", "READS STEERED", "TAIL");
  for (const json& key : status["top_keys"]) {
    const auto tail = key["tail"].get<std::uint64_t>();
    text += fmt::format("{:<20} {:>8} {:>10} {:>14} {:>14} {}\n", key["key"].get<std::uint64_t>(),
                        key["heat"].get<std::uint64_t>(), key["links"].get<std::uint64_t>(),
                        key["writes_steered"].get<std::uint64_t>(), key["reads_steered"].get<std::uint64_t>(),
                        tail != 0 ? fmt::format("{:#x}", tail) : "not known");
  }
  return text;
}

std::string connection_table(const json& status) {
  if (status["top_connections"].empty()) return {};
  std::string text = fmt::format("\n{:<36} {:>10} {:>10} {:>10} {:>9} {:>9}\n", "BUSIEST CONNECTIONS", "REQUESTS",
                                 "RESPONSES", "CHANGED", "DELAYED", "DROPPED");
  for (const json& c : status["top_connections"]) {
    const std::string ends =
        fmt::format("{}/{:#x} > {}/{:#x}", c["from"].get<std::string>(), c["qpns"][0].get<std::uint32_t>(),
                    c["to"].get<std::string>(), c["qpns"][1].get<std::uint32_t>());
    text += fmt::format("{:<36} {:>10} {:>10} {:>10} {:>9} {:>9}\n", ends, c["requests"].get<std::uint64_t>(),
                        c["responses"].get<std::uint64_t>(), c["changed"].get<std::uint64_t>(),
                        c["delayed"].get<std::uint64_t>(), c["dropped"].get<std::uint64_t>());
  }
  return text;
}

}  // namespace

std::string box_line(const json& status) {
  std::string what = status["box"].get<std::string>();
  if (what.starts_with("clover") && !status["steering"].get<bool>())
    what += status["mirrored"].get<bool>() ? " (not steering: the store mirrors its nodes)"
                                           : " (not steering: no store yet)";
  if (what == "words") {
    return fmt::format(
        "box: words, {}; {} connections, {} of them shared, {} words tracked, {} operations under way, {} packets held",
        status["on"].get<bool>() ? "on" : "off", status["connections"].get<std::uint64_t>(),
        status["shared_connections"].get<std::uint64_t>(), status["tracked_words"].get<std::uint64_t>(),
        status["replaced_under_way"].get<std::uint64_t>(), status["held"].get<std::uint64_t>());
  }
  const std::string words =
      status["box"] == "clover+words"
          ? fmt::format(", {} words tracked on {} shared connections", status["tracked_words"].get<std::uint64_t>(),
                        status["shared_connections"].get<std::uint64_t>())
          : "";
  return fmt::format("box: {}, {}, {}; {} connections, {} keys tracked, {} links under way{}, {} packets held", what,
                     status["on"].get<bool>() ? "on" : "off", status["order"].get<std::string>(),
                     status["connections"].get<std::uint64_t>(), status["tracked_keys"].get<std::uint64_t>(),
                     status["open_links"].get<std::uint64_t>(), words, status["held"].get<std::uint64_t>());
}

std::string box_page(const json& status, const json* before, double seconds) {
  const auto asymmetric = status.value("asymmetric", "");
  const std::string warning =
      asymmetric.empty() ? "" : "asymmetric routing: " + asymmetric + "; atomics are not replaced\n";
  return box_line(status) + "\n" + warning + counter_table(status, before, seconds) + key_table(status) +
         connection_table(status);
}

}  // namespace sluice::cli
