#include "onerma/remote_onerma.h"

#include <gtest/gtest.h>

#include <deque>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

using remote::NodeId;

using remote::RemoteAddress;

constexpr std::uint64_t kBase = 0x10000;
constexpr std::size_t kSize = 1 << 20;
constexpr NodeId kNode{1};
const Algorithm1 kPolicy;

struct ClientWorld {
  explicit ClientWorld(const RemoteOnerma::Parameters& parameters = {}, const port::Impairment& bad = {},
                       const NodeConfig& node = {}, const Algorithm1& policy = kPolicy)
      : world(3, bad), a(world.add_host(node)), b(world.add_host(node)) {
    region = b.node->regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
    client = std::make_unique<RemoteOnerma>(world.scheduler, a.node->initiator(), policy, parameters);
    client->add_node(kNode, b.node->address());
    client->add_grant(kNode, grant_of({Rights::kAll}));
    a.clients.push_back(client.get());
  }
  Grant grant_of(Rights rights) { return *b.node->regions().grant(region, InitiatorId(1), rights); }
  RemoteAddress at(std::uint64_t offset) const { return {kNode, remote::RegionKey(region.value), kBase + offset}; }
  remote::Status run(remote::Operation operation) {
    std::optional<remote::Status> status;
    world.scheduler.spawn(await(operation, status));
    EXPECT_TRUE(world.run_until([&] { return status.has_value(); }));
    return status.value_or(remote::Status::kUnknown);
  }
  remote::Task<void> await(remote::Operation operation, std::optional<remote::Status>& status) {
    co_await client->all({&operation, 1});
    status = operation.status;
  }

  World world;
  World::Host& a;
  World::Host& b;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(kSize);
  RegionId region{};
  std::unique_ptr<RemoteOnerma> client;
};

// Somebody on the wire without a key, who drops nothing, and refuses the next `times` requests in the target's name.
void forge_refusals(ClientWorld& w, int times) {
  w.world.set_tap([&w, times](MutableBytes frame) mutable {
    Message message;
    if (times == 0 || parse(frame, message) != Verdict::kOk || !is_request(message.header.kind)) return true;
    --times;
    Header header = message.header;
    header.kind = Kind::kRefusal;
    header.status = Status::kBadKey;
    std::vector<std::uint8_t> forged(FrameWriter::frame_size(kRefusalBody));
    const FrameWriter writer(w.b.config.mac, w.b.config.ip, kUdpPort);
    writer.write(forged.data(), w.a.node->address(), header, kRefusalBody);
    Echo::of(frame.data(), message.body_length).write(forged.data() + kBodyOffset);
    write_checksum(forged.data(), kRefusalBody);
    w.world.inject(forged);
    return true;
  });
}

std::vector<std::uint8_t> noise(std::size_t length, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::uint8_t> bytes(length);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.next());
  return bytes;
}

TEST(RemoteOnerma, MovesAnyLengthBothWays) {
  ClientWorld w;
  for (const std::size_t length : {0u, 1u, 4095u, 4096u, 4097u, 100'000u, 1'000'000u}) {
    const auto from = noise(length, length);
    std::vector<std::uint8_t> into(length);
    EXPECT_EQ(w.run(remote::write_operation(w.at(7), from)), remote::Status::kOk);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), w.memory.begin() + 7));
    EXPECT_EQ(w.run(remote::read_operation(w.at(7), into)), remote::Status::kOk);
    EXPECT_EQ(into, from);
  }
}

TEST(RemoteOnerma, SaysThatItHasNoAtomics) {
  ClientWorld w;
  EXPECT_FALSE(w.client->capabilities().atomics);
  EXPECT_EQ(w.run(remote::swap_operation(w.at(0), 0, 1)), remote::Status::kUnsupported);
  EXPECT_EQ(w.run(remote::add_operation(w.at(0), 1)), remote::Status::kUnsupported);
  EXPECT_EQ(w.memory[0], 0);
}

