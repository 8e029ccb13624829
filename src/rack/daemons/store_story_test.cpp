// A store that is found again, or not, over a directory of the test's own.
#include "rack/daemons/store_story.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "rack/directory/sqlite_directory.h"
#include "rack/endpoint/memory_node.h"

namespace sluice::rack {
namespace {

constexpr Duration kPatience = Duration::seconds(20);

class StoreStoryTest : public testing::Test {
 protected:
  StoreStoryTest() : folder_(testing::TempDir() + "story-" + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
    directory_ = SqliteDirectory::open(":memory:", Subnet{}, [] { return Time(); }).value();
    // A store with one key, on the first memory node, whose server then dies.
    join("memory1", "2a");
    StoreStory story(path());
    auto server = story.make(settings(), {*home_of(*directory_->nodes()->find("memory1"), 0)}).value();
    EXPECT_TRUE(story.begin(Time(), *server));
    ask(*server, {clover::Request::kRegister, 0, 0, 0}, {});
    ask(*server, {clover::Request::kAllocate, 1, 1, 1, store_}, {1});
    ask(*server, {clover::Request::kCreate, 1, 1, 0, store_}, {7, slot_});
    EXPECT_EQ(server->keys(), 1u);
  }
  ~StoreStoryTest() override {
    directory_->stop_watches();
    std::filesystem::remove_all(folder_);
  }

  static MetadataSettings settings() { return {}; }
  std::string path() const { return folder_ + "/metadata.journal"; }
  void join(const std::string& name, const std::string& life) {
    NodeDescription memory{name, NodeKind::kMemory, 7471, {{kMainRegion, 0x10000, 1 << 20, 5}}, {}};
    memory.attributes[kLifeAttribute] = life;
    lease_ = directory_->join(memory, Duration::seconds(10)).value().lease;
    EXPECT_TRUE(directory_->publish(lease_, memory));
  }
  void leave() { EXPECT_TRUE(directory_->leave(lease_)); }
  void ask(clover::MetadataServer& server, const clover::RequestHeader& header,
           const std::vector<std::uint64_t>& numbers) {
    std::array<std::uint8_t, remote::kMaxMessage> request{};
    std::array<std::uint8_t, remote::kMaxMessage> answer{};
    clover::MessageWriter out(request);
    clover::put_header(out, header);
    for (const auto n : numbers) out.put(n);
    const std::size_t length = server.handle(Time(), ByteView(request).first(out.length()), answer);
    if (header.type == clover::Request::kRegister) store_ = load_le<std::uint32_t>(answer.data() + length - 4);
    slot_ = load_le<std::uint64_t>(answer.data() + clover::kAnswerHeader);
  }

  std::string folder_;
  std::unique_ptr<SqliteDirectory> directory_;
  LeaseId lease_;
  std::uint32_t store_ = 0;
  std::uint64_t slot_ = 0;  // or whatever the answer's first number is
};

TEST_F(StoreStoryTest, IsFoundAgainWhereItsMemoryIs) {
  StoreStory story(path());
  const auto server = story.recall(settings(), *directory_, Duration()).value();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->keys(), 1u);
}

// The directory had forgotten it, and given its number to another.
TEST_F(StoreStoryTest, KnowsItsMemoryByNameWhateverNumberThatHas) {
  directory_ = SqliteDirectory::open(":memory:", Subnet{}, [] { return Time(); }).value();
  join("another", "3b");
  join("memory1", "2a");
  StoreStory story(path());
  const auto server = story.recall(settings(), *directory_, kPatience).value();
  ASSERT_TRUE(server);
  EXPECT_EQ(server->keys(), 1u);
  EXPECT_TRUE(story.begin(Time(), *server));
  const auto another = directory_->nodes()->find("another")->id;
  const auto memory = directory_->nodes()->find("memory1")->id;
  EXPECT_EQ(server->volumes()[0].replicas[0].node, another);
  server->see(Time(), *home_of(*directory_->nodes()->find("another"), 0));
  server->see(Time(), *home_of(*directory_->nodes()->find("memory1"), 0));
  EXPECT_EQ(server->volumes()[0].replicas[0].node, memory);
  EXPECT_EQ(server->lost_volumes(), 0u);
}

// Whoever was in it goes on, and whoever was in another does not.
TEST_F(StoreStoryTest, KeepsItsNumberAndANewOneHasAnother) {
  const std::uint32_t before = store_;
  EXPECT_NE(before, 0u);
  StoreStory story(path());
  const auto server = story.recall(settings(), *directory_, Duration()).value();
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(story.begin(Time(), *server));
  ask(*server, {clover::Request::kRegister, 0, 0, 0}, {});
  EXPECT_EQ(store_, before);
  StoreStory another(folder_ + "/another.journal");
  const auto empty = another.make(settings(), {*home_of(*directory_->nodes()->find("memory1"), 0)}).value();
  ask(*empty, {clover::Request::kRegister, 0, 0, 0}, {});
  EXPECT_NE(store_, before);
}

TEST_F(StoreStoryTest, WaitsForMemoryThatIsAwayForAMoment) {
  leave();
  StoreStory story(path());
  auto recalled = std::async(std::launch::async, [&] { return story.recall(settings(), *directory_, kPatience); });
  // Somebody else's is no reason to give up.
  join("memory2", "1");
  EXPECT_EQ(recalled.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  join("memory1", "2a");
  const auto server = recalled.get().value();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->keys(), 1u);
}

// As one does that too many watch already.
class BusyDirectory final : public Directory {
 public:
  explicit BusyDirectory(Directory& under) : under_(under) {}
  Result<Registration> join(const NodeDescription& who, Duration lease, remote::NodeId) override {
    return under_.join(who, lease);
  }
  Result<void> publish(LeaseId lease, const NodeDescription& who) override { return under_.publish(lease, who); }
  Result<void> renew(LeaseId lease) override { return under_.renew(lease); }
  Result<void> leave(LeaseId lease) override { return under_.leave(lease); }
  Result<Snapshot> nodes() override { return under_.nodes(); }
  Result<Snapshot> watch(std::uint64_t, Duration, NodeKinds) override {
    ++watches;
    return under_.nodes();
  }
  int watches = 0;

