#include "sim/world/priorities.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::sim {
namespace {

Time at(std::int64_t ns) { return Time::at(Duration::nanoseconds(ns)); }

class Sink final : public Consumer {
 public:
  explicit Sink(PacketPool& pool) : pool_(pool) {}
  void on_packet(Time now, Packet* packet) override {
    arrivals.emplace_back(now.since_start().nanoseconds(), packet->data[0]);
    pool_.give_back(packet);
  }
  std::vector<std::pair<std::int64_t, int>> arrivals;

 private:
  PacketPool& pool_;
};

// 76 bytes of frame are 100 on the wire: 8 ns at 100 Gb/s. 100 ns of latency before.
struct World {
  explicit World(std::uint64_t queue_bytes = 1000)
      : sink(pool), pipe(loop, pool, {}, sink, Rng(1)), priorities(loop, pool, pipe, at(100) - Time{}, queue_bytes) {}
  void send(int name, std::uint8_t priority, std::uint32_t length = 76) {
    Packet* const packet = pool.take(length);
    packet->length = length;
    packet->data[0] = static_cast<std::uint8_t>(name);
    packet->priority = priority;
    priorities.send(loop.now(), packet);
  }
  EventLoop loop;
  PacketPool pool;
  Sink sink;
  Pipe pipe;
  Priorities priorities;
};

using Arrivals = std::vector<std::pair<std::int64_t, int>>;

TEST(Priorities, WhatHasBegunIsFinishedThenTheUrgentGoFirst) {
  World w;
  w.send(1, 1);
  w.send(2, 1);
  w.send(3, 0);
  w.send(4, 0);
  w.loop.run_until(at(110));
  w.send(5, 0);
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{108, 1}, {116, 3}, {124, 4}, {132, 2}, {218, 5}}));
}

TEST(Priorities, TheOthersGetTheGaps) {
  World w(100'000);
  for (int i = 0; i < 50; ++i) w.send(1, 1);
  for (int i = 0; i < 40; ++i) {  // every second packet's time
    w.send(0, 0);
    w.loop.run_until(w.loop.now() + Duration::nanoseconds(16));
  }
  w.loop.run_until(at(100 + 40 * 16));
  int low = 0;
  for (const auto& [when, name] : w.sink.arrivals) low += name;
  EXPECT_NEAR(low, 40, 1);
  EXPECT_NEAR(static_cast<int>(w.sink.arrivals.size()) - low, 40, 1);
}

TEST(Priorities, AFullQueueDropsAndAPauseHoldsTheUrgentAlone) {
  World w(200);
  w.pipe.pause(w.loop.now());
  for (int i = 1; i <= 4; ++i) w.send(i, 1);
  w.send(9, 0);
  w.loop.run_until(at(500));
  // The first is in the pipe when the fourth comes, two are in the queue.
  EXPECT_EQ(w.priorities.dropped(), 1u);
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{108, 1}, {116, 2}, {124, 3}}));
  w.pipe.resume(w.loop.now());
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals.back(), (std::pair<std::int64_t, int>{508, 9}));
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST(Priorities, TheQueueOfTheOthersIsSoLongToTheByteAndEmptiesAgain) {
  World w(2 * 76);
  for (int round = 0; round < 3; ++round) {
    w.pipe.pause(w.loop.now());
    for (int i = 1; i <= 3; ++i) w.send(i, 1);  // one goes at once, two wait
    w.loop.run_until(w.loop.now() + Duration::microseconds(1));
  }
  EXPECT_EQ(w.priorities.dropped(), 0u);
  EXPECT_EQ(w.sink.arrivals.size(), 9u);
}

TEST(Priorities, WhatHasBegunAtTheInstantOfAPauseIsFinished) {
  World w;
  w.send(1, 1);
  w.loop.run_until(at(100));
  w.pipe.pause(w.loop.now());
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{108, 1}}));
}

TEST(Priorities, WhatAPauseHoldsBackIsNotInTheWayOfTheOthers) {
  World w(100'000);
  for (int i = 0; i < 1'000; ++i) w.send(0, 0);  // 8 us of them
  w.send(1, 1);
  w.loop.run_until(at(150));
  w.pipe.pause(w.loop.now());
  w.loop.run_until(at(500));
  ASSERT_FALSE(w.sink.arrivals.empty());
  EXPECT_EQ(w.sink.arrivals.back(), (std::pair<std::int64_t, int>{164, 1}));
}

}  // namespace
}  // namespace sluice::sim
