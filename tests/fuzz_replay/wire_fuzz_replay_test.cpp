// Replays the corpora of wire_fuzz and cm_fuzz: what once broke a property, or nearly did, is tried again at every run.
#include <gtest/gtest.h>

#include "fuzz/wire_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

void replay(const char* corpus, void (*check)(ByteView), std::size_t at_least) {
  const auto inputs = kept_inputs(corpus);
  EXPECT_GT(inputs.size(), at_least);
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check(input.bytes);
  }
  search_near(inputs, rounds(20'000), check);
}

TEST(WireFuzzReplay, HoldsForEveryKeptFrameAndNearIt) { replay("wire", check_frame, 50); }
TEST(WireFuzzReplay, HoldsForEveryKeptDatagramAndNearIt) { replay("cm", check_cm, 10); }

}  // namespace
}  // namespace sluice::fuzz
