#include "ports/private_output.h"

#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice::ports {

std::FILE* open_private_output(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  struct stat status {};
  const bool others_may = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 0077) != 0;
  // Where that is refused the file is somebody else's, who may read it anyway.
  if (others_may) static_cast<void>(fchmod(descriptor, 0600));
  return fdopen(descriptor, "wb");
}

void WholePieces::cut(std::FILE* stream) const {
  const int why = errno;
  __fpurge(stream);
  struct stat status {};
  if (fstat(fileno(stream), &status) == 0 && S_ISREG(status.st_mode)) {
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const auto beyond = std::ranges::upper_bound(ends_, size);
    // Where that is refused, too, the file stays as the disk has left it.
    if (beyond != ends_.begin()) static_cast<void>(!ftruncate(fileno(stream), static_cast<off_t>(*(beyond - 1))));
  }
  errno = why;
}

}  // namespace sluice::ports
