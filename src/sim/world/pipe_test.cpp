#include "sim/world/pipe.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "wire/frame.h"

namespace sluice::sim {
namespace {

Time at(std::int64_t ns) { return Time::at(Duration::nanoseconds(ns)); }

class Sink final : public Consumer {
 public:
  explicit Sink(PacketPool& pool) : pool_(pool) {}
  void on_packet(Time now, Packet* packet) override {
    arrivals.emplace_back(now, packet->data[0]);
    last.assign(packet->data, packet->data + packet->length);
    pool_.give_back(packet);
  }
  std::vector<std::pair<Time, int>> arrivals;
  std::vector<std::uint8_t> last;

 private:
  PacketPool& pool_;
};

struct World {
  explicit World(const PipeParameters& parameters) : sink(pool), pipe(loop, pool, parameters, sink, Rng(1)) {}
  void send(int name, std::uint32_t length = 76) {
    Packet* const packet = pipe.take(length);
    packet->length = length;
    packet->data[0] = static_cast<std::uint8_t>(name);
    pipe.send(loop.now(), loop.now(), packet);
  }
  EventLoop loop;
  PacketPool pool;
  Sink sink;
  Pipe pipe;
};

using Arrivals = std::vector<std::pair<Time, int>>;

// 76 bytes of frame are 100 on the wire: 8 ns at 100 Gb/s.
TEST(Pipe, SendsOneFrameAfterTheOtherAndDeliversAfterItsDelay) {
  World w({.delay = Duration::nanoseconds(500)});
  w.send(1);
  w.send(2);
  w.loop.run_until(at(100));
  w.send(3);
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(508), 1}, {at(516), 2}, {at(608), 3}}));
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST(Pipe, GivesASmallFrameTheLeastTimeThatEthernetHas) {
  World w({});
  EXPECT_EQ(w.pipe.wire_time(20), Duration::picoseconds(84 * 80));
  EXPECT_EQ(w.pipe.wire_time(82), Duration::picoseconds(106 * 80));  // a WRITE of 8 bytes: 117.9 M a second
}

TEST(Pipe, DropsWhatFindsTheQueueFull) {
  World w({.queue_bytes = 250});
  for (int i = 0; i < 5; ++i) w.send(i);
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals.size(), 2u);
  EXPECT_EQ(w.pipe.counters().overflows, 3u);
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST(Pipe, HoldsWhatHasNotBegunWhilePaused) {
  World w({.delay = Duration::nanoseconds(100)});
  w.send(1);
  w.send(2);
  w.loop.run_until(at(4));  // the first is half out
  w.pipe.pause(w.loop.now());
  w.send(3);
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(108), 1}}));
  w.pipe.resume(w.loop.now());
  w.loop.run_until(at(2000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(108), 1}, {at(1108), 2}, {at(1116), 3}}));
}

TEST(Pipe, SendsNothingBeforeItIsReadyThoughAPauseEnds) {
  for (const bool before : {true, false}) {
    World w({.delay = Duration::nanoseconds(100)});
    if (before) w.pipe.pause(w.loop.now());
    Packet* const packet = w.pipe.take(82);
    packet->length = 76;  // 8 ns
    packet->data[0] = 7;
    w.pipe.send(w.loop.now(), at(500), packet);
    if (!before) w.pipe.pause(w.loop.now());
    w.loop.run_until(at(50));
    w.pipe.resume(w.loop.now());
    w.loop.run_until(at(2000));
    EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(608), 7}})) << before;
  }
}

