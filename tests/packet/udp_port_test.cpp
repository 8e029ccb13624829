// The UDP port among machines of which one is gone, on a veth pair, in a network namespace that this program makes for itself: nothing
// outside is touched, and nothing is left behind. Needs root or unprivileged user namespaces; exits with 77 and says why where neither is to
// be had.
#include "ports/udp_port.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "ports/packet_port.h"
#include "tests/packet/own_namespace.h"
#include "wire/ip.h"

namespace sluice::ports {
namespace {

using packet_tests::run;
using port::Port;

bool send(Port& port, ByteView frame) {
  std::uint8_t* room = port.reserve(frame.size());
  if (room == nullptr) return false;
  std::copy(frame.begin(), frame.end(), room);
  port.commit(frame.size());
  return true;
}

// A hello from 10.9.9.9, where nobody is, to 10.9.9.1.
std::vector<std::uint8_t> hello_from_nowhere(std::uint16_t to) {
  constexpr std::size_t kIp = 14;
  constexpr std::size_t kUdp = kIp + wire::Ipv4Header::kSize;
  constexpr std::size_t kHello = kUdp + wire::UdpHeader::kSize;
  std::vector<std::uint8_t> frame(kHello + kContainerHeader, 0);
  std::fill_n(frame.begin(), 6, std::uint8_t{0xFF});
  frame[6] = 2;
  store_be<std::uint16_t>(frame.data() + 12, 0x0800);
  wire::Ipv4Header{.total_length = static_cast<std::uint16_t>(frame.size() - kIp),
                   .source = {0x0A09'0909},
                   .destination = {0x0A09'0901}}
      .write(frame.data() + kIp);
  store_be(frame.data() + kIp + 10, wire::ipv4_checksum(frame.data() + kIp));
  wire::UdpHeader{.source_port = 7000,
                  .destination_port = to,
                  .length = static_cast<std::uint16_t>(wire::UdpHeader::kSize + kContainerHeader)}
      .write(frame.data() + kUdp);
  ContainerHeader{.kind = ContainerKind::kHello, .sender = SessionId(77), .receiver = {}}.write(frame.data() + kHello);
  return frame;
}

class UdpPortTest : public testing::Test {
 protected:
  void TearDown() override { run("ip link del near"); }
  void SetUp() override {
    run("ip link add near type veth peer name far && ip link set near addrgenmode none && ip link set far addrgenmode "
        "none && "
        "ip addr add 10.9.9.1/24 dev near && ip link set near up && ip link set far up && "
        "ip ntable change name arp_cache dev near retrans 10 mcast_probes 1");
  }
  Time now() const { return Time::at(Duration::nanoseconds((std::chrono::steady_clock::now() - start_).count())); }
  bool until(const std::function<bool()>& done) const {
    for (const Time end = now() + Duration::seconds(15); now() < end;) {
      if (done()) return true;
    }
    return false;
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::array<port::Frame, 32> burst_;
};

TEST_F(UdpPortTest, LosesNothingOnTheWayToOneBecauseAnotherIsGone) {
  const auto listener = UdpListener::listen({"10.9.9.1", 0}).value();
  const auto far = PacketPort::open("far", PacketFilter::kAll).value();
  ASSERT_TRUE(send(*far, hello_from_nowhere(listener->port_number())));
  far->flush(now());
  std::unique_ptr<Port> gone;
  ASSERT_TRUE(until([&] { return (gone = listener->accept(now())) != nullptr; }));

  const auto caller = UdpPort::connect({"10.9.9.1", listener->port_number()}).value();
  std::unique_ptr<Port> here;
  ASSERT_TRUE(until([&] {
    caller->receive(now(), burst_);
    if (!here) here = listener->accept(now());
    return here && caller->state() == port::PortState::kUp;
  }));
  const std::vector<std::uint8_t> frame(1000, 1);
  std::size_t arrived = 0;
  std::size_t sent = 0;
  for (const Time end = now() + Duration::seconds(2); now() < end; ++sent) {
    ASSERT_TRUE(send(*gone, frame));
    gone->flush(now());
    ASSERT_TRUE(send(*here, frame));
    here->flush(now());
    EXPECT_TRUE(until([&] {
      arrived += caller->receive(now(), burst_);
      return arrived == sent + 1 || here->counters().tx_dropped != 0;
    }));
    ASSERT_EQ(here->counters().tx_dropped, 0u) << "after " << sent;
  }
  EXPECT_EQ(arrived, sent);
}

TEST_F(UdpPortTest, CallsFromTheAddressThatItsMachineHasNow) {
  const auto source = [](const std::string& address) {
    run("ip addr add " + address + "/24 dev near && ip route replace table local local 10.8.8.1 dev lo src " + address);
  };
  run("ip addr add 10.8.8.1/32 dev lo");
  source("10.9.9.2");
  const auto listener = UdpListener::listen({"10.8.8.1", 0}).value();
  const auto caller = UdpPort::connect({"10.8.8.1", listener->port_number()}).value();
  std::vector<std::unique_ptr<Port>> accepted;
  const auto is_up = [&] {
    caller->receive(now(), burst_);
    for (const auto& port : accepted) port->receive(now(), burst_);
    if (auto port = listener->accept(now())) accepted.push_back(std::move(port));
    return caller->state() == port::PortState::kUp;
  };
  ASSERT_TRUE(until(is_up));
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_TRUE(accepted[0]->name().starts_with("udp:10.9.9.2:")) << accepted[0]->name();

  run("ip addr del 10.9.9.2/24 dev near");
  source("10.9.9.3");
  ASSERT_TRUE(until([&] { return is_up(), accepted.size() == 2; }));
  EXPECT_TRUE(accepted[1]->name().starts_with("udp:10.9.9.3:")) << accepted[1]->name();
  EXPECT_TRUE(until(is_up));
}

}  // namespace
}  // namespace sluice::ports

int main(int argc, char** argv) { return sluice::packet_tests::run_all_in_own_namespace(argc, argv); }
