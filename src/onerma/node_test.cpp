// One operation at a time between two nodes and an onlooker: every way it can end.
#include "onerma/node.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <numeric>
#include <set>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

bool holds(ByteView all, ByteView part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

constexpr std::uint64_t kBase = 0x10000;
constexpr InitiatorId kInitiator{0x77};

struct Pair {
  explicit Pair(const NodeConfig& a_config = {}, const NodeConfig& b_config = {}, const port::Impairment& bad = {})
      : world(1, bad), a(world.add_host(a_config)), b(world.add_host(b_config)) {
    std::iota(memory.begin(), memory.end(), std::uint8_t{0});
    region = b.node->regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
    grant = a.node->initiator().add_grant(b.node->address(), grant_of({Rights::kAll}));
  }
  Grant grant_of(Rights rights, InitiatorId initiator = kInitiator) {
    return *b.node->regions().grant(region, initiator, rights);
  }
  void issue(OpKind op, std::uint64_t address, MutableBytes local, std::uint64_t user = 0) {
    ASSERT_TRUE(a.node->initiator().issue(
        world.now, {.op = op, .grant = grant, .address = address, .local = local, .user = user, .completions = &ring}));
  }
  Completion wait() {
    EXPECT_TRUE(world.run_until([&] { return !ring.empty(); }));
    return ring.empty() ? Completion{} : ring.pop();
  }
  Status run(OpKind op, std::uint64_t address, MutableBytes local) {
    issue(op, address, local);
    return wait().status;
  }

  World world;
  World::Host& a;
  World::Host& b;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(16384);
  RegionId region{};
  GrantId grant{};
  CompletionRing ring{256};
};

// Frames of a kind that pass the hub, kept; and lost when `lose` says so.
struct Onlooker {
  explicit Onlooker(World& world) {
    world.set_tap([this](MutableBytes frame) {
      Message message;
      if (parse(frame, message) != Verdict::kOk) return true;
      seen.push_back({message.header.kind, {frame.begin(), frame.end()}});
      return !(lose && message.header.kind == *lose);
    });
  }
  struct Frame {
    Kind kind{};
    std::vector<std::uint8_t> bytes;
  };
  const std::vector<std::uint8_t>& last(Kind kind) {
    for (std::size_t i = seen.size(); i-- != 0;) {
      if (seen[i].kind == kind) return seen[i].bytes;
    }
    ADD_FAILURE() << "no such frame";
    return seen.back().bytes;
  }
  std::deque<Frame> seen;
  std::optional<Kind> lose;
};

TEST(Node, AReadBringsTheBytes) {
  Pair p;
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{4096}}) {
    std::vector<std::uint8_t> into(length);
    EXPECT_EQ(p.run(OpKind::kRead, kBase + 5, into), Status::kOk);
    EXPECT_TRUE(std::equal(into.begin(), into.end(), p.memory.begin() + 5));
  }
}

TEST(Node, ACompletionNamesItsSlotAndDelays) {
  Pair p;
  std::vector<std::uint8_t> into(64);
  p.issue(OpKind::kRead, kBase, into, 99);
  const Completion c = p.wait();
  EXPECT_EQ(c.user, 99u);
  EXPECT_EQ(c.length, 64u);
  EXPECT_EQ(c.op, OpKind::kRead);
  EXPECT_LT(c.issue_delay, Duration::microseconds(1));
  EXPECT_GE(c.total_delay, World::kRound);
  EXPECT_EQ(c.remote_delay(), c.total_delay - c.issue_delay);
}

TEST(Node, AWriteTakesFourHopsAndChangesMemory) {
  Pair p;
  Onlooker onlooker(p.world);
  std::vector<std::uint8_t> from(4096, 0xAB);
  EXPECT_EQ(p.run(OpKind::kWrite, kBase + 3, from), Status::kOk);
  EXPECT_TRUE(std::equal(from.begin(), from.end(), p.memory.begin() + 3));
  EXPECT_EQ(p.memory[2], 2);
  std::vector<Kind> kinds;
  for (const auto& frame : onlooker.seen) kinds.push_back(frame.kind);
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kWriteRequest, Kind::kPull, Kind::kData, Kind::kCompletion}));
}

