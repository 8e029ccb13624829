// Remote log: where cached blocks lie in remote memory, and under which keys. The memory is written round and round; what is written over is
// forgotten.
//
// Life:       place() room for an entry -> put() its key once it is being written -> find() -> erase(), or the log comes round.
// Invariant:  an entry that find() returns has not been written over by any place() that came before the call.
// Units:      bytes; positions count all that was ever placed, so that the offset is the position modulo the capacity.
// Threads:    any.
// Limits:     an entry is at most a quarter of the capacity.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sluice::rocksdb_cache {

class RemoteLog {
 public:
  struct Entry {
    std::uint64_t position = 0;
    std::uint32_t length = 0;
  };
  static constexpr std::uint64_t kAlignment = 64;

  // REQUIRES: capacity is a multiple of kAlignment, and not 0.
  explicit RemoteLog(std::uint64_t capacity) : capacity_(capacity) {}

  // Room in one piece for `length` bytes; nothing when that is more than an entry may have.
  std::optional<Entry> place(std::uint32_t length);
  // The key is found at `entry` from now on. Nothing when the log has come round to it already.
  void put(std::string_view key, Entry entry);
  // These two need no memory.
  std::optional<Entry> find(std::string_view key);
  void erase(std::string_view key);

  // Not written over, and nothing that has been placed will do so.
  bool stands(const Entry& entry) const { return head_.load() - entry.position <= capacity_; }
  std::uint64_t offset(const Entry& entry) const { return entry.position % capacity_; }
  std::uint64_t capacity() const { return capacity_; }
  std::size_t keys() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries;
    std::deque<std::pair<std::uint64_t, std::string>> by_age;  // position and key, as they were put
  };
  Shard& shard(std::string_view key) { return shards_[std::hash<std::string_view>()(key) % kShards]; }
  void forget_old(Shard& shard);

  static constexpr std::size_t kShards = 16;
  std::uint64_t capacity_;
  std::atomic<std::uint64_t> head_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace sluice::rocksdb_cache
