#include "onerma/command_slots.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::onerma {
namespace {

using Side = SolicitationWindow::Side;

constexpr auto kTurn = static_cast<std::uint32_t>(FrameWriter::frame_size(kMaxOp));

}  // namespace

CommandSlots::CommandSlots(const SlotParameters& parameters, SolicitationWindow& window)
    : parameters_(parameters), window_(window), slots_(parameters.slots) {
  SLUICE_CHECK(parameters.slots != 0 && parameters.slots < kNoIndex);
  SLUICE_CHECK(window.limit() >= kOverhead + kMaxOp);
  free_.reserve(slots_.size());
  for (std::size_t i = slots_.size(); i-- != 0;) free_.push_back(static_cast<std::uint16_t>(i));
}

bool CommandSlots::issue(Time now, const Command& command) {
  SLUICE_CHECK(command.local.size() <= kMaxOp && command.completions != nullptr);
  if (command.completions->full()) return false;
  User& user = user_of(*command.completions);
  if (free_.size() <= (now >= last_wait_ ? 0 : kept_from(now, user))) {
    wait_for_slot(now, user);
    return false;
  }
  user.waits_since = 0;
  ++user.open;
  const std::uint16_t index = free_.back();
  free_.pop_back();
  command.completions->reserve();
  ++open_;
  Slot& slot = slots_[index];
  slot.command = command;
  slot.op = {};
  slot.issued = now;
  slot.deadline = now + parameters_.dispatch_timeout;
  slot.issue_delay = {};
  slot.state = Slot::State::kWaiting;
  slot.window_bytes =
      command.op == OpKind::kRead ? static_cast<std::uint32_t>(FrameWriter::frame_size(command.local.size())) : 0;
  list_of(slot).push(slots_, index);
  return true;
}

// Slots that are not for this user, because others wait for them with more right.
std::size_t CommandSlots::kept_from(Time now, const User& user) const {
  if (now >= last_wait_) return 0;
  std::size_t kept = 0;
  for (const User& other : users_) {
    if (&other == &user || other.waits_since == 0 || now >= other.waits_until) continue;
    const bool waits_longer = user.waits_since == 0 || other.waits_since < user.waits_since;
    kept += other.open < user.open || (other.open == user.open && waits_longer) ? 1 : 0;
  }
  return kept;
}

void CommandSlots::wait_for_slot(Time now, User& user) {
  if (user.waits_since == 0 || now >= user.waits_until) user.waits_since = ++refusals_;
  user.waits_until = last_wait_ = now + parameters_.dispatch_timeout;
}

Time CommandSlots::next_try(const CompletionRing& ring) const {
  const auto user = std::ranges::find(users_, &ring, &User::ring);
  return user == users_.end() || free_.size() > kept_from({}, *user) ? Time() : last_wait_;
}

Slot* CommandSlots::next_to_send() {
  Slot* const read = next_read();
  const bool write = !writes_.empty();
  if (read == nullptr) window_.want_nothing(Side::kReads);
  const bool room = read != nullptr && window_.has_room(Side::kReads, read->window_bytes);
  if (room && (!write || !writes_turn_)) return read;
  return write ? &slots_[writes_.first()] : nullptr;
}

// Deficit round robin: a turn is worth one operation of the largest kind. The same user until its credit or its reads are used up.
Slot* CommandSlots::next_read() {
  for (std::size_t looked = 0; looked <= users_.size(); ++looked) {
    if (users_.empty()) return nullptr;
    User& user = users_[turn_];
    if (!user.reads.empty()) {
      Slot& slot = slots_[user.reads.first()];
      if (user.credit >= slot.window_bytes) return &slot;
    } else {
      user.credit = 0;
    }
    turn_ = turn_ + 1 == users_.size() ? 0 : turn_ + 1;
    if (!users_[turn_].reads.empty()) users_[turn_].credit += kTurn;
  }
  return nullptr;
}

