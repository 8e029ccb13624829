#include "verbs/counter_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace sluice::verbs {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class CounterFileTest : public testing::Test {
 protected:
  CounterFileTest() { std::filesystem::create_directory(folder_); }
  ~CounterFileTest() override { std::filesystem::remove_all(folder_); }

  std::string in_folder(const std::string& name) const { return folder_ + "/" + name; }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static NicCounters counted(std::uint64_t frames) {
    NicCounters counters;
    counters.nic.rx_cnp = frames;
    counters.port.rx_frames = frames;
    return counters;
  }
  // As `sluice run` asks.
  static bool is_someones(const std::string& path) {
    const ports::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return flock(file.get(), LOCK_EX | LOCK_NB) != 0;
  }

  const std::string folder_ = fmt::format("/tmp/sluice-counters-{}", getpid());
};

TEST_F(CounterFileTest, HasAllCountersAndTheirOwner) {
  const auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  ASSERT_TRUE(file);
  file->write(counted(7));
  const auto json = nlohmann::json::parse(text_of(in_folder("c.json")));
  EXPECT_EQ(json.at("process"), getpid());
  EXPECT_EQ(json.at("address"), "10.77.0.9");
  EXPECT_EQ(json.at("complete"), false);
  const auto all = [&](const char* object, const auto& counters) {
    std::size_t count = 0;
    counters.for_each([&](const char* name, const char*, std::uint64_t value) {
      EXPECT_EQ(json.at(object).at(name), value) << name;
      ++count;
    });
    EXPECT_EQ(json.at(object).size(), count);
  };
  all("nic", counted(7).nic);
  all("port", counted(7).port);
}

TEST_F(CounterFileTest, HasNothingNewAfterTheLastAndNothingBesideIt) {
  const auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  file->write_last(counted(7));
  const std::string last = text_of(in_folder("c.json"));
  EXPECT_EQ(nlohmann::json::parse(last).at("complete"), true);
  file->write(counted(8));
  file->write_last(counted(9));
  EXPECT_EQ(text_of(in_folder("c.json")), last);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CounterFileTest, IsLockedAsLongAsItsProcessLives) {
  auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  EXPECT_TRUE(is_someones(in_folder("c.json")));
  file->write(counted(7));
  EXPECT_TRUE(is_someones(in_folder("c.json"))) << "the one that has taken its place";
  file.reset();
  EXPECT_FALSE(is_someones(in_folder("c.json")));
}

TEST_F(CounterFileTest, IsNotItsChildsWhoMayLiveLonger) {
  auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  std::array<int, 2> ready{};
  std::array<int, 2> over{};
  ASSERT_EQ(pipe(ready.data()) + pipe(over.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    file->abandon();
    char byte = 1;
    static_cast<void>(!write(ready[1], &byte, 1));
    close(over[1]);
    _exit(static_cast<int>(read(over[0], &byte, 1)));
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(is_someones(in_folder("c.json"))) << "its parent's still";
  file.reset();
  EXPECT_FALSE(is_someones(in_folder("c.json")));
  for (const int descriptor : {ready[0], ready[1], over[0], over[1]}) close(descriptor);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CounterFileTest, OfAnotherIsLeftAloneWhichIsSaid) {
  std::ofstream(in_folder("c.json")) << "another's";
  testing::internal::CaptureStderr();
  const auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(file);
  file->write(counted(7));
  const std::string own = fmt::format("{}.{}", in_folder("c.json"), getpid());
  EXPECT_EQ(text_of(in_folder("c.json")), "another's");
  EXPECT_EQ(nlohmann::json::parse(text_of(own)).at("nic").at("rx_cnp"), 7);
  EXPECT_THAT(said, AllOf(HasSubstr("is there already"), HasSubstr(own)));
}

TEST_F(CounterFileTest, HasTheProcessInItsNameWhereThatIsWanted) {
  testing::internal::CaptureStderr();
  const auto file = CounterFile::take(in_folder("%p/../c-%p.json"), "10.77.0.9");
  EXPECT_FALSE(file) << "there is no such folder";
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("No such file or directory"));
  EXPECT_TRUE(CounterFile::take(in_folder("c-%p.json"), "10.77.0.9"));
  EXPECT_TRUE(std::filesystem::exists(in_folder(fmt::format("c-{}.json", getpid()))));
}

TEST_F(CounterFileTest, ThatCannotBeWrittenIsSaidOnceAndTriedAgain) {
  const auto file = CounterFile::take(in_folder("c.json"), "10.77.0.9");
  std::filesystem::remove_all(folder_);
  testing::internal::CaptureStderr();
  file->write(counted(7));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cannot be written there: No such file"));
  testing::internal::CaptureStderr();
  file->write(counted(8));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
  std::filesystem::create_directory(folder_);
  file->write(counted(8));
  EXPECT_EQ(nlohmann::json::parse(text_of(in_folder("c.json"))).at("nic").at("rx_cnp"), 8);
}

}  // namespace
}  // namespace sluice::verbs
