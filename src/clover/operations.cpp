// Client: get, and appending versions for put, insert and erase.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "clover/client_parts.h"

namespace sluice::clover {

using remote::RemoteAddress;
using remote::Status;
using remote::Task;

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kNotFound: return "not found";
    case Outcome::kExists: return "exists";
    case Outcome::kNoSpace: return "no space";
    case Outcome::kUnavailable: return "unavailable";
    case Outcome::kTooLong: return "too long";
    case Outcome::kNoAtomics: return "this transport has no atomics, which Clover needs";
    case Outcome::kUnknown: return "unknown";
  }
  return "?";
}

Task<GetResult> Client::get(Key key, MutableBytes into) {
  ++counters_.gets;
  const Time deadline = now() + config_.timeout;
  Cursor cursor;
  if (const auto* const known = cached_cursor(key)) {
    cursor = *known;
  } else if (const Outcome found = co_await look_up(key, cursor, deadline); found != Outcome::kOk) {
    co_return GetResult{found, 0};
  }
  Buffer node(buffers_, layout_.node_bytes());
  const Tail tail = co_await find_tail(key, cursor, deadline, node.bytes());
  if (tail.outcome != Outcome::kOk) co_return GetResult{tail.outcome, 0};
  cursors_.store(key, tail.cursor);
  if (tail.cursor.node.kind() == NodeKind::kTombstone) co_return GetResult{Outcome::kNotFound, 0};
  if (into.size() < tail.length) co_return GetResult{Outcome::kTooLong, tail.length};
  std::memcpy(into.data(), node.bytes().data() + kValueOffset, tail.length);
  co_return GetResult{Outcome::kOk, tail.length};
}

Task<Outcome> Client::put(Key key, ByteView value) {
  ++counters_.puts;
  return append(Append::kPut, key, value);
}

Task<Outcome> Client::insert(Key key, ByteView value) {
  ++counters_.inserts;
  return append(Append::kInsert, key, value);
}

Task<Outcome> Client::erase(Key key) {
  ++counters_.erases;
  return append(Append::kErase, key, {});
}

// ---------------------------------------------------------------------------------------------------------- appending

Task<Outcome> Client::append(Append how, Key key, ByteView value) {
  if (value.size() > layout_.value_bytes()) co_return Outcome::kTooLong;
  Operation op(buffers_, layout_.node_bytes());
  op.how = how;
  op.key = key;
  op.value = value;
  op.store = view_.store;
  op.deadline = now() + config_.timeout;
  op.latest = op.deadline + config_.space_timeout;
  op.backoff = config_.backoff_first;
  for (;;) {
    Step step = Step::kAgain;
    if (!leased() && !co_await ensure_lease(op.deadline)) {
      step = op.done(Outcome::kUnavailable);
    } else if (op.store != view_.store) {
      step = op.done(Outcome::kUnavailable);  // or unknown
    } else if (op.slot && op.member != membership()) {
      // The server took us for dead and the slot with us.
      if (op.uncertain) {
        step = op.done(Outcome::kUnknown);
      } else {
        op.slot = {};
        op.written = false;
      }
    } else if (op.slot && !is_there(op.slot)) {
      // Linked or not, nobody will read it.
      if (op.uncertain) {
        step = op.done(Outcome::kUnknown);
      } else {
        put_back(op.slot);  // another, of memory that is there
        op.slot = {};
        op.written = false;
      }
    } else if (op.have_cursor) {
      step = co_await append_at(op);
    } else if (const auto* const known = cached_cursor(key)) {
      op.at = *known;
      op.have_cursor = true;
    } else {
      const Outcome found = co_await look_up(key, op.at, op.deadline);
      if (found == Outcome::kOk) {
        op.have_cursor = true;
      } else if (found != Outcome::kNotFound) {
        step = op.done(found);
      } else if (how == Append::kErase) {
        step = op.done(Outcome::kNotFound);
      } else {
        step = co_await first_version(op);
      }
    }
    if (step == Step::kDone) co_return close(op);
    if (now() >= op.deadline) {
      op.done(Outcome::kUnavailable);
      co_return close(op);
    }
  }
}

