#include "cli/json_text.h"

#include <nlohmann/json.hpp>

namespace sluice::cli {

std::string json_text(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sluice::cli
