// Operations that take long while views change, chains grow and replicas come and go: the rules of docs/design/clover.md that say under which
// view an answer may be believed, and what must be over before a view ends, have their schedules here.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "clover/test_world.h"

namespace sluice::clover {
namespace {

using remote::NodeId;
using remote::Operation;
using remote::OpKind;
using remote::RemoteAddress;
using remote::SlowMemory;

constexpr Key kKey = 1;
constexpr SlowMemory::Delay kHeldBefore{.before = SlowMemory::kHeld};
constexpr SlowMemory::Delay kHeldAfter{.after = SlowMemory::kHeld};
constexpr Outcome kNone = Outcome::kNoAtomics;  // an operation has not ended yet

// A metadata server that hears nothing of some kinds.
class Deaf : public remote::MessageService {
 public:
  Deaf(MetadataServer& server, std::set<Request> to) : server_(server), to_(std::move(to)) {}
  std::size_t handle(Time now, ByteView request, MutableBytes response) override {
    MessageReader in(request);
    const auto header = take_request_header(in);
    return header && to_.contains(header->type) ? 0 : server_.handle(now, request, response);
  }
  void hear() { to_.clear(); }

 private:
  MetadataServer& server_;
  std::set<Request> to_;
};

// Three clients of one key, and what a schedule says of them.
class Slow : public testing::Test {
 protected:
  void begin(std::uint32_t replication, Duration flight = Duration::microseconds(100)) {
    WorldConfig config{.nodes = 3, .replication = replication};
    config.local.mode = remote::LocalMode::kSeeded;
    config.lifetime = Duration::milliseconds(4);
    config.flight = flight;
    config.client.backoff_most = Duration::microseconds(20);
    config.client.suspect_after = Duration::seconds(1);  // who is suspected, and when, the schedules say
    config.client.timeout = timeout;
    world = std::make_unique<World>(config);
    for (auto* const member : {&a, &b, &dies}) *member = &world->add_client();
    world->server->slots().on_free([this](NodePointer slot) {
      const auto& v = world->server->volumes()[slot.volume()];
      for (std::size_t j = 0; j < v.count; ++j) {
        const RemoteAddress where = v.locate(slot, j);
        const bool is_there = v.is_live(j) && world->fabric.alive(where.node);
        if (is_there && where.key == world->memory.at(where.node.value).base.key)
          std::ranges::fill(bytes_at(where).first(64), 0xA5);
      }
    });
  }
  MutableBytes bytes_at(RemoteAddress where) {
    const auto& region = world->memory.at(where.node.value).base;
    return world->fabric.region_bytes(region).subspan(where.address - region.address);
  }
  const Volume& volume() { return world->server->volumes()[key_hash(kKey) % world->server->volumes().size()]; }
  NodeId replica(std::size_t j) { return volume().replicas[j].node; }

