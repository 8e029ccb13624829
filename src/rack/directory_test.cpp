// The directory contract, over every implementation.
#include "rack/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "rack/authority.h"
#include "rack/directory_http.h"
#include "rack/private_file.h"
#include "rack/sqlite_directory.h"

namespace sluice::rack {
namespace {

constexpr Duration kLease = Duration::seconds(10);

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

class DirectoryTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { start(); }
  void start() {
    auto opened = SqliteDirectory::open(folder_ / "state.sqlite", {},
                                        [this] { return Time::at(Duration::milliseconds(now_ms_)); });
    ASSERT_TRUE(opened) << opened.error().message;
    embedded_ = std::move(*opened);
    if (GetParam() == "http") serve({folder_ / "d.sock"}, {folder_ / "d.sock"});
    if (GetParam() == "tls") {
      // The machine "m2" of a rack that has an authority.
      const std::string tls = folder_ / "tls";
      if (!Authority::is_there(tls)) {
        ASSERT_TRUE(Authority::create(tls, {"127.0.0.1"}));
      }
      const auto issued = Authority::open(tls)->invite("m2", 1);
      ASSERT_TRUE(write_private_file(tls + "/m2.pem", issued->certificate));
      ASSERT_TRUE(write_private_file(tls + "/m2.key", issued->key));
      serve({"127.0.0.1:0", Authority::server_files(tls)},
            {"", telemetry::TlsFiles{tls + "/authority.pem", tls + "/m2.pem", tls + "/m2.key"}});
    }
  }
  void serve(const HttpAddress& at, HttpAddress from) {
    auto server = DirectoryServer::start(*embedded_, at);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    from.text = server_->address();
    client_address_ = from;
    client_ = std::make_unique<DirectoryClient>(from);
  }
  void restart() {
    server_.reset();
    embedded_.reset();
    start();
  }
  Directory& directory() { return client_ ? static_cast<Directory&>(*client_) : *embedded_; }
  void pass(Duration d) { now_ms_ += d.milliseconds(); }

  static NodeDescription memory(const std::string& name) { return {name, NodeKind::kMemory, 0, {}, {}}; }
  Registration join(const std::string& name) {
    auto joined = directory().join(memory(name), kLease);
    EXPECT_TRUE(joined) << joined.error().message;
    return *joined;
  }
  NodeState state_of(const std::string& name) {
    const auto snapshot = directory().nodes();
    const NodeRecord* node = snapshot.value().find(name);
    return node == nullptr ? NodeState::kGone : node->state;
  }

