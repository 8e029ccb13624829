// A question that a loop's thread answers, asked from another.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/poll_loop.h"

namespace sluice::rack {

inline constexpr std::chrono::milliseconds kAskPatience{2000};

// What `question` says when the loop's thread runs it between two turns; an error when it has not begun to within `patience`: then it is never
// run. What it refers to must live as long as the loop turns.
template <class Answer>
Result<Answer> ask(nic::PollLoop& loop, std::function<Result<Answer>(Time)> question,
                   std::chrono::milliseconds patience = kAskPatience) {
  struct Asked {
    std::promise<Result<Answer>> answer{};
    std::atomic_flag taken{};  // by the loop, which answers, or by us, who have given up
  };
  auto asked = std::make_shared<Asked>();
  auto future = asked->answer.get_future();
  loop.post([asked, question = std::move(question)](Time now) {
    if (!asked->taken.test_and_set()) asked->answer.set_value(question(now));
  });
  const bool answered = future.wait_for(patience) == std::future_status::ready;
  if (!answered && !asked->taken.test_and_set()) return fail("the daemon is busy");
  return future.get();
}

}  // namespace sluice::rack