  Outcome put(World::Member& m, std::uint64_t n) { return world->wait_for(m->put(kKey, value_of(n, 40))); }
  void expect(World::Member& m, std::uint64_t n) { EXPECT_EQ(read(*world, *m.client, kKey), value_of(n, 40)); }
  void begin_put(World::Member& m, std::uint64_t n, Outcome& outcome) {
    outcome = kNone;
    world->scheduler.spawn(put_later(*m.client, kKey, value_of(n, 40), outcome));
  }
  void run_until_ended(const Outcome& outcome) {
    world->run_until([&] { return outcome != kNone; });
  }
  // Where the member has read last.
  RemoteAddress read_by(World::Member& m) {
    RemoteAddress where;
    m.slow->plan = [&](const Operation& operation) {
      if (operation.kind == OpKind::kRead) where = operation.remote;
      return SlowMemory::Delay{};
    };
    read(*world, *m.client, kKey);
    m.slow->plan = {};
    return where;
  }
  // The member's next compare-and-swap at the node, after so many others.
  static void hold_next_swap(World::Member& m, NodeId at, SlowMemory::Delay delay, std::uint64_t after = 0) {
    m.slow->plan = [at, delay, after](const Operation& operation) mutable {
      const bool is_meant = operation.kind == OpKind::kCompareAndSwap && operation.remote.node == at && after-- == 0;
      return is_meant ? delay : SlowMemory::Delay{};
    };
  }
  void run_until_held(World::Member& m) {
    world->run_until([&] { return m.slow->held() != 0; });
  }
  // The node lives, and is left out; all clients have heard of it.
  void leave_out(NodeId node) {
    const auto view = world->server->view_number();
    ASSERT_TRUE(world->server->lose(world->now, node));
    world->run_until([&] { return world->server->view_number() != view; });
    world->run_for(world->config_.lifetime / 4);
  }
  // It dies, and comes back blank; its replicas are joining.
  void begin_anew(NodeId node) {
    world->kill_node(node.value);
    world->run_until([&] { return world->server->missing() == 2; });
    world->restart_node(node.value);
    world->run_until([&] { return world->server->joining() == 2; });
  }
  void run_for_lifetimes(std::int64_t n) { world->run_for((world->config_.lifetime + world->config_.flight) * n); }
  // Version 9 stands behind the tail on the first replica and the third. Who put it died, and so does the first replica.
  void leave_a_losers_word_behind_the_tail() {
    hold_next_swap(*dies, replica(1), kHeldBefore);
    Outcome lost;
    begin_put(*dies, 9, lost);
    run_until_held(*dies);
    world->run_for(Duration::microseconds(1));
    dies->kill();
    leave_out(replica(0));
    ASSERT_EQ(volume().primary(), 1u);
  }
  void leave_a_losers_word() {
    ASSERT_EQ(put(*a, 1), Outcome::kOk);
    for (auto* const m : {a, b, dies}) expect(*m, 1);
    leave_a_losers_word_behind_the_tail();
    expect(*b, 1);
  }
  void run_until_the_dead_are_missed() {
    world->run_until([&] { return world->server->clients() == 2; });
  }

