// Replays the corpus of adapter_fuzz, and looks further: near it, and at random.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "fuzz/adapter_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(AdapterReplay, HoldsForEveryKeptScriptAndTheyReachEveryCounter) {
  const auto inputs = kept_inputs("adapter");
  EXPECT_GT(inputs.size(), 50u);
  std::map<std::string, std::uint64_t> counted;
  for (const KeptInput& input : inputs) {
    SCOPED_TRACE(input.name);
    check_adapter(input.bytes).for_each([&](const char* name, const char*, std::uint64_t n) { counted[name] += n; });
  }
  for (const auto& [name, n] : counted) EXPECT_GT(n, 0u) << name << ": no kept script reaches it";
}

TEST(AdapterReplay, HoldsNearTheKeptScripts) { search_near(kept_inputs("adapter"), rounds(3'000), check_adapter); }

// Such scripts are mostly of one queue pair's requests, whose peer answers mostly well.
TEST(AdapterReplay, HoldsForScriptsAboutRequestsAndTheyReachEveryEndOfThem) {
  constexpr std::uint64_t kEnough = 1'000;  // to reach all that is named below
  const std::uint64_t tried = rounds(kEnough);
  Rng rng(2);
  std::map<std::string, std::uint64_t> counted;
  for (std::uint64_t round = 0; round < tried; ++round) {
    Input script(400);
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    script[0] = static_cast<std::uint8_t>(script[0] | 0xE0);
    check_adapter(script).for_each([&](const char* name, const char*, std::uint64_t n) { counted[name] += n; });
  }
  if (tried < kEnough) return;
  for (const char* const name : {"tx_retransmits", "rx_naks", "rx_refusals", "rx_rnr_naks", "implied_naks", "timeouts",
                                 "retries_exceeded", "expired", "rx_bad_responses"}) {
    EXPECT_GT(counted[name], 0u) << name;
  }
}

TEST(AdapterReplay, HoldsForRandomScripts) {
  Rng rng(1);
  for (int round = 0; round < 1'000; ++round) {
    Input script(rng.below(600));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    check_adapter(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
