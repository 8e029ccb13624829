#include "port/impaired_link.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace sluice::port {

ImpairedLink::ImpairedLink(const Impairment& impairment, const Rng& rng)
    : impairment_(impairment),
      drop_(rng.fork("drop")),
      duplicate_(rng.fork("duplicate")),
      reorder_(rng.fork("reorder")),
      corrupt_(rng.fork("corrupt")) {
  if (!impairment.any()) return;  // never used
  queue_.resize(kSlots);
  add_slots();
}

void ImpairedLink::add_slots() {
  const std::size_t first = slots_.size() * kSlots;
  slots_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(kSlots * kMaxFrame));
  for (std::size_t i = kSlots; i-- > 0;) free_.push_back(static_cast<SlotIndex>(first + i));
  lent_.reserve(slots_.size() * kSlots);
  held_.reserve(slots_.size() * kSlots);
}

void ImpairedLink::grow() {
  std::vector<Entry> larger(queue_.size() * 2);
  for (std::uint64_t i = taken_; i != pushed_; ++i) larger[i & (larger.size() - 1)] = queued(i);
  queue_ = std::move(larger);
  for (std::size_t more = slots_.size(); more != 0; --more) add_slots();
}

std::uint8_t* ImpairedLink::slot() { return room() == 0 ? nullptr : bytes(free_.back()); }

void ImpairedLink::push(std::size_t length) {
  SLUICE_CHECK(room() > 0 && length > 0 && length <= kMaxFrame);
  ++counters_.frames;
  if (drop_.chance_per_million(impairment_.drop)) {
    ++counters_.dropped;
    return;
  }
  Entry entry{.slot = free_.back(), .length = static_cast<std::uint32_t>(length), .reach = 0, .due = Time::never()};
  free_.pop_back();
  if (reorder_.chance_per_million(impairment_.reorder)) {
    entry.reach = 1 + static_cast<std::uint32_t>(reorder_.below(kReorderReach));
    ++counters_.reordered;
  }
  queued(pushed_++) = entry;
  if (duplicate_.chance_per_million(impairment_.duplicate)) {
    const auto reach = static_cast<std::uint32_t>(duplicate_.below(kReorderReach + 1));
    const Entry copy{.slot = free_.back(), .length = entry.length, .reach = reach, .due = Time::never()};
    free_.pop_back();
    std::memcpy(bytes(copy.slot), bytes(entry.slot), length);
    queued(pushed_++) = copy;
    ++counters_.duplicated;
  }
  if (corrupt_.chance_per_million(impairment_.corrupt)) {
    corrupt({bytes(entry.slot), length});
    ++counters_.corrupted;
  }
}

void ImpairedLink::corrupt(MutableBytes frame) {
  std::array<std::uint64_t, 8> flipped{};
  const std::uint64_t wanted = std::min<std::uint64_t>(1 + corrupt_.below(flipped.size()), frame.size() * 8);
  for (std::size_t count = 0; count < wanted;) {
    const std::uint64_t bit = corrupt_.below(frame.size() * 8);
    const auto end = flipped.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::find(flipped.begin(), end, bit) != end) continue;  // a second flip would undo the first
    flipped[count++] = bit;
    frame[bit / 8] = static_cast<std::uint8_t>(frame[bit / 8] ^ (1u << bit % 8));
  }
}

void ImpairedLink::stamp(Time now) {
  while (stamped_ != pushed_) queued(stamped_++).due = now + impairment_.delay;
}

std::optional<Frame> ImpairedLink::next(Time now) {
  auto entry = leave_held(now);
  if (!entry) entry = leave_queue(now);
  if (!entry) return std::nullopt;
  ++left_;
  lent_.push_back(entry->slot);
  return Frame{bytes(entry->slot), entry->length, kMaxFrame};
}

std::optional<ImpairedLink::Entry> ImpairedLink::leave_held(Time now) {
  for (auto held = held_.begin(); held != held_.end(); ++held) {
    if (left_ < held->after && now < held->entry.due) continue;
    const Entry entry = held->entry;
    held_.erase(held);
    return entry;
  }
  return std::nullopt;
}

std::optional<ImpairedLink::Entry> ImpairedLink::leave_queue(Time now) {
  while (taken_ != stamped_ && queued(taken_).due <= now) {
    Entry entry = queued(taken_++);
    if (entry.reach == 0) return entry;
    // Stands aside for `reach` frames. It is gone from the queue, so the hold is counted from when it was due.
    entry.due = entry.due + kReorderHold;
    held_.push_back({entry, left_ + entry.reach});
  }
  return std::nullopt;
}

void ImpairedLink::give_back() {
  free_.insert(free_.end(), lent_.rbegin(), lent_.rend());
  lent_.clear();
}

std::size_t ImpairedLink::drop_waiting() {
  std::size_t dropped = held_.size();
  for (const auto& held : held_) free_.push_back(held.entry.slot);
  held_.clear();
  for (; taken_ != pushed_; ++dropped) free_.push_back(queued(taken_++).slot);
  stamped_ = pushed_;
  return dropped;
}

std::size_t ImpairedLink::drop_unstamped() {
  const std::uint64_t dropped = pushed_ - stamped_;
  while (pushed_ != stamped_) free_.push_back(queued(--pushed_).slot);
  return dropped;
}

Time ImpairedLink::next_deadline() const {
  Time first = Time::never();
  if (taken_ != stamped_) first = queue_[taken_ & (queue_.size() - 1)].due;
  for (const auto& held : held_) first = std::min(first, held.entry.due);
  return first;
}

}  // namespace sluice::port
