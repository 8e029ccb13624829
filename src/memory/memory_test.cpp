#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "memory/access.h"
#include "memory/region.h"

namespace sluice::memory {
namespace {

constexpr PdId kDomain{7};
constexpr PdId kOther{8};

class Regions : public ::testing::Test {
 protected:
  Key add(Access access = kAllAccess) { return add({.access = access}); }
  Key add(RegionAttributes a) {
    a.pd = kDomain;
    a.bytes = bytes;
    a.address = 0x1000;
    return table.add(a).value();
  }
  AccessFault fault(Key key, std::uint64_t address, std::uint64_t length, Access needed = kRemoteRead) const {
    return table.translate(key, kDomain, address, length, needed).fault;
  }

  RegionTable table{Rng(1)};
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(256);
};

TEST_F(Regions, AreReachedByKeyFromTheirFirstByteToTheirLast) {
  const Key key = add();
  EXPECT_EQ(table.translate(key, kDomain, 0x1000, 256, kRemoteWrite).host, bytes.data());
  EXPECT_EQ(table.translate(key, kDomain, 0x10FF, 1, kRemoteRead).host, bytes.data() + 255);
  EXPECT_EQ(fault(key, 0x1100, 0), AccessFault::kNone) << "nothing, at the end";
}

TEST_F(Regions, RefuseEveryByteOutside) {
  const Key key = add();
  for (const auto& [address, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0xFFF, 1},
                                                                                            {0xFFF, 2},
                                                                                            {0x1000, 257},
                                                                                            {0x1100, 1},
                                                                                            {0x10FF, 2},
                                                                                            {0, 1},
                                                                                            {~0ull, 1},
                                                                                            {0x1001, ~0ull},
                                                                                            {0x1000, 1ull << 63},
                                                                                            {0, ~0ull}}) {
    EXPECT_EQ(fault(key, address, length), AccessFault::kOutOfBounds) << address << " " << length;
  }
}

TEST_F(Regions, MayEndWhereTheAddressSpaceEnds) {
  const Key key = table.add({.pd = kDomain, .bytes = bytes, .address = ~0ull - 255, .access = kAllAccess}).value();
  EXPECT_EQ(fault(key, ~0ull, 1), AccessFault::kNone);
  EXPECT_EQ(fault(key, ~0ull, 2), AccessFault::kOutOfBounds);
  EXPECT_EQ(fault(key, 0, 1), AccessFault::kOutOfBounds);
  EXPECT_FALSE(table.add({.pd = kDomain, .bytes = bytes, .address = ~0ull - 254}));
}

TEST_F(Regions, MayBeOfOneByteOrOfNone) {
  const MutableBytes all(bytes);
  const Key one = table.add({.pd = kDomain, .bytes = all.first(1), .address = ~0ull, .access = kAllAccess}).value();
  EXPECT_EQ(fault(one, ~0ull, 1), AccessFault::kNone);
  EXPECT_EQ(fault(one, ~0ull, 2), AccessFault::kOutOfBounds);
  const Key none = table.add({.pd = kDomain, .bytes = {}, .address = 0x1000, .access = kAllAccess}).value();
  EXPECT_EQ(fault(none, 0x1000, 0), AccessFault::kNone);
  EXPECT_EQ(fault(none, 0x1000, 1), AccessFault::kOutOfBounds);
}

TEST_F(Regions, NameTheWayToBeRefused) {
  const Key key = add(kRemoteRead);
  EXPECT_EQ(fault(key, 0x1000, 8, kRemoteWrite), AccessFault::kRightMissing);
  EXPECT_EQ(table.translate(key, kOther, 0x1000, 8, kRemoteRead).fault, AccessFault::kWrongDomain);
  for (const std::uint32_t wrong : {0u, 1u, 255u, key.value ^ 1, key.value + 256, 0x7FFF'FFFFu, ~0u}) {
    EXPECT_EQ(fault(Key{wrong}, 0x1000, 8), AccessFault::kUnknownKey) << wrong;
  }
}

TEST_F(Regions, GiveRemoteWriteOnlyTogetherWithLocalWrite) {
  EXPECT_FALSE(table.add({.pd = kDomain, .bytes = bytes, .access = kRemoteWrite}));
  EXPECT_FALSE(table.add({.pd = kDomain, .bytes = bytes, .access = kRemoteAtomic}));
  EXPECT_TRUE(table.add({.pd = kDomain, .bytes = bytes, .access = kRemoteAtomic | kLocalWrite}));
}

TEST_F(Regions, AreGoneOnceRemovedAndTheirKeysAreNotTakenForTheirSuccessors) {
  std::set<std::uint32_t> keys;
  for (int i = 0; i < 256; ++i) {
    const Key key = add();
    EXPECT_TRUE(keys.insert(key.value).second);
    const std::uint32_t before = table.epoch();
    EXPECT_TRUE(table.remove(key));
    EXPECT_NE(table.epoch(), before);
    EXPECT_FALSE(table.remove(key));
    EXPECT_EQ(fault(key, 0x1000, 1), AccessFault::kUnknownKey);
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.remove(kReservedKey));
}

TEST_F(Regions, InvalidatedByAPeerKeepTheirPlaceUntilRemoved) {
  const Key key = add({.access = kAllAccess, .invalidated_by_peers = true});
  EXPECT_FALSE(table.invalidate(key, kOther)) << "of another protection domain";
  EXPECT_EQ(fault(key, 0x1000, 1), AccessFault::kNone);
  const std::uint32_t before = table.epoch();
  EXPECT_TRUE(table.invalidate(key, kDomain));
  EXPECT_NE(table.epoch(), before);
  EXPECT_FALSE(table.invalidate(key, kDomain));
  EXPECT_EQ(fault(key, 0x1000, 1), AccessFault::kUnknownKey);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(table.remove(key));
  EXPECT_EQ(table.size(), 0u);
}

TEST_F(Regions, ThatAreNotThereCannotBeInvalidated) {
  for (const std::uint32_t wrong : {0u, 1u, 255u, 256u, 0x00FF'FFFFu, 0x0100'0000u, ~0u}) {
    EXPECT_FALSE(table.invalidate(Key{wrong}, kDomain)) << wrong;
    EXPECT_FALSE(table.invalidate(Key{wrong}, PdId{})) << wrong;
    EXPECT_FALSE(table.remove(Key{wrong})) << wrong;
  }
  const Key key = add({.access = kAllAccess, .invalidated_by_peers = true});
  EXPECT_FALSE(table.invalidate(Key{key.value ^ 1}, kDomain));
  EXPECT_EQ(fault(key, 0x1000, 1), AccessFault::kNone);
}

TEST_F(Regions, ForLocalUseAreNotForPeersToInvalidate) {
  for (const Access access : {kLocalRead, kLocalWrite}) {
    const Key key = add({.access = access, .invalidated_by_peers = true});
    EXPECT_FALSE(table.invalidate(key, kDomain));
    EXPECT_EQ(fault(key, 0x1000, 1, kLocalRead), AccessFault::kNone);
  }
  EXPECT_TRUE(table.invalidate(add({.access = kRemoteRead, .invalidated_by_peers = true}), kDomain));
}

TEST_F(Regions, AreNotForPeersToInvalidateUnlessTheySaySo) {
  const Key key = add();
  EXPECT_FALSE(table.invalidate(key, kDomain));
  EXPECT_EQ(fault(key, 0x1000, 1), AccessFault::kNone);
}

TEST_F(Regions, AreAsManyAsTheTableHolds) {
  std::vector<Key> keys;
  for (std::uint32_t i = 1; i < RegionTable::kMaxRegions; ++i) keys.push_back(add());
  EXPECT_FALSE(table.add({.pd = kDomain, .bytes = bytes}));
  EXPECT_TRUE(table.remove(keys[1000]));
  EXPECT_TRUE(table.add({.pd = kDomain, .bytes = bytes}));
}

TEST(Access, CopiesEveryLengthToEveryAlignmentAndTouchesNothingElse) {
  std::array<std::uint8_t, 96> from{};
  std::iota(from.begin(), from.end(), std::uint8_t{1});
  for (std::size_t length = 0; length <= 40; ++length) {
    for (std::size_t at = 0; at < 16; ++at) {
      for (std::size_t start = 0; start < 9; ++start) {
        alignas(16) std::array<std::uint8_t, 64> in{};
        copy_in(in.data() + at, from.data() + start, length);
        alignas(16) std::array<std::uint8_t, 64> out{};
        copy_out(out.data() + start, in.data() + at, length);
        for (std::size_t i = 0; i < in.size(); ++i) {
          const bool inside = i >= at && i < at + length;
          ASSERT_EQ(in[i], inside ? from[start + i - at] : 0) << length << " " << at << " " << start << " " << i;
          const bool inside_out = i >= start && i < start + length;
          ASSERT_EQ(out[i], inside_out ? from[i] : 0);
        }
      }
    }
  }
}

// One thread copies zeros and ones in turn, this one looks at the words meanwhile.
class WholeWords : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t kRounds = 3'000'000;
  static bool is_torn(std::uint64_t word) { return word != 0 && word != ~0ull; }

  std::size_t length() const { return GetParam(); }
  std::array<std::array<std::uint8_t, 256>, 2> values = [] {
    std::array<std::array<std::uint8_t, 256>, 2> two{};
    two[1].fill(0xFF);
    return two;
  }();
  alignas(64) std::array<std::uint8_t, 256> shared{};
};
INSTANTIATE_TEST_SUITE_P(Lengths, WholeWords, testing::Values(12, 20, 29, 203));

TEST_P(WholeWords, AreNotTornByACopyIn) {
  constexpr std::size_t kAt = 3;  // the first word begins behind the first bytes
  const std::size_t words = (kAt + length()) / 8;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::size_t i = 0; i < kRounds; ++i) copy_in(shared.data() + kAt, values[i % 2].data() + i % 3, length());
    done = true;
  });
  int torn = 0;
  while (!done) {
    for (std::size_t i = 1; i < words; ++i) {
      torn += is_torn(__atomic_load_n(reinterpret_cast<std::uint64_t*>(shared.data()) + i, __ATOMIC_ACQUIRE)) ? 1 : 0;
    }
  }
  writer.join();
  EXPECT_EQ(torn, 0);
}

