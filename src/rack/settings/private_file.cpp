#include "rack/settings/private_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "rack/settings/schema.h"

namespace sluice::rack {
namespace {

// Makes what was renamed in this file's folder last.
bool sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int folder = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = folder >= 0 && fsync(folder) == 0;
  const int why = errno;
  if (folder >= 0) close(folder);
  errno = why;
  return synced;
}

// Where symbolic links lead, though nothing be there yet.
std::string followed(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;
  std::error_code error;
  fs::path place = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(place, error)); ++i)
    place = place.parent_path() / fs::read_symlink(place, error);
  return place.string();
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

Result<void> write_private_file(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  const auto failed = [&path] { return fail(fmt::format("cannot write {}: {}", path, std::strerror(errno))); };
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (error == std::errc::too_many_symbolic_link_levels) {
    errno = ELOOP;
    return failed();
  }
  // A pipe or a device is written to as it is.
  if (fs::exists(before) && !fs::is_regular_file(before)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (file < 0) return failed();
    const bool written = write_all(file, text);
    const auto why = failed();
    close(file);
    return written ? Result<void>() : why;
  }
  const std::string place = followed(path);
  std::string draft = place + ".XXXXXX.new";
  const int file = mkostemps(draft.data(), 4, O_CLOEXEC);
  if (file < 0) return failed();
  const bool written = write_all(file, text) && fsync(file) == 0;
  const auto why = failed();
  close(file);
  if (written && std::rename(draft.c_str(), place.c_str()) == 0 && sync_folder_of(place)) return {};
  const auto failure = written ? failed() : why;
  unlink(draft.c_str());
  return failure;
}

Result<std::string> read_whole_file(const std::string& path, std::size_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::array<char, 65'536> part{};
  while (in) {
    in.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > most) return fail(fmt::format("cannot read {}: it has more than {}", path, bytes_text(most)));
  }
  if (!in.eof()) return fail(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  return text;
}

}  // namespace sluice::rack
