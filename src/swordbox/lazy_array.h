// An array of zeroed entries that costs memory only where it is used, begins at a cache line, and never changes its size.
//
// Threads:    one owner. Limits: the entries are plain bytes for which all zeros are a value.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "base/check.h"
#include "swordbox/table.h"

namespace sluice::swordbox {

template <class Entry>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<Entry> && std::is_trivially_destructible_v<Entry>);

 public:
  explicit LazyArray(std::size_t entries) : entries_(nullptr, Unmap{entries * sizeof(Entry)}) {
    // Fresh pages are zeros, and are not there before they are used.
    void* const at = mmap(nullptr, entries_.get_deleter().mapped(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SLUICE_CHECK(at != MAP_FAILED);
    entries_.reset(static_cast<Entry*>(at));
    if (entries * sizeof(Entry) >= kLargePage) madvise(at, entries * sizeof(Entry), MADV_HUGEPAGE);
  }
  Entry& operator[](std::size_t i) const { return entries_.get()[i]; }
  Entry* data() const { return entries_.get(); }
  std::size_t bytes() const { return entries_.get_deleter().bytes; }

 private:
  struct Unmap {
    std::size_t bytes;
    std::size_t mapped() const { return bytes == 0 ? 1 : bytes; }
    void operator()(Entry* at) const { munmap(at, mapped()); }
  };
  std::unique_ptr<Entry, Unmap> entries_;
};

}  // namespace sluice::swordbox
