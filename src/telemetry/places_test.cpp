#include "telemetry/places.h"

#include <gtest/gtest.h>

namespace sluice::telemetry {
namespace {

constexpr std::chrono::milliseconds kNone{0};

TEST(Places, EachHasItsOwnAndGetsThemBack) {
  Places places(2);
  Places::Place first = places.take("red", kNone);
  const Places::Place second = places.take("red", kNone);
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_FALSE(places.take("red", kNone));
  EXPECT_TRUE(places.take("blue", kNone));
  const Places::Place copy = first;
  first.reset();
  EXPECT_FALSE(places.take("red", std::chrono::milliseconds(1))) << "a copy is there yet";
}

TEST(Places, APlaceMayOutliveWhoGaveIt) {
  auto places = std::make_unique<Places>(1);
  Places::Place place = places->take("red", kNone);
  places.reset();
  EXPECT_TRUE(place);
  place.reset();
  places = std::make_unique<Places>(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(places->take("red", kNone)) << "given back at once";
}

}  // namespace
}  // namespace sluice::telemetry
