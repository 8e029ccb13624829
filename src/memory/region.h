// Registered memory: regions, their keys and rights, and the check that every access passes.
//
// Life:       add() -> translate() any number of times -> (invalidate(), by a peer) -> remove().
// Invariant:  translate() returns a pointer only if [address, address + length) lies inside one live region of that protection
//             domain whose rights include all that is needed; nothing outside a region is ever touched. A pointer is good as long as
//             epoch() stays what it was.
// Units:      bytes; addresses are the region's own (iova), not the process's.
// Errors:     an AccessFault for each way to be refused; never a crash on any input.
// Threads:    translate(), epoch() and invalidate() from any thread; add() and remove() from one at a time. remove() does not wait
//             for accesses that have been translated before: whoever owns the NIC removes between bursts.
// Limits:     kMaxRegions at once.
// Source:     IBTA vol. 1 §10.6 (memory management), §9.7.4.1.5 (R_Key check).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/strong.h"

namespace sluice::memory {

using PdId = Strong<struct PdIdTag, std::uint32_t>;  // protection domain
using Key = Strong<struct KeyTag, std::uint32_t>;    // an lkey or rkey; one number serves as both

// Rights, with the values of ibv_access_flags.
struct Access {
  static constexpr std::uint32_t kLocalRead = 0;
  static constexpr std::uint32_t kLocalWrite = 1;
  static constexpr std::uint32_t kRemoteWrite = 1 << 1;
  static constexpr std::uint32_t kRemoteRead = 1 << 2;
  static constexpr std::uint32_t kRemoteAtomic = 1 << 3;

  std::uint32_t bits = kLocalRead;

  constexpr bool allows(Access needed) const { return (bits & needed.bits) == needed.bits; }
  friend constexpr Access operator|(Access a, Access b) { return {a.bits | b.bits}; }
  friend constexpr bool operator==(Access, Access) = default;
};
inline constexpr Access kLocalRead{Access::kLocalRead};
inline constexpr Access kLocalWrite{Access::kLocalWrite};
inline constexpr Access kRemoteWrite{Access::kRemoteWrite};
inline constexpr Access kRemoteRead{Access::kRemoteRead};
inline constexpr Access kRemoteAtomic{Access::kRemoteAtomic};
inline constexpr Access kAllAccess{0xF};

enum class RegionKind : std::uint8_t { kHost, kDevice };

enum class AccessFault : std::uint8_t { kNone, kUnknownKey, kWrongDomain, kOutOfBounds, kRightMissing };
std::string_view to_string(AccessFault fault);

struct RegionAttributes {
  PdId pd{};
  MutableBytes bytes{};       // the memory itself; stays mapped until remove()
  std::uint64_t address = 0;  // of bytes[0] as peers name it (iova)
  Access access{};
  RegionKind kind = RegionKind::kHost;
  // A peer's SEND with invalidate may end its key; not that of what a program has registered by a call.
  bool invalidated_by_peers = false;
};

// The lkey that stands for all memory of this process; for local access only (IBTA's reserved L_Key).
inline constexpr Key kReservedKey{0};

class RegionTable {
 public:
  static constexpr std::uint32_t kMaxRegions = 1u << 16;

  // Keys carry a random variant, so that a stale key is not taken for its successor.
  explicit RegionTable(Rng rng);
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // REQUIRES (checked): no bytes beyond address 2^64, remote write or atomic only together with local write.
  Result<Key> add(const RegionAttributes& attributes);
  // Takes the region back, also one that has been invalidated. False: there is none with this key.
  bool remove(Key key);
  // The key is good no longer; the region keeps its place until remove(). False: no such region in this domain, or one that peers may
  // not invalidate.
  bool invalidate(Key key, PdId pd);

  struct Translation {
    AccessFault fault = AccessFault::kNone;
    std::uint8_t* host = nullptr;  // valid if fault is kNone
    RegionKind kind = RegionKind::kHost;
  };
  Translation translate(Key key, PdId pd, std::uint64_t address, std::uint64_t length, Access needed) const {
    const Entry* entry = entry_of(key);
    if (entry == nullptr || key.value < kVariants || entry->key.load(std::memory_order_acquire) != key.value) {
      return {.fault = AccessFault::kUnknownKey};
    }
    if (entry->pd != pd) return {.fault = AccessFault::kWrongDomain};
    if (!entry->access.allows(needed)) return {.fault = AccessFault::kRightMissing};
    const std::uint64_t offset = address - entry->address;  // wraps below the start, and is then too large
    if (offset > entry->length || length > entry->length - offset) return {.fault = AccessFault::kOutOfBounds};
    return {.host = entry->host + offset, .kind = entry->kind};
  }
  // Changes whenever a key ceases to be good: what was translated before must then be translated again.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Regions added and not removed.
  std::uint32_t size() const { return live_; }

 private:
  static constexpr std::uint32_t kVariants = 256;  // keys of one slot, one after the other

  struct Entry {
    std::atomic<std::uint32_t> key{0};  // 0: not to be used
    std::uint32_t owned = 0;            // the key until remove(), also when it is not to be used any more; 0: free
    PdId pd{};
    Access access{};
    RegionKind kind{};
    bool invalidated_by_peers = false;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint8_t* host = nullptr;
    std::uint8_t variant = 0;  // of the next key
    bool used = false;         // at some time: `variant` has been drawn
  };
  static constexpr std::uint32_t kChunk = 256;
  using Chunk = std::array<Entry, kChunk>;

  Entry* entry_of(Key key) const {
    const std::uint32_t slot = key.value / kVariants;
    if (slot >= kMaxRegions) return nullptr;
    Chunk* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &(*chunk)[slot % kChunk];
  }

  std::array<std::atomic<Chunk*>, kMaxRegions / kChunk> chunks_{};
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 1;  // slot 0 is the reserved key's
  std::uint32_t live_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  Rng rng_;
};

}  // namespace sluice::memory
