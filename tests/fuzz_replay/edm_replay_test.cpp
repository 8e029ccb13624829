// Replays the corpus of edm_fuzz, and searches near it.
#include <gtest/gtest.h>

#include "fuzz/edm_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(EdmFuzzReplay, HoldsForEveryKeptLineAndNearIt) {
  const auto inputs = kept_inputs("edm");
  EXPECT_GT(inputs.size(), 5u);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_edm_line(input.bytes);
  }
  search_near(inputs, rounds(20'000), check_edm_line);
}

}  // namespace
}  // namespace sluice::fuzz