// Of several views the oldest counts: that costs the settling of a view some time and nothing else.
void Client::note_writing(Operation& op) {
  if (op.writing_view != 0) return;
  op.writing_view = view_.number;
  for (auto& [view, count] : writing_) {
    if (view == op.writing_view) {
      ++count;
      return;
    }
  }
  writing_.emplace_back(op.writing_view, 1);
}

void Client::forget_writing(Operation& op) {
  if (op.writing_view == 0) return;
  for (auto& [view, count] : writing_) count -= static_cast<std::size_t>(view == op.writing_view);
  std::erase_if(writing_, [](const auto& entry) { return entry.second == 0; });
}

// What becomes of the slot, and what may truly be said.
Outcome Client::close(Operation& op) {
  forget_writing(op);
  if (op.outcome == Outcome::kOk) return op.outcome;
  if (!op.slot || op.member != membership() || !joined_) {
    // Nothing to give back: the server took it.
  } else if (op.uncertain) {
    orphan(op.slot);
  } else {
    put_back(op.slot);
  }
  return op.uncertain ? Outcome::kUnknown : op.outcome;
}

void Client::take_fresh(Operation& op, NodePointer slot) {
  const NodeKind kind = op.how == Append::kErase ? NodeKind::kTombstone : NodeKind::kValue;
  op.slot = slot.as(kind);
  op.member = membership();
  op.written = false;
  const auto trailer = trailer_word(slot, volume_of(slot)->base, op.value.size());
  compose_node(layout_, op.key, kind, op.value, trailer, op.node.bytes());
}

// Writes the node to its slot, where nobody looks yet.
Task<Client::Step> Client::write_node(Operation& op) {
  if (!op.slot) {
    NodePointer slot;
    const Time asked = now();
    const Outcome taken = co_await take_slot(op, slot);
    op.deadline = std::min(op.latest, op.deadline + (now() - asked));
    if (taken != Outcome::kOk) co_return op.done(taken);
    if (op.store != view_.store) {
      put_back(slot);
      co_return Step::kAgain;
    }
    take_fresh(op, slot);
  }
  // Getting a slot may have taken long: out of lease it may be somebody else's already.
  if (!leased() || op.member != membership() || !is_there(op.slot)) co_return Step::kAgain;
  note_writing(op);
  const auto bytes = op.node.bytes();
  Mirrored result;
  if (mirrored(op.slot)) {
    result = co_await write_mirrors(op.slot, bytes);
  } else {
    ++counters_.writes;
    ++counters_.round_trips;
    counters_.bytes += bytes.size();
    const RemoteAddress where = primary_of(op.slot);
    result.failed = where.node;
    depart();
    result.status = co_await memory_.write(where, bytes);
    arrive(result.failed, result.status);
    if (result.status == Status::kOk) node_works(result.failed);
  }
  if (result.status == Status::kOk) {
    op.written = true;
    co_return Step::kAgain;
  }
  if (result.status == Status::kUnknown) {
    // The write may yet arrive, even when the node is in a chain and its next word is set: not this slot.
    if (op.member == membership() && joined_) orphan(op.slot);
    op.slot = {};
  }
  if (co_await recover(result.failed, result.status, op.deadline, op.backoff)) co_return Step::kAgain;
  co_return op.done(Outcome::kUnavailable);
}

