// What kvcache_fuzz demands, for random scripts, and for bytes near those that are right.
#include <gtest/gtest.h>

#include "fuzz/kvcache_properties.h"
#include "kvcache/layout.h"
#include "tests/fuzz_replay/kept_inputs.h"

namespace sluice::fuzz {
namespace {

TEST(KvcacheReplay, HoldsForRandomScripts) {
  Rng rng(1);
  const std::uint64_t most = rounds(3'000);
  for (std::uint64_t round = 0; round < most; ++round) {
    Input script(rng.below(600));
    for (auto& byte : script) byte = static_cast<std::uint8_t>(rng.next());
    check_kvcache_server(script);
    check_kvcache_bytes(script);
  }
}

// Whose checksum is right nearly always fails when a bit is wrong; who reads on regardless is seen by the sanitizers.
TEST(KvcacheReplay, HoldsNearRightBytes) {
  std::vector<KeptInput> inputs(3);
  const Input key(9, 'k'), value(100, 'v');
  const kvcache::Entry entry{.hash = kvcache::hash_of(key), .version = kvcache::Version(3), .key = key, .value = value};
  inputs[0].bytes.resize(entry.bytes());
  entry.write(inputs[0].bytes.data(), 1);
  inputs[1].bytes.resize(kvcache::kTableHeader);
  kvcache::TableHeader{7, {.buckets = 64, .log_bytes = 4096}}.write(inputs[1].bytes.data());
  inputs[2].bytes.resize(kvcache::kAnswerBytes);
  kvcache::Answer{4, kvcache::ChangeOutcome::kTaken, kvcache::Version(9)}.write(inputs[2].bytes.data());
  for (const KeptInput& input : inputs) check_kvcache_bytes(input.bytes);
  search_near(inputs, rounds(20'000), check_kvcache_bytes);
}

}  // namespace
}  // namespace sluice::fuzz
