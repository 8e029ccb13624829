// Event loop of virtual time: whoever has something due next stands in one heap, once.
//
// Life:       schedule(event, when) -> run_until(end) calls event.fire(now) in the order of time.
// Order:      events of one instant fire in the order in which they were scheduled; so a run depends on its seed alone.
// Invariant:  an event is in the heap at most once (a pipe keeps one pending event however many packets it holds); time never goes back.
// Units:      picoseconds.
// Threads:    one owner.
// Limits:     2^63 ps, 106 days.
// Source:     htsim's kernel (one pending event a pipe); ARCHITECTURE.md "Real time and virtual time".
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace sluice::sim {

class EventLoop;

// Something that has something to do at some time. Removes itself when it goes.
class Event {
 public:
  Event() = default;
  virtual ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  virtual void fire(Time now) = 0;
  bool scheduled() const { return place_ != kNowhere; }

 private:
  friend class EventLoop;
  static constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
  EventLoop* loop_ = nullptr;
  std::uint32_t place_ = kNowhere;
};

class EventLoop {
 public:
  Time now() const { return now_; }
  std::uint64_t fired() const { return fired_; }

  // Moves the event if it is scheduled already. A time that is past counts as now.
  void schedule(Event& event, Time when);
  // Only if that is earlier than what it is scheduled for.
  void schedule_no_later(Event& event, Time when) {
    if (!event.scheduled() || when < heap_[event.place_].when) schedule(event, when);
  }
  void cancel(Event& event);

  // Fires everything due up to `end`, which is then the time.
  void run_until(Time end);
  // Until `done()` says so, asked after each event, or nothing is left, or the time is `end`. Returns whether it was done.
  template <class Done>
  bool run_until(Time end, Done&& done) {
    while (!done()) {
      if (heap_.empty() || heap_.front().when > end) {
        if (end != Time::never()) now_ = std::max(now_, end);
        return false;
      }
      fire_first();
    }
    return true;
  }

 private:
  static constexpr std::uint32_t kChildren = 4;
  struct Entry {
    Time when;
    std::uint64_t order = 0;
    Event* event = nullptr;

    bool before(const Entry& other) const { return when != other.when ? when < other.when : order < other.order; }
  };
  void fire_first();
  void put(std::uint32_t place, const Entry& entry) {
    heap_[place] = entry;
    entry.event->place_ = place;
  }
  void rise(std::uint32_t place, const Entry& entry);
  void sink(std::uint32_t place, const Entry& entry);

  std::vector<Entry> heap_;
  Time now_;
  std::uint64_t order_ = 0;
  std::uint64_t fired_ = 0;
};

// An event that calls a member function: `MemberEvent<Nic, &Nic::transmit> event{*this};`
template <class Owner, void (Owner::*kFire)(Time)>
class MemberEvent final : public Event {
 public:
  explicit MemberEvent(Owner& owner) : owner_(owner) {}
  void fire(Time now) override { (owner_.*kFire)(now); }

 private:
  Owner& owner_;
};

}  // namespace sluice::sim
