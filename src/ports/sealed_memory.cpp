#include "ports/sealed_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::ports {
namespace {

tl::unexpected<Error> system_failure(const char* what) {
  return fail(fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<Descriptor> make_sealed_memory(const char* name, std::size_t bytes) {
  Descriptor memfd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return system_failure("memfd_create");
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) return system_failure("ftruncate");
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return system_failure("seal");
  return memfd;
}

Result<void> check_sealed_memory(int memfd, std::size_t bytes) {
  struct stat status {};
  if (fstat(memfd, &status) != 0) return system_failure("fstat");
  if (status.st_size != static_cast<off_t>(bytes)) {
    return fail(fmt::format("shared memory: {} bytes where {} were announced", status.st_size, bytes));
  }
  const int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return fail("shared memory: not sealed against shrinking");
  return {};
}

Mapping::Mapping(Mapping&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)), length_(std::exchange(other.length_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(start_, other.start_);
  std::swap(length_, other.length_);
  return *this;
}

Mapping::~Mapping() {
  if (start_ != nullptr) munmap(start_, length_);
}

std::uint8_t* map_shared(void* where, std::size_t length, int fd, std::size_t offset) {
  const int flags = where == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED;
  void* start = mmap(where, length, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  return start == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(start);
}

}  // namespace sluice::ports
