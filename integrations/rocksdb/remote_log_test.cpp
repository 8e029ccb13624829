#include "integrations/rocksdb/remote_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace sluice::rocksdb_cache {
namespace {

TEST(RemoteLog, FindsWhatWasPutUntilTheLogComesRound) {
  RemoteLog log(4096);
  const auto a = log.place(100).value();
  log.put("a", a);
  EXPECT_EQ(log.offset(log.find("a").value()), 0u);
  EXPECT_EQ(log.find("a")->length, 100u);
  EXPECT_FALSE(log.find("b"));
  for (int i = 0; i < 4; ++i) log.place(960).value();  // 128 + 4 * 960 is less than 4096
  EXPECT_TRUE(log.find("a"));
  log.place(640).value();
  EXPECT_FALSE(log.find("a")) << "its bytes may be other ones by now";
}

TEST(RemoteLog, AnErasedKeyIsGoneAndAReplacedOneIsTheNewOne) {
  RemoteLog log(1 << 16);
  log.put("a", log.place(64).value());
  const auto second = log.place(64).value();
  log.put("a", second);
  EXPECT_EQ(log.find("a")->position, second.position);
  log.erase("a");
  EXPECT_FALSE(log.find("a"));
  EXPECT_EQ(log.keys(), 0u);
}

TEST(RemoteLog, RefusesWhatIsTooLargeOrEmpty) {
  RemoteLog log(4096);
  EXPECT_FALSE(log.place(0));
  EXPECT_FALSE(log.place(1025));
  EXPECT_TRUE(log.place(1024));
}

TEST(RemoteLog, EntriesThatStandNeverOverlapAndNeverWrap) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    RemoteLog log(64 * (16 + rng.below(200)));
    std::map<std::string, RemoteLog::Entry> model;
    for (int i = 0; i < 3000; ++i) {
      const auto length = static_cast<std::uint32_t>(1 + rng.below(log.capacity() / 256 * 64));
      const auto entry = log.place(length);
      ASSERT_TRUE(entry);
      ASSERT_LE(log.offset(*entry) + entry->length, log.capacity()) << "seed " << seed;
      const std::string key = fmt::format("key{}", rng.below(100));
      log.put(key, *entry);
      model[key] = *entry;
      std::map<std::uint64_t, std::uint64_t> taken;  // offset -> end, of all that can be found
      for (const auto& [name, known] : model) {
        const auto found = log.find(name);
        if (!found) continue;
        ASSERT_EQ(found->position, known.position) << "seed " << seed;
        taken[log.offset(*found)] = log.offset(*found) + found->length;
      }
      std::uint64_t end = 0;
      for (const auto& [from, to] : taken) {
        ASSERT_LE(end, from) << "seed " << seed << ": two entries share bytes";
        end = to;
      }
    }
    ASSERT_LE(log.keys(), 100u);
  }
}

TEST(RemoteLog, ThreadsGetRoomOfTheirOwn) {
  RemoteLog log(std::uint64_t{1} << 30);
  std::vector<std::vector<std::uint64_t>> positions(4);
  std::vector<std::thread> threads;
  for (auto& mine : positions)
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < 20'000; ++i) mine.push_back(log.place(64 + i % 64).value().position);
    });
  for (auto& thread : threads) thread.join();
  std::set<std::uint64_t> all;
  for (const auto& mine : positions) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 80'000u);
}

}  // namespace
}  // namespace sluice::rocksdb_cache