TEST(RemoteOnerma, NamesWhatIsWrongWithAnAddress) {
  ClientWorld w;
  std::vector<std::uint8_t> bytes(64);
  auto elsewhere = w.at(0);
  elsewhere.node = NodeId(9);
  EXPECT_EQ(w.run(remote::read_operation(elsewhere, bytes)), remote::Status::kNodeUnknown);
  auto other = w.at(0);
  other.key.value += 1;
  EXPECT_EQ(w.run(remote::read_operation(other, bytes)), remote::Status::kAccessDenied);
  EXPECT_EQ(w.run(remote::read_operation(w.at(kSize - 63), bytes)), remote::Status::kAccessDenied);
  EXPECT_EQ(w.run(remote::write_operation(w.at(kSize - 63), bytes)), remote::Status::kAccessDenied);
}

TEST(RemoteOnerma, AWriteOfWhichOnlyAPartWasAllowedIsInDoubt) {
  ClientWorld w;
  const auto from = noise(3 * kMaxOp, 1);
  EXPECT_EQ(w.run(remote::write_operation(w.at(kSize - 2 * kMaxOp), from)), remote::Status::kUnknown);
  std::vector<std::uint8_t> into(3 * kMaxOp);
  EXPECT_EQ(w.run(remote::read_operation(w.at(kSize - 2 * kMaxOp), into)), remote::Status::kAccessDenied);
}

// Another client may have read what it wrote, and written something else.
TEST(RemoteOnerma, AWriteThatMayHaveBeenDoneIsNotDoneAgainUnlessItMayBe) {
  for (const bool repeat : {false, true}) {
    for (const Kind lost : {Kind::kWriteRequest, Kind::kPull, Kind::kData, Kind::kCompletion}) {
      RemoteOnerma::Parameters parameters;
      parameters.repeat_writes = repeat;
      ClientWorld w(parameters);
      bool one_is = false;
      w.world.set_tap([&](MutableBytes frame) {
        Message message;
        return parse(frame, message) != Verdict::kOk || message.header.kind != lost || std::exchange(one_is, true);
      });
      const auto from = noise(100, 1);
      const bool in_doubt = lost == Kind::kData || lost == Kind::kCompletion;
      EXPECT_EQ(w.run(remote::write_operation(w.at(0), from)),
                in_doubt && !repeat ? remote::Status::kUnknown : remote::Status::kOk);
      EXPECT_EQ(w.b.node->target().counters().writes, (lost == Kind::kData && !repeat)        ? 0u
                                                      : (lost == Kind::kCompletion && repeat) ? 2u
                                                                                              : 1u);
    }
  }
}

// Each try's, whatever the last one came to.
TEST(RemoteOnerma, AWriteOneTryOfWhichMayHaveBeenDoneIsInDoubtAlthoughTheNextCannotHaveBeen) {
  RemoteOnerma::Parameters parameters;
  parameters.repeat_writes = true;
  parameters.give_up = Duration::milliseconds(1);
  ClientWorld w(parameters);
  int writes = 0;
  w.world.set_tap([&](MutableBytes frame) {
    Message message;
    if (parse(frame, message) != Verdict::kOk) return true;
    writes += message.header.kind == Kind::kWriteRequest ? 1 : 0;
    return message.header.kind != Kind::kCompletion && writes == 1;
  });
  EXPECT_EQ(w.run(remote::write_operation(w.at(0), noise(100, 1))), remote::Status::kUnknown);
  EXPECT_EQ(w.b.node->target().counters().writes, 1u);
}

