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

TEST(Pipe, LosesTheShareItIsToldTo) {
  World w({.loss_per_million = 250'000});
  for (int i = 0; i < 4000; ++i) {
    w.send(i & 0xFF);
    w.loop.run_until(w.loop.now() + Duration::nanoseconds(100));
  }
  EXPECT_NEAR(static_cast<double>(w.pipe.counters().lost), 1000, 100);
  EXPECT_EQ(w.sink.arrivals.size() + w.pipe.counters().lost, 4000u);
}

TEST(Pipe, MarksCapableFramesBehindALongQueue) {
  World w({.ecn_from = 500, .ecn_to = 500});
  wire::AddressVector route;
  route.source = wire::Gid::from(wire::Ipv4Address{0x0A000001});
  route.destination = wire::Gid::from(wire::Ipv4Address{0x0A000002});
  route.traffic_class = 2;
  const wire::HeaderTemplate headers(route);
  for (int i = 0; i < 20; ++i) {
    const std::size_t body = wire::Bth::kSize + wire::Aeth::kSize;
    Packet* const packet = w.pipe.take(headers.frame_size(body));
    headers.write(packet->data, body);
    wire::Bth{.opcode = wire::Opcode::kRcAcknowledge}.write(packet->data + headers.bth_offset());
    wire::Aeth{}.write(packet->data + headers.bth_offset() + wire::Bth::kSize);
    packet->length = static_cast<std::uint32_t>(headers.seal(packet->data, headers.bth_offset() + body));
    w.pipe.send(w.loop.now(), w.loop.now(), packet);
  }
  w.loop.run_until(at(10'000));
  EXPECT_GT(w.pipe.counters().marked, 5u);
  EXPECT_LT(w.pipe.counters().marked, 20u);
  wire::ParsedFrame parsed;
  ASSERT_EQ(wire::parse_and_verify(w.sink.last, parsed), wire::Verdict::kOk);
  EXPECT_EQ(parsed.ecn(), wire::Ecn::kCongestionExperienced);
}

}  // namespace
}  // namespace sluice::sim
