#include "switching/mac_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/rng.h"
#include "switching/host_stage.h"

namespace sluice::switching {
namespace {

constexpr std::size_t kSlots = 16'384;
constexpr wire::MacAddress kHost{{2, 0, 10, 77, 0, 9}};

MacTable table(std::uint64_t seed, std::size_t slots = kSlots) { return {slots, Duration::seconds(300), seed}; }

wire::MacAddress made_up(std::uint32_t number) {
  wire::MacAddress mac{{6}};
  store_be(mac.bytes.data() + 2, number);
  return mac;
}

std::size_t entries_of(const MacTable& macs, Time now, PortNumber port) {
  const auto all = macs.entries(now);
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const auto& e) { return e.port == port; }));
}

TEST(MacTable, LearnsAllProgramsOfAHost) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    MacTable macs = table(seed * 0x9E3779B97F4A7C15u);
    for (int place = 1; place <= 255; ++place) {
      ASSERT_TRUE(macs.learn(Time(), HostStage::mac_at(kHost, static_cast<HostStage::Place>(place)), PortNumber(1)));
    }
    EXPECT_EQ(macs.entries(Time()).size(), 255u);
    EXPECT_EQ(macs.refused() + macs.replaced(), 0u);
  }
}

TEST(MacTable, LearnsAddressesThatDifferInAnyTwoBytes) {
  for (std::size_t high = 0; high < 6; ++high) {
    for (std::size_t low = 0; low < 6; ++low) {
      if (high == low) continue;
      MacTable macs = table(7 * high + low);
      for (std::uint32_t i = 1; i <= 5'000; ++i) {
        wire::MacAddress mac = kHost;
        mac.bytes[high] = static_cast<std::uint8_t>(i >> 8);
        mac.bytes[low] = static_cast<std::uint8_t>(i);
        macs.learn(Time(), mac, PortNumber(1));
      }
      EXPECT_EQ(macs.refused() + macs.replaced(), 0u) << "bytes " << high << " and " << low;
    }
  }
}

// Those that crowd one address out are others for each seed: nobody can choose them beforehand. Also in the seed each bit counts.
TEST(MacTable, WhichAddressesMeetDependsOnAllOfTheSeed) {
  const auto replaced = [](std::uint64_t seed) {
    MacTable macs = table(seed, 1'024);
    std::vector<bool> found;
    for (std::uint32_t i = 0; i < 1'024; ++i) macs.learn(Time(), made_up(i), PortNumber(1));
    for (std::uint32_t i = 0; i < 1'024; ++i) found.push_back(macs.find(Time(), made_up(i)).has_value());
    return found;
  };
  const auto with_none = replaced(0);
  for (int bit = 0; bit < 64; ++bit) EXPECT_NE(replaced(std::uint64_t{1} << bit), with_none) << bit;
}

TEST(MacTable, WhoMakesUpAddressesLosesHisOwn) {
  MacTable macs = table(5);
  Time now;
  constexpr PortNumber kAttacker(0), kStation(1), kNewcomer(2);
  ASSERT_TRUE(macs.learn(now, kHost, kStation));
  for (std::uint32_t i = 0; i < 40'000; ++i) {
    now = now + Duration::microseconds(10);
    macs.learn(now, made_up(i), kAttacker);
  }
  EXPECT_EQ(macs.find(now, kHost), kStation) << "it is the oldest of all, and stays";
  EXPECT_GT(entries_of(macs, now, kAttacker), kSlots - 1'000) << "as long as nobody else wants them";
  for (std::uint8_t i = 1; i <= 200; ++i) {
    const wire::MacAddress mac{{2, i, 10, 77, 1, 1}};
    ASSERT_TRUE(macs.learn(now, mac, kNewcomer));
    for (std::uint32_t more = 0; more < 200; ++more) macs.learn(now, made_up(i * 100'000u + more), kAttacker);
  }
  EXPECT_EQ(entries_of(macs, now, kNewcomer), 200u) << "and those stay, too";
  EXPECT_EQ(macs.refused(), 0u);
  EXPECT_GT(macs.replaced(), 40'000u);
  EXPECT_FALSE(macs.find(now, made_up(0))) << "his oldest went";
}

TEST(MacTable, RefusesAnAddressWhereNoPortHasMoreThanItsOwn) {
  MacTable macs = table(5, MacTable::kProbes);
  for (std::uint8_t i = 0; i < MacTable::kProbes; ++i) ASSERT_TRUE(macs.learn(Time(), made_up(i), PortNumber(i)));
  EXPECT_FALSE(macs.learn(Time(), kHost, PortNumber(99))) << "one each";
  EXPECT_EQ(macs.refused(), 1u);
  EXPECT_TRUE(macs.learn(Time(), made_up(100), PortNumber(3))) << "its own goes";
  EXPECT_FALSE(macs.find(Time(), made_up(3)));
  macs.forget(PortNumber(7));
  EXPECT_TRUE(macs.learn(Time(), made_up(101), PortNumber(8)));
  EXPECT_TRUE(macs.learn(Time(), kHost, PortNumber(99))) << "one with two can spare one";
  EXPECT_EQ(macs.find(Time(), made_up(8)).has_value() + macs.find(Time(), made_up(101)).has_value(), 1);
}

TEST(MacTable, KeepsAnAddressAsLongAsItIsSeen) {
  MacTable macs = table(5);
  for (int look = 0; look < 4; ++look) macs.learn(Time::at(Duration::seconds(200 * look)), kHost, PortNumber(1));
  EXPECT_TRUE(macs.find(Time::at(Duration::seconds(899)), kHost));
  EXPECT_FALSE(macs.find(Time::at(Duration::seconds(900)), kHost));
  EXPECT_EQ(macs.moves(), 0u);
}

TEST(MacTable, ListsWhatItLearned) {
  MacTable macs = table(5);
  const wire::MacAddress mac{{2, 0x34, 0x56, 0x78, 0x9A, 0xBC}};
  macs.learn(Time::at(Duration::seconds(1)), mac, PortNumber(7));
  const auto all = macs.entries(Time::at(Duration::seconds(2)));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].mac, mac);
  EXPECT_EQ(all[0].port, PortNumber(7));
  EXPECT_EQ(all[0].seen, Time::at(Duration::seconds(1)));
}

TEST(MacTable, CountsHowManyAddressesEachPortHas) {
  Rng rng(3);
  MacTable macs = table(5, 64);
  Time now;
  for (int i = 0; i < 20'000; ++i) {
    now = now + Duration::milliseconds(static_cast<std::int64_t>(rng.below(2'000)));
    const PortNumber port(static_cast<std::uint16_t>(rng.below(4)));
    if (rng.below(500) == 0) macs.forget(port);
    macs.learn(now, made_up(static_cast<std::uint32_t>(rng.below(200))), port);
  }
  now = now + Duration::seconds(1'000);  // all aged: the next ones find room
  for (std::uint32_t i = 0; i < 4'000; ++i) macs.learn(now, made_up(1'000 + i), PortNumber(7));
  EXPECT_EQ(entries_of(macs, now, PortNumber(7)), 64u);
  for (std::uint32_t i = 0; i < 4'000; ++i) macs.learn(now, made_up(10'000 + i), PortNumber(2));
  EXPECT_NEAR(static_cast<double>(entries_of(macs, now, PortNumber(2))), 32, 2) << "half of them, as it counts";
}

}  // namespace
}  // namespace sluice::switching
