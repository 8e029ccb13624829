// The directory contract, over every implementation.
#include "rack/directory/directory.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ports/unix_socket.h"
#include "rack/directory/authority.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/etcd_directory.h"
#include "rack/directory/lease_clock.h"
#include "rack/directory/sqlite_directory.h"
#include "rack/process/process.h"
#include "rack/settings/private_file.h"
#include "telemetry/slow_guests.h"

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

// An etcd of the tests' own, one for all of them; keys of each test have a prefix of their own.
class Etcd {
 public:
  static bool is_installed() { return std::system("command -v etcd > /dev/null 2>&1") == 0; }

  Etcd() : client_port_(free_port()), peer_port_(free_port()) {
    const std::string client = fmt::format("http://127.0.0.1:{}", client_port_);
    const std::string peer = fmt::format("http://127.0.0.1:{}", peer_port_);
    auto spawned = spawn({"/usr/bin/env", "etcd", "--name", "one", "--data-dir", folder_ / "data",
                          "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                          "--initial-advertise-peer-urls", peer, "--initial-cluster", "one=" + peer},
                         folder_ / "log");
    if (!spawned) return;
    close(spawned->ready_descriptor);
    pid_ = spawned->process.pid;
  }
  ~Etcd() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Etcd(const Etcd&) = delete;
  Etcd& operator=(const Etcd&) = delete;

  Result<std::unique_ptr<EtcdDirectory>> open() {
    for (int i = 0;; ++i) {  // each try has a patience of its own
      auto opened = EtcdDirectory::open({.addresses = {address()}, .prefix = fmt::format("/test-{}", ++opened_)}, {});
      if (opened || i == 10) return opened;
    }
  }
  // The one that was opened last, by somebody else.
  Result<std::unique_ptr<EtcdDirectory>> open_again() {
    return EtcdDirectory::open({.addresses = {address()}, .prefix = fmt::format("/test-{}", opened_)}, {});
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", client_port_); }
  // What time does to a lease.
  void end(std::uint64_t lease) {
    httplib::Client client(address());
    client.Post("/v3/lease/revoke", fmt::format(R"({{"ID": "{}"}})", lease), "application/json");
  }

 private:
  static int free_port() {
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool bound = bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    close(probe);
    return bound ? ntohs(address.sin_port) : 0;
  }

  Folder folder_;
  int client_port_;
  int peer_port_;
  int opened_ = 0;
  pid_t pid_ = 0;
};

// Leases whose time is the test's: ends them when that has passed.
class VirtualLeases final : public Directory {
 public:
  VirtualLeases(Directory& inner, Etcd& etcd, const std::atomic<std::int64_t>& now_ms)
      : inner_(inner), etcd_(etcd), now_ms_(now_ms) {}

  void pass() {
    for (auto& [id, lease] : leases_) {
      if (!lease.ended && lease.until <= now_ms_) {
        etcd_.end(id);
        lease.ended = true;
        lease.until += lease.kept;
      }
      if (lease.ended && lease.until <= now_ms_) etcd_.end(id | std::uint64_t{1} << 62);
      if (lease.left && lease.forgotten <= now_ms_) etcd_.end(id | std::uint64_t{1} << 61);
    }
  }
  Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) override {
    auto joined = inner_.join(description, lease, wish);
    if (joined) {
      leases_[joined->lease.value] = {.length = lease.milliseconds(),
                                      .kept = Directory::forget_lost_after(description.kind).milliseconds(),
                                      .kept_left = Directory::forget_left_after(description.kind).milliseconds(),
                                      .until = now_ms_ + lease.milliseconds()};
    }
    return joined;
  }
  Result<void> publish(LeaseId lease, const NodeDescription& description) override {
    return renewed(lease, inner_.publish(lease, description));
  }
  Result<void> renew(LeaseId lease) override { return renewed(lease, inner_.renew(lease)); }
  Result<void> leave(LeaseId lease) override {
    auto left = inner_.leave(lease);
    if (left) {
      Lease& ended = leases_[lease.value];
      ended.until = now_ms_ + ended.kept;
      ended.forgotten = now_ms_ + ended.kept_left;
      ended.ended = ended.left = true;
    }
    return left;
  }
  Result<Snapshot> nodes() override { return inner_.nodes(); }
  Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) override {
    return inner_.watch(seen, timeout, kinds);
  }
  void cut_watches() override { inner_.cut_watches(); }

 private:
  struct Lease {
    std::int64_t length = 0;
    std::int64_t kept = 0;       // the node's record, once it has ended
    std::int64_t kept_left = 0;  // that of a node that has left
    std::int64_t until = 0;      // of the lease; when it has ended: of the node's record
    std::int64_t forgotten = 0;  // of a node that has left: until when its record is kept
    bool ended = false;
    bool left = false;
  };
  Result<void> renewed(LeaseId lease, Result<void> answer) {
    if (answer) leases_[lease.value].until = now_ms_ + leases_[lease.value].length;
    return answer;
  }

  Directory& inner_;
  Etcd& etcd_;
  const std::atomic<std::int64_t>& now_ms_;
  std::map<std::uint64_t, Lease> leases_;
};

