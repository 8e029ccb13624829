// A question that a loop's thread answers, asked from another.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/poll_loop.h"

namespace sluice::rack {

// What `question` says when the loop's thread runs it between two turns; an error when it has not within two seconds. What it refers to must
// live as long as the loop turns.
template <class Answer>
Result<Answer> ask(nic::PollLoop& loop, std::function<Result<Answer>(Time)> question) {
  auto answer = std::make_shared<std::promise<Result<Answer>>>();
  auto future = answer->get_future();
  loop.post([answer, question = std::move(question)](Time now) { answer->set_value(question(now)); });
  if (future.wait_for(std::chrono::seconds(2)) != std::future_status::ready) return fail("the daemon is busy");
  return future.get();
}

}  // namespace sluice::rack
