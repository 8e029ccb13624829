// What a stage of the rack's switch (the box, Cowbird's engine, EDM's scheduler) tells of itself, and what it is told to change.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "rack/settings/run_directory.h"

namespace sluice::cli {

struct Stage {
  const char* path;     // "/v1/box"
  const char* what;     // "box"
  const char* rack_up;  // the options of `sluice rack up` that start one
};

// Its status, after `change` if there is one. Where the switch has no such stage the error says what starts one.
Result<nlohmann::json> ask_stage(const rack::RunDirectory& run, const Stage& stage,
                                 const std::optional<nlohmann::json>& change);

}  // namespace sluice::cli