class DirectoryTest : public testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() { etcd_.reset(); }
  void SetUp() override {
    if (GetParam() == "etcd" && !Etcd::is_installed()) GTEST_SKIP() << "etcd is not installed";
    start();
  }
  void start() {
    if (GetParam() == "etcd") {
      if (!etcd_) etcd_ = std::make_unique<Etcd>();
      auto opened = etcd_->open();
      ASSERT_TRUE(opened) << opened.error().message;
      in_etcd_ = std::move(*opened);
      virtual_ = std::make_unique<VirtualLeases>(*in_etcd_, *etcd_, now_ms_);
      return;
    }
    auto opened = SqliteDirectory::open(
        folder_ / "state.sqlite", {}, [this] { return Time::at(Duration::milliseconds(now_ms_)); },
        folder_ / "tenants.json");
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
    if (in_etcd_) {
      virtual_.reset();
      in_etcd_ = etcd_->open_again().value();
      virtual_ = std::make_unique<VirtualLeases>(*in_etcd_, *etcd_, now_ms_);
      return;
    }
    server_.reset();
    embedded_.reset();
    start();
  }
  DirectoryStore& store() { return in_etcd_ ? static_cast<DirectoryStore&>(*in_etcd_) : *embedded_; }
  // A client that shows this token.
  DirectoryClient with_token(const std::string& token) {
    HttpAddress address = client_address_;
    address.token_file = folder_ / "token";
    EXPECT_TRUE(write_private_file(address.token_file, token + "\n"));
    return DirectoryClient(address);
  }
  Directory& directory() {
    if (virtual_) return *virtual_;
    return client_ ? static_cast<Directory&>(*client_) : *embedded_;
  }
  void pass(Duration d) {
    now_ms_ += d.milliseconds();
    if (virtual_) virtual_->pass();
  }

  static NodeDescription memory(const std::string& name) { return {name, NodeKind::kMemory, 0, {}, {}}; }
  static NodeDescription client(const std::string& name) { return {name, NodeKind::kClient, 0, {}, {}}; }
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
  static inline std::unique_ptr<Etcd> etcd_;
  std::unique_ptr<EtcdDirectory> in_etcd_;
  std::unique_ptr<VirtualLeases> virtual_;
  HttpAddress client_address_;
  std::unique_ptr<DirectoryClient> client_;
};

// Those whose state is a file.
class DirectoryFileTest : public DirectoryTest {};
INSTANTIATE_TEST_SUITE_P(All, DirectoryFileTest, testing::Values("embedded", "http", "tls"),
                         [](const auto& variant) { return variant.param; });
INSTANTIATE_TEST_SUITE_P(All, DirectoryTest, testing::Values("embedded", "http", "tls", "etcd"),
                         [](const auto& variant) { return variant.param; });

