// A file for what passes ports, which is everybody's data and keys: for its owner alone.
//
// Errors:   null, and errno says why.
#pragma once

#include <cstdio>
#include <string>

namespace sluice::ports {

// Made with mode 0600, or emptied and given that mode. A pipe or a device stays as it is.
std::FILE* open_private_output(const std::string& path);

}  // namespace sluice::ports
