#include "swordbox/shard.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "wire/frame.h"

namespace sluice::swordbox {
namespace {

wire::Gid host(std::uint32_t n) { return wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + n}); }

std::uint32_t shard(const wire::Gid& from, const wire::Gid& to, wire::Opcode opcode, std::uint32_t shards) {
  wire::AddressVector route;
  route.source = from;
  route.destination = to;
  const wire::HeaderTemplate headers(route);
  const std::size_t extended = wire::opcode_traits(opcode).extended_length;
  std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + extended));
  const std::size_t at = headers.write(frame.data(), wire::Bth::kSize + extended);
  wire::Bth{.opcode = opcode, .destination = wire::Qpn(5)}.write(frame.data() + at);
  headers.seal(frame.data(), at + wire::Bth::kSize + extended);
  wire::ParsedFrame parsed;
  EXPECT_EQ(wire::parse(frame, parsed), wire::Verdict::kOk);
  return shard_of(frame.data(), parsed, shards);
}

TEST(Shard, IsOneForAllThatIsSaidToAndByAMemoryNode) {
  for (std::uint32_t node = 1; node < 40; ++node) {
    const std::uint32_t home = shard_of(NetAddress::from(host(node)), 4);
    ASSERT_LT(home, 4u);
    for (std::uint32_t client = 100; client < 110; ++client) {
      for (const wire::Opcode request : {wire::Opcode::kRcFetchAdd, wire::Opcode::kRcCompareSwap,
                                         wire::Opcode::kRcReadRequest, wire::Opcode::kRcWriteOnly}) {
        EXPECT_EQ(shard(host(client), host(node), request, 4), home);
      }
      for (const wire::Opcode answer :
           {wire::Opcode::kRcAcknowledge, wire::Opcode::kRcAtomicAcknowledge, wire::Opcode::kRcReadResponseOnly}) {
        EXPECT_EQ(shard(host(node), host(client), answer, 4), home);
      }
    }
  }
}

TEST(Shard, OfAnUnreliableWriteIsThatOfTheMemory) {
  EXPECT_EQ(shard(host(100), host(7), wire::Opcode::kUcWriteOnly, 4), shard_of(NetAddress::from(host(7)), 4));
}

TEST(Shard, OfManagementIsEveryOne) { EXPECT_EQ(shard(host(1), host(2), wire::Opcode::kUdSendOnly, 4), kEveryShard); }

TEST(Shard, SpreadsNodesEvenly) {
  std::array<int, 4> nodes{};
  for (std::uint32_t node = 0; node < 4000; ++node) ++nodes[shard_of(NetAddress::from(host(node)), 4)];
  for (const int n : nodes) EXPECT_NEAR(n, 1000, 120);
}

}  // namespace
}  // namespace sluice::swordbox
