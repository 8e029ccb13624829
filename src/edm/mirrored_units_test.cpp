// Which copy of a unit is taken, of two networks that need not bring them in one order.
#include "edm/mirrored_units.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace sluice::edm {
namespace {

Unit grant(std::uint8_t id) { return {.kind = UnitKind::kGrant, .id = MessageId(id), .bytes = 256, .data = {}}; }

TEST(MirroredUnits, TakesTheFirstCopyWhicheverNetworkBringsIt) {
  MirroredUnits units;
  EXPECT_TRUE(units.first(0, grant(1)));
  EXPECT_TRUE(units.first(1, grant(2)));
  EXPECT_FALSE(units.first(0, grant(2)));
  EXPECT_FALSE(units.first(1, grant(1)));
  EXPECT_EQ(units.behind(0), 0u);
  EXPECT_EQ(units.behind(1), 0u);
}

TEST(MirroredUnits, UnitsThatSayTheSameAreSoMany) {
  MirroredUnits units;
  EXPECT_TRUE(units.first(0, grant(1)));
  EXPECT_TRUE(units.first(0, grant(1)));
  EXPECT_EQ(units.behind(1), 2u);
  EXPECT_FALSE(units.first(1, grant(1)));
  EXPECT_FALSE(units.first(1, grant(1)));
  EXPECT_TRUE(units.first(1, grant(1)));
  EXPECT_EQ(units.behind(0), 1u);
}

TEST(MirroredUnits, WhatDiffersInAnyFieldIsAnotherUnit) {
  const std::vector<std::uint8_t> data{1, 2};
  const std::vector<std::uint8_t> other{1, 3};
  const Unit unit{.kind = UnitKind::kResponse, .bytes = 2, .data = data};
  std::vector<Unit> units(9, unit);
  units[0].kind = UnitKind::kWrite;
  units[1].port = PortId(1);
  units[2].to = PortId(1);
  units[3].id = MessageId(1);
  units[4].bytes = 3;
  units[5].last = true;
  units[6].more = true;
  units[7].address = 1;
  units[8].data = other;
  MirroredUnits copies;
  EXPECT_TRUE(copies.first(0, unit));
  for (const Unit& another : units) EXPECT_TRUE(copies.first(1, another));
  EXPECT_FALSE(copies.first(1, unit));
}

// The order of units in either network is that of the first copies.
TEST(MirroredUnits, KeepsAnOrderThatBothKeep) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    MirroredUnits units;
    std::array<std::uint8_t, 2> sent{};
    std::uint8_t expected = 0;
    while (sent[0] < 100 || sent[1] < 100) {
      const auto network = static_cast<unsigned>(rng.below(2));
      if (sent.at(network) == 100) continue;
      const std::uint8_t id = sent.at(network)++;
      if (!units.first(network, grant(id))) continue;
      EXPECT_EQ(id, expected++);
    }
    EXPECT_EQ(expected, 100);
  }
}

}  // namespace
}  // namespace sluice::edm
