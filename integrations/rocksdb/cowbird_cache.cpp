#include "integrations/rocksdb/cowbird_cache.h"

#include <isa-l/crc.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "integrations/rocksdb/remote_lane.h"
#include "integrations/rocksdb/remote_log.h"

namespace sluice {
namespace {

using rocksdb::Slice;
using rocksdb::Status;
using rocksdb_cache::NodeState;
using rocksdb_cache::Read;
using rocksdb_cache::RemoteLane;
using rocksdb_cache::RemoteLog;
using Clock = std::chrono::steady_clock;

// What precedes a block's key and value in remote memory. Only this process reads it again: the host's byte order.
struct BlockHeader {
  std::uint32_t checksum = 0;  // CRC-32C of all that follows
  std::uint32_t key_bytes = 0;
  std::uint64_t position = 0;  // in the log, counted from a number that this process has drawn
};
static_assert(sizeof(BlockHeader) == 16);

std::uint32_t checksum_of(const char* block, std::size_t length) {
  constexpr std::size_t kSkipped = sizeof(BlockHeader::checksum);
  // ISA-L's argument is not const, though it only reads.
  auto* const from = reinterpret_cast<unsigned char*>(const_cast<char*>(block + kSkipped));
  return crc32_iscsi(from, static_cast<int>(length - kSkipped), ~0u);
}

struct Counts {
  std::atomic<std::uint64_t> inserts{0}, dropped{0}, lookups{0}, hits{0}, refused{0}, late{0}, failed{0}, wrong{0};
};

// After an engine was found to be absent, between looks for a new one; and between requests for the region anew.
constexpr auto kRest = std::chrono::seconds(1);
constexpr auto kLongestAsking = std::chrono::seconds(10);  // the engine answers within 3 s, or is gone
constexpr std::uint64_t kLongestPatienceUs = 3'600'000'000;
constexpr int kSpins = 100;    // looks before the first yield
constexpr int kYields = 2000;  // before the first nap
constexpr auto kNap = std::chrono::microseconds(50);

class CowbirdCache;

// A look-up under way. The block is in no lane's hands once the Read is done.
class Lookup final : public rocksdb::SecondaryCacheResultHandle {
 public:
  Lookup(CowbirdCache& cache, RemoteLane& lane, std::shared_ptr<Read> read, std::string key, RemoteLog::Entry entry,
         rocksdb::Cache::CreateCallback create)
      : cache_(cache),
        lane_(lane),
        read_(std::move(read)),
        key_(std::move(key)),
        entry_(entry),
        create_(std::move(create)) {}

  bool IsReady() override;
  void Wait() override;
  // The same, not longer than until then.
  void wait_until(Clock::time_point give_up);
  void* Value() override { return value_; }
  size_t Size() override { return size_; }

 private:
  void take();

  CowbirdCache& cache_;
  RemoteLane& lane_;
  std::shared_ptr<Read> read_;  // null: over
  std::string key_;
  RemoteLog::Entry entry_;
  rocksdb::Cache::CreateCallback create_;
  void* value_ = nullptr;
  size_t size_ = 0;
};

class CowbirdCache final : public rocksdb::SecondaryCache {
 public:
  explicit CowbirdCache(const CowbirdCacheOptions& options) : options_(options), log_(options.capacity) {}
  ~CowbirdCache() override {
    lanes_.clear();
    cowbird_close(cowbird_);
  }
  CowbirdCache(const CowbirdCache&) = delete;
  CowbirdCache& operator=(const CowbirdCache&) = delete;

  Status open();

