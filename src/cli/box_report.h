// The box's state as people read it.
//
// Source:   GET /v1/box of the switch (rack/switch/box_stage.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::cli {

// One line: "box: clover, on, pipelined; 12 connections, 300 keys, 2 links under way, 0 packets held".
std::string box_line(const nlohmann::json& status);
// The line, all counts that are not zero, keys, connections. With a state from before, counts are told a second and those that stand still
// are left out.
std::string box_page(const nlohmann::json& status, const nlohmann::json* before, double seconds);

}  // namespace sluice::cli
