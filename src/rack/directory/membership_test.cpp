// Membership, with a directory that the test plays.
#include "rack/directory/membership.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "ports/descriptor.h"
#include "rack/directory/directory_store.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(20);

const MembershipConfig kShort{.lease = Directory::kShortestLease};

NodeDescription at_port(std::uint16_t port) { return {"memory1", NodeKind::kMemory, port, {}, {{"pid", "1"}}}; }

// What it is asked to do is done at once, unless it is told to fail or to hold.
class PlayedDirectory final : public Directory {
 public:
  Result<Registration> join(const NodeDescription& description, Duration, remote::NodeId wish) override {
    const std::lock_guard lock(mutex_);
    ++joined;
    wished_for = wish;
    told_.notify_all();
    if (!owner.empty()) return fail(description.name + " is taken");
    NodeRecord node{.description = description, .state = NodeState::kJoining, .id = remote::NodeId(number)};
    node.ip = Subnet{}.ip_of(node.id);
    return Registration{node, LeaseId(lease_ = joined)};
  }
  Result<void> publish(LeaseId lease, const NodeDescription& description) override {
    std::unique_lock lock(mutex_);
    ++publishing;
    told_.notify_all();
    told_.wait_for(lock, kPatience, [this] { return !holds; });
    if (refuses > 0) {
      --refuses;
      return fail("no room on the disk");
    }
    if (lease.value != lease_) return tl::unexpected(lease_is_unknown(lease));
    published.push_back(description.cm_port);
    told_.notify_all();
    return {};
  }
  Result<void> renew(LeaseId lease) override {
    const std::lock_guard lock(mutex_);
    if (!refusals.empty()) {
      const std::string why = refusals.front();
      refusals.erase(refusals.begin());
      return fail(why);
    }
    return lease.value == lease_ ? Result<void>() : tl::unexpected(lease_is_unknown(lease));
  }
  Result<void> leave(LeaseId lease) override {
    const std::lock_guard lock(mutex_);
    if (lease.value == owners_lease) owner.clear();
    return {};
  }
  Result<Snapshot> nodes() override {
    const std::lock_guard lock(mutex_);
    NodeRecord node{.description = at_port(0), .state = NodeState::kReady, .id = remote::NodeId(2)};
    node.description.attributes["pid"] = owner;
    node.description.attributes[kMachineAttribute] = "m2";  // as it does with those who come over TLS
    return Snapshot{7, {node}};
  }
  // As one that has too many who watch.
  Result<Snapshot> watch(std::uint64_t, Duration, NodeKinds) override {
    const std::lock_guard lock(mutex_);
    watched.push_back(Clock::now());
    told_.notify_all();
    return Snapshot{7, {}};
  }

  void end_lease() {
    const std::lock_guard lock(mutex_);
    lease_ = 0;
  }
  // All leases end, and numbers are given out anew.
  void begin_anew(std::uint32_t ours) {
    const std::lock_guard lock(mutex_);
    lease_ = 0;
    number = ours;
  }
  // The lease, and this process has the name.
  void end_lease(const std::string& successor) {
    const std::lock_guard lock(mutex_);
    lease_ = 0;
    owner = successor;
  }
  void set_holds(bool on) {
    const std::lock_guard lock(mutex_);
    holds = on;
    told_.notify_all();
  }
  template <class Done>
  bool wait_until(Done&& done) {
    std::unique_lock lock(mutex_);
    return told_.wait_for(lock, kPatience, done);
  }

  std::uint64_t joined = 0;
  std::uint32_t number = 2;  // of who joins
  remote::NodeId wished_for{};
  int publishing = 0;
  int refuses = 0;
  bool holds = false;
  std::vector<std::string> refusals;  // of the next renewals
  std::string owner;                  // who has the name when we have no lease; empty: nobody
  std::uint64_t owners_lease = 7;
  std::vector<std::uint16_t> published;
  std::vector<Clock::time_point> watched;

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::uint64_t lease_ = 0;
};

TEST(Membership, TellsADirectoryThatDidNotListenAgain) {
  PlayedDirectory directory;
  const auto membership = Membership::join(directory, at_port(0), kShort).value();
  ASSERT_TRUE(membership->publish(at_port(1)));
  directory.wait_until([&] { return directory.refuses = 2, true; });
  directory.end_lease();
  // Joined again, and refused twice, it must not stay a node that is only joining.
  EXPECT_TRUE(directory.wait_until([&] { return directory.published.size() == 2; }));
  EXPECT_EQ(directory.joined, 2u);
  EXPECT_EQ(directory.published.back(), 1);
}

