// 1RMA's evaluation on our models, small: what the experiments onerma-*.toml show at length, beside RC on the same topology.
#include "sim/load/tenant_load.h"

#include <gmock/gmock.h>

#include "sim/world/models_test.h"

namespace sluice::sim {
namespace {

const Hardware& hardware() {
  static const Hardware loaded = model("connectx5-dcqcn");
  return loaded;
}

// What it came to, with nothing gone wrong.
class Outcome {
 public:
  explicit Outcome(const TenantWorkload& workload) : result_(run_tenant_load(hardware(), workload, 1)) {
    EXPECT_EQ(result_.problem, "") << workload.scenario << " over " << workload.transport;
  }
  double operator[](std::string_view name) const { return metric(result_, name); }
  std::uint64_t hash() const { return result_.trace_hash; }

 private:
  TenantResult result_;
};

TenantWorkload scenario(const std::string& name, const std::string& transport) {
  TenantWorkload w;
  w.scenario = name;
  w.transport = transport;
  return w;
}

TEST(TenantLoad, LookupsAreServedAtTheOfferedLoadUntilTheServersLinksAreFull) {
  for (const char* const transport : {"1rma", "rc"}) {
    TenantWorkload w = scenario("lookups", transport);
    w.warm_up = w.measure = Duration::microseconds(300);
    w.load_gbps = 40;
    const Outcome half(w);
    EXPECT_NEAR(half["served_gbps"], 40, 5) << transport;
    EXPECT_LT(half["p99_us"], 20) << transport;
    EXPECT_LT(half["not_ended"], 50) << transport;
  }
}

TEST(TenantLoad, InWhichNothingEndsIsAProblem) {
  for (const char* const name : {"incast", "arrival", "isolation", "rekey", "lookups"}) {
    TenantWorkload w = scenario(name, "1rma");
    w.warm_up = Duration::nanoseconds(100);
    w.measure = Duration::nanoseconds(100);
    EXPECT_THAT(
        run_tenant_load(hardware(), w, 1).problem,
        ::testing::AllOf(::testing::HasSubstr("what is measured"), ::testing::HasSubstr("make `measure` longer")))
        << name;
  }
}

// A lookup at a dead replica waits for one time-out, 25 us, and begins anew elsewhere. RC's ends when its retries are used up.
TEST(TenantLoad, AReplicasDeathCostsA1RmaLookupOneTimeOut) {
  TenantWorkload w = scenario("death", "1rma");
  w.servers = 3;
  w.clients = 6;
  w.load_gbps = 30;
  w.warm_up = Duration::microseconds(300);
  w.measure = Duration::microseconds(1700);
  w.dies_at = Duration::milliseconds(1);
  w.span = Duration::microseconds(100);
  w.give_up = Duration::microseconds(25);
  w.span_from = Duration::microseconds(800);
  const Outcome before(w);
  w.span_from = Duration::microseconds(980);
  const Outcome meanwhile(w);
  w.span_from = Duration::microseconds(1300);
  const Outcome after(w);
  EXPECT_LT(before["p99_us"], 20);
  EXPECT_GT(meanwhile["most_us"], 25);
  EXPECT_LT(meanwhile["most_us"], 90);
  EXPECT_EQ(meanwhile["not_ended"], 0);
  EXPECT_LT(after["p99_us"], 20);
  w.transport = "rc";
  w.ack_timeout = 5;
  w.span_from = Duration::microseconds(980);
  const Outcome rc(w);
  EXPECT_GT(rc["most_us"], 900);
}

TEST(TenantLoad, IncastCosts1RmaNothing) {
  for (const char* const op : {"read", "write"}) {
    TenantWorkload w = scenario("incast", "1rma");
    w.op = op;
    w.others = 16;
    w.measure = Duration::microseconds(500);
    const Outcome one(w);
    EXPECT_GT(one["goodput_gbps"], 90) << op;
    EXPECT_EQ(one["dropped"], 0) << op;
  }
}

// The longest reads leave most of the link's time where the others' demand is small, and none of them waits long.
TEST(TenantLoad, SmallOperationsAndLongTransfersOfTwoTenantsGetWhatIsTheirs) {
  for (const char* const at : {"initiator", "target"}) {
    TenantWorkload w = scenario("isolation", "1rma");
    w.at = at;
    w.bytes = 1 << 20;
    w.depth = 8;
    w.small_per_ms = 1000;
    w.measure = Duration::milliseconds(1);
    w.who = "small";
    const Outcome small(w);
    w.who = "large";
    const Outcome large(w);
    w.who = "both";
    const Outcome both(w);
    EXPECT_GT(both["large_gbps"], 0.9 * large["large_gbps"]) << at;
    EXPECT_GT(both["small_mops"], 0.95 * small["small_mops"]) << at;
    EXPECT_LT(both["small_p99_us"], 20) << at;
  }
}

TEST(TenantLoad, ARekeyThatWasAnnouncedPausesAReaderForARoundTripAtMost) {
  TenantWorkload w = scenario("rekey", "1rma");
  w.depth = 64;
  w.measure = Duration::milliseconds(1);
  const Outcome without(w);
  w.rekey_every = Duration::microseconds(100);
  const Outcome with(w);
  EXPECT_GE(with["rekeys"], 8);
  EXPECT_LT(with["pause_us"], without["pause_us"] + 2 * 4.3);
  EXPECT_GT(with["goodput_gbps"], 0.9 * without["goodput_gbps"]);
}

TEST(TenantLoad, WhoAsksForTheKeyOnceHisIsRefusedWaitsForTheAnswer) {
  TenantWorkload w = scenario("rekey", "1rma");
  w.depth = 64;
  w.measure = Duration::milliseconds(1);
  w.rekey_every = Duration::microseconds(100);
  const Outcome announced(w);
  w.announced = false;
  const Outcome asked(w);
  EXPECT_GE(asked["rekeys"], 8);
  EXPECT_GT(asked["pause_us"], announced["pause_us"] + 7);
  EXPECT_LT(asked["pause_us"], announced["pause_us"] + 2 * 10);
}

TEST(TenantLoad, TheSameSeedIsTheSameTraceOverBoth) {
  for (const char* const transport : {"1rma", "rc"}) {
    TenantWorkload w = scenario("lookups", transport);
    w.warm_up = w.measure = Duration::microseconds(100);
    EXPECT_EQ(Outcome(w).hash(), Outcome(w).hash()) << transport;
  }
}

}  // namespace
}  // namespace sluice::sim
