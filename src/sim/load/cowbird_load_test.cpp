// Cowbird's rack on our models, small: what the experiments cowbird-*.toml show at length.
#include "sim/load/cowbird_load.h"

#include <gtest/gtest.h>

#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

const Hardware& hardware() {
  static const Hardware loaded = with_edm(model("cowbird"));
  return loaded;
}

CowbirdWorkload workload(const std::string& way) {
  CowbirdWorkload w;
  w.way = way;
  w.depth = way == "sync" || way == "two-sided" ? 1 : 100;
  w.table_bytes = 1 << 20;
  w.index_cost = Duration::nanoseconds(100);
  w.local_cost = Duration::nanoseconds(50);
  w.issue_cost = Duration::nanoseconds(15);
  w.complete_cost = Duration::nanoseconds(10);
  w.look_cost = Duration::nanoseconds(40);
  w.engine_cost = Duration::nanoseconds(40);
  w.near_cost = Duration::nanoseconds(60);
  w.warm_up = Duration::microseconds(100);
  w.measure = Duration::microseconds(200);
  return w;
}

// What it came to, with nothing gone wrong.
class Outcome {
 public:
  explicit Outcome(const CowbirdWorkload& w) : result_(run_cowbird_load(hardware(), w, 1)) {
    EXPECT_EQ(result_.problem, "") << w.way;
  }
  double operator[](std::string_view name) const { return metric(result_, name); }
  std::uint64_t hash() const { return result_.trace_hash; }

 private:
  CowbirdResult result_;
};

TEST(CowbirdSim, ALocalProbeCostsWhatItsPartsCost) {
  EXPECT_NEAR(Outcome(workload("local"))["throughput"], 1000.0 / 150, 0.1);
}

TEST(CowbirdSim, EveryWayGetsTheRightRecords) {
  for (const char* const way : {"sync", "two-sided", "async", "spot", "switch", "io-threads", "user-threads"}) {
    CowbirdWorkload w = workload(way);
    w.threads = 2;
    w.bytes = 512;
    w.switch_cost = Duration::nanoseconds(40);
    EXPECT_GT(Outcome(w)["throughput"], 0.1) << way;
  }
}

TEST(CowbirdSim, AThreadWhoseLoopTakesNoTimeIsAProblemAndNoRunWithoutAnEnd) {
  for (const char* const way : {"local", "spot", "switch", "io-threads", "disk"}) {
    CowbirdWorkload w = workload(way);
    w.disk_interval = w.disk_latency = Duration::microseconds(2);
    w.index_cost = w.local_cost = w.issue_cost = w.complete_cost = w.look_cost = w.engine_cost = {};
    EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << way;
  }
  Hardware free = hardware();
  free.host.poll_cost = free.host.completion_cost = free.host.post_cost = free.host.doorbell_cost = {};
  for (const char* const way : {"sync", "async", "two-sided", "user-threads"}) {
    CowbirdWorkload w = workload(way);
    w.switch_cost = Duration::nanoseconds(40);
    EXPECT_NE(run_cowbird_load(free, w, 1).problem, "") << way;
  }
}

TEST(CowbirdSim, ADiskDoesSoManyReadsASecondForAllThreads) {
  CowbirdWorkload w = workload("disk");
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << "nobody has said how fast it is";
  w.disk_interval = Duration::microseconds(2);
  w.disk_latency = Duration::microseconds(20);
  w.local_percent = 0;
  EXPECT_NEAR(Outcome(w)["throughput"], 0.5, 0.05);
  w.threads = 4;
  EXPECT_NEAR(Outcome(w)["throughput"], 0.5, 0.05);
  w.threads = w.depth = 1;
  EXPECT_NEAR(Outcome(w)["p50_us"], 22, 1);
}

TEST(CowbirdSim, AColdRecordCostsTheStoreMoreAlsoInItsOwnMemory) {
  CowbirdWorkload w = workload("local");
  w.local_percent = 50;
  w.cold_cost = Duration::nanoseconds(100);
  w.measure = Duration::milliseconds(2);
  EXPECT_NEAR(Outcome(w)["throughput"], 1000.0 / (150 + 50), 0.1);
}

TEST(CowbirdSim, ThreadsThatCountOnOneLineTakeTurns) {
  CowbirdWorkload w = workload("local");
  w.local_percent = 0;
  w.line_cost = Duration::nanoseconds(65);
  EXPECT_NEAR(Outcome(w)["throughput"], 1000.0 / 150, 0.1) << "the line stays where it is";
  w.threads = 8;
  EXPECT_NEAR(Outcome(w)["throughput"], 1000.0 / 130, 0.4) << "twice a read";
  w.local_percent = 99;
  EXPECT_GT(Outcome(w)["throughput"], 7 * 1000.0 / 150);
}