TEST(RemoteOnerma, OperationsAreNoLongerThanFramesMayBe) {
  RemoteOnerma::Parameters parameters;
  parameters.piece = 1024;
  ClientWorld w(parameters);
  std::size_t longest = 0;
  w.world.set_tap([&](MutableBytes frame) {
    longest = std::max(longest, frame.size());
    return true;
  });
  const auto from = noise(10'000, 1);
  std::vector<std::uint8_t> into(10'000);
  EXPECT_EQ(w.run(remote::write_operation(w.at(7), from)), remote::Status::kOk);
  EXPECT_EQ(w.run(remote::read_operation(w.at(7), into)), remote::Status::kOk);
  EXPECT_EQ(into, from);
  EXPECT_EQ(longest, FrameWriter::frame_size(1024));
}

// None of a write has been done whose data nobody has asked for.
TEST(RemoteOnerma, ANodeThatWasDeadFromTheBeginningIsUnreachableForReadsAndWrites) {
  RemoteOnerma::Parameters quick;
  quick.give_up = Duration::milliseconds(1);
  ClientWorld w(quick);
  World::kill(w.b);
  std::vector<std::uint8_t> bytes(10'000);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kUnreachable);
  EXPECT_EQ(w.run(remote::write_operation(w.at(0), bytes)), remote::Status::kUnreachable);
  EXPECT_EQ(w.a.node->initiator().slots().open(), 0u);
}

// What waits behind a window that time-outs have cut to a hundredth does not wait for its turn, but for as long as it was told to.
TEST(RemoteOnerma, WhatWaitsForADeadNodesWindowEndsWhenItsTimeIsOver) {
  RemoteOnerma::Parameters parameters;
  parameters.give_up = Duration::microseconds(40);
  ClientWorld w(parameters);
  World::kill(w.b);
  std::vector<std::uint8_t> local(64);
  std::deque<remote::Operation> all;
  const Time begun = w.world.now;
  std::size_t open = 0;
  for (int i = 0; i < 200; ++i, ++open) {
    remote::Operation& one = all.emplace_back(remote::read_operation(w.at(0), local));
    one.context = &open;
    one.on_complete = [](remote::Operation& o) { --*static_cast<std::size_t*>(o.context); };
    w.client->submit(one);
  }
  ASSERT_TRUE(w.world.run_until([&] { return open == 0; }));
  for (const remote::Operation& one : all) EXPECT_EQ(one.status, remote::Status::kUnreachable);
  EXPECT_LT(w.world.now - begun, parameters.give_up + Duration::microseconds(25) + Duration::microseconds(10));
}

// Who polls only while something is under way, and submits from outside.
TEST(RemoteOnerma, TimeToGiveUpBeginsWithTheTransferHoweverLongNobodyHasPolled) {
  ClientWorld w;
  std::vector<std::uint8_t> bytes(kSize);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
  w.world.now = w.world.now + Duration::seconds(1);
  bool done = false;
  remote::Operation read = remote::read_operation(w.at(0), bytes);
  read.context = &done;
  read.on_complete = [](remote::Operation& o) { *static_cast<bool*>(o.context) = true; };
  w.client->submit(read);
  EXPECT_LE(w.client->next_deadline(), w.world.now);
  ASSERT_TRUE(w.world.run_until([&] { return done; }));
  EXPECT_EQ(read.status, remote::Status::kOk);
}

// Windows that hold many operations before the node dies, and one at a time afterwards, each for a time-out.
TEST(RemoteOnerma, AHalfDoneTransferEndsSoonAfterItsTimeWhenItsNodeDies) {
  NodeConfig node;
  node.window_bytes = 1 << 20;
  node.slots = {.slots = 1024, .dispatch_timeout = Duration::milliseconds(5), .timeout = Duration::milliseconds(10)};
  RemoteOnerma::Parameters parameters;
  parameters.give_up = Duration::milliseconds(50);
  parameters.executor.first_remote = 200 * CongestionWindow::kOne;
  parameters.executor.first_local = 256 * CongestionWindow::kOne;
  const Algorithm1 whole({.smallest = CongestionWindow::kOne});
  for (const bool read : {true, false}) {
    ClientWorld w(parameters, {}, node, whole);
    std::vector<std::uint8_t> bytes(kSize);
    std::optional<remote::Status> done;
    const Time begun = w.world.now;
    const auto operation = read ? remote::read_operation(w.at(0), bytes) : remote::write_operation(w.at(0), bytes);
    w.world.scheduler.spawn(w.await(operation, done));
    ASSERT_TRUE(w.world.run_until([&] { return w.client->counters().operations == 20; }));
    World::kill(w.b);
    ASSERT_TRUE(w.world.run_until([&] { return done.has_value(); }));
    EXPECT_EQ(done, read ? remote::Status::kUnreachable : remote::Status::kUnknown);
    // What is under way when time is over fails within two time-outs of a write.
    EXPECT_LT(w.world.now - begun, parameters.give_up + node.slots.timeout * 2);
  }
}

TEST(RemoteOnerma, InOrderOperationsToOneNodeTakeEffectAsSubmitted) {
  RemoteOnerma::Parameters ordered;
  ordered.order = RemoteOnerma::Order::kInOrder;
  ordered.repeat_writes = true;
  port::Impairment bad;
  bad.drop = bad.reorder = 50'000;
  ClientWorld w(ordered, bad);
  EXPECT_TRUE(w.client->capabilities().ordered);
  std::deque<std::vector<std::uint8_t>> bytes;
  std::vector<remote::Operation> operations;
  for (std::uint8_t i = 0; i < 50; ++i) {
    bytes.emplace_back(100 + 200 * std::size_t{i}, i);
    operations.push_back(remote::write_operation(w.at(0), bytes.back()));
  }
  // Shorter and shorter, so that each leaves a mark.
  std::ranges::reverse(operations);
  bool done = false;
  const auto all = [&]() -> remote::Task<void> {
    co_await w.client->all(operations);
    done = true;
  };
  w.world.scheduler.spawn(all());
  ASSERT_TRUE(w.world.run_until([&] { return done; }));
  for (std::size_t i = 0; i < operations.size(); ++i) EXPECT_EQ(operations[i].status, remote::Status::kOk);
  for (std::uint8_t i = 0; i < 50; ++i) EXPECT_EQ(w.memory[99 + 200 * std::size_t{i}], i);
}

TEST(RemoteOnerma, ALongTransferDoesNotHoldUpAShortOne) {
  ClientWorld w;
  std::vector<std::uint8_t> big(1'000'000), little(64);
  // The window holds some 15 operations of 4 KB: the long one takes some 17 round trips.
  std::optional<remote::Status> big_done, little_done;
  w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), big), big_done));
  w.world.run_for(Duration::microseconds(3));
  w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), little), little_done));
  ASSERT_TRUE(w.world.run_until([&] { return little_done.has_value(); }));
  EXPECT_FALSE(big_done.has_value());
  ASSERT_TRUE(w.world.run_until([&] { return big_done.has_value(); }));
}

