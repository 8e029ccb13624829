// CloverRule: links from their forwarding to their commitment, who waits for them, and how lost ones are brought about.
#include <algorithm>

#include "base/check.h"
#include "swordbox/clover_rule.h"

namespace sluice::swordbox {

Verdict CloverRule::open_link(Time now, const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key,
                              std::int64_t shift, bool exclusive, Verdict verdict) {
  KeyState& state = keys_[key];
  HistoryEntry& node = history_[entry];
  const Psn acknowledged = packet.connection.to[packet.end].acknowledged;
  if (links_.full() || packet.parsed.length > Link::kMaxCasFrame) return Verdict::kCasNoRoom;
  Operation* const op = operations_.add(packet.index, packet.end, packet.psn(), acknowledged);
  if (op == nullptr) return Verdict::kCasNoRoom;
  shift_address(packet, shift);

  const LinkIndex index = links_.take();
  Link& link = links_[index];
  link.key = key;
  link.number = ++state.opened;
  link.connection = packet.index;
  link.end = packet.end;
  link.psn = packet.psn().value();
  link.entry = entry;
  link.target_entry = state.tail_entry;
  link.target = cas.address + static_cast<std::uint64_t>(shift);
  link.compare = cas.compare;
  link.swap = cas.swap;
  link.region = cas.region;
  // A WRITE of this very connection is acknowledged by the CAS's own answer.
  const auto awaited = node.awaited();
  const bool written_here = node.state() == NodeState::kWritten && awaited.connection == (packet.index & 0xFFFF) &&
                            awaited.generation == (packet.connection.generation & 0xF);
  link.node_written = write_acknowledged(node);
  link.node_ready = link.node_written || written_here;
  link.frame_length = packet.parsed.length;
  std::copy_n(packet.frame, packet.parsed.length, link.frame.begin());
  (state.last_open == kNone ? state.first_open : links_[state.last_open].next_of_key) = index;
  state.last_open = index;
  links_.line_up(index, now + config_.repair_after);

  *op = {.psn = packet.psn().value(),
         .key = key,
         .key_generation = state.generation,
         .kind = Operation::Kind::kLink,
         .needs = link.number,
         .subject = index,
         .shift = shift};
  node.set_state(NodeState::kOpen);
  state.exclusive = exclusive;
  if (!exclusive) {
    state.set_tail(node, entry);
    state.free_word = node.free_word;
  }
  ++counters_.links_opened;
  return verdict;
}

// What is kept to be sent again has to be what the server has been sent.
void CloverRule::on_renumbered(const Judged& packet, Psn psn) {
  if (packet.parsed.traits().kind != wire::Kind::kCompareSwap) return;
  const Operation* const op = operations_.find(packet.index, packet.end, psn);
  if (op == nullptr || op->kind != Operation::Kind::kLink || !awaits_answer(*op)) return;
  Link& link = links_[op->subject];
  if (link.connection == packet.index && link.psn == psn.value())
    std::copy_n(packet.frame, link.frame_length, link.frame.begin());
}

// What stood in the target's next word says whether the link stands.
void CloverRule::link_answered(LinkIndex index, std::uint64_t prior) {
  const Link& link = links_[index];
  if (prior == link.compare) return link_stands(index, true);
  if (prior == link.swap) return link_stands(index, false);
  link_failed(index);
}

// `tail_is_known`: it was free until now, so nothing can have been linked behind its node.
void CloverRule::link_stands(LinkIndex index, bool tail_is_known) {
  Link& link = links_[index];
  KeyState& state = keys_[link.key];
  links_.leave_line(index);
  link.acknowledged = true;
  if (link.connection != kNone) proven_[link.connection] = link.region;
  const std::uint32_t key = link.key;
  if (state.exclusive && index == state.last_open) {
    state.exclusive = false;
    const bool known = tail_is_known && link.node_ready && !link.overtaken;
    if (known) {
      state.set_tail(history_[link.entry], link.entry);
    } else {
      state.tail = 0;
      state.tail_entry = kNone;
    }
    state.free_word = history_[link.entry].free_word;
    ++(known ? counters_.tails_learned : counters_.tails_lost);
  }
  advance(key);
  wake(state.requests);
}

// The target had another successor already. If links depend on this one, the box was wrong in what it must not be wrong in.
void CloverRule::link_failed(LinkIndex index) {
  Link& link = links_[index];
  KeyState& state = keys_[link.key];
  if (link.next_of_key != kNone) {
    if (!state.broken) ++counters_.chains_broken;
    state.broken = true;
    lose_tail(link.key);
    wake(state.requests);
    return;
  }
  // The last one: nobody was told of it. It goes without having been.
  ++counters_.links_failed;
  const std::uint32_t key = link.key;
  links_.leave_line(index);
  HistoryEntry& node = history_[link.entry];
  node.become_past(now_);
  if (link.node_ready) node.set_state(NodeState::kReady);
  lose_tail(key);
  state.exclusive = false;
  LinkIndex before_it = kNone;
  for (LinkIndex i = state.first_open; i != index; i = links_[i].next_of_key) before_it = i;
  (before_it == kNone ? state.first_open : links_[before_it].next_of_key) = kNone;
  state.last_open = before_it;
  if (link.target_entry != kNone) {
    HistoryEntry& target = history_[link.target_entry];
    const bool links_on = before_it != kNone && links_[before_it].entry == link.target_entry;
    if (!links_on && target.state() == NodeState::kTail) target.become_past(now_);
  }
  links_.give_back(index);
  advance(key);
  wake(state.requests);
}

// Closes acknowledged links from the oldest on, and lets go what has waited for them.
void CloverRule::advance(std::uint32_t key) {
  KeyState& state = keys_[key];
  if (state.broken) return;
  while (state.first_open != kNone && links_[state.first_open].acknowledged) close_link(state.first_open);
  state.committed = state.first_open == kNone ? state.opened : links_[state.first_open].number - 1;
  wake(state.responses);
}

// REQUIRES: it is its key's oldest.
void CloverRule::close_link(LinkIndex index) {
  const Link& link = links_[index];
  KeyState& state = keys_[link.key];
  state.first_open = link.next_of_key;
  if (state.first_open == kNone) state.last_open = kNone;
  // Unless its memory has got another node meanwhile.
  if (link.target_entry != kNone && history_[link.target_entry].state() == NodeState::kTail) {
    HistoryEntry& target = history_[link.target_entry];
    target.become_past(now_);
    target.note_key_place(link.key);
  }
  const bool linked_behind = state.first_open != kNone && links_[state.first_open].target_entry == link.entry;
  const bool is_tail = state.tail_entry == link.entry;
  if (linked_behind || is_tail) {
    history_[link.entry].set_state(NodeState::kTail);
  } else {
    history_[link.entry].become_past(now_);
  }
  links_.give_back(index);
  ++counters_.links_committed;
}

void CloverRule::lose_tail(std::uint32_t key) {
  KeyState& state = keys_[key];
  if (state.tail == 0) return;
  // While a link under way leads to it, or from it, it keeps its place; closing the link then lets it go.
  HistoryEntry& node = history_[state.tail_entry];
  const bool from_it = state.last_open != kNone && links_[state.last_open].target_entry == state.tail_entry;
  if (node.state() == NodeState::kTail && !from_it) node.become_past(now_);
  state.tail = 0;
  state.tail_entry = kNone;
  ++counters_.tails_lost;
}

// ------------------------------------------------------------------------------------------------------------- waiting

void CloverRule::wait(WaitingLine& line, DirectionToken direction, std::uint32_t key, bool request) {
  Waiting& waiting = waiting_[direction];
  SLUICE_CHECK(waiting.key == kNone);
  waiting = {.key = key, .request = request};
  line.append(waiting_, direction);
}

void CloverRule::wake(WaitingLine& line) { line.wake(waiting_, ready_); }

void CloverRule::stop_waiting(DirectionToken direction) {
  Waiting& waiting = waiting_[direction];
  if (waiting.key == kNone) return;
  KeyState& state = keys_[waiting.key];
  (waiting.request ? state.requests : state.responses).remove(waiting_, direction);
  waiting = Waiting{};
}

// -------------------------------------------------------------------------------------------------------------- repair

void CloverRule::on_connection_gone(ConnectionIndex connection) {
  for (std::uint8_t end = 0; end < 2; ++end) stop_waiting(token(connection, end));
  operations_.forget(connection);
  proven_[connection] = kNoRegion;
  // Only links that are not acknowledged still need it.
  for (LinkIndex i = links_.first_in_line(); i != kNone; i = links_[i].later) {
    if (links_[i].connection == connection) links_[i].connection = kNone;
  }
}

Time CloverRule::next_deadline() const {
  const LinkIndex first = links_.first_in_line();
  return first == kNone ? Time::never() : links_[first].due;
}

void CloverRule::on_deadline(Time now, port::FrameSink& outbox) {
  now_ = now;
  for (LinkIndex i = links_.first_in_line(); i != kNone && links_[i].due <= now; i = links_.first_in_line()) {
    Link& link = links_[i];
    links_.leave_line(i);
    links_.line_up(i, now + config_.repair_after);
    if (link.connection != kNone && !link.refused && link.resends < config_.resends) {
      if (!resend(link, outbox)) return;  // the way out is full: later
    } else if (!link.repairing && repairs_.size() < repairs_.capacity()) {
      link.repairing = true;
      ++counters_.repairs_requested;
      const KnownRegion& region = regions_[link.region];
      repairs_.push_back({.link = i,
                          .serial = link.serial,
                          .server = region.server.gid(),
                          .rkey = region.rkey,
                          .address = link.target,
                          .compare = link.compare,
                          .swap = is_node_written(link) ? link.swap : link.compare});
    }
  }
}

// With a WRITE and its CAS both lost, and their client dead, the agent's CAS would end the chain in a node that is none. Nothing depends on
// such a link: it is exclusive.
bool CloverRule::is_node_written(const Link& link) const {
  if (link.node_written) return true;
  if (!link.node_ready || link.connection == kNone) return false;
  return connections_[link.connection].to[link.end].acknowledged.since(Psn(link.psn) - 1) >= 0;
}

bool CloverRule::resend(Link& link, port::FrameSink& outbox) {
  std::uint8_t* const out = outbox.reserve(link.frame_length);
  if (out == nullptr) return false;
  std::copy_n(link.frame.begin(), link.frame_length, out);
  outbox.commit(link.frame_length);
  ++link.resends;
  ++counters_.links_resent;
  return true;
}

std::size_t CloverRule::take_repairs(std::span<Repair> out) {
  const std::size_t n = std::min(out.size(), repairs_.size());
  std::copy_n(repairs_.begin(), n, out.begin());
  repairs_.erase(repairs_.begin(), repairs_.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

void CloverRule::on_repair(Time now, const Repair& repair, std::optional<std::uint64_t> prior) {
  now_ = now;
  Link& link = links_[repair.link];
  if (link.key == kNone || link.serial != repair.serial || link.acknowledged) return;
  link.repairing = false;
  if (!prior) return;
  ++counters_.repairs_done;
  if (repair.swap == repair.compare && *prior == repair.compare) {
    link.node_ready = false;  // its CAS may yet come
    return link_failed(repair.link);
  }
  link_answered(repair.link, *prior);
}

}  // namespace sluice::swordbox
