#include "remote/mapped.h"

#include <cstring>

namespace sluice::remote {
namespace {

bool is_aligned(const void* at, std::uintptr_t to = 8) {
  return (reinterpret_cast<std::uintptr_t>(at) & (to - 1)) == 0;
}

// Bytes before the first aligned word of eight bytes, or of four that are all there.
bool is_between(const void* at, std::size_t length) {
  return length > 0 && !is_aligned(at) && !(length >= 4 && is_aligned(at, 4));
}

// As a program's own stores: word by word, each a release (free on x86), so that whoever sees one sees those before it.
void copy_words_in(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  const auto half = [&] {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(to), load_le<std::uint32_t>(from), __ATOMIC_RELEASE);
    to += 4, from += 4, length -= 4;
  };
  for (; is_between(to, length); ++to, ++from, --length) __atomic_store_n(to, *from, __ATOMIC_RELEASE);
  if (length >= 4 && !is_aligned(to)) half();
  for (; length >= 8; to += 8, from += 8, length -= 8) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), load_le<std::uint64_t>(from), __ATOMIC_RELEASE);
  }
  if (length >= 4) half();
  for (; length > 0; ++to, ++from, --length) __atomic_store_n(to, *from, __ATOMIC_RELEASE);
}

// Copies as a READ does, whatever others store meanwhile: aligned words are never torn, and read in the order of their addresses.
void read_words(std::uint8_t* to, const std::uint8_t* from, std::size_t length) {
  const auto half = [&] {
    store_le(to, __atomic_load_n(reinterpret_cast<const std::uint32_t*>(from), __ATOMIC_ACQUIRE));
    to += 4, from += 4, length -= 4;
  };
  for (; is_between(from, length); ++to, ++from, --length) *to = __atomic_load_n(from, __ATOMIC_ACQUIRE);
  if (length >= 4 && !is_aligned(from)) half();
  for (; length >= 8; to += 8, from += 8, length -= 8) {
    store_le(to, __atomic_load_n(reinterpret_cast<const std::uint64_t*>(from), __ATOMIC_ACQUIRE));
  }
  if (length >= 4) half();
  for (; length > 0; ++to, ++from, --length) *to = __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

}  // namespace

void MappedMemory::submit(Operation& operation) {
  count(operation);
  complete(operation, execute(operation));
}

Status MappedMemory::execute(Operation& operation) const {
  const bool atomic = operation.is_atomic();
  const std::size_t length = atomic ? 8 : operation.local.size();
  std::uint8_t* const at = find(operation.remote, length);
  if (at == nullptr) return Status::kAccessDenied;
  if (atomic && !is_aligned(at)) return Status::kMisaligned;
  auto* const word = reinterpret_cast<std::uint64_t*>(at);
  switch (operation.kind) {
    case OpKind::kRead: read_words(operation.local.data(), at, length); break;
    case OpKind::kWrite: copy_words_in(at, operation.local.data(), length); break;
    case OpKind::kFetchAndAdd:
      operation.prior = __atomic_fetch_add(word, operation.swap_or_add, __ATOMIC_ACQ_REL);
      break;
    case OpKind::kCompareAndSwap:
      operation.prior = operation.compare;
      __atomic_compare_exchange_n(word, &operation.prior, operation.swap_or_add, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE);
      break;
  }
  return Status::kOk;
}

Status MappedMemory::read_now(RemoteAddress from, MutableBytes into) {
  const std::uint8_t* const at = find(from, into.size());
  if (at == nullptr) return Status::kAccessDenied;
  read_words(into.data(), at, into.size());
  return Status::kOk;
}

Status MappedMemory::write_now(RemoteAddress to, ByteView bytes) {
  std::uint8_t* const at = find(to, bytes.size());
  if (at == nullptr) return Status::kAccessDenied;
  copy_words_in(at, bytes.data(), bytes.size());
  return Status::kOk;
}

std::uint8_t* MappedMemory::find(const RemoteAddress& at, std::size_t length) const {
  for (const Range& range : ranges_) {
    if (range.start.node != at.node || range.start.key != at.key) continue;
    const std::uint64_t offset = at.address - range.start.address;
    if (at.address >= range.start.address && length <= range.bytes.size() && offset <= range.bytes.size() - length)
      return range.bytes.data() + offset;
  }
  return nullptr;
}

}  // namespace sluice::remote
