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
#include "tests/scenario/every_order.h"
#include "workload/recorder.h"

namespace sluice {
namespace {

using namespace fusee;  // the test speaks nothing else
using remote::Task;
using workload::EventKind;
using workload::History;

constexpr std::size_t kValueBytes = 16;
constexpr std::uint32_t kBlockBytes = 576;  // eight objects
constexpr Duration kHold = Duration::microseconds(60);
constexpr Duration kFlight = Duration::microseconds(4);
constexpr Duration kLease = Duration::microseconds(6);
constexpr Key kOwn = 1000;  // of each client, to have memory in hand

struct Ask {
  EventKind kind{};
  Key key = 0;
};
constexpr Ask get(Key key) { return {EventKind::kGet, key}; }
constexpr Ask put(Key key) { return {EventKind::kPut, key}; }
constexpr Ask insert(Key key) { return {EventKind::kInsert, key}; }
constexpr Ask erase(Key key) { return {EventKind::kErase, key}; }

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

class Run {
 public:
  explicit Run(const Case& c) : case_(c), rack_(c.replicas, heap_bytes(c.replicas), c.ordered, kFlight, c.limits) {
    geometry_ = {.replicas = c.replicas, .groups = 2, .value_bytes = kValueBytes, .block_bytes = kBlockBytes};
    auto& founder = rack_.add_program();
    const Outcome made = rack_.wait_for(founder, create_store(founder, memory(), geometry_));
    SLUICE_CHECK(made == Outcome::kOk);
    for (std::size_t i = 0; i < c.clients.size(); ++i) at_once(join(), put(kOwn + i));
    for (const Ask& ask : c.before) at_once(0, ask);
    rack_.run_for(kFlight * 2);
    rack_.on_death = [this](std::size_t number) { died(number); };
    rack_.begin(1, c.clients.size() + 1);  // without the founder
    done_.assign(c.clients.size(), false);
    for (std::size_t i = 0; i < c.clients.size(); ++i) programs_[i]->own.spawn(run(i));
    for (std::size_t i = 0; i < c.clients.size(); ++i) programs_[i]->own.run(rack_.now());
  }

  std::size_t choices() { return rack_.choices(all_done()); }
  std::string choose(std::size_t which) { return rack_.choose(which); }

  std::string state() const {
    std::string s;
    rack_.state(s, MemoryMap::kSuperblockBytes);
    append_order(s, history_);
    return s;
  }

  // Nothing is under way any more.
  void judge() {
    rack_.run_for(kFlight + case_.hold);
    const std::size_t witness = join();
    std::set<Key> keys;
    for (const Ask& ask : case_.before) keys.insert(ask.key);
    for (const Asks& asks : case_.clients) {
      for (const Ask& ask : asks) keys.insert(ask.key);
    }
    for (const Key key : keys) at_once(witness, get(key));
    for (std::size_t i = 0; i < witness; ++i) {
      if (!programs_[i]->dead) continue;
      const auto number = clients_[i]->number();
      EXPECT_EQ(rack_.wait_for(*programs_[witness], clients_[witness]->recover(number)), Outcome::kOk);
    }
    for (const Key key : keys) at_once(witness, get(key));
    for (const Key key : keys) at_once(witness, put(key));
    for (const Key key : keys) at_once(witness, get(key));
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.proven()) << verdict.explain();
    // Twice: what is found to be tentative goes first.
    for (int i = 0; i < 2; ++i) {
      rack_.run_for((kFlight + case_.hold) * 2);
      for (std::size_t n = 0; n < clients_.size(); ++n) {
        if (programs_[n]->dead) continue;
        EXPECT_EQ(rack_.wait_for(*programs_[n], clients_[n]->audit()), Outcome::kOk);
      }
    }
    inspect();
  }

 private:
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
    const std::size_t number = clients_.size();
    programs_.push_back(&rack_.add_program());
    clients_.push_back(std::make_unique<Client>(*programs_[number], memory(), config, Rng(number)));
    stores_.push_back(std::make_unique<rack::FuseeStore>(*clients_[number]));
    const Outcome joined = rack_.wait_for(*programs_[number], clients_[number]->join());
    SLUICE_CHECK(joined == Outcome::kOk);
    return number;
  }
  bool all_done() const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (!done_[i] && !programs_[i]->dead) return false;
    }
    return recovering_ == 0 || programs_.back()->dead;
  }
  void died(std::size_t program) {
    if (!case_.recover || programs_.back()->dead) return;
    ++recovering_;
    programs_.back()->own.spawn(recover(clients_[program - 1]->number()));
    programs_.back()->own.run(rack_.now());
  }
  Task<void> recover(std::uint32_t dead) {
    co_await clients_.back()->recover(dead);
    --recovering_;
  }

  void at_once(std::size_t client, const Ask& ask) {
    const auto once = [](Task<void> task) -> Task<bool> {
      co_await std::move(task);
      co_return true;
    };
    rack_.wait_for(*programs_[client], once(perform(client, 1000 + static_cast<std::uint32_t>(client), ask)));
  }
  Task<void> run(std::size_t client) {
    for (const Ask& ask : case_.clients[client]) co_await perform(client, static_cast<std::uint32_t>(client) + 1, ask);
    done_[client] = true;
  }
  Task<void> perform(std::size_t client, std::uint32_t writer, Ask ask) {
    workload::Recorder store(*stores_[client], history_, writer);
    std::array<std::uint8_t, kValueBytes> value{};
    workload::fill_value(ask.key, workload::value_id(writer, ++written_[writer]), value);
    switch (ask.kind) {
      case EventKind::kGet: co_await store.get(ask.key, value); break;
      case EventKind::kPut: co_await store.put(ask.key, value); break;
      case EventKind::kInsert: co_await store.insert(ask.key, value); break;
      case EventKind::kErase: co_await store.erase(ask.key); break;
    }
    EXPECT_EQ(store.wrong(), 0u) << "what was read is no value";
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
  OrderedRack rack_;
  Geometry geometry_;
  std::vector<OrderedRack::Program*> programs_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<rack::FuseeStore>> stores_;
  History history_;
  std::map<std::uint32_t, std::uint64_t> written_;
  std::vector<bool> done_;
  std::uint32_t recovering_ = 0;
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
