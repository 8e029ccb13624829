#include "sim/world/event_loop.h"

#include <algorithm>

namespace sluice::sim {

Event::~Event() {
  if (scheduled()) loop_->cancel(*this);
}

void EventLoop::schedule(Event& event, Time when) {
  const Entry entry{std::max(when, now_), order_++, &event};
  if (!event.scheduled()) {
    event.loop_ = this;
    heap_.emplace_back();
    return rise(static_cast<std::uint32_t>(heap_.size() - 1), entry);
  }
  SLUICE_CHECK(event.loop_ == this);
  const std::uint32_t place = event.place_;
  if (entry.before(heap_[place])) return rise(place, entry);
  sink(place, entry);
}

void EventLoop::cancel(Event& event) {
  if (!event.scheduled()) return;
  const std::uint32_t place = event.place_;
  event.place_ = Event::kNowhere;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  if (place > 0 && last.before(heap_[(place - 1) / kChildren])) return rise(place, last);
  sink(place, last);
}

void EventLoop::run_until(Time end) {
  while (!heap_.empty() && heap_.front().when <= end) fire_first();
  now_ = std::max(now_, end);
}

void EventLoop::fire_first() {
  Event& event = *heap_.front().event;
  SLUICE_CHECK(heap_.front().when >= now_);
  now_ = heap_.front().when;
  ++fired_;
  cancel(event);
  event.fire(now_);
}

void EventLoop::rise(std::uint32_t place, const Entry& entry) {
  while (place > 0) {
    const std::uint32_t parent = (place - 1) / kChildren;
    if (!entry.before(heap_[parent])) break;
    put(place, heap_[parent]);
    place = parent;
  }
  put(place, entry);
}

void EventLoop::sink(std::uint32_t place, const Entry& entry) {
  const auto size = static_cast<std::uint32_t>(heap_.size());
  for (;;) {
    const std::uint32_t first = place * kChildren + 1;
    if (first >= size) break;
    std::uint32_t least = first;
    const std::uint32_t end = std::min(first + kChildren, size);
    for (std::uint32_t child = first + 1; child < end; ++child) {
      if (heap_[child].before(heap_[least])) least = child;
    }
    if (!heap_[least].before(entry)) break;
    put(place, heap_[least]);
    place = least;
  }
  put(place, entry);
}

}  // namespace sluice::sim
