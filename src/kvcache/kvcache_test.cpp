// The cache: layout, a replica's side, and clients that look up, change and fail over.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "kvcache/test_world.h"
#include "wire/crc32_algebra.h"

namespace sluice::kvcache {
namespace {

remote::LocalOptions seeded(std::uint64_t seed) {
  return {.mode = remote::LocalMode::kSeeded, .seed = seed, .piece_bytes = 64};
}

std::vector<std::uint8_t> written(const Entry& entry, std::uint64_t where) {
  std::vector<std::uint8_t> bytes(entry.bytes());
  entry.write(bytes.data(), where);
  return bytes;
}

TEST(CacheLayout, AnEntryIsReadBackAndNoOtherBytesAre) {
  const std::string key = "key", value = "some value";
  const Entry entry{.hash = hash_of(view(key)), .version = Version(7), .key = view(key), .value = view(value)};
  const auto bytes = written(entry, 5);
  const auto parsed = Entry::parse(bytes, 5);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(text_of(parsed->key), key);
  EXPECT_EQ(text_of(parsed->value), value);
  EXPECT_EQ(parsed->version, Version(7));
  EXPECT_FALSE(parsed->erased);
  EXPECT_FALSE(Entry::parse(bytes, 6).has_value()) << "meant for another place";
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Entry::parse(ByteView(bytes).first(length), 5).has_value()) << length;
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto changed = bytes;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_FALSE(Entry::parse(changed, 5).has_value()) << bit;
  }
}

// Whoever writes something there means something that this reader does not know.
TEST(CacheLayout, AnEntryOrAHeaderWhoseZerosAreNoneIsNoneThoughItsChecksumIsRight) {
  const auto seal = [](std::vector<std::uint8_t>& bytes, std::size_t crc_at, std::uint64_t where) {
    std::vector<std::uint8_t> summed(8);
    store_le(summed.data(), where);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i < crc_at || i >= crc_at + 4) summed.push_back(bytes[i]);
    }
    store_le(bytes.data() + crc_at, wire::crc32::update(0, summed));
  };
  const std::string key = "key", value = "some value";
  auto entry = written({.hash = hash_of(view(key)), .version = Version(7), .key = view(key), .value = view(value)}, 5);
  std::vector<std::uint8_t> header(kTableHeader);
  TableHeader{9, {.buckets = 64, .log_bytes = 4096}}.write(header.data());
  const auto magic = load_le<std::uint64_t>(header.data());
  seal(entry, 28, 5);
  seal(header, 60, magic);
  EXPECT_TRUE(Entry::parse(entry, 5).has_value());
  EXPECT_TRUE(TableHeader::parse(header).has_value());
  entry[24] = 1;
  header[40] = 1;
  seal(entry, 28, 5);
  seal(header, 60, magic);
  EXPECT_FALSE(Entry::parse(entry, 5).has_value());
  EXPECT_FALSE(TableHeader::parse(header).has_value());
}

TEST(CacheLayout, HeadersAndAnswersWithAnyBitChangedAreNone) {
  std::vector<std::uint8_t> header(kTableHeader);
  TableHeader{9, {.buckets = 64, .log_bytes = 4096}}.write(header.data());
  ASSERT_TRUE(TableHeader::parse(header).has_value());
  EXPECT_EQ(TableHeader::parse(header)->life, 9u);
  std::vector<std::uint8_t> answer(kAnswerBytes);
  Answer{3, ChangeOutcome::kOlder, Version(12)}.write(answer.data());
  ASSERT_TRUE(Answer::parse(answer).has_value());
  EXPECT_EQ(Answer::parse(answer)->version, Version(12));
  for (std::size_t bit = 0; bit < kTableHeader * 8; ++bit) {
    auto changed = header;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_FALSE(TableHeader::parse(changed).has_value()) << bit;
  }
  for (std::size_t bit = 0; bit < kAnswerBytes * 8; ++bit) {
    auto changed = answer;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_FALSE(Answer::parse(changed).has_value()) << bit;
  }
}