TEST(Node, NothingOfMemoryOrKeysIsSeenOnTheWire) {
  Pair p;
  Onlooker onlooker(p.world);
  std::vector<std::uint8_t> secret(64);
  Rng rng(5);
  for (auto& byte : secret) byte = static_cast<std::uint8_t>(rng.next());
  p.run(OpKind::kWrite, kBase, secret);
  std::vector<std::uint8_t> into(64);
  p.run(OpKind::kRead, kBase, into);
  Secret key = test_key(3);
  p.run(OpKind::kRekey, 0, key.mutable_bytes());
  for (const auto& frame : onlooker.seen) {
    EXPECT_FALSE(holds(frame.bytes, ByteView(secret).first(8)));
    EXPECT_FALSE(holds(frame.bytes, key.bytes().first(8)));
  }
}

TEST(Node, WhatIsOutsideTheRegionIsBadBounds) {
  Pair p;
  std::vector<std::uint8_t> bytes(64);
  for (const OpKind op : {OpKind::kRead, OpKind::kWrite}) {
    EXPECT_EQ(p.run(op, kBase - 1, bytes), Status::kBadBounds);
    EXPECT_EQ(p.run(op, kBase + 16384 - 63, bytes), Status::kBadBounds);
    EXPECT_EQ(p.run(op, ~std::uint64_t{0}, bytes), Status::kBadBounds);
    EXPECT_EQ(p.run(op, kBase + 16384 - 64, bytes), Status::kOk);
  }
  EXPECT_EQ(p.b.node->target().counters().bad_bounds, 6u);
}

TEST(Node, AKeyIsGoodForWhatItWasDerivedForAlone) {
  Pair p;
  std::vector<std::uint8_t> bytes(64);
  p.grant = p.a.node->initiator().add_grant(p.b.node->address(), p.grant_of(kMayRead, InitiatorId(2)));
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kOk);
  EXPECT_EQ(p.run(OpKind::kWrite, kBase, bytes), Status::kRightMissing);
  Secret key = test_key(9);
  EXPECT_EQ(p.run(OpKind::kRekey, 0, key.mutable_bytes()), Status::kRightMissing);
  // Claiming more than the key was derived with makes it another key.
  Grant more = p.grant_of(kMayRead, InitiatorId(3));
  more.rights = {Rights::kAll};
  p.grant = p.a.node->initiator().add_grant(p.b.node->address(), more);
  EXPECT_EQ(p.run(OpKind::kWrite, kBase, bytes), Status::kBadKey);
}

TEST(Node, AWrongKeyAWrongRegionAndAWrongGenerationAreBadKeys) {
  Pair p;
  std::vector<std::uint8_t> bytes(64);
  Grant wrong = p.grant_of({Rights::kAll});
  wrong.key = test_key(50);
  Grant elsewhere = p.grant_of({Rights::kAll});
  elsewhere.region.value += 256;
  Grant later = p.grant_of({Rights::kAll});
  ++later.generation.value;
  for (const Grant& grant : {wrong, elsewhere, later}) {
    p.grant = p.a.node->initiator().add_grant(p.b.node->address(), grant);
    EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
    EXPECT_EQ(p.run(OpKind::kWrite, kBase, bytes), Status::kBadKey);
  }
  EXPECT_EQ(p.b.node->target().counters().forged, 6u);
}