// The key has no chain: the server begins one with our node.
Task<Client::Step> Client::first_version(Operation& op) {
  if (!op.written) {
    const Step step = co_await write_node(op);
    if (step == Step::kDone || !op.written) co_return step;
  }
  if (!leased() || op.member != membership()) co_return Step::kAgain;
  if (!op.uncertain) op.tried = now();
  Call request(Request::kCreate, 1, membership());
  request.body.put(op.key);
  request.body.put(op.slot.word);
  const bool answered = co_await call(request, op.deadline);
  op.uncertain = op.uncertain || request.uncertain;
  if (!answered) co_return op.done(Outcome::kUnavailable);
  switch (request.header.result) {
    case Answer::kOk:
      op.uncertain = false;
      if (op.store == view_.store) cursors_.store(op.key, {op.slot, op.tried});
      if (config_.shortcuts != nullptr) config_.shortcuts->linked(op.key, op.slot);
      co_return op.done(Outcome::kOk);
    case Answer::kExists:
      op.uncertain = false;
      op.at = {NodePointer{request.answer.take64()}, request.submitted};
      op.have_cursor = true;
      co_return Step::kAgain;
    default:
      // Not our slot any more. Whether an earlier try was served, nobody can say now.
      if (op.uncertain) co_return op.done(Outcome::kUnknown);
      op.slot = {};
      op.written = false;
      co_return Step::kAgain;
  }
}

// The cursor is of no use any more. What was tried on it stays uncertain.
Client::Step Client::lose_cursor(Operation& op) {
  cursors_.drop(op.key, op.at.node);
  op.have_cursor = false;
  return op.uncertain ? op.done(Outcome::kUnknown) : Step::kAgain;
}

// What came too late to be believed is tried again: with the next lease on the view, perhaps of a newer one, on the replica that counts then. Out of the
// cursor's time nothing can be tried.
Client::Step Client::act_later(Operation& op) { return in_time(op.at) ? Step::kAgain : lose_cursor(op); }

// Goes on at the tail, found by reading: a step costs one round trip, where a lost swap and its mirrors cost two, and the lease
// of the cursor begins anew. REQUIRES: our node is in no chain and no swap of it is under way.
Task<Client::Step> Client::catch_up(Operation& op) {
  op.lost_in_a_row = 0;
  Buffer node(buffers_, layout_.node_bytes());
  const Tail tail = co_await find_tail(op.key, op.at, op.deadline,
                                       config_.writers_read_words ? node.bytes().first(kNextBytes) : node.bytes());
  if (tail.outcome == Outcome::kNotFound) {
    op.have_cursor = false;
    co_return Step::kAgain;
  }
  if (tail.outcome != Outcome::kOk) co_return op.done(tail.outcome);
  op.at = tail.cursor;
  if (config_.share_finds) cursors_.store(op.key, op.at);
  co_return Step::kAgain;
}

// An insert needs a tombstone at the tail, an erase a value: looks whether the tail is so.
Task<Client::Step> Client::check_kind(Operation& op) {
  const Step step = co_await catch_up(op);
  if (step == Step::kDone || !op.have_cursor) co_return step;
  const bool is_value = op.at.node.kind() == NodeKind::kValue;
  if (op.how == Append::kInsert && is_value) co_return op.done(Outcome::kExists);
  if (op.how == Append::kErase && !is_value) co_return op.done(Outcome::kNotFound);
  co_return Step::kAgain;
}

Task<Client::Step> Client::append_at(Operation& op) {
  if (!is_there(op.at.node)) co_return lose_cursor(op);
  const bool is_value = op.at.node.kind() == NodeKind::kValue;
  const bool wrong_kind = (op.how == Append::kInsert && is_value) || (op.how == Append::kErase && !is_value);
  if (wrong_kind) {
    // An earlier try may have linked the node, or a probe of it may have met the tail of the other kind: nobody can tell any more.
    if (op.uncertain) co_return op.done(Outcome::kUnknown);
    co_return co_await check_kind(op);
  }
  if (!op.written) co_return co_await write_node(op);
  if (!in_lease(op.at)) co_return lose_cursor(op);
  // Time must be left to learn what came of the swap.
  if (!op.uncertain && now() >= op.at.confirmed + view_.cursor_lifetime / 4 * 3) co_return co_await catch_up(op);
  const Trust terms = trust(op.at);
  const RemoteAddress where = primary_of(op.at.node);
  if (!op.uncertain) {
    op.tried = now();
    op.stamp = clock_;
  }
  ++counters_.swaps;
  ++counters_.round_trips;
  counters_.bytes += 8;
  depart();
  const remote::AtomicResult result =
      co_await memory_.compare_and_swap(where, free_word(op.key, op.at.node.kind()), op.slot.word);
  arrive(where.node, result.status);
  if (result.status != Status::kOk) {
    op.uncertain = op.uncertain || result.status == Status::kUnknown;
    if (co_await recover(where.node, result.status, op.deadline, op.backoff)) co_return Step::kAgain;
    co_return op.done(Outcome::kUnavailable);
  }
  node_works(where.node);
  const bool linked = result.prior == free_word(op.key, op.at.node.kind()) || result.prior == op.slot.word;
  op.uncertain = op.uncertain || linked;
  if (!believable(terms)) {
    co_return act_later(op);
  }
  if (linked) co_return co_await finish_link(op);
  co_return co_await judge_swap(op, result.prior);
}