TEST(Membership, WhoPublishesSoonDoesNotWaitForTheDirectory) {
  PlayedDirectory directory;
  auto membership = Membership::join(directory, at_port(0), kShort).value();
  directory.set_holds(true);
  membership->publish_soon(at_port(1));
  ASSERT_TRUE(directory.wait_until([&] { return directory.publishing == 1; }));
  auto second = std::async(std::launch::async, [&] { membership->publish_soon(at_port(2)); });
  EXPECT_EQ(second.wait_for(kPatience / 2), std::future_status::ready) << "the caller has a loop to turn";
  directory.set_holds(false);
  EXPECT_TRUE(directory.wait_until([&] { return !directory.published.empty() && directory.published.back() == 2; }));
}

// Something that may happen more than once, waited for.
class Telling {
 public:
  void tell() {
    if (!told_.exchange(true)) promise_.set_value();
  }
  bool told() const { return told_; }
  bool comes() { return future_.wait_for(kPatience) == std::future_status::ready; }

 private:
  std::atomic<bool> told_{false};
  std::promise<void> promise_;
  std::future<void> future_ = promise_.get_future();
};

TEST(Membership, IsToldAtOnceThatAnotherProcessHasItsName) {
  PlayedDirectory directory;
  Telling superseded;
  auto config = kShort;
  config.lease = Duration::seconds(1);
  config.on_superseded = [&] { superseded.tell(); };
  const auto membership = Membership::join(directory, at_port(0), config).value();
  directory.end_lease("2");
  EXPECT_TRUE(superseded.comes());
  std::uint64_t tries = 0;
  directory.wait_until([&] { return tries = directory.joined, true; });
  EXPECT_LE(tries, 3u) << "at the first try";
}

TEST(Membership, TakesANameThatMayBeItsOwnForAnothersOnlyWhenThatIsRenewed) {
  PlayedDirectory directory;
  Telling superseded;
  auto config = kShort;
  config.lease = Duration::seconds(1);
  config.on_superseded = [&] { superseded.tell(); };
  const auto membership = Membership::join(directory, at_port(0), config).value();
  directory.end_lease("1");  // as after a join whose answer was lost
  ASSERT_TRUE(directory.wait_until([&] { return directory.joined == 3; }));
  EXPECT_FALSE(superseded.told());
  EXPECT_TRUE(superseded.comes());
}

TEST(Membership, IsToldThatItsAddressMayBeAnothersWhereTheRackHasBegunAnew) {
  PlayedDirectory directory;
  Telling superseded;
  auto config = kShort;
  config.on_superseded = [&] { superseded.tell(); };
  const auto membership = Membership::join(directory, at_port(0), config).value();
  directory.begin_anew(2);
  ASSERT_TRUE(directory.wait_until([&] { return directory.joined == 2; })) << "the same address again";
  EXPECT_EQ(directory.wished_for, remote::NodeId(2)) << "which the directory may have forgotten";
  EXPECT_FALSE(membership->is_misplaced());
  EXPECT_FALSE(superseded.told());
  directory.begin_anew(5);
  EXPECT_TRUE(superseded.comes());
  EXPECT_TRUE(membership->is_misplaced());
  EXPECT_EQ(membership->node().ip, Subnet{}.ip_of(remote::NodeId(2)));
}

TEST(Membership, ASwitchThatIsGivenAnotherAddressGoesOn) {
  PlayedDirectory directory;
  Telling superseded;
  auto config = kShort;
  config.on_superseded = [&] { superseded.tell(); };
  auto membership = Membership::join(directory, {"switch", NodeKind::kSwitch, 0, {}, {}}, config).value();
  directory.begin_anew(5);
  ASSERT_TRUE(directory.wait_until([&] { return directory.joined == 2; }));
  membership.reset();
  EXPECT_FALSE(superseded.told());
}

TEST(Membership, LooksForALostLeaseNowAndThenThoughEachLookHasNews) {
  PlayedDirectory directory;
  std::atomic<Membership*> us{nullptr};
  auto config = kShort;
  config.lease = Duration::seconds(1);
  config.on_lost = [&]() -> std::optional<NodeDescription> {
    us.load()->publish_soon(at_port(2));  // as a memory node does, whose key is another then
    return at_port(2);
  };
  const auto membership = Membership::join(directory, at_port(0), config).value();
  us = membership.get();
  ASSERT_TRUE(membership->publish(at_port(1)));
  directory.end_lease("2");
  ASSERT_TRUE(directory.wait_until([&] { return directory.joined == 2; }));
  const auto first = Clock::now();
  ASSERT_TRUE(directory.wait_until([&] { return directory.joined == 5; }));
  EXPECT_GT(Clock::now() - first, std::chrono::milliseconds(500));
}

