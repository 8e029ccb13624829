#include "ports/shm_region.h"

#include <fmt/core.h>
#include <sys/mman.h>

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

bool ShmRegion::is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kMinRing && bytes <= kMaxRing;
}

Result<ShmRegion> ShmRegion::create(std::size_t ring_bytes) {
  SLUICE_CHECK(is_ring_size(ring_bytes));
  auto memfd = make_sealed_memory("sluice-cable", file_size(ring_bytes));
  if (!memfd) return tl::unexpected(memfd.error());
  auto region = map(std::move(*memfd), ring_bytes);
  if (!region) return region;
  // Atomics come to life here, in memory that is zero already; the other side finds them living.
  for (const unsigned ring : {0u, 1u}) new (region->controls_.start() + ring * kControlBytes) RingControl;
  return region;
}

Result<ShmRegion> ShmRegion::adopt(Descriptor memfd, std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes))
    return fail(fmt::format("shared memory: a ring of {} bytes is not allowed", ring_bytes));
  if (auto good = check_sealed_memory(memfd.get(), file_size(ring_bytes)); !good) return tl::unexpected(good.error());
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
    return fail(fmt::format("shared memory: mmap: {}", std::strerror(errno)));
  }
  region.memfd_ = std::move(memfd);
  region.ring_bytes_ = ring_bytes;
  return region;
}

RingControl* ShmRegion::control(unsigned ring) const {
  return reinterpret_cast<RingControl*>(controls_.start() + ring * kControlBytes);
}

}  // namespace sluice::ports
