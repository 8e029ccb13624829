// What the demo found, and the report that it makes of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/store_results.h"

namespace sluice::cli {

struct DemoFindings {
  StoreOutcome load;
  StoreOutcome run;
  StoreOutcome failure;           // the run during which a memory node dies
  std::int64_t killed_at_ms = 0;  // wall clock
  std::string killed;             // its name
  std::uint64_t read_back = 0;    // values read after it, all
  std::uint64_t read_back_right = 0;
  nlohmann::json processes;  // {name, pid, resident_bytes, cpu_ms}
  nlohmann::json verbs;      // as `sluice bench verbs --json` has it
  std::uint64_t replication = 2;

  // What was not as it should be, a line each; none: all was right.
  std::vector<std::string> complaints() const;
};

// Rows of {what, value}: the table that is printed and the report's first one.
std::vector<std::pair<std::string, std::string>> summary_of(const DemoFindings& findings);
nlohmann::json demo_report(const DemoFindings& findings);

}  // namespace sluice::cli
