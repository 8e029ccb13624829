#include "sim/experiment/search.h"

#include <gtest/gtest.h>

#include <fstream>

#include "sim/world/faulty_link.h"
#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

TEST(Search, ASeedIsAlwaysTheSameCaseAndTheSameRun) {
  const SearchCase one = draw_case(5);
  EXPECT_EQ(to_string(one), to_string(draw_case(5)));
  EXPECT_NE(to_string(one), to_string(draw_case(6)));
  const CloverResult a = run_case(connectx5(), one);
  const CloverResult b = run_case(connectx5(), one);
  EXPECT_EQ(a.problem, "");
  EXPECT_EQ(a.trace_hash, b.trace_hash);
}

TEST(Search, WhatIsPrintedOfACaseIsThatCase) {
  const std::string path = testing::TempDir() + "search_case.toml";
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SearchCase one = draw_case(seed);
    std::ofstream(path) << to_string(one);
    const auto loaded = load_case(path);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(to_string(*loaded), to_string(one));
  }
  std::ofstream(path) << to_string(draw_case(5));
  EXPECT_EQ(run_case(connectx5(), load_case(path).value()).trace_hash, run_case(connectx5(), draw_case(5)).trace_hash);
  std::ofstream(path) << to_string(draw_case(1)) << "color = 3\n";
  EXPECT_NE(load_case(path).error().message.find("color is not known here"), std::string::npos);
}

TEST(Search, KeepsWhatAFileSetsBeyondWhatIsDrawn) {
  const std::string path = testing::TempDir() + "search_more.toml";
  const auto load = [&path](const std::string& text) {
    std::ofstream(path) << text;
    auto loaded = load_case(path);
    EXPECT_TRUE(loaded) << loaded.error().message;
    return loaded.value();
  };
  const std::string drawn = to_string(draw_case(5));
  const SearchCase more = load(drawn + "message_cost = \"2 us\"\nqueue_pairs = 8\n");
  EXPECT_EQ(to_string(more), drawn + "message_cost = '2 us'\nqueue_pairs = 8\n");
  for (const SearchCase& simpler : simpler_cases(more)) {
    EXPECT_NE(to_string(simpler).find("queue_pairs = 8\n"), std::string::npos);
    EXPECT_EQ(load(to_string(simpler)).workload.message_cost, Duration::microseconds(2));
  }
  // A mix says itself how many write.
  std::string mixed = drawn;
  const std::size_t at = mixed.find("writes_percent");
  mixed.replace(at, mixed.find('\n', at) - at, "mix = \"A\"");
  for (const SearchCase& simpler : simpler_cases(load(mixed))) EXPECT_EQ(load(to_string(simpler)).workload.mix, "A");
  // To the picosecond, and of any seed.
  SearchCase odd = draw_case((std::uint64_t{1} << 62) + 1);
  odd.workload.cursor_lifetime = Duration::picoseconds(10'000'000'001);
  EXPECT_EQ(load(to_string(odd)).workload.cursor_lifetime, odd.workload.cursor_lifetime);
  EXPECT_EQ(load(to_string(odd)).seed, odd.seed);
}

TEST(Search, FirstSeedsAreSound) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    EXPECT_EQ(run_case(connectx5(), draw_case(seed)).problem, "") << to_string(draw_case(seed));
  }
}

TEST(Search, SeesAnOperationThatNeverEnds) {
  SearchCase cut = draw_case(1);
  cut.workload.faults = "drop=100%";
  EXPECT_NE(run_case(connectx5(), cut).problem, "");
}

// Or a failure would be shrunk to another one.
TEST(Search, WhatIsSimplerThanASoundCaseIsSound) {
  for (const std::uint64_t seed : {10u, 13u}) {
    for (const SearchCase& simpler : simpler_cases(draw_case(seed)))
      EXPECT_EQ(run_case(connectx5(), simpler).problem, "") << to_string(simpler);
  }
}