TEST(Node, RekeyMakesTheOldKeyBadAndTheNewOneGood) {
  Pair p;
  std::vector<std::uint8_t> bytes(64);
  Secret fresh = test_key(2);
  EXPECT_EQ(p.run(OpKind::kRekey, 0, fresh.mutable_bytes()), Status::kOk);
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
  EXPECT_EQ(p.run(OpKind::kWrite, kBase, bytes), Status::kBadKey);
  EXPECT_EQ(p.b.node->target().counters().old_key, 2u);
  // Whoever knows the new key derives what the target does.
  const Grant grant = make_grant(RegionKey(test_key(2)), p.region, Generation(2), kInitiator, {Rights::kAll});
  EXPECT_TRUE(grant.key == p.grant_of({Rights::kAll}).key);
  p.a.node->initiator().replace_grant(p.grant, grant);
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kOk);
  // Back to a key of before: refused.
  Secret old = test_key(1);
  EXPECT_EQ(p.run(OpKind::kRekey, 0, old.mutable_bytes()), Status::kBadKey);
}

TEST(Node, LocalRekeyAndThatOfAThirdPartyLeaveUsersWithABadKey) {
  Pair p;
  World::Host& c = p.world.add_host();
  const GrantId control = c.node->initiator().add_grant(p.b.node->address(), p.grant_of(kMayRekey, InitiatorId(8)));
  CompletionRing ring(4);
  Secret fresh = test_key(2);
  ASSERT_TRUE(c.node->initiator().issue(
      p.world.now, {.op = OpKind::kRekey, .grant = control, .local = fresh.mutable_bytes(), .completions = &ring}));
  ASSERT_TRUE(p.world.run_until([&] { return !ring.empty(); }));
  EXPECT_EQ(ring.pop().status, Status::kOk);
  std::vector<std::uint8_t> bytes(64);
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
  p.a.node->initiator().replace_grant(p.grant, p.grant_of({Rights::kAll}));
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kOk);
  ASSERT_TRUE(p.b.node->regions().rekey(p.region, test_key(3)));
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
  // Two Rekeys later the key is one that nobody remembers: still a bad key, told in clear.
  ASSERT_TRUE(p.b.node->regions().rekey(p.region, test_key(4)));
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
}

TEST(Node, WhatWasUnderWayWhenTheKeyChangedEndsAsABadKeyAndWritesNothing) {
  for (const Protection protection : {Protection::kSealed, Protection::kPlain}) {
    Pair p({.protection = protection}, {.allow_plain = true});
    Onlooker onlooker(p.world);
    std::vector<std::uint8_t> from(64, 0xEE);
    p.issue(OpKind::kWrite, kBase, from);
    ASSERT_TRUE(p.world.run_until([&] { return !onlooker.seen.empty() && onlooker.seen.back().kind == Kind::kPull; }));
    ASSERT_TRUE(p.b.node->regions().rekey(p.region, test_key(2)));
    EXPECT_EQ(p.wait().status, Status::kBadKey);
    EXPECT_EQ(p.memory[0], 0);
  }
}

// The initiator forgets a key when it has been replaced twice: what was begun under it ends, and holds nothing else up.
TEST(Node, DataWhoseKeyWasReplacedTwiceSinceTheirPullEndAsABadKeyAndHoldNothingUp) {
  Pair p;
  Onlooker onlooker(p.world);
  onlooker.lose = Kind::kPull;
  std::vector<std::uint8_t> from(64, 0xEE), into(64);
  p.issue(OpKind::kWrite, kBase, from);
  ASSERT_TRUE(p.world.run_until([&] { return !onlooker.seen.empty() && onlooker.seen.back().kind == Kind::kPull; }));
  auto pull = onlooker.last(Kind::kPull);
  p.a.node->on_frame(p.world.now, {pull.data(), static_cast<std::uint32_t>(pull.size())});
  for (std::uint64_t key = 2; key < 4; ++key) {
    ASSERT_TRUE(p.b.node->regions().rekey(p.region, test_key(key)));
    p.a.node->initiator().replace_grant(p.grant, p.grant_of({Rights::kAll}));
  }
  p.issue(OpKind::kRead, kBase, into, 1);
  const Completion write = p.wait();
  EXPECT_EQ(write.op, OpKind::kWrite);
  EXPECT_EQ(write.status, Status::kBadKey);
  const Completion read = p.wait();
  EXPECT_EQ(read.status, Status::kOk);
  EXPECT_LT(read.total_delay, Duration::microseconds(5));
  EXPECT_EQ(p.memory[0], 0);
}