// Those that are asked over HTTP.
class DirectoryServedTest : public DirectoryTest {};
INSTANTIATE_TEST_SUITE_P(All, DirectoryServedTest, testing::Values("http", "tls"),
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
  if (GetParam() == "tls") expected.description.attributes[kMachineAttribute] = "m2";  // as its certificate says
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

TEST_P(DirectoryTest, TellsWhoHasLeftFromWhoIsLost) {
  const Registration left = join("memory1");
  join("memory2");
  ASSERT_TRUE(directory().leave(left.lease));
  pass(kLease);
  ASSERT_EQ(state_of("memory1"), NodeState::kGone);
  ASSERT_EQ(state_of("memory2"), NodeState::kGone);
  restart();
  EXPECT_TRUE(directory().nodes()->find("memory1")->has_left);
  EXPECT_FALSE(directory().nodes()->find("memory2")->has_left);
  join("memory1");
  EXPECT_FALSE(directory().nodes()->find("memory1")->has_left);
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
  ASSERT_TRUE(directory().join(client("a"), kLease));
  pass(kLease);
  EXPECT_EQ(directory().nodes()->nodes.size(), 1u);
  pass(Directory::kForgetAfter);
  EXPECT_TRUE(directory().nodes()->nodes.empty());
}

TEST_P(DirectoryTest, ForgetsAClientSoonThatHasLeft) {
  const Registration left = directory().join(client("left"), kLease).value();
  const Registration memory_left = join("memory1");
  ASSERT_TRUE(directory().join(client("lost"), kLease));
  ASSERT_TRUE(directory().join(client("evicted"), kLease));
  ASSERT_TRUE(store().evict("evicted"));
  pass(kLease - Duration::milliseconds(1));
  ASSERT_TRUE(directory().leave(left.lease));
  ASSERT_TRUE(directory().leave(memory_left.lease));
  pass(Directory::kForgetClientAfter - Duration::milliseconds(1));
  EXPECT_TRUE(directory().nodes()->find("left")->has_left);
  const std::uint64_t before = directory().nodes()->revision;
  pass(Directory::kForgetClientAfter);
  const Snapshot after = directory().nodes().value();
  EXPECT_EQ(after.find("left"), nullptr);
  EXPECT_GT(after.revision, before);
  for (const char* const name : {"memory1", "lost", "evicted"}) EXPECT_NE(after.find(name), nullptr) << name;
  EXPECT_FALSE(after.find("lost")->has_left);
  EXPECT_FALSE(after.find("evicted")->has_left);
}

// Its connections may be remembered longer than itself.
TEST_P(DirectoryTest, ANumberIsNotGivenAgainAtOnce) {
  const Registration first = directory().join(client("a"), kLease).value();
  ASSERT_TRUE(directory().leave(first.lease));
  pass(Directory::kForgetClientAfter);
  EXPECT_NE(directory().join(client("b"), kLease)->node.id, first.node.id);
}

// A process that was stopped, or asleep, for so long: everybody knows it by its number.
TEST_P(DirectoryTest, WhoWasForgottenGetsItsNumberBackWhereItIsFree) {
  const Registration first = directory().join(client("a"), kLease).value();
  const Registration other = directory().join(client("b"), kLease).value();
  pass(kLease);
  EXPECT_EQ(directory().nodes()->nodes.size(), 2u);
  pass(Directory::kForgetAfter + kLease);
  ASSERT_TRUE(directory().nodes()->nodes.empty());
  const Registration last = directory().join(client("c"), kLease).value();
  EXPECT_NE(last.node.id, first.node.id);
  const Registration again = directory().join(client("a"), kLease, first.node.id).value();
  EXPECT_EQ(again.node.id, first.node.id);
  EXPECT_EQ(again.node.ip, first.node.ip);
  // Not another's, nor one that was never given, which is of another rack.
  const Registration taken = directory().join(client("d"), kLease, first.node.id).value();
  const Registration strange = directory().join(client("e"), kLease, remote::NodeId(200 + last.node.id.value)).value();
  EXPECT_EQ(taken.node.id.value, last.node.id.value + 1);
  EXPECT_EQ(strange.node.id.value, last.node.id.value + 2);
  // A name that is known keeps what it has.
  EXPECT_EQ(directory().leave(taken.lease).has_value(), true);
  EXPECT_EQ(directory().join(client("d"), kLease, other.node.id)->node.id, taken.node.id);
}

TEST_P(DirectoryTest, AClientThatComesBackSoonKeepsItsNumberAndIsRemembered) {
  const Registration first = directory().join(client("a"), kLease).value();
  ASSERT_TRUE(directory().leave(first.lease));
  const Registration again = directory().join(client("a"), kLease).value();
  EXPECT_EQ(again.node.id, first.node.id);
  EXPECT_EQ(again.node.incarnation, 2u);
  for (int i = 0; i < 3; ++i) {
    pass(kLease / 2);
    ASSERT_TRUE(directory().renew(again.lease));
  }
  EXPECT_EQ(state_of("a"), NodeState::kJoining) << "what was to be forgotten was its life before";
}

// A store lies in memory that is there, or comes back.
TEST_P(DirectoryTest, RemembersMetadataServersAndMemoryNodesLonger) {
  ASSERT_TRUE(directory().join({"metadata", NodeKind::kMetadata, 0, {}, {}}, kLease));
  ASSERT_TRUE(directory().join({"memory1", NodeKind::kMemory, 0, {}, {}}, kLease));
  const auto left = directory().join({"memory2", NodeKind::kMemory, 0, {}, {}}, kLease);
  ASSERT_TRUE(directory().leave(left->lease));
  pass(kLease);
  pass(Directory::kForgetAfter + kLease);
  EXPECT_EQ(directory().nodes()->nodes.size(), 3u);
  EXPECT_EQ(directory().join({"memory2", NodeKind::kMemory, 0, {}, {}}, kLease)->node.id, left->node.id);
  pass(kLease);
  EXPECT_EQ(directory().nodes()->nodes.size(), 3u);
  pass(Directory::kForgetStoreAfter);
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
  const auto seen = directory().watch(before, Duration::seconds(30), kAllKinds);
  later.join();
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_GT(seen->revision, before);
  EXPECT_NE(seen->find("memory1"), nullptr);
}

TEST_P(DirectoryTest, AWatchReturnsAtOnceWhenTheChangeIsPastAndEndsWithItsTimeout) {
  join("memory1");
  const std::uint64_t now = directory().nodes()->revision;
  const std::uint64_t told = directory().watch(now - 1, Duration::seconds(30), kAllKinds)->revision;
  EXPECT_GE(told, now);
  if (GetParam() != "etcd") {  // where others' keys have revisions, too
    EXPECT_EQ(told, now);
  }
  EXPECT_EQ(directory().watch(now, Duration::milliseconds(1), kAllKinds)->revision, now);
}

TEST_P(DirectoryTest, AWatchEndsWhenNobodyIsToWatchAnyMore) {
  const std::uint64_t now = store().nodes()->revision;
  const auto begun = std::chrono::steady_clock::now();
  std::thread watching([&] { EXPECT_EQ(store().watch(now, Duration::seconds(60), kAllKinds)->revision, now); });
  // As a rule it waits by then.
  while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(20)) std::this_thread::yield();
  store().stop_watches();
  watching.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
}

TEST_P(DirectoryTest, AWatchSeesALeaseEnd) {
  join("memory1");
  const std::uint64_t before = directory().nodes()->revision;
  pass(kLease);
  if (embedded_ && !server_) embedded_->expire();  // the others do so by themselves
  EXPECT_EQ(directory().watch(before, Duration::seconds(30), kAllKinds)->find("memory1")->state, NodeState::kGone);
}

// --- kinds of node ---

constexpr NodeKinds kMemoryAlone{NodeKind::kMemory};
constexpr Duration kNotForLong = Duration::milliseconds(1);

TEST_P(DirectoryTest, AWatchOfSomeKindsShowsTheseAlone) {
  join("memory1");
  ASSERT_TRUE(directory().join(client("a"), kLease));
  ASSERT_TRUE(directory().join({"metadata", NodeKind::kMetadata, 0, {}, {}}, kLease));
  const auto names = [this](NodeKinds kinds) {
    std::vector<std::string> found;
    const Snapshot seen = directory().watch(0, Duration(), kinds).value();
    for (const NodeRecord& node : seen.nodes) found.push_back(node.description.name);
    return found;
  };
  EXPECT_THAT(names(kMemoryAlone), testing::ElementsAre("memory1"));
  EXPECT_THAT(names(kMemoryKinds), testing::ElementsAre("memory1", "metadata"));
  EXPECT_THAT(names({NodeKind::kMetadata}), testing::ElementsAre("metadata"));
  EXPECT_THAT(names(kAllKinds), testing::ElementsAre("memory1", "a", "metadata"));
}

