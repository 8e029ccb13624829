#include "rack/clients/cache_end.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice::rack {
namespace {

TEST(CacheEnd, ClientsOfDifferentLivesOfAReplicaHaveDifferentAddresses) {
  constexpr std::uint64_t kClients = 16;
  constexpr int kLives = 100;
  std::set<std::uint32_t> addresses;
  for (int life = 0; life < kLives; ++life) {
    const std::uint64_t first = draw_first_number(kClients);
    EXPECT_GE(first, 1u);
    addresses.insert(address_of_client(first).value);
    EXPECT_LE(address_of_client(first + kClients - 1).value, 0x0A4D'FCFFu);
  }
  EXPECT_GT(addresses.size(), kLives * 9 / 10) << "of 32,000, hardly any twice";
  EXPECT_EQ(address_of_client(1).to_string(), "10.77.128.1");
  EXPECT_GE(draw_first_number(16'384), 1u) << "as many as a replica may have";
  EXPECT_EQ(draw_first_number(65'536), 1u) << "as many as a target of 1RMA may have";
  EXPECT_EQ(address_of_client(31'999).to_string(), "10.77.252.255");
  EXPECT_EQ(address_of_client(32'000), address_of_client(1));
}

}  // namespace
}  // namespace sluice::rack
