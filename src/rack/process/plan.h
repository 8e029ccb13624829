// Plan: which daemons make up a rack, and how each is started.
#pragma once

#include <string>
#include <vector>

#include "rack/process/launcher.h"
#include "rack/settings/config.h"

namespace sluice::rack {

// `program` is sluice's own path; `config`, if any, is passed on.
std::vector<DaemonSpec> plan(const std::string& program, const std::string& config, const RackSettings& settings);

}  // namespace sluice::rack
