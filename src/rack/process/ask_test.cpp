#include "rack/process/ask.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace sluice::rack {
namespace {

TEST(Ask, WhatABusyLoopHasNotBegunIsNeverDone) {
  nic::PollLoop loop;  // nobody turns it
  int done = 0;
  const auto change = [&done](Time) -> Result<int> { return ++done; };
  const auto answer = ask<int>(loop, change, std::chrono::milliseconds(1));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message, "the daemon is busy");
  loop.turn();
  EXPECT_EQ(done, 0);
}

TEST(Ask, WhatHasBegunIsWaitedFor) {
  nic::LoopThread thread;
  std::atomic<int> done{0};
  for (int i = 0; i < 20; ++i) {
    const int before = done;
    const auto change = [&done, &loop = thread.loop()](Time now) -> Result<int> {
      while (loop.now() < now + Duration::milliseconds(5)) std::this_thread::yield();
      return ++done;
    };
    const auto answer = ask<int>(thread.loop(), change, std::chrono::milliseconds(2));
    thread.call([](Time) {});
    EXPECT_EQ(done, before + (answer ? 1 : 0)) << "done exactly when it is said to be";
  }
}

}  // namespace
}  // namespace sluice::rack