  const char* Name() const override { return "SluiceCowbirdCache"; }
  Status Insert(const Slice& key, void* value, const rocksdb::Cache::CacheItemHelper* helper) override;
  std::unique_ptr<rocksdb::SecondaryCacheResultHandle> Lookup(const Slice& key,
                                                              const rocksdb::Cache::CreateCallback& create_cb,
                                                              bool wait, bool advise_erase,
                                                              bool& is_in_sec_cache) override;
  // What comes back into the block cache stays in remote memory, so that it need not be written again.
  bool SupportForceErase() const override { return false; }
  void Erase(const Slice& key) override { log_.erase(key.ToStringView()); }
  // All of them are on their way: together they take no longer than one may.
  void WaitAll(std::vector<rocksdb::SecondaryCacheResultHandle*> handles) override {
    const auto give_up = Clock::now() + patience();
    for (auto* handle : handles) static_cast<sluice::Lookup*>(handle)->wait_until(give_up);
  }
  Status GetCapacity(size_t& capacity) override {
    capacity = log_.capacity();
    return Status::OK();
  }
  std::string GetPrintableOptions() const override {
    return "    memory_node : " + options_.memory_node + "\n    capacity : " + std::to_string(options_.capacity) + "\n";
  }

  CowbirdCacheCounters counters() const {
    return {counts_.inserts, counts_.dropped, node_.writes_failed, counts_.lookups, counts_.hits,
            counts_.refused, counts_.late,    counts_.failed,      counts_.wrong,   log_.keys()};
  }
  Counts& counts() { return counts_; }
  // As its header has it: a block that another process has left there has another one.
  std::uint64_t position_of(const RemoteLog::Entry& entry) const { return first_position_ + entry.position; }
  std::chrono::microseconds patience() const { return std::chrono::microseconds(options_.patience_us); }
  // No engine was at work a moment ago: for a while nobody waits for it.
  void engine_is_gone() { rest_until_.store((Clock::now() + kRest).time_since_epoch().count()); }
  bool rests(Clock::time_point now) const { return now.time_since_epoch().count() < rest_until_.load(); }

 private:
  RemoteLane& lane() { return *lanes_[std::hash<std::thread::id>()(std::this_thread::get_id()) % lanes_.size()]; }
  // Whether anything can be asked of the memory node.
  bool usable(RemoteLane& lane) { return !resting(lane) && (!node_.denies || renewed()); }
  bool resting(RemoteLane& lane);
  bool renewed();
  bool ask_for_region();
  // As Insert and Lookup, and may throw.
  Status insert(const Slice& key, void* value, const rocksdb::Cache::CacheItemHelper& helper);
  std::unique_ptr<sluice::Lookup> look_up(const Slice& key, const rocksdb::Cache::CreateCallback& create);
  Status drop(const Slice& key);