TEST(Node, APullThatCannotBeAskedForAnyMoreHoldsNoPlace) {
  Pair p;
  Onlooker onlooker(p.world);
  onlooker.lose = Kind::kWriteRequest;
  std::vector<std::uint8_t> from(64, 0xEE);
  p.issue(OpKind::kWrite, kBase, from);
  ASSERT_TRUE(p.world.run_until([&] { return !onlooker.seen.empty(); }));
  auto request = onlooker.last(Kind::kWriteRequest);
  p.b.node->on_frame(p.world.now, {request.data(), static_cast<std::uint32_t>(request.size())});
  EXPECT_EQ(p.b.node->target().open_pulls(), 1u);
  for (std::uint64_t key = 2; key < 4; ++key) ASSERT_TRUE(p.b.node->regions().rekey(p.region, test_key(key)));
  EXPECT_FALSE(p.b.node->poll_transmit(p.world.now, *p.b.port));
  EXPECT_EQ(p.b.node->target().open_pulls(), 0u);
  EXPECT_EQ(p.b.node->window().used(), 0u);
}

TEST(Node, AReadWithNoAnswerIsATimeOutAndGivesItsWindowBack) {
  Pair p;
  Onlooker onlooker(p.world);
  onlooker.lose = Kind::kReadResponse;
  std::vector<std::uint8_t> into(4096);
  p.issue(OpKind::kRead, kBase, into);
  const Completion c = p.wait();
  EXPECT_EQ(c.status, Status::kTimeout);
  EXPECT_GE(c.total_delay, SlotParameters{}.timeout);
  EXPECT_EQ(p.a.node->window().used(), 0u);
  EXPECT_EQ(p.a.node->initiator().slots().open(), 0u);
}

TEST(Node, AWriteThatTimedOutNeverHappensLater) {
  for (const Kind lost : {Kind::kWriteRequest, Kind::kPull, Kind::kData, Kind::kCompletion}) {
    Pair p;
    Onlooker onlooker(p.world);
    onlooker.lose = lost;
    std::vector<std::uint8_t> from(64, 0xEE);
    EXPECT_EQ(p.run(OpKind::kWrite, kBase, from), Status::kTimeout);
    const auto memory = p.memory;
    onlooker.lose.reset();
    // Everything that was sent comes, late.
    const auto seen = onlooker.seen;
    for (const auto& frame : seen) p.world.inject(frame.bytes);
    p.world.run_for(Duration::microseconds(100));
    EXPECT_EQ(p.memory, memory);
    EXPECT_EQ(p.b.node->target().open_pulls(), 0u);
    EXPECT_EQ(p.b.node->window().used(), 0u);
  }
}

// As after a target has been stopped: what came meanwhile is looked at before any deadline.
TEST(Node, DataThatATargetFindsAfterTheirTimeAreNotWritten) {
  Pair p;
  Onlooker onlooker(p.world);
  onlooker.lose = Kind::kData;
  std::vector<std::uint8_t> from(64, 0xEE);
  p.issue(OpKind::kWrite, kBase, from);
  ASSERT_TRUE(p.world.run_until([&] { return !onlooker.seen.empty() && onlooker.seen.back().kind == Kind::kData; }));
  std::vector<std::uint8_t> data = onlooker.last(Kind::kData);
  const auto memory = p.memory;
  const Time later = p.world.now + Duration::milliseconds(1);
  p.a.node->on_deadline(later);
  ASSERT_EQ(p.ring.pop().status, Status::kTimeout);
  p.b.node->on_frame(later, {.data = data.data(), .length = static_cast<std::uint32_t>(data.size())});
  EXPECT_EQ(p.memory, memory);
  EXPECT_EQ(p.b.node->target().counters().replays, 1u);
  p.b.node->on_deadline(later);
  EXPECT_EQ(p.b.node->target().open_pulls(), 0u);
}