  Duration timeout = Duration::milliseconds(50);
  std::unique_ptr<World> world;
  World::Member* a = nullptr;
  World::Member* b = nullptr;
  World::Member* dies = nullptr;
};

// ------------------------------------------------------------------------------------------------ what is believed

TEST_F(Slow, APutIsNotDoneByASwapOnAReplicaThatHasBeenLeftOutMeanwhile) {
  begin(2);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  expect(*b, 1);
  hold_next_swap(*a, replica(0), kHeldAfter);
  Outcome late;
  begin_put(*a, 2, late);
  run_until_held(*a);
  leave_out(replica(0));
  expect(*b, 1);
  a->slow->release();
  run_until_ended(late);
  EXPECT_EQ(late, Outcome::kOk);
  expect(*b, 2);
}

// Whoever sealed it died before the other replica said so.
TEST_F(Slow, AKeyIsNotForgottenForASealOnAReplicaThatHasBeenLeftOutMeanwhile) {
  begin(2);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  ASSERT_EQ(world->wait_for((*a)->erase(kKey)), Outcome::kOk);
  const RemoteAddress tombstone = read_by(*a);
  ASSERT_EQ(tombstone.node, replica(0));
  store_le(bytes_at(tombstone).data(), sealed_word(kKey));
  b->slow->plan = [&](const Operation& operation) {
    return operation.remote == tombstone ? kHeldAfter : SlowMemory::Delay{};
  };
  std::optional<Outcome> got;
  std::vector<std::uint8_t> into(40);
  const auto get = [&]() -> remote::Task<void> { got = (co_await (*b)->get(kKey, into)).outcome; };
  world->scheduler.spawn(get());
  run_until_held(*b);
  leave_out(replica(0));
  Deaf deaf(*world->server, {Request::kReport});  // it hears of the seal first
  a->channel->set_service(&deaf);
  ASSERT_EQ(world->wait_for((*a)->insert(kKey, value_of(2, 40))), Outcome::kOk);
  b->slow->release();
  world->run_until([&] { return got.has_value(); });
  EXPECT_EQ(got, Outcome::kOk);
  EXPECT_EQ(world->server->keys(), 1u);
  expect(world->add_client(), 2);
}

// By the clock of when it is heard of, what others linked and reported meanwhile would come before it.
TEST_F(Slow, ALinkIsStampedWithTheClockOfBeforeItsSwap) {
  begin(1);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  expect(*b, 1);
  hold_next_swap(*a, replica(0), kHeldAfter);
  Outcome late;
  begin_put(*a, 2, late);
  run_until_held(*a);
  ASSERT_EQ(put(*b, 3), Outcome::kOk);
  world->run_until([&] { return world->server->counters().links == 1; });
  world->run_for(world->config_.lifetime / 4);  // a hears of it
  a->slow->release();
  run_until_ended(late);
  EXPECT_EQ(late, Outcome::kOk);
  run_for_lifetimes(4);
  expect(world->add_client(), 3);
  EXPECT_EQ(world->server->slots().count(SlotState::kLive), 1u);
}

// ----------------------------------------------------------------------------------- what must be over before a view ends

// It was begun before its slot's other replica came back blank, which therefore lacks what it has written.
TEST_F(Slow, AReplicaDoesNotCountBeforePutsHaveEndedThatWereWrittenWithoutIt) {
  begin(2);
  world->start_repairing();
  const NodeId primary = replica(0), mirror = replica(1);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  // Its node is written, and then it cannot reach the primary for long.
  a->slow->plan = [&](const Operation& operation) {
    if (operation.kind == OpKind::kCompareAndSwap) a->memory->cut(primary);
    return SlowMemory::Delay{};
  };
  Outcome late;
  begin_put(*a, 2, late);
  world->run_for(Duration::microseconds(100));
  a->slow->plan = {};
  begin_anew(mirror);
  run_for_lifetimes(4);
  EXPECT_EQ(world->server->joining(), 2u);
  EXPECT_EQ(late, kNone);
  a->memory->mend(primary);
  run_until_ended(late);
  EXPECT_EQ(late, Outcome::kOk);
  world->run_until([&] { return world->server->joining() == 0; });
  world->kill_node(primary.value);
  expect(*b, 2);
}

TEST_F(Slow, AReplicaDoesNotCountBeforeTheServerHasHeardOfLinksThatWereMadeWithoutIt) {
  begin(2);
  world->start_repairing();
  const NodeId primary = replica(0), mirror = replica(1);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  Deaf deaf(*world->server, {Request::kReport});
  a->channel->set_service(&deaf);
  ASSERT_EQ(put(*a, 2), Outcome::kOk);
  begin_anew(mirror);
  run_for_lifetimes(4);
  EXPECT_EQ(world->server->joining(), 2u);
  deaf.hear();
  world->run_until([&] { return world->server->joining() == 0; });
  world->kill_node(primary.value);
  expect(*b, 2);
}

TEST_F(Slow, AReplicaDoesNotCountBeforeTheServerHasHeardOfOrphansThatWereWrittenWithoutIt) {
  timeout = Duration::milliseconds(3);
  begin(2);
  world->start_repairing();
  const NodeId primary = replica(0), mirror = replica(1);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  Deaf deaf(*world->server, {Request::kOrphan});
  a->channel->set_service(&deaf);
  // Linked at the primary, and the mirror cannot be reached.
  a->slow->plan = [&](const Operation& operation) {
    if (operation.kind == OpKind::kCompareAndSwap && operation.remote.node == mirror) a->memory->cut(mirror);
    return SlowMemory::Delay{};
  };
  EXPECT_EQ(put(*a, 2), Outcome::kUnknown);
  a->slow->plan = {};
  a->memory->mend(mirror);
  begin_anew(mirror);
  run_for_lifetimes(4);
  EXPECT_EQ(world->server->joining(), 2u);
  deaf.hear();
  world->run_until([&] { return world->server->joining() == 0; });
  world->kill_node(primary.value);
  expect(*b, 2);
}

// What it would put right on a replica is under way there when that has become the primary, whose word others have followed.
TEST_F(Slow, NobodyLetsGoOfAViewWhileSomethingThatHeDidUnderItIsUnderWay) {
  begin(3, Duration::milliseconds(3));
  Deaf idle(*world->server, {Request::kWork});  // nobody does the work of the dead
  for (auto* const m : {a, b}) (*m).channel->set_service(&idle);
  leave_a_losers_word();
  run_until_the_dead_are_missed();
  world->run_for(world->config_.flight);
  expect(*b, 1);
  auto& d = world->add_client();
  d.channel->set_service(&idle);
  hold_next_swap(*a, replica(2), kHeldBefore, 1);  // the one that takes the loser's word away
  Outcome first, second;
  begin_put(*a, 2, first);
  run_until_held(*a);
  const NodeId primary = replica(1);
  world->fabric.kill_node(primary);
  world->restart_node(primary.value);
  world->server->see(world->now, {world->memory[primary.value], 77});
  world->run_for(Duration::milliseconds(2));
  begin_put(d, 3, second);
  world->run_for(Duration::microseconds(100));
  a->slow->release();
  run_until_ended(first);
  run_until_ended(second);
  EXPECT_EQ(second, Outcome::kOk);
  EXPECT_EQ(volume().primary(), 2u);
  EXPECT_EQ(world->server->counters().let_go, 1u);
  EXPECT_EQ(read(*world, *b->client, kKey), read(*world, *d.client, kKey));
}

// ------------------------------------------------------------------------------------------------------------- losers

// Who put version 2 died before the mirror said that it follows version 1.
TEST_F(Slow, AWriterThatLosesMakesTheWinnersLinkStableBeforeItAppendsThere) {
  begin(2);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  for (auto* const m : {a, b, dies}) expect(*m, 1);
  hold_next_swap(*dies, replica(1), kHeldBefore);
  Outcome lost;
  begin_put(*dies, 2, lost);
  run_until_held(*dies);
  dies->kill();
  ASSERT_EQ(put(*b, 3), Outcome::kOk);
  leave_out(replica(0));
  expect(*a, 3);  // which goes on from version 1
}

TEST_F(Slow, ALosersWordOnAMirrorGivesWayToThePrimarys) {
  begin(3);
  leave_a_losers_word();
  ASSERT_EQ(put(*a, 2), Outcome::kOk);
  leave_out(replica(1));
  EXPECT_EQ(volume().primary(), 2u);
  expect(*b, 2);  // which goes on from version 1
  expect(*a, 2);
  expect(world->add_client(), 2);
}

// The primary does not say it, so it is not linked, and its slot is used again; but the mirror may be the primary next.
TEST_F(Slow, NoMirrorNamesAnOrphanAnyMoreThatHasBeenFoundUnlinked) {
  begin(3);
  leave_a_losers_word();
  run_until_the_dead_are_missed();
  world->run_until([&] { return world->server->slots().count(SlotState::kOrphan) == 0; });
  run_for_lifetimes(4);
  ASSERT_EQ(world->server->slots().count(SlotState::kRetired), 0u);
  leave_out(replica(1));
  EXPECT_EQ(volume().primary(), 2u);
  expect(*b, 1);
  ASSERT_EQ(put(*a, 2), Outcome::kOk);
  expect(*b, 2);
}

// The primary says sealed, but who sealed it died before the mirrors said so, too.
TEST_F(Slow, NoMirrorNamesAnOrphanBehindASealThatItsSealerDidNotMakeStable) {
  begin(3);
  Deaf none(*world->server, {Request::kWork}), sealer(*world->server, {Request::kWork}),
      walker(*world->server, {Request::kWork});
  dies->channel->set_service(&none);
  a->channel->set_service(&sealer);
  b->channel->set_service(&walker);
  ASSERT_EQ(put(*a, 1), Outcome::kOk);
  ASSERT_EQ(world->wait_for((*a)->erase(kKey)), Outcome::kOk);
  run_for_lifetimes(3);
  EXPECT_EQ(read(*world, *dies->client, kKey), std::nullopt);
  leave_a_losers_word_behind_the_tail();
  hold_next_swap(*a, replica(2), kHeldBefore);
  sealer.hear();
  run_until_held(*a);  // it has sealed the key at the primary
  ASSERT_EQ(world->server->slots().count(SlotState::kOrphan), 0u);
  a->kill();
  walker.hear();
  world->run_until([&] { return world->server->slots().count(SlotState::kOrphan) != 0; });
  world->run_until([&] { return world->server->slots().count(SlotState::kOrphan) == 0; });
  leave_out(replica(1));
  EXPECT_EQ(volume().primary(), 2u);
  run_for_lifetimes(6);
  EXPECT_EQ(put(*b, 2), Outcome::kOk);
  expect(*b, 2);
}

}  // namespace
}  // namespace sluice::clover
