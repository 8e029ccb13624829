#include "ports/udp_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace sluice::ports {
namespace {

constexpr std::size_t kDatagram = 1472;
constexpr std::size_t kDatagrams = 8;

class UdpSocketTest : public testing::Test {
 protected:
  UdpSocketTest()
      : receiver_(UdpSocket::bind(resolve({"127.0.0.1", 0}).value()).value()),
        sender_(UdpSocket::bind(resolve({"127.0.0.1", 0}).value()).value()),
        bytes_(UdpSocket::kBuffer) {}

  // How many datagrams came, and in how many pieces. Loopback hands a train over whole.
  std::pair<std::size_t, std::size_t> send_a_train() {
    ContainerTrain train(1 << 16);
    train.set_datagram(kDatagram, Padding::kToFullSize);
    for (std::size_t i = 0; i < kDatagrams; ++i) {
      std::fill_n(train.reserve(1000), 1000, std::uint8_t{7});
      train.commit(1000);
    }
    train.close({.kind = ContainerKind::kData, .sender = SessionId(7), .receiver = SessionId(9)});
    EXPECT_EQ(train.datagrams().size(), kDatagrams);
    const auto to = receiver_.local();
    const auto sent = sender_.send(train, &to);
    EXPECT_EQ(sent.datagrams, kDatagrams);
    EXPECT_EQ(sent.status, UdpSocket::SendStatus::kSent);
    std::size_t datagrams = 0, pieces = 0;
    std::array<std::uint8_t*, 1> buffer{bytes_.data()};
    for (auto got = receiver_.receive(buffer); !got.empty(); got = receiver_.receive(buffer)) {
      datagrams += (got[0].length + got[0].segment - 1) / got[0].segment;
      ++pieces;
    }
    return {datagrams, pieces};
  }
  // What a path of a small MTU says of trains, EINVAL, the kernel also says of those that go without a checksum.
  void refuse_trains(bool on) {
    const int value = on ? 1 : 0;
    ASSERT_EQ(setsockopt(sender_.descriptor(), SOL_SOCKET, SO_NO_CHECK, &value, sizeof value), 0);
  }

  UdpSocket receiver_;
  UdpSocket sender_;
  std::vector<std::uint8_t> bytes_;
};

TEST_F(UdpSocketTest, ATrainThatIsRefusedGoesApartAndTheNextIsTriedAgain) {
  if (send_a_train() != std::pair(kDatagrams, std::size_t{1})) GTEST_SKIP() << "this kernel takes no trains";
  refuse_trains(true);
  EXPECT_EQ(send_a_train(), std::pair(kDatagrams, kDatagrams));
  EXPECT_EQ(send_a_train(), std::pair(kDatagrams, kDatagrams));
  refuse_trains(false);
  EXPECT_EQ(send_a_train(), std::pair(kDatagrams, std::size_t{1}));
}

}  // namespace
}  // namespace sluice::ports
