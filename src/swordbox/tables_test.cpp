// The box's tables: index, history, sketch, connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "base/rng.h"
#include "swordbox/connections.h"
#include "swordbox/flat_index.h"
#include "swordbox/history.h"
#include "swordbox/keys.h"
#include "swordbox/sketch.h"
#include "swordbox/waiting.h"
#include "swordbox/words.h"
#include "wire/frame.h"

namespace sluice::swordbox {
namespace {

TEST(FlatIndex, AgreesWithAMapThroughInsertionsAndErasures) {
  constexpr std::uint32_t kMost = 200;
  std::vector<std::uint64_t> keys(kMost);
  // Few hashes, so that places collide and runs grow long.
  const auto hash = [](std::uint64_t key) { return key % 23; };
  FlatIndex index(kMost);
  std::map<std::uint64_t, std::uint32_t> model;
  std::vector<std::uint32_t> free;
  for (std::uint32_t i = 0; i < kMost; ++i) free.push_back(i);
  Rng rng(5);
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t key = rng.below(400);
    const std::uint32_t found = index.find(hash(key), [&](std::uint32_t i) { return keys[i] == key; });
    const auto expected = model.find(key);
    ASSERT_EQ(found, expected == model.end() ? kNone : expected->second) << "step " << step;
    if (found != kNone) {
      index.erase(hash(key), found, [&](std::uint32_t i) { return hash(keys[i]); });
      free.push_back(found);
      model.erase(key);
    } else if (!free.empty()) {
      const std::uint32_t i = free.back();
      free.pop_back();
      keys[i] = key;
      index.insert(hash(key), i);
      model[key] = i;
    }
  }
}

TEST(History, NeverForgetsTailsAndOpenLinks) {
  History history(64);
  std::vector<Place> pinned;
  for (std::uint64_t a = 0; a < 4000; ++a) {
    const Place place = place_of(1, a * 64);
    const std::uint32_t i = history.claim(place);
    if (i == kNone) continue;
    if (a % 97 == 0) {
      history[i].set_state(a % 2 == 0 ? NodeState::kTail : NodeState::kOpen);
      pinned.push_back(place);
    }
  }
  ASSERT_GT(pinned.size(), 5u);
  for (const Place place : pinned) EXPECT_NE(history.find(place), kNone);
}

TEST(History, KeepsTheTimeAtWhichANodeBecameOld) {
  HistoryEntry entry;
  const Time when = Time::at(Duration::seconds(86'400 * 30));
  entry.become_past(when);
  EXPECT_EQ(entry.state(), NodeState::kPast);
  EXPECT_LE(when - entry.past_since(), Duration::microseconds(68));
  EXPECT_GE(when - entry.past_since(), Duration());
}

TEST(History, APastNodeKeepsItsKeysPlaceUntilItsMemoryIsWrittenAnew) {
  HistoryEntry entry;
  entry.free_word = 77;
  // As a node of which the CAS is out, to an odd end: its marks say something else until it is past.
  entry.set_state(NodeState::kTried);
  entry.await({.connection = 3, .end = 1, .generation = 15, .psn = Psn(9)});
  EXPECT_FALSE(entry.has_key_place());
  entry.become_past(Time());
  EXPECT_FALSE(entry.has_key_place());
  EXPECT_EQ(entry.key_place(), kNone);
  EXPECT_EQ(entry.free_word, 77u);
  entry.note_key_place(5);
  EXPECT_EQ(entry.key_place(), 5u);
  const Time later = Time::at(Duration::seconds(1));
  entry.become_past(later);
  EXPECT_EQ(entry.key_place(), 5u);
  EXPECT_LE(later - entry.past_since(), Duration::microseconds(68));
  entry.set_state(NodeState::kWritten);
  entry.await({.connection = 3, .end = 1, .generation = 15, .psn = Psn(9)});
  EXPECT_FALSE(entry.has_key_place());
  entry.become_past(later);
  EXPECT_FALSE(entry.has_key_place());
}

TEST(Keys, APlaceThatWasNotedIsNoKeysThatIsGoneNorAnothers) {
  Keys keys(1);
  const std::uint32_t place = keys.add(10);
  EXPECT_FALSE(keys.has_tail_at(place, 10)) << "its tail is not known";
  keys[place].tail = place_of(0, 64);
  EXPECT_TRUE(keys.has_tail_at(place, 10));
  EXPECT_FALSE(keys.has_tail_at(place, 11));
  EXPECT_FALSE(keys.has_tail_at(kNone, 10));
  keys.remove(place);
  EXPECT_FALSE(keys.has_tail_at(place, 10));
  ASSERT_EQ(keys.add(11), place);
  keys[place].tail = place_of(0, 64);
  EXPECT_FALSE(keys.has_tail_at(place, 10));
}

TEST(WaitingLine, IsWokenInTheOrderInWhichItWasJoinedWhoeverLeaves) {
  struct Waits {
    DirectionToken next = kNone;
  };
  std::vector<Waits> all(8);
  Rng rng(11);
  WaitingLine line;
  std::deque<DirectionToken> model;
  for (int step = 0; step < 20'000; ++step) {
    const auto direction = static_cast<DirectionToken>(rng.below(all.size()));
    const auto at = std::ranges::find(model, direction);
    if (rng.below(20) == 0) {
      std::vector<DirectionToken> ready;
      line.wake(all, ready);
      ASSERT_TRUE(std::ranges::equal(ready, model)) << "step " << step;
      model.clear();
    } else if (at == model.end()) {
      line.append(all, direction);
      model.push_back(direction);
    } else {
      line.remove(all, direction);
      all[direction] = {};
      model.erase(at);
    }
    ASSERT_EQ(line.empty(), model.empty());
  }
}

TEST(Sketch, NeverCountsTooLittleAndHalvesInTime) {
  Sketch sketch;
  for (int i = 0; i < 1000; ++i) sketch.add(42);
  for (std::uint64_t key = 100; key < 2000; ++key) sketch.add(key);
  EXPECT_GE(sketch.estimate(42), 1000u);
  EXPECT_LE(sketch.estimate(42), 1010u);
  for (std::uint64_t i = 0; i < Sketch::kWidth * 8; ++i) sketch.add(1'000'000 + i);
  EXPECT_LE(sketch.estimate(42), 540u);
}

class Nobody final : public Connections::Observer {
 public:
  void on_connection_gone(ConnectionIndex) override { ++gone; }
  int gone = 0;
};

wire::Gid host(std::uint32_t n) { return wire::Gid::from(wire::Ipv4Address{0x0A000000u + n}); }

TEST(Connections, HoldsAsManyAsItSaysAndFindsEachFromBothSides) {
  Counters counters;
  Nobody nobody;
  Connections table({.connections = 5000}, counters, nobody);
  for (std::uint32_t i = 0; i < 5000; ++i) {
    ASSERT_TRUE(table.announce(Time(), {.address = {host(1 + i % 64), host(100)},
                                        .qpn = {Qpn(0x100 + i), Qpn(0x8000 + i)},
                                        .starting_psn = {Psn(i), Psn(2 * i)},
                                        .mtu = 1024}));
  }
  EXPECT_FALSE(table.announce(Time(), {.address = {host(1), host(100)}, .qpn = {Qpn(1), Qpn(2)}}));
  EXPECT_EQ(counters.connections_refused, 1u);
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const NetAddress client = NetAddress::from(host(1 + i % 64));
    const NetAddress server = NetAddress::from(host(100));
    const Crossing up = table.find(client, server, Qpn(0x8000 + i));
    const Crossing down = table.find(server, client, Qpn(0x100 + i));
    ASSERT_TRUE(up && down);
    ASSERT_EQ(up.connection, down.connection);
    EXPECT_EQ(up.end, 1);
    EXPECT_EQ(down.end, 0);
    EXPECT_EQ(table[up.connection].to[1].expected, Psn(i));
    EXPECT_EQ(table[up.connection].to[0].expected, Psn(2 * i));
  }
}

TEST(Connections, ForgetsTheSilentAndTellsOfIt) {
  Counters counters;
  Nobody nobody;
  Connections table({.connections = 16, .idle = Duration::seconds(10)}, counters, nobody);
  table.announce(Time(), {.address = {host(1), host(2)}, .qpn = {Qpn(1), Qpn(2)}});
  table.age(Time::at(Duration::seconds(9)));
  EXPECT_EQ(table.size(), 1u);
  table.age(Time::at(Duration::seconds(10)));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(nobody.gone, 1);
  EXPECT_EQ(counters.connections_expired, 1u);
  EXPECT_FALSE(table.find(NetAddress::from(host(1)), NetAddress::from(host(2)), Qpn(2)));
}

// A request to queue pair `to`, as far as inference looks at it.
void see_request(Connections& table, Time now, std::uint32_t to) {
  std::array<std::uint8_t, 256> frame{};
  wire::AddressVector v;
  v.source = host(1);
  v.destination = host(2);
  const wire::HeaderTemplate headers(v);
  const std::size_t at = headers.write(frame.data(), wire::Bth::kSize);
  wire::Bth{.opcode = wire::Opcode::kRcSendOnly, .destination = Qpn(to), .psn = Psn(1)}.write(frame.data() + at);
  wire::ParsedFrame parsed;
  const std::size_t length = headers.seal(frame.data(), at + wire::Bth::kSize);
  ASSERT_EQ(wire::parse({frame.data(), length}, parsed), wire::Verdict::kOk);
  table.infer_from_request(now, frame.data(), parsed);
}

TEST(Connections, ThoseOfWhichNobodyHasAnsweredGiveWayAndAreSoonForgotten) {
  Counters counters;
  Nobody nobody;
  Connections table({.connections = 4}, counters, nobody);
  for (std::uint32_t i = 0; i < 10; ++i) see_request(table, Time(), 0x100 + i);
  EXPECT_EQ(table.size(), 4u);
  EXPECT_TRUE(table.announce(Time(), {.address = {host(1), host(2)}, .qpn = {Qpn(1), Qpn(2)}}));
  const auto is_known = [&](std::uint32_t qpn) {
    return static_cast<bool>(table.find(NetAddress::from(host(1)), NetAddress::from(host(2)), Qpn(qpn)));
  };
  EXPECT_FALSE(is_known(0x106)) << "the oldest";
  EXPECT_TRUE(is_known(0x107) && is_known(0x109) && is_known(2));
  table.age(Time::at(Duration::seconds(2)));
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(is_known(2));
  EXPECT_EQ(counters.connections_refused, 0u);
}

// Clients that died without a word have connections, too.
TEST(Connections, WhenThereIsNoRoomTheOneThatHasBeenSilentLongestGivesWay) {
  Counters counters;
  Nobody nobody;
  Connections table({.connections = 4}, counters, nobody);
  const auto announce = [&](std::int64_t second, std::uint32_t qpn) {
    return table.announce(Time::at(Duration::seconds(second)),
                          {.address = {host(1), host(2)}, .qpn = {Qpn(qpn), Qpn(0x100 + qpn)}});
  };
  const auto find = [&](std::uint32_t qpn) {
    return table.find(NetAddress::from(host(1)), NetAddress::from(host(2)), Qpn(0x100 + qpn));
  };
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(announce(i, i));
  table.use(find(0).connection).last_seen = Time::at(Duration::seconds(5));
  EXPECT_FALSE(announce(10, 4)) << "all have been heard of lately";
  EXPECT_EQ(counters.connections_refused, 1u);
  EXPECT_TRUE(announce(11, 4));
  EXPECT_FALSE(find(1)) << "silent for ten seconds";
  EXPECT_TRUE(find(0) && find(2) && find(3) && find(4));
  table[find(4).connection].closing = true;
  EXPECT_TRUE(announce(12, 5));
  EXPECT_FALSE(find(4)) << "it is needed no more, however lately it was heard of";
  EXPECT_TRUE(find(2));
  // For what is only inferred nobody who is announced goes.
  see_request(table, Time::at(Duration::seconds(100)), 0x900);
  EXPECT_TRUE(find(0) && find(2) && find(3) && find(5));
}

TEST(Connections, UseNoMorePlacesThanThereAreAtATimeAndSomeThatRest) {
  Counters counters;
  Nobody nobody;
  const auto resting = [&](std::uint32_t connections) {
    Connections table({.connections = connections, .idle = Duration::seconds(10)}, counters, nobody);
    std::set<ConnectionIndex> places;
    std::deque<ConnectionIndex> lately;
    Time now;
    std::size_t at_a_time = 0;
    for (std::uint32_t i = 0; i < 10'000; ++i) {
      now = now + Duration::milliseconds(400);
      table.age(now);
      EXPECT_TRUE(table.announce(now, {.address = {host(1), host(2)}, .qpn = {Qpn(1 + 2 * i), Qpn(2 + 2 * i)}}));
      const Crossing up = table.find(NetAddress::from(host(1)), NetAddress::from(host(2)), Qpn(2 + 2 * i));
      EXPECT_TRUE(up);
      at_a_time = std::max(at_a_time, std::size_t{table.size()});
      places.insert(up.connection);
      EXPECT_EQ(std::ranges::find(lately, up.connection), lately.end()) << "it has not rested";
      lately.push_back(up.connection);
      if (lately.size() > 200) lately.pop_front();
    }
    EXPECT_LT(at_a_time, 50u);
    return places.size() - at_a_time;
  };
  EXPECT_LE(resting(400), 257u);
  EXPECT_LE(resting(4096), 257u);
}

TEST(Words, AreFoundUnderTheirRegionsNameAlone) {
  Words words(4);
  std::uint64_t evicted = 0;
  words.add_region(7);
  words.add_region(9);
  words.add_region(9);  // two of one name
  const WordIndex first = words.add(0, 64, evicted);
  const WordIndex second = words.add(1, 64, evicted);
  EXPECT_EQ(words.find(0, 64), first);
  EXPECT_EQ(words.find(1, 64), second);
  EXPECT_EQ(words.find(2, 64), kNone);
  const auto any = [](std::uint16_t) { return true; };
  EXPECT_EQ(words.find_named(7, 64, any), first);
  EXPECT_EQ(words.find_named(9, 64, any), second);
  EXPECT_EQ(words.find_named(8, 64, any), kNone);
}

TEST(Words, AGuessIsNoLongerRightWhenAnotherWordHasItsPlace) {
  Words words(1);
  std::uint64_t evicted = 0;
  words.add_region(7);
  const auto any = [](std::uint16_t) { return true; };
  ASSERT_NE(words.add(0, 8, evicted), kNone);
  const WordIndex guess = words.guess(words.ask(7, 8));
  ASSERT_NE(guess, kNone);
  EXPECT_TRUE(words.is(guess, 8, any));
  EXPECT_FALSE(words.is(guess, 8, [](std::uint16_t region) { return region != 0; }));
  ASSERT_EQ(words.add(0, 16, evicted), guess);
  EXPECT_EQ(evicted, 1u);
  EXPECT_FALSE(words.is(guess, 8, any));
  EXPECT_TRUE(words.is(guess, 16, any));
}

TEST(Connections, TakeTwoCacheLinesEach) { EXPECT_LE(sizeof(Connection), 128u); }

}  // namespace
}  // namespace sluice::swordbox