TEST(RemoteOnerma, WithoutANewKeyWhatWasRefusedEndsAsDenied) {
  RemoteOnerma::Parameters quick;
  quick.key_wait = Duration::milliseconds(1);
  ClientWorld w(quick);
  int asked = 0;
  w.client->on_key_refused([&](Time, NodeId node, RegionId region) {
    ++asked;
    EXPECT_EQ(node, kNode);
    EXPECT_EQ(region, w.region);
  });
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::vector<std::uint8_t> bytes(64);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kAccessDenied);
  EXPECT_EQ(asked, 1);
}

TEST(RemoteOnerma, AForgedRefusalDoesNotEndAKeyThatWorks) {
  ClientWorld w;
  const onerma::RegionKey next(test_key(2));
  std::vector<std::uint8_t> bytes(64);
  w.client->announce_grant(kNode, make_grant(next, w.region, Generation(2), InitiatorId(1), {Rights::kAll}));
  for (int i = 0; i < 3; ++i) {
    forge_refusals(w, 1);
    const Time begun = w.world.now;
    EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
    EXPECT_LT(w.world.now - begun, Duration::microseconds(20));
    EXPECT_EQ(w.client->grant(kNode, w.region).generation, Generation(1));
  }
  // The announced one is still there when its time comes.
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
  EXPECT_EQ(w.client->grant(kNode, w.region).generation, Generation(2));
  EXPECT_EQ(w.client->counters().key_waits, 0u);
}

