// Memory of a simulated machine: zero, and costs nothing until it is touched.
//
// Threads:    one owner.
#pragma once

#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"

namespace sluice::sim {

class LazyMemory {
 public:
  explicit LazyMemory(std::size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    SLUICE_CHECK(at_ != MAP_FAILED);
  }
  ~LazyMemory() { munmap(at_, bytes_); }
  LazyMemory(const LazyMemory&) = delete;
  LazyMemory& operator=(const LazyMemory&) = delete;
  MutableBytes bytes() const { return {static_cast<std::uint8_t*>(at_), bytes_}; }

 private:
  std::size_t bytes_;
  void* at_;
};

}  // namespace sluice::sim
