#include "rack/daemons/store_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace sluice::rack {
namespace {

using testing::HasSubstr;

clover::MetadataServer two_nodes(std::uint32_t replication) {
  std::vector<clover::Region> regions;
  clover::ServerConfig config;
  for (std::uint32_t i = 0; i < 2; ++i) {
    regions.push_back({{remote::NodeId(i + 2), remote::RegionKey(i + 1), 0x10000}, 1 << 20});
    config.homes.push_back({regions[i], i + 1, i == 0 ? "memory1" : "memory2"});
  }
  config.volumes = *clover::spread(regions, replication);
  return clover::MetadataServer(config);
}

// Another life of memory2.
clover::Home blank(std::uint32_t number) {
  return {{{remote::NodeId(number), remote::RegionKey(9), 0x90000}, 1 << 20}, 77, "memory2"};
}

TEST(StoreNews, SaysThatReplicasAreMissingAsLongAsTheyAreAndThatTheyAreBack) {
  auto server = two_nodes(2);
  StoreNews news;
  Time now = Time::at(Duration::seconds(1));
  EXPECT_FALSE(news.look(now, server));
  ASSERT_TRUE(server.lose(now, remote::NodeId(3)));
  now = now + Duration::seconds(2);
  server.awake(now);
  EXPECT_FALSE(news.look(now, server)) << "it may be started anew just now";
  now = now + StoreNews::kPatience;
  const auto line = news.look(now, server);
  ASSERT_TRUE(line);
  EXPECT_THAT(line->text, HasSubstr("until memory2 is back"));
  EXPECT_FALSE(line->is_good);
  now = now + Duration::seconds(1);
  EXPECT_FALSE(news.look(now, server));
  now = now + StoreNews::kAgain;
  EXPECT_TRUE(news.look(now, server));
  // With another number: the directory had forgotten it.
  ASSERT_EQ(server.see(now, blank(8)), clover::MetadataServer::Advice::kWipe);
  server.rejoin(now, blank(8), server.wipes(blank(8)));
  EXPECT_FALSE(news.look(now, server)) << "they are being copied onto";
  now = now + Duration::seconds(3);
  std::array<clover::CopyTask, 4> tasks;
  Time until;
  server.next_copies(now, tasks, until);
  ASSERT_EQ(server.joining(), 0u);
  const auto good = news.look(now, server);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good->is_good);
  EXPECT_FALSE(news.look(now, server));
}

TEST(StoreNews, SaysOnceThatAVolumeIsLost) {
  auto server = two_nodes(1);
  StoreNews news;
  const Time now = Time::at(Duration::seconds(1));
  server.see(now, blank(3));
  const auto line = news.look(now, server);
  ASSERT_TRUE(line);
  EXPECT_THAT(line->text, HasSubstr("1 of 2 volumes"));
  EXPECT_FALSE(news.look(now + StoreNews::kPatience * 2, server)) << "there is nothing to bring back";
}

}  // namespace
}  // namespace sluice::rack