// The swap failed: `prior` stood there instead.
Task<Client::Step> Client::judge_swap(Operation& op, std::uint64_t prior) {
  const NodeKind other = op.at.node.kind() == NodeKind::kValue ? NodeKind::kTombstone : NodeKind::kValue;
  if (prior == free_word(op.key, other)) {
    // Steered to a tail of the other kind on its way.
    op.at.node = op.at.node.as(other);
    co_return Step::kAgain;
  }
  // An earlier try may have been led elsewhere by a box, and stand there; of mirrored nodes no box leads any.
  const bool told = !op.uncertain || mirrored(op.at.node);
  if (prior == sealed_word(op.key)) {
    if (!told) co_return op.done(Outcome::kUnknown);
    op.uncertain = false;
    const bool reported = co_await report_sealed(op.key, op.at, op.deadline);
    if (!reported) co_return op.done(Outcome::kUnavailable);
    co_return lose_cursor(op);
  }
  if (is_end(prior) || prior == 0) {
    ++counters_.foreign;
    co_return lose_cursor(op);
  }
  ++counters_.swaps_lost;
  if (!told) co_return op.done(Outcome::kUnknown);
  if (!is_there(NodePointer{prior})) {
    // What follows is lost: only something newer can help, which the server may know. It is asked once.
    if (std::exchange(op.led_to_lost, true)) co_return op.done(Outcome::kUnavailable);
    co_return lose_cursor(op);
  }
  if (!op.uncertain) {
    if (const auto* const known = config_.share_finds ? cached_cursor(op.key) : nullptr;
        known != nullptr && known->confirmed > op.at.confirmed) {
      op.at = *known;  // another operation of this client has been further
      co_return Step::kAgain;
    }
    if (++op.lost_in_a_row >= config_.swaps_before_walk) co_return co_await catch_up(op);
  }
  if (mirrored(op.at.node)) {
    const Mirrored stable = co_await stabilise(op.at, op.key, prior);
    if (stable.late) co_return act_later(op);
    if (stable.status != Status::kOk) {
      if (co_await recover(stable.failed, stable.status, op.deadline, op.backoff)) co_return Step::kAgain;
      co_return op.done(Outcome::kUnavailable);
    }
  }
  // All replicas agree on another successor: ours is not linked, and no swap that may still be under way can link it.
  op.uncertain = false;
  ++counters_.walks;
  op.at.node = NodePointer{prior};
  co_return Step::kAgain;
}

// The primary says that we follow: make it so on its mirrors, then it is done.
Task<Client::Step> Client::finish_link(Operation& op) {
  if (mirrored(op.at.node)) {
    const Mirrored stable = co_await stabilise(op.at, op.key, op.slot.word);
    if (stable.late) co_return act_later(op);
    if (stable.status != Status::kOk) {
      if (co_await recover(stable.failed, stable.status, op.deadline, op.backoff)) co_return Step::kAgain;
      co_return op.done(Outcome::kUnavailable);
    }
  }
  op.uncertain = false;
  cursors_.store(op.key, {op.slot, op.tried});
  if (config_.shortcuts != nullptr) config_.shortcuts->linked(op.key, op.slot);
  if (op.member == membership()) report({op.key, op.slot, op.stamp});
  co_return op.done(Outcome::kOk);
}

}  // namespace sluice::clover
