// The rack's switch: as many ports as there are machines.
#include "sim/world/switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "sim/world/models_test.h"
#include "sim/world/roce_packet.h"

namespace sluice::sim {
namespace {

class Sink final : public Consumer {
 public:
  explicit Sink(PacketPool& pool) : pool_(pool) {}
  void on_packet(Time now, Packet* packet) override {
    ++packets;
    last = now;
    pool_.give_back(packet);
  }
  int packets = 0;
  Time last;

 private:
  PacketPool& pool_;
};

std::array<std::uint8_t, 6> mac_of(std::size_t number) {
  return {2, 0, 0, 0, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number & 0xFF)};
}

// Loads may have 1,024 machines of clients and those that serve them.
TEST(Switch, HasAPortForEachMachineOfALargeRack) {
  EventLoop loop;
  PacketPool pool;
  const Hardware hardware = connectx5();
  Switch net_switch(loop, pool, hardware.net_switch, hardware.link, 1);
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<Consumer*> ways;  // into the switch
  for (std::size_t i = 0; i < 1'200; ++i) {
    sinks.push_back(std::make_unique<Sink>(pool));
    ways.push_back(&net_switch.attach(*sinks.back(), mac_of(i).data()));
  }
  Packet* const packet = pool.take(64);
  packet->length = 64;
  std::ranges::copy(mac_of(1'199), packet->data);
  std::ranges::copy(mac_of(0), packet->data + 6);
  ways.front()->on_packet(loop.now(), packet);
  loop.run_until(Time::at(Duration::milliseconds(1)));
  EXPECT_EQ(sinks.back()->packets, 1);
  EXPECT_EQ(sinks[1]->packets, 0);
}

// Three machines whose ways in are ten times as fast as their ways out; 1,000 bytes take 819.2 ns and 500 of distance, then 8.192 us and 50.
struct Slow {
  explicit Slow(const SwitchParameters& parameters, bool priorities = false)
      : net_switch(loop, pool, parameters, {.bits_per_second = 1'000'000'000, .delay = Duration::nanoseconds(50)}, 1) {
    if (priorities) net_switch.set_priorities();
    for (std::size_t i = 0; i < 3; ++i) {
      sinks.push_back(std::make_unique<Sink>(pool));
      Consumer& in = net_switch.attach(*sinks.back(), mac_of(i).data());
      uplinks.push_back(std::make_unique<Pipe>(
          loop, pool, PipeParameters{.bits_per_second = 10'000'000'000, .delay = Duration::nanoseconds(500)}, in,
          Rng(1)));
      net_switch.set_uplink(*uplinks.back());
    }
  }
  void send(std::size_t from, std::size_t to, int count, bool roce = true) {
    for (int i = 0; i < count; ++i) {
      Packet* const packet = pool.take(1000);
      packet->length = 1000;
      std::fill_n(packet->data, 1000, std::uint8_t{0});
      std::ranges::copy(mac_of(to), packet->data);
      std::ranges::copy(mac_of(from), packet->data + 6);
      if (roce) store_be<std::uint16_t>(packet->data + kEtherTypeOffset, wire::kEtherTypeIpv4);
      if (roce) store_be<std::uint16_t>(packet->data + kUdpPortOffset, wire::kRoceUdpPort);
      uplinks[from]->send(loop.now(), loop.now(), packet);
    }
  }
  EventLoop loop;
  PacketPool pool;
  Switch net_switch;
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<std::unique_ptr<Pipe>> uplinks;
};

Time at(std::int64_t ns) { return Time::at(Duration::nanoseconds(ns)); }

TEST(Switch, TakesItsLatencyBeforeAWayOut) {
  Slow s({.pipeline_latency = Duration::nanoseconds(350), .queue_bytes = 1 << 20});
  s.send(0, 1, 1);
  s.loop.run_until(at(100'000));
  EXPECT_EQ(s.sinks[1]->packets, 1);
  EXPECT_EQ(s.sinks[1]->last, Time() + Duration::picoseconds(819'200 + 500'000 + 350'000 + 8'192'000 + 50'000));
}

TEST(Switch, PacketsWaitForAStageThatTakesItsTime) {
  struct Idle final : switching::Stage {
    void process(Time, std::span<switching::Packet>, port::FrameSink&) override {}
  } idle;
  Slow s({.queue_bytes = 1 << 20});
  s.net_switch.set_stage(&idle, Duration::microseconds(1));
  s.send(0, 2, 1);
  s.send(1, 0, 1);
  s.loop.run_until(at(100'000));
  const Time arrived = Time() + Duration::picoseconds(819'200 + 500'000);
  const Duration out = Duration::picoseconds(8'192'000 + 50'000);
  EXPECT_EQ(s.sinks[2]->last, arrived + Duration::microseconds(1) + out);
  EXPECT_EQ(s.sinks[0]->last, arrived + Duration::microseconds(2) + out);
}

TEST(Switch, DropsWhatFindsThePortsQueueFull) {
  Slow s({.queue_bytes = 4'500});
  s.send(0, 1, 20);
  s.loop.run_until(at(1'000'000));
  // Four at once, a fifth when most of the first is out, a sixth 8.192 us after it; then all have come.
  EXPECT_EQ(s.net_switch.out(1).overflows, 20u - static_cast<std::uint64_t>(s.sinks[1]->packets));
  EXPECT_EQ(s.sinks[1]->packets, 6);
  EXPECT_EQ(s.pool.in_flight(), s.net_switch.reserved());
}

TEST(Switch, PausesTheLinkForWhosePacketsItHoldsTooMuchAndNoOther) {
  Slow s({.queue_bytes = 1 << 20, .pause_from_bytes = 3'000, .pause_to_bytes = 1'000});
  s.send(0, 2, 3);
  s.loop.run_until(at(8'000));
  EXPECT_FALSE(s.uplinks[0]->paused());  // just as much as may be
  s.send(0, 2, 4);
  s.loop.run_until(at(8'100));
  EXPECT_FALSE(s.uplinks[0]->paused());
  s.loop.run_until(at(10'000));  // a fourth has come, and the first has left
  EXPECT_TRUE(s.uplinks[0]->paused());
  s.send(1, 2, 1);
  s.send(1, 0, 1);
  s.loop.run_until(at(12'000));
  EXPECT_TRUE(s.uplinks[0]->paused());
  EXPECT_FALSE(s.uplinks[1]->paused());
  EXPECT_FALSE(s.uplinks[2]->paused());
  s.loop.run_until(at(1'000'000));
  EXPECT_FALSE(s.uplinks[0]->paused());
  EXPECT_EQ(s.sinks[2]->packets, 8);
  EXPECT_EQ(s.net_switch.out(2).overflows, 0u);
}

TEST(Switch, LosesNothingWherePausesBeginInTimeAndGoesOnWhenSoLittleIsLeft) {
  Slow s({.queue_bytes = 10'000, .pause_from_bytes = 3'000, .pause_to_bytes = 1'000});
  s.send(0, 2, 41);
  s.loop.run_until(at(1'000'000));
  EXPECT_EQ(s.sinks[2]->packets, 41);
  EXPECT_EQ(s.net_switch.out(2).overflows, 0u);
  // Four have come and a fifth is on its way; then again each time that four have left.
  EXPECT_EQ(s.uplinks[0]->counters().pauses, 10u);
  // Nothing stands still meanwhile: the way out is never idle.
  EXPECT_EQ(s.sinks[2]->last, Time() + Duration::picoseconds(819'200 + 500'000 + 41 * 8'192'000 + 50'000));
}

TEST(Switch, LessUrgentPacketsHaveNoPartInPauses) {
  Slow s({.queue_bytes = 1 << 20, .pause_from_bytes = 3'000, .pause_to_bytes = 1'000}, true);
  s.send(0, 2, 41, false);
  s.loop.run_until(at(1'000'000));
  EXPECT_EQ(s.sinks[2]->packets, 41);
  s.send(0, 2, 1);
  s.loop.run_until(at(2'000'000));
  EXPECT_EQ(s.sinks[2]->packets, 42);
  EXPECT_EQ(s.uplinks[0]->counters().pauses, 0u);
}

}  // namespace
}  // namespace sluice::sim
