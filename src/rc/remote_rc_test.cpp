#include "rc/remote_rc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

using remote::NodeId;
using remote::Operation;
using remote::OpKind;
using remote::RegionKey;
using remote::RemoteAddress;
using remote::Status;
using remote::Task;

constexpr NodeId kNode{3};
constexpr std::uint64_t kBase = 0x10'0000;

class RemoteRcTest : public testing::Test {
 protected:
  explicit RemoteRcTest(Duration leaves_within = {})
      : remote(scheduler, *world.a.adapter, *world.a.completions, leaves_within) {
    remote.add_node(kNode, *pair.a);
  }

  RemoteAddress at(std::uint64_t offset, NodeId node = kNode) const {
    return {node, RegionKey(key.value), kBase + offset};
  }

  // Drives everything until nothing is left to do.
  void run() {
    for (int idle = 0; idle < 3;) {
      std::size_t moved = scheduler.run(world.now);
      if (world.round()) ++moved;
      moved += remote.poll(world.now);
      idle = moved == 0 ? idle + 1 : 0;
    }
  }
  void run_task(Task<void> task) {
    scheduler.spawn(std::move(task));
    run();
    EXPECT_EQ(scheduler.live(), 0u) << "still waiting";
  }

  TwoAdapters world;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(1 << 20);
  memory::Key key = world.region(world.b, memory, kBase);
  TwoAdapters::Pair pair = world.connect({.depth = 16, .timeout = 8, .retry_count = 2});
  remote::Scheduler scheduler;
  RemoteRc remote;
};

TEST_F(RemoteRcTest, ReadsWritesAndSwaps) {
  const auto script = [this]() -> Task<void> {
    const std::vector<std::uint8_t> data = {1, 2, 3, 4, 5};
    EXPECT_EQ(co_await remote.write(at(100), data), Status::kOk);
    EXPECT_EQ(memory[102], 3);
    std::vector<std::uint8_t> into(5);
    EXPECT_EQ(co_await remote.read(at(100), into), Status::kOk);
    EXPECT_EQ(into, data);
    const auto added = co_await remote.fetch_and_add(at(64), 5);
    EXPECT_EQ(added.status, Status::kOk);
    EXPECT_EQ(added.prior, 0u);
    const auto swapped = co_await remote.compare_and_swap(at(64), 5, 0x1122334455667788);
    EXPECT_EQ(swapped.prior, 5u);
    const auto refused = co_await remote.compare_and_swap(at(64), 5, 9);
    EXPECT_EQ(refused.prior, 0x1122334455667788u);
    EXPECT_EQ(load_le<std::uint64_t>(&memory[64]), 0x1122334455667788u);
  };
  run_task(script());
  EXPECT_EQ(remote.traffic().operations, 5u);
  EXPECT_EQ(remote.traffic().payload_bytes, 10u);
}

TEST_F(RemoteRcTest, KeepsWhatDoesNotFitInLineAndInOrder) {
  std::vector<std::uint64_t> prior;
  const auto adder = [this, &prior]() -> Task<void> {
    const auto result = co_await remote.fetch_and_add(at(0), 1);
    EXPECT_EQ(result.status, Status::kOk);
    prior.push_back(result.prior);
  };
  for (int i = 0; i < 1000; ++i) scheduler.spawn(adder());
  run();
  ASSERT_EQ(prior.size(), 1000u);
  for (std::uint64_t i = 0; i < prior.size(); ++i) EXPECT_EQ(prior[i], i);
}

TEST_F(RemoteRcTest, RefusesAtOnceWhatCannotBeDone) {
  const auto script = [this]() -> Task<void> {
    std::vector<std::uint8_t> bytes(8);
    EXPECT_EQ(co_await remote.read(at(0, NodeId(9)), bytes), Status::kNodeUnknown);
    EXPECT_EQ(co_await remote.read(at(0, NodeId(1'000'000)), bytes), Status::kNodeUnknown);
    EXPECT_EQ((co_await remote.fetch_and_add(at(4), 1)).status, Status::kMisaligned);
    EXPECT_TRUE(remote.connected(kNode)) << "nothing of this cost the connection";
  };
  run_task(script());
  Operation huge{.kind = OpKind::kRead, .remote = at(0), .local = {memory.data(), std::size_t{1} << 31}};
  huge.on_complete = [](Operation&) {};
  remote.submit(huge);
  EXPECT_EQ(huge.status, Status::kTooLong);
}

