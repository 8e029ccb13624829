#include "sim/world/cpu.h"

#include <gtest/gtest.h>

namespace sluice::sim {
namespace {

Time at(std::int64_t us) { return Time::at(Duration::microseconds(us)); }

HostParameters four_threads() { return {.cores = 2, .threads_per_core = 2, .time_slice = Duration::microseconds(400)}; }

TEST(Cpu, DoesOneThingAfterTheOther) {
  Cpu cpu(four_threads(), 2);
  EXPECT_EQ(cpu.finish_of(0, at(10), Duration::microseconds(5)), at(15));
  EXPECT_EQ(cpu.finish_of(0, at(12), Duration::microseconds(5)), at(20));
  EXPECT_EQ(cpu.finish_of(1, at(12), Duration::microseconds(5)), at(17));
}

TEST(Cpu, WorksSlowerOnBusyAndOnSharedCores) {
  HostParameters host = four_threads();
  host.all_cores_percent = 120;
  host.shared_core_percent = 150;
  const Duration work = Duration::microseconds(100);
  EXPECT_EQ(Cpu(host, 1).scaled(0, work), Duration::microseconds(100));
  EXPECT_EQ(Cpu(host, 2).scaled(0, work), Duration::microseconds(120));
  EXPECT_EQ(Cpu(host, 3).scaled(0, work), Duration::microseconds(180));  // with thread 2
  EXPECT_EQ(Cpu(host, 3).scaled(1, work), Duration::microseconds(120));
  EXPECT_EQ(Cpu(host, 4).scaled(1, work), Duration::microseconds(180));
}

TEST(Cpu, MakesTheLongestWorkLongerToo) {
  HostParameters host = four_threads();
  host.all_cores_percent = host.shared_core_percent = 1'000;
  Cpu cpu(host, 4);
  EXPECT_EQ(cpu.scaled(1, Duration::seconds(100)), Duration::seconds(10'000));
  EXPECT_EQ(cpu.finish_of(1, at(10), Duration::seconds(100)), at(10) + Duration::seconds(10'000));
}

TEST(Cpu, LetsThreadsTakeTurnsWhereTheyAreTooMany) {
  Cpu cpu(four_threads(), 6);
  // Each runs for 400 us, then waits for 200 us.
  for (std::uint32_t thread = 0; thread < 6; ++thread) {
    Time now;
    const Duration step = Duration::microseconds(1);
    for (int done = 0; done < 4000; ++done) now = cpu.finish_of(thread, now, step);
    EXPECT_GE(now, at(5'800)) << thread;
    EXPECT_LE(now, at(6'200)) << thread;
  }
}

TEST(Cpu, LetsWhoHasSleptGoFirstAndMakesNobodySlowerForIt) {
  Cpu cpu(four_threads(), 6, 2);
  EXPECT_EQ(cpu.threads(), 6u);
  for (const std::uint32_t sleeper : {6u, 7u}) {
    for (const std::int64_t from : {10, 150, 290, 430, 570})
      EXPECT_EQ(cpu.finish_of(sleeper, at(from), Duration::microseconds(5)), at(from + 5)) << sleeper;
  }
  EXPECT_EQ(cpu.with_cores(Duration::microseconds(1), Duration::microseconds(3)), Duration::microseconds(3));
  Cpu one(four_threads(), 1, 4);
  EXPECT_EQ(one.with_cores(Duration::microseconds(1), Duration::microseconds(3)), Duration::microseconds(1));
}

TEST(Cpu, FinishesWorkThatATurnInterrupts) {
  Cpu cpu(four_threads(), 5);
  // Thread 0 runs until 100 us, then waits until thread 1 to 4 have begun their turns' last parts.
  EXPECT_EQ(cpu.finish_of(0, at(90), Duration::microseconds(30)), at(220));
}

}  // namespace
}  // namespace sluice::sim