  CowbirdCacheOptions options_;
  RemoteLog log_;
  cowbird_t* cowbird_ = nullptr;
  std::uint16_t region_ = 0;
  const std::uint64_t first_position_ = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
  NodeState node_;
  std::vector<std::unique_ptr<RemoteLane>> lanes_;
  std::atomic<Clock::rep> rest_until_{0};  // 0: the engine is there
  std::atomic<Clock::rep> ask_at_{0};      // for the region anew, at the earliest
  Counts counts_;
};

Status CowbirdCache::open() {
  if (options_.capacity == 0 || options_.capacity % RemoteLog::kAlignment != 0)
    return Status::InvalidArgument("capacity must be a multiple of 64 bytes");
  if (options_.lanes < 1 || options_.lanes > 256) return Status::InvalidArgument("lanes must be from 1 to 256");
  if (options_.largest_block == 0) return Status::InvalidArgument("largest_block must not be 0");
  if (options_.patience_us > kLongestPatienceUs)
    return Status::InvalidArgument("patience_us must be at most 3,600,000,000, an hour");
  const std::uint64_t ring = (std::uint64_t{options_.largest_block} * 4 + 63) / 64 * 64;
  if (ring > (1u << 30)) return Status::InvalidArgument("largest_block must be at most 256 MiB");
  cowbird_options_t o{};
  o.engine = options_.engine.empty() ? nullptr : options_.engine.c_str();
  o.threads = options_.lanes;
  o.request_bytes = o.response_bytes = static_cast<std::uint32_t>(ring);
  cowbird_ = cowbird_open(&o);
  if (cowbird_ == nullptr) return Status::IOError(cowbird_last_error());
  const int region = cowbird_region_add(cowbird_, options_.memory_node.c_str(), options_.offset, options_.capacity, 0);
  if (region < 0) return Status::IOError(cowbird_last_error());
  region_ = static_cast<std::uint16_t>(region);
  for (std::uint32_t i = 0; i < options_.lanes; ++i)
    lanes_.push_back(std::make_unique<RemoteLane>(cowbird_thread(cowbird_, i), region_, node_));
  return Status::OK();
}

// One call a while looks whether an engine is back; the others do without the cache.
bool CowbirdCache::resting(RemoteLane& lane) {
  auto until = rest_until_.load();
  if (until == 0) return false;
  const auto now = Clock::now().time_since_epoch().count();
  if (now < until) return true;
  const auto next = (Clock::now() + kRest).time_since_epoch().count();
  if (!rest_until_.compare_exchange_strong(until, next)) return true;
  if (!lane.poll()) return true;
  rest_until_.store(0);
  return false;
}

// The memory node has lost its lease, or was started anew: its key is another. One call a while asks for it; the others do without the cache.
bool CowbirdCache::renewed() {
  auto at = ask_at_.load();
  if (Clock::now().time_since_epoch().count() < at) return false;
  if (!ask_at_.compare_exchange_strong(at, (Clock::now() + kLongestAsking).time_since_epoch().count())) return false;
  const bool done = ask_for_region();
  ask_at_.store((Clock::now() + kRest).time_since_epoch().count());
  return done;
}

// The index stays: after a lapse of the lease the blocks are there, and those that are not are told by their headers.
bool CowbirdCache::ask_for_region() {
  std::vector<std::unique_lock<std::mutex>> all;
  for (const auto& lane : lanes_) {
    all.push_back(lane->hold());
    if (!lane->is_idle()) return false;
  }
  cowbird_region_remove(cowbird_, region_);  // unless it is already, and the last request failed
  const int region = cowbird_region_add(cowbird_, options_.memory_node.c_str(), options_.offset, options_.capacity, 0);
  if (region < 0) return false;
  region_ = static_cast<std::uint16_t>(region);
  for (const auto& lane : lanes_) lane->use(region_);
  node_.denies = false;
  return true;
}

// RocksDB lets no exception out of its functions: without memory a block is dropped, and a look-up misses.
Status CowbirdCache::Insert(const Slice& key, void* value, const rocksdb::Cache::CacheItemHelper* helper) {
  counts_.inserts.fetch_add(1);
  try {
    return insert(key, value, *helper);
  } catch (const std::exception&) {
    return drop(key);
  }
}

Status CowbirdCache::insert(const Slice& key, void* value, const rocksdb::Cache::CacheItemHelper& helper) {
  RemoteLane& to = lane();
  const std::size_t size = helper.size_cb(value);
  const std::size_t length = sizeof(BlockHeader) + key.size() + size;
  const bool wanted = length <= options_.largest_block && usable(to);  // else it takes no room from what is there
  const auto entry = wanted ? log_.place(static_cast<std::uint32_t>(length)) : std::nullopt;
  if (!entry) return drop(key);
  thread_local std::vector<char> block;
  block.resize(length);
  BlockHeader header{.key_bytes = static_cast<std::uint32_t>(key.size()), .position = position_of(*entry)};
  std::memcpy(block.data() + sizeof header, key.data(), key.size());
  if (Status saved = helper.saveto_cb(value, 0, size, block.data() + sizeof header + key.size()); !saved.ok()) {
    log_.erase(key.ToStringView());
    return saved;
  }
  std::memcpy(block.data(), &header, sizeof header);
  header.checksum = checksum_of(block.data(), length);
  std::memcpy(block.data(), &header, sizeof header);
  if (!to.write(log_.offset(*entry), block)) return drop(key);
  log_.put(key.ToStringView(), *entry);
  return Status::OK();
}

// An older value of the key may not stand for the one that is not kept.
Status CowbirdCache::drop(const Slice& key) {
  counts_.dropped.fetch_add(1);
  log_.erase(key.ToStringView());
  return Status::OK();
}

std::unique_ptr<rocksdb::SecondaryCacheResultHandle> CowbirdCache::Lookup(
    const Slice& key, const rocksdb::Cache::CreateCallback& create_cb, bool wait, bool /*advise_erase*/,
    bool& is_in_sec_cache) {
  is_in_sec_cache = false;
  counts_.lookups.fetch_add(1);
  std::unique_ptr<sluice::Lookup> handle;
  try {
    handle = look_up(key, create_cb);
  } catch (const std::exception&) {
    counts_.refused.fetch_add(1);
  }
  if (!handle) return nullptr;
  if (wait) handle->Wait();
  is_in_sec_cache = true;  // a value that turns out to be lost is no value at all
  return handle;
}

std::unique_ptr<Lookup> CowbirdCache::look_up(const Slice& key, const rocksdb::Cache::CreateCallback& create) {
  const auto entry = log_.find(key.ToStringView());
  if (!entry) return nullptr;
  RemoteLane& from = lane();
  auto read = usable(from) ? from.read(log_.offset(*entry), entry->length) : nullptr;
  if (!read) {
    counts_.refused.fetch_add(1);
    return nullptr;
  }
  return std::make_unique<sluice::Lookup>(*this, from, std::move(read), key.ToString(), *entry, create);
}

bool Lookup::IsReady() {
  if (read_ && !read_->done.load(std::memory_order_acquire)) lane_.poll();
  if (read_ && read_->done.load(std::memory_order_acquire)) take();
  return read_ == nullptr;
}

void Lookup::Wait() { wait_until(Clock::now() + cache_.patience()); }

void Lookup::wait_until(Clock::time_point give_up) {
  for (int looks = 0; !IsReady(); ++looks) {
    if (looks < kSpins) continue;
    if (looks < kYields) std::this_thread::yield();
    if (looks % kSpins != 0 && looks < kYields) continue;
    const auto now = Clock::now();
    const bool rests = cache_.rests(now);  // somebody has noticed already
    const bool engine = !rests && lane_.poll();
    if (!engine && !rests) cache_.engine_is_gone();
    if (!engine || now > give_up) {
      cache_.counts().late.fetch_add(1);
      read_.reset();  // the lane keeps it as long as bytes may arrive
      return;
    }
    if (looks >= kYields) std::this_thread::sleep_for(kNap);
  }
}

// REQUIRES: the read is done.
void Lookup::take() {
  const std::shared_ptr<Read> read = std::move(read_);
  read_ = nullptr;
  const std::vector<char>& block = read->bytes;
  if (read->status != 0) {
    cache_.counts().failed.fetch_add(1);
    return;
  }
  BlockHeader header;
  std::memcpy(&header, block.data(), sizeof header);
  const bool ours = header.position == cache_.position_of(entry_) && header.key_bytes == key_.size() &&
                    sizeof header + key_.size() <= block.size() &&
                    header.checksum == checksum_of(block.data(), block.size()) &&
                    std::memcmp(block.data() + sizeof header, key_.data(), key_.size()) == 0;
  if (!ours) {
    cache_.counts().wrong.fetch_add(1);
    cache_.Erase(key_);  // it comes again when the block cache evicts it
    return;
  }
  const std::size_t before = sizeof header + key_.size();
  bool created = false;
  try {
    created = create_(block.data() + before, block.size() - before, &value_, &size_).ok();
  } catch (const std::exception&) {
  }
  if (created) {
    cache_.counts().hits.fetch_add(1);
  } else {
    value_ = nullptr;
  }
}

}  // namespace

rocksdb::Status NewCowbirdCache(const CowbirdCacheOptions& options, std::shared_ptr<rocksdb::SecondaryCache>* cache) {
  auto made = std::make_shared<CowbirdCache>(options);
  if (Status opened = made->open(); !opened.ok()) return opened;
  *cache = std::move(made);
  return Status::OK();
}

CowbirdCacheCounters counters_of(const rocksdb::SecondaryCache& cache) {
  return dynamic_cast<const CowbirdCache&>(cache).counters();
}

}  // namespace sluice
