#include "onerma/keys.h"

#include <gtest/gtest.h>

#include <set>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

constexpr std::size_t kBody = 37;

std::vector<std::uint8_t> frame_of(const Header& header, std::size_t body) {
  const FrameWriter writer(wire::MacAddress{{2, 0, 0, 0, 0, 1}}, wire::Ipv4Address{0x0A000001}, kUdpPort);
  std::vector<std::uint8_t> frame(FrameWriter::frame_size(body));
  writer.write(frame.data(), {{}, wire::Ipv4Address{0x0A000002}, kUdpPort}, header, body);
  for (std::size_t i = 0; i < body; ++i) frame[kBodyOffset + i] = static_cast<std::uint8_t>(i);
  return frame;
}

Header header_of(std::uint64_t op) { return {.kind = Kind::kData, .rights = kMayWrite, .op = OpId(op)}; }

TEST(RegionKey, DerivesAnotherKeyForEveryRegionInitiatorAndRight) {
  const RegionKey a(test_key(1)), b(test_key(2));
  std::set<std::vector<std::uint8_t>> seen;
  const auto add = [&](const Secret& s) { seen.insert({s.bytes().begin(), s.bytes().end()}); };
  int made = 0;
  for (const RegionKey* key : {&a, &b}) {
    for (std::uint32_t region = 0; region < 4; ++region) {
      for (std::uint64_t initiator = 0; initiator < 4; ++initiator) {
        for (std::uint8_t rights = 0; rights <= Rights::kAll; ++rights, ++made) {
          add(key->derive(RegionId(region), InitiatorId(initiator), {rights}));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(made));
  EXPECT_TRUE(a.derive(RegionId(3), InitiatorId(4), kMayRead) ==
              RegionKey(test_key(1)).derive(RegionId(3), InitiatorId(4), kMayRead));
}

// FIPS 197, appendix B's key; the block is initiator, region, rights, 0, 0, 1. The outcome is python3-cryptography's.
TEST(RegionKey, DerivesWhatAnotherImplementationOfAesDoes) {
  const std::array<std::uint8_t, 16> key{0x2B, 0x7E, 0x15, 0x16, 0x28, 0xAE, 0xD2, 0xA6,
                                         0xAB, 0xF7, 0x15, 0x88, 0x09, 0xCF, 0x4F, 0x3C};
  const Secret derived =
      RegionKey(Secret(key)).derive(RegionId(0x0A0B0C0D), InitiatorId(0x0102030405060708), kMayRead | kMayWrite);
  const std::array<std::uint8_t, 16> expected{0xD1, 0x86, 0xD1, 0x0A, 0x4D, 0x9C, 0xEE, 0xFC,
                                              0x20, 0x78, 0x24, 0x98, 0x90, 0x5A, 0x33, 0xD6};
  EXPECT_TRUE(std::ranges::equal(derived.bytes(), expected));
}

TEST(Sealer, OpensWhatWasSealedAndNothingElse) {
  Sealer seal(test_key(1)), open(test_key(1)), other(test_key(2));
  auto frame = frame_of(header_of(5), kBody);
  const auto clear = frame;
  seal.seal(frame.data(), header_of(5), kBody);
  EXPECT_FALSE(
      std::equal(frame.begin() + kBodyOffset, frame.begin() + kBodyOffset + kBody, clear.begin() + kBodyOffset));
  auto copy = frame;
  EXPECT_FALSE(other.open(copy.data(), header_of(5), kBody));
  copy = frame;
  ASSERT_TRUE(open.open(copy.data(), header_of(5), kBody));
  EXPECT_TRUE(std::equal(copy.begin(), copy.end() - kTagSize, clear.begin()));
}

TEST(Sealer, AFlippedBitAnywhereThatMattersIsFound) {
  Sealer sealer(test_key(1));
  auto frame = frame_of(header_of(5), kBody);
  sealer.seal(frame.data(), header_of(5), kBody);
  const std::size_t addresses = wire::EthernetHeader::kSize + 12;
  for (std::size_t byte = addresses; byte < frame.size(); ++byte) {
    if (byte >= addresses + 8 && byte < kNetworkSize) continue;  // the UDP header: parse() judges it
    for (unsigned bit = 0; bit < 8; ++bit) {
      auto changed = frame;
      changed[byte] = static_cast<std::uint8_t>(changed[byte] ^ (1u << bit));
      Message message;
      if (parse(changed, message) != Verdict::kOk) continue;
      EXPECT_FALSE(sealer.open(changed.data(), message.header, kBody)) << byte;
    }
  }
}

// The same bytes as python3-cryptography's AESGCM made of the same frame.
TEST(Sealer, SealsAsAnotherImplementationDoes) {
  std::array<std::uint8_t, Secret::kSize> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i);
  Sealer sealer{Secret(key)};
  auto frame = frame_of(header_of(5), 4);
  sealer.seal(frame.data(), header_of(5), 4);
  const std::array<std::uint8_t, 20> expected{0x4C, 0x5B, 0x4A, 0xBF, 0x16, 0x60, 0xEC, 0x45, 0x9B, 0x8A,
                                              0x06, 0xD5, 0x63, 0xB5, 0x50, 0xC4, 0x1B, 0x2D, 0x0D, 0xDD};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), frame.begin() + kBodyOffset));
}

TEST(Secret, ComparesByItsBytes) {
  EXPECT_TRUE(test_key(1) == test_key(1));
  EXPECT_FALSE(test_key(1) == test_key(2));
}

TEST(Secret, LeavesNothingBehindWhenItGoes) {
  alignas(Secret) std::array<std::uint8_t, sizeof(Secret)> place{};
  auto* const secret = new (place.data()) Secret(test_key(1));
  ASSERT_TRUE(std::ranges::any_of(place, [](std::uint8_t b) { return b != 0; }));
  secret->~Secret();
  EXPECT_TRUE(std::ranges::all_of(std::span<volatile std::uint8_t>(place), [](std::uint8_t b) { return b == 0; }));
}

}  // namespace
}  // namespace sluice::onerma