TEST(RemoteOnerma, AForgedRefusalCostsAWaitWhereNoKeyIsAnnounced) {
  ClientWorld w;
  std::vector<std::uint8_t> bytes(64);
  forge_refusals(w, 1);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
  EXPECT_EQ(w.client->counters().key_waits, 1u);
}

// Refused in the target's name just before the Rekey, and by the target itself just after it: what was announced is tried again.
TEST(RemoteOnerma, AKeyThatWasTriedTooEarlyIsTriedAgain) {
  ClientWorld w;
  const onerma::RegionKey next(test_key(2));
  std::vector<std::uint8_t> bytes(64);
  w.client->announce_grant(kNode, make_grant(next, w.region, Generation(2), InitiatorId(1), {Rights::kAll}));
  forge_refusals(w, 2);
  std::optional<remote::Status> done;
  w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), bytes), done));
  ASSERT_TRUE(w.world.run_until([&] { return w.client->counters().retries == 2; }));
  EXPECT_EQ(w.client->grant(kNode, w.region).generation, Generation(1));
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  ASSERT_TRUE(w.world.run_until([&] { return done.has_value(); }));
  EXPECT_EQ(done, remote::Status::kOk);
}

TEST(RemoteOnerma, ANewKeyLetsWhatWasRefusedGoOn) {
  ClientWorld w;
  w.client->on_key_refused(
      [&](Time now, NodeId node, RegionId) { w.client->replace_grant(now, node, w.grant_of({Rights::kAll})); });
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::vector<std::uint8_t> bytes(64);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
  EXPECT_EQ(w.client->counters().key_waits, 1u);
}

TEST(RemoteOnerma, WhatWaitsForAKeyDoesNotHoldUpOtherRegionsOfTheNode) {
  RemoteOnerma::Parameters narrow;
  narrow.executor.first_remote = CongestionWindow::kOne;
  ClientWorld w(narrow);
  std::vector<std::uint8_t> memory(4096), bytes(64);
  const RegionId other = w.b.node->regions().add(memory, kBase, memory::kAllAccess, test_key(3)).value();
  w.client->add_grant(kNode, *w.b.node->regions().grant(other, InitiatorId(1), {Rights::kAll}));
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::optional<remote::Status> refused[3], done;
  for (auto& status : refused) w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), bytes), status));
  const RemoteAddress elsewhere{kNode, remote::RegionKey(other.value), kBase};
  w.world.scheduler.spawn(w.await(remote::read_operation(elsewhere, bytes), done));
  w.world.run_for(Duration::microseconds(200));
  EXPECT_EQ(w.client->counters().key_waits, 3u);
  EXPECT_EQ(done, remote::Status::kOk);
}

TEST(RemoteOnerma, ARefusedRegionTakesNoPiecesFromOtherNodes) {
  ClientWorld w;
  World::Host& other = w.world.add_host();
  std::vector<std::uint8_t> memory(4096), big(kSize), little(64);
  const RegionId theirs = other.node->regions().add(memory, kBase, memory::kAllAccess, test_key(3)).value();
  w.client->add_node(NodeId(2), other.node->address());
  w.client->add_grant(NodeId(2), *other.node->regions().grant(theirs, InitiatorId(2), {Rights::kAll}));
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  // 2,048 pieces: twice as many as there are.
  std::optional<remote::Status> refused[8];
  for (auto& status : refused) w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), big), status));
  for (int i = 0; i < 100; ++i) {
    const Time begun = w.world.now;
    const RemoteAddress there{NodeId(2), remote::RegionKey(theirs.value), kBase};
    EXPECT_EQ(w.run(remote::read_operation(there, little)), remote::Status::kOk);
    EXPECT_LT(w.world.now - begun, Duration::microseconds(10));
  }
  // The first window, and what waits at the executor: 10; and of each transfer at most one more, to see whether the key is still refused.
  EXPECT_LE(w.b.node->target().counters().old_key, 18u);
  w.client->replace_grant(w.world.now, kNode, w.grant_of({Rights::kAll}));
  for (auto& status : refused) {
    ASSERT_TRUE(w.world.run_until([&] { return status.has_value(); }));
    EXPECT_EQ(status, remote::Status::kOk);
  }
}

