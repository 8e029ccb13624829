// A few operations on a FUSEE store, in every order in which memory may execute what their clients submit, while answers are lost, clients die and time
// passes: how entries come, change and go. (How one replicated word changes: src/fusee/snapshot_test.cpp.)
//
// Held to: linearizability per key, of what was told and of what is there at the end; then no key has two entries, none is half done, replicas agree,
//          and each object is in a slot or free.
// Effort:  SLUICE_EVERY_WAY=1 goes further. A check that fails prints the steps that led there.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/effort_test.h"
#include "rack/clients/fusee_store.h"
#include "tests/scenario/store_orders.h"

namespace sluice {
namespace {

using namespace fusee;                      // the test speaks nothing else
constexpr std::uint32_t kBlockBytes = 576;  // eight objects
constexpr Duration kHold = Duration::microseconds(60);
constexpr Duration kFlight = Duration::microseconds(4);
constexpr Duration kLease = Duration::microseconds(6);
constexpr Key kOwn = 1000;  // of each client, to have memory in hand

// Of each client, one after the other.
using Asks = std::vector<Ask>;
struct Case {
  Asks before{};  // by the first client
  std::vector<Asks> clients{};
  OrderLimits limits{};
  std::uint32_t replicas = 1;
  bool ordered = true;  // fewer orders; nothing hangs on it
  Duration hold = kHold;
  bool recover = false;  // who dies is cleaned up after by the last client at once
};

class Run : public StoreRun<Client, rack::FuseeStore> {
 public:
  explicit Run(const Case& c)
      : StoreRun(lanes_of(c), c.recover, c.replicas, heap_bytes(c.replicas), c.ordered, kFlight, c.limits), case_(c) {
    geometry_ = {.replicas = c.replicas, .groups = 2, .value_bytes = kValueBytes, .block_bytes = kBlockBytes};
    auto& founder = rack_.add_program();
    const Outcome made = rack_.wait_for(founder, create_store(founder, memory(), geometry_));
    SLUICE_CHECK(made == Outcome::kOk);
    for (std::size_t i = 0; i < c.clients.size(); ++i) at_once(join(), put(kOwn + i));
    for (const Ask& ask : c.before) at_once(0, ask);
    rack_.run_for(kFlight * 2);
    start();
  }

  std::string state() const {
    std::string s;
    rack_.state(s, MemoryMap::kSuperblockBytes);
    append_order(s, history_);
    return s;
  }

  // Nothing is under way any more.
  void judge() {
    rack_.run_for(kFlight + case_.hold);
    Keys keys = keys_asked_for();
    for (const Ask& ask : case_.before) keys.insert(ask.key);
    judge_by(join(), keys);
    // Twice: what is found to be tentative goes first.
    for (int i = 0; i < 2; ++i) {
      rack_.run_for((kFlight + case_.hold) * 2);
      audit_all();
    }
    inspect();
  }

 private:
  static std::vector<Lane> lanes_of(const Case& c) {
    std::vector<Lane> lanes;
    for (const Asks& asks : c.clients) lanes.push_back({lanes.size(), asks});
    return lanes;
  }
  static std::size_t heap_bytes(std::uint32_t replicas) {
    return MemoryMap::kSuperblockBytes + replicas * (384 + 64 + 7 * (kBlockBytes + 8) + 64);
  }
  std::vector<MemoryNode> memory() const {
    std::vector<MemoryNode> nodes;
    for (std::uint32_t i = 0; i < case_.replicas; ++i)
      nodes.push_back({rack_.address(i, 0), heap_bytes(case_.replicas)});
    return nodes;
  }

  std::size_t join() {
    const ClientConfig config{.cached_keys = 16,
                              .timeout = Duration::microseconds(800),
                              .hold = case_.hold,
                              .flight = kFlight,
                              .lease = kLease,
                              .backoff_first = Duration::microseconds(2),
                              .backoff_most = Duration::microseconds(4)};
    return StoreRun::join(memory(), config);
  }

  std::uint64_t word(remote::RemoteAddress at) {
    return load_le<std::uint64_t>(rack_.bytes(at.node.value).data() + at.address);
  }
  void inspect() {
    const MemoryMap map(memory(), geometry_);
    std::set<std::uint64_t> referred;
    std::set<Key> keys;
    for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
      for (std::uint64_t slot = 0; slot < map.table_bytes(); slot += 8) {
        const Place place = map.slots({}, partition) + slot;
        const Word name{word(map.word_at(place, 0))};
        for (std::uint32_t i = 1; i < map.word_replicas(place); ++i)
          EXPECT_EQ(word(map.word_at(place, i)), name.raw) << "replicas differ";
        if (name.raw == 0) continue;
        EXPECT_TRUE(referred.insert(name.object().raw).second) << "an object in two slots";
        EXPECT_FALSE(name.tentative());
        if (!name.live()) continue;
        for (std::uint32_t i = 0; i < map.replicas(name.object()); ++i) {
          const auto at = map.at(name.object(), i);
          Object object;
          ASSERT_TRUE(
              parse_object(ByteView(rack_.bytes(at.node.value)).subspan(at.address, kUnit), name.object(), object));
          EXPECT_TRUE(i != 0 || keys.insert(object.key).second) << "a key has two entries";
        }
      }
    }
    std::set<std::uint64_t> placed;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (programs_[i]->dead) continue;
      for (const auto& block : clients_[i]->blocks()) {
        for (std::uint32_t n = 0; n < block->shape.objects; ++n) {
          if (block->items[n].use == Block::Use::kPlaced) placed.insert(block->object(n).raw);
          EXPECT_NE(block->items[n].use, Block::Use::kBusy);
        }
      }
    }
    EXPECT_EQ(placed, referred) << "an object is lost, or free and in a slot";
  }

