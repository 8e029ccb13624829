// The file of grants: each entry is given once, and what is no such file is said to be none.
#include "rack/endpoint/onerma_grants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

constexpr GrantsWriter kTarget{"the target", "target"};

class OnermaGrants : public testing::Test {
 protected:
  OnermaGrants() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~OnermaGrants() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return (folder_ / "grants.json").string(); }
  // Of two initiators.
  void write() const {
    std::vector<ClientGrants> clients;
    for (std::uint64_t i = 1; i <= 2; ++i) {
      const onerma::Grant grant{.region = onerma::RegionId(7),
                                .generation = onerma::Generation(1),
                                .initiator = onerma::InitiatorId(i),
                                .rights = onerma::kMayRead,
                                .key = fresh_onerma_key()};
      clients.push_back({onerma::InitiatorId(i), {{grant, 0x1000, 4096}}});
    }
    const onerma::Peer target{wire::MacAddress{{2, 0, 0, 0, 0, 9}}, wire::Ipv4Address{0x0A000009}};
    ASSERT_TRUE(write_grants(path(), target, clients));
  }
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  static std::string problem(const std::string& path) {
    const auto taken = take_grants(path, kTarget);
    return taken ? "" : taken.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(OnermaGrants, EachIsGivenOnceFromAFileThatOnlyItsOwnerReads) {
  write();
  struct stat about {};
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  for (std::uint64_t i = 1; i <= 2; ++i) {
    const auto taken = take_grants(path(), kTarget);
    ASSERT_TRUE(taken) << taken.error().message;
    EXPECT_EQ(taken->mine.initiator, onerma::InitiatorId(i));
    ASSERT_EQ(taken->mine.regions.size(), 1u);
    EXPECT_EQ(taken->mine.regions[0].grant.rights, onerma::kMayRead);
    EXPECT_EQ(taken->mine.regions[0].length, 4096u);
    EXPECT_EQ(taken->target.ip.value, 0x0A000009u);
  }
  EXPECT_NE(problem(path()).find("has no grant left; start its target anew"), std::string::npos);
}

TEST_F(OnermaGrants, OneThatWasGivenBackIsTheNextOfItsLifeAndOfNoOther) {
  write();
  const std::string before = text();
  ASSERT_TRUE(look_at_grants(path(), kTarget));
  EXPECT_EQ(text(), before);
  const auto taken = take_grants(path(), kTarget);
  ASSERT_TRUE(taken);
  EXPECT_NE(text(), before);
  give_back(*taken);
  EXPECT_EQ(text(), before);
  write();
  const std::string anew = text();
  give_back(*taken);
  EXPECT_EQ(text(), anew);
}

TEST_F(OnermaGrants, AFileBelongsToOneTargetForAsLongAsThatLives) {
  {
    const auto first = own_grants(path(), kCacheReplica);
    ASSERT_TRUE(first);
    const auto second = own_grants(path(), kCacheReplica);
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message.find("has the grants of another replica that runs"), std::string::npos);
  }
  EXPECT_TRUE(own_grants(path(), kCacheReplica));
}

TEST_F(OnermaGrants, CanBeWrittenToTheFolderInWhichOneIs) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  EXPECT_TRUE(write_private_file("grants.json", "{}"));
  std::filesystem::current_path(before);
  EXPECT_EQ(text(), "{}");
}

TEST_F(OnermaGrants, AFileIsNotWrittenAnewWhileAClientTakesOut) {
  write();
  const std::string before = text();
  const int taking = open((path() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(taking, LOCK_EX), 0);
  std::thread target([this] { write(); });
  const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);  // for one that does not wait
  while (std::chrono::steady_clock::now() < enough) EXPECT_EQ(text(), before);
  close(taking);
  target.join();
  EXPECT_NE(text(), before);
}

TEST_F(OnermaGrants, WhatIsNoSuchFileIsSaidToBeNoneAndLeftAsItIs) {
  const std::string none = "is no file of grants, as `the target` writes it";
  EXPECT_NE(problem(path()).find("cannot read " + path() + ": No such file"), std::string::npos);
  EXPECT_NE(problem(folder_.string()).find(none), std::string::npos) << "a folder";
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a lock beside a file that is not there";
  write();
  const std::string good = text();
  // Cut anywhere before its last brace.
  for (std::size_t length = 0; length + 2 < good.size(); length += 7) {
    write(good.substr(0, length));
    EXPECT_NE(problem(path()).find(none), std::string::npos) << length;
  }
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"rights\": 1", "\"rights\": 300"},
                                 {"\"key\": \"", "\"key\": \"g"},
                                 {"\"regions\": [", "\"regions\": 5, \"other\": ["},
                                 {"\"ip\": \"", "\"ip\": \"x"}}) {
    std::string bad = good;
    const std::size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    write(bad);
    EXPECT_NE(problem(path()).find(none), std::string::npos) << to;
    EXPECT_EQ(text(), bad);
  }
  auto named = nlohmann::json::parse(good);
  named["grants"] = {{"the first", named["grants"][0]}};
  write(named.dump());
  EXPECT_NE(problem(path()).find(none), std::string::npos) << "entries with names";
  EXPECT_EQ(text(), named.dump());
}

}  // namespace
}  // namespace sluice::rack
