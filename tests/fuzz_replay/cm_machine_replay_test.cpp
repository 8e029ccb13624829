// Replays the corpus of cm_machine_fuzz.
#include <gtest/gtest.h>

#include <string>

#include "base/check.h"
#include "fuzz/cm_machine_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(CmMachineReplay, HoldsForEveryKeptScriptAndNearIt) {
  const auto inputs = kept_inputs("cm_machine");
  EXPECT_GT(inputs.size(), 50u);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_connection_managers(input.bytes);
  }
  search_near(inputs, rounds(2'000), check_connection_managers);
}

TEST(CmMachineReplay, KeepsToTheTableOfTheRules) {
  for (const KeptInput& input : kept_inputs("cm_machine")) {
    SCOPED_TRACE(input.name);
    check_connection_rules(input.bytes);
  }
  Rng rng(1);
  for (std::uint64_t round = 0; round < rounds(2'000); ++round) {
    set_check_context("round " + std::to_string(round));
    Rng own = rng.fork(round);
    Input script(own.below(600));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(own.below(256));
    check_connection_rules(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
