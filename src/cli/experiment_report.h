// The report on experiments: a section a figure, the paper's points beside ours, the error of each, and that they are simulated.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice::cli {

// How near an experiment came to the paper's points of its y.
struct Nearness {
  std::size_t compared = 0;
  std::size_t near = 0;  // within what the experiment promises
  double worst_percent = 0;
};
Nearness nearness_of(const nlohmann::json& result);

// `results`: what to_json() made of each experiment. Gives what write_report() takes.
nlohmann::json experiments_report(const std::vector<nlohmann::json>& results);

}  // namespace sluice::cli