TEST(Node, WhatCannotEnterServiceInTimeIsADispatchTimeOut) {
  NodeConfig small;
  small.window_bytes = FrameWriter::frame_size(kMaxOp);
  Pair p(small);
  Onlooker onlooker(p.world);
  onlooker.lose = Kind::kReadRequest;
  std::vector<std::uint8_t> first(4096), second(4096);
  p.issue(OpKind::kRead, kBase, first, 1);
  p.world.round();
  p.issue(OpKind::kRead, kBase, second, 2);
  const Completion c = p.wait();
  EXPECT_EQ(c.user, 2u);
  EXPECT_EQ(c.status, Status::kDispatchTimeout);
  EXPECT_EQ(c.issue_delay, c.total_delay);
  EXPECT_GE(c.total_delay, SlotParameters{}.dispatch_timeout);
  EXPECT_LT(c.total_delay, SlotParameters{}.dispatch_timeout + World::kRound * 10);
  EXPECT_EQ(p.wait().status, Status::kTimeout);
}

// Bytes that a node has asked for and that have not come, as somebody on the wire sees them who knows that each operation is of 4 KB.
struct Solicited {
  void on_frame(const Message& message, const World::Host& node) {
    const bool to_us = message.to == node.config.ip;
    const Kind kind = message.header.kind;
    if (!to_us && (kind == Kind::kReadRequest || kind == Kind::kPull)) open.insert(message.header.op.value);
    if (to_us && (kind == Kind::kReadResponse || kind == Kind::kData)) open.erase(message.header.op.value);
    most = std::max(most, open.size() * FrameWriter::frame_size(kMaxOp));
  }
  std::set<std::uint64_t> open;
  std::size_t most = 0;
};

TEST(Node, WhatIsSolicitedNeverPassesTheWindow) {
  NodeConfig small;
  small.window_bytes = 2 * FrameWriter::frame_size(kMaxOp) + 100;
  Pair p(small, small);
  std::vector<std::vector<std::uint8_t>> local(64, std::vector<std::uint8_t>(4096));
  for (std::size_t i = 0; i < local.size(); ++i) p.issue(i % 2 == 0 ? OpKind::kRead : OpKind::kWrite, kBase, local[i]);
  Solicited by_a, by_b;
  p.world.set_tap([&](MutableBytes frame) {
    Message message;
    EXPECT_EQ(parse(frame, message), Verdict::kOk);
    by_a.on_frame(message, p.a);
    by_b.on_frame(message, p.b);
    return true;
  });
  int done = 0;
  EXPECT_TRUE(p.world.run_until([&] {
    while (!p.ring.empty()) {
      p.ring.pop();
      ++done;
    }
    return done == 64;
  }));
  EXPECT_EQ(by_a.most, 2 * FrameWriter::frame_size(kMaxOp));
  EXPECT_EQ(by_b.most, 2 * FrameWriter::frame_size(kMaxOp));
  EXPECT_EQ(p.a.node->window().used() + p.b.node->window().used(), 0u);
}

