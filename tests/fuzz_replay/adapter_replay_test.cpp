// Replays the corpus of adapter_fuzz, and random scripts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fuzz/adapter_properties.h"

namespace sluice::fuzz {
namespace {

TEST(AdapterReplay, HoldsForEveryKeptScriptAndTheyReachEveryCounter) {
  std::size_t inputs = 0;
  std::map<std::string, std::uint64_t> counted;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/fuzz/corpus/adapter")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    SCOPED_TRACE(entry.path().string());
    check_adapter(bytes).for_each([&](const char* name, const char*, std::uint64_t n) { counted[name] += n; });
    ++inputs;
  }
  EXPECT_GT(inputs, 50u);
  for (const auto& [name, n] : counted) EXPECT_GT(n, 0u) << name << ": no kept script reaches it";
}

TEST(AdapterReplay, HoldsForRandomScripts) {
  Rng rng(1);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<std::uint8_t> script(rng.below(600));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    check_adapter(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
