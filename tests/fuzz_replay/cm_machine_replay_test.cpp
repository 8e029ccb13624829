// Replays the corpus of cm_machine_fuzz.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/cm_machine_properties.h"

namespace sluice::fuzz {
namespace {

TEST(CmMachineReplay, HoldsForEveryKeptScript) {
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/fuzz/corpus/cm_machine")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    SCOPED_TRACE(entry.path().string());
    check_connection_managers(bytes);
    ++inputs;
  }
  EXPECT_GT(inputs, 50u);
}

}  // namespace
}  // namespace sluice::fuzz
