// The switch as a process: a learning switch over every port that connects, and the rack's directory.
//
// Life:       run() until SIGTERM or SIGINT.
// Threads:    one turns the switch; the directory has its own.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "rack/settings/config.h"

namespace sluice::rack {

// `ready` is called when ports may connect.
Result<void> run_switch(const std::string& directory, const SwitchSettings& settings,
                        const std::function<void()>& ready);

}  // namespace sluice::rack
