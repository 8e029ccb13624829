// The report on experiments: a section a figure, the paper's points beside ours, the error of each, and that they are simulated.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice::cli {

// `results`: what to_json() made of each experiment; of what is none, an exception. Gives what write_report() takes.
nlohmann::json experiments_report(const std::vector<nlohmann::json>& results);

}  // namespace sluice::cli
