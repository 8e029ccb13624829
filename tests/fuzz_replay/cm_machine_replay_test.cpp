// Replays the corpus of cm_machine_fuzz.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::fuzz