// One that comes every `every`, whatever becomes of those before: how they ended, and how many took longer than a millisecond.
struct Stream {
  struct One {
    Stream* stream = nullptr;
    remote::Operation operation{};
    Time begun{};
  };

  void run(ClientWorld& w, Duration every, Duration time) {
    world = &w;
    const Time end = w.world.now + time;
    for (Time next = w.world.now; w.world.now < end;) {
      if (w.world.now >= next) {
        next = next + every;
        begin();
      }
      if (!w.world.round() || w.world.now > next) w.world.now = next;
    }
    ASSERT_TRUE(w.world.run_until([&] { return ok + denied + other == all.size(); }));
  }
  void begin() {
    One& one = all.emplace_back();
    one.stream = this;
    one.operation = remote::read_operation(world->at(0), bytes);
    one.begun = world->world.now;
    one.operation.context = &one;
    one.operation.on_complete = [](remote::Operation& operation) {
      const One& ended = *static_cast<One*>(operation.context);
      ended.stream->end(ended);
    };
    world->client->submit(one.operation);
  }
  void end(const One& one) {
    const remote::Status status = one.operation.status;
    ++(status == remote::Status::kOk ? ok : status == remote::Status::kAccessDenied ? denied : other);
    slow += world->world.now - one.begun > Duration::milliseconds(1) ? 1u : 0u;
  }

  ClientWorld* world = nullptr;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(64);
  std::deque<One> all;
  std::size_t ok = 0, denied = 0, other = 0, slow = 0;
};

TEST(RemoteOnerma, AForgedRefusalHoldsUpNothingThatComesAfterIt) {
  ClientWorld w;
  Stream stream;
  for (int i = 0; i < 20; ++i) {
    forge_refusals(w, 1);
    stream.run(w, Duration::microseconds(50), Duration::milliseconds(10));
  }
  EXPECT_EQ(w.client->counters().key_waits, 20u);
  EXPECT_EQ(stream.ok, stream.all.size());
  EXPECT_EQ(stream.slow, 0u);  // what was refused, too, goes on when the next one succeeds
}

// Nothing that is denied is followed by a moment in which nobody waits.
TEST(RemoteOnerma, WhoMissedThatAKeyWasRefusedIsAskedAgainWhileMoreComes) {
  ClientWorld w;
  int asked = 0;
  w.client->on_key_refused([&](Time now, NodeId node, RegionId) {
    if (++asked == 2) w.client->replace_grant(now, node, w.grant_of({Rights::kAll}));
  });
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  Stream stream;
  stream.run(w, Duration::milliseconds(3), Duration::milliseconds(200));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(stream.ok, stream.all.size());
}

TEST(RemoteOnerma, AKeyThatIsAnnouncedAfterTheFirstRefusalLetsAllGoOnAtOnce) {
  RemoteOnerma::Parameters narrow;
  narrow.executor.first_remote = CongestionWindow::kOne;
  ClientWorld w(narrow);
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::vector<std::uint8_t> bytes(64), big(20 * kMaxOp);
  std::optional<remote::Status> done[20];
  w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), big), done[0]));
  for (std::size_t i = 1; i < 20; ++i) {
    w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), bytes), done[i]));
  }
  ASSERT_TRUE(w.world.run_until(
      [&] { return w.client->counters().key_waits >= 3 && w.a.node->initiator().slots().open() == 0; }));
  for (const auto& status : done) EXPECT_FALSE(status.has_value());
  const Time announced = w.world.now;
  w.client->announce_grant(kNode, w.grant_of({Rights::kAll}));
  ASSERT_TRUE(w.world.run_until([&] { return w.world.scheduler.live() == 0; }));
  for (const auto& status : done) EXPECT_EQ(status, remote::Status::kOk);
  EXPECT_LT(w.world.now - announced, Duration::milliseconds(1));
}

