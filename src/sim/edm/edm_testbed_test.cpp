// The testbed: Table 1 to the cycle, long messages, atomics, memory that is what was written, a node that dies.
#include "sim/edm/edm_testbed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/effort_test.h"
#include "base/rng.h"
#include "sim/edm/edm_stacks.h"

namespace sluice::sim {
namespace {

using edm::ModifyOp;
using edm::PortId;

EdmTestbedHardware hardware() {
  auto loaded = load_edm_testbed_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_testbed.toml");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return *loaded;
}
std::map<std::string, double> measured(const EdmTestbedWorkload& workload) {
  const auto metrics = run_edm_testbed(hardware(), workload);
  return {metrics.begin(), metrics.end()};
}
Time end() { return Time::at(Duration::milliseconds(10)); }

TEST(EdmTestbed, AReadTakesAsLongAsTable1SaysToTheCycle) {
  auto m = measured({.operation = "read"});
  EXPECT_DOUBLE_EQ(m["first_ns"], 299.52);
  EXPECT_DOUBLE_EQ(m["compute_ns"], 12.8);
  EXPECT_DOUBLE_EQ(m["switch_ns"], 28.16);
  EXPECT_DOUBLE_EQ(m["memory_ns"], 25.6);
  EXPECT_DOUBLE_EQ(m["pcs_ns"], 40.96);
  EXPECT_DOUBLE_EQ(m["pma_ns"], 152);
  EXPECT_DOUBLE_EQ(m["propagation_ns"], 40);
  EXPECT_DOUBLE_EQ(m["last_ns"], 299.52 + 9 * 2.56);  // eight blocks of data and /MT/
}

TEST(EdmTestbed, AWriteTakesAsLongAsTable1SaysToTheCycle) {
  auto m = measured({.operation = "write"});
  EXPECT_DOUBLE_EQ(m["first_ns"], 296.96);
  EXPECT_DOUBLE_EQ(m["compute_ns"], 28.16);
  EXPECT_DOUBLE_EQ(m["switch_ns"], 28.16);
  EXPECT_DOUBLE_EQ(m["memory_ns"], 7.68);
  EXPECT_DOUBLE_EQ(m["pcs_ns"], 40.96);
}

TEST(EdmTestbed, OfAMessageOfManyChunksTheTimeToTheFirstBlockIsAllAccountedFor) {
  for (const char* operation : {"read", "write"}) {
    for (const std::uint64_t bytes : {64u, 256u, 1'024u, 1u << 20}) {
      auto m = measured({.operation = operation, .bytes = bytes});
      const double sum =
          m["compute_ns"] + m["switch_ns"] + m["memory_ns"] + m["pcs_ns"] + m["pma_ns"] + m["propagation_ns"];
      EXPECT_NEAR(sum, m["first_ns"], 1e-6) << operation << " " << bytes;
      EXPECT_GE(m["last_ns"], m["first_ns"] + static_cast<double>(bytes) / 8 * 2.56) << operation << " " << bytes;
    }
  }
}

// Table 1's "network stack latency" besides links, which its own rows add up to.
TEST(EdmStacks, AddUpToTheNetworkStackLatenciesOfTable1) {
  const EdmTestbedHardware h = hardware();
  const auto stack_ns = [&](Stack stack, bool reads) {
    Duration sum{};
    for (const Stage& stage : stages_of(h, stack, reads)) {
      if (stage.where != Stage::Where::kLink) sum = sum + stage.latency;
    }
    return static_cast<double>(sum.picoseconds()) / 1e3;
  };
  EXPECT_DOUBLE_EQ(stack_ns(Stack::kEthernet, false), 461.44);
  EXPECT_NEAR(stack_ns(Stack::kEthernet, true), 920, 5);
  EXPECT_NEAR(stack_ns(Stack::kRocev2, false), 920, 5);
  EXPECT_NEAR(stack_ns(Stack::kRocev2, true), 1'840, 5);
  EXPECT_NEAR(stack_ns(Stack::kTcp, false), 1'790, 5);
  EXPECT_NEAR(stack_ns(Stack::kTcp, true), 3'590, 5);
}

// A read passes every stage of a write twice; the paper's ratios to EDM follow.
TEST(EdmStacks, AreSlowerThanEdmByThePapersFactors) {
  const EdmTestbedHardware h = hardware();
  const auto first = [&](const char* stack, const char* operation) {
    EdmTestbedWorkload workload;
    workload.stack = stack;
    workload.operation = operation;
    return run_edm_testbed(h, workload).front().second;
  };
  EXPECT_NEAR(first("ethernet", "read") / first("edm", "read"), 3.7, 0.05);
  EXPECT_NEAR(first("rocev2", "read") / first("edm", "read"), 6.8, 0.05);
  EXPECT_NEAR(first("tcp", "read") / first("edm", "read"), 12.7, 0.1);
  EXPECT_NEAR(first("ethernet", "write") / first("edm", "write"), 1.9, 0.05);
  EXPECT_NEAR(first("rocev2", "write") / first("edm", "write"), 3.4, 0.05);
  EXPECT_NEAR(first("tcp", "write") / first("edm", "write"), 6.4, 0.05);
}

TEST(EdmTestbed, DramAddsItsTimeToAReadAndNothingToAWrite) {
  const Duration dram = Duration::nanoseconds(82);
  EXPECT_DOUBLE_EQ(measured({.operation = "read", .dram = dram})["first_ns"], 299.52 + 82);
  EXPECT_DOUBLE_EQ(measured({.operation = "write", .dram = dram})["first_ns"], 296.96);
}

// As slow as a file may have it, with all that an operation may be.
EdmTestbedHardware slowest() {
  EdmTestbedHardware slow = hardware();
  slow.bits_per_second = kSlowestLinkMbps * 1'000'000;
  for (Duration* const stage : {&slow.cycle, &slow.clock, &slow.pcs_latency, &slow.pma_latency, &slow.propagation})
    *stage = kLongestStage;
  return slow;
}

TEST(EdmTestbed, OnTheSlowestHardwareALongOperationHasItsAnswer) {
  for (const char* operation : {"read", "write"}) {
    const EdmTestbedWorkload workload{.operation = operation, .bytes = 1u << 20, .dram = kLongestStage};
    const auto metrics = run_edm_testbed(slowest(), workload);
    const std::map<std::string, double> m(metrics.begin(), metrics.end());
    EXPECT_GE(m.at("last_ns"), (1u << 17) * 64e3) << operation;
    EXPECT_LT(m.at("last_ns"), 1e12) << operation;
  }
}

TEST(EdmTestbed, OnTheSlowestHardwareAnOperationBetweenFramesHasItsAnswer) {
  const EdmTestbedWorkload workload{.operation = "read",
                                    .bytes = 4'096,
                                    .dram = kLongestStage,
                                    .background = {.frame_bytes = 9'000, .percent = 100, .preemption = false}};
  EXPECT_LT(run_edm_testbed(slowest(), workload).front().second, 1e12);
}

TEST(EdmTestbed, MemoryIsWhatAModelOfItSaysUnderReadsWritesAndAtomics) {
  for (std::uint64_t seed = 0; seed < usual_effort(60); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    constexpr std::uint32_t kHosts = 4;
    constexpr std::size_t kMemory = 8'192;
    EdmTestbed bed(hardware(), kHosts, kMemory, Duration::nanoseconds(static_cast<std::int64_t>(rng.below(100))));
    // Each host writes a quarter of its own in every other's memory, and all add to one word of host 0's.
    std::vector<std::vector<std::uint8_t>> model(kHosts, std::vector<std::uint8_t>(kMemory));
    std::uint64_t added = 0;
    std::uint64_t adds = 0;
    Time now;
    for (int round = 0; round < 150; ++round) {
      const auto from = static_cast<std::uint32_t>(rng.below(kHosts));
      const auto to = (from + 1 + static_cast<std::uint32_t>(rng.below(kHosts - 1))) % kHosts;
      const std::uint64_t quarter = 16 + from * 2'000;
      const auto bytes = static_cast<std::uint32_t>(1 + rng.below(900));
      const std::uint64_t address = quarter + rng.below(1'000);
      bed.run(now);
      if (rng.below(3) == 0 && to == 0) {
        const std::uint64_t much = rng.below(1'000);
        ASSERT_TRUE(bed.host(from).modify(now, PortId(0), 0, ModifyOp::kFetchAndAdd, much, 0, 1));
        added += much;
        ++adds;
      } else {
        std::vector<std::uint8_t> data(bytes);
        for (auto& byte : data) byte = static_cast<std::uint8_t>(rng.below(256));
        std::ranges::copy(data, model[to].begin() + static_cast<std::ptrdiff_t>(address));
        ASSERT_TRUE(bed.host(from).write(now, PortId(static_cast<std::uint16_t>(to)), address, data));
      }
      bed.wake(from);
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(700 + rng.below(2'000)));
    }
    bed.run(end());
    store_le(model[0].data(), added);
    for (std::uint32_t h = 0; h < kHosts; ++h) {
      EXPECT_TRUE(std::ranges::equal(bed.memory(h), model[h])) << "host " << h;
      EXPECT_EQ(bed.host(h).strays(), 0u);
    }
    EXPECT_EQ(bed.switch_stack().refused(), 0u);
    // And each of them reads what is there.
    for (std::uint32_t h = 1; h < kHosts; ++h) {
      edm::Done done;
      while (bed.host(h).poll_done(done)) --adds;
      ASSERT_TRUE(bed.host(h).read(bed.now(), PortId(0), 3, 3'000, 7));
      bed.wake(h);
      bed.run(end() + Duration::milliseconds(10));
      ASSERT_TRUE(bed.host(h).poll_done(done));
      EXPECT_FALSE(done.null);
      EXPECT_TRUE(std::ranges::equal(done.data, std::span(model[0]).subspan(3, 3'000)));
    }
    EXPECT_EQ(adds, 0u);
  }
}

// Requests of several blocks and chunks meet in the switch's links down, from several hosts at once; none breaks another up.
TEST(EdmTestbed, ReadsAndWritesOfSeveralHostsUnderWayAtOnceAllComeThrough) {
  for (std::uint64_t seed = 0; seed < usual_effort(200); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    constexpr std::uint32_t kHosts = 4;
    EdmTestbed bed(hardware(), kHosts, 4'096, Duration::nanoseconds(static_cast<std::int64_t>(rng.below(100))));
    for (std::uint32_t h = 0; h < kHosts; ++h)
      std::ranges::fill(bed.memory(h).first(2'048), static_cast<std::uint8_t>(h));
    std::uint64_t reads = 0;
    std::uint64_t answers = 0;
    for (int round = 0; round < 10; ++round) {
      // No more of a pair than X allows.
      for (std::uint32_t from = 0; from < kHosts; ++from) {
        for (std::uint16_t to = 0; to < kHosts; ++to) {
          if (from == to) continue;
          const auto bytes = static_cast<std::uint32_t>(1 + rng.below(700));
          ASSERT_TRUE(bed.host(from).read(bed.now(), PortId(to), rng.below(1'000), bytes, to));
          ++reads;
          ASSERT_TRUE(
              bed.host(from).write(bed.now(), PortId(to), 2'048 + from * 512,
                                   std::vector<std::uint8_t>(1 + rng.below(500), static_cast<std::uint8_t>(from))));
        }
        bed.wake(from);
      }
      bed.run(bed.now() + Duration::microseconds(20));
      for (std::uint32_t h = 0; h < kHosts; ++h) {
        for (edm::Done done; bed.host(h).poll_done(done); ++answers) {
          ASSERT_FALSE(done.null);
          for (const std::uint8_t byte : done.data) ASSERT_EQ(byte, done.tag);
        }
      }
    }
    EXPECT_EQ(answers, reads);
    EXPECT_TRUE(bed.in_service(0));
    EXPECT_EQ(bed.switch_stack().refused(), 0u);
    for (std::uint32_t h = 0; h < kHosts; ++h) {
      EXPECT_EQ(bed.host(h).strays(), 0u);
      for (std::uint32_t from = 0; from < kHosts; ++from) {
        EXPECT_EQ(bed.memory(h)[2'048 + from * 512], h == from ? 0 : from);
      }
    }
  }
}

// Bursts of small writes, several of which ask as one: memory is as after one write after another, no pair has more than X notifications in the
// switch, and no circuit is left over. On mirrored networks, of which one may stop meanwhile.
TEST(EdmTestbed, WritesThatAskAsOneAreWrittenInOrderWithinX) {
  std::uint64_t batched = 0;
  for (std::uint64_t seed = 0; seed < usual_effort(300); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    constexpr std::uint32_t kHosts = 3;
    const auto active = static_cast<std::uint32_t>(1 + rng.below(3));
    const bool mirrored = rng.below(2) == 0;
    EdmTestbed bed(hardware(), {.hosts = kHosts,
                                .memory_bytes = 4'096,
                                .networks = mirrored ? EdmTestbed::Networks::kMirrored : EdmTestbed::Networks::kOne,
                                .active_per_pair = active,
                                .policy = rng.below(2) == 0 ? edm::Policy::kFirstCome : edm::Policy::kShortestRemaining,
                                .mega_bytes = 64u << rng.below(7)});
    if (mirrored && rng.below(2) == 0)
      bed.kill_switch(static_cast<std::uint32_t>(rng.below(2)),
                      Time::at(Duration::nanoseconds(100) * (1 + static_cast<std::int64_t>(rng.below(50)))));
    std::vector<std::vector<std::uint8_t>> model(kHosts, std::vector<std::uint8_t>(4'096));
    for (int burst = 0; burst < 10; ++burst) {
      for (int i = 0; i < 30; ++i) {
        const auto from = static_cast<std::uint32_t>(rng.below(kHosts));
        const auto to = (from + 1 + static_cast<std::uint32_t>(rng.below(kHosts - 1))) % kHosts;
        // A sender's writes overlap; senders' parts do not.
        const std::uint64_t address = from * 1'024 + rng.below(600);
        const std::vector<std::uint8_t> data(1 + rng.below(rng.below(4) == 0 ? 400 : 40),
                                             static_cast<std::uint8_t>(rng.below(256)));
        std::ranges::copy(data, model[to].begin() + static_cast<std::ptrdiff_t>(address));
        ASSERT_TRUE(bed.host(from).write(bed.now(), PortId(static_cast<std::uint16_t>(to)), address, data));
        bed.wake(from);
      }
      while (bed.run_one()) {
        for (std::uint16_t a = 0; a < kHosts; ++a) {
          for (std::uint16_t b = 0; b < kHosts; ++b)
            ASSERT_LE(bed.switch_stack().scheduler().active(PortId(a), PortId(b), edm::DemandKind::kWrite), active);
        }
      }
    }
    for (std::uint32_t h = 0; h < kHosts; ++h) {
      EXPECT_TRUE(std::ranges::equal(bed.memory(h), model[h])) << "host " << h;
      EXPECT_EQ(bed.host(h).strays(), 0u);
      batched += bed.host(h).batched();
    }
    EXPECT_EQ(bed.switch_stack().refused(), 0u);
  }
  EXPECT_GT(batched, usual_effort(10'000));
}

// Host 0 reads of host 1, which writes to host 0; others keep the link down to host 0 full, so that the reads' timers end in masses while their requests
// wait in the switch, and those that follow are refused.
struct ExpiredReads {
  ExpiredReads(Rng& rng, std::uint32_t active)
      : bed(hardware(), {.hosts = 4,
                         .memory_bytes = 8'192,
                         .active_per_pair = active,
                         .policy = rng.below(2) == 0 ? edm::Policy::kFirstCome : edm::Policy::kShortestRemaining,
                         .read_timer = Duration::nanoseconds(800),
                         .mega_bytes = static_cast<std::uint32_t>(rng.below(2) * 1'024)}),
        model(8'192) {
    for (std::uint32_t from = 1; from < 4; ++from) {
      for (int i = 0; i < 30; ++i) {
        const std::vector<std::uint8_t> data(1 + rng.below(from == 1 ? 100 : 1'500),
                                             static_cast<std::uint8_t>(rng.below(256)));
        const std::uint64_t address = from * 2'000 + rng.below(400);
        std::ranges::copy(data, model.begin() + static_cast<std::ptrdiff_t>(address));
        EXPECT_TRUE(bed.host(from).write(Time{}, PortId(0), address, data));
      }
    }
    for (std::uint32_t h = 0; h < 4; ++h) bed.wake(h);
    // As many at once as X lets go: the next ones when their timers have ended.
    for (std::uint32_t asked = 0; asked < 100;) {
      for (std::uint32_t i = 0; i < active && asked < 100; ++i, ++asked) {
        const auto bytes = 1 + static_cast<std::uint32_t>(rng.below(1'000));
        EXPECT_TRUE(bed.host(0).read(bed.now(), PortId(1), 0, bytes, kMany));
      }
      bed.wake(0);
      bed.run(bed.now() + Duration::nanoseconds(800));
    }
    bed.run(end());
    for (edm::Done done; bed.host(0).poll_done(done); ++over) nulls += done.null ? 1 : 0;
  }

  static constexpr std::uint64_t kMany = ~std::uint64_t{0};
  EdmTestbed bed;
  std::vector<std::uint8_t> model;  // of host 0's memory
  std::uint64_t over = 0;
  std::uint64_t nulls = 0;
};

TEST(EdmTestbed, WritesArriveHoweverManyReadsOfTheSamePairHaveExpired) {
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 0; seed < usual_effort(200); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ExpiredReads reads(rng, static_cast<std::uint32_t>(1 + rng.below(3)));
    EXPECT_EQ(reads.over, 100u);
    EXPECT_GT(reads.nulls, 0u);
    EXPECT_TRUE(std::ranges::equal(reads.bed.memory(0), reads.model));
    EXPECT_EQ(reads.bed.switch_stack().scheduler().waiting_messages(), 0u);
    refused += reads.bed.switch_stack().refused();
  }
  EXPECT_GT(refused, usual_effort(1'000));
}

// After that, host 0 reads what it has written as soon as that has left, while atomics of others stand before it in the link down to host 1.
TEST(EdmTestbed, AfterRefusedReadsNoReadPassesAWriteOfItsSender) {
  std::uint64_t held = 0;
  for (std::uint64_t seed = 0; seed < usual_effort(100); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ExpiredReads reads(rng, 3);
    EdmTestbed& bed = reads.bed;
    ASSERT_GT(bed.switch_stack().refused(), 0u);
    const std::uint64_t held_before = bed.counts().held_requests;
    constexpr std::uint64_t kWrites = 40;
    constexpr std::uint64_t kLast = 256;  // where the last chunk of each write says which one it is
    for (int i = 0; i < 60; ++i) {
      for (const std::uint32_t from : {2u, 3u})
        ASSERT_TRUE(bed.host(from).modify(bed.now(), PortId(1), 1'024, ModifyOp::kCompareAndSwap, 1, 1, 1));
    }
    for (std::uint64_t i = 1; i <= kWrites; ++i) {
      std::vector<std::uint8_t> data(kLast + 8);
      store_le(data.data() + kLast, i);
      ASSERT_TRUE(bed.host(0).write(bed.now(), PortId(1), 0, data));
    }
    for (std::uint32_t h = 0; h < 4; ++h) bed.wake(h);
    std::uint64_t left = bed.host(0).writes_left(PortId(1));
    std::uint64_t answers = 0;
    while (bed.run_one()) {
      for (edm::Done done; bed.host(0).poll_done(done);) {
        if (done.null) continue;
        ++answers;
        EXPECT_GE(load_le<std::uint64_t>(done.data.data()), done.tag);
      }
      if (left == bed.host(0).writes_left(PortId(1))) continue;
      left = bed.host(0).writes_left(PortId(1));
      ASSERT_TRUE(bed.host(0).read(bed.now(), PortId(1), kLast, 8, left));
      bed.wake(0);
    }
    EXPECT_EQ(left, kWrites);
    EXPECT_GT(answers, 0u);
    held += bed.counts().held_requests - held_before;
  }
  EXPECT_GT(held, usual_effort(100));
}

TEST(EdmTestbed, CompareAndSwapLetsOneOfTwoWin) {
  EdmTestbed bed(hardware(), 3, 64, {});
  for (const std::uint32_t h : {1u, 2u}) {
    ASSERT_TRUE(bed.host(h).modify(Time{}, PortId(0), 8, ModifyOp::kCompareAndSwap, 100 + h, 0, h));
    bed.wake(h);
  }
  bed.run(end());
  int won = 0;
  for (const std::uint32_t h : {1u, 2u}) {
    edm::Done done;
    ASSERT_TRUE(bed.host(h).poll_done(done));
    if (load_le<std::uint64_t>(done.data.data()) != 0) continue;
    ++won;
    EXPECT_EQ(load_le<std::uint64_t>(bed.memory(0).data() + 8), 100 + h);
  }
  EXPECT_EQ(won, 1);
}

TEST(EdmTestbed, AReadOfADeadNodeIsNullWhenItsTimerEndsAndOthersGoOn) {
  EdmTestbed bed(hardware(), 3, 4'096, {});
  bed.kill(1);
  ASSERT_TRUE(bed.host(0).read(Time{}, PortId(1), 0, 64, 1));
  ASSERT_TRUE(bed.host(0).read(Time{}, PortId(2), 0, 1'000, 2));
  bed.wake(0);
  bed.run(end());
  edm::Done done;
  ASSERT_TRUE(bed.host(0).poll_done(done));
  EXPECT_EQ(done.tag, 2u);
  EXPECT_FALSE(done.null);
  ASSERT_TRUE(bed.host(0).poll_done(done));
  EXPECT_EQ(done.tag, 1u);
  EXPECT_TRUE(done.null);
  EXPECT_EQ(done.last_block, Time::at(Duration::microseconds(100)));
}

TEST(EdmTestbed, AReadOutsideMemoryIsNullAtOnce) {
  EdmTestbed bed(hardware(), 2, 4'096, {});
  ASSERT_TRUE(bed.host(0).read(Time{}, PortId(1), 4'090, 64, 1));
  bed.wake(0);
  bed.run(Time::at(Duration::microseconds(1)));
  edm::Done done;
  ASSERT_TRUE(bed.host(0).poll_done(done));
  EXPECT_TRUE(done.null);
}

EdmTestbedWorkload beside_frames(std::uint32_t bytes, std::uint32_t percent, bool preemption, std::uint64_t seed = 1) {
  EdmTestbedWorkload workload;
  workload.background = {.frame_bytes = bytes, .percent = percent, .preemption = preemption, .seed = seed};
  workload.operations = 20;
  return workload;
}

TEST(EdmTestbed, FramesHoldUpMemoryByLessThanABlockALinkWhenTheyArePreempted) {
  for (const std::uint32_t bytes : {64u, 1'500u, 9'000u}) {
    for (const std::uint32_t percent : {50u, 100u}) {
      for (const char* operation : {"read", "write"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", bytes, percent, operation));
        EdmTestbedWorkload workload = beside_frames(bytes, percent, true);
        workload.operation = operation;
        auto m = measured(workload);
        EXPECT_GE(m["first_ns"], 296);
        EXPECT_LT(m["most_ns"], 299.52 + 4 * 2.56);
        EXPECT_GT(m["frames"], 0);
      }
    }
  }
}

TEST(EdmTestbed, BesideFramesAnOperationOfManyChunksIsOverBeforeTheNext) {
  for (const char* operation : {"read", "write"}) {
    EdmTestbedWorkload workload = beside_frames(1'500, 50, true);
    workload.operation = operation;
    workload.bytes = 1u << 20;  // takes longer than a read's timer at the testbed's own
    workload.operations = 3;
    auto m = measured(workload);
    EXPECT_GT(m["first_ns"], 296.9) << operation;
    EXPECT_GT(m["frames"], 3 * (1u << 20) / 3'000) << operation;  // as many as there were while all bytes came
  }
}

TEST(EdmTestbed, WithoutPreemptionMemoryWaitsForFramesToEnd) {
  // A frame of 9,000 bytes and its gap take 2.9 us of a link of 25 Gb/s; there are four links.
  auto m = measured(beside_frames(9'000, 100, false));
  EXPECT_GT(m["first_ns"], 2'900);
  EXPECT_LT(m["most_ns"], 300 + 4 * 2'900);
  EXPECT_LT(measured(beside_frames(1'500, 100, false))["first_ns"], m["first_ns"] / 2);
  EXPECT_LT(measured(beside_frames(9'000, 0, false))["most_ns"], 299.52 + 4 * 2.56);
}

TEST(EdmTestbed, EveryFrameBesideMemoryComesOutAsItWentIn) {
  for (std::uint64_t seed = 0; seed < usual_effort(30); ++seed) {
    SCOPED_TRACE(seed);
    EdmTestbed bed(
        hardware(), 3, 4'096, {},
        {.frame_bytes = 64 + static_cast<std::uint32_t>(seed * 47), .percent = 80, .preemption = true, .seed = seed});
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(bed.host(0).write(bed.now(), PortId(1), 64, std::vector<std::uint8_t>(500, 7)));
      bed.wake(0);
      bed.run(bed.now() + Duration::microseconds(2));
      ASSERT_EQ(bed.host(1).written().back().bytes, 500u % 256);
      ASSERT_EQ(bed.memory(1)[64 + 499], 7);
    }
    EXPECT_GT(bed.frames(), 100u);
    EXPECT_EQ(bed.broken_frames(), 0u);
  }
}

// The scheduler has granted all chunks of an answer that is NULL; what the node sends next must not go along the circuits of those.
TEST(EdmTestbed, ALongReadOutsideMemoryLeavesNoCircuitBehind) {
  EdmTestbed bed(hardware(), 3, 1'024, {});
  ASSERT_TRUE(bed.host(0).read(Time{}, PortId(1), 4'096, 1'000, 1));
  bed.wake(0);
  bed.run(end());
  edm::Done done;
  ASSERT_TRUE(bed.host(0).poll_done(done));
  EXPECT_TRUE(done.null);
  ASSERT_TRUE(bed.host(1).write(bed.now(), PortId(2), 64, std::vector<std::uint8_t>(300, 5)));
  bed.wake(1);
  bed.run(bed.now() + Duration::milliseconds(1));
  EXPECT_EQ(bed.memory(2)[64 + 299], 5);
  EXPECT_EQ(bed.memory(0)[64], 0);
}

}  // namespace
}  // namespace sluice::sim
