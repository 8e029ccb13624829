// Completion queue: a bounded ring that queue pairs fill and a program polls.
//
// Invariant:  completions of one queue pair's send (or receive) queue come in posting order.
// Errors:     a full queue loses the completion and is overrun for good; the queue pair that lost it goes to ERR, and the adapter tells.
// Threads:    the adapter's owner. Whoever shares it locks around the adapter.
// Source:     IBTA vol. 1 §11.4.2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>

#include "rc/work.h"

namespace sluice::rc {

class CompletionQueue {
 public:
  // REQUIRES: 0 < depth.
  explicit CompletionQueue(std::uint32_t depth);

  // Another depth, with what is in it. False, and all is as it was: there is no room for that. Throws std::bad_alloc.
  // REQUIRES: 0 < depth.
  [[nodiscard]] bool resize(std::uint32_t depth);

  // Takes up to out.size() completions, oldest first.
  std::size_t poll(std::span<Completion> out);

  // Asks for one call of `on_event` at the next completion (the next solicited one or error, if so asked, and not yet for any:
  // §11.4.2.2).
  enum class Notify : std::uint8_t { kNone, kSolicited, kNext };
  void request_notification(Notify notify) { notify_ = std::max(notify_, notify); }
  void set_event_handler(std::function<void()> on_event) { on_event_ = std::move(on_event); }

  bool overrun() const { return overrun_; }
  std::uint32_t size() const { return tail_ - head_; }
  std::uint32_t depth() const { return depth_; }

  // For queue pairs. False: there was no room, and the completion is lost.
  bool push(const Completion& completion) {
    if (size() == depth_) {
      overrun_ = true;
      return false;
    }
    ring_[tail_++ & mask_] = completion;
    if (notify_ != Notify::kNone) notify(completion);
    return true;
  }
  // A queue pair that goes away takes its completions with it.
  void remove_of(Qpn qpn);
  // True once after an overrun: for the event that tells of it.
  bool take_overrun() {
    const bool news = overrun_ && !overrun_told_;
    overrun_told_ = overrun_;
    return news;
  }

 private:
  struct Free {
    void operator()(Completion* ring) const { std::free(ring); }
  };
  using Ring = std::unique_ptr<Completion[], Free>;

  static Ring make_ring(std::uint32_t depth);
  void notify(const Completion& completion);

  // A power of two, at least depth_. Memory is paid for when it is touched, and the ring begun anew when all has been taken: a queue with room for
  // many pairs costs what is in it.
  Ring ring_;
  std::uint32_t depth_;
  std::uint32_t mask_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  bool overrun_ = false;
  bool overrun_told_ = false;
  Notify notify_ = Notify::kNone;
  std::function<void()> on_event_;
};

}  // namespace sluice::rc