// Reads that are kept waiting, and writes that are: whoever had the window first would keep it.
TEST(Node, WhatANodeReadsAndWhatIsWrittenToItShareItsWindow) {
  constexpr int kEach = 32;
  for (const std::size_t read : {std::size_t{kMaxOp}, std::size_t{2048}}) {
    Pair p;
    World::Host& c = p.world.add_host();
    std::vector<std::uint8_t> own(1 << 16);
    const RegionId at_a = p.a.node->regions().add(own, kBase, memory::kAllAccess, test_key(2)).value();
    const GrantId into_a = c.node->initiator().add_grant(
        p.a.node->address(), *p.a.node->regions().grant(at_a, InitiatorId(5), {Rights::kAll}));
    std::vector<std::uint8_t> into(kMaxOp);
    std::vector<std::uint8_t> from(kMaxOp, 7);
    CompletionRing writes{256};
    int done[2] = {0, 0};
    const Time begun = p.world.now;
    const auto keep_busy = [&] {
      for (int side = 0; side < 2; ++side) {
        CompletionRing& ring = side == 0 ? p.ring : writes;
        while (!ring.empty()) done[side] += ring.pop().status == Status::kOk ? 1 : 0;
        if (side == 1 && p.world.now < begun + Duration::microseconds(50)) continue;  // reads have the window first
        while (ring.open() < kEach) {
          const Command command{.op = side == 0 ? OpKind::kRead : OpKind::kWrite,
                                .grant = side == 0 ? p.grant : into_a,
                                .address = kBase,
                                .local = side == 0 ? MutableBytes(into).first(read) : MutableBytes(from),
                                .completions = &ring};
          if (!(side == 0 ? p.a : c).node->initiator().issue(p.world.now, command)) break;
        }
      }
      return p.world.now >= begun + Duration::milliseconds(2);
    };
    p.world.run_until(keep_busy);
    const std::size_t all = static_cast<std::size_t>(done[0]) * read + static_cast<std::size_t>(done[1]) * kMaxOp;
    EXPECT_GT(static_cast<std::size_t>(done[0]) * read * 4, all) << "reads of " << read << " beside writes";
    EXPECT_GT(static_cast<std::size_t>(done[1]) * kMaxOp * 4, all) << "writes beside reads of " << read;
  }
}

TEST(Node, ATargetWithADeepQueueSheds) {
  NodeConfig shallow;
  shallow.target.nack_bytes = 8192;
  NodeConfig wide;
  wide.window_bytes = 1 << 20;
  Pair p(wide, shallow);
  std::vector<std::vector<std::uint8_t>> local(32, std::vector<std::uint8_t>(4096));
  for (auto& bytes : local) p.issue(OpKind::kRead, kBase, bytes);
  int by_status[kStatusCount] = {};
  for (std::size_t i = 0; i < local.size(); ++i) ++by_status[static_cast<std::size_t>(p.wait().status)];
  EXPECT_EQ(by_status[0], 2);
  EXPECT_EQ(by_status[static_cast<std::size_t>(Status::kNack)], 30);
  EXPECT_EQ(p.b.node->target().counters().nacks, 30u);
}

TEST(Node, PlainModeNeedsBothSidesToSaySo) {
  NodeConfig plain;
  plain.protection = Protection::kPlain;
  NodeConfig lax;
  lax.allow_plain = true;
  std::vector<std::uint8_t> bytes(64);
  Pair refused(plain);
  EXPECT_EQ(refused.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
  EXPECT_EQ(refused.b.node->target().counters().plain_refused, 1u);
  Pair allowed(plain, lax);
  Onlooker onlooker(allowed.world);
  EXPECT_EQ(allowed.run(OpKind::kRead, kBase, bytes), Status::kOk);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), allowed.memory.begin()));
  EXPECT_TRUE(holds(onlooker.last(Kind::kReadResponse), ByteView(allowed.memory).first(64)));
  EXPECT_EQ(allowed.run(OpKind::kWrite, kBase + 64, bytes), Status::kOk);
  EXPECT_EQ(allowed.run(OpKind::kRead, kBase - 1, bytes), Status::kBadBounds);
  Secret fresh = test_key(2);
  EXPECT_EQ(allowed.run(OpKind::kRekey, 0, fresh.mutable_bytes()), Status::kRightMissing);  // whatever it claims
  EXPECT_EQ(allowed.run(OpKind::kRead, kBase, bytes), Status::kOk);
  // Who speaks sealed is answered sealed, and listens to nothing else.
  Pair sealed({}, lax);
  EXPECT_EQ(sealed.run(OpKind::kRead, kBase, bytes), Status::kOk);
}

