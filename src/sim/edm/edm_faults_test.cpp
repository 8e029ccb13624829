// What EDM's testbed does when links corrupt blocks, switches stop and memory nodes die: mirrored networks lose nothing, one alone answers NULL.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "base/effort_test.h"
#include "base/rng.h"
#include "sim/edm/edm_testbed.h"

namespace sluice::sim {
namespace {

using edm::ModifyOp;
using edm::PortId;
using Networks = EdmTestbed::Networks;

// At least the usual; more by SLUICE_SEEDS.
std::uint64_t seeds_of(std::uint64_t usual) { return std::max(seeds(usual), usual_effort(usual)); }

const EdmTestbedHardware& hardware() {
  static const EdmTestbedHardware kLoaded = [] {
    auto loaded = load_edm_testbed_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_testbed.toml");
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
    return *loaded;
  }();
  return kLoaded;
}

// 0, or some hundred bytes to a few KiB.
std::uint32_t drawn_mega_bytes(std::uint64_t seed) {
  Rng rng = Rng(seed).fork("mega");
  return rng.below(3) == 0 ? 0 : 256u << rng.below(5);
}

// Three hosts that write, add and read; memory and answers beside a model. Each has a part of its own in every other's memory, and one word of host 0 is
// everybody's to add to. With mega-messages all of them write in bursts besides, to both others in turn, so that what follows along one circuit and
// what takes the next one stand side by side on every link; reads of several blocks and long writes hold them up on their way down.
class Drive {
 public:
  static constexpr std::uint32_t kHosts = 3;
  static constexpr std::size_t kMemory = 4'096;
  static constexpr std::size_t kBursts = 2'048;  // from here on
  static constexpr int kRounds = 25;

  Drive(std::uint64_t seed, Networks networks)
      : rng_(Rng(seed).fork("operations")),
        burst_rng_(Rng(seed).fork("bursts")),
        mega_bytes_(drawn_mega_bytes(seed)),
        bed(hardware(), {.hosts = kHosts, .memory_bytes = kMemory, .networks = networks, .mega_bytes = mega_bytes_}),
        model_(kHosts, std::vector<std::uint8_t>(kMemory)) {}

  void run() {
    Time now;
    for (int round = 0; round < kRounds; ++round) {
      bed.run(now);
      for (std::uint32_t h = 0; h < kHosts; ++h) collect(h);
      const auto from = static_cast<std::uint32_t>(rng_.below(kHosts));
      const auto to = (from + 1 + static_cast<std::uint32_t>(rng_.below(kHosts - 1))) % kHosts;
      operate(now, from, to);
      if (mega_bytes_ != 0) burst(now);
      for (std::uint32_t h = 0; h < kHosts; ++h) bed.wake_at(h, now);
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(1'500 + rng_.below(1'500)));
      if (mega_bytes_ != 0) now = now + Duration::microseconds(4);
    }
    bed.run(now + Duration::milliseconds(5));
    for (std::uint32_t h = 0; h < kHosts; ++h) collect(h);
  }
  bool memory_is_right() {
    store_le(model_[0].data(), added_);
    for (std::uint32_t h = 0; h < kHosts; ++h) {
      if (!std::ranges::equal(bed.memory(h), model_[h])) return false;
    }
    return true;
  }
  bool bursts() const { return mega_bytes_ != 0; }
  // Of the bursts: each byte says for which host it is.
  bool nothing_is_misplaced() {
    for (std::uint32_t h = 0; h < kHosts; ++h) {
      for (const std::uint8_t byte : bed.memory(h).subspan(kBursts)) {
        if (byte != 0 && byte % 4 != h) return false;
      }
    }
    return true;
  }

  std::uint64_t asked = 0;  // reads and additions
  std::uint64_t answered = 0;
  std::uint64_t nulls = 0;
  std::uint64_t wrong = 0;

 private:
  Rng rng_;
  Rng burst_rng_;
  std::uint32_t mega_bytes_;

 public:
  EdmTestbed bed;

