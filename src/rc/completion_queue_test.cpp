#include "rc/completion_queue.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::rc
