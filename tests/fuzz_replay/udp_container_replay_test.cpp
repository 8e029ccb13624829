// Replays the corpus of udp_container_fuzz.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/udp_properties.h"

namespace sluice::fuzz {
namespace {

TEST(UdpContainerReplay, HoldsForEveryKeptInput) {
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/fuzz/corpus/udp_container")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    SCOPED_TRACE(entry.path().string());
    check_container(bytes);
    check_sessions(bytes);
    ++inputs;
  }
  EXPECT_GT(inputs, 20u);
}

}  // namespace
}  // namespace sluice::fuzz