TEST(Pipe, CutsAFramesTimeToWholePicoseconds) {
  World w({.bits_per_second = 3'000'000'000});
  EXPECT_EQ(w.pipe.wire_time(76), Duration::picoseconds(266'666));  // 800 bits
}

TEST(Pipe, HasAQueueToTheByte) {
  for (const auto& [queue, sent] : {std::pair{175, 1}, std::pair{176, 2}, std::pair{275, 2}, std::pair{276, 3}}) {
    World w({.queue_bytes = static_cast<std::uint64_t>(queue)});
    for (int i = 0; i < 5; ++i) w.send(i);
    w.loop.run_until(at(1000));
    EXPECT_EQ(w.sink.arrivals.size(), static_cast<std::size_t>(sent)) << queue;
  }
}

// At less than a megabit a second, too.
TEST(Pipe, HasAQueueAtAnyRate) {
  World w({.bits_per_second = 800'000, .queue_bytes = 250});  // 1 ms a frame
  for (int i = 0; i < 5; ++i) w.send(i);
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 200u);
  EXPECT_EQ(w.pipe.counters().overflows, 3u);
}

TEST(Pipe, CountsAsQueuedWhatItStillHasToSendAndWhatAPauseHolds) {
  World w({.delay = Duration::nanoseconds(100)});
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 0u);
  w.send(1);
  w.send(2);
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 200u);
  w.loop.run_until(at(4));
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 150u);
  w.pipe.pause(w.loop.now());
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 50u + 76u);  // of what is held the frames alone
  w.send(3);
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 50u + 2 * 76u);
  w.loop.run_until(at(50));
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 2 * 76u);
  w.pipe.resume(w.loop.now());
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 200u);
  w.loop.run_until(at(66));
  EXPECT_EQ(w.pipe.queued_bytes(w.loop.now()), 0u);
}

TEST(Pipe, FinishesWhatItHasBegunBeforeItGoesOnAfterAPause) {
  World w({.delay = Duration::nanoseconds(100)});
  w.send(1);
  w.send(2);
  w.loop.run_until(at(4));
  w.pipe.pause(w.loop.now());
  w.loop.run_until(at(5));
  w.pipe.resume(w.loop.now());
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(108), 1}, {at(116), 2}}));
}

TEST(Pipe, HoldsWhatWouldBeginAtTheInstantOfAPause) {
  World w({.delay = Duration::nanoseconds(100)});
  w.send(1);
  w.send(2);
  w.loop.run_until(at(8));
  w.pipe.pause(w.loop.now());
  w.pipe.pause(w.loop.now());
  w.loop.run_until(at(1000));
  EXPECT_EQ(w.sink.arrivals, (Arrivals{{at(108), 1}}));
  EXPECT_EQ(w.pipe.counters().pauses, 1u);
  World all({.delay = Duration::nanoseconds(100)});
  all.send(1);
  all.pipe.pause(all.loop.now());
  all.loop.run_until(at(1000));
  EXPECT_TRUE(all.sink.arrivals.empty());
  all.pipe.resume(all.loop.now());
  all.loop.run_until(at(2000));
  EXPECT_EQ(all.sink.arrivals, (Arrivals{{at(1108), 1}}));
}

TEST(Pipe, TellsOfEveryPacketOnceThatItHasLeft) {
  struct Left final : Pipe::Observer {
    void on_left(Time, const Packet& packet) override { names.push_back(packet.data[0]); }
    std::vector<int> names;
  } left;
  World full({.queue_bytes = 250});
  full.pipe.set_observer(&left);
  for (int i = 0; i < 4; ++i) full.send(i);
  EXPECT_EQ(left.names, (std::vector<int>{2, 3}));  // dropped
  full.loop.run_until(at(1000));
  EXPECT_EQ(left.names, (std::vector<int>{2, 3, 0, 1}));
  World lossy({.loss_per_million = 1'000'000});
  lossy.pipe.set_observer(&left);
  lossy.send(9);
  lossy.loop.run_until(at(1000));
  EXPECT_EQ(left.names.back(), 9);
  EXPECT_EQ(lossy.pipe.counters().lost, 1u);
}

