// Private files: what nobody else may read, there whole or not at all.
//
// Errors:  the file's name and why.
// Threads: any; two writers of one file: one of them wins.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::rack {

// With mode 0600; what was there is replaced at once, and stays so though the power fail when this returns. Of a symbolic link its target
// is replaced; a pipe or a device is written to as it is.
Result<void> write_private_file(const std::string& path, std::string_view text);
// Any file. One with more than `most` bytes, as devices without an end are, is an error.
inline constexpr std::size_t kMostOfAFile = std::size_t{64} << 20;
Result<std::string> read_whole_file(const std::string& path, std::size_t most = kMostOfAFile);

}  // namespace sluice::rack