TEST(Membership, SaysThatTheTroubleIsOverThoughItsReasonHadChanged) {
  PlayedDirectory directory;
  directory.refusals = {"no route", "no route", "no certificate"};
  std::vector<std::string> said;
  Telling over;
  auto config = kShort;
  config.on_trouble = [&](const std::string& text) {
    said.push_back(text);
    if (text.empty()) over.tell();
  };
  {
    const auto membership = Membership::join(directory, at_port(0), config).value();
    EXPECT_TRUE(over.comes());
  }
  EXPECT_EQ(said.size(), 2u);
  EXPECT_NE(said.front().find("no route"), std::string::npos);
}

// A file with a lease in it, that another process holds.
class HeldLeaseFile {
 public:
  HeldLeaseFile() : held_(mkstemp(path_.data())) {
    EXPECT_EQ(write(held_.get(), "7\n", 2), 2);
    EXPECT_EQ(flock(held_.get(), LOCK_EX), 0);
  }
  ~HeldLeaseFile() { unlink(path_.c_str()); }
  HeldLeaseFile(const HeldLeaseFile&) = delete;
  HeldLeaseFile& operator=(const HeldLeaseFile&) = delete;

  const std::string& path() const { return path_; }
  void let_go() { held_.close(); }
  std::string text() const { return read_whole_file(path_).value_or(""); }
  bool is_held() const {
    const ports::Descriptor file(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    return flock(file.get(), LOCK_EX | LOCK_NB) != 0;
  }

 private:
  std::string path_ = testing::TempDir() + "lease-XXXXXX";
  ports::Descriptor held_;
};

TEST(Membership, DoesNotWaitForTheLeaseOfOneThatWasStillDyingAtTheFirstLook) {
  PlayedDirectory directory;
  directory.owner = "1";
  HeldLeaseFile file;
  int looks = 0;
  auto config = kShort;
  config.lease_file = file.path();
  config.on_taken = [&](const Error&) {
    file.let_go();
    return ++looks == 1;
  };
  const auto membership = Membership::join(directory, at_port(0), config);
  ASSERT_TRUE(membership) << membership.error().message;
  EXPECT_EQ(file.text(), "2\n") << "the lease of the second try";
  EXPECT_TRUE(file.is_held());
}

TEST(Membership, WritesItsLeaseDownOnceOneThatWasOnlyStoppedHasEnded) {
  PlayedDirectory directory;
  HeldLeaseFile file;
  auto config = kShort;
  config.lease_file = file.path();
  const auto membership = Membership::join(directory, at_port(0), config).value();
  EXPECT_EQ(file.text(), "7\n") << "the other's still";
  file.let_go();
  const auto give_up = Clock::now() + kPatience;
  while (file.text() != "1\n" && Clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(file.text(), "1\n");
  EXPECT_TRUE(file.is_held()) << "or it goes with a rack that is taken down, and our journal with it";
}

// Lets who watches wait until its watches are cut for the third time, as before that nobody watches: nothing else changes.
class PatientDirectory final : public Directory {
 public:
  Result<Registration> join(const NodeDescription& description, Duration, remote::NodeId) override {
    return Registration{{.description = description}, LeaseId(1)};
  }
  Result<void> publish(LeaseId, const NodeDescription&) override { return {}; }
  Result<void> renew(LeaseId) override { return {}; }
  Result<void> leave(LeaseId) override { return {}; }
  Result<Snapshot> nodes() override { return Snapshot{}; }
  Result<Snapshot> watch(std::uint64_t, Duration, NodeKinds kinds) override {
    asked_for = kinds;
    cut_.wait_for(kPatience);
    return Snapshot{7, {}};
  }
  void cut_watches() override {
    if (++cuts_ == 3) cutting_.set_value();
  }

  NodeKinds asked_for;  // once the membership has ended

 private:
  int cuts_ = 0;
  std::promise<void> cutting_;
  std::shared_future<void> cut_ = cutting_.get_future().share();
};

TEST(Membership, WhoLeavesDoesNotWaitForAWatch) {
  PatientDirectory directory;
  MembershipConfig config = kShort;
  config.kinds = kMemoryKinds;
  auto membership = Membership::join(directory, at_port(0), config, [](const Snapshot&) {}).value();
  const auto begun = Clock::now();
  membership.reset();
  EXPECT_LT(Clock::now() - begun, kPatience / 2);
  EXPECT_EQ(directory.asked_for, kMemoryKinds);
}

TEST(Membership, DoesNotAskADirectoryWithoutEndThatLetsNobodyWait) {
  PlayedDirectory directory;
  std::atomic<int> changes{0};
  const auto membership = Membership::join(directory, at_port(0), kShort, [&](const Snapshot&) { ++changes; }).value();
  ASSERT_TRUE(directory.wait_until([&] { return directory.watched.size() == 4; }));
  EXPECT_EQ(changes, 1);
  EXPECT_GT(directory.watched[3] - directory.watched[1], std::chrono::milliseconds(200));
}

}  // namespace
}  // namespace sluice::rack
