// Ports on DPDK's af_packet, af_xdp and memif, in a network namespace that this program makes for itself: nothing outside is touched, and
// nothing is left behind. Needs root or unprivileged user namespaces; exits with 77 and says why where neither is to be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dpdk/dpdk_port.h"
#include "ports/open.h"
#include "tests/packet/own_namespace.h"

namespace sluice::dpdk {
namespace {

using packet_tests::run;
using port::Frame;
using port::Port;
using testing::HasSubstr;

// Ethernet and a type that nobody answers to; then bytes that tell the frame's number.
std::vector<std::uint8_t> frame_of(std::size_t length, std::uint8_t number) {
  std::vector<std::uint8_t> frame(length);
  const std::array<std::uint8_t, 14> ethernet{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5};
  for (std::size_t i = 0; i < length; ++i) {
    frame[i] = i < ethernet.size() ? ethernet[i] : static_cast<std::uint8_t>(number + i);
  }
  return frame;
}

class DeviceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    add_port_kind();
    run("ip link add near type veth peer name far && ip link set near addrgenmode none && ip link set far addrgenmode "
        "none && "
        "ip link set near up && ip link set far up");
  }
  static std::unique_ptr<Port> open(const std::string& spec) {
    auto port = ports::open_port(spec);
    // The kernel gives an XDP socket's queue free a little after it is closed.
    for (int tries = 0; !port && tries < 100 && spec.starts_with("dpdk:af_xdp"); ++tries) {
      usleep(20'000);
      port = ports::open_port(spec);
    }
    EXPECT_TRUE(port) << port.error().message;
    return port ? std::move(*port) : nullptr;
  }
  static bool send(Port& port, const std::vector<std::uint8_t>& frame) {
    std::uint8_t* room = port::reserve_at_once(port, frame.size());
    if (room == nullptr) return false;
    std::copy(frame.begin(), frame.end(), room);
    port.commit(frame.size());
    return true;
  }
  Time now() const { return Time::at(Duration::nanoseconds((std::chrono::steady_clock::now() - start_).count())); }
  // All frames arrive at the other end, as they were and in order.
  void cross(Port& from, Port& to, const std::vector<std::size_t>& lengths) {
    std::vector<std::vector<std::uint8_t>> sent;
    std::vector<std::vector<std::uint8_t>> arrived;
    std::array<Frame, 16> burst;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sent.push_back(frame_of(lengths[i], static_cast<std::uint8_t>(i)));
      ASSERT_TRUE(send(from, sent.back())) << i;
      if (i % 8 == 7) from.flush(now());
    }
    for (const Time end = now() + Duration::seconds(10); arrived.size() < sent.size() && now() < end;) {
      from.flush(now());
      for (const auto& frame : std::span(burst).first(to.receive(now(), burst))) {
        arrived.emplace_back(frame.data, frame.data + frame.length);
      }
    }
    ASSERT_EQ(arrived.size(), sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(arrived[i], sent[i]) << "frame " << i;
  }
  void turn_until(Port& port, port::PortState state) {
    std::array<Frame, 16> burst;
    for (const Time end = now() + Duration::seconds(10); port.state() != state && now() < end; usleep(1000)) {
      port.receive(now(), burst);
    }
    ASSERT_EQ(port.state(), state);
  }
  // Nobody takes frames from it any more.
  void expect_drops(Port& port) {
    std::array<Frame, 16> burst;
    for (const Time end = now() + Duration::seconds(10); port.state() == port::PortState::kUp && now() < end;) {
      for (int i = 0; i < 10; ++i) send(port, frame_of(64, 1));
      port.flush(now());
      port.receive(now(), burst);
      usleep(1000);
    }
    EXPECT_EQ(port.state(), port::PortState::kDown);
    EXPECT_EQ(port.counters().resets, 1u);
    const auto before = port.counters().tx_dropped;
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(send(port, frame_of(64, 1))) << i;
    port.flush(now());
    EXPECT_EQ(port.counters().tx_dropped, before + 1000);
  }
  static std::vector<std::size_t> lengths(std::size_t most) {
    std::vector<std::size_t> all;
    for (std::size_t length = 60; length <= most; length += 37) all.push_back(length);
    return all;
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST_F(DeviceTest, AfPacketCarriesFramesBothWays) {
  const auto dpdk = open("dpdk:af_packet,iface=near");
  const auto packet = open("packet:far,filter=all");
  ASSERT_TRUE(dpdk && packet);
  cross(*packet, *dpdk, lengths(1514));
  cross(*dpdk, *packet, lengths(1514));
}

TEST_F(DeviceTest, WhatTheUserSaysOfItsRingsReachesTheDriver) {
  EXPECT_FALSE(ports::open_port("dpdk:af_packet,iface=near,blocksz=12345")) << "no multiple of a page";
}

TEST_F(DeviceTest, AfPacketCarriesTheLongestFrame) {
  run("ip link set near mtu 9000 && ip link set far mtu 9000");
  const auto dpdk = open("dpdk:af_packet,iface=near");
  const auto packet = open("packet:far,filter=all");
  ASSERT_TRUE(dpdk && packet);
  cross(*packet, *dpdk, {port::kMaxFrame, 60, port::kMaxFrame});
  cross(*dpdk, *packet, {port::kMaxFrame, 60, port::kMaxFrame});
  run("ip link set near mtu 1500 && ip link set far mtu 1500");
}

TEST_F(DeviceTest, TakesFramesForAnInterfaceThatIsDownAndDropsThem) {
  const auto dpdk = open("dpdk:af_packet,iface=near");
  const auto packet = open("packet:far,filter=all");
  ASSERT_TRUE(dpdk && packet);
  run("ip link set near down");
  expect_drops(*dpdk);
  run("ip link set near up");
  turn_until(*dpdk, port::PortState::kUp);
  // Nothing of what was sent meanwhile is among them.
  cross(*dpdk, *packet, lengths(1514));
  cross(*packet, *dpdk, lengths(1514));
}

TEST_F(DeviceTest, FindsItsInterfaceAgainWhenItIsMadeAnew) {
  for (const std::string driver : {"af_packet", "af_xdp"}) {
    run("ip link add one type veth peer name two && ip link set one addrgenmode none && ip link set two addrgenmode "
        "none && ip link set one up && ip link set two up");
    const auto dpdk = open("dpdk:" + driver + ",iface=one");
    ASSERT_NE(dpdk, nullptr);
    run("ip link del one");
    expect_drops(*dpdk);
    run("ip link add one type veth peer name two && ip link set one addrgenmode none && ip link set two addrgenmode "
        "none && ip link set one up && ip link set two up");
    turn_until(*dpdk, port::PortState::kUp);
    const auto packet = open("packet:two,filter=all");
    ASSERT_NE(packet, nullptr);
    cross(*packet, *dpdk, lengths(1514));
    cross(*dpdk, *packet, lengths(1514));
    EXPECT_EQ(dpdk->counters().resets, 1u);
    run("ip link del one");
  }
}

TEST_F(DeviceTest, AfXdpCarriesFramesBothWays) {
  const auto dpdk = open("dpdk:af_xdp,iface=near");
  ASSERT_NE(dpdk, nullptr);
  const auto packet = open("packet:far,filter=all");
  ASSERT_NE(packet, nullptr);
  cross(*packet, *dpdk, lengths(1514));
  cross(*dpdk, *packet, lengths(1514));
}

TEST_F(DeviceTest, AfXdpCountsWhatIsTooLongForItsBuffers) {
  run("ip link set near mtu 1774 && ip link set far mtu 1774");
  const auto dpdk = open("dpdk:af_xdp,iface=near");
  const auto packet = open("packet:far,filter=all");
  ASSERT_TRUE(dpdk && packet);
  cross(*packet, *dpdk, {1700, 1788});
  run("ip link set far mtu 3000 && ip link set near mtu 3000");
  std::array<Frame, 16> burst;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*packet, frame_of(1793, 1)));
  packet->flush(now());
  for (const Time end = now() + Duration::seconds(10); dpdk->counters().rx_lost < 3 && now() < end;) {
    EXPECT_EQ(dpdk->receive(now(), burst), 0u);
  }
  EXPECT_EQ(dpdk->counters().rx_lost, 3u);
  run("ip link set near mtu 1500 && ip link set far mtu 1500");
}

TEST_F(DeviceTest, SaysWhatAnInterfaceLacksForXdp) {
  const auto refusal = [](const std::string& interface) {
    const auto port = ports::open_port("dpdk:af_xdp,iface=" + interface);
    return port ? std::string() : port.error().message;
  };
  run("ip link add wide numrxqueues 2 numtxqueues 2 type veth peer name wide_peer numrxqueues 2 numtxqueues 2 && "
      "ip link set wide up && ip link set wide_peer up");
  EXPECT_THAT(refusal("wide"), HasSubstr("`ethtool -L wide combined 1` first"));
  EXPECT_NE(open("dpdk:af_xdp,iface=wide,start_queue=1"), nullptr);
  run("ip link del wide");
  run("ip link set near mtu 4200");
  EXPECT_THAT(refusal("near"), HasSubstr("`ip link set near mtu 1774` or less"));
  run("ip link set near mtu 1500 && ip link set near down");
  EXPECT_THAT(refusal("near"), HasSubstr("`ip link set near up` first"));
  run("ip link set near up");
  EXPECT_NE(open("dpdk:af_xdp,iface=near"), nullptr);
}

class MemifTest : public DeviceTest {
 protected:
  static void SetUpTestSuite() { add_port_kind(); }
  ~MemifTest() override { unlink(socket_.c_str()); }
  std::unique_ptr<Port> end(const std::string& role) const {
    return open("dpdk:memif,role=" + role + ",id=0,socket-abstract=no,socket=" + socket_);
  }
  // They find each other in threads of DPDK's own; until then what is sent is lost.
  void join(Port& client, Port& server) {
    std::array<Frame, 16> burst;
    bool joined = false;
    for (const Time end = now() + Duration::seconds(10); !joined && now() < end;) {
      if (!send(client, frame_of(64, 0))) client.flush(now());
      client.flush(now());
      joined = server.receive(now(), burst) != 0;
      usleep(1000);
    }
    ASSERT_TRUE(joined);
    for (int quiet = 0; quiet < 100; ++quiet) {
      client.flush(now());
      if (server.receive(now(), burst) != 0) quiet = 0;
    }
  }

  std::string socket_ = "/tmp/sluice_memif_" + std::to_string(getpid()) + ".sock";
};

TEST_F(MemifTest, CarriesFramesBothWays) {
  const auto server = end("server");
  ASSERT_NE(server, nullptr);
  const auto client = end("client");
  ASSERT_NE(client, nullptr);
  join(*client, *server);
  cross(*client, *server, lengths(1514));
  cross(*server, *client, lengths(1514));
}

TEST_F(MemifTest, TakesFramesForAPeerThatIsGoneAndDropsThem) {
  const auto server = end("server");
  ASSERT_NE(server, nullptr);
  auto client = end("client");
  ASSERT_NE(client, nullptr);
  join(*client, *server);
  EXPECT_EQ(server->state(), port::PortState::kUp);
  client.reset();
  expect_drops(*server);
  client = end("client");
  ASSERT_NE(client, nullptr);
  join(*client, *server);
  EXPECT_EQ(server->state(), port::PortState::kUp);
  cross(*server, *client, lengths(1514));
}

}  // namespace
}  // namespace sluice::dpdk

int main(int argc, char** argv) { return sluice::packet_tests::run_all_in_own_namespace(argc, argv); }
