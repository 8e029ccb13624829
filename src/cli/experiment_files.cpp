#include "cli/experiment_files.h"

#include <algorithm>

#include "cli/commands.h"

namespace sluice::cli {

namespace fs = std::filesystem;

namespace {

// Folders in which experiments are looked for, nearest first.
std::vector<fs::path> experiment_folders() {
  const fs::path program = fs::path(own_program()).parent_path();
  return {"experiments", program / "../experiments", program / "../share/sluice/experiments"};
}

}  // namespace

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

Result<fs::path> experiments_here() {
  for (const fs::path& folder : experiment_folders()) {
    if (!files_in(folder).empty()) return folder;
  }
  return fail("no folder experiments/ here; name a file, or run it where Sluice's sources are");
}

Result<sim::Hardware> load_hardware_named(const std::string& path, const std::string& name) {
  if (!path.empty()) return sim::load_hardware(path);
  const auto folder = experiments_here();
  if (!folder) return tl::unexpected(folder.error());
  return sim::load_hardware((*folder / "hardware" / (name + ".toml")).string());
}

}  // namespace sluice::cli