TEST_F(RemoteRcTest, WorksWithNodesOfLargeNumbers) {
  const NodeId far{77'777};
  const auto other = world.connect({.depth = 16});
  remote.add_node(far, *other.a);
  const auto script = [this, far]() -> Task<void> {
    EXPECT_EQ((co_await remote.fetch_and_add(at(0, far), 1)).status, Status::kOk);
    EXPECT_EQ((co_await remote.fetch_and_add(at(0), 1)).prior, 1u);
  };
  run_task(script());
}

// Operations submitted together, with what has become of each.
struct Batch {
  explicit Batch(std::size_t n) : bytes(8), operations(n) {}

  void submit(RemoteRc& remote, const std::function<RemoteAddress(std::size_t)>& where) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      operations[i] = {.kind = OpKind::kWrite, .remote = where(i), .local = bytes};
      operations[i].context = this;
      operations[i].on_complete = [](Operation& o) { static_cast<Batch*>(o.context)->statuses.push_back(o.status); };
      remote.submit(operations[i]);
    }
  }
  std::vector<std::uint8_t> bytes;
  std::vector<Operation> operations;
  std::vector<Status> statuses;  // in the order of completion
};

TEST_F(RemoteRcTest, TellsARefusedOperationFromThoseThatItTookDown) {
  Batch batch(20);  // four more than the send queue holds
  batch.submit(remote, [&](std::size_t i) {
    RemoteAddress where = at(8 * i);
    if (i == 3) where.key = RegionKey(0xDEAD'BEEF);
    return where;
  });
  run();
  ASSERT_EQ(batch.statuses.size(), 20u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.operations[i].status, Status::kOk) << i;
  EXPECT_EQ(batch.operations[3].status, Status::kAccessDenied);
  for (std::size_t i = 4; i < 16; ++i) EXPECT_EQ(batch.operations[i].status, Status::kUnknown) << i;
  // 16 to 18 took the places of the first three, and may have left in time or not; 19 never had a place.
  EXPECT_EQ(batch.operations[19].status, Status::kUnreachable);
  EXPECT_FALSE(remote.connected(kNode));

  Batch later(1);
  later.submit(remote, [&](std::size_t) { return at(0); });
  EXPECT_EQ(later.statuses, std::vector{Status::kUnreachable}) << "at once";
}

TEST_F(RemoteRcTest, DoesNotKnowWhatBecameOfOperationsWhosePeerIsGone) {
  world.b.adapter->modify(world.now, *pair.b, {.state = QpState::kError});  // it answers no more
  Batch batch(20);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  run();
  ASSERT_EQ(batch.statuses.size(), 20u);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(batch.operations[i].status, Status::kUnknown) << i;
  for (std::size_t i = 16; i < 20; ++i) EXPECT_EQ(batch.operations[i].status, Status::kUnreachable) << i;
}

TEST_F(RemoteRcTest, DoesNotCallAWriteDeniedOfWhichAPartIsThere) {
  const std::vector<std::uint8_t> data(3 * 1024, 9);
  for (const bool begun : {false, true}) {
    Batch before(1);
    before.submit(remote, [&](std::size_t) { return at(0); });
    run();  // the way to the peer is known
    Operation operation = remote::write_operation(at(0), data);
    operation.on_complete = [](Operation&) {};
    remote.submit(operation);
    world.a.turn(world.now);
    port::Frame first[1];
    if (begun) {
      ASSERT_EQ(world.b.port->receive(world.now, first), 1u);
      world.b.adapter->on_frame(world.now, first[0]);
    }
    ASSERT_TRUE(world.b.adapter->regions().remove(key));  // its memory stays
    run();
    EXPECT_EQ(operation.status, begun ? Status::kUnknown : Status::kAccessDenied);
    EXPECT_EQ(memory[0], begun ? 9 : 0);
    EXPECT_EQ(memory[1024], 0);
    key = world.region(world.b, memory, kBase);
    remote.add_node(kNode, *world.connect({.depth = 16}).a);
  }
}

TEST_F(RemoteRcTest, KnowsThatWhatNeverLeftHadNoEffect) {
  Batch batch(16);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  world.a.adapter->modify(world.now, *pair.a, {.state = QpState::kError});  // before any frame has left
  remote.poll(world.now);
  EXPECT_THAT(batch.statuses, testing::Each(Status::kUnreachable));
  EXPECT_EQ(batch.statuses.size(), 16u);
}

TEST_F(RemoteRcTest, KnowsThatNothingLeftForAPeerWhoseAddressNobodyHas) {
  Batch batch(20);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  for (int i = 0; i < 1000 && batch.statuses.empty(); ++i) {
    world.a.turn(world.now);
    remote.poll(world.now);
    world.now = std::max(world.a.next_deadline(), world.now);
  }
  EXPECT_THAT(batch.statuses, testing::Each(Status::kUnreachable));
  EXPECT_EQ(batch.statuses.size(), 20u);
}

class BoundRemoteRcTest : public RemoteRcTest {
 protected:
  static constexpr Duration kBound = Duration::milliseconds(100);
  static constexpr int kMany = 40;  // more than the queue pair takes at once

  BoundRemoteRcTest() : RemoteRcTest(kBound) {}
  // READs and WRITEs submitted; then nobody does anything for so long.
  void submit_and_stop(Duration stop) {
    const auto writer = [this](int i) -> Task<void> {
      const std::vector<std::uint8_t> data = {9};
      ++ended[co_await remote.write(at(static_cast<std::uint64_t>(i)), data)];
    };
    for (int i = 0; i < kMany; ++i) scheduler.spawn(writer(i));
    scheduler.run(world.now);
    world.now = world.now + stop;
    run();
    EXPECT_EQ(scheduler.live(), 0u);
  }
  std::map<Status, int> ended;
};

TEST_F(BoundRemoteRcTest, NothingLeavesOfWhatHasWaitedForTooLong) {
  submit_and_stop(kBound + Duration::milliseconds(1));
  EXPECT_THAT(ended, testing::ElementsAre(std::pair(Status::kUnreachable, kMany)));
  EXPECT_THAT(std::span(memory).first(kMany), testing::Each(0));
  EXPECT_FALSE(remote.connected(kNode));
}

TEST_F(BoundRemoteRcTest, AndAllWithinTheBound) {
  submit_and_stop(kBound - Duration::milliseconds(5));
  EXPECT_THAT(ended, testing::ElementsAre(std::pair(Status::kOk, kMany)));
  EXPECT_THAT(std::span(memory).first(kMany), testing::Each(9));
}

TEST_F(RemoteRcTest, NothingOfAnOperationLeavesLaterThanItSays) {
  const std::vector<std::uint8_t> data = {7};
  for (const bool late : {false, true}) {
    Operation operation = remote::write_operation(at(0), data);
    operation.not_after = world.now + Duration::milliseconds(10);
    operation.on_complete = [](Operation&) {};
    remote.submit(operation);
    if (late) world.now = world.now + Duration::milliseconds(11);
    run();
    EXPECT_EQ(operation.status, late ? Status::kUnreachable : Status::kOk);
    EXPECT_EQ(operation.not_after, Time::never()) << "for whoever submits it again";
  }
}

TEST_F(RemoteRcTest, NothingPassesWhatExpiresInLine) {
  std::vector<std::uint8_t> into(16);
  const std::vector<std::uint8_t> first = {1};
  const std::vector<std::uint8_t> second = {2};
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < 16; ++i)
    operations.push_back(remote::read_operation(at(0), MutableBytes(into).subspan(i, 1)));  // as many as fit
  operations.push_back(remote::write_operation(at(0), first));
  operations.back().not_after = world.now + Duration::milliseconds(10);
  operations.push_back(remote::write_operation(at(0), second));
  operations.push_back(remote::read_operation(at(0), into));
  for (Operation& operation : operations) {
    operation.on_complete = [](Operation&) {};
    remote.submit(operation);
  }
  world.now = world.now + Duration::milliseconds(11);
  run();
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(operations[i].status, Status::kOk) << i;
  for (std::size_t i = 16; i < operations.size(); ++i) EXPECT_EQ(operations[i].status, Status::kUnreachable) << i;
  EXPECT_EQ(memory[0], 0);
  EXPECT_TRUE(remote.connected(kNode));
}