// New here, or last seen by another initiator.
CommandSlots::User& CommandSlots::new_user(CompletionRing& ring) {
  const auto known = std::ranges::find(users_, &ring, &User::ring);
  ring.set_user(static_cast<std::uint32_t>(known - users_.begin()));
  if (known == users_.end()) users_.push_back({.ring = &ring});
  return users_[ring.user()];
}

// As it leaves, not as it is issued: targets tell replays by it, and a slot may wait here for longer than many others take.
void CommandSlots::number(Slot& slot) { slot.op = OpId(++sequence_ << 16 | index_of(slot)); }

void CommandSlots::on_sent(Time now, Slot& slot) {
  const std::uint16_t index = index_of(slot);
  if (slot.command.op == OpKind::kRead) {
    window_.take(Side::kReads, slot.window_bytes);
    user_of(*slot.command.completions).credit -= slot.window_bytes;
  }
  list_of(slot).remove(slots_, index);
  writes_turn_ = slot.command.op == OpKind::kRead;
  slot.issue_delay = now - slot.issued;
  slot.deadline = slot.issued + parameters_.timeout;
  slot.state = Slot::State::kSent;
  list_of(slot).push(slots_, index);
}

void CommandSlots::on_pull(Time now, Slot& slot) {
  slot.pulled = now;
  slot.state = Slot::State::kPulled;
}

void CommandSlots::on_data_sent(Time now, Slot& slot) {
  const std::uint16_t index = index_of(slot);
  sent_.remove(slots_, index);
  slot.issue_delay = slot.issue_delay + (now - slot.pulled);
  slot.deadline = now + parameters_.timeout;
  slot.state = Slot::State::kDataSent;
  data_.push(slots_, index);
}

void CommandSlots::complete(Time now, Slot& slot, Status status) {
  const bool sent = slot.state != Slot::State::kWaiting;
  const bool data_left = slot.state == Slot::State::kDataSent;
  const std::uint16_t index = index_of(slot);
  list_of(slot).remove(slots_, index);
  if (sent) window_.give_back(slot.window_bytes);
  slot.state = Slot::State::kFree;
  free_.push_back(index);
  --open_;
  --user_of(*slot.command.completions).open;
  const Duration total = now - slot.issued;
  slot.command.completions->push({.user = slot.command.user,
                                  .issue_delay = sent ? slot.issue_delay : total,
                                  .total_delay = total,
                                  .length = static_cast<std::uint16_t>(slot.command.local.size()),
                                  .slot = SlotId(index),
                                  .op = slot.command.op,
                                  .status = status,
                                  .data_left = data_left});
}

void CommandSlots::expire(Time now) {
  for (User& user : users_) {
    expire(now, user.reads, Status::kDispatchTimeout);
    expire(now, user.sent, Status::kTimeout);
  }
  expire(now, writes_, Status::kDispatchTimeout);
  expire(now, sent_, Status::kTimeout);
  expire(now, data_, Status::kTimeout);
}

void CommandSlots::expire(Time now, List& list, Status status) {
  while (!list.empty() && slots_[list.first()].deadline <= now) complete(now, slots_[list.first()], status);
}

Time CommandSlots::next_deadline() const {
  Time next = Time::never();
  const auto look = [&](const List& list) {
    if (!list.empty()) next = std::min(next, slots_[list.first()].deadline);
  };
  for (const User& user : users_) {
    look(user.reads);
    look(user.sent);
  }
  for (const List* list : {&writes_, &sent_, &data_}) look(*list);
  return next;
}

CommandSlots::List& CommandSlots::list_of(const Slot& slot) {
  if (slot.command.op == OpKind::kRead) {
    User& user = user_of(*slot.command.completions);
    return slot.state == Slot::State::kWaiting ? user.reads : user.sent;
  }
  switch (slot.state) {
    case Slot::State::kWaiting: return writes_;
    case Slot::State::kDataSent: return data_;
    default: return sent_;
  }
}

}  // namespace sluice::onerma
