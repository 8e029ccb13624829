#include "ports/host_directory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

namespace sluice::ports {
namespace {

class HostDirectoryTest : public testing::Test {
 protected:
  HostDirectoryTest() {
    std::string name = testing::TempDir() + "sluice-host-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~HostDirectoryTest() override { host().remove(); }
  HostDirectory host() const { return HostDirectory(path_); }

  std::string path_;
};

TEST_F(HostDirectoryTest, GivesEachProgramTheLowestPlaceThatIsFree) {
  auto first = host().take_place();
  const auto second = host().take_place();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->number, 1);
  EXPECT_EQ(second->number, 2);
  first->lock.close();
  EXPECT_EQ(host().take_place()->number, 1);
}

TEST_F(HostDirectoryTest, HasAsManyPlacesAsATopByteOfQueuePairNumbersAndThenSaysSo) {
  std::vector<HostDirectory::Place> taken;
  for (int i = 0; i < HostDirectory::kPlaces; ++i) taken.push_back(std::move(*host().take_place()));
  EXPECT_EQ(taken.back().number, HostDirectory::kPlaces);
  EXPECT_FALSE(host().take_place());
}

TEST_F(HostDirectoryTest, LeavesWhatIsNotItsOwn) {
  const auto place = host().take_place();
  const Descriptor user = host().use();
  const Descriptor lock = host().lock();
  for (const char* const name : {"/notes.txt", "/place-for-notes"}) std::ofstream(path_ + name) << "precious";
  std::filesystem::create_directory(path_ + "/place-for-everything");
  host().remove();
  for (const char* const name : {"/notes.txt", "/place-for-notes", "/place-for-everything"})
    EXPECT_TRUE(std::filesystem::exists(path_ + name)) << name;
  for (const char* const name : {"/place-1", "/users", "/lock"}) EXPECT_FALSE(std::filesystem::exists(path_ + name));
  std::filesystem::remove_all(path_);
}

TEST_F(HostDirectoryTest, AServiceHasOneListenerAndIsFreeWhenHeIsGone) {
  EXPECT_EQ(host().listener(7471), std::nullopt);
  Descriptor listener = host().take_service(7471, 3);
  EXPECT_TRUE(listener);
  EXPECT_FALSE(host().take_service(7471, 4));
  EXPECT_EQ(host().listener(7471), 3);
  EXPECT_EQ(host().listener(7472), std::nullopt);
  listener.close();
  EXPECT_EQ(host().listener(7471), std::nullopt);
  EXPECT_TRUE(host().take_service(7471, 4));
}

TEST_F(HostDirectoryTest, AServiceIsFreeForWhoListensWhileOthersAskWhoDoes) {
  std::atomic<bool> done{false};
  std::thread asking([&] {
    while (!done) host().listener(7471);
  });
  int refused = 0;
  for (int i = 0; i < 5000; ++i) refused += host().take_service(7471, 3) ? 0 : 1;
  done = true;
  asking.join();
  EXPECT_EQ(refused, 0);
}

// How many wait for a lock on the file with this number, as the kernel says.
std::size_t waiting_for(ino_t file) {
  std::ifstream locks("/proc/locks");
  const std::string name = ":" + std::to_string(file) + " ";
  std::size_t waiting = 0;
  for (std::string line; std::getline(locks, line);) {
    if (line.find("->") != std::string::npos && line.find(name) != std::string::npos) ++waiting;
  }
  return waiting;
}
ino_t number_of(const Descriptor& file) {
  struct stat found {};
  EXPECT_EQ(fstat(file.get(), &found), 0);
  return found.st_ino;
}

TEST_F(HostDirectoryTest, WhoHasWaitedForALockThatIsGoneWaitsForTheNewOne) {
  std::ofstream(path_ + "/notes.txt") << "precious";  // so the directory stays
  Descriptor first = host().lock();
  std::atomic<bool> has_it{false};
  std::thread waits([&] {
    const Descriptor lock = host().lock();
    has_it = true;
  });
  while (waiting_for(number_of(first)) == 0) std::this_thread::yield();
  host().remove();
  Descriptor second = host().lock();
  EXPECT_NE(number_of(second), number_of(first));
  first.close();
  while (!has_it && waiting_for(number_of(second)) == 0) std::this_thread::yield();
  EXPECT_FALSE(has_it) << "there are two who are alone";
  second.close();
  waits.join();
  EXPECT_TRUE(has_it);
  std::filesystem::remove(path_ + "/notes.txt");
}

TEST_F(HostDirectoryTest, ThereIsNoLockWithoutItsDirectory) {
  host().remove();
  EXPECT_FALSE(host().lock());
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(HostDirectoryTest, KnowsWhetherSomebodyUsesIt) {
  EXPECT_FALSE(host().has_users());
  Descriptor one = host().use();
  const Descriptor another = host().use();
  EXPECT_TRUE(host().has_users());
  one.close();
  EXPECT_TRUE(host().has_users());
}

}  // namespace
}  // namespace sluice::ports
