#include "cli/experiment_files.h"

#include <fmt/core.h>

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

Result<std::vector<fs::path>> all_experiments() {
  std::vector<fs::path> all;
  for (const fs::path& folder : experiment_folders()) {
    for (fs::path& file : files_in(folder)) {
      const auto has_name = [&](const fs::path& other) { return other.stem() == file.stem(); };
      if (std::ranges::none_of(all, has_name)) all.push_back(std::move(file));
    }
  }
  if (all.empty()) return fail("no folder experiments/ here; name a file, or run it where Sluice's sources are");
  return all;
}

Result<std::string> hardware_file(const std::string& name) {
  const fs::path file = fs::path("hardware") / (name + ".toml");
  for (const fs::path& folder : experiment_folders()) {
    if (std::error_code none; fs::is_regular_file(folder / file, none)) return (folder / file).string();
  }
  return fail(fmt::format("no experiments/{} here; name a file, or run it where Sluice's sources are", file.string()));
}

std::string own_hardware_folder() {
  const auto file = hardware_file("connectx5");
  return file ? fs::path(*file).parent_path().string() : std::string();
}

Result<sim::Hardware> load_hardware_named(const std::string& path, const std::string& name) {
  if (!path.empty()) return sim::load_hardware(path);
  const auto file = hardware_file(name);
  if (!file) return tl::unexpected(file.error());
  return sim::load_hardware(*file);
}

}  // namespace sluice::cli