TEST_P(DirectoryTest, WhatBecomesOfOtherKindsIsNoChange) {
  join("memory1");
  const std::uint64_t before = directory().watch(0, Duration(), kMemoryAlone)->revision;
  const auto now = [&] { return directory().watch(before, kNotForLong, kMemoryAlone)->revision; };
  const Registration app = directory().join(client("a"), kLease).value();
  EXPECT_EQ(now(), before) << "joined";
  ASSERT_TRUE(directory().publish(app.lease, client("a")));
  EXPECT_EQ(now(), before) << "published";
  ASSERT_TRUE(directory().leave(app.lease));
  EXPECT_EQ(now(), before) << "left";
  pass(Directory::kForgetClientAfter - Duration::milliseconds(1));
  EXPECT_NE(directory().nodes()->find("a"), nullptr);
  ASSERT_TRUE(directory().join(client("b"), kLease));
  pass(Duration::milliseconds(1));
  EXPECT_EQ(directory().nodes()->find("a"), nullptr);
  EXPECT_NE(directory().watch(before, Duration::seconds(30), {NodeKind::kClient})->find("b"), nullptr);
}

TEST_P(DirectoryTest, AWatchOfSomeKindsReturnsAtTheirNextChangeAlone) {
  join("memory1");
  const std::uint64_t before = directory().watch(0, Duration(), kMemoryAlone)->revision;
  const auto returns_when = [&](const std::function<void(Directory&)>& change) {
    std::thread later([&] {
      DirectoryClient other(client_address_);
      Directory& asked = server_ ? other : directory();
      const auto app = asked.join(client("a"), kLease);
      ASSERT_TRUE(app);
      ASSERT_TRUE(asked.leave(app->lease));
      change(asked);
    });
    const auto seen = directory().watch(before, Duration::seconds(30), kMemoryAlone);
    later.join();
    return seen.value();
  };
  const Snapshot joined = returns_when([](Directory& asked) { EXPECT_TRUE(asked.join(memory("memory2"), kLease)); });
  EXPECT_GT(joined.revision, before);
  ASSERT_NE(joined.find("memory2"), nullptr);
  EXPECT_EQ(joined.find("a"), nullptr);
}

TEST_P(DirectoryTest, AWatchOfSomeKindsSeesTheEndOfOneAndWhatTenantsAreGiven) {
  join("memory1");
  ASSERT_TRUE(directory().join(client("a"), kLease * 2));
  std::uint64_t before = directory().watch(0, Duration(), kMemoryAlone)->revision;
  pass(kLease);
  if (embedded_ && !server_) embedded_->expire();
  const Snapshot gone = directory().watch(before, Duration::seconds(30), kMemoryAlone).value();
  EXPECT_EQ(gone.find("memory1")->state, NodeState::kGone);
  EXPECT_GT(gone.revision, before);
  ASSERT_TRUE(store().tenants().drain("memory1", true));
  EXPECT_GT(directory().watch(gone.revision, Duration::seconds(30), kMemoryAlone)->revision, gone.revision);
}

TEST_P(DirectoryTest, ANameThatIsAnotherKindsNowIsAChangeOfBoth) {
  const Registration first = join("a");
  ASSERT_TRUE(directory().leave(first.lease));
  const std::uint64_t before = directory().watch(0, Duration(), kMemoryAlone)->revision;
  ASSERT_TRUE(directory().join(client("a"), kLease));
  const Snapshot after = directory().watch(before, Duration::seconds(30), kMemoryAlone).value();
  EXPECT_GT(after.revision, before);
  EXPECT_TRUE(after.nodes.empty());
}

TEST_P(DirectoryTest, APublicationThatChangesNothingIsNoChangeAndRenews) {
  const Registration joined = join("memory1");
  NodeDescription node = memory("memory1");
  node.attributes["pid"] = "1";
  ASSERT_TRUE(directory().publish(joined.lease, node));
  const std::uint64_t before = directory().nodes()->revision;
  pass(kLease / 2);
  ASSERT_TRUE(directory().publish(joined.lease, node));
  // Asked of what changes here: in etcd others' keys, such as those whose leases end, have revisions, too.
  EXPECT_EQ(directory().watch(before, Duration::milliseconds(200), kMemoryAlone)->revision, before);
  pass(kLease / 2);
  EXPECT_EQ(state_of("memory1"), NodeState::kReady);
  node.attributes["pid"] = "2";
  ASSERT_TRUE(directory().publish(joined.lease, node));
  EXPECT_GT(directory().nodes()->revision, before);
}

TEST_P(DirectoryTest, EtcdForgetsWhatWasBeforeTheCompactionBefore) {
  if (!in_etcd_) GTEST_SKIP() << "the others keep no history";
  join("memory1");
  const std::uint64_t before = directory().nodes()->revision;
  ASSERT_TRUE(directory().join(client("a"), kLease));
  ASSERT_TRUE(in_etcd_->compact());
  const std::uint64_t between = directory().nodes()->revision;
  ASSERT_TRUE(directory().join(client("b"), kLease));
  ASSERT_TRUE(in_etcd_->compact());
  EXPECT_EQ(directory().watch(between, kNotForLong, kMemoryAlone)->revision, between);
  const Snapshot anew = directory().watch(before, Duration::seconds(30), kMemoryAlone).value();
  EXPECT_GT(anew.revision, before) << "what has changed since nobody can tell any more";
  EXPECT_NE(anew.find("memory1"), nullptr);
  EXPECT_EQ(directory().nodes()->nodes.size(), 3u);
}

// Whether it may know of a metadata server hangs on memory nodes, which it has not asked for.
TEST_P(DirectoryServedTest, ATenantSeesTheKindsItAsksForAsItSeesAll) {
  NodeDescription node = memory("memory1");
  node.attributes[kSharedAttribute] = "true";
  node.regions = {{kMainRegion, 0, 10, 1}};
  ASSERT_TRUE(store().publish(store().join(node, kLease)->lease, node));
  ASSERT_TRUE(store().join({"metadata", NodeKind::kMetadata, 0, {}, {}}, kLease));
  DirectoryClient red = with_token(store().tenants().add("red", {100, 3}, false).value());
  const Snapshot seen = red.watch(0, Duration(), {NodeKind::kMetadata}).value();
  ASSERT_EQ(seen.nodes.size(), 1u);
  EXPECT_EQ(seen.nodes[0].description.name, "metadata");
  EXPECT_TRUE(seen.has_tenants);
  EXPECT_THAT(red.get("/v1/nodes?kinds=memory,printer").error().message, testing::HasSubstr("must be some of"));
}

