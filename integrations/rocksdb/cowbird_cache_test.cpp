#include "integrations/rocksdb/cowbird_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "cowbird/attach.h"
#include "cowbird/engine.h"
#include "ports/shared_block.h"
#include "ports/unix_socket.h"
#include "remote/mapped.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// Takes one application and gives it a region, and never moves anything.
class IdleEngine {
 public:
  explicit IdleEngine(std::string path)
      : path_(std::move(path)),
        listener_(ports::listen_unix(path_, ports::UnixKind::kMessages).value()),
        thread_([this] { work(); }) {}
  ~IdleEngine() {
    over_ = true;
    thread_.join();
    unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  void work() {
    ports::Descriptor application;
    while (!over_) {
      pollfd ready{application ? application.get() : listener_.get(), POLLIN, 0};
      if (poll(&ready, 1, 10) != 1) continue;
      if (!application) {
        application = ports::Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        continue;
      }
      ports::Message message;
      if (ports::receive_message(application.get(), message) != ports::Arrival::kMessage) return;
      const bool region = cowbird::message_kind(message.text) == "region";
      ports::send_message(application.get(),
                          region ? cowbird::region_answer({.node = 1, .key = 1, .length = 1 << 20}) : "ok");
    }
  }

  std::string path_;
  ports::Descriptor listener_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Serves one application with one lane, then the next, over a pool whose key the test changes.
class NearEngine {
 public:
  explicit NearEngine(std::string path)
      : path_(std::move(path)),
        listener_(ports::listen_unix(path_, ports::UnixKind::kMessages).value()),
        pool_bytes_(1 << 20),
        thread_([this] { work(); }) {}
  ~NearEngine() {
    over_ = true;
    thread_.join();
    unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  void set_key(std::uint32_t key) {
    key_ = key;
    while (served_key_ != key) std::this_thread::yield();
  }
  // Whether applications are told the key.
  void know(bool node) { known_ = node; }

 private:
  void work() {
    while (!over_) serve_one();
  }
  void serve_one() {
    served_key_ = 0;
    bool gone = false;
    auto scheduler = std::make_unique<remote::Scheduler>();
    remote::MappedMemory compute(*scheduler), pool(*scheduler);
    ports::SharedBlock block;
    std::unique_ptr<cowbird::Engine> engine;
    ports::Descriptor application;
    const auto answer = [&](ports::Message& message) -> std::string {
      if (cowbird::message_kind(message.text) == "region")
        return known_ ? cowbird::region_answer({.node = 1, .key = served_key_, .length = pool_bytes_.size()})
                      : cowbird::error_answer("no such memory node");
      block = ports::SharedBlock::adopt(std::move(message.descriptor), *cowbird::parse_instance(message.text)).value();
      const remote::RemoteAddress start{remote::NodeId(0), remote::RegionKey(1), 0};
      compute.add(start, block.bytes());
      const auto layout = cowbird::InstanceLayout::parse(block.bytes()).value();
      engine = std::make_unique<cowbird::Engine>(*scheduler, compute, start, layout, 0, pool, cowbird::EngineConfig{});
      scheduler->spawn(engine->run());
      return "ok";
    };
    while (!over_ && !gone) {
      if (!application)
        application = ports::Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (const std::uint32_t key = key_; key != served_key_) {
        pool.clear();
        pool.add({remote::NodeId(1), remote::RegionKey(key), 0}, pool_bytes_);
        served_key_ = key;
      }
      ports::Message message;
      const auto come = application ? ports::receive_message(application.get(), message) : ports::Arrival::kNothing;
      if (come == ports::Arrival::kMessage) ports::send_message(application.get(), answer(message));
      gone = come == ports::Arrival::kGone;
      scheduler->run(Time{} + Duration::nanoseconds(Clock::now().time_since_epoch().count()));
      std::this_thread::yield();
    }
    scheduler.reset();
  }

  std::string path_;
  ports::Descriptor listener_;
  std::vector<std::uint8_t> pool_bytes_;
  std::atomic<std::uint32_t> key_{1}, served_key_{0};
  std::atomic<bool> known_{true}, over_{false};
  std::thread thread_;
};

size_t size_of(void*) { return 8; }
size_t size_of_a_long_one(void*) { return 1000; }
rocksdb::Status save(void*, size_t, size_t length, void* out) {
  std::fill_n(static_cast<char*>(out), length, 'v');
  return rocksdb::Status::OK();
}
rocksdb::Status create(const void*, size_t, void**, size_t*) { return rocksdb::Status::OK(); }

rocksdb::Status save_without_memory(void*, size_t, size_t, void*) { throw std::bad_alloc(); }
rocksdb::Status create_without_memory(const void*, size_t, void**, size_t*) { throw std::bad_alloc(); }

TEST(CowbirdCache, WantOfMemoryCostsTheBlockAndThrowsNothing) {
  NearEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  const auto made = NewCowbirdCache(
      {.engine = engine.path(), .capacity = 1 << 20, .lanes = 1, .largest_block = 256, .patience_us = 10'000'000},
      &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  const rocksdb::Cache::CacheItemHelper greedy(size_of, save_without_memory, nullptr);
  char value = 0;
  bool there = false;
  ASSERT_TRUE(cache->Insert("key", &value, &helper).ok());
  const auto found = cache->Lookup("key", create_without_memory, true, false, there);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->Value(), nullptr);
  EXPECT_EQ(counters_of(*cache).hits, 0u);
  EXPECT_TRUE(cache->Insert("key", &value, &greedy).ok());
  EXPECT_EQ(counters_of(*cache).inserts_dropped, 1u);
  EXPECT_EQ(cache->Lookup("key", create, true, false, there), nullptr) << "an older value";
}

TEST(CowbirdCache, RefusesLanesThatCannotBe) {
  for (const std::uint32_t lanes : {0u, 257u}) {
    std::shared_ptr<rocksdb::SecondaryCache> cache;
    const auto status = NewCowbirdCache({.engine = "/nowhere", .lanes = lanes}, &cache);
    EXPECT_TRUE(status.IsInvalidArgument());
    EXPECT_THAT(status.ToString(), testing::HasSubstr("lanes must be from 1 to 256"));
  }
}

TEST(CowbirdCache, RefusesPatienceWithoutEnd) {
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  const auto status = NewCowbirdCache({.engine = "/nowhere", .patience_us = ~std::uint64_t{0}}, &cache);
  EXPECT_TRUE(status.IsInvalidArgument());
  EXPECT_THAT(status.ToString(), testing::HasSubstr("patience_us must be at most"));
}

TEST(CowbirdCache, CountsTheLookupsThatAFullRingRefuses) {
  const IdleEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  const auto made =
      NewCowbirdCache({.engine = engine.path(), .capacity = 1 << 20, .lanes = 1, .largest_block = 256}, &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  char value = 0;
  ASSERT_TRUE(cache->Insert("key", &value, &helper).ok());
  bool there = false;
  std::vector<std::unique_ptr<rocksdb::SecondaryCacheResultHandle>> lookups;
  do lookups.push_back(cache->Lookup("key", create, false, false, there));
  while (lookups.back() != nullptr && lookups.size() < 1000);
  EXPECT_EQ(lookups.back(), nullptr);
  EXPECT_EQ(counters_of(*cache).refused, 1u);
  EXPECT_EQ(counters_of(*cache).lookups, lookups.size());
}

TEST(CowbirdCache, AsksForItsRegionAnewWhenTheKeyIsAnother) {
  NearEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  const auto made = NewCowbirdCache(
      {.engine = engine.path(), .capacity = 1 << 20, .lanes = 1, .largest_block = 256, .patience_us = 10'000'000},
      &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  char value = 0;
  bool there = false;
  const auto counts = [&] { return counters_of(*cache); };
  const auto look_up = [&](const char* key) { cache->Lookup(key, create, true, false, there); };
  ASSERT_TRUE(cache->Insert("before", &value, &helper).ok());
  look_up("before");
  ASSERT_EQ(counts().hits, 1u);

  engine.set_key(2);
  engine.know(false);
  ASSERT_TRUE(cache->Insert("lost", &value, &helper).ok());
  look_up("before");
  EXPECT_EQ(counts().failed, 1u);
  EXPECT_EQ(counts().inserts_failed, 1u);
  ASSERT_TRUE(cache->Insert("dropped", &value, &helper).ok());
  EXPECT_EQ(counts().inserts_dropped, 1u);
  look_up("before");
  EXPECT_EQ(counts().refused, 1u);

  engine.know(true);
  for (const auto begun = Clock::now(); counts().hits == 1 && Clock::now() - begun < std::chrono::seconds(10);) {
    look_up("before");
    std::this_thread::yield();
  }
  EXPECT_EQ(counts().hits, 2u) << "the memory is as it was";
  ASSERT_TRUE(cache->Insert("after", &value, &helper).ok());
  look_up("after");
  EXPECT_EQ(counts().hits, 3u);
  look_up("lost");
  EXPECT_EQ(counts().wrong, 1u);
  EXPECT_EQ(counts().failed, 1u);
}

TEST(CowbirdCache, ABlockOfAProcessBeforeIsNotTakenForOurs) {
  NearEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  const CowbirdCacheOptions options{
      .engine = engine.path(), .capacity = 1 << 20, .lanes = 1, .largest_block = 256, .patience_us = 10'000'000};
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  char value = 0;
  bool there = false;
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  ASSERT_TRUE(NewCowbirdCache(options, &cache).ok());
  ASSERT_TRUE(cache->Insert("key", &value, &helper).ok());
  cache->Lookup("key", create, true, false, there);
  ASSERT_EQ(counters_of(*cache).hits, 1u);
  cache.reset();
  const auto made = NewCowbirdCache(options, &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  engine.set_key(2);
  ASSERT_TRUE(cache->Insert("key", &value, &helper).ok());  // which fails: what was there before stays
  const auto counts = [&] { return counters_of(*cache); };
  for (const auto begun = Clock::now();
       counts().hits + counts().wrong == 0 && Clock::now() - begun < std::chrono::seconds(10);) {
    cache->Lookup("key", create, true, false, there);
  }
  EXPECT_EQ(counts().inserts_failed, 1u);
  EXPECT_EQ(counts().hits, 0u);
  EXPECT_EQ(counts().wrong, 1u);
}

TEST(CowbirdCache, ManyLookupsTogetherWaitNoLongerThanOneMay) {
  const IdleEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  constexpr std::uint64_t kPatienceUs = 100'000;
  const auto made = NewCowbirdCache(
      {.engine = engine.path(), .capacity = 1 << 20, .lanes = 1, .largest_block = 256, .patience_us = kPatienceUs},
      &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  constexpr int kBlocks = 10;
  std::vector<std::unique_ptr<rocksdb::SecondaryCacheResultHandle>> lookups;
  std::vector<rocksdb::SecondaryCacheResultHandle*> handles;
  for (int i = 0; i < kBlocks; ++i) {
    char value = 0;
    ASSERT_TRUE(cache->Insert(fmt::format("key{}", i), &value, &helper).ok());
  }
  for (int i = 0; i < kBlocks; ++i) {
    bool there = false;
    lookups.push_back(cache->Lookup(fmt::format("key{}", i), create, false, false, there));
    ASSERT_TRUE(lookups.back());
    handles.push_back(lookups.back().get());
  }
  const auto begun = Clock::now();
  cache->WaitAll(handles);
  EXPECT_LT(Clock::now() - begun, std::chrono::microseconds(kPatienceUs) * kBlocks / 2);
  for (const auto& lookup : lookups) EXPECT_EQ(lookup->Value(), nullptr);
  EXPECT_EQ(counters_of(*cache).late, static_cast<std::uint64_t>(kBlocks));
}

TEST(CowbirdCache, AValueThatIsDroppedLeavesNoOlderOneBehind) {
  const IdleEngine engine(fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid()));
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  const auto made = NewCowbirdCache({.engine = engine.path(), .capacity = 1 << 20, .largest_block = 256}, &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  const rocksdb::Cache::CacheItemHelper too_long(size_of_a_long_one, save, nullptr);
  char value = 0;
  ASSERT_TRUE(cache->Insert("key", &value, &helper).ok());
  bool there = false;
  EXPECT_NE(cache->Lookup("key", create, false, false, there), nullptr);
  ASSERT_TRUE(cache->Insert("key", &value, &too_long).ok());
  EXPECT_EQ(counters_of(*cache).inserts_dropped, 1u);
  EXPECT_EQ(cache->Lookup("key", create, false, false, there), nullptr);
  EXPECT_FALSE(there);
}

TEST(CowbirdCache, WhatIsDroppedForWantOfAnEngineTakesNoRoomFromWhatIsThere) {
  const std::string path = fmt::format("{}/cowbird{}.sock", testing::TempDir(), getpid());
  auto engine = std::make_unique<IdleEngine>(path);
  std::shared_ptr<rocksdb::SecondaryCache> cache;
  constexpr int kBlocks = 1024;  // many more than there is room for
  const auto made = NewCowbirdCache(
      {.engine = path, .capacity = kBlocks / 4 * 64, .lanes = 1, .largest_block = 256, .patience_us = 10'000'000},
      &cache);
  ASSERT_TRUE(made.ok()) << made.ToString();
  const rocksdb::Cache::CacheItemHelper helper(size_of, save, nullptr);
  char value = 0;
  ASSERT_TRUE(cache->Insert("old", &value, &helper).ok());
  engine.reset();
  bool there = false;
  const auto late = cache->Lookup("old", create, true, false, there);  // until it is noticed that there is no engine
  ASSERT_EQ(counters_of(*cache).late, 1u);
  for (int i = 0; i < kBlocks; ++i) ASSERT_TRUE(cache->Insert(fmt::format("new{}", i), &value, &helper).ok());
  ASSERT_GE(counters_of(*cache).inserts_dropped, static_cast<std::uint64_t>(kBlocks - 1));
  engine = std::make_unique<IdleEngine>(path);
  std::unique_ptr<rocksdb::SecondaryCacheResultHandle> found;
  for (const auto begun = Clock::now(); !found && Clock::now() - begun < std::chrono::seconds(10);) {
    found = cache->Lookup("old", create, false, false, there);
    std::this_thread::yield();
  }
  EXPECT_NE(found, nullptr);
}

}  // namespace
}  // namespace sluice
