#include "ports/private_output.h"

#include <fcntl.h>
#include <sys/stat.h>

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

}  // namespace sluice::ports
