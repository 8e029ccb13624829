#include "rc/completion_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>

namespace sluice::rc {
namespace {

TEST(CompletionQueue, TellsOfTheNextCompletionThoughASolicitedOneIsAskedForThen) {
  CompletionQueue queue(8);
  int told = 0;
  queue.set_event_handler([&] { ++told; });
  queue.request_notification(CompletionQueue::Notify::kNext);
  queue.request_notification(CompletionQueue::Notify::kSolicited);
  queue.push({.id = 1});
  EXPECT_EQ(told, 1);
  queue.request_notification(CompletionQueue::Notify::kSolicited);
  queue.push({.id = 2});
  EXPECT_EQ(told, 1);
  queue.request_notification(CompletionQueue::Notify::kNext);
  queue.push({.id = 3});
  EXPECT_EQ(told, 2) << "for more than was asked first";
}

TEST(CompletionQueue, TellsOfAnErrorToWhoWaitsForASolicitedOne) {
  CompletionQueue queue(8);
  int told = 0;
  queue.set_event_handler([&] { ++told; });
  queue.request_notification(CompletionQueue::Notify::kSolicited);
  queue.push({.id = 1});
  EXPECT_EQ(told, 0);
  queue.push({.id = 2, .status = CompletionStatus::kFlushed});
  EXPECT_EQ(told, 1);
}

TEST(CompletionQueue, KeepsOrderHoweverItIsFilledAndEmptied) {
  CompletionQueue queue(6);
  std::uint64_t pushed = 0;
  std::uint64_t taken = 0;
  std::array<Completion, 4> out;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    for (std::uint64_t k = 0; k < step % 7 && queue.size() < 6; ++k) ASSERT_TRUE(queue.push({.id = pushed++}));
    const std::size_t n = queue.poll(std::span(out).first(step % 5));
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i].id, taken++);
    ASSERT_EQ(queue.size(), pushed - taken);
  }
  EXPECT_GT(taken, 1000u);
}

TEST(CompletionQueue, CostsTheMemoryOfWhatIsInItAtOnce) {
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    std::size_t total = 0;
    std::size_t pages = 0;
    statm >> total >> pages;
    return pages;
  };
  const std::size_t before = resident();
  constexpr std::uint32_t kDepth = 1 << 20;  // 32 MiB
  CompletionQueue queue(kDepth);
  std::array<Completion, 1> out;
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    queue.push({.id = i});
    queue.poll(out);
  }
  EXPECT_LT(resident(), before + kDepth * sizeof(Completion) / 4096 / 2);
}

}  // namespace
}  // namespace sluice::rc
