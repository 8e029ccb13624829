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

Result<Key> RegionTable::add(const RegionAttributes& a) {
  if (!a.bytes.empty() && a.address + (a.bytes.size() - 1) < a.address) {
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
  entry.invalidated_by_peers = a.invalidated_by_peers;
  entry.address = a.address;
  entry.length = a.bytes.size();
  entry.host = a.bytes.data();
  // From a random start on, each key of a slot differs from the 255 before it: a stale one is not taken for its successor.
  if (!entry.used) entry.variant = static_cast<std::uint8_t>(rng_.below(kVariants));
  entry.used = true;
  const Key key{slot * kVariants + entry.variant++};
  entry.owned = key.value;
  entry.key.store(key.value, std::memory_order_release);
  ++live_;
  return key;
}

bool RegionTable::remove(Key key) {
  Entry* entry = entry_of(key);
  if (entry == nullptr || key.value < kVariants || entry->owned != key.value) return false;
  entry->key.store(0, std::memory_order_release);
  entry->owned = 0;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  free_.push_back(key.value / kVariants);
  --live_;
  return true;
}

bool RegionTable::invalidate(Key key, PdId pd) {
  Entry* entry = entry_of(key);
  if (entry == nullptr || key.value < kVariants || entry->pd != pd || !entry->invalidated_by_peers) return false;
  constexpr std::uint32_t kRemote = Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic;
  if ((entry->access.bits & kRemote) == 0) return false;
  std::uint32_t expected = key.value;
  if (!entry->key.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) return false;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

}  // namespace sluice::memory