TEST(Node, ARestartedTargetKnowsNoKeyOfItsFormerLife) {
  Pair p;
  std::vector<std::uint8_t> bytes(64);
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kOk);
  World::kill(p.b);
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kTimeout);
  World::revive(p.b);
  p.region = p.b.node->regions().add(p.memory, kBase, memory::kAllAccess, test_key(77)).value();
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kBadKey);
  p.grant = p.a.node->initiator().add_grant(p.b.node->address(), p.grant_of({Rights::kAll}));
  EXPECT_EQ(p.run(OpKind::kRead, kBase, bytes), Status::kOk);
}

TEST(Node, ATargetKeepsNothingOfAnInitiatorThatDied) {
  Pair p;
  Onlooker onlooker(p.world);
  std::vector<std::uint8_t> bytes(4096, 0xEE);
  p.issue(OpKind::kWrite, kBase, bytes);
  p.issue(OpKind::kRead, kBase, bytes);
  ASSERT_TRUE(p.world.run_until([&] { return !onlooker.seen.empty() && onlooker.seen.back().kind == Kind::kPull; }));
  EXPECT_EQ(p.b.node->target().open_pulls(), 1u);
  World::kill(p.a);
  p.world.run_for(Duration::microseconds(100));
  EXPECT_EQ(p.b.node->target().open_pulls(), 0u);
  EXPECT_EQ(p.b.node->target().queued_bytes(), 0u);
  EXPECT_EQ(p.b.node->window().used(), 0u);
  EXPECT_EQ(p.b.node->next_deadline(), Time::never());
  EXPECT_EQ(p.b.node->target().counters().pull_timeouts, 1u);
}

TEST(Node, ATargetWithPlaceForOneDerivedKeyServesMany) {
  NodeConfig one;
  one.cached_keys = 1;
  Pair p({}, one);
  std::vector<GrantId> grants;
  for (std::uint64_t i = 0; i < 20; ++i) {
    grants.push_back(p.a.node->initiator().add_grant(p.b.node->address(), p.grant_of({Rights::kAll}, InitiatorId(i))));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < grants.size(); ++i) {
      p.grant = grants[i];
      std::vector<std::uint8_t> bytes(64, static_cast<std::uint8_t>(i));
      EXPECT_EQ(p.run(OpKind::kWrite, kBase + 64 * i, bytes), Status::kOk);
      EXPECT_EQ(p.run(OpKind::kRead, kBase + 64 * i, bytes), Status::kOk);
      EXPECT_EQ(bytes[63], i);
    }
  }
}

TEST(Node, SlotsAndRingRefuseWhatTheyHaveNoPlaceFor) {
  NodeConfig few;
  few.slots.slots = 4;
  Pair p(few);
  std::vector<std::uint8_t> bytes(8);
  CompletionRing ring(2);
  const Command command{.op = OpKind::kRead, .grant = p.grant, .address = kBase, .local = bytes, .completions = &ring};
  EXPECT_TRUE(p.a.node->initiator().issue(p.world.now, command));
  EXPECT_TRUE(p.a.node->initiator().issue(p.world.now, command));
  EXPECT_FALSE(p.a.node->initiator().issue(p.world.now, command));  // the ring
  p.issue(OpKind::kRead, kBase, bytes);
  p.issue(OpKind::kRead, kBase, bytes);
  EXPECT_FALSE(p.a.node->initiator().issue(
      p.world.now,
      {.op = OpKind::kRead, .grant = p.grant, .address = kBase, .local = bytes, .completions = &p.ring}));  // the slots
}

}  // namespace
}  // namespace sluice::onerma
