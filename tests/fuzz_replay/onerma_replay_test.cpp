// Replays the corpus of onerma_fuzz, and looks further: near it, and at random.
#include <gtest/gtest.h>

#include "fuzz/onerma_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

void check_all(const Input& input) {
  check_onerma_frame(input);
  check_onerma_nodes(input);
  check_onerma_target(input);
  check_onerma_initiator(input);
}

TEST(OnermaReplay, HoldsForEveryKeptInput) {
  const auto inputs = kept_inputs("onerma");
  EXPECT_GT(inputs.size(), 25u);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_all(input.bytes);
  }
}

TEST(OnermaReplay, HoldsNearTheKeptInputs) { search_near(kept_inputs("onerma"), rounds(2'000), check_all); }

TEST(OnermaReplay, HoldsForRandomScripts) {
  Rng rng(1);
  for (int round = 0; round < 1'000; ++round) {
    Input script(rng.below(600));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    check_all(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