 private:
  // Operations of a round are over before the next one begins, so that a read's answer is known.
  void operate(Time now, std::uint32_t from, std::uint32_t to) {
    const std::uint64_t part = 64 + from * 600;
    const PortId port(static_cast<std::uint16_t>(to));
    const auto bytes = static_cast<std::uint32_t>(1 + rng_.below(300));
    const std::uint64_t address = part + rng_.below(300);
    switch (rng_.below(3)) {
      case 0: {
        std::vector<std::uint8_t> data(bytes);
        for (auto& byte : data) byte = static_cast<std::uint8_t>(rng_.below(256));
        std::ranges::copy(data, model_[to].begin() + static_cast<std::ptrdiff_t>(address));
        ASSERT_TRUE(bed.host(from).write(now, port, address, data));
        return;
      }
      case 1: {
        if (from == 0) return;
        ASSERT_TRUE(bed.host(from).modify(now, PortId(0), 0, ModifyOp::kFetchAndAdd, 1 + round_, 0, last_ = ++asked));
        expected_.assign(8, 0);
        store_le(expected_.data(), added_);
        added_ += 1 + round_++;
        return;
      }
      default:
        ASSERT_TRUE(bed.host(from).read(now, port, address, bytes, last_ = ++asked));
        const auto begin = model_[to].begin() + static_cast<std::ptrdiff_t>(address);
        expected_.assign(begin, begin + bytes);
    }
  }
  void burst(Time now) {
    for (std::uint32_t from = 0; from < kHosts; ++from) {
      for (std::uint64_t i = 2 + burst_rng_.below(10); i != 0; --i) {
        const auto to = (from + 1 + static_cast<std::uint32_t>(burst_rng_.below(kHosts - 1))) % kHosts;
        const PortId port(static_cast<std::uint16_t>(to));
        if (burst_rng_.below(6) == 0) {
          ++asked;
          const auto bytes = static_cast<std::uint32_t>(1 + burst_rng_.below(100));
          ASSERT_TRUE(bed.host(from).read(now, port, burst_rng_.below(100), bytes, kAnything));
          continue;
        }
        std::vector<std::uint8_t> data(1 + burst_rng_.below(burst_rng_.below(8) == 0 ? 500 : 16));
        for (auto& byte : data) byte = static_cast<std::uint8_t>(burst_rng_.below(64) * 4 + to);
        const std::uint64_t address = kBursts + from * 600 + burst_rng_.below(100);
        std::ranges::copy(data, model_[to].begin() + static_cast<std::ptrdiff_t>(address));
        ASSERT_TRUE(bed.host(from).write(now, port, address, data));
      }
    }
  }
  void collect(std::uint32_t h) {
    for (edm::Done done; bed.host(h).poll_done(done);) {
      ++answered;
      if (done.null) {
        ++nulls;
      } else if (done.tag != kAnything && (done.data != expected_ || done.tag != last_)) {
        ++wrong;
      }
    }
  }

  std::vector<std::vector<std::uint8_t>> model_;
  static constexpr std::uint64_t kAnything = ~std::uint64_t{0};  // an answer that nobody knows
  std::vector<std::uint8_t> expected_;                           // of the last one that was asked
  std::uint64_t last_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t round_ = 0;
};

void nothing_is_lost(Drive& drive) {
  EXPECT_TRUE(drive.memory_is_right());
  EXPECT_TRUE(drive.nothing_is_misplaced());
  EXPECT_EQ(drive.answered, drive.asked);
  EXPECT_EQ(drive.nulls, 0u);
  EXPECT_EQ(drive.wrong, 0u);
}

TEST(EdmFaults, MirroredNetworksDoEverythingOnce) {
  for (std::uint64_t seed = 0; seed < usual_effort(200); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Drive drive(seed, Networks::kMirrored);
    drive.run();
    nothing_is_lost(drive);
    EXPECT_TRUE(drive.bed.in_service(0) && drive.bed.in_service(1));
    EXPECT_EQ(drive.bed.switch_stack(0).scheduler().counters().grants,
              drive.bed.switch_stack(1).scheduler().counters().grants);
  }
}

constexpr unsigned kMoreBit = 2 + 52;

using Flips = std::vector<EdmTestbed::Flip>;

// What the descrambler makes of a flipped bit on the line: that one, and those 39 and 58 bits behind it, most of them in the next block.
Flips of_descrambler(unsigned bit) {
  Flips flips;
  for (const unsigned behind : {0u, 39u, 58u}) flips.push_back({2 + (bit + behind) % 64, bit + behind >= 64});
  return flips;
}

// One flipped bit of a payload, the three that the descrambler makes of one, the one by which a write says that another follows, a bit of the sync
// header, all of it.
Flips drawn_flips(Rng& rng) {
  const auto bit = static_cast<unsigned>(rng.below(64));
  switch (rng.below(5)) {
    case 0: return {{2 + bit}};
    case 1: return of_descrambler(bit);
    case 2: return {{kMoreBit}};
    case 3: return {{static_cast<unsigned>(rng.below(2))}};
    default: return {{0}, {1}};
  }
}

