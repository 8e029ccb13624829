// The rack's switch: as many ports as there are machines.
#include "sim/world/switch.h"

#include <gtest/gtest.h>

#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

class Sink final : public Consumer {
 public:
  explicit Sink(PacketPool& pool) : pool_(pool) {}
  void on_packet(Time, Packet* packet) override {
    ++packets;
    pool_.give_back(packet);
  }
  int packets = 0;

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

}  // namespace
}  // namespace sluice::sim
