#include "rack/private_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "rack/schema.h"

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

}  // namespace

Result<void> write_private_file(const std::string& path, std::string_view text) {
  const std::string draft = path + ".new";
  unlink(draft.c_str());
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(file) == 0;
  if (file >= 0) close(file);
  if (written && std::rename(draft.c_str(), path.c_str()) == 0 && sync_folder_of(path)) return {};
  const auto failed = fail(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  unlink(draft.c_str());
  return failed;
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