TEST_P(DirectoryTest, AWatchCanBeCut) {
  const std::uint64_t now = directory().nodes()->revision;
  const auto begun = std::chrono::steady_clock::now();
  std::atomic<bool> ended{false};
  std::thread watching([&] {
    static_cast<void>(directory().watch(now, Duration::seconds(60), kAllKinds));
    ended = true;
  });
  while (!ended) {
    directory().cut_watches();
    std::this_thread::yield();
  }
  watching.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_TRUE(directory().nodes());
}

// --- tenants ---

TEST_P(DirectoryTest, KeepsTenantsAndTheirRegionsWhenItIsStartedAnew) {
  NodeDescription node = memory("memory1");
  node.attributes[kTenantBytesAttribute] = "1000000";
  const Registration joined = *store().join(node, kLease);
  ASSERT_TRUE(store().publish(joined.lease, node));
  const std::string red = store().tenants().add("red", {1'000'000, 3}, false).value();
  const std::string blue = store().tenants().add("blue", {10, 1}, false).value();
  ASSERT_TRUE(store().tenants().add_region("red", "heap", 600'000, ""));
  ASSERT_TRUE(store().tenants().revoke("blue"));
  ASSERT_TRUE(store().tenants().drain("memory1", true));
  const Snapshot before = store().tenants().view(*store().nodes(), {.is_rack = true}).value();
  restart();
  Tenants& tenants = store().tenants();
  EXPECT_EQ(tenants.identify(red, false)->tenant, "red");
  EXPECT_FALSE(tenants.identify(blue, false));
  EXPECT_FALSE(tenants.identify("", false));
  const Snapshot seen = tenants.view(*store().nodes(), {.is_rack = true}).value();
  EXPECT_EQ(seen.regions, before.regions);
  ASSERT_EQ(seen.regions.size(), 1u);
  EXPECT_EQ(seen.regions[0].node, "memory1");
  EXPECT_EQ(seen.draining, std::vector<std::string>{"memory1"});
  ASSERT_TRUE(tenants.drain("memory1", false));
  EXPECT_FALSE(tenants.add_region("red", "stack", 600'000, "")) << "over quota, as before";
  EXPECT_TRUE(tenants.add_region("red", "stack", 400'000, ""));
}

TEST_P(DirectoryTest, ReplacesTheLedgerOnlyAsOfTheVersionThatWasRead) {
  const auto before = store().ledger();
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_EQ(before->text, "");
  EXPECT_TRUE(store().replace_ledger(before->version, "one").value());
  EXPECT_FALSE(store().replace_ledger(before->version, "two").value());
  const auto after = store().ledger();
  EXPECT_EQ(after->text, "one");
  EXPECT_NE(after->version, before->version);
  EXPECT_TRUE(store().replace_ledger(after->version, "two").value());
  EXPECT_EQ(store().ledger()->text, "two");
}

TEST_P(DirectoryTest, AWatchReturnsWhenTenantsChange) {
  join("memory1");
  const std::uint64_t before = directory().nodes()->revision;
  std::thread later([&] { EXPECT_TRUE(store().tenants().drain("memory1", true)); });
  const auto seen = directory().watch(before, Duration::seconds(30), kAllKinds);
  later.join();
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_GT(seen->revision, before);
  // What is served shows the change at that revision; the stores themselves know nothing of it.
  if (server_) {
    EXPECT_EQ(seen->draining, std::vector<std::string>{"memory1"});
  }
}

TEST_P(DirectoryServedTest, WhoAsksIsToldByTheTokenThatItShows) {
  NodeDescription node = memory("memory1");
  node.regions = {{kMainRegion, 0, 10, 1}, {"heap", 10, 10, 2, "red"}, {"heap", 20, 10, 3, "blue"}};
  const Registration joined = *store().join(node, kLease);
  ASSERT_TRUE(store().publish(joined.lease, node));
  const std::string red = store().tenants().add("red", {100, 3}, false).value();
  const std::string ops = store().tenants().add("ops", {}, true).value();

  const bool at_socket = GetParam() == "http";
  const auto nobody = directory().nodes();
  EXPECT_EQ(nobody.has_value(), at_socket) << "the socket is the rack's own";
  if (!nobody) {
    EXPECT_THAT(nobody.error().message, testing::HasSubstr("SLUICE_TOKEN_FILE"));
  }
  EXPECT_EQ(directory().join(memory("memory2"), kLease).has_value(), at_socket);

  DirectoryClient as_red = with_token(red);
  ASSERT_TRUE(as_red.nodes());
  ASSERT_EQ(as_red.nodes()->find("memory1")->description.regions.size(), 1u);
  EXPECT_EQ(as_red.nodes()->find("memory1")->description.regions[0].key, 2u);
  EXPECT_EQ(as_red.watch(0, Duration::seconds(1), kAllKinds)->find("memory1")->description.regions.size(), 1u);
  EXPECT_FALSE(as_red.join(memory("memory3"), kLease)) << "as a client alone";
  const auto app = as_red.join({"app", NodeKind::kClient, 0, {}, {}}, kLease);
  ASSERT_TRUE(app) << app.error().message;
  EXPECT_EQ(app->node.description.attributes.at(kTenantAttribute), "red");
  for (const char* path : {"/v1/tenants", "/v1/drain"}) {
    const auto refused = as_red.ask(path, {{"do", "rotate"}, {"name", "red"}, {"node", "memory1"}, {"on", true}});
    ASSERT_FALSE(refused) << path;
    EXPECT_THAT(refused.error().message,
                testing::HasSubstr("for the rack's operator, not for tenant 'red', whose token SLUICE_TOKEN_FILE "
                                   "or --token-file names: unset it"));
  }
  EXPECT_FALSE(as_red.get("/v1/tenants"));
  const auto over = as_red.ask("/v1/regions", {{"do", "add"}, {"name", "more"}, {"length", 1000}});
  ASSERT_FALSE(over);
  EXPECT_THAT(over.error().message, testing::HasSubstr("'red' asked for 1000B, uses 0, and is allowed 100B;"));

  DirectoryClient as_ops = with_token(ops);
  EXPECT_EQ(as_ops.nodes()->find("memory1")->description.regions.size(), 3u);
  EXPECT_TRUE(as_ops.join(memory("memory4"), kLease));
  EXPECT_TRUE(as_ops.get("/v1/tenants"));

  DirectoryClient as_nobody = with_token("sluice_0123456789");
  EXPECT_THAT(as_nobody.nodes().error().message, testing::HasSubstr("of no tenant of this rack"));
  // What lives goes on while its token is another.
  EXPECT_TRUE(as_nobody.renew(app->lease));
  EXPECT_TRUE(as_nobody.publish(app->lease, {"app", NodeKind::kClient, 0, {}, {{kTenantAttribute, "blue"}}}));
  EXPECT_EQ(store().nodes()->find("app")->description.attributes.at(kTenantAttribute), "red");
}

// A store whose operator is always a moment faster.
class RevokesWhoJoins final : public DirectoryStore {
 public:
  explicit RevokesWhoJoins(DirectoryStore& inner) : inner_(inner) {}
  Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) override {
    EXPECT_TRUE(tenants().revoke("red"));
    return inner_.join(description, lease, wish);
  }
  Result<void> publish(LeaseId lease, const NodeDescription& d) override { return inner_.publish(lease, d); }
  Result<void> renew(LeaseId lease) override { return inner_.renew(lease); }
  Result<void> leave(LeaseId lease) override { return inner_.leave(lease); }
  Result<Snapshot> nodes() override { return inner_.nodes(); }
  Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) override {
    return inner_.watch(seen, timeout, kinds);
  }
  Result<VersionedText> ledger() override { return inner_.ledger(); }
  Result<bool> replace_ledger(std::uint64_t version, const std::string& text) override {
    return inner_.replace_ledger(version, text);
  }
  Result<void> evict(const std::string& name) override { return inner_.evict(name); }
  void stop_watches() override { inner_.stop_watches(); }

 private:
  DirectoryStore& inner_;
};

TEST(DirectoryServer, WhoIsRevokedWhileItJoinsIsNotOnTheRack) {
  const Folder folder;
  auto inner = SqliteDirectory::open(":memory:", {}, [] { return Time(); }).value();
  RevokesWhoJoins store(*inner);
  HttpAddress address{folder / "d.sock", {}, folder / "token"};
  ASSERT_TRUE(write_private_file(address.token_file, store.tenants().add("red", {100, 3}, false).value() + "\n"));
  const auto server = DirectoryServer::start(store, address).value();
  const auto joined = DirectoryClient(address).join({"app", NodeKind::kClient, 0, {}, {}}, kLease);
  ASSERT_FALSE(joined) << "its lease would have been the one that nobody ends";
  EXPECT_THAT(joined.error().message, testing::HasSubstr("'red' was revoked"));
  EXPECT_EQ(inner->nodes()->find("app")->state, NodeState::kGone);
}

TEST(DirectoryServer, TakesLeasesAndTextsThatNobodyMeans) {
  const Folder folder;
  auto store = SqliteDirectory::open(":memory:", {}, [] { return Time(); }).value();
  const auto server = DirectoryServer::start(*store, {folder / "d.sock"}).value();
  DirectoryClient client({folder / "d.sock"});
  for (const char* const lease : {"-1", "0", "9223372036854775807", "18446744073709552"}) {
    const auto joined = client.ask(
        "/v1/join", nlohmann::json::parse(fmt::format(
                        R"({{"node": {{"name": "a", "kind": "client", "cm_port": 0, "regions": [], "attributes": {{}}}},
                         "lease_ms": {}}})",
                        lease)));
    ASSERT_FALSE(joined) << lease;
    EXPECT_THAT(joined.error().message, testing::HasSubstr("a lease must last")) << lease;
  }
  EXPECT_TRUE(client.join({"b", NodeKind::kClient, 0, {}, {{"program", "na\xefve"}}}, kLease));
}

TEST(DirectoryServer, RefusesNumbersThatItCannotHold) {
  const Folder folder;
  auto store = SqliteDirectory::open(":memory:", {}, [] { return Time(); }).value();
  const auto server = DirectoryServer::start(*store, {folder / "d.sock"}).value();
  DirectoryClient client({folder / "d.sock"});
  const auto join_with = [&](std::string_view port) {
    return client.ask(
        "/v1/join",
        nlohmann::json::parse(fmt::format(
            R"({{"node": {{"name": "a", "kind": "client", "cm_port": {}, "regions": [], "attributes": {{}}}},
                         "lease_ms": 1000}})",
            port)));
  };
  for (const char* const port : {"70000", "-1", "18446744073709551616", "4791.5", "true", "\"4791\""}) {
    const auto joined = join_with(port);
    ASSERT_FALSE(joined) << port;
    EXPECT_THAT(joined.error().message, testing::HasSubstr("must be a whole number from 0 to 65535")) << port;
  }
  EXPECT_TRUE(join_with("65535"));
}

