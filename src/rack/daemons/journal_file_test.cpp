#include "rack/daemons/journal_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace sluice::rack {
namespace {

using Bytes = std::vector<std::uint8_t>;

class JournalFileTest : public testing::Test {
 protected:
  JournalFileTest() : folder_(testing::TempDir() + "journal-" + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~JournalFileTest() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/metadata.journal"; }
  // Full for this process.
  template <class Do>
  static void on_a_full_disk(Do&& todo) {
    struct rlimit before {};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto old = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small { 64, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    todo();
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old);
  }

  std::string folder_;
};

TEST_F(JournalFileTest, IsReadAsItWasWritten) {
  EXPECT_EQ(*JournalFile::read(path()), std::nullopt);
  JournalFile journal(path());
  EXPECT_TRUE(journal.failed()) << "not begun";
  ASSERT_TRUE(journal.begin("a store", Bytes{1, 2, 3}));
  journal.append(Bytes{4});
  journal.append(Bytes{});
  const auto story = *JournalFile::read(path());
  ASSERT_TRUE(story.has_value());
  EXPECT_EQ(story->store, "a store");
  EXPECT_EQ(story->records, (std::vector<Bytes>{{1, 2, 3}, {4}, {}}));
  ASSERT_TRUE(journal.begin("a store", Bytes{9}));
  journal.append(Bytes{10});
  EXPECT_EQ((*JournalFile::read(path()))->records, (std::vector<Bytes>{{9}, {10}}));
  EXPECT_FALSE(journal.wants_to_begin_again());
}

TEST_F(JournalFileTest, IsReadUpToWhereItsWriterDied) {
  {
    JournalFile journal(path());
    ASSERT_TRUE(journal.begin("a store", Bytes{1, 2, 3}));
    journal.append(Bytes{4, 5});
  }
  const auto whole = std::filesystem::file_size(path());
  for (std::uintmax_t length = whole; length-- > 0;) {
    std::filesystem::resize_file(path(), length);
    const auto story = *JournalFile::read(path());
    if (story) {
      EXPECT_EQ(story->records, (std::vector<Bytes>{{1, 2, 3}}));
    }
    EXPECT_EQ(story.has_value(), length >= whole - 6);
  }
}

// Those of ever so many keys, whose records a test cannot hold.
TEST(JournalFileLength, IsReadAsItWasWrittenHoweverLong) {
  constexpr std::uint64_t kLimit = 0xFFFF'FFFF;
  for (const std::uint64_t length : {std::uint64_t{0}, kLimit - 1, kLimit, kLimit + 1, kLimit + 2, kLimit * 5}) {
    Bytes bytes;
    JournalFile::put_length(bytes, length);
    EXPECT_EQ(bytes.size(), length < kLimit ? 4u : 12u);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      ByteView part = ByteView(bytes).first(cut);
      EXPECT_EQ(JournalFile::take_length(part), std::nullopt);
    }
    bytes.push_back(17);
    ByteView in(bytes);
    EXPECT_EQ(JournalFile::take_length(in), length);
    EXPECT_EQ(in.size(), 1u);
  }
}

TEST_F(JournalFileTest, ReadsARecordWhoseLengthIsWrittenOut) {
  std::ofstream file(path(), std::ios::binary);
  const std::string lengthy("\xff\xff\xff\xff\2\0\0\0\0\0\0\0", 12);
  file << std::string("\1\0\0\0", 4) << "s" << lengthy << "ab" << lengthy << "c";
  file.close();
  const auto story = *JournalFile::read(path());
  ASSERT_TRUE(story.has_value());
  EXPECT_EQ(story->records, (std::vector<Bytes>{{'a', 'b'}}));
}

TEST_F(JournalFileTest, ThatCannotBeWrittenOnIsRemoved) {
  JournalFile journal(path());
  ASSERT_TRUE(journal.begin("a store", Bytes{1}));
  on_a_full_disk([&] { journal.append(Bytes(100, 7)); });
  EXPECT_TRUE(journal.failed());
  EXPECT_EQ(*JournalFile::read(path()), std::nullopt);
  ASSERT_TRUE(journal.begin("a store", Bytes{2}));
  EXPECT_FALSE(journal.failed());
  EXPECT_EQ((*JournalFile::read(path()))->records, (std::vector<Bytes>{{2}}));
}

// A server that was stopped for longer than its lease goes on for a moment, beside the one that has taken its place.
TEST_F(JournalFileTest, OfASuccessorIsLeftAloneByWhoeverHadItBefore) {
  JournalFile before(path());
  ASSERT_TRUE(before.begin("a store", Bytes{1}));
  JournalFile successor(path());
  ASSERT_TRUE(successor.begin("a store", Bytes{2})) << "as it found it";
  const auto again = before.begin("a store", Bytes{3});
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("another metadata server"), std::string::npos);
  on_a_full_disk([&] { before.append(Bytes(100, 7)); });
  EXPECT_TRUE(before.failed());
  EXPECT_FALSE(before.begin("a store", Bytes{4}));
  successor.append(Bytes{5});
  EXPECT_EQ((*JournalFile::read(path()))->records, (std::vector<Bytes>{{2}, {5}}));
}

}  // namespace
}  // namespace sluice::rack
