#include "port/impairment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::port {
namespace {

using testing::HasSubstr;

TEST(Impairment, ParsesEveryKey) {
  const auto spec = parse_impairment("drop=1%,duplicate=0.5%,reorder=10%,corrupt=250ppm,delay=10us,seed=7").value();
  EXPECT_EQ(spec.tx.drop, 10'000u);
  EXPECT_EQ(spec.tx.duplicate, 5'000u);
  EXPECT_EQ(spec.tx.reorder, 100'000u);
  EXPECT_EQ(spec.tx.corrupt, 250u);
  EXPECT_EQ(spec.tx.delay, Duration::microseconds(10));
  EXPECT_EQ(spec.rx.drop, 10'000u);
  EXPECT_EQ(spec.rx.delay, Duration::microseconds(10));
  EXPECT_EQ(spec.seed, 7u);
}

TEST(Impairment, TellsDirectionsApartAndLetsTheLaterOverride) {
  const auto spec = parse_impairment("drop=1%,rx.drop=0%,tx.delay=5ms,rx.corrupt=100%").value();
  EXPECT_EQ(spec.tx.drop, 10'000u);
  EXPECT_EQ(spec.rx.drop, 0u);
  EXPECT_EQ(spec.tx.delay, Duration::milliseconds(5));
  EXPECT_EQ(spec.rx.delay, Duration());
  EXPECT_EQ(spec.tx.corrupt, 0u);
  EXPECT_EQ(spec.rx.corrupt, 1'000'000u);
}

TEST(Impairment, OfAnEmptyTextIsNone) {
  const auto spec = parse_impairment("").value();
  EXPECT_FALSE(spec.tx.any());
  EXPECT_FALSE(spec.rx.any());
}

TEST(Impairment, RefusesWhatIsNoProbabilityAndNamesKeyValueAndRange) {
  for (const char* value : {"", "1", "%", "101%", "-1%", "1.23456%", "1.%", "x%", "1000001ppm", "1 %"}) {
    const auto spec = parse_impairment(std::string("seed=1,tx.drop=") + value);
    ASSERT_FALSE(spec) << value;
    EXPECT_THAT(spec.error().message, HasSubstr(std::string("tx.drop=") + value));
    EXPECT_THAT(spec.error().message, HasSubstr("0% to 100%"));
  }
}

TEST(Impairment, RefusesOddDelaysKeysAndShapes) {
  for (const char* text : {"delay=5", "delay=us", "delay=11s", "delay=1.5us", "delay=99999999999999999999ns"}) {
    const auto spec = parse_impairment(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_THAT(spec.error().message, HasSubstr("0ns to 10s"));
  }
  EXPECT_THAT(parse_impairment("drp=1%").error().message, HasSubstr("unknown key drp"));
  EXPECT_THAT(parse_impairment("tx.seed=1").error().message, HasSubstr("unknown key tx.seed"));
  EXPECT_THAT(parse_impairment("seed=x").error().message, HasSubstr("an integer"));
  EXPECT_THAT(parse_impairment("drop").error().message, HasSubstr("key=value"));
}

}  // namespace
}  // namespace sluice::port