TEST(CacheLayout, AGeometryFitsWhatItIsGiven) {
  for (const std::uint64_t bytes : {std::uint64_t{1} << 12, std::uint64_t{1} << 20, (std::uint64_t{1} << 30) + 77}) {
    for (const std::uint64_t entry : {1u, 64u, 100u, 4096u}) {
      if (bytes < 1 << 20 && entry > 100) continue;
      const Geometry geometry = Geometry::fitting(bytes, entry);
      EXPECT_TRUE(geometry.sound());
      EXPECT_LE(geometry.table_bytes(), bytes);
      EXPECT_GT(geometry.table_bytes(), bytes - bytes / 8 - kUnit);
    }
  }
}

// Beside a map: what is found is what was set last; what is not found has been forgotten, oldest first.
TEST(CacheServer, FindsWhatWasSetLastHoweverOftenItsLogComesRound) {
  const Geometry geometry{.buckets = 256, .log_bytes = 32 << 10};
  std::vector<std::uint8_t> table(geometry.table_bytes());
  Server server(table, geometry, 1);
  std::map<std::string, std::pair<std::string, bool>> model;  // value, erased
  Rng rng(5);
  std::uint64_t found = 0, forgotten = 0;
  for (std::uint64_t i = 1; i <= 30'000; ++i) {
    const std::string key = "k" + std::to_string(rng.below(150));
    const std::string value(rng.below(300), static_cast<char>('a' + rng.below(26)));
    const bool erase = rng.below(10) == 0;
    const auto changed = erase ? server.erase(view(key), Version(i)) : server.set(view(key), view(value), Version(i));
    ASSERT_EQ(changed.outcome, ChangeOutcome::kTaken);
    model[key] = {erase ? "" : value, erase};
    const std::string other = "k" + std::to_string(rng.below(150));
    const auto entry = server.find(view(other));
    if (!entry) {
      forgotten += model.contains(other) ? 1u : 0u;
      continue;
    }
    ++found;
    ASSERT_EQ(text_of(entry->value), model[other].first);
    ASSERT_EQ(entry->erased, model[other].second);
  }
  EXPECT_GT(found, 15'000u);
  EXPECT_GT(forgotten, 0u);
  EXPECT_GT(server.counters().overtaken, 0u);
}

TEST(CacheServer, TheGreaterVersionWinsInWhateverOrderChangesCome) {
  const Geometry geometry{.buckets = 4, .log_bytes = 16 << 10};
  std::vector<Version> order(6);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = Version(i + 1);
  do {
    std::vector<std::uint8_t> table(geometry.table_bytes());
    Server server(table, geometry, 1);
    for (const Version version : order) {
      const std::string value = std::to_string(version.value);
      if (version == Version(6)) {
        server.erase(view("key"), version);
      } else {
        server.set(view("key"), view(value), version);
      }
    }
    ASSERT_TRUE(server.find(view("key")).has_value());
    EXPECT_TRUE(server.find(view("key"))->erased);
    EXPECT_EQ(server.set(view("key"), view("late"), Version(5)).outcome, ChangeOutcome::kOlder);
    EXPECT_EQ(server.set(view("key"), view("late"), Version(5)).version, Version(6));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(CacheServer, ABucketThatIsFullForgetsItsOldestAndAnEntryOfAQuarterOfTheLogIsTheLongest) {
  const Geometry geometry{.buckets = 1, .log_bytes = 64 * kUnit};
  std::vector<std::uint8_t> table(geometry.table_bytes());
  Server server(table, geometry, 1);
  for (int i = 0; i < 9; ++i) server.set(view("k" + std::to_string(i)), view("v"), Version(1));
  EXPECT_FALSE(server.find(view("k0")).has_value());
  for (int i = 1; i < 9; ++i) EXPECT_TRUE(server.find(view("k" + std::to_string(i))).has_value()) << i;
  EXPECT_EQ(server.counters().crowded_out, 1u);
  const std::string most(16 * kUnit - kEntryHeader - 1, 'x');
  EXPECT_EQ(server.set(view("k"), view(most), Version(1)).outcome, ChangeOutcome::kTaken);
  EXPECT_EQ(server.set(view("k"), view(most + "x"), Version(2)).outcome, ChangeOutcome::kTooLong);
}

TEST(CacheServer, ARequestThatIsNotWholeIsNotThere) {
  const Geometry geometry{.buckets = 4, .log_bytes = 16 << 10};
  std::vector<std::uint8_t> table(geometry.table_bytes()), mailbox(512);
  Server server(table, geometry, 1);
  server.add_mailbox(mailbox);
  const std::string key = "key", value(200, 'v');
  const Entry entry{.hash = hash_of(view(key)), .version = Version(1), .key = view(key), .value = view(value)};
  const auto bytes = written(entry, 1);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    std::fill(mailbox.begin(), mailbox.end(), std::uint8_t{0});
    store_le(mailbox.data() + kRequestOffset, std::uint64_t{1});
    std::copy_n(bytes.begin(), length, mailbox.begin() + kMailEntry);
    if (std::equal(bytes.begin(), bytes.end(), mailbox.begin() + kMailEntry)) continue;
    EXPECT_EQ(server.poll(), 0u) << length;
  }
  std::copy(bytes.begin(), bytes.end(), mailbox.begin() + kMailEntry);
  EXPECT_EQ(server.poll(), 1u);
  EXPECT_EQ(server.poll(), 0u);
  EXPECT_EQ(Answer::parse(mailbox)->outcome, ChangeOutcome::kTaken);
  store_le(mailbox.data() + kRequestOffset, std::uint64_t{2});  // another request's number over the same entry
  EXPECT_EQ(server.poll(), 0u);
  const auto earlier = written(entry, 1);
  std::copy(earlier.begin(), earlier.end(), mailbox.begin() + kMailEntry);
  store_le(mailbox.data() + kRequestOffset, std::uint64_t{1});  // a request that was there before, late
  EXPECT_EQ(server.poll(), 0u);
}

// Two keys that a bucket's words do not tell apart, and one value that a client has no buffer for.
TEST(CacheClient, AnotherKeysLongValueIsNotTooLong) {
  const WorldConfig config{.replicas = 1, .geometry = {.buckets = 1, .log_bytes = 64 << 10}};
  World world(config);
  std::string twin;
  for (int i = 0; twin.empty(); ++i) {
    const std::string key = "k" + std::to_string(i);
    if (tag_of(hash_of(view(key))) == tag_of(hash_of(view("long")))) twin = key;
  }
  ASSERT_EQ(world.set(*world.clients[0], "long", std::string(512, 'v')), Outcome::kOk);
  Client small(*world.memories[1], {{world.tables[0], world.mailboxes[0][1], World::kMailbox}},
               {.number = 9, .max_value = 16});
  ASSERT_EQ(world.wait_for(small.join()), Outcome::kOk);
  EXPECT_EQ(world.get(small, "long"), "(too long)");
  EXPECT_EQ(world.get(small, twin), "(not there)");
  ASSERT_EQ(world.set(*world.clients[0], twin, "short"), Outcome::kOk);
  EXPECT_EQ(world.get(small, twin), "short");
}

// RemoteMemory that lets something happen before the second READ from now, and before each WRITE.
class Interrupted : public remote::RemoteMemory {
 public:
  Interrupted(remote::Scheduler& scheduler, remote::RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (before_write && operation.kind == remote::OpKind::kWrite) before_write();
    if (between && operation.kind == remote::OpKind::kRead && ++reads_ == 2) std::exchange(between, nullptr)();
    under_.submit(operation);
  }
  std::function<void()> between;
  std::function<void()> before_write;

 private:
  remote::RemoteMemory& under_;
  int reads_ = 0;
};

// RemoteMemory in which nodes are silent: what is asked of them ends, as unreachable, after a time-out.
class Silenced : public remote::RemoteMemory {
 public:
  Silenced(remote::Scheduler& scheduler, remote::RemoteMemory& under) : RemoteMemory(scheduler), under_(under) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (!silent.contains(operation.remote.node.value)) return under_.submit(operation);
    ++unheard;
    scheduler().spawn(time_out(operation));
  }
  std::set<std::uint32_t> silent;
  int unheard = 0;

 private:
  remote::Task<void> time_out(remote::Operation& operation) {
    co_await scheduler().sleep_for(Duration::microseconds(100));
    complete(operation, remote::Status::kUnreachable);
  }
  remote::RemoteMemory& under_;
};

// The bucket has been read; before the entry is, the log has gone round and another key's whole entry stands in its place.
TEST(CacheClient, AnEntryThatAnotherKeysHasOverwrittenMeanwhileIsLookedForAgain) {
  World world({.replicas = 1, .clients = 1});
  ASSERT_EQ(world.set(*world.clients[0], "key", "value 1"), Outcome::kOk);
  Interrupted memory(world.scheduler, *world.memories[0]);
  Client client(memory, {{world.tables[0], {}, 0}}, {.number = 9, .max_value = 512});
  ASSERT_EQ(world.wait_for(client.join()), Outcome::kOk);
  std::size_t others = 0;
  memory.between = [&] {
    Server& server = *world.servers[0];
    std::uint64_t version = 100;
    while (server.find(view("key"))) {
      const std::string other = std::to_string(100 + others++ % 30);  // as long: entries come to lie where others lay
      server.set(view(other), view("value 2"), Version(++version << 16));
    }
    server.set(view("key"), view("value 3"), Version(++version << 16));
  };
  EXPECT_EQ(world.get(client, "key"), "value 3");
  EXPECT_GT(others, 500u);
  EXPECT_EQ(client.counters().again, 1u);
}

TEST(CacheClient, AValueThatNoMailboxHoldsIsTooLong) {
  World world({.max_value = 4096});
  Client& client = *world.clients[0];
  EXPECT_EQ(world.set(client, "key", std::string(World::kMailbox - kMailEntry - kEntryHeader - 3, 'v')), Outcome::kOk);
  EXPECT_EQ(world.set(client, "key", std::string(World::kMailbox - kMailEntry - kEntryHeader - 2, 'v')),
            Outcome::kTooLong);
}

TEST(CacheClient, SeesWhatIsSetAndErasedAtEveryReplica) {
  World world({.local = seeded(1)});
  Client& one = *world.clients[0];
  EXPECT_EQ(world.get(one, "a"), "(not there)");
  EXPECT_EQ(world.set(one, "a", "1"), Outcome::kOk);
  for (const auto& server : world.servers) EXPECT_EQ(text_of(server->find(view("a"))->value), "1");
  EXPECT_EQ(world.get(*world.clients[1], "a"), "1");
  EXPECT_EQ(world.set(*world.clients[1], "a", "2"), Outcome::kOk);  // its versions begin below: it learns of the others
  EXPECT_EQ(world.get(one, "a"), "2");
  EXPECT_EQ(world.erase(one, "a"), Outcome::kOk);
  EXPECT_EQ(world.get(*world.clients[1], "a"), "(not there)");
  EXPECT_EQ(world.set(one, std::string(300, 'k'), "v"), Outcome::kTooLong);
  EXPECT_EQ(world.set(one, "k", std::string(513, 'v')), Outcome::kTooLong);
  EXPECT_EQ(world.set(one, "", ""), Outcome::kOk);
  EXPECT_EQ(world.get(one, ""), "");
}

// Values name their key and are all of one letter: a mixture would be seen.
TEST(CacheClient, FindsOnlyWholeValuesOfTheKeyWhileTheLogRunsOverThem) {
  std::uint64_t again = 0, hits = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    World world({.local = seeded(seed), .replicas = 1, .geometry = {.buckets = 4, .log_bytes = 2 << 10}, .clients = 1});
    Rng rng(seed);
    bool done = false;
    const auto writer = [&]() -> remote::Task<void> {
      for (std::uint64_t i = 1; i <= 400; ++i) {
        const std::string key = "key" + std::to_string(rng.below(6));
        const std::string value = key + std::string(rng.below(200), static_cast<char>('a' + i % 26));
        world.servers[0]->set(view(key), view(value), Version(i));
        co_await world.scheduler.sleep_for(Duration::nanoseconds(static_cast<std::int64_t>(rng.below(100))));
      }
      done = true;
    };
    world.scheduler.spawn(writer());
    while (!done) {
      const std::string key = "key" + std::to_string(rng.below(6));
      const std::string value = world.get(*world.clients[0], key);
      if (value == "(not there)") continue;
      ++hits;
      ASSERT_TRUE(value.starts_with(key)) << seed;
      const std::string rest = value.substr(key.size());
      ASSERT_EQ(rest.find_first_not_of(rest.empty() ? 'a' : rest[0]), std::string::npos) << seed;
    }
    again += world.clients[0]->counters().again;
  }
  EXPECT_GT(hits, 100u);
  EXPECT_GT(again, 0u);
}

