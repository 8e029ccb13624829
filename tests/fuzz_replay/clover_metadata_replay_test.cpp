// Replays the corpus of clover_metadata_fuzz.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/effort_test.h"
#include "base/rng.h"
#include "fuzz/clover_properties.h"

namespace sluice::fuzz {
namespace {

TEST(CloverMetadataReplay, HoldsForEveryKeptScript) {
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/fuzz/corpus/clover_metadata")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    SCOPED_TRACE(entry.path().string());
    check_metadata_server(bytes);
    check_chains(bytes);
    ++inputs;
  }
  EXPECT_GT(inputs, 100u);
}

TEST(CloverMetadataReplay, HoldsForRandomScripts) {
  Rng rng(1);
  for (std::uint64_t round = 0; round < rounds(2'000); ++round) {
    set_check_context("round " + std::to_string(round));
    std::vector<std::uint8_t> script(rng.below(800));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.below(256));
    check_metadata_server(script);
    check_chains(script);
  }
}

}  // namespace
}  // namespace sluice::fuzz
