#include "remote/scheduler.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::remote {
namespace {

Task<int> immediately(int n) { co_return n; }

Task<void> sum_of_many(int n, long& sum) {
  for (int i = 0; i < n; ++i) sum += co_await immediately(i);
}

TEST(Scheduler, AwaitsAMillionImmediateTasksWithoutGrowingTheStack) {
  Scheduler scheduler;
  long sum = 0;
  scheduler.spawn(sum_of_many(1'000'000, sum));
  scheduler.run(Time());
  EXPECT_EQ(sum, 499'999'500'000);
  EXPECT_EQ(scheduler.live(), 0u);
}

Task<int> later(Scheduler& scheduler, int n) {
  co_await scheduler.yield();
  co_return n;
}

Task<void> sum_of_many_late(Scheduler& scheduler, int n, long& sum) {
  for (int i = 0; i < n; ++i) sum += co_await later(scheduler, i);
}

TEST(Scheduler, AwaitsAMillionSuspendingTasksWithoutGrowingTheStack) {
  Scheduler scheduler;
  long sum = 0;
  scheduler.spawn(sum_of_many_late(scheduler, 1'000'000, sum));
  scheduler.run(Time(), 3'000'000);
  EXPECT_EQ(sum, 499'999'500'000);
}

Task<void> sleeper(Scheduler& scheduler, Duration d, int id, std::vector<int>& order) {
  co_await scheduler.sleep_for(d);
  order.push_back(id);
}

Task<void> looker(Scheduler& scheduler, int looks, bool finds) {
  for (int i = 0; i < looks; ++i) {
    if (finds) {
      co_await scheduler.sleep_for(Duration::nanoseconds(10));
    } else {
      co_await scheduler.rest_for(Duration::nanoseconds(10));
    }
  }
}

TEST(Scheduler, DoesNotCountALookThatFoundNothingAsWork) {
  Scheduler scheduler;
  scheduler.spawn(looker(scheduler, 3, false));
  EXPECT_EQ(scheduler.run(Time()), 0u);
  EXPECT_EQ(scheduler.run(Time::at(Duration::nanoseconds(10))), 0u);
  scheduler.spawn(looker(scheduler, 2, true));
  EXPECT_EQ(scheduler.run(Time::at(Duration::nanoseconds(20))), 1u) << "one looked in vain, one worked";
  EXPECT_EQ(scheduler.run(Time::at(Duration::nanoseconds(30))), 2u) << "one worked, one came to its end";
}

TEST(Scheduler, WakesSleepersByDeadlineThenByOrderOfGoingToSleep) {
  Scheduler scheduler;
  std::vector<int> order;
  scheduler.spawn(sleeper(scheduler, Duration::nanoseconds(20), 1, order));
  scheduler.spawn(sleeper(scheduler, Duration::nanoseconds(10), 2, order));
  scheduler.spawn(sleeper(scheduler, Duration::nanoseconds(10), 3, order));
  scheduler.run(Time());
  EXPECT_EQ(scheduler.next_deadline(), Time::at(Duration::nanoseconds(10)));
  scheduler.run(Time::at(Duration::nanoseconds(9)));
  EXPECT_TRUE(order.empty());
  scheduler.run(Time::at(Duration::nanoseconds(30)));
  EXPECT_EQ(order, (std::vector{2, 3, 1}));
  EXPECT_EQ(scheduler.next_deadline(), Time::never());
}

TEST(Scheduler, FreesCoroutinesThatNeverEnded) {
  std::vector<int> order;
  Scheduler scheduler;
  scheduler.spawn(sleeper(scheduler, Duration::seconds(1), 1, order));
  scheduler.run(Time());
  EXPECT_EQ(scheduler.live(), 1u);
}  // the address sanitizer would tell of a leak

}  // namespace
}  // namespace sluice::remote
