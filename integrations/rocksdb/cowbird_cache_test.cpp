#include "integrations/rocksdb/cowbird_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cowbird/attach.h"
#include "ports/shared_block.h"
#include "ports/unix_socket.h"

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

size_t size_of(void*) { return 8; }
size_t size_of_a_long_one(void*) { return 1000; }
rocksdb::Status save(void*, size_t, size_t length, void* out) {
  std::fill_n(static_cast<char*>(out), length, 'v');
  return rocksdb::Status::OK();
}
rocksdb::Status create(const void*, size_t, void**, size_t*) { return rocksdb::Status::OK(); }

TEST(CowbirdCache, RefusesLanesThatCannotBe) {
  for (const std::uint32_t lanes : {0u, 257u}) {
    std::shared_ptr<rocksdb::SecondaryCache> cache;
    const auto status = NewCowbirdCache({.engine = "/nowhere", .lanes = lanes}, &cache);
    EXPECT_TRUE(status.IsInvalidArgument());
    EXPECT_THAT(status.ToString(), testing::HasSubstr("lanes must be from 1 to 256"));
  }
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
