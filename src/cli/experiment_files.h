// Where experiment and hardware files are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/world/hardware.h"

namespace sluice::cli {

// The experiment files of a folder, sorted.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);
// The nearest folder that has any: here, beside the program, or where it is installed.
Result<std::filesystem::path> experiments_here();
// `path`, or where that is empty hardware/NAME.toml of that folder.
Result<sim::Hardware> load_hardware_named(const std::string& path, const std::string& name);

}  // namespace sluice::cli
