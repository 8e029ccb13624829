#include "cli/workloads.h"

#include <fmt/format.h>

namespace sluice::cli {

std::string workload_names(const workload::StoreAbilities& abilities) {
  std::string names;
  for (const char* const letter : {"A", "B", "C", "D", "E", "F"}) {
    const auto mix = workload::Mix::parse(letter);
    if (mix && mix->impossible_for(abilities).empty()) names += fmt::format("{}, ", letter);
  }
  return names + "or w0 to w100 for a percentage of writes";
}

Result<workload::Mix> parse_workload(const std::string& name, const workload::StoreAbilities& abilities) {
  auto mix = workload::Mix::parse(name);
  const std::string_view impossible = mix ? mix->impossible_for(abilities) : "";
  if (mix && impossible.empty()) return mix;
  return fail(fmt::format("--workload = \"{}\": must be {}{}", name, workload_names(abilities),
                          impossible.empty() ? "" : fmt::format("; it has {}", impossible)));
}

}  // namespace sluice::cli
