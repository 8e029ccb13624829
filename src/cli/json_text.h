// JSON as commands print it: two blanks a level, and what of a name is no UTF-8 replaced, for names come from elsewhere.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::cli {

inline std::string json_text(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sluice::cli