TEST(CacheClient, ReplicasAgreeAfterClientsChangedTheSameKeysAtOnce) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    World world({.local = seeded(seed), .clients = 4});
    std::size_t open = 0;
    const auto worker = [&](std::uint32_t c) -> remote::Task<void> {
      Rng rng = Rng(seed).fork(c);
      for (int i = 0; i < 20; ++i) {
        const std::string key = "k" + std::to_string(rng.below(3));
        const std::string value = std::to_string(c) + "/" + std::to_string(i);
        const bool erase = rng.below(5) == 0;
        Outcome outcome{};
        if (erase) {
          outcome = co_await world.clients[c]->erase(view(key));
        } else {
          outcome = co_await world.clients[c]->set(view(key), view(value));
        }
        EXPECT_EQ(outcome, Outcome::kOk) << seed;
      }
      --open;
    };
    for (std::uint32_t c = 0; c < 4; ++c, ++open) world.scheduler.spawn(worker(c));
    world.run_until([&] { return open == 0; });
    for (int k = 0; k < 3; ++k) {
      const std::string key = "k" + std::to_string(k);
      const auto first = world.servers[0]->find(view(key));
      for (const auto& server : world.servers) {
        const auto entry = server->find(view(key));
        ASSERT_EQ(entry.has_value(), first.has_value());
        if (!entry) continue;
        EXPECT_EQ(entry->version, first->version) << seed;
        EXPECT_EQ(text_of(entry->value), text_of(first->value)) << seed;
        EXPECT_EQ(entry->erased, first->erased);
      }
    }
  }
}

