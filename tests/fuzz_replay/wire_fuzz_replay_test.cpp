// Replays the corpora of wire_fuzz and cm_fuzz: what once broke a property, or nearly did, is tried again at every run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/wire_properties.h"

namespace sluice::fuzz {
namespace {

std::size_t replay(const char* corpus, void (*check)(ByteView)) {
  std::size_t inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(SLUICE_SOURCE_DIR "/fuzz/corpus") / corpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    SCOPED_TRACE(entry.path().string());
    check(bytes);
    ++inputs;
  }
  return inputs;
}

TEST(WireFuzzReplay, HoldsForEveryKeptFrame) { EXPECT_GT(replay("wire", check_frame), 50u); }
TEST(WireFuzzReplay, HoldsForEveryKeptDatagram) { EXPECT_GT(replay("cm", check_cm), 10u); }

}  // namespace
}  // namespace sluice::fuzz