TEST_P(DirectoryServedTest, ATenantThatAsksForEverythingTooOftenIsToldSoAndKeepsItsLease) {
  const std::string red = store().tenants().add("red", {100, 3}, false).value();
  const std::string blue = store().tenants().add("blue", {100, 3}, false).value();
  DirectoryClient as_red = with_token(red);
  const auto app = as_red.join({"app", NodeKind::kClient, 0, {}, {}}, kLease);
  ASSERT_TRUE(app) << app.error().message;
  std::vector<telemetry::Places::Place> taken;
  for (int i = 0; i < Tenants::kMostSnapshots; ++i)
    taken.push_back(store().tenants().snapshots().take("red", std::chrono::milliseconds(0)));
  const auto refused = as_red.nodes();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("asks what is on the rack too often"));
  EXPECT_TRUE(as_red.renew(app->lease));
  EXPECT_TRUE(as_red.publish(app->lease, {"app", NodeKind::kClient, 0, {}, {}}));
  EXPECT_TRUE(as_red.watch(0, Duration::seconds(1), kAllKinds)) << "who waits for a change takes none of these places";
  EXPECT_TRUE(with_token(blue).nodes());
  taken.pop_back();
  EXPECT_TRUE(as_red.nodes());
  EXPECT_TRUE(as_red.nodes()) << "it was given back";
}