TEST(CacheServer, AboveAnyVersionThereIsANewerOne) {
  const Geometry geometry{.buckets = 4, .log_bytes = 16 << 10};
  for (const std::uint64_t version : {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1}) {
    std::vector<std::uint8_t> table(geometry.table_bytes());
    Server server(table, geometry, 1);
    server.set(view("key"), view("there"), Version(version));
    EXPECT_EQ(server.set(view("key"), view("newer"), Version(version + 1)).outcome, ChangeOutcome::kTaken);
    EXPECT_EQ(server.set(view("key"), view("late"), Version(version)).outcome, ChangeOutcome::kOlder);
    EXPECT_EQ(text_of(server.find(view("key"))->value), "newer");
  }
}

TEST(CacheClient, AVersionThatAClientChoseToBeTheLastIsOvertakenAndSpoilsNoOthers) {
  for (const std::uint64_t last : {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1}) {
    World world({.replicas = 2});
    Client &one = *world.clients[0], &two = *world.clients[1];
    ASSERT_EQ(world.set(one, "other", "1"), Outcome::kOk);
    for (const auto& server : world.servers) server->set(view("key"), view("last"), Version(last));
    EXPECT_EQ(world.get(one, "key"), "last");
    EXPECT_EQ(world.get(two, "key"), "last");
    for (const std::string value : {"a", "b", "c"}) {
      for (const std::string key : {"key", "other"}) {
        EXPECT_EQ(world.set(one, key, value + "1"), Outcome::kOk) << last;
        EXPECT_EQ(world.get(two, key), value + "1");
        EXPECT_EQ(world.set(two, key, value + "2"), Outcome::kOk) << last;
        EXPECT_EQ(world.get(one, key), value + "2");
      }
    }
  }
}

