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
// Of all folders that have any: here, beside the program, where it is installed. Of files with one name, the nearest. An error: there are none.
Result<std::vector<std::filesystem::path>> all_experiments();
// The nearest hardware/NAME.toml of these folders.
Result<std::string> hardware_file(const std::string& name);
// The project's own folder of hardware files; empty: it is not here.
std::string own_hardware_folder();
// `path`, or where that is empty the nearest hardware/NAME.toml.
Result<sim::Hardware> load_hardware_named(const std::string& path, const std::string& name);

}  // namespace sluice::cli
