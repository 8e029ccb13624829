// Replays the corpus of cowbird_fuzz.
#include <gtest/gtest.h>

#include <string>

#include "base/check.h"
#include "fuzz/cowbird_properties.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(CowbirdReplay, HoldsForEveryKeptScriptAndNearIt) {
  const auto inputs = kept_inputs("cowbird");
  EXPECT_FALSE(inputs.empty());
  for (const KeptInput& input : inputs) {
    set_check_context(input.name);
    check_cowbird_switch(input.bytes);
    check_cowbird_spot(input.bytes);
  }
  set_check_context("near one that was kept");
  search_near(inputs, rounds(300), check_cowbird_switch);
  search_near(inputs, rounds(300), check_cowbird_spot);
}

template <class Check>
void must_reach(std::initializer_list<const char*> names, Check check) {
  constexpr std::uint64_t kEnough = 400;  // to reach all that is named
  const std::uint64_t tried = rounds(kEnough);
  Rng rng(1);
  Reached all;
  for (std::uint64_t round = 0; round < tried; ++round) {
    set_check_context("round " + std::to_string(round));
    Rng own = rng.fork(round);
    Input script(own.below(1500));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(own.below(256));
    for (const auto& [name, n] : check(script)) all[name] += n;
  }
  if (tried < kEnough) return;
  for (const char* name : names) EXPECT_GT(all[name], 0u) << name << ": no script reaches it";
}

TEST(CowbirdReplay, TheSwitchTellsTheTruthWhateverAnotherApplicationWrites) {
  must_reach({"ok", "denied", "unreachable", "unknown", "broken", "relayed", "unwanted", "paused", "rewinds",
              "timeouts", "closed", "malformed", "damaged"},
             check_cowbird_switch);
}

TEST(CowbirdReplay, SpotEnginesTellTheTruthWhateverAnotherApplicationWrites) {
  must_reach({"ok", "denied", "unreachable", "unknown", "broken", "waited", "retries", "refused", "malformed",
              "stopped", "killed", "shut out", "lost", "late"},
             check_cowbird_spot);
}

}  // namespace
}  // namespace sluice::fuzz