// Three replicas, each with a version that is a third of the round from the others', and newer than one of them.
TEST(CacheClient, ReplicasThatDoNotAgreeOnWhatIsNewestTakeTheNextChange) {
  World world({});
  for (std::uint64_t i = 0; i < 3; ++i) {
    world.servers[i]->set(view("key"), view("old"), Version(~std::uint64_t{0} / 3 * i));
  }
  EXPECT_EQ(world.set(*world.clients[0], "key", "new"), Outcome::kOk);
  for (const auto& server : world.servers) EXPECT_EQ(text_of(server->find(view("key"))->value), "new");
}

TEST(CacheClient, AChangeThatIsOvertakenEachTimeHasReachedNone) {
  World world({});
  Interrupted memory(world.scheduler, *world.memories[0]);
  Client client(memory, {{world.tables[0], world.mailboxes[0][0], World::kMailbox}}, {.number = 9, .max_value = 512});
  ASSERT_EQ(world.wait_for(client.join()), Outcome::kOk);
  std::uint64_t counter = 0;
  memory.before_write = [&] { world.servers[0]->set(view("key"), view("other"), Version(counter += 100 << 16)); };
  EXPECT_EQ(world.set(client, "key", "ours"), Outcome::kUnavailable);
  EXPECT_EQ(world.get(client, "key"), "other");
  EXPECT_GT(world.servers[0]->counters().older, 10u);
}

