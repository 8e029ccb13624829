#include "ports/interface_address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::ports {
namespace {

constexpr std::uint16_t kRocePort = 4791;

// What comes of a datagram to port 4791: the kernel's refusal (ECONNREFUSED, by ICMP), or nothing within `patience_ms`: 0.
int answer_from(std::uint32_t ip, int patience_ms) {
  Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kRocePort);
  to.sin_addr.s_addr = htonl(ip);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(send(socket.get(), "x", 1, 0), 1);
  pollfd ready{socket.get(), POLLIN, 0};
  if (poll(&ready, 1, patience_ms) == 0) return 0;
  char byte = 0;
  return recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 ? errno : 0;
}

TEST(InterfaceAddress, IsWhatTheKernelHasThere) {
  const auto loopback = address_of_interface("lo");
  if (!loopback) GTEST_SKIP() << loopback.error().message;
  EXPECT_EQ(loopback->ip.value >> 24, 127u);
  EXPECT_EQ(loopback->mac, wire::MacAddress{});
  EXPECT_THAT(address_of_interface("none-such").error().message, testing::HasSubstr("none-such"));
}

TEST(KeepKernelQuiet, AsLongAsItLasts) {
  const std::uint32_t ours =
      0x7F40'0000 | (static_cast<std::uint32_t>(getpid()) & 0x3F'FFFF);  // 127.64.0.0/10: lo has it, no other test
  if (answer_from(ours, 5000) != ECONNREFUSED) GTEST_SKIP() << "another has the port, or there is no loopback";
  {
    const Descriptor quiet = keep_kernel_quiet({ours});
    ASSERT_TRUE(quiet);
    EXPECT_TRUE(keep_kernel_quiet({ours})) << "a second NIC may say so too";
    EXPECT_EQ(answer_from(ours, 200), 0);
  }
  EXPECT_EQ(answer_from(ours, 5000), ECONNREFUSED);
}

TEST(KeepKernelQuiet, HasNothingToDoForAnAddressOfOurOwn) {
  EXPECT_FALSE(keep_kernel_quiet({0xC000'0201}));
}  // 192.0.2.1

}  // namespace
}  // namespace sluice::ports