TEST(RemoteOnerma, AllThatWantsARefusedRegionIsDeniedAfterOneWait) {
  RemoteOnerma::Parameters parameters;
  parameters.key_wait = Duration::milliseconds(1);
  ClientWorld w(parameters);
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::vector<std::uint8_t> bytes(64);
  std::optional<remote::Status> denied[500];
  const Time begun = w.world.now;
  for (auto& status : denied) w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), bytes), status));
  ASSERT_TRUE(w.world.run_until([&] { return w.world.scheduler.live() == 0; }));
  for (const auto& status : denied) EXPECT_EQ(status, remote::Status::kAccessDenied);
  EXPECT_LT(w.world.now - begun, parameters.key_wait + Duration::milliseconds(1));
}

TEST(RemoteOnerma, NothingWaitsForAKeyForLongerThanUntilItsTimeIsOver) {
  RemoteOnerma::Parameters parameters;
  parameters.give_up = Duration::microseconds(100);
  parameters.key_wait = Duration::milliseconds(10);
  ClientWorld w(parameters);
  std::vector<std::uint8_t> bytes(64), big(kSize);
  // One that has begun to succeed, some that have been refused, and some that were not even issued.
  std::optional<remote::Status> half, denied[100];
  const Time begun = w.world.now;
  w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), big), half));
  ASSERT_TRUE(w.world.run_until([&] { return w.client->counters().operations == 20; }));
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  for (auto& status : denied) w.world.scheduler.spawn(w.await(remote::read_operation(w.at(0), bytes), status));
  ASSERT_TRUE(w.world.run_until([&] { return w.world.scheduler.live() == 0; }));
  EXPECT_EQ(half, remote::Status::kAccessDenied);
  for (const auto& status : denied) EXPECT_EQ(status, remote::Status::kAccessDenied);
  EXPECT_LT(w.world.now - begun, parameters.give_up * 2);
}

// Who polls only while something is under way: the next come before a poll that could see that nobody waits any more.
TEST(RemoteOnerma, WhatComesAfterAllThatWaitedForAKeyHasGivenUpGoesOutAtOnce) {
  RemoteOnerma::Parameters parameters;
  parameters.give_up = Duration::microseconds(100);
  ClientWorld w(parameters);
  ASSERT_TRUE(w.b.node->regions().rekey(w.region, test_key(2)));
  std::vector<std::uint8_t> bytes(64), big(20 * kMaxOp);
  for (const bool is_long : {false, true}) {
    EXPECT_EQ(w.run(remote::read_operation(w.at(0), is_long ? big : bytes)), remote::Status::kAccessDenied);
    const std::uint64_t before = w.client->counters().key_waits;
    std::size_t open = 5;
    std::deque<remote::Operation> next(open, remote::read_operation(w.at(0), bytes));
    for (remote::Operation& one : next) {
      one.context = &open;
      one.on_complete = [](remote::Operation& o) { --*static_cast<std::size_t*>(o.context); };
      w.client->submit(one);
    }
    ASSERT_TRUE(w.world.run_until([&] { return open == 0; }));
    EXPECT_EQ(w.client->counters().key_waits - before, next.size());  // each has been to the target
  }
}

// Its generations begin at one again.
TEST(RemoteOnerma, WhatARestartedTargetRefusesGoesOnIfItsNewKeyHasComeMeanwhile) {
  ClientWorld w;
  World::kill(w.b);
  World::revive(w.b);
  Regions& regions = w.b.node->regions();
  RegionId again = regions.add(w.memory, kBase, memory::kAllAccess, test_key(2)).value();
  for (int i = 0; i < 256 && again != w.region; ++i) {  // the region table starts from another seed
    regions.remove(again);
    again = regions.add(w.memory, kBase, memory::kAllAccess, test_key(2)).value();
  }
  ASSERT_EQ(again, w.region);
  int frames = 0;
  w.world.set_tap([&](MutableBytes) {
    if (++frames == 2) w.client->replace_grant(w.world.now, kNode, w.grant_of({Rights::kAll}));  // the refusal
    return true;
  });
  std::vector<std::uint8_t> bytes(64);
  EXPECT_EQ(w.run(remote::read_operation(w.at(0), bytes)), remote::Status::kOk);
  EXPECT_EQ(w.client->counters().key_waits, 0u);
  EXPECT_EQ(w.client->counters().retries, 1u);
}