TEST(CowbirdSim, AStoreHasSoManyReadsUnderWayInAll) {
  CowbirdWorkload w = workload("async");
  w.threads = 4;
  w.local_percent = 0;
  const Outcome unlimited(w);
  w.most_pending = 16;
  const Outcome limited(w);
  EXPECT_LT(limited["throughput"] * limited["p50_us"], 20);
  EXPECT_GT(unlimited["throughput"] * unlimited["p50_us"], 100);
}

TEST(CowbirdSim, OneRunIsLikeAnother) {
  for (const char* const way : {"spot", "switch", "io-threads"}) {
    const CowbirdWorkload w = workload(way);
    EXPECT_EQ(Outcome(w).hash(), Outcome(w).hash()) << way;
  }
}

TEST(CowbirdSim, AThreadGetsMoreWithCowbirdThanWithVerbs) {
  const double sync = Outcome(workload("sync"))["throughput"];
  const double async = Outcome(workload("async"))["throughput"];
  EXPECT_GT(async, 3 * sync);
  EXPECT_GT(Outcome(workload("spot"))["throughput"], 1.2 * async);
  EXPECT_GT(Outcome(workload("switch"))["throughput"], 1.5 * async);
}

TEST(CowbirdSim, ALoneReadTakesSomeRoundTripsMoreThanAREAD) {
  CowbirdWorkload w = workload("sync");
  w.local_percent = 0;
  const double read = Outcome(w)["p50_us"];
  for (const char* const way : {"spot", "switch"}) {
    w.way = way;
    w.depth = 1;
    w.probe = Duration::microseconds(1);
    const double cowbird = Outcome(w)["p50_us"];
    EXPECT_GT(cowbird, read) << way;
    EXPECT_LT(cowbird, 6 * read) << way;
  }
}

TEST(CowbirdSim, AnEngineBesideThePoolNeedsARoundTripLessAndMoreCoresDoMore) {
  CowbirdWorkload w = workload("spot");
  w.depth = 1;
  w.local_percent = 0;
  const double far = Outcome(w)["p50_us"];
  w.pool = "near";
  EXPECT_LT(Outcome(w)["p50_us"], far - 1);
  w.depth = 100;
  w.threads = 8;
  const Outcome one(w);
  EXPECT_LT(one["throughput"], 1000.0 / 60);
  EXPECT_GT(one["engine_busy_percent"], 90);
  w.engine_cores = 4;
  EXPECT_GT(Outcome(w)["throughput"], 2.5 * one["throughput"]);
  w.near_cost = Duration{};
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << "nobody has said what it costs";
  w.way = "switch";
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "");
}

TEST(CowbirdSim, BatchesPutLessOnTheComputeNodesLink) {
  const auto each = [](const char* way, const char* metric) {
    CowbirdWorkload w = workload(way);
    w.bytes = 512;
    const Outcome done(w);
    return done[metric] * 1e9 / 8 / (done["throughput"] * 1e6) /
           (1 - static_cast<double>(w.local_percent) / 100);  // bytes a read
  };
  // A READ response has 62 bytes around the record, and 24 more on the wire; its request is 78 and 24 long.
  EXPECT_NEAR(each("async", "down_gbps"), 512 + 86, 20);
  EXPECT_NEAR(each("async", "up_gbps"), 102, 10);
  EXPECT_GT(each("switch", "down_gbps"), 512 + 98) << "a WRITE a record";
  EXPECT_LT(each("spot", "down_gbps"), 512 + 70) << "a WRITE for many";
  EXPECT_LT(each("spot", "up_gbps"), 0.7 * each("switch", "up_gbps"));
}