// One client sets greater and greater values; another never sees one that is less than what was set when it began to look.
TEST(CacheClient, NeverFindsWhatIsOlderThanAChangeThatHasEnded) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    World world({.local = seeded(seed)});
    int set = 0;
    std::size_t open = 2;
    const auto writer = [&]() -> remote::Task<void> {
      for (int i = 1; i <= 60; ++i) {
        const std::string value = std::to_string(i);
        const Outcome outcome = co_await world.clients[0]->set(view("k"), view(value));
        EXPECT_EQ(outcome, Outcome::kOk);
        set = i;
      }
      --open;
    };
    const auto reader = [&]() -> remote::Task<void> {
      std::vector<std::uint8_t> into(512);
      while (open == 2) {
        const int before = set;
        const GetResult result = co_await world.clients[1]->get(view("k"), into);
        if (before != 0) {
          EXPECT_EQ(result.outcome, Outcome::kOk) << seed;
          if (result.outcome == Outcome::kOk) {
            EXPECT_GE(std::stoi(text_of(ByteView(into).first(result.length))), before) << seed;
          }
        }
        co_await world.scheduler.yield();
      }
      --open;
    };
    world.scheduler.spawn(writer());
    world.scheduler.spawn(reader());
    world.run_until([&] { return open == 0; });
  }
}

TEST(CacheClient, AChangeThatASilentReplicaMayHaveTakenIsNotSaidToHaveReachedNone) {
  World world({.local = seeded(4)});
  Client& client = *world.clients[0];
  for (auto& server : world.servers) server.reset();  // the memory is there, who looks into the mailboxes is not
  EXPECT_EQ(world.set(client, "k", "v"), Outcome::kPartial);
  for (const auto node : world.nodes) world.fabric.kill_node(node);
  EXPECT_EQ(world.set(client, "k", "w"), Outcome::kUnavailable);
}

TEST(CacheClient, AValueTooLongForOneReplicaIsPartialWhereOthersTookIt) {
  World world({});
  const std::vector<Replica> replicas{{world.tables[0], world.mailboxes[0][0], World::kMailbox},
                                      {world.tables[1], world.mailboxes[1][0], 128}};
  Client client(*world.memories[0], replicas, {.number = 1, .max_value = 512});
  ASSERT_EQ(world.wait_for(client.join()), Outcome::kOk);
  EXPECT_EQ(world.set(client, "k", std::string(300, 'v')), Outcome::kPartial);
  EXPECT_EQ(world.get(client, "k"), std::string(300, 'v'));
}

TEST(CacheClient, WhoJoinsAfterAReplicaHasBegunAnewFindsWhatTheOthersHave) {
  World world({.replicas = 2, .clients = 2});
  for (int i = 0; i < 50; ++i) ASSERT_EQ(world.set(*world.clients[0], "k" + std::to_string(i), "v"), Outcome::kOk);
  world.begin(0, 77);
  remote::LocalMemory memory(world.scheduler, world.fabric);
  Client fresh(memory, {{world.tables[0], {}, 0}, {world.tables[1], {}, 0}}, {.number = 9, .max_value = 512});
  ASSERT_EQ(world.wait_for(fresh.join()), Outcome::kOk);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(world.get(fresh, "k" + std::to_string(i)), "v") << i;
  EXPECT_EQ(world.get(fresh, "none"), "(not there)");
  EXPECT_EQ(fresh.counters().failovers, 0u);
}

TEST(CacheClient, WhatAReplicaThatMissedAChangeHasIsFoundWhenTheOtherBeginsAnew) {
  World world({.replicas = 2, .clients = 2});
  Client& client = *world.clients[0];
  for (int i = 0; i < 50; ++i) ASSERT_EQ(world.set(client, "k" + std::to_string(i), "v"), Outcome::kOk);
  auto server = std::move(world.servers[1]);
  ASSERT_EQ(world.set(client, "other", "x"), Outcome::kPartial);
  world.servers[1] = std::move(server);
  world.wait_for(client.join());
  world.begin(0, 77);
  world.wait_for(client.join());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(world.get(client, "k" + std::to_string(i)), "v") << i;
}

