// The device's character file, for those who look whether it is there (UCX does): it has none, and is open to all.
//
// Source:  what UCX looks for: stat() must say S_ISCHR, access() yes. Everything else passes to the system, as glibc does it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "verbs/objects.h"

namespace {

bool is_ours(const char* path) {
  return path != nullptr && std::string_view(path) == "/dev/infiniband/uverbs0" &&
         std::getenv("SLUICE_PORT") != nullptr;
}

template <class Stat>
int describe(Stat* out) {
  *out = {};
  out->st_mode = S_IFCHR | 0666;
  out->st_nlink = 1;
  return 0;
}

}  // namespace

SLUICE_VERB int stat(const char* path, struct stat* out) noexcept {
  return is_ours(path) ? describe(out) : fstatat(AT_FDCWD, path, out, 0);
}
SLUICE_VERB int stat64(const char* path, struct stat64* out) noexcept {
  return is_ours(path) ? describe(out) : fstatat64(AT_FDCWD, path, out, 0);
}
// What programs call that were built with a C library before 2.33; the names are that library's.
// NOLINTBEGIN(bugprone-reserved-identifier)
SLUICE_VERB int __xstat(int, const char* path, struct stat* out) noexcept { return stat(path, out); }
SLUICE_VERB int __xstat64(int, const char* path, struct stat64* out) noexcept { return stat64(path, out); }
// NOLINTEND(bugprone-reserved-identifier)
SLUICE_VERB int access(const char* path, int mode) noexcept {
  return is_ours(path) ? 0 : faccessat(AT_FDCWD, path, mode, 0);
}