TEST(CowbirdSim, IoThreadsGainByBatchesAndTakeCoresFromTheApplication) {
  CowbirdWorkload w = workload("io-threads");
  const double one = Outcome(w)["throughput"];
  EXPECT_GT(one, Outcome(workload("async"))["throughput"]) << "the thread neither posts nor polls";
  w.batch = 1;
  w.messages = 1;
  EXPECT_LT(Outcome(w)["throughput"], 0.3 * one) << "a round trip for each";
  w = workload("io-threads");
  w.threads = 8;
  const double eight = Outcome(w)["throughput"];
  EXPECT_LT(eight, 7.5 * one) << "all 16 hardware threads are in use";
  w.threads = 16;
  w.warm_up = Duration::milliseconds(3);
  w.measure = Duration::milliseconds(12);
  EXPECT_LT(Outcome(w)["throughput"], 1.2 * eight) << "there are none left";
  // Many small messages: none is forgotten.
  w = workload("io-threads");
  w.batch = 1;
  w.messages = 64;
  EXPECT_GT(Outcome(w)["throughput"], 0.3);
  w.near_cost = Duration{};
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << "nobody has said what a record costs the memory node";
}

TEST(CowbirdSim, UserThreadsPayTwoSwitchesARead) {
  CowbirdWorkload w = workload("user-threads");
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << "nobody has said what a switch costs";
  w.switch_cost = Duration::nanoseconds(1);
  const double nearly_none = Outcome(w)["throughput"];
  EXPECT_NEAR(nearly_none, Outcome(workload("async"))["throughput"], 0.05 * nearly_none);
  w.switch_cost = Duration::nanoseconds(100);
  EXPECT_NEAR(1000 / Outcome(w)["throughput"] - 1000 / nearly_none, 0.95 * 198, 30);
}

TEST(CowbirdSim, ASpotEnginesPoolMayBeOverEdm) {
  CowbirdWorkload w = workload("spot");
  w.bytes = 512;
  w.threads = 2;
  w.pool = "edm";
  const Outcome over(w);
  EXPECT_GT(over["throughput"], 0.1);
  EXPECT_EQ(over.hash(), Outcome(w).hash());
  // A lone read: nothing but the way to the pool and back is another.
  w.depth = w.threads = 1;
  w.local_percent = 0;
  const double edm = Outcome(w)["p50_us"];
  w.pool = "rc";
  EXPECT_LT(edm, Outcome(w)["p50_us"]);
  w.way = "switch";
  w.pool = "edm";
  EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "");
}

// Of 1,538 bytes of a TCP segment on the wire 1,448 are payload.
constexpr double kTcpPayload = 1448.0 / 1538;

CowbirdWorkload beside_tcp(const std::string& way) {
  CowbirdWorkload w = workload(way);
  w.tcp.flows = 4;
  w.warm_up = Duration::milliseconds(5);
  w.measure = Duration::milliseconds(1);
  return w;
}

TEST(CowbirdSim, TcpFlowsFillTheirServersLinkBesideLocalMemory) {
  CowbirdWorkload w = beside_tcp("local");
  w.warm_up = Duration::milliseconds(15);  // what slow start loses is repaired
  EXPECT_NEAR(Outcome(w)["tcp_gbps"], 25 * kTcpPayload, 0.1);
}

TEST(CowbirdSim, TcpFlowsHaveWhatRdmaLeavesOfALink) {
  CowbirdWorkload w = beside_tcp("switch");
  w.tcp.link = 100'000'000'000;
  w.measure = Duration::milliseconds(4);  // in one, when the probes come is worth as much as is asked for
  const Outcome beside(w);
  EXPECT_GT(beside["up_gbps"], 5);
  EXPECT_NEAR(beside["up_gbps"] + beside["tcp_gbps"] / kTcpPayload, 100, 3);
  w.tcp.flows = 0;
  const Outcome alone(w);
  EXPECT_NEAR(beside["throughput"] / alone["throughput"], 1, 0.02) << "its packets go first";
}

TEST(CowbirdSim, TcpFlowsStandStillWhereNoACKGetsThrough) {
  CowbirdWorkload w = beside_tcp("switch");
  w.threads = 8;
  w.bytes = 512;
  const Outcome full(w);
  EXPECT_GT(full["down_gbps"], 99);
  EXPECT_LT(full["tcp_gbps"], 1);
}

TEST(CowbirdSim, ATcpWindowThatCannotBeIsRefused) {
  for (const std::uint64_t window : {std::uint64_t{1500}, std::uint64_t{1} << 30}) {
    CowbirdWorkload w = beside_tcp("local");
    w.tcp.window = window;
    EXPECT_NE(run_cowbird_load(hardware(), w, 1).problem, "") << window;
  }
}

TEST(CowbirdSim, ARunWithTcpIsLikeAnother) {
  EXPECT_EQ(Outcome(beside_tcp("async")).hash(), Outcome(beside_tcp("async")).hash());
}

}  // namespace
}  // namespace sluice::sim