// As the descrambler has it.
TEST(EdmFaults, AFlippedBitOnTheLineIsThreeBehindTheDescramblerInTwoBlocks) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    edm::Scrambler scrambler;
    edm::Descrambler descrambler;
    std::array<std::uint64_t, 3> wrong{};
    for (std::uint64_t& payload : wrong) {
      const std::uint64_t line = scrambler.scramble(0x55) ^ (&payload == wrong.data() ? std::uint64_t{1} << bit : 0);
      payload = descrambler.descramble(line) ^ 0x55;
    }
    std::array<std::uint64_t, 3> expected{};
    for (const EdmTestbed::Flip& flip : of_descrambler(bit))
      expected.at(flip.next ? 1 : 0) ^= std::uint64_t{1} << (flip.bit - 2);
    EXPECT_EQ(wrong, expected) << bit;
    EXPECT_EQ(wrong[1] != 0, bit > 5) << bit;
  }
}

TEST(EdmFaults, ACorruptedBlockTakesItsNetworkOutOfServiceAndTheMirrorLosesNothing) {
  std::uint64_t noticed = 0;
  std::uint64_t two_blocks = 0;
  const std::uint64_t all = seeds_of(2'000);
  for (std::uint64_t seed = 0; seed < all; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng = Rng(seed).fork("faults");
    Drive drive(seed, Networks::kMirrored);
    const auto network = static_cast<std::uint32_t>(rng.below(2));
    const auto host = static_cast<std::uint32_t>(rng.below(Drive::kHosts));
    const auto way = rng.below(2) == 0 ? EdmTestbed::Way::kUp : EdmTestbed::Way::kDown;
    const std::uint64_t block = rng.below(drive.bursts() ? 1'500 : 150);
    drive.bed.corrupt({.network = network, .host = host, .way = way, .block = block, .flips = drawn_flips(rng)});
    drive.run();
    nothing_is_lost(drive);
    EXPECT_TRUE(drive.bed.in_service(1 - network));
    if (drive.bed.blocks_over(network, host, way) <= block) continue;  // it never came
    EXPECT_FALSE(drive.bed.in_service(network));
    ++noticed;
    two_blocks += drive.bed.counts().spoilt_next != 0 ? 1u : 0u;
  }
  EXPECT_GT(noticed, all / 2);
  EXPECT_GT(two_blocks, all / 20);
}

// Host 0 writes to hosts 1 and 2 in turn, several small ones at once; the link down to host 1 is so full of long chunks and others' atomics that what is
// wrong with a write to it would be seen there only when what follows has been written elsewhere. So the switch must not believe it.
TEST(EdmFaults, AFlippedBitThatHidesWhatFollowsSendsNoWriteToAnotherHost) {
  const std::uint64_t all = seeds_of(2'000);
  std::uint64_t noticed = 0;
  for (std::uint64_t seed = 0; seed < all; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    EdmTestbed bed(hardware(), {.hosts = 5, .memory_bytes = 1'024, .mega_bytes = 256u << rng.below(5)});
    const std::uint64_t block = rng.below(400);
    bed.corrupt({.host = 0, .block = block, .flips = {{kMoreBit}}});
    for (int i = 0; i < 60; ++i) {
      const auto to = static_cast<std::uint32_t>(1 + rng.below(2));
      const std::uint64_t bytes = rng.below(8) == 0 ? 256 : 1 + rng.below(16);
      ASSERT_TRUE(bed.host(0).write(Time{}, PortId(static_cast<std::uint16_t>(to)), 8 + rng.below(500),
                                    std::vector<std::uint8_t>(bytes, static_cast<std::uint8_t>(to))));
    }
    for (int i = 0; i < 40; ++i) {
      for (const std::uint32_t from : {2u, 3u, 4u})
        ASSERT_TRUE(bed.host(from).modify(Time{}, PortId(1), 0, ModifyOp::kCompareAndSwap, 1, 1, 1));
    }
    for (std::uint32_t h = 0; h < 5; ++h) bed.wake(h);
    bed.run(Time::at(Duration::milliseconds(2)));
    for (std::uint32_t h = 0; h < 5; ++h) {
      EXPECT_TRUE(std::ranges::all_of(bed.memory(h), [&](std::uint8_t byte) { return byte == 0 || byte == h; }))
          << "host " << h << " has what another one should have";
    }
    if (bed.blocks_over(0, 0, EdmTestbed::Way::kUp) <= block) continue;
    EXPECT_FALSE(bed.in_service(0));
    ++noticed;
  }
  EXPECT_GT(noticed, all / 2);
}

TEST(EdmFaults, OneNetworkThatCorruptsBlocksAnswersNullAndNobodyWaitsForEver) {
  std::uint64_t nulls = 0;
  for (std::uint64_t seed = 0; seed < usual_effort(300); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng = Rng(seed).fork("faults");
    Drive drive(seed, Networks::kOne);
    drive.bed.corrupt({.host = static_cast<std::uint32_t>(rng.below(Drive::kHosts)),
                       .block = rng.below(drive.bursts() ? 600 : 60),
                       .flips = drawn_flips(rng)});
    drive.run();
    EXPECT_EQ(drive.answered, drive.asked);
    EXPECT_EQ(drive.wrong, 0u);
    EXPECT_TRUE(drive.nothing_is_misplaced());
    nulls += drive.nulls;
  }
  EXPECT_GT(nulls, usual_effort(100));
}

TEST(EdmFaults, ASwitchThatStopsAtAnyInstantLosesNothing) {
  for (std::uint64_t seed = 0; seed < usual_effort(1'500); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng = Rng(seed).fork("faults");
    Drive drive(seed, Networks::kMirrored);
    drive.bed.kill_switch(static_cast<std::uint32_t>(rng.below(2)),
                          Time::at(Duration::picoseconds(static_cast<std::int64_t>(rng.below(50'000'000)))));
    drive.run();
    nothing_is_lost(drive);
  }
}

// Each link to each network is longer by nothing, a picosecond, a metre of cable or 20 of them.
void make_links_differ(EdmTestbed& bed, std::uint64_t seed) {
  static constexpr std::array kMost{1u, 2u, 5'000u, 100'000u};
  Rng rng = Rng(seed).fork("links");
  for (std::uint32_t network = 0; network < 2; ++network) {
    for (std::uint32_t host = 0; host < Drive::kHosts; ++host) {
      const std::uint64_t longer = rng.below(kMost.at(rng.below(kMost.size())));
      bed.lengthen(network, host, Duration::picoseconds(static_cast<std::int64_t>(longer)));
    }
  }
}

// The two switches then see the requests of different hosts in another order, and grant in another one.
TEST(EdmFaults, MirroredNetworksWhoseLinksDifferDoEverythingOnce) {
  for (std::uint64_t seed = 0; seed < usual_effort(500); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Drive drive(seed, Networks::kMirrored);
    make_links_differ(drive.bed, seed);
    drive.run();
    nothing_is_lost(drive);
    EXPECT_TRUE(drive.bed.in_service(0) && drive.bed.in_service(1));
    EXPECT_EQ(drive.bed.switch_stack(0).scheduler().counters().granted_bytes,
              drive.bed.switch_stack(1).scheduler().counters().granted_bytes);
  }
}

TEST(EdmFaults, OfNetworksWhoseLinksDifferOneMayStopAtAnyInstant) {
  for (std::uint64_t seed = 0; seed < usual_effort(1'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng = Rng(seed).fork("faults");
    Drive drive(seed, Networks::kMirrored);
    make_links_differ(drive.bed, seed);
    const auto network = static_cast<std::uint32_t>(rng.below(2));
    if (rng.below(2) == 0) {
      drive.bed.kill_switch(network,
                            Time::at(Duration::picoseconds(static_cast<std::int64_t>(rng.below(150'000'000)))));
    } else {
      drive.bed.corrupt({.network = network,
                         .host = static_cast<std::uint32_t>(rng.below(Drive::kHosts)),
                         .way = rng.below(2) == 0 ? EdmTestbed::Way::kUp : EdmTestbed::Way::kDown,
                         .block = rng.below(drive.bursts() ? 1'500 : 150),
                         .flips = drawn_flips(rng)});
    }
    drive.run();
    nothing_is_lost(drive);
  }
}

// A network that brings nothing for a millisecond might as well have stopped: its copies would be taken for new ones at last.
TEST(EdmFaults, ANetworkThatLagsIsTakenOutOfService) {
  for (const std::uint32_t late : {0u, 1u}) {
    EdmTestbed bed(hardware(), 2, 16'384, {}, {}, Networks::kMirrored);
    bed.lengthen(late, 0, Duration::milliseconds(1));
    for (std::uint64_t i = 0; i < 2'000; ++i)
      ASSERT_TRUE(bed.host(0).write(Time{}, PortId(1), i * 8, std::vector<std::uint8_t>(8, 9)));
    bed.wake(0);
    bed.run(Time::at(Duration::milliseconds(10)));
    EXPECT_TRUE(bed.in_service(1 - late));
    EXPECT_FALSE(bed.in_service(late));
    EXPECT_EQ(bed.counts().lagged, 1u);
    EXPECT_EQ(std::ranges::count(bed.memory(1), 9), 16'000);
    EXPECT_EQ(bed.host(1).strays(), 0u);
  }
}

TEST(EdmFaults, ANetworkThatHasStoppedDoesNotLag) {
  EdmTestbed bed(hardware(), 2, 16'384, {}, {}, Networks::kMirrored);
  bed.kill_switch(0, Time::at(Duration::microseconds(1)));
  for (std::uint64_t i = 0; i < 2'000; ++i)
    ASSERT_TRUE(bed.host(0).write(Time{}, PortId(1), i * 8, std::vector<std::uint8_t>(8, 9)));
  bed.wake(0);
  bed.run(Time::at(Duration::milliseconds(10)));
  EXPECT_TRUE(bed.in_service(1));
  EXPECT_EQ(bed.counts().lagged, 0u);
  EXPECT_EQ(std::ranges::count(bed.memory(1), 9), 16'000);
}

// The primary stops at each instant at which something happens to a write of two chunks: the write takes as long as ever.
TEST(EdmFaults, TheBackUpGoesOnMidGrantWithoutLosingACycle) {
  const auto write = [](EdmTestbed& bed) {
    EXPECT_TRUE(bed.host(0).write(Time{}, PortId(1), 0, std::vector<std::uint8_t>(500, 9)));
    bed.wake(0);
    bed.run(Time::at(Duration::milliseconds(1)));
  };
  EdmTestbed undisturbed(hardware(), 2, 1'024, {}, {}, Networks::kMirrored);
  write(undisturbed);
  ASSERT_EQ(undisturbed.host(1).written().size(), 2u);
  std::set<Time> instants;
  for (const EdmTestbed::Passage& passage : undisturbed.passages()) instants.insert(passage.at);
  ASSERT_GE(instants.size(), 10u);
  for (const Time instant : instants) {
    for (const int later : {-1, 1}) {
      EdmTestbed bed(hardware(), 2, 1'024, {}, {}, Networks::kMirrored);
      bed.kill_switch(0, instant + Duration::picoseconds(later));
      write(bed);
      ASSERT_EQ(bed.host(1).written().size(), 2u);
      for (std::size_t chunk = 0; chunk < 2; ++chunk) {
        EXPECT_EQ(bed.host(1).written()[chunk].first_block, undisturbed.host(1).written()[chunk].first_block);
        EXPECT_EQ(bed.host(1).written()[chunk].last_block, undisturbed.host(1).written()[chunk].last_block);
      }
      EXPECT_EQ(bed.memory(1)[499], 9);
    }
  }
}

TEST(EdmFaults, ReadsOfADeadMemoryNodeAreNullWithinTheTimerAndAllOthersGoOn) {
  for (std::uint64_t seed = 0; seed < usual_effort(200); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    EdmTestbed bed(hardware(), 4, 4'096, {}, {}, Networks::kMirrored);
    // Hosts 0 and 1 read of 2, which dies on the way, and of 3.
    std::uint64_t asked = 0;
    for (std::uint64_t i = 0; i < 6; ++i) {
      for (const std::uint32_t from : {0u, 1u}) {
        for (const std::uint16_t node : {std::uint16_t{2}, std::uint16_t{3}}) {
          const auto bytes = static_cast<std::uint32_t>(1 + rng.below(1'000));
          // At most three of a pair at once, as X is.
          if (i < 3) asked += bed.host(from).read(Time{}, PortId(node), 0, bytes, node) ? 1u : 0u;
        }
      }
    }
    bed.wake(0);
    bed.wake(1);
    bed.run(Time::at(Duration::nanoseconds(static_cast<std::int64_t>(rng.below(900)))));
    bed.kill(2);
    bed.run(Time::at(Duration::milliseconds(1)));
    std::uint64_t answered = 0;
    for (const std::uint32_t from : {0u, 1u}) {
      for (edm::Done done; bed.host(from).poll_done(done); ++answered) {
        if (done.tag == 3) {
          EXPECT_FALSE(done.null);
        }
        EXPECT_LE(done.last_block, Time::at(Duration::microseconds(100)));
      }
    }
    EXPECT_EQ(answered, asked);
  }
}

}  // namespace
}  // namespace sluice::sim