TEST_P(DirectoryServedTest, ATokenFileMustBeOnesOwnAndHoldOne) {
  HttpAddress address = client_address_;
  address.token_file = folder_ / "none";
  EXPECT_THAT(DirectoryClient(address).nodes().error().message, testing::HasSubstr("No such file"));
  address.token_file = folder_ / "token";
  ASSERT_TRUE(write_private_file(address.token_file, "no token\r\nat all\n"));
  EXPECT_THAT(DirectoryClient(address).nodes().error().message, testing::HasSubstr("is no token"));
  std::filesystem::permissions(address.token_file, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_THAT(DirectoryClient(address).nodes().error().message, testing::HasSubstr("chmod 600"));
}

TEST_P(DirectoryFileTest, ARestartedDirectoryKnowsEverythingAndGivesLeasesTheirWholeTime) {
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

TEST_P(DirectoryServedTest, NobodySaysOfItselfWhichMachineItIsOf) {
  NodeDescription node = memory("memory1");
  node.attributes[kMachineAttribute] = "another";
  const auto joined = directory().join(node, kLease);
  const auto machine = [this] {
    const Snapshot all = directory().nodes().value();
    const auto& said = all.find("memory1")->description.attributes;
    return said.contains(kMachineAttribute) ? said.at(kMachineAttribute) : "";
  };
  const std::string by_certificate = GetParam() == "tls" ? "m2" : "";
  EXPECT_EQ(machine(), by_certificate);
  ASSERT_TRUE(directory().publish(joined->lease, node));
  EXPECT_EQ(machine(), by_certificate);
}

TEST_P(DirectoryServedTest, LeasesAreRenewedThoughManyAreSlowToAsk) {
  if (GetParam() != "tls") GTEST_SKIP() << "nobody else reaches the run directory's socket";
  const auto [host, port] = client_address_.host_and_port();
  const auto lease = join("memory1").lease;
  const telemetry::SlowGuests many(250, host, port, "\x16", "127.0.0.2");  // as TLS begins
  ASSERT_TRUE(many.come());
  for (int i = 0; i < 5; ++i) {
    const auto asked = std::chrono::steady_clock::now();
    const auto renewed = directory().renew(lease);
    EXPECT_TRUE(renewed) << renewed.error().message;
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(2));
  }
}

TEST_P(DirectoryFileTest, StateCopiedFromUnderALivingDirectoryIsWhole) {
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

TEST_P(DirectoryFileTest, ANodeIsGoneThoughTheDiskDoesNotTakeIt) {
  join("memory1");
  const std::uint64_t seen = directory().nodes()->revision;
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "state.sqlite").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  pass(kLease);
  EXPECT_EQ(state_of("memory1"), NodeState::kGone);
  EXPECT_GT(directory().watch(seen, Duration(), kAllKinds)->revision, seen) << "who watches is told";
  EXPECT_FALSE(directory().join(memory("memory2"), kLease)) << "what is answered has to be written";
  EXPECT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(state_of("memory1"), NodeState::kGone);
  restart();
  EXPECT_EQ(state_of("memory1"), NodeState::kGone) << "it was written when it could be";
  EXPECT_TRUE(directory().join(memory("memory1"), kLease));
}

TEST(LeaseClock, DoesNotCountWhatPassedWhileItsProcessWasStopped) {
  Time real = Time::at(Duration::seconds(100));
  LeaseClock clock([&real] { return real; });
  const auto store = SqliteDirectory::open(":memory:", {}, [&clock] { return clock.now(); }).value();
  const auto joined = store->join({"memory1", NodeKind::kMemory, 0, {}, {}}, Duration::seconds(3));
  const auto pass = [&](Duration all) {
    for (Duration d; d < all; d = d + Duration::milliseconds(100)) {
      real = real + Duration::milliseconds(100);
      store->expire();
    }
  };
  pass(Duration::seconds(2));
  real = real + Duration::seconds(60);  // nobody could renew
  EXPECT_TRUE(store->renew(joined->lease));
  pass(Duration::milliseconds(2'900));
  EXPECT_TRUE(store->renew(joined->lease));
  pass(Duration::seconds(3));
  EXPECT_FALSE(store->renew(joined->lease)) << "who has died is gone all the same";
}

TEST(EtcdDirectory, SaysWhatEtcdSaysInItsStreams) {
  httplib::Server etcd;
  etcd.Post(".*", [](const httplib::Request&, httplib::Response& response) {
    response.status = 400;
    response.set_content(R"({"error": {"grpc_code": 9, "message": "etcdserver: not today", "http_code": 400}})",
                         "application/json");
  });
  const int port = etcd.bind_to_any_port("127.0.0.1");
  std::thread serving([&etcd] { etcd.listen_after_bind(); });
  while (!etcd.is_running()) std::this_thread::yield();
  const auto opened = EtcdDirectory::open({.addresses = {fmt::format("127.0.0.1:{}", port)}}, {});
  etcd.stop();
  serving.join();
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, testing::HasSubstr("etcdserver: not today"));
}

// As its gateway sends it: in chunks, and with a trailer.
TEST(EtcdDirectory, SaysWhatEtcdSaysWithATrailer) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  std::thread serving([listener] {
    const std::string text = R"({"error":"etcdserver: mvcc: database space exceeded","code":8})";
    const std::string answer = fmt::format(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nTrailer: Grpc-Trailer-Content-Type\r\n"
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\nGrpc-Trailer-Content-Type: application/grpc\r\n\r\n",
        text.size(), text);
    std::array<char, 4096> asked{};
    for (;;) {
      const int guest = accept(listener, nullptr, nullptr);
      if (guest < 0) return;
      const bool answered =
          recv(guest, asked.data(), asked.size(), 0) > 0 && send(guest, answer.data(), answer.size(), MSG_NOSIGNAL) > 0;
      while (answered && recv(guest, asked.data(), asked.size(), 0) > 0) continue;
      close(guest);
    }
  });
  const auto opened = EtcdDirectory::open({.addresses = {fmt::format("127.0.0.1:{}", ntohs(at.sin_port))}}, {});
  shutdown(listener, SHUT_RDWR);
  serving.join();
  close(listener);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, testing::HasSubstr("etcdserver: mvcc: database space exceeded"));
  EXPECT_THAT(opened.error().message, testing::Not(testing::HasSubstr("is it up")));
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
  std::ofstream(folder / "state.sqlite") << "no database at all";
  const auto other = SqliteDirectory::open(folder / "state.sqlite", {}, [] { return Time(); });
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message,
              testing::AllOf(testing::HasSubstr("remove " + (folder / "state.sqlite") + "* to start anew"),
                             testing::Not(testing::HasSubstr("\n"))));
}

