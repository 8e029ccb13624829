// The memory node as a process.
#pragma once

#include "base/result.h"
#include "rack/settings/config.h"

namespace sluice::rack {

// Until SIGTERM or SIGINT.
Result<void> run_memory(const std::string& directory, const MemorySettings& settings);

}  // namespace sluice::rack