TEST_P(WholeWords, AreNotTornByACopyOut) {
  const std::size_t words = length() / 8;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t value = 0; !done; value = ~value) {
      for (std::size_t i = 0; i < words; ++i)
        __atomic_store_n(reinterpret_cast<std::uint64_t*>(shared.data()) + i, value, __ATOMIC_RELEASE);
    }
  });
  int torn = 0;
  alignas(64) std::array<std::uint8_t, 264> copied{};
  for (std::size_t i = 0; i < kRounds; ++i) {
    std::uint8_t* const to = copied.data() + i % 5;
    copy_out(to, shared.data(), length());
    for (std::size_t k = 0; k < words; ++k) torn += is_torn(load_le<std::uint64_t>(to + 8 * k)) ? 1 : 0;
  }
  done = true;
  writer.join();
  EXPECT_EQ(torn, 0);
}

// The same of aligned words of four bytes, which programs have for flags, lengths and counters: alone, before the first word of eight and
// behind the last.
struct Stretch {
  std::size_t at;
  std::size_t length;
};
class WholeHalves : public testing::TestWithParam<Stretch> {
 protected:
  static constexpr int kRounds = 1'000'000;
  std::size_t first() const { return (at + 3) / 4; }
  std::size_t end() const { return (at + length) / 4; }
  std::uint32_t* half(std::size_t i) { return reinterpret_cast<std::uint32_t*>(shared.data()) + i; }
  static int torn(std::uint32_t half) { return half != 0 && half != ~0u ? 1 : 0; }

