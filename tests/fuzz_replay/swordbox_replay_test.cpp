// Replays the corpus of swordbox_fuzz.
#include <gtest/gtest.h>

#include "fuzz/swordbox_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(SwordBoxReplay, HoldsForEveryKeptScriptAndNearIt) {
  const auto inputs = kept_inputs("swordbox");
  EXPECT_GT(inputs.size(), 50u);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_swordbox(input.bytes);
  }
  search_near(inputs, rounds(2'000), check_swordbox);
}

}  // namespace
}  // namespace sluice::fuzz
