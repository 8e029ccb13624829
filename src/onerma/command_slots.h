// Command slots: the state of every operation that an initiator has open, from its command to its completion. No frames here.
//
// Life:       issue() -> waits to enter service -> next_to_send() -> number() -> on_sent() -> (write: on_data_sent()) -> complete() or expire().
// Enters:     a read when the solicitation window has room for its answer; a user's in the order of issue, users (rings) by turns of equal
//             bytes; a write or Rekey at its turn. What has not entered `dispatch_timeout` after its command ends as kDispatchTimeout.
// Slots:      as many for each user as it takes, while nobody is refused one. A slot is kept for each who was refused within the last
//             `dispatch_timeout` from those who have more of them, or as many and have not waited for as long.
// Ends:       without an answer, `timeout` after its command as kTimeout; a write whose data have been sent, `timeout` after those: by then
//             the target has closed its side, so that what is reported as timed out has no effect later.
// Units:      bytes; window bytes are those of the answer's frame.
// Errors:     every operation ends in one Completion.
// Threads:    one owner; nothing is allocated after construction.
// Limits:     65,535 slots.
// Source:     1RMA §4.5, §6.1; slot count, window and the rule for writes are ours: docs/design/onerma.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "onerma/completion_ring.h"
#include "onerma/index_fifo.h"
#include "onerma/message.h"
#include "onerma/types.h"
#include "onerma/window.h"

namespace sluice::onerma {

using GrantId = Strong<struct GrantIdTag, std::uint32_t>;

struct SlotParameters {
  std::uint16_t slots = 256;
  Duration dispatch_timeout = Duration::microseconds(10);  // §6.1
  Duration timeout = Duration::microseconds(25);           // §6.1: 4 to 5 times the fabric's RTT
};

struct Command {
  OpKind op{};
  GrantId grant{};
  std::uint64_t address = 0;
  MutableBytes
      local{};  // read: destination; write: source, never written to; Rekey: the new key. At most kMaxOp; stays until the end
  std::uint64_t user = 0;
  CompletionRing* completions = nullptr;
};

struct Slot {
  enum class State : std::uint8_t { kFree, kWaiting, kSent, kPulled, kDataSent };

  Command command{};
  OpId op{};  // once it is sent
  Time issued;
  Time deadline;
  Time pulled;  // when the target asked for the data
  Duration issue_delay;
  Echo echo{};                     // of the request
  std::uint64_t pull_counter = 0;  // kPulled: what the data must carry
  Generation generation{};
  Boot pull_boot{};
  std::uint32_t window_bytes = 0;
  std::uint16_t place = 0;
  std::uint16_t next = kNoIndex;
  std::uint16_t previous = kNoIndex;
  State state = State::kFree;
};

class CommandSlots {
 public:
  // The window outlives the slots.
  CommandSlots(const SlotParameters& parameters, SolicitationWindow& window);

  // False: no slot is free but those that are kept for others, or the ring is full; nothing happened.
  // REQUIRES: local.size() <= kMaxOp; a ring.
  bool issue(Time now, const Command& command);
  std::uint32_t open() const { return open_; }
  bool full() const { return free_.empty(); }
  // When the ring's user, who has been refused a slot, has one for sure unless more slots are taken or others ask again; the past: now.
  Time next_try(const CompletionRing& ring) const;

  // What may enter service next, or nullptr; the same until on_sent() or a change in the window.
  Slot* next_to_send();
  // Gives it its OpId, for its request, which leaves now.
  void number(Slot& slot);
  void on_sent(Time now, Slot& slot);
  void on_pull(Time now, Slot& slot);
  void on_data_sent(Time now, Slot& slot);
  void complete(Time now, Slot& slot, Status status);

  // The slot in which this very attempt is open, and has been sent, or nullptr.
  Slot* find(OpId op) {
    const std::uint16_t index = slot_of(op).value;
    if (index >= slots_.size() || slots_[index].op != op) return nullptr;
    const bool was_sent = slots_[index].state != Slot::State::kFree && slots_[index].state != Slot::State::kWaiting;
    return was_sent ? &slots_[index] : nullptr;
  }
  void expire(Time now);
  Time next_deadline() const;
  const SlotParameters& parameters() const { return parameters_; }
  // What an operation takes at most, if time-outs are looked at in time: a write's data have one of their own.
  Duration longest(OpKind op) const { return op == OpKind::kRead ? parameters_.timeout : parameters_.timeout * 2; }

 private:
  using List = IndexFifo<Slot>;  // each in the order in which its slots run out of time

  // One ring's reads that wait, those that are sent, and the bytes that its turn still allows; its open operations, and since when and
  // until when it waits for a slot.
  struct User {
    const CompletionRing* ring = nullptr;
    List reads{};
    List sent{};
    std::uint32_t credit = 0;
    std::uint32_t open = 0;
    std::uint64_t waits_since = 0;  // counts refusals; 0: has not been refused
    Time waits_until{};
  };

  List& list_of(const Slot& slot);
  User& user_of(CompletionRing& ring) {
    const bool known = ring.user() < users_.size() && users_[ring.user()].ring == &ring;
    return known ? users_[ring.user()] : new_user(ring);
  }
  User& new_user(CompletionRing& ring);
  Slot* next_read();
  std::size_t kept_from(Time now, const User& user) const;
  void wait_for_slot(Time now, User& user);
  void expire(Time now, List& list, Status status);
  std::uint16_t index_of(const Slot& slot) const { return static_cast<std::uint16_t>(&slot - slots_.data()); }

  SlotParameters parameters_;
  SolicitationWindow& window_;
  std::vector<Slot> slots_;
  std::vector<std::uint16_t> free_;
  std::vector<User> users_;
  std::size_t turn_ = 0;  // whose read is next
  List writes_;           // waiting
  List sent_;             // writes, kSent and kPulled: reads may have waited for longer, those of each user by turns
  List data_;             // kDataSent
  std::uint64_t sequence_ = 0;
  std::uint64_t refusals_ = 0;
  Time last_wait_;  // ends
  std::uint32_t open_ = 0;
  bool writes_turn_ = false;
};

}  // namespace sluice::onerma
