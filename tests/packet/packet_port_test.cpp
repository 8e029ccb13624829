// The packet port on a veth pair, in a network namespace that this program makes for itself: nothing outside is touched, and
// nothing is left behind. Needs root or unprivileged user namespaces; exits with 77 and says why where neither is to be had.
#include "ports/packet_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "port/impaired.h"
#include "ports/interface_address.h"
#include "ports/open.h"
#include "tests/packet/own_namespace.h"

namespace sluice::ports {
namespace {

using packet_tests::run;
using port::Frame;
using port::Port;
using port::PortState;
using testing::HasSubstr;

// Without addresses of its own the kernel sends nothing by itself, such as neighbour discovery, between our frames.
const std::string kMakePair =
    "ip link add near type veth peer name far && ip link set near addrgenmode none && ip link set far addrgenmode none "
    "&& ";

// Ethernet + IPv4 + UDP to 4791 + payload; enough for the filter and for equality.
std::vector<std::uint8_t> roce_frame(std::size_t length, std::uint8_t fill, std::uint16_t udp_port = 4791) {
  std::vector<std::uint8_t> frame(length, fill);
  const std::array<std::uint8_t, 14> ethernet{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00};
  std::copy(ethernet.begin(), ethernet.end(), frame.begin());
  std::uint8_t* ip = frame.data() + 14;
  std::fill_n(ip, 28, std::uint8_t{0});
  ip[0] = 0x45;
  store_be<std::uint16_t>(ip + 2, static_cast<std::uint16_t>(length - 14));
  ip[8] = 64;
  ip[9] = 17;
  store_be<std::uint32_t>(ip + 12, 0x0A4D0001);
  store_be<std::uint32_t>(ip + 16, 0x0A4D0002);
  store_be<std::uint16_t>(ip + 20, 50'000);
  store_be<std::uint16_t>(ip + 22, udp_port);
  store_be<std::uint16_t>(ip + 24, static_cast<std::uint16_t>(length - 34));
  return frame;
}

bool send(Port& port, const std::vector<std::uint8_t>& frame) {
  std::uint8_t* room = port.reserve(frame.size());
  if (room == nullptr) return false;
  std::copy(frame.begin(), frame.end(), room);
  port.commit(frame.size());
  return true;
}

class PacketPortTest : public testing::Test {
 protected:
  void SetUp() override {
    run(kMakePair +
        "ip link set near mtu 9000 && ip link set far mtu 9000 && "
        "ip link set near up && ip link set far up");
    near_ = PacketPort::open("near").value();
    far_ = PacketPort::open("far").value();
  }
  void TearDown() override {
    near_.reset();
    far_.reset();
    std::system("ip link del near 2>/dev/null");
  }

  Time now() const { return Time::at(Duration::nanoseconds((std::chrono::steady_clock::now() - start_).count())); }
  // What arrives within a while, or until `enough` frames are there.
  std::vector<std::vector<std::uint8_t>> take(Port& port, std::size_t enough) {
    std::vector<std::vector<std::uint8_t>> all;
    std::array<Frame, 16> burst;
    for (const Time end = now() + Duration::seconds(5); all.size() < enough && now() < end;) {
      for (const auto& frame : std::span(burst).first(port.receive(now(), burst))) {
        all.emplace_back(frame.data, frame.data + frame.length);
      }
    }
    return all;
  }
  bool until(const std::function<bool()>& done) {
    for (const Time end = now() + Duration::seconds(5); now() < end;) {
      if (done()) return true;
    }
    return false;
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<PacketPort> near_;
  std::unique_ptr<PacketPort> far_;
};

TEST_F(PacketPortTest, CarriesFramesOfEveryLengthBothWays) {
  std::vector<std::vector<std::uint8_t>> sent;
  for (std::size_t length = 62; length <= port::kMaxFrame; length += 97) {
    sent.push_back(roce_frame(length, static_cast<std::uint8_t>(length)));
  }
  sent.push_back(roce_frame(port::kMaxFrame, 1));
  for (auto [from, to] : {std::pair{near_.get(), far_.get()}, std::pair{far_.get(), near_.get()}}) {
    for (const auto& frame : sent) ASSERT_TRUE(send(*from, frame));
    from->flush(now());
    EXPECT_EQ(take(*to, sent.size()), sent);
    EXPECT_EQ(from->counters().tx_dropped, 0u);
  }
}

TEST_F(PacketPortTest, ForgetsWhatIsDiscarded) {
  std::uint64_t discarded = 0;
  for (; send(*near_, roce_frame(4000, 1)); ++discarded) ASSERT_LT(discarded, 1000u);
  near_->discard();
  EXPECT_EQ(near_->counters().tx_discarded, discarded);
  ASSERT_TRUE(send(*near_, roce_frame(100, 2)));
  near_->flush(now());
  const auto got = take(*far_, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0], roce_frame(100, 2));
  near_->discard();
  EXPECT_EQ(near_->counters().tx_discarded, discarded);
}

TEST_F(PacketPortTest, GoesRoundItsRingManyTimes) {
  constexpr int kFrames = 10'000;  // five laps
  std::uint64_t wrong = 0;
  for (int number = 0; number < kFrames; number += 50) {
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(send(*near_, roce_frame(100, static_cast<std::uint8_t>(number + i))));
    near_->flush(now());
    const auto got = take(*far_, 50);
    ASSERT_EQ(got.size(), 50u);
    for (int i = 0; i < 50; ++i) {
      wrong += got[static_cast<std::size_t>(i)][80] == static_cast<std::uint8_t>(number + i) ? 0u : 1u;
    }
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(far_->counters().rx_lost, 0u);
}

TEST_F(PacketPortTest, SeesRoceAndAddressResolutionOnlyUnlessAskedForAll) {
  auto all = PacketPort::open("far", PacketFilter::kAll).value();
  auto arp = roce_frame(64, 0);
  store_be<std::uint16_t>(arp.data() + 12, 0x0806);
  auto foreign = roce_frame(64, 0);
  store_be<std::uint16_t>(foreign.data() + 12, 0x88B5);
  const auto other_port = roce_frame(64, 0, 4790);
  const auto roce = roce_frame(64, 9);
  const auto onerma = roce_frame(64, 9, 61444);
  for (const auto& frame : {foreign, other_port, arp, roce, onerma}) ASSERT_TRUE(send(*near_, frame));
  near_->flush(now());
  EXPECT_EQ(take(*far_, 3), (std::vector<std::vector<std::uint8_t>>{arp, roce, onerma}));
  std::size_t ours = 0;
  for (const auto& frame : take(*all, 4)) {
    ours += frame == foreign || frame == other_port || frame == arp || frame == roce ? 1u : 0u;
  }
  EXPECT_EQ(ours, 4u);
}

TEST_F(PacketPortTest, DoesNotHearItself) {
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  ASSERT_EQ(take(*far_, 1).size(), 1u);
  std::array<Frame, 4> burst;
  EXPECT_EQ(near_->receive(now(), burst), 0u);
}

TEST_F(PacketPortTest, GivesBackTheVlanTagThatTheKernelTookOff) {
  auto tagged = roce_frame(100, 3);
  const std::array<std::uint8_t, 4> tag{0x81, 0x00, 0x60, 0x2A};
  tagged.insert(tagged.begin() + 12, tag.begin(), tag.end());
  ASSERT_TRUE(send(*near_, tagged));
  near_->flush(now());
  const auto got = take(*far_, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0], tagged);
}

TEST_F(PacketPortTest, SleepsUntilAFrameComes) {
  std::array<Frame, 4> burst;
  pollfd entry{far_->wait_descriptor(), POLLIN, 0};
  far_->disarm();
  far_->receive(now(), burst);
  ASSERT_TRUE(far_->arm());
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  EXPECT_EQ(poll(&entry, 1, 5'000), 1);
  EXPECT_FALSE(far_->arm());
  far_->disarm();
  EXPECT_EQ(far_->receive(now(), burst), 1u);
  EXPECT_FALSE(far_->arm());  // its slot is still out
  EXPECT_EQ(far_->receive(now(), burst), 0u);
  ASSERT_TRUE(far_->arm());
  EXPECT_EQ(poll(&entry, 1, 0), 0);
}

TEST_F(PacketPortTest, TurnsDownWithItsInterfaceAndUpAgain) {
  std::array<Frame, 4> burst;
  run("ip link set far down");
  EXPECT_TRUE(until([&] { return far_->receive(now(), burst), far_->state() == PortState::kDown; }));
  EXPECT_EQ(far_->counters().resets, 1u);
  EXPECT_NE(far_->next_deadline(), Time::never());
  run("ip link set far up");
  EXPECT_TRUE(until([&] { return far_->receive(now(), burst), far_->state() == PortState::kUp; }));
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  EXPECT_EQ(take(*far_, 1).size(), 1u);
}

TEST_F(PacketPortTest, FindsItsInterfaceAgainWhenItIsMadeAnew) {
  std::array<Frame, 4> burst;
  run("ip link del near");
  EXPECT_TRUE(until([&] {
    near_->receive(now(), burst);
    far_->receive(now(), burst);
    return near_->state() == PortState::kDown && far_->state() == PortState::kDown;
  }));
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  EXPECT_EQ(near_->counters().tx_dropped, 1u);
  run(kMakePair + "ip link set near up && ip link set far up");
  EXPECT_TRUE(until([&] {
    near_->receive(now(), burst);
    far_->receive(now(), burst);
    return near_->state() == PortState::kUp && far_->state() == PortState::kUp;
  }));
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  EXPECT_EQ(take(*far_, 1).size(), 1u);
}

TEST_F(PacketPortTest, FindsItsInterfaceAgainThatComesBackUnderTheSameNumber) {
  const std::string number = std::to_string(if_nametoindex("near"));
  run("ip link del near && ip link add name near index " + number +
      " type veth peer name far && ip link set near addrgenmode none && ip link set far addrgenmode none && "
      "ip link set near up && ip link set far up");
  std::array<Frame, 4> burst;
  const Time settled = now() + Duration::milliseconds(300);
  EXPECT_TRUE(until([&] {
    near_->receive(now(), burst);
    far_->receive(now(), burst);
    return now() > settled && near_->state() == PortState::kUp && far_->state() == PortState::kUp;
  }));
  ASSERT_TRUE(send(*far_, roce_frame(64, 1)));
  far_->flush(now());
  EXPECT_EQ(take(*near_, 1).size(), 1u);
}

TEST_F(PacketPortTest, DropsAndCountsWhatTheInterfaceCannotCarry) {
  run("ip link set near mtu 1500");
  ASSERT_TRUE(send(*near_, roce_frame(4000, 1)));
  ASSERT_TRUE(send(*near_, roce_frame(1000, 2)));
  near_->flush(now());
  const auto got = take(*far_, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].size(), 1000u);
  EXPECT_EQ(near_->counters().tx_dropped, 1u);
}

// The kernel's own UDP on near, to far's RoCEv2 port.
class KernelUdp {
 public:
  KernelUdp() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    run("ip address add 10.77.0.1/24 dev near && ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev near");
    to_.sin_family = AF_INET;
    to_.sin_port = htons(4791);
    to_.sin_addr.s_addr = htonl(0x0A4D0002);
  }
  ~KernelUdp() { close(socket_); }
  KernelUdp(const KernelUdp&) = delete;
  KernelUdp& operator=(const KernelUdp&) = delete;

  int descriptor() const { return socket_; }
  ssize_t send(std::span<const std::uint8_t> payload) const {
    return sendto(socket_, payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&to_), sizeof to_);
  }

 private:
  int socket_;
  sockaddr_in to_{};
};

// What the kernel's own UDP sends as one train is one long frame on a veth, until it is told to cut it itself.
TEST_F(PacketPortTest, CountsUnsegmentedTrainsAndTakesThemSegmented) {
  const KernelUdp udp;
  const int segment = 1000;
  ASSERT_EQ(setsockopt(udp.descriptor(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
  const std::vector<std::uint8_t> payload(8000, 7);
  ASSERT_EQ(udp.send(payload), 8000) << std::strerror(errno);
  std::array<Frame, 16> burst;
  EXPECT_TRUE(until([&] { return far_->receive(now(), burst), far_->counters().rx_malformed == 1; }));
  if (std::system("ethtool -K near tx-udp-segmentation off >/dev/null 2>&1") == 0) {
    ASSERT_EQ(udp.send(payload), 8000);
    const auto got = take(*far_, 8);
    ASSERT_EQ(got.size(), 8u);
    for (const auto& frame : got) EXPECT_EQ(frame.size(), 1042u);
  }
}

// A veth leaves checksums to hardware that is not there.
TEST_F(PacketPortTest, FinishesChecksumsThatTheSenderLeftToHardware) {
  const KernelUdp udp;
  const std::array<std::uint8_t, 100> payload{1, 2, 3};
  ASSERT_EQ(udp.send(payload), 100);
  const auto got = take(*far_, 1);
  ASSERT_EQ(got.size(), 1u);
  ASSERT_EQ(got[0].size(), 142u);
  // Over pseudo header and all, the right checksum included, the sum is all ones.
  std::uint32_t sum = 17 + 108;
  for (std::size_t i = 26; i < got[0].size(); i += 2) sum += load_be<std::uint16_t>(got[0].data() + i);
  EXPECT_EQ(sum % 0xFFFF, 0u);
}

TEST_F(PacketPortTest, RefusesAnInterfaceWithoutEthernet) {
  if (std::system("ip tuntap add mode tun name tunnel 2>/dev/null && ip link set tunnel up") != 0) GTEST_SKIP();
  const auto port = PacketPort::open("tunnel");
  ASSERT_FALSE(port);
  EXPECT_THAT(port.error().message, HasSubstr("tunnel carries no Ethernet frames"));
  run("ip link del tunnel");
  run("ip link set lo up");
  EXPECT_TRUE(PacketPort::open("lo"));
}

TEST_F(PacketPortTest, HasThePathMtuThatItsInterfaceHolds) {
  for (const auto& [mtu, path_mtu] :
       {std::pair{9000, 4096u}, {4192, 4096u}, {4191, 2048u}, {1500, 1024u}, {352, 256u}}) {
    run("ip link set near mtu " + std::to_string(mtu));
    EXPECT_EQ(path_mtu_of_port("packet:near,filter=all").value_or(0), path_mtu) << mtu;
    EXPECT_EQ(path_mtu_of_port("dpdk:af_packet,iface=near").value_or(0), path_mtu) << mtu;
  }
  run("ip link set near mtu 351");
  EXPECT_FALSE(path_mtu_of_port("packet:near"));
  EXPECT_FALSE(path_mtu_of_port("packet:absent"));
  EXPECT_EQ(path_mtu_of_port("udp:10.0.0.1:7471").value_or(0), 4096u);
}

TEST_F(PacketPortTest, OpensFromTextWithImpairment) {
  auto port = open_port("packet:far,filter=all,impair(rx.drop=100%)").value();
  ASSERT_TRUE(send(*near_, roce_frame(64, 1)));
  near_->flush(now());
  std::array<Frame, 4> burst;
  const auto& done = dynamic_cast<port::ImpairedPort&>(*port).rx_impairments();
  EXPECT_TRUE(until([&] { return port->receive(now(), burst), done.dropped > 0; }));
  const auto absent = open_port("packet:absent");
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message, HasSubstr("this machine has"));
}

}  // namespace
}  // namespace sluice::ports

int main(int argc, char** argv) { return sluice::packet_tests::run_all_in_own_namespace(argc, argv); }
