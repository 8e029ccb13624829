#include "integrations/rocksdb/remote_log.h"

#include <utility>

namespace sluice::rocksdb_cache {

std::optional<RemoteLog::Entry> RemoteLog::place(std::uint32_t length) {
  const std::uint64_t room = (length + kAlignment - 1) / kAlignment * kAlignment;
  if (length == 0 || room > capacity_ / 4) return std::nullopt;
  std::uint64_t head = head_.load();
  for (;;) {
    const std::uint64_t left = capacity_ - head % capacity_;  // until the end of the memory
    const std::uint64_t at = room <= left ? head : head + left;
    if (head_.compare_exchange_weak(head, at + room)) return Entry{at, length};
  }
}

void RemoteLog::put(std::string_view key, Entry entry) {
  Shard& s = shard(key);
  const std::scoped_lock lock(s.mutex);
  forget_old(s);
  if (!stands(entry)) return;
  s.entries.insert_or_assign(std::string(key), entry);
  s.by_age.emplace_back(entry.position, key);
}

std::optional<RemoteLog::Entry> RemoteLog::find(std::string_view key) {
  Shard& s = shard(key);
  const std::scoped_lock lock(s.mutex);
  const auto found = s.entries.find(key);
  if (found == s.entries.end() || !stands(found->second)) return std::nullopt;
  return found->second;
}

void RemoteLog::erase(std::string_view key) {
  Shard& s = shard(key);
  const std::scoped_lock lock(s.mutex);
  if (const auto found = s.entries.find(key); found != s.entries.end()) s.entries.erase(found);
}

std::size_t RemoteLog::keys() const {
  std::size_t sum = 0;
  for (const Shard& s : shards_) {
    const std::scoped_lock lock(s.mutex);
    sum += s.entries.size();
  }
  return sum;
}

// Threads put in another order than they placed, so the oldest may stand behind a younger one: it is forgotten a little later.
void RemoteLog::forget_old(Shard& s) {
  while (!s.by_age.empty() && !stands({s.by_age.front().first, 0})) {
    const auto& [position, key] = s.by_age.front();
    const auto found = s.entries.find(key);
    if (found != s.entries.end() && found->second.position == position) s.entries.erase(found);
    s.by_age.pop_front();
  }
}

}  // namespace sluice::rocksdb_cache