// Readers and writers without pause; a third party changes the key every 50 us and has told them the next one.
TEST(RemoteOnerma, ARekeyUnderFullLoadFailsNothingAndPausesForARoundTrip) {
  ClientWorld w;
  World::Host& control = w.world.add_host();
  RemoteOnerma third(w.world.scheduler, control.node->initiator(), kPolicy, {});
  third.add_node(kNode, w.b.node->address());
  third.add_grant(kNode, *w.b.node->regions().grant(w.region, InitiatorId(5), kMayRekey));
  control.clients.push_back(&third);
  bool stop = false;
  Time last = w.world.now;
  Duration usual, longest;  // between two completions of any worker
  int failed = 0, done = 0, rekeys = 0;
  const auto worker = [&](std::uint64_t offset) -> remote::Task<void> {
    std::vector<std::uint8_t> bytes(4096);
    while (!stop) {
      const remote::Status wrote = co_await w.client->write(w.at(offset), bytes);
      const remote::Status read = co_await w.client->read(w.at(offset), bytes);
      failed += wrote != remote::Status::kOk || read != remote::Status::kOk ? 1 : 0;
      ++done;
      longest = std::max(longest, w.world.now - last);
      last = w.world.now;
    }
  };
  for (std::uint64_t i = 0; i < 16; ++i) w.world.scheduler.spawn(worker(i * 8192));
  w.world.run_for(Duration::microseconds(200));
  usual = std::exchange(longest, Duration{});
  for (std::uint32_t generation = 2; generation < 12; ++generation) {
    const onerma::RegionKey key(test_key(generation + 100));
    w.client->announce_grant(kNode, make_grant(key, w.region, Generation(generation), InitiatorId(1), {Rights::kAll}));
    bool changed = false;
    third.rekey(w.world.now, kNode, w.region, test_key(generation + 100), [&](Time now, Status status) {
      EXPECT_EQ(status, Status::kOk);
      changed = true;
      ++rekeys;
      third.replace_grant(now, kNode, make_grant(key, w.region, Generation(generation), InitiatorId(5), kMayRekey));
    });
    ASSERT_TRUE(w.world.run_until([&] { return changed; }));
    w.world.run_for(Duration::microseconds(50));
  }
  stop = true;
  ASSERT_TRUE(w.world.run_until([&] { return w.world.scheduler.live() == 0; }));
  EXPECT_EQ(rekeys, 10);
  EXPECT_EQ(failed, 0);
  EXPECT_GT(done, 500);
  EXPECT_EQ(w.client->counters().key_waits, 0u);
  // No longer without a completion than before, and one round trip (of a write: four hops) more.
  const Duration round_trip = w.client->executor().rtt(PathId(1));
  EXPECT_LE(longest, usual + round_trip * 2) << longest.nanoseconds() << " ns";
  RecordProperty("pause_ns", static_cast<int>(longest.nanoseconds()));
}

TEST(RemoteOnerma, MoreOperationsThanPlacesWaitTheirTurn) {
  RemoteOnerma::Parameters few;
  few.transfers = 2;
  few.pieces = 3;
  ClientWorld w(few);
  std::vector<std::vector<std::uint8_t>> into(40, std::vector<std::uint8_t>(10'000));
  std::vector<remote::Operation> operations;
  for (auto& bytes : into) operations.push_back(remote::read_operation(w.at(0), bytes));
  bool done = false;
  const auto all = [&]() -> remote::Task<void> {
    co_await w.client->all(operations);
    done = true;
  };
  w.world.scheduler.spawn(all());
  ASSERT_TRUE(w.world.run_until([&] { return done; }));
  for (const auto& operation : operations) EXPECT_EQ(operation.status, remote::Status::kOk);
}

}  // namespace
}  // namespace sluice::onerma