TEST(Pipe, LosesTheShareItIsToldTo) {
  World w({.loss_per_million = 250'000});
  for (int i = 0; i < 4000; ++i) {
    w.send(i & 0xFF);
    w.loop.run_until(w.loop.now() + Duration::nanoseconds(100));
  }
  EXPECT_NEAR(static_cast<double>(w.pipe.counters().lost), 1000, 100);
  EXPECT_EQ(w.sink.arrivals.size() + w.pipe.counters().lost, 4000u);
}

// An ACK from one host to another, of `kAckBytes`; with ECN or without.
constexpr std::uint32_t kAckBytes = 62;
Packet* ack(Pipe& pipe, std::uint8_t traffic_class) {
  wire::AddressVector route;
  route.source = wire::Gid::from(wire::Ipv4Address{0x0A000001});
  route.destination = wire::Gid::from(wire::Ipv4Address{0x0A000002});
  route.traffic_class = traffic_class;
  const wire::HeaderTemplate headers(route);
  const std::size_t body = wire::Bth::kSize + wire::Aeth::kSize;
  Packet* const packet = pipe.take(headers.frame_size(body));
  headers.write(packet->data, body);
  wire::Bth{.opcode = wire::Opcode::kRcAcknowledge}.write(packet->data + headers.bth_offset());
  wire::Aeth{}.write(packet->data + headers.bth_offset() + wire::Bth::kSize);
  packet->length = static_cast<std::uint32_t>(headers.seal(packet->data, headers.bth_offset() + body));
  return packet;
}
constexpr std::uint8_t kEcnCapable = 2;
constexpr std::uint32_t kAckOnWire = kAckBytes + Pipe::kWireOverhead;

TEST(Pipe, MarksCapableFramesBehindAQueueThatIsLongerThanItMayBe) {
  constexpr std::uint64_t kTwo = 162;  // 13 whole nanoseconds of 100 Gb/s
  World w({.ecn_from = kTwo, .ecn_to = kTwo});
  for (int i = 0; i < 20; ++i) w.pipe.send(w.loop.now(), w.loop.now(), ack(w.pipe, kEcnCapable));
  w.loop.run_until(at(10'000));
  EXPECT_EQ(w.sink.last.size(), kAckBytes);
  EXPECT_EQ(w.pipe.counters().marked, 17u);  // the third finds just as much as may be
  wire::ParsedFrame parsed;
  ASSERT_EQ(wire::parse_and_verify(w.sink.last, parsed), wire::Verdict::kOk);
  EXPECT_EQ(parsed.ecn(), wire::Ecn::kCongestionExperienced);
}

TEST(Pipe, MarksNoFrameOfAFlowThatDoesNotKnowOfIt) {
  World w({.ecn_from = 1, .ecn_to = 1});
  for (int i = 0; i < 20; ++i) w.pipe.send(w.loop.now(), w.loop.now(), ack(w.pipe, 0));
  w.loop.run_until(at(10'000));
  EXPECT_EQ(w.pipe.counters().marked, 0u);
  wire::ParsedFrame parsed;
  EXPECT_EQ(wire::parse_and_verify(w.sink.last, parsed), wire::Verdict::kOk);
}

// Halfway between ecn_from and ecn_to half of the most.
TEST(Pipe, MarksAShareThatGrowsWithTheQueue) {
  World w({.ecn_from = 10 * kAckOnWire, .ecn_to = 30 * kAckOnWire, .ecn_most_per_million = 500'000});
  for (int i = 0; i < 20; ++i) w.pipe.send(w.loop.now(), w.loop.now(), ack(w.pipe, kEcnCapable));
  const std::uint64_t before = w.pipe.counters().marked;
  for (int i = 0; i < 4000; ++i) {
    w.pipe.send(w.loop.now(), w.loop.now(), ack(w.pipe, kEcnCapable));
    w.loop.run_until(w.loop.now() + w.pipe.wire_time(kAckBytes));
  }
  EXPECT_NEAR(static_cast<double>(w.pipe.counters().marked - before), 1000, 100);
}

}  // namespace
}  // namespace sluice::sim