TEST(Search, ShrinksToWhatTheFailureNeeds) {
  SearchCase start = draw_case(3);
  start.workload.machines = 4;
  start.workload.threads = 20;
  start.workload.faults = "drop=1%";
  const auto fails = [](const SearchCase& c) {
    return c.workload.threads >= 3 && !c.workload.faults.empty() && c.operations >= 100;
  };
  const SearchCase least = shrink(start, 1'000, fails);
  EXPECT_TRUE(fails(least));
  EXPECT_EQ(least.workload.threads, 3u);
  EXPECT_EQ(least.workload.machines, 1u);
  EXPECT_EQ(least.workload.keys, 1u);
  EXPECT_EQ(least.workload.system, "clover");
  EXPECT_EQ(least.workload.value_bytes, 16u);
  EXPECT_LT(least.operations, 115u);
}

// A consumer that counts, and notes when the last came.
class Sink final : public Consumer {
 public:
  explicit Sink(PacketPool& pool) : pool_(pool) {}
  void on_packet(Time now, Packet* packet) override {
    ++count;
    last = now;
    pool_.give_back(packet);
  }
  std::uint64_t count = 0;
  Time last;

 private:
  PacketPool& pool_;
};

TEST(FaultyLink, LosesAndDoublesWhatItCountsAndKeepsNoPacket) {
  EventLoop loop;
  PacketPool pool;
  Sink sink(pool);
  const port::Impairment faults = port::parse_impairment("drop=10%,duplicate=10%,reorder=10%").value().tx;
  FaultyLink link(loop, pool, sink, faults, Rng(1));
  for (int i = 0; i < 1'000; ++i) {
    Packet* const packet = pool.take(100);
    packet->length = 100;
    link.on_packet(loop.now(), packet);
  }
  loop.run_until(loop.now() + Duration::milliseconds(1));
  const port::ImpairmentCounters& c = link.counters();
  EXPECT_GT(c.dropped, 50u);
  EXPECT_GT(c.duplicated, 50u);
  EXPECT_GT(c.reordered, 50u);
  EXPECT_EQ(sink.count, 1'000 - c.dropped + c.duplicated);
  EXPECT_EQ(pool.in_flight(), 0u);
}

TEST(FaultyLink, DelaysToThePicosecond) {
  EventLoop loop;
  PacketPool pool;
  Sink sink(pool);
  FaultyLink link(loop, pool, sink, port::parse_impairment("delay=1us").value().tx, Rng(1));
  for (const std::int64_t when : {0, 700, 3'000}) {
    loop.run_until(Time::at(Duration::nanoseconds(when)));
    Packet* const packet = pool.take(100);
    packet->length = 100;
    link.on_packet(loop.now(), packet);
  }
  EXPECT_EQ(sink.count, 2u);
  EXPECT_EQ(sink.last, Time::at(Duration::nanoseconds(1'700)));
  loop.run_until(Time::at(Duration::milliseconds(1)));
  EXPECT_EQ(sink.count, 3u);
  EXPECT_EQ(sink.last, Time::at(Duration::microseconds(4)));
}

TEST(FaultyLink, HoldsAsManyAsAreOnALongWay) {
  EventLoop loop;
  PacketPool pool;
  Sink sink(pool);
  FaultyLink link(loop, pool, sink, port::parse_impairment("delay=1ms,reorder=1%").value().tx, Rng(1));
  for (int i = 0; i < 20'000; ++i) {
    Packet* const packet = pool.take(100);
    packet->length = 100;
    link.on_packet(loop.now(), packet);
  }
  EXPECT_EQ(sink.count, 0u);
  loop.run_until(loop.now() + Duration::milliseconds(3));
  EXPECT_EQ(sink.count, 20'000u);
  EXPECT_EQ(pool.in_flight(), 0u);
}

}  // namespace
}  // namespace sluice::sim