TEST(CacheClient, LookupsGoOnWhenReplicasDieAndChangesSayThatTheyAreNotEverywhere) {
  World world({.local = seeded(3)});
  Client& client = *world.clients[0];
  for (int i = 0; i < 50; ++i) ASSERT_EQ(world.set(client, "k" + std::to_string(i), std::to_string(i)), Outcome::kOk);
  world.kill(1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(world.get(client, "k" + std::to_string(i)), std::to_string(i));
  EXPECT_FALSE(client.up(1));
  EXPECT_EQ(client.counters().failovers, 2u);  // then it is left out
  EXPECT_EQ(world.set(client, "k0", "new"), Outcome::kPartial);
  EXPECT_EQ(world.get(client, "k0"), "new");
  world.kill(0);
  for (int i = 1; i < 50; ++i) EXPECT_EQ(world.get(client, "k" + std::to_string(i)), std::to_string(i));
  world.kill(2);
  EXPECT_EQ(world.get(client, "k1"), "(unavailable)");
  EXPECT_EQ(world.set(client, "k1", "new"), Outcome::kUnavailable);
}

// Two replicas; this client's way to them may be silenced.
struct Pair {
  Pair() {
    EXPECT_EQ(world.wait_for(client.join()), Outcome::kOk);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(world.set(client, key(i), "v"), Outcome::kOk);
  }
  static std::string key(int i) { return "k" + std::to_string(i % 40); }
  std::uint32_t node(std::size_t replica) const { return world.nodes[replica].value; }

  World world{{.replicas = 2, .clients = 1}};
  Silenced memory{world.scheduler, *world.memories[0]};
  Client client{memory,
                {{world.tables[0], world.mailboxes[0][0], World::kMailbox},
                 {world.tables[1], world.mailboxes[1][0], World::kMailbox}},
                {.number = 9, .max_value = 512, .look_after = Duration::microseconds(50)}};
};

TEST(CacheClient, AReplicaThatComesBackWhileAnotherIsWaitedForIsAsked) {
  for (std::size_t left_out = 0; left_out < 2; ++left_out) {
    Pair p;
    p.memory.silent = {p.node(left_out)};
    for (int i = 0; p.client.up(left_out); ++i) p.world.get(p.client, Pair::key(i));
    p.memory.silent = {p.node(1 - left_out)};
    EXPECT_EQ(p.world.get(p.client, "k0"), "v");
    EXPECT_TRUE(p.client.up(left_out));
  }
}

// It had fallen silent, another join() found it, and it fell silent before the look that had been waiting.
TEST(CacheClient, AReplicaThatFallsSilentBeforeTheLookThatIsDueIsLeftOut) {
  Pair p;
  p.memory.silent = {p.node(1)};
  for (int i = 0; p.client.up(1); ++i) p.world.get(p.client, Pair::key(i));
  p.memory.silent.clear();
  ASSERT_EQ(p.world.wait_for(p.client.join()), Outcome::kOk);
  ASSERT_TRUE(p.client.up(1));
  p.memory.silent = {p.node(1)};
  p.memory.unheard = 0;
  for (int i = 0; i < 40; ++i) EXPECT_EQ(p.world.get(p.client, Pair::key(i)), "v");
  EXPECT_FALSE(p.client.up(1));
  EXPECT_EQ(p.client.counters().left_out, 2u);
  EXPECT_LE(p.memory.unheard, 4);  // two lookups, and looks
  p.memory.silent.clear();
  p.world.run_for(Duration::microseconds(200));
  EXPECT_TRUE(p.client.up(1));
}

TEST(CacheClient, FailuresBeforeAndAfterAChangeThatAReplicaHasTakenAreNotInARow) {
  Pair p;
  for (int round = 0; round < 3; ++round) {
    p.memory.silent = {p.node(1)};
    p.memory.unheard = 0;
    for (int i = 0; p.memory.unheard == 0; ++i) EXPECT_EQ(p.world.get(p.client, Pair::key(i)), "v");
    p.memory.silent.clear();
    EXPECT_EQ(p.world.set(p.client, "another", "v"), Outcome::kOk);
    EXPECT_TRUE(p.client.up(1));
  }
  EXPECT_EQ(p.client.counters().left_out, 0u);
}

}  // namespace
}  // namespace sluice::kvcache
