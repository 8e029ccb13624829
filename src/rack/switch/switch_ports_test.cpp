#include "rack/switch/switch_ports.h"

#include <gtest/gtest.h>

#include "port/memory_port.h"
#include "wire/ethernet.h"

namespace sluice::rack {
namespace {

TEST(SwitchPorts, AFullWayOutLeavesTheCoreToOthers) {
  constexpr std::size_t kFrame = 64;
  constexpr std::uint64_t kTurns = 10'000;
  nic::PollLoop loop;
  SwitchPorts ports({}, loop);
  auto sender = port::make_memory_cable(16);
  auto reader = port::make_memory_cable(4);  // never reads
  ASSERT_TRUE(ports.add_port(std::move(sender.a)));
  ASSERT_TRUE(ports.add_port(std::move(reader.a)));
  loop.add(ports);
  for (int i = 0; i < 8; ++i) {
    std::uint8_t* const frame = sender.b->reserve(kFrame);
    std::fill_n(frame, kFrame, std::uint8_t{0});
    wire::EthernetHeader{.destination = wire::MacAddress::broadcast(),
                         .source = wire::MacAddress{{2, 0, 0, 0, 0, 9}},
                         .ether_type = wire::kEtherTypeArp}
        .write(frame);
    sender.b->commit(kFrame);
  }
  sender.b->flush(loop.now());
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().turns == kTurns; }));
  const SwitchReport report = ports.report(loop.now());
  EXPECT_GT(report.ports[1].queued_bytes, 0u) << "it was meant to be full";
  EXPECT_GT(loop.counters().yields, kTurns / 100);
  EXPECT_LT(loop.counters().busy_turns, 10u);
  EXPECT_EQ(loop.counters().sleeps, 0u) << "nobody would wake it";
  loop.remove(ports);
}

}  // namespace
}  // namespace sluice::rack