TEST_F(BoundRemoteRcTest, AReadMayBeLate) {
  std::vector<std::uint8_t> into(8);
  const auto reader = [this, &into]() -> Task<void> { ++ended[co_await remote.read(at(0), into)]; };
  scheduler.spawn(reader());
  scheduler.run(world.now);
  world.now = world.now + kBound * 3;
  run();
  EXPECT_THAT(ended, testing::ElementsAre(std::pair(Status::kOk, 1)));
}

TEST_F(RemoteRcTest, EndsEverythingWhenANodeIsRemovedAndIgnoresItsLateCompletions) {
  Batch batch(20);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  remote.remove_node(kNode);
  ASSERT_EQ(batch.statuses.size(), 20u);
  EXPECT_EQ(batch.operations[15].status, Status::kUnknown);
  EXPECT_EQ(batch.operations[16].status, Status::kUnreachable);
  run();
  EXPECT_EQ(batch.statuses.size(), 20u) << "each once";
  EXPECT_FALSE(remote.connected(kNode));
}

TEST_F(RemoteRcTest, EndsWhatHasBeenAnsweredAsItWasWhenItsNodeIsRemoved) {
  Batch batch(20);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  while (world.a.completions->size() < 3) ASSERT_TRUE(world.round());
  const std::size_t answered = world.a.completions->size();
  remote.remove_node(kNode);
  ASSERT_EQ(batch.statuses.size(), 20u);
  for (std::size_t i = 0; i < answered; ++i) EXPECT_EQ(batch.operations[i].status, Status::kOk) << i;
  for (std::size_t i = answered; i < 16; ++i) EXPECT_EQ(batch.operations[i].status, Status::kUnknown) << i;
  for (std::size_t i = 16; i < 20; ++i) EXPECT_EQ(batch.operations[i].status, Status::kUnreachable) << i;
}

