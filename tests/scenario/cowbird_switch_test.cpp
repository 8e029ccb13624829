// Cowbird's switch engine between NICs and memory nodes that know nothing of it, over good and bad links, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/effort_test.h"
#include "cowbird/random_driver.h"
#include "tests/scenario/cowbird_rack.h"

namespace sluice::scenario {
namespace {

using cowbird::pattern;
using cowbird::RequestId;
using cowbird::Status;
using Driver = cowbird::RandomDriver<CowbirdRack>;

TEST(CowbirdSwitch, ReadsAndWritesThroughTheSwitch) {
  CowbirdRack rack({});
  rack.start();
  const auto there = pattern(40, 7);
  std::copy(there.begin(), there.end(), rack.pool().begin() + 100);
  std::vector<std::uint8_t> into(40), back(24);
  auto source = pattern(24, 1);
  const auto sent = source;
  ASSERT_GT(rack.channel().async_read(0, 100, into.data(), 40), 0);
  ASSERT_GT(rack.channel().async_write(0, source.data(), 4096, 24), 0);
  std::fill(source.begin(), source.end(), 0xEE);
  ASSERT_GT(rack.channel().async_read(0, 4096, back.data(), 24), 0);
  ASSERT_EQ(rack.wait_for(3).size(), 3u);
  EXPECT_EQ(into, there);
  EXPECT_EQ(back, sent);
}

void run_against(const CowbirdRackOptions& options, const Driver::Options& load, bool restarts = false,
                 int turns = 1500) {
  CowbirdRack rack(options);
  rack.start();
  Driver driver(rack, options.seed, load);
  Rng rng = Rng(options.seed).fork("adversary");
  for (int i = 0; i < turns; ++i) {
    driver.issue_some();
    rack.step(static_cast<int>(rng.below(40)));
    driver.take();
    if (testing::Test::HasFatalFailure()) return;
    if (restarts && rng.below(100) == 0) rack.restart_engine();
  }
  ASSERT_TRUE(rack.run_until([&] {
    driver.take();
    return testing::Test::HasFatalFailure() || driver.completed() == driver.issued();
  })) << driver.completed()
      << " of " << driver.issued() << "; broken: " << rack.engine_channel().broken();
  EXPECT_TRUE(driver.model_is_pool());
  EXPECT_FALSE(rack.engine_channel().broken());
}

template <class Run>
void for_seeds(std::uint64_t usual, Run run) {
  for (std::uint64_t seed = 1, last = seeds(usual); seed <= last; ++seed) {
    SCOPED_TRACE(seed);
    run(seed);
    if (testing::Test::HasFailure()) return;
  }
}

const cowbird::Shape kSmall{.entries = 16, .request_bytes = 256, .response_bytes = 320};
const cowbird::Shape kWide{.entries = 16, .request_bytes = 16384, .response_bytes = 20480};
const Driver::Options kLong{.span = 6000, .longest = 5000};
// Up to all of a data ring.
Driver::Options small_load(std::uint64_t seed) { return {.longest = seed % 3 == 0 ? 320u : 48u}; }
Driver::Options long_load(std::uint64_t seed) { return {.span = 6000, .longest = seed % 3 == 0 ? 20480u : 5000u}; }

TEST(CowbirdSwitch, ReadsSeeEarlierWrites) {
  for_seeds(10, [](std::uint64_t seed) { run_against({.seed = seed, .shape = kSmall}, small_load(seed)); });
}

TEST(CowbirdSwitch, NothingIsLostOrDoneTwiceOnBadLinks) {
  for_seeds(60, [](std::uint64_t seed) {
    run_against({.seed = seed, .rate = 20'000, .corrupt = 5'000, .shape = kSmall}, small_load(seed));
  });
}

TEST(CowbirdSwitch, RequestsOfManyPacketsArriveWholeOnBadLinks) {
  for_seeds(40, [](std::uint64_t seed) {
    const auto mtu = std::uint32_t{512} << seed % 3;
    run_against({.seed = seed, .rate = 20'000, .corrupt = 5'000, .mtu = mtu, .shape = kWide}, long_load(seed));
  });
}

TEST(CowbirdSwitch, TwoMemoryNodesOnBadLinks) {
  for_seeds(30, [](std::uint64_t seed) {
    auto load = kLong;
    load.regions = 2;
    run_against({.seed = seed, .rate = 20'000, .pools = 2, .shape = kWide}, load);
  });
}

TEST(CowbirdSwitch, ANewEngineTakesUpWhereTheLastOneLeftOff) {
  for_seeds(40, [](std::uint64_t seed) {
    const std::uint32_t rate = seed % 2 == 0 ? 20'000 : 0;
    run_against({.seed = seed, .rate = rate, .shape = seed % 3 == 0 ? kSmall : kWide},
                seed % 3 == 0 ? Driver::Options{} : kLong, true);
  });
}

// A few requests of all kinds, with one frame of all that come by lost: each in its turn.
bool survives_the_loss_of(std::uint64_t lost, std::uint64_t& frames) {
  CowbirdRack rack({.mtu = 512, .shape = {.entries = 16, .request_bytes = 4096, .response_bytes = 4096}});
  frames = 0;
  rack.lose = [&](ByteView) { return frames++ == lost; };
  rack.start();
  const auto first = pattern(1300, 3), second = pattern(40, 90);
  std::vector<std::uint8_t> before(1300), after(1300), last(40);
  const std::vector<std::uint8_t> nothing(1300);
  EXPECT_GT(rack.channel().async_read(0, 64, before.data(), 1300), 0);
  EXPECT_GT(rack.channel().async_write(0, first.data(), 64, 1300), 0);
  EXPECT_GT(rack.channel().async_read(0, 64, after.data(), 1300), 0);
  EXPECT_GT(rack.channel().async_write(0, second.data(), 64, 40), 0);
  EXPECT_GT(rack.channel().async_read(0, 64, last.data(), 40), 0);
  EXPECT_EQ(rack.wait_for(5).size(), 5u);
  EXPECT_EQ(before, nothing);
  EXPECT_EQ(after, first);
  EXPECT_EQ(last, second);
  return !testing::Test::HasFailure();
}

TEST(CowbirdSwitch, EveryFrameMayBeLost) {
  std::uint64_t frames = 1;
  for (std::uint64_t lost = 0; lost < frames && lost < 2000; ++lost)
    ASSERT_TRUE(survives_the_loss_of(lost, frames)) << lost;
  EXPECT_GT(frames, 40u);
}

TEST(CowbirdSwitch, AMemoryNodeThatDiesFailsItsRequestsAndIsUsedAgainWhenItComesBack) {
  cowbird::SwitchEngineConfig config;
  config.patience = Duration::milliseconds(20);
  config.max_flight = Duration::milliseconds(2);
  CowbirdRack rack({.pools = 2, .engine = config});
  rack.start();
  std::uint8_t bytes[8] = {1, 2, 3}, good[8] = {};
  ASSERT_GT(rack.channel().async_read(0, 0, good, 8), 0);
  ASSERT_EQ(rack.wait_for(1).size(), 1u);
  rack.kill(0);
  const RequestId write(rack.channel().async_write(0, bytes, 0, 8));
  const RequestId read(rack.channel().async_read(0, 0, bytes, 8));
  const RequestId other(rack.channel().async_read(1, 0, good, 8));
  ASSERT_EQ(rack.wait_for(3).size(), 3u);
  EXPECT_EQ(rack.channel().status_of(write), Status::kUnknown) << "it had been sent";
  EXPECT_EQ(rack.channel().status_of(read), Status::kUnreachable);
  EXPECT_EQ(rack.channel().status_of(other), Status::kOk);
  EXPECT_EQ(bytes[2], 3) << "a failed read leaves its destination alone";
  const Time before = rack.now;
  const RequestId later(rack.channel().async_write(0, bytes, 0, 8));
  ASSERT_EQ(rack.wait_for(1).size(), 1u);
  EXPECT_EQ(rack.channel().status_of(later), Status::kUnreachable);
  EXPECT_LT(rack.now - before, Duration::milliseconds(5)) << "later ones fail at once";
  rack.revive(0);
  const RequestId again(rack.channel().async_write(0, bytes, 0, 8));
  ASSERT_EQ(rack.wait_for(1).size(), 1u);
  EXPECT_EQ(rack.channel().status_of(again), Status::kOk);
  EXPECT_EQ(rack.pool(0)[2], 3);
}

// The application's NIC stands still for a while, the memory node is well.
TEST(CowbirdSwitch, TheSilenceOfAnApplicationsNicIsNotTheMemoryNodes) {
  for (const bool write : {false, true}) {
    cowbird::SwitchEngineConfig config;
    config.patience = Duration::milliseconds(20);
    config.max_flight = Duration::milliseconds(2);
    CowbirdRack rack({.mtu = 512, .shape = kWide, .engine = config});
    rack.start();
    std::vector<std::uint8_t> bytes(4000), good(8);
    ASSERT_GT(rack.channel().async_read(0, 0, good.data(), 8), 0);
    ASSERT_EQ(rack.wait_for(1).size(), 1u);
    int relayed = 0;  // packets of the data, to where they belong
    bool made = false;
    rack.watch = [&](ByteView frame, bool by_engine) {
      made = by_engine;
      if (made && frame.size() > 512) ++relayed;
    };
    rack.lose = [&](ByteView frame) { return relayed > 2 && frame[made ? 5 : 11] == 1; };
    const RequestId id(write ? rack.channel().async_write(0, bytes.data(), 0, 4000)
                             : rack.channel().async_read(0, 0, bytes.data(), 4000));
    const Time before = rack.now;
    rack.run_until([&] { return rack.now - before > Duration::milliseconds(60); });
    EXPECT_GT(relayed, 2);
    EXPECT_FALSE(rack.channel().is_complete(id));
    rack.lose = nullptr;
    ASSERT_EQ(rack.wait_for(1).size(), 1u);
    EXPECT_EQ(rack.channel().status_of(id), Status::kOk) << (write ? "a write" : "a read");
  }
}

TEST(CowbirdSwitch, AMemoryNodeThatComesBackInTimeCostsNothing) {
  for_seeds(10, [](std::uint64_t seed) {
    cowbird::SwitchEngineConfig config;
    config.max_flight = Duration::milliseconds(1);
    CowbirdRack rack({.seed = seed, .rate = 10'000, .shape = kWide, .engine = config});
    rack.start();
    Driver driver(rack, seed, kLong);
    Rng rng = Rng(seed).fork("adversary");
    for (int i = 0; i < 800; ++i) {
      driver.issue_some();
      rack.step(static_cast<int>(rng.below(40)));
      driver.take();
      if (testing::Test::HasFatalFailure()) return;
      if (rng.below(60) != 0) continue;
      rack.kill(0);
      rack.step(static_cast<int>(rng.below(200)));
      rack.revive(0);
    }
    ASSERT_TRUE(rack.run_until([&] {
      driver.take();
      return testing::Test::HasFatalFailure() || driver.completed() == driver.issued();
    }));
    EXPECT_TRUE(driver.model_is_pool());
  });
}

TEST(CowbirdSwitch, ManyChannelsAreServedAlike) {
  CowbirdRack rack({.channels = 8, .shape = {.entries = 64, .request_bytes = 1024, .response_bytes = 4096}});
  rack.start();
  std::vector<std::uint64_t> done(8);
  std::uint8_t bytes[8] = {};
  for (int i = 0; i < 20'000; ++i) {
    for (std::size_t c = 0; c < 8; ++c) {
      cowbird::Completion out[64];
      done[c] += rack.channel(c).collect(out);
      while (rack.channel(c).under_way() < 32) ASSERT_GT(rack.channel(c).async_read(0, 8 * c, bytes, 8), 0);
    }
    rack.round();
  }
  const auto [least, most] = std::minmax_element(done.begin(), done.end());
  EXPECT_GT(*least, 100u);
  EXPECT_LE(*most, *least + *least / 5);
}

}  // namespace
}  // namespace sluice::scenario
