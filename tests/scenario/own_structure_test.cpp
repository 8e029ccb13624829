// A data structure of one's own, on whatever carries RemoteMemory: the example of docs/guides/new-structure.md. It counts, by keys, in the memory
// of a node whose processor does nothing for it.
#include <gtest/gtest.h>

#include <vector>

#include "remote/test_loop.h"
#include "sim/load/fabric.h"

namespace sluice {
namespace {

using remote::RemoteAddress;
using remote::RemoteMemory;
using remote::Status;
using remote::Task;

// Buckets of two words, key and count; a key has the first free one from where its hash points. Keys are not 0, and there are fewer than buckets.
struct Tally {
  static constexpr std::uint64_t kBucket = 16;

  RemoteAddress table;
  std::uint64_t buckets = 0;

  // kUnknown: it may have been counted, or not. Whoever tries again then may count twice.
  Task<Status> add(RemoteMemory& memory, std::uint64_t key, std::uint64_t n) const {
    for (std::uint64_t i = key * 7919;; ++i) {
      const RemoteAddress bucket = table + i % buckets * kBucket;
      const auto claimed = co_await memory.compare_and_swap(bucket, 0, key);
      if (claimed.status != Status::kOk) co_return claimed.status;
      if (claimed.prior != 0 && claimed.prior != key) continue;
      const auto added = co_await memory.fetch_and_add(bucket + 8, n);
      co_return added.status;
    }
  }
};

struct Outcome {
  std::uint64_t counted = 0;
  std::uint64_t unknown = 0;
  std::uint64_t refused = 0;
  std::uint64_t ended = 0;
};

constexpr std::uint64_t kBuckets = 64;
constexpr std::uint64_t kClients = 4;
constexpr std::uint64_t kTimes = 50;

Task<void> count(const Tally& tally, RemoteMemory& memory, std::uint64_t client, Outcome& outcome) {
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    const Status status = co_await tally.add(memory, 1 + (client + i * 5) % 40, 1);
    if (status == Status::kOk) ++outcome.counted;
    if (status == Status::kUnknown) ++outcome.unknown;
    if (status == Status::kUnsupported) ++outcome.refused;
  }
  ++outcome.ended;
}

std::uint64_t sum_of(ByteView bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 8; at < bytes.size(); at += Tally::kBucket) sum += load_le<std::uint64_t>(bytes.data() + at);
  return sum;
}

TEST(OwnStructure, CountsEachOnceWhateverTheInterleavingAndLosesNothingButWhatItSaysIsUnknown) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    remote::TestLoop loop({.mode = remote::LocalMode::kSeeded,
                           .seed = seed,
                           .disconnect_per_million = 3000,
                           .straggler_lifetime = Duration::microseconds(1)});
    const auto node = loop.fabric.add_node();
    const Tally tally{loop.fabric.add_region(node, 0x1000, kBuckets * Tally::kBucket), kBuckets};
    std::vector<std::unique_ptr<remote::LocalMemory>> memories;
    Outcome outcome;
    for (std::uint64_t client = 0; client < kClients; ++client) {
      memories.push_back(std::make_unique<remote::LocalMemory>(loop.scheduler, loop.fabric));
      loop.scheduler.spawn(count(tally, *memories.back(), client, outcome));
    }
    loop.run_until([&] { return outcome.ended == kClients; });
    loop.run_for(Duration::microseconds(10));
    const std::uint64_t sum = sum_of(loop.fabric.region_bytes(tally.table));
    EXPECT_GE(sum, outcome.counted) << "seed " << seed;
    EXPECT_LE(sum, outcome.counted + outcome.unknown) << "seed " << seed;
  }
}

// On a rack of machines with the timing of ConnectX-5, in virtual time.
Outcome simulate(std::unique_ptr<sim::Fabric> fabric, std::vector<std::uint8_t>& bytes) {
  const std::size_t server = fabric->add_machine();
  fabric->share(server, bytes);
  const Tally tally{fabric->memory_of(server), kBuckets};
  Outcome outcome;
  for (std::uint64_t client = 0; client < kClients; ++client) {
    sim::Tenant& tenant = fabric->add_tenant(fabric->add_machine(), {server});
    tenant.scheduler().spawn(count(tally, tenant.memory(), client, outcome));
  }
  EXPECT_TRUE(
      fabric->loop().run_until(Time() + Duration::milliseconds(100), [&] { return outcome.ended == kClients; }));
  return outcome;
}

sim::Hardware hardware() {
  return sim::load_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/connectx5-dcqcn.toml").value();
}

TEST(OwnStructure, CountsOverRcInTheSimulator) {
  std::vector<std::uint8_t> bytes(kBuckets * Tally::kBucket);
  const Outcome outcome = simulate(sim::make_rc_fabric(hardware(), {}, 1), bytes);
  EXPECT_EQ(outcome.counted, kClients * kTimes);
  EXPECT_EQ(sum_of(bytes), kClients * kTimes);
}

TEST(OwnStructure, IsToldOver1RmaThatThereAreNoAtomics) {
  std::vector<std::uint8_t> bytes(kBuckets * Tally::kBucket);
  const Outcome outcome = simulate(sim::make_onerma_fabric(hardware(), {}, 1), bytes);
  EXPECT_EQ(outcome.refused, kClients * kTimes);
  EXPECT_EQ(sum_of(bytes), 0u);
}

}  // namespace
}  // namespace sluice
