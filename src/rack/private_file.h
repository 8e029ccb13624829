// Private files: what nobody else may read, there whole or not at all.
//
// Errors:  the file's name and why.
// Threads: any; two writers of one file: one of them wins.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::rack {

// With mode 0600; what was there is replaced at once, and stays so though the power fail when this returns.
Result<void> write_private_file(const std::string& path, std::string_view text);
Result<std::string> read_whole_file(const std::string& path);

}  // namespace sluice::rack
