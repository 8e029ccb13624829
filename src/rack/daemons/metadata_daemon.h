// Clover's metadata server as a process.
//
// Life:    waits for its memory nodes, spreads volumes over them, serves by messages until SIGTERM or SIGINT.
#pragma once

#include "base/result.h"
#include "rack/settings/config.h"

namespace sluice::rack {

Result<void> run_metadata(const std::string& directory, const MetadataSettings& settings);

}  // namespace sluice::rack
