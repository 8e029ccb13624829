#include "rack/switch/switch_ports.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "port/listener.h"
#include "port/memory_port.h"
#include "wire/ethernet.h"

namespace sluice::rack {
namespace {

class PortWithCounts : public port::Port {
 public:
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
  bool flush_some(Time) override { return false; }
  void discard() override {}
  std::size_t receive(Time, std::span<port::Frame>) override { return 0; }
  const port::PortCounters& counters() const override { return counts; }
  std::string name() const override { return "counts"; }

  port::PortCounters counts;
};

TEST(SwitchPorts, WhatIsLostInAPortIsAmongItsDrops) {
  nic::PollLoop loop;
  SwitchPorts ports({}, loop);
  auto port = std::make_unique<PortWithCounts>();
  port->counts = {.rx_malformed = 3, .tx_dropped = 5, .tx_discarded = 4, .rx_lost = 7, .resets = 2};
  ASSERT_TRUE(ports.add_port(std::move(port)));
  const SwitchReport report = ports.report(loop.now());
  const auto shown = nlohmann::json::parse(report.to_json())["ports"][0];
  EXPECT_EQ(shown["drops"],
            nlohmann::json(
                {{"malformed", 3}, {"lost on the way out", 5}, {"switch was stopped", 4}, {"lost on arrival", 7}}));
  EXPECT_EQ(shown["resets"], 2);
  telemetry::MetricSet metrics;
  report.collect(metrics, {});
  const std::string text = metrics.text();
  EXPECT_NE(text.find(R"(port_dropped_total{port="0",node="",reason="lost on the way out"} 5)"), std::string::npos)
      << text;
}

TEST(SwitchPorts, TellsOfAddressesThatMoveAndOfFramesOfNoPort) {
  nic::PollLoop loop;
  SwitchPorts ports({}, loop);
  std::array<std::uint8_t, 60> bytes{};
  wire::EthernetHeader{.destination = wire::MacAddress::broadcast(), .source = wire::MacAddress{{2, 0, 0, 0, 0, 9}}}
      .write(bytes.data());
  for (const std::uint16_t number : std::array<std::uint16_t, 2>{0, 1}) {
    ASSERT_TRUE(ports.add_port(std::make_unique<PortWithCounts>()));
    port::Frame frame{bytes.data(), bytes.size()};
    ports.machine().process(loop.now(), switching::PortNumber{number}, {&frame, 1});
  }
  ports.machine().forward_made(loop.now(), {bytes.data(), 5});
  telemetry::MetricSet metrics;
  ports.report(loop.now()).collect(metrics, {});
  for (const char* const line :
       {"switch_addresses_moved_total 1\n", "switch_addresses_replaced_total 0\n", "switch_addresses_refused_total 0\n",
        "switch_strays_dropped_total{reason=\"runt\"} 1\n"}) {
    EXPECT_NE(metrics.text().find(line), std::string::npos) << line << metrics.text();
  }
}

// Its end is gone, and some frames of it are still there.
class PortWithLastWords final : public PortWithCounts {
 public:
  explicit PortWithLastWords(std::size_t frames) : left_(frames) {}
  port::PortState state() const override { return port::PortState::kDown; }
  std::size_t receive(Time, std::span<port::Frame> burst) override {
    const std::size_t count = std::min(left_, burst.size());
    left_ -= count;
    for (port::Frame& frame : burst.first(count)) {
      wire::EthernetHeader{.destination = wire::MacAddress::broadcast(),
                           .source = wire::MacAddress{{2, 0, 0, 0, 0, 9}},
                           .ether_type = wire::kEtherTypeArp}
          .write(bytes_.data());
      frame = {bytes_.data(), static_cast<std::uint32_t>(bytes_.size())};
    }
    return count;
  }

 private:
  std::size_t left_;
  std::array<std::uint8_t, 64> bytes_{};
};

class ListenerWithOne final : public port::Listener {
 public:
  explicit ListenerWithOne(std::unique_ptr<port::Port> port) : port_(std::move(port)) {}
  std::unique_ptr<port::Port> accept(Time) override { return std::move(port_); }
  int wait_descriptor() const override { return -1; }
  std::uint64_t refused() const override { return 0; }
  std::string name() const override { return "one"; }

 private:
  std::unique_ptr<port::Port> port_;
};

TEST(SwitchPorts, WhatAnEndSentBeforeItWentIsTakenBeforeItsPortGoes) {
  for (const auto& [frames, taken] : {std::pair{200u, 200u}, {1'000'000u, 6'500u}}) {
    nic::PollLoop loop;
    SwitchPorts ports({}, loop);
    ports.add_listener(std::make_unique<ListenerWithOne>(std::make_unique<PortWithLastWords>(frames)));
    auto reader = port::make_memory_cable(8192);
    port::Port& way_out = *reader.a;
    ASSERT_TRUE(ports.add_port(std::move(reader.a)));
    std::array<port::Frame, 64> burst;
    std::size_t got = 0;
    Time now = Time::at(Duration::seconds(1));
    for (int turn = 0; turn < 200 && (turn == 0 || ports.ports() == 2); ++turn, now = now + Duration::milliseconds(1)) {
      ports.poll(now);
      ports.transmit(now);
      way_out.flush(now);
      for (std::size_t n = 0; (n = reader.b->receive(now, burst)) != 0;) got += n;
    }
    EXPECT_EQ(ports.ports(), 1u);
    EXPECT_GE(got, taken == 200 ? taken : 1u);
    EXPECT_LE(got, taken) << "not for ever";
  }
}

TEST(SwitchPorts, AFullWayOutLeavesTheCoreToOthers) {
  constexpr std::size_t kFrame = 64;
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
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 3; }));
  const SwitchReport report = ports.report(loop.now());
  EXPECT_GT(report.ports[1].queued_bytes, 0u) << "it was meant to be full";
  EXPECT_LT(loop.counters().busy_turns, 10u);
  EXPECT_GE(loop.now().since_start(), nic::HeldUp::kPatience) << "at first it only yields: nobody would wake it";
  loop.remove(ports);
}

}  // namespace
}  // namespace sluice::rack
