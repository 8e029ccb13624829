// Replays the corpus of udp_container_fuzz.
#include <gtest/gtest.h>

#include "fuzz/udp_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(UdpContainerReplay, HoldsForEveryKeptInputAndNearIt) {
  const auto inputs = kept_inputs("udp_container");
  EXPECT_GT(inputs.size(), 20u);
  const auto check = [](ByteView bytes) {
    check_container(bytes);
    check_sessions(bytes);
  };
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check(input.bytes);
  }
  search_near(inputs, rounds(5'000), check);
}

}  // namespace
}  // namespace sluice::fuzz
