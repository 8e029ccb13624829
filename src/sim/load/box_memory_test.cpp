#include "sim/load/box_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <set>
#include <string>

#include "base/effort_test.h"

namespace sluice::sim {
namespace {

std::size_t total(const BoxMemoryWorkload& w) {
  std::size_t bytes = 0;
  for (const auto& use : make_box(w)->account()) bytes += use.bytes;
  return bytes;
}

// That is in use, in bytes: what is mapped, but of the heap only what has been given out (the rest is left from earlier tests).
std::size_t memory_in_use() {
  std::ifstream in("/proc/self/statm");
  std::size_t pages = 0;
  in >> pages;
  const struct mallinfo2 heap = mallinfo2();
  return pages * 4096 - heap.arena + heap.uordblks;
}

TEST(BoxMemory, EveryFeatureHasTables) {
  std::set<std::string_view> features;
  for (const auto& use : make_box({})->account()) {
    EXPECT_GT(use.bytes, 0u) << use.table;
    EXPECT_GT(use.entries, 0u) << use.table;
    features.insert(swordbox::feature_name(use.feature));
  }
  EXPECT_EQ(features, (std::set<std::string_view>{"connections", "holding", "steering", "replacing"}));
}

// What the account says is what the system gives: nothing large is forgotten, nothing counted twice.
TEST(BoxMemory, IsWhatTheProcessUsesMore) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "a sanitizer's heap keeps no such account";
  const BoxMemoryWorkload w{.connections = 2048, .keys = 4096, .words = 1u << 20};
  const std::size_t before = memory_in_use();
  const auto box = make_box(w);
  const auto grown = static_cast<double>(memory_in_use() - before);
  const auto said = static_cast<double>(total(w));
  EXPECT_NEAR(grown / said, 1, 0.1) << "said " << said << ", grown " << grown;
}

TEST(BoxMemory, GrowsWithWhatItIsMadeFor) {
  const std::size_t least = total({.connections = 64, .keys = 64, .nodes = 1024, .words = 1024, .held_packets = 64});
  EXPECT_GT(total({.connections = 128, .keys = 64, .nodes = 1024, .words = 1024, .held_packets = 64}), least);
  EXPECT_GT(total({.connections = 64, .keys = 256, .nodes = 1024, .words = 1024, .held_packets = 64}), least);
  EXPECT_GT(total({.connections = 64, .keys = 64, .nodes = 4096, .words = 1024, .held_packets = 64}), least);
  EXPECT_GT(total({.connections = 64, .keys = 64, .nodes = 1024, .words = 4096, .held_packets = 64}), least);
  EXPECT_GT(total({.connections = 64, .keys = 64, .nodes = 1024, .words = 1024, .held_packets = 128}), least);
  EXPECT_GT(total({.connections = 64, .keys = 64, .nodes = 1024, .words = 1024, .held_packets = 64, .ring = 256}),
            least);
  EXPECT_GT(total({.connections = 64, .keys = 64, .nodes = 1024, .words = 1024, .held_packets = 64, .most_keys = 4096}),
            least);
}

TEST(BoxMemory, AFeatureIsAPartOfAll) {
  const auto kib = [](const char* feature) {
    BoxMemoryWorkload w;
    w.feature = feature;
    return run_box_memory(w).front().second;
  };
  EXPECT_NEAR(kib("connections") + kib("holding") + kib("steering") + kib("replacing"), kib("all"), 0.01);
}

}  // namespace
}  // namespace sluice::sim