 private:
  Directory& under_;
};

TEST_F(StoreStoryTest, AsksADirectoryThatAnswersAtOnceNowAndThen) {
  leave();
  BusyDirectory busy(*directory_);
  StoreStory story(path());
  EXPECT_EQ(story.recall(settings(), busy, Duration::milliseconds(200)).value(), nullptr);
  EXPECT_LE(busy.watches, 12);
}

TEST_F(StoreStoryTest, BeginsAnewWhereItsMemoryIsLostAndKeepsTheJournal) {
  leave();
  join("memory1", "2b");
  const auto before = JournalFile::read(path()).value();
  StoreStory story(path());
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(story.recall(settings(), *directory_, kPatience).value(), nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::nanoseconds(kPatience.nanoseconds()) / 2)
      << "it will not come back";
  EXPECT_TRUE(std::filesystem::exists(path())) << "nothing has begun yet";
  auto server = story.make(settings(), {*home_of(*directory_->nodes()->find("memory1"), 0)}).value();
  ASSERT_TRUE(story.begin(Time(), *server));
  EXPECT_EQ(server->keys(), 0u);
  const auto kept = JournalFile::read(StoreStory::lost(path())).value();
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->records, before->records);
  EXPECT_NE(JournalFile::read(path()).value()->records, before->records);
}

TEST_F(StoreStoryTest, TakesNoClientForLostForTheTimeThatItsJournalTakesToWrite) {
  StoreStory story(path());
  const auto server = story.recall(settings(), *directory_, Duration()).value();
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(story.begin(Time(), *server));
  EXPECT_FALSE(story.journal().failed());
  server->awake(Time() + settings().cursor_lifetime);  // all that time it wrote
  EXPECT_EQ(server->clients(), 1u);
}

TEST_F(StoreStoryTest, DoesNotTryAgainAndAgainToBeginAJournalThatHasNoRoom) {
  StoreStory story(path());
  const auto server = story.recall(settings(), *directory_, Duration()).value();
  ASSERT_NE(server, nullptr);
  server->restart(Time());
  std::filesystem::create_directory(path() + ".new");  // in its place
  const Time first = Time::at(Duration::seconds(100));
  story.keep(first, *server);
  EXPECT_TRUE(story.journal().failed());
  std::filesystem::remove(path() + ".new");
  story.keep(first + StoreStory::kPause - Duration::milliseconds(1), *server);
  EXPECT_TRUE(story.journal().failed()) << "each try keeps everybody waiting";
  story.keep(first + kPatience * 10, *server);
  EXPECT_FALSE(story.journal().failed());
}

TEST_F(StoreStoryTest, LeavesTheJournalAloneWhileNothingElseBegins) {
  leave();
  StoreStory story(path());
  EXPECT_EQ(story.recall(settings(), *directory_, Duration()).value(), nullptr);
  EXPECT_TRUE(std::filesystem::exists(path()));
  join("memory1", "2a");
  StoreStory later(path());
  EXPECT_NE(later.recall(settings(), *directory_, Duration()).value(), nullptr);
}

}  // namespace
}  // namespace sluice::rack
