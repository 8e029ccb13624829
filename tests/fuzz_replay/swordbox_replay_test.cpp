// Replays the corpus of swordbox_fuzz.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/check.h"
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
    check_operations_through_swordbox(input.bytes);
  }
  search_near(inputs, rounds(2'000), check_swordbox);
}

TEST(SwordBoxReplay, TellsClientsThatKeepToTheRulesTheTruth) {
  constexpr std::uint64_t kEnough = 2'000;  // to reach all that is named below
  const std::uint64_t tried = rounds(kEnough);
  Rng rng(1);
  std::map<std::string, std::uint64_t> counted;
  for (std::uint64_t round = 0; round < tried; ++round) {
    set_check_context("round " + std::to_string(round));
    Rng own = rng.fork(round);
    Input script(own.below(1500));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(own.below(256));
    check_operations_through_swordbox(script).for_each(
        [&](std::string_view name, std::string_view, std::uint64_t n) { counted[std::string(name)] += n; });
  }
  if (tried < kEnough) return;
  for (const char* name :
       {"AtomicReplaced", "WriteMoved", "WordPassed", "RepeatedRenumbered", "AnsweredAgain", "Late", "CasSteered",
        "CasProbe", "CasReaimed", "CasFenced", "ReadSteered", "RepeatedSteered", "HeldRequest", "HeldResponse",
        "carriers_lost", "operations_carried_over", "links_failed", "repairs_done"})
    EXPECT_GT(counted[name], 0u) << name << ": no script reaches it";
}

}  // namespace
}  // namespace sluice::fuzz
