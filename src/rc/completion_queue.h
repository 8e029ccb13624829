// Completion queue: a bounded ring that queue pairs fill and a program polls.
//
// Invariant:  completions of one queue pair's send (or receive) queue come in posting order.
// Errors:     a full queue loses the completion and is overrun for good (IBTA: an async event, the queue is unusable).
// Threads:    the adapter's owner. Whoever shares it locks around the adapter.
// Source:     IBTA vol. 1 §11.4.2.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "rc/work.h"

namespace sluice::rc {

class CompletionQueue {
 public:
  // REQUIRES: 0 < depth.
  explicit CompletionQueue(std::uint32_t depth);

  // Takes up to out.size() completions, oldest first.
  std::size_t poll(std::span<Completion> out);

  // Asks for one call of `on_event` at the next completion (the next solicited one or error, if so asked).
  enum class Notify : std::uint8_t { kNone, kSolicited, kNext };
  void request_notification(Notify notify) { notify_ = notify; }
  void set_event_handler(std::function<void()> on_event) { on_event_ = std::move(on_event); }

  bool overrun() const { return overrun_; }
  std::uint32_t size() const { return tail_ - head_; }
  std::uint32_t depth() const { return depth_; }

  // For queue pairs.
  void push(const Completion& completion);
  // A queue pair that goes away takes its completions with it.
  void remove_of(Qpn qpn);

 private:
  std::vector<Completion> ring_;  // a power of two, at least depth_
  std::uint32_t depth_;
  std::uint32_t mask_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  bool overrun_ = false;
  Notify notify_ = Notify::kNone;
  std::function<void()> on_event_;
};

}  // namespace sluice::rc
