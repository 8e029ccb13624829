#include "rack/clients/client_numbers.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>

namespace sluice::rack {
namespace {

std::string name_of(std::uint32_t store) { return fmt::format("fusee-{:08x}-", store); }

}  // namespace

ClientNumbers ClientNumbers::keep(const RunDirectory& run, std::uint32_t store, std::vector<std::uint32_t> numbers) {
  ClientNumbers kept;
  if (numbers.empty()) return kept;
  kept.path_ = fmt::format("{}/{}{}.clients", run.path(), name_of(store), numbers.front());
  kept.file_ = ports::Descriptor(open(kept.path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  // Whoever looks whether it is abandoned has it for a moment.
  if (!kept.file_ || flock(kept.file_.get(), LOCK_EX) != 0) return {};
  const std::string text = fmt::format("{}\n", fmt::join(numbers, " "));
  if (write(kept.file_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    kept.remove();
    return {};
  }
  kept.numbers_ = std::move(numbers);
  return kept;
}

std::vector<ClientNumbers> ClientNumbers::abandoned(const RunDirectory& run, std::uint32_t store) {
  std::vector<ClientNumbers> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run.path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(name_of(store)) || !name.ends_with(".clients")) continue;
    ClientNumbers one;
    one.path_ = entry.path().string();
    one.file_ = ports::Descriptor(open(one.path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!one.file_ || flock(one.file_.get(), LOCK_EX | LOCK_NB) != 0 || is_removed(one.file_.get())) continue;
    std::ifstream in(one.path_);
    for (std::uint32_t number = 0; in >> number;) one.numbers_.push_back(number);
    // Empty: one that is just being made.
    if (!one.numbers_.empty()) all.push_back(std::move(one));
  }
  return all;
}

void ClientNumbers::remove() {
  if (file_) unlink(path_.c_str());
  file_.close();
  numbers_.clear();
}

}  // namespace sluice::rack
