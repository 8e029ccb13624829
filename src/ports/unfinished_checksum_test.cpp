#include "ports/unfinished_checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace sluice::ports {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes from_hex(std::string_view hex) {
  const auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(digit(hex[i]) << 4 | digit(hex[i + 1])));
  }
  return bytes;
}

struct Case {
  const char* what;
  Bytes right;
  std::size_t field;
};

std::vector<Case> right_frames() {
  return {
      {"TCP over IPv4",
       from_hex("02000000000202000000000108004500002b000140004006b6afc0000215c00002079c401389000000070000000050022000"
                "888d00006f6464"),
       50},
      {"TCP over IPv4 with options",
       from_hex("02000000000202000000000108004600002c000140004006b3acc0000215c0000207010101019c4013890000000700000000"
                "500220005bf50000"),
       54},
      {"UDP over IPv4, padded",
       from_hex("020000000002020000000001080045000020000140004011b6afc0000215c00002079c400035000c145f6576656eaaaaaaaa"
                "aaaaaaaaaaaaaaaaaaaa"),
       40},
      {"UDP whose sum is 0",
       from_hex("02000000000202000000000108004500001e000140004011b6b1c0000215c00002079c400035000affffdf47"), 40},
      {"TCP over IPv6",
       from_hex("02000000000202000000000186dd6000000000350640fd000000000000000000000000000001fd0000000000000000000000"
                "000000029c401389000000070000000050022000e66400007878787878787878787878787878787878787878787878787878"
                "78787878787878"),
       70},
      {"UDP over IPv6 with a VLAN tag",
       from_hex("0200000000020200000000018100200786dd60000000000e1140fd000000000000000000000000000001fd00000000000000"
                "00000000000000029c400035000e282b746167676564"),
       64},
      {"TCP over IPv4 with two tags",
       from_hex("02000000000202000000000188a8200a81002007080045000028000140004006b6b2c0000215c00002079c40138900000007"
                "00000000500220005bf50000"),
       58},
  };
}

TEST(UnfinishedChecksum, WritesTheRightOne) {
  for (const auto& [what, right, field] : right_frames()) {
    Bytes frame = right;
    frame[field] = 0x12;
    frame[field + 1] = 0x34;
    EXPECT_TRUE(finish_checksum(frame)) << what;
    EXPECT_EQ(frame, right) << what;
  }
}

TEST(UnfinishedChecksum, LeavesWhatIsCutShortAsItIs) {
  for (const auto& [what, right, field] : right_frames()) {
    if (right.size() == 60) continue;  // its end is padding
    for (std::size_t length = 0; length < right.size(); ++length) {
      const Bytes cut(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(length));
      Bytes frame = cut;
      EXPECT_FALSE(finish_checksum(frame)) << what << " of " << length;
      EXPECT_EQ(frame, cut) << what << " of " << length;
    }
  }
}

TEST(UnfinishedChecksum, LeavesFragmentsAndOtherProtocolsAsTheyAre) {
  Bytes fragment = right_frames()[0].right;
  fragment[20] = 0x20;  // more of them follow
  Bytes icmp = right_frames()[0].right;
  icmp[23] = 1;
  Bytes arp = right_frames()[0].right;
  arp[13] = 0x06;
  for (const Bytes& frame : {fragment, icmp, arp}) {
    Bytes after = frame;
    EXPECT_FALSE(finish_checksum(after));
    EXPECT_EQ(after, frame);
  }
}

}  // namespace
}  // namespace sluice::ports
