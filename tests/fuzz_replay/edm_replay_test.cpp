// Replays the corpus of edm_fuzz, and searches near it.
#include <gtest/gtest.h>

#include "fuzz/edm_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

void check_both(const Input& input) {
  check_edm_line(input);
  check_edm_link(input);
}

TEST(EdmFuzzReplay, HoldsForEveryKeptLineAndNearIt) {
  const auto inputs = kept_inputs("edm");
  EXPECT_GT(inputs.size(), 5u);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_both(input.bytes);
  }
  search_near(inputs, rounds(20'000), check_both);
}

TEST(EdmFuzzReplay, HoldsForWhateverComesOutOfALinkOrIsPutIntoIt) {
  Rng rng(1);
  for (std::uint64_t round = 0; round < rounds(20'000) / 10; ++round) {
    Input script(rng.below(400));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    check_both(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
