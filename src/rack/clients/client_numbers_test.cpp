#include "rack/clients/client_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace sluice::rack {
namespace {

using Numbers = std::vector<std::uint32_t>;

struct ClientNumbersTest : testing::Test {
  ClientNumbersTest() { std::filesystem::create_directory(run.path()); }
  ~ClientNumbersTest() override { std::filesystem::remove_all(run.path()); }

  // Who has died with these, as far as anybody else can tell.
  Numbers abandoned(std::uint32_t store = 7) const {
    Numbers all;
    for (const ClientNumbers& one : ClientNumbers::abandoned(run, store))
      all.insert(all.end(), one.numbers().begin(), one.numbers().end());
    std::ranges::sort(all);
    return all;
  }
  bool is_empty() const { return std::filesystem::is_empty(run.path()); }

  RunDirectory run{testing::TempDir() + "clients-" + std::to_string(getpid())};
};

TEST_F(ClientNumbersTest, AreFoundOnceWhoeverHadThemIsDead) {
  ClientNumbers living = ClientNumbers::keep(run, 7, {1, 4});
  EXPECT_EQ(abandoned(), Numbers{});
  ClientNumbers::keep(run, 7, {10, 13, 16});  // as if it were killed: the file stays
  ClientNumbers::keep(run, 7, {7});
  EXPECT_EQ(abandoned(), (Numbers{7, 10, 13, 16}));
  EXPECT_EQ(abandoned(8), Numbers{}) << "another store's";
  living.remove();
  EXPECT_EQ(abandoned(), (Numbers{7, 10, 13, 16}));
}

TEST_F(ClientNumbersTest, AreOneOthersToLeaveForAtATimeUntilThatIsDone) {
  ClientNumbers::keep(run, 7, {1});
  {
    const auto mine = ClientNumbers::abandoned(run, 7);
    ASSERT_EQ(mine.size(), 1u);
    EXPECT_EQ(abandoned(), Numbers{});
  }
  // Who began it has not ended it.
  auto mine = ClientNumbers::abandoned(run, 7);
  ASSERT_EQ(mine.size(), 1u);
  mine.front().remove();
  EXPECT_TRUE(is_empty());
}

TEST_F(ClientNumbersTest, WithoutAFileNobodyKnows) {
  const RunDirectory none(run.path() + "/none");
  ClientNumbers kept = ClientNumbers::keep(none, 7, {1});
  EXPECT_TRUE(kept.numbers().empty());
  kept.remove();
  EXPECT_TRUE(ClientNumbers::abandoned(none, 7).empty());
}

TEST_F(ClientNumbersTest, GoWithTheRackUnlessTheyAreHeldOrNotItsOwn) {
  ClientNumbers living = ClientNumbers::keep(run, 7, {1, 4});
  ClientNumbers::keep(run, 7, {2});
  std::ofstream(run.path() + "/fusee-00000007-3.clients").flush();  // killed while it made it
  std::ofstream(run.path() + "/my.clients") << "17 is all there is to say";
  run.clear();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run.path()), {}), 2);
  living.remove();
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/my.clients"));
  EXPECT_EQ(abandoned(), Numbers{});
}

}  // namespace
}  // namespace sluice::rack
