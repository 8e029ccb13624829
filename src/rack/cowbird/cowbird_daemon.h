// Cowbird's spot engine as a process.
#pragma once

#include "base/result.h"
#include "rack/settings/config.h"

namespace sluice::rack {

// Until SIGTERM or SIGINT.
Result<void> run_cowbird_engine(const std::string& directory, const CowbirdSettings& settings);

}  // namespace sluice::rack