TEST_F(RemoteRcTest, KnowsWhatNeverLeftOfANodeThatIsRemoved) {
  Batch batch(20);
  batch.submit(remote, [&](std::size_t i) { return at(8 * i); });
  world.a.adapter->modify(world.now, *pair.a, {.state = QpState::kError});
  remote.remove_node(kNode);
  EXPECT_THAT(batch.statuses, testing::Each(Status::kUnreachable));
  EXPECT_EQ(batch.statuses.size(), 20u);
}

// Others' completions, taken from the queue together with that from which the node is removed, come to be looked at.
TEST_F(RemoteRcTest, MayRemoveANodeFromACompletionAmidThoseOfAnother) {
  const NodeId other{4};
  remote.add_node(other, *world.connect({.depth = 16}).a);
  std::vector<std::uint8_t> byte(1);
  std::vector<Operation> operations;
  for (int i = 0; i < 10; ++i) operations.push_back(remote::write_operation(at(0, i % 2 == 0 ? kNode : other), byte));
  for (Operation& operation : operations) {
    operation.context = &remote;
    operation.on_complete = [](Operation& o) { static_cast<RemoteRc*>(o.context)->remove_node(kNode); };
    operation.status = Status::kTooLong;  // which it does not end as
    remote.submit(operation);
  }
  while (world.a.completions->size() < operations.size()) ASSERT_TRUE(world.round());
  remote.poll(world.now);
  for (const Operation& operation : operations) EXPECT_EQ(operation.status, Status::kOk);
}

TEST_F(RemoteRcTest, GoesOnWithANewQueuePair) {
  world.a.adapter->modify(world.now, *pair.a, {.state = QpState::kError});
  const auto script = [this]() -> Task<void> {
    EXPECT_EQ((co_await remote.fetch_and_add(at(0), 1)).status, Status::kUnreachable);
    remote.add_node(kNode, *world.connect({.depth = 16}).a);
    EXPECT_EQ((co_await remote.fetch_and_add(at(0), 1)).status, Status::kOk);
  };
  run_task(script());
}

TEST_F(RemoteRcTest, MaySubmitAndReplaceNodesFromACompletion) {
  struct Chain {
    RemoteRc& remote;
    TwoAdapters& world;
    Operation operation;
    int left;
  } chain{remote, world, {.kind = OpKind::kFetchAndAdd, .remote = at(0), .swap_or_add = 1}, 100};
  chain.operation.context = &chain;
  chain.operation.on_complete = [](Operation& o) {
    auto& c = *static_cast<Chain*>(o.context);
    EXPECT_EQ(o.status, Status::kOk);
    if (--c.left == 0) return;
    if (c.left == 50) c.remote.add_node(kNode, *c.world.connect({.depth = 16}).a);
    c.remote.submit(o);
  };
  remote.submit(chain.operation);
  run();
  EXPECT_EQ(chain.left, 0);
  EXPECT_EQ(load_le<std::uint64_t>(memory.data()), 100u);
}

}  // namespace
}  // namespace sluice::rc