// As of another version of sluice, whose nodes are of kinds that this one does not know.
TEST(SqliteDirectory, SaysWhichFileHasARecordThatMakesNoSense) {
  const Folder folder;
  const std::string path = folder / "state.sqlite";
  ASSERT_TRUE(SqliteDirectory::open(path, {}, [] { return Time(); })
                  .value()
                  ->join({"a", NodeKind::kMemory, 0, {}, {}}, kLease));
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "UPDATE nodes SET record = '{}'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const auto opened = SqliteDirectory::open(path, {}, [] { return Time(); });
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, testing::HasSubstr("remove " + path + "* to start anew"));
}

TEST(SqliteDirectory, ARecordOfTenantsThatCannotBeReadIsNotNone) {
  const Folder folder;
  const auto open = [&](const std::string& ledger) {
    return SqliteDirectory::open(
        ":memory:", {}, [] { return Time(); }, ledger);
  };
  const auto none = open(folder / "tenants.json");
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE((*none)->tenants().check());
  std::ofstream(folder / "tenants.json").flush();
  const auto empty = open(folder / "tenants.json");
  ASSERT_TRUE(empty) << empty.error().message;
  ASSERT_FALSE((*empty)->tenants().check()) << "everybody would be the rack itself";
  EXPECT_THAT((*empty)->tenants().check().error().message, testing::HasSubstr("makes no sense"));
  EXPECT_FALSE((*empty)->tenants().identify("", false));
  const auto nowhere = open(folder / "tenants.json/within");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, testing::HasSubstr("tenants.json/within: Not a directory"));
}

TEST(SqliteDirectory, ALinkToNothingInsteadOfARecordOfTenantsIsNotNone) {
  const Folder folder;
  const auto open = [&](const std::string& ledger) {
    return SqliteDirectory::open(
        ":memory:", {}, [] { return Time(); }, folder / ledger);
  };
  EXPECT_TRUE(open("gone/tenants.json")) << "there has never been one";
  std::filesystem::create_symlink("gone/tenants.json", folder / "link.json");
  std::filesystem::create_directory_symlink("gone", folder / "link");
  for (const std::string ledger : {"link.json", "link/tenants.json"}) {
    const auto nowhere = open(ledger);
    ASSERT_FALSE(nowhere) << "everybody would be the rack itself";
    EXPECT_THAT(nowhere.error().message,
                testing::AllOf(testing::HasSubstr(ledger), testing::HasSubstr("is a link to what is not there")));
  }
  std::filesystem::create_directory(folder / "gone");
  std::ofstream(folder / "gone/tenants.json") << "not yet";
  for (const std::string ledger : {"link.json", "link/tenants.json"}) {
    const auto there = open(ledger);
    ASSERT_TRUE(there) << there.error().message;
    EXPECT_EQ((*there)->ledger()->text, "not yet");
  }
}

TEST(DirectoryServer, RefusesASecondOnTheSameSocketAndReplacesADeadOne) {
  const Folder folder;
  auto directory = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
  const std::string path = folder / "d.sock";
  std::ofstream(path) << "notes";
  EXPECT_THAT(DirectoryServer::start(**directory, {path}).error().message, testing::HasSubstr("no socket to replace"));
  std::filesystem::remove(path);
  ports::listen_unix(path)->close();  // in the way, and nobody listens
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
