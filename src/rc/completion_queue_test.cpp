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

TEST(CompletionQueue, IsResizedWithWhatIsInIt) {
  CompletionQueue queue(4);
  std::array<Completion, 8> out;
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_TRUE(queue.push({.id = id}));
  ASSERT_EQ(queue.poll(std::span(out).first(3)), 3u);
  for (std::uint64_t id = 4; id < 7; ++id) ASSERT_TRUE(queue.push({.id = id}));  // past the end of the ring
  EXPECT_FALSE(queue.resize(3)) << "four are in it";
  EXPECT_EQ(queue.depth(), 4u);
  ASSERT_TRUE(queue.resize(6));
  EXPECT_EQ(queue.depth(), 6u);
  ASSERT_TRUE(queue.push({.id = 7}));
  ASSERT_TRUE(queue.push({.id = 8}));
  EXPECT_FALSE(queue.push({.id = 9})) << "six are in it";
  EXPECT_TRUE(queue.resize(6)) << "to what it is";
  ASSERT_EQ(queue.poll(out), 6u);
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(out[i].id, i + 3);
  ASSERT_TRUE(queue.resize(1));
  EXPECT_TRUE(queue.push({.id = 10}));
  EXPECT_FALSE(queue.push({.id = 11}));
  ASSERT_EQ(queue.poll(out), 1u);
  EXPECT_EQ(out[0].id, 10u);
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
