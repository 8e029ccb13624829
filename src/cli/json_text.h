// JSON as commands print it: two blanks a level, and what of a name is no UTF-8 replaced, for names come from elsewhere.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::cli {

std::string json_text(const nlohmann::json& json);

}  // namespace sluice::cli
