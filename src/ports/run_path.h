// Where the programs of one user look for each other's sockets when nobody says otherwise.
#pragma once

#include <string>

namespace sluice::ports {

// $SLUICE_DIR if that is set; else $XDG_RUNTIME_DIR/sluice where that can be written to, or else /tmp/sluice-UID.
std::string default_run_directory();

}  // namespace sluice::ports