  const Case& case_;
  Geometry geometry_;
};

using FuseeInEveryOrder = EveryOrder<Case, Run>;

// With no trouble, and with each kind of it.
const std::vector<OrderLimits> kTroubles = {{}, {.losses = 1}, {.deaths = 1}, {.passes = 1}};

TEST_F(FuseeInEveryOrder, TwoInsertTheSameKey) {
  for (const OrderLimits& limits : kTroubles) {
    every({.clients = {{insert(1)}, {insert(1)}}, .limits = limits});
    every({.clients = {{insert(1)}, {put(1)}}, .limits = limits});
    every({.before = {put(1), erase(1)}, .clients = {{insert(1)}, {insert(1)}}, .limits = limits});
    every({.clients = {{insert(1), erase(1)}, {insert(1), erase(1)}}, .limits = limits});
  }
  every({.clients = {{insert(1)}, {put(1)}, {get(1), get(1)}}});
  every({.clients = {{insert(1)}, {insert(1)}, {put(1)}}});
  every({.clients = {{insert(1)}, {insert(1)}}, .ordered = false});
}

TEST_F(FuseeInEveryOrder, ATentativeEntryIsWithdrawnByWhoeverItIsInTheWayOf) {
  every({.clients = {{insert(1)}, {insert(1)}}, .limits = {.passes = 5}});
  every({.clients = {{insert(1)}, {put(1), get(1)}}, .limits = {.losses = 1, .passes = 3}});
  every({.clients = {{insert(1)}, {put(1)}}, .limits = {.losses = 2}});
  every({.clients = {{insert(1)}, {insert(1)}, {insert(1)}}, .limits = {.deaths = 1}});
  every({.clients = {{insert(1)}, {insert(1)}}, .limits = {.losses = 1, .deaths = 1}});
}

TEST_F(FuseeInEveryOrder, OneErasesWhatOthersReplace) {
  for (const OrderLimits& limits : kTroubles) {
    every({.before = {put(1)}, .clients = {{put(1)}, {erase(1)}}, .limits = limits});
    every({.before = {put(1)}, .clients = {{erase(1)}, {erase(1)}}, .limits = limits});
    every({.before = {put(1)}, .clients = {{erase(1), insert(1)}, {put(1)}}, .limits = limits});
    every({.before = {put(1)}, .clients = {{erase(1), insert(1)}, {erase(1), insert(1)}}, .limits = limits});
  }
  every({.before = {put(1)}, .clients = {{erase(1)}, {insert(1)}, {get(1), get(1)}}});
  every({.before = {put(1)}, .clients = {{erase(1), put(1)}, {put(1)}, {get(1), get(1)}}});
}

TEST_F(FuseeInEveryOrder, WhoeverDiesIsCleanedUpAfterWhileOthersGoOn) {
  for (const std::uint32_t losses : {0u, 1u}) {
    const OrderLimits limits{.losses = losses, .deaths = 1};
    every({.clients = {{put(1)}, {put(1)}}, .limits = limits, .recover = true});
    every({.before = {put(1)}, .clients = {{put(1)}, {erase(1)}}, .limits = limits, .recover = true});
    every({.before = {put(1), erase(1)}, .clients = {{put(1)}, {put(1)}}, .limits = limits, .recover = true});
  }
}

// What was read is too old, and objects are used again, as soon as somebody has had to wait twice.
TEST_F(FuseeInEveryOrder, WhatWasReadLongAgoIsNotReliedOn) {
  const Duration hold = Duration::microseconds(5);
  every({.before = {put(1)},
         .clients = {{put(1), put(1)}, {put(1)}},
         .limits = {.losses = 1, .passes = 2},
         .hold = hold});
  every({.before = {put(1)}, .clients = {{put(1)}, {erase(1), get(1)}}, .limits = {.losses = 2}, .hold = hold});
  every({.clients = {{put(1)}, {put(1)}}, .limits = {.losses = 1, .passes = 2}, .hold = hold});
}

TEST_F(FuseeInEveryOrder, ReplicasComeToAgree) {
  every({.before = {put(1)}, .clients = {{put(1)}, {put(1)}}, .limits = {.deaths = 1}, .replicas = 2});
  every({.before = {put(1)}, .clients = {{put(1)}, {erase(1)}}, .limits = {.deaths = 1}, .replicas = 2});
  if (from_environment("SLUICE_EVERY_WAY", 0) != 0) {
    every({.before = {put(1)}, .clients = {{put(1)}, {erase(1)}}, .limits = {.losses = 1}, .replicas = 2});
    every({.clients = {{insert(1)}, {insert(1)}}, .limits = {.deaths = 1}, .replicas = 2});
  }
}

}  // namespace
}  // namespace sluice
