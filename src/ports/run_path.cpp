#include "ports/run_path.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

namespace sluice::ports {

std::string default_run_directory() {
  const char* told = std::getenv("SLUICE_DIR");
  if (told != nullptr && *told != '\0') return told;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/' && access(runtime, W_OK) == 0) return std::string(runtime) + "/sluice";
  return fmt::format("/tmp/sluice-{}", getuid());
}

}  // namespace sluice::ports