  Folder folder_;
  std::atomic<std::int64_t> now_ms_{1'000};
  std::unique_ptr<SqliteDirectory> embedded_;
  std::unique_ptr<DirectoryServer> server_;
  HttpAddress client_address_;
  std::unique_ptr<DirectoryClient> client_;
};

INSTANTIATE_TEST_SUITE_P(All, DirectoryTest, testing::Values("embedded", "http", "tls"),
                         [](const auto& variant) { return variant.param; });

TEST_P(DirectoryTest, GivesEachNodeANumberAndAddressesOfItsOwn) {
  const Registration a = join("memory1");
  const Registration b = join("memory2");
  EXPECT_NE(a.node.id, b.node.id);
  EXPECT_NE(a.node.ip, b.node.ip);
  EXPECT_NE(a.lease, b.lease);
  EXPECT_EQ(a.node.ip.to_string(), "10.77.0.1");
  EXPECT_EQ(a.node.mac.to_string(), "02:00:0a:4d:00:01");
  EXPECT_EQ(a.node.state, NodeState::kJoining);
}

TEST_P(DirectoryTest, ShowsWhatANodePublished) {
  const Registration joined = join("memory1");
  NodeDescription published = memory("memory1");
  published.cm_port = 7471;
  published.regions = {{"main", 0xFFFF'FFFF'0000'0000u, std::uint64_t{16} << 30, 0xFFFF'FFFFu}};
  published.attributes = {{"pid", "123"}, {"what", "\"quotes\" and ümlauts"}};
  ASSERT_TRUE(directory().publish(joined.lease, published));
  const auto snapshot = directory().nodes();
  ASSERT_EQ(snapshot->nodes.size(), 1u);
  NodeRecord expected = joined.node;
  expected.description = published;
  if (GetParam() == "tls") expected.description.attributes["machine"] = "m2";  // as its certificate says
  expected.state = NodeState::kReady;
  EXPECT_EQ(snapshot->nodes[0], expected);
  EXPECT_EQ(snapshot->ready(NodeKind::kMemory).size(), 1u);
  EXPECT_TRUE(snapshot->ready(NodeKind::kMetadata).empty());
}

TEST_P(DirectoryTest, RefusesANameThatIsTaken) {
  join("memory1");
  const auto second = directory().join(memory("memory1"), kLease);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, testing::HasSubstr("'memory1' is taken"));
}

TEST_P(DirectoryTest, RefusesNamesAndLeasesOutOfBounds) {
  for (const char* name : {"", "a b", "a/b", "é"}) EXPECT_FALSE(directory().join(memory(name), kLease)) << name;
  EXPECT_FALSE(directory().join(memory(std::string(201, 'a')), kLease));
  EXPECT_FALSE(directory().join(memory("a"), Duration::milliseconds(99)));
  EXPECT_FALSE(directory().join(memory("a"), Duration::seconds(3'601)));
}

TEST_P(DirectoryTest, MarksANodeGoneWhenItsLeaseEnds) {
  const Registration joined = join("memory1");
  ASSERT_TRUE(directory().publish(joined.lease, memory("memory1")));
  pass(kLease - Duration::milliseconds(1));
  EXPECT_EQ(state_of("memory1"), NodeState::kReady);
  pass(Duration::milliseconds(1));
  EXPECT_EQ(state_of("memory1"), NodeState::kGone);
  const auto renewed = directory().renew(joined.lease);
  ASSERT_FALSE(renewed);
  EXPECT_TRUE(unknown_lease(renewed.error())) << renewed.error().message;
}

TEST_P(DirectoryTest, KeepsANodeThatRenews) {
  const Registration joined = join("memory1");
  ASSERT_TRUE(directory().publish(joined.lease, memory("memory1")));
  for (int i = 0; i < 5; ++i) {
    pass(kLease / 2);
    ASSERT_TRUE(directory().renew(joined.lease));
  }
  EXPECT_EQ(state_of("memory1"), NodeState::kReady);
}

TEST_P(DirectoryTest, ANodeThatComesBackKeepsItsNumberAndAddresses) {
  const Registration first = join("memory1");
  join("memory2");
  ASSERT_TRUE(directory().leave(first.lease));
  EXPECT_EQ(state_of("memory1"), NodeState::kGone);
  const Registration again = join("memory1");
  EXPECT_EQ(again.node.id, first.node.id);
  EXPECT_EQ(again.node.ip, first.node.ip);
  EXPECT_EQ(again.node.incarnation, 2u);
  EXPECT_NE(again.lease, first.lease);
  EXPECT_FALSE(directory().renew(first.lease)) << "the old lease is dead";
}

TEST_P(DirectoryTest, ForgetsNodesLongGone) {
  const Registration joined = join("memory1");
  ASSERT_TRUE(directory().leave(joined.lease));
  pass(Directory::kForgetAfter);
  EXPECT_TRUE(directory().nodes()->nodes.empty());
}

TEST_P(DirectoryTest, ALeaseSpeaksForItsOwnNodeOnly) {
  const Registration joined = join("memory1");
  EXPECT_FALSE(directory().publish(joined.lease, memory("memory2")));
  EXPECT_TRUE(unknown_lease(directory().publish(LeaseId(joined.lease.value + 1), memory("memory1")).error()));
  EXPECT_TRUE(unknown_lease(directory().leave(LeaseId(0)).error()));
}

TEST_P(DirectoryTest, AWatchReturnsAtTheNextChange) {
  const std::uint64_t before = directory().nodes()->revision;
  std::thread later([&] {
    if (server_) {
      DirectoryClient other(client_address_);
      EXPECT_TRUE(other.join(memory("memory1"), kLease));
    } else {
      join("memory1");
    }
  });
  const auto seen = directory().watch(before, Duration::seconds(30));
  later.join();
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_GT(seen->revision, before);
  EXPECT_NE(seen->find("memory1"), nullptr);
}

TEST_P(DirectoryTest, AWatchReturnsAtOnceWhenTheChangeIsPastAndEndsWithItsTimeout) {
  join("memory1");
  const std::uint64_t now = directory().nodes()->revision;
  EXPECT_EQ(directory().watch(now - 1, Duration::seconds(30))->revision, now);
  EXPECT_EQ(directory().watch(now, Duration::milliseconds(1))->revision, now);
}

TEST_P(DirectoryTest, AWatchSeesALeaseEnd) {
  join("memory1");
  const std::uint64_t before = directory().nodes()->revision;
  pass(kLease);
  if (!server_) embedded_->expire();  // the server does so by itself
  EXPECT_EQ(directory().watch(before, Duration::seconds(30))->find("memory1")->state, NodeState::kGone);
}

TEST_P(DirectoryTest, ARestartedDirectoryKnowsEverythingAndGivesLeasesTheirWholeTime) {
  const Registration joined = join("memory1");
  ASSERT_TRUE(directory().publish(joined.lease, memory("memory1")));
  const std::uint64_t before = directory().nodes()->revision;
  pass(kLease - Duration::milliseconds(1));
  restart();
  pass(kLease - Duration::milliseconds(1));
  EXPECT_EQ(directory().nodes()->revision, before);
  EXPECT_EQ(state_of("memory1"), NodeState::kReady);
  EXPECT_TRUE(directory().renew(joined.lease));
  EXPECT_EQ(join("memory2").node.id.value, 2u);
}

TEST_P(DirectoryTest, StateCopiedFromUnderALivingDirectoryIsWhole) {
  const Registration joined = join("memory1");
  ASSERT_TRUE(directory().publish(joined.lease, memory("memory1")));
  // What a kill -9 leaves behind: the files as they are, nothing closed.
  for (const char* suffix : {"", "-wal"}) {
    std::filesystem::copy_file((folder_ / "state.sqlite") + suffix, (folder_ / "copy.sqlite") + suffix);
  }
  auto copy = SqliteDirectory::open(folder_ / "copy.sqlite", {}, [] { return Time(); });
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_EQ((*copy)->nodes()->nodes, directory().nodes()->nodes);
  EXPECT_TRUE((*copy)->renew(joined.lease));
}

TEST(SqliteDirectory, GivesAnEvictedNodesNameAtOnce) {
  auto directory = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
  const NodeDescription node{"switch", NodeKind::kSwitch, 0, {}, {}};
  const auto first = (*directory)->join(node, kLease);
  ASSERT_TRUE((*directory)->evict("switch"));
  EXPECT_FALSE((*directory)->renew(first->lease));
  EXPECT_EQ((*directory)->join(node, kLease)->node.id, first->node.id);
  EXPECT_TRUE((*directory)->evict("nobody"));
}

TEST(SqliteDirectory, SaysWhatIsWrongWithItsStateFile) {
  const Folder folder;
  const auto missing = SqliteDirectory::open(folder / "no/such/folder", {}, [] { return Time(); });
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, testing::HasSubstr("no/such/folder"));
}

TEST(DirectoryServer, RefusesASecondOnTheSameSocketAndReplacesADeadOne) {
  const Folder folder;
  auto directory = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
  const std::string path = folder / "d.sock";
  std::filesystem::copy_file("/proc/self/cmdline", path);  // in the way, and nobody listens
  auto first = DirectoryServer::start(**directory, {path});
  ASSERT_TRUE(first) << first.error().message;
  const auto second = DirectoryServer::start(**directory, {path});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, testing::HasSubstr("already"));
  EXPECT_TRUE(DirectoryClient({path}).nodes()) << "the first still serves";
}

TEST(DirectoryClient, SaysThatNobodyAnswers) {
  const Folder folder;
  const auto nodes = DirectoryClient({folder / "none.sock"}, Duration::milliseconds(1)).nodes();
  ASSERT_FALSE(nodes);
  EXPECT_THAT(nodes.error().message, testing::HasSubstr("is the rack up?"));
}

TEST(DirectoryClient, AsksAgainUntilTheDirectoryIsThere) {
  const Folder folder;
  auto directory = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
  Result<Snapshot> nodes = fail("not asked");
  std::thread asker([&] { nodes = DirectoryClient({folder / "d.sock"}, Duration::seconds(30)).nodes(); });
  const auto server = DirectoryServer::start(**directory, {folder / "d.sock"});
  asker.join();
  EXPECT_TRUE(nodes) << nodes.error().message;
}

}  // namespace
}  // namespace sluice::rack
