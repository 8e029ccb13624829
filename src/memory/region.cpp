#include "memory/region.h"

#include <fmt/format.h>

namespace sluice::memory {

std::string_view to_string(AccessFault fault) {
  switch (fault) {
    case AccessFault::kNone: return "none";
    case AccessFault::kUnknownKey: return "unknown key";
    case AccessFault::kWrongDomain: return "key of another protection domain";
    case AccessFault::kOutOfBounds: return "out of bounds";
    case AccessFault::kRightMissing: return "right not granted";
  }
  return "?";
}

RegionTable::RegionTable(Rng rng) : rng_(rng) {}

RegionTable::~RegionTable() {
  for (auto& chunk : chunks_) delete chunk.load();
}

RegionTable::Entry* RegionTable::entry_of(Key key) const {
  const std::uint32_t slot = key.value >> 8;
  if (slot >= kMaxRegions) return nullptr;
  Chunk* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
  if (chunk == nullptr) return nullptr;
  return &(*chunk)[slot % kChunk];
}

Result<Key> RegionTable::add(const RegionAttributes& a) {
  if (a.address + a.bytes.size() < a.address) {
    return fail(fmt::format("region of {} bytes at address {:#x} passes the end of the address space", a.bytes.size(),
                            a.address));
  }
  if ((a.access.bits & (Access::kRemoteWrite | Access::kRemoteAtomic)) != 0 && !a.access.allows(kLocalWrite)) {
    return fail("remote write and remote atomic need local write as well");
  }
  std::uint32_t slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < kMaxRegions) {
    slot = used_++;
  } else {
    return fail(fmt::format("no more than {} regions at once", kMaxRegions - 1));
  }
  auto& chunk = chunks_[slot / kChunk];
  if (chunk.load() == nullptr) chunk.store(new Chunk, std::memory_order_release);
  Entry& entry = (*chunk.load())[slot % kChunk];
  entry.pd = a.pd;
  entry.access = a.access;
  entry.kind = a.kind;
  entry.address = a.address;
  entry.length = a.bytes.size();
  entry.host = a.bytes.data();
  const Key key{slot << 8 | static_cast<std::uint32_t>(rng_.below(256))};
  entry.key.store(key.value, std::memory_order_release);
  ++live_;
  return key;
}

bool RegionTable::remove(Key key) {
  Entry* entry = entry_of(key);
  if (entry == nullptr || key.value == 0 || entry->key.load() != key.value) return false;
  entry->key.store(0, std::memory_order_release);
  free_.push_back(key.value >> 8);
  --live_;
  return true;
}

RegionTable::Translation RegionTable::translate(Key key, PdId pd, std::uint64_t address, std::uint64_t length,
                                                Access needed) const {
  const Entry* entry = entry_of(key);
  if (entry == nullptr || key.value < 256 || entry->key.load(std::memory_order_acquire) != key.value) {
    return {.fault = AccessFault::kUnknownKey};
  }
  if (entry->pd != pd) return {.fault = AccessFault::kWrongDomain};
  if (!entry->access.allows(needed)) return {.fault = AccessFault::kRightMissing};
  const std::uint64_t offset = address - entry->address;  // wraps below the start, and is then too large
  if (offset > entry->length || length > entry->length - offset) return {.fault = AccessFault::kOutOfBounds};
  return {.host = entry->host + offset, .kind = entry->kind};
}

}  // namespace sluice::memory
