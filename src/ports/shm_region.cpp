#include "ports/shm_region.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace sluice::ports {
namespace {

constexpr std::size_t kControlBytes = 4096;
static_assert(sizeof(RingControl) <= kControlBytes);

std::size_t file_size(std::size_t ring_bytes) { return 2 * (kControlBytes + ring_bytes); }

tl::unexpected<Error> system_failure(const char* what) {
  return fail(fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

std::uint8_t* map_shared(void* where, std::size_t length, int fd, std::size_t offset) {
  const int flags = where == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED;
  void* start = mmap(where, length, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  return start == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(start);
}

// The same `length` bytes of the file twice in a row.
Mapping map_twice(int fd, std::size_t length, std::size_t offset) {
  void* start = mmap(nullptr, 2 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return {};
  Mapping mapping(static_cast<std::uint8_t*>(start), 2 * length);
  if (map_shared(mapping.start(), length, fd, offset) == nullptr) return {};
  if (map_shared(mapping.start() + length, length, fd, offset) == nullptr) return {};
  return mapping;
}

}  // namespace

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

bool ShmRegion::is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kMinRing && bytes <= kMaxRing;
}

Result<ShmRegion> ShmRegion::create(std::size_t ring_bytes) {
  SLUICE_CHECK(is_ring_size(ring_bytes));
  Descriptor memfd(memfd_create("sluice-cable", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return system_failure("memfd_create");
  if (ftruncate(memfd.get(), static_cast<off_t>(file_size(ring_bytes))) != 0) return system_failure("ftruncate");
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return system_failure("seal");
  auto region = map(std::move(memfd), ring_bytes);
  if (!region) return region;
  // Atomics come to life here, in memory that is zero already; the other side finds them living.
  for (const unsigned ring : {0u, 1u}) new (region->controls_.start() + ring * kControlBytes) RingControl;
  return region;
}

Result<ShmRegion> ShmRegion::adopt(Descriptor memfd, std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes))
    return fail(fmt::format("shared memory: a ring of {} bytes is not allowed", ring_bytes));
  struct stat status {};
  if (fstat(memfd.get(), &status) != 0) return system_failure("fstat");
  if (status.st_size != static_cast<off_t>(file_size(ring_bytes))) return fail("shared memory: wrong size");
  const int seals = fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return fail("shared memory: not sealed against shrinking");
  return map(std::move(memfd), ring_bytes);
}

Result<ShmRegion> ShmRegion::map(Descriptor memfd, std::size_t ring_bytes) {
  ShmRegion region;
  if (std::uint8_t* start = map_shared(nullptr, 2 * kControlBytes, memfd.get(), 0)) {
    region.controls_ = Mapping(start, 2 * kControlBytes);
  }
  for (std::size_t ring = 0; ring < 2; ++ring) {
    region.rings_[ring] = map_twice(memfd.get(), ring_bytes, 2 * kControlBytes + ring * ring_bytes);
  }
  if (region.controls_.start() == nullptr || region.rings_[0].start() == nullptr ||
      region.rings_[1].start() == nullptr) {
    return system_failure("mmap");
  }
  region.memfd_ = std::move(memfd);
  region.ring_bytes_ = ring_bytes;
  return region;
}

RingControl* ShmRegion::control(unsigned ring) const {
  return reinterpret_cast<RingControl*>(controls_.start() + ring * kControlBytes);
}

}  // namespace sluice::ports