  const std::size_t at = GetParam().at;
  const std::size_t length = GetParam().length;
  alignas(64) std::array<std::uint8_t, 32> shared{};
};
INSTANTIATE_TEST_SUITE_P(Places, WholeHalves,
                         testing::Values(Stretch{0, 4}, Stretch{4, 4}, Stretch{4, 8}, Stretch{0, 12}, Stretch{0, 7},
                                         Stretch{3, 6}, Stretch{1, 21}));

TEST_P(WholeHalves, AreNotTornByACopyIn) {
  const std::array<std::array<std::uint8_t, 32>, 2> values = [] {
    std::array<std::array<std::uint8_t, 32>, 2> two{};
    two[1].fill(0xFF);
    return two;
  }();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::size_t i = 0; i < kRounds; ++i) copy_in(shared.data() + at, values[i % 2].data() + i % 3, length);
    done = true;
  });
  int wrong = 0;
  while (!done) {
    for (std::size_t i = first(); i != end(); ++i) wrong += torn(__atomic_load_n(half(i), __ATOMIC_ACQUIRE));
  }
  writer.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(WholeHalves, AreNotTornByACopyOut) {
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint32_t value = 0; !done; value = ~value) {
      for (std::size_t i = first(); i != end(); ++i) __atomic_store_n(half(i), value, __ATOMIC_RELEASE);
    }
  });
  int wrong = 0;
  std::array<std::uint8_t, 40> copied{};
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::uint8_t* const to = copied.data() + round % 3;
    copy_out(to, shared.data() + at, length);
    for (std::size_t i = first(); i != end(); ++i) wrong += torn(load_le<std::uint32_t>(to + 4 * i - at));
  }
  done = true;
  writer.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Access, AtomicsReturnWhatWasThere) {
  alignas(8) std::array<std::uint8_t, 8> word{};
  store_le<std::uint64_t>(word.data(), 5);
  EXPECT_EQ(fetch_and_add(word.data(), ~0ull), 5u);
  EXPECT_EQ(compare_and_swap(word.data(), 4, 0xFF00), 4u);
  EXPECT_EQ(compare_and_swap(word.data(), 4, 1), 0xFF00u);
  EXPECT_EQ(masked_compare_and_swap(word.data(), 0xF000, 0xF000, 0x0AAA, 0x00FF), 0xFF00u);
  EXPECT_EQ(load_le<std::uint64_t>(word.data()), 0xFFAAu);
  EXPECT_EQ(masked_compare_and_swap(word.data(), 0x1000, 0xF000, 0, ~0ull), 0xFFAAu);
  EXPECT_EQ(load_le<std::uint64_t>(word.data()), 0xFFAAu);
}

}  // namespace
}  // namespace sluice::memory
