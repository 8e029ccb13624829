// CloverRule: answers, and whether they may pass.
#include "swordbox/clover_rule.h"
#include "wire/bth.h"

namespace sluice::swordbox {

using wire::Kind;

void CloverRule::observe_response(Time now, const Judged& packet) {
  now_ = now;
  const auto server_end = static_cast<std::uint8_t>(1 - packet.end);
  const Kind kind = packet.parsed.traits().kind;
  if (kind == Kind::kAtomicAcknowledge) return observe_atomic_answer(packet, server_end);
  if (kind != Kind::kAcknowledge) return;
  const auto aeth = wire::get<wire::Aeth>(packet.frame, packet.parsed);
  if (aeth.is_nak() && aeth.nak_code() != wire::NakCode::kPsnSequenceError) on_refusal(now, packet, server_end);
}

Verdict CloverRule::on_response(Time, const Judged& packet) {
  const auto server_end = static_cast<std::uint8_t>(1 - packet.end);
  const Operation* op = nullptr;
  switch (packet.parsed.traits().kind) {
    case Kind::kAtomicAcknowledge: op = operations_.find(packet.index, server_end, packet.psn()); break;
    case Kind::kReadResponse: op = operations_.find_read(packet.index, server_end, packet.psn()); break;
    default: return wire::get<wire::Aeth>(packet.frame, packet.parsed).is_ack() ? Verdict::kResponse : Verdict::kNak;
  }
  if (op == nullptr) return Verdict::kResponse;
  const bool gated =
      op->kind == Operation::Kind::kLink || op->kind == Operation::Kind::kProbe || op->kind == Operation::Kind::kRead;
  return gated ? gate(packet, *op) : Verdict::kResponse;
}

// Whether the operation's link is still open: not committed, not failed.
bool CloverRule::is_open(const Operation& op) {
  const Link& link = links_[op.subject];
  return keys_[op.key].generation == op.key_generation && link.key == op.key && link.number == op.needs;
}

// Passes when all that the answer depends on is acknowledged.
Verdict CloverRule::gate(const Judged& packet, const Operation& op) {
  KeyState& state = keys_[op.key];
  if (state.generation != op.key_generation || !before(state.committed, op.needs)) return Verdict::kResponse;
  if (state.broken) return Verdict::kWithheld;
  if (!packet.can_hold) return Verdict::kHoldFull;
  wait(state.responses, token(packet.index, packet.end), op.key, false);
  return Verdict::kHeldResponse;
}

void CloverRule::observe_atomic_answer(const Judged& packet, std::uint8_t server_end) {
  Operation* const op = operations_.find(packet.index, server_end, packet.psn());
  if (op == nullptr) return;
  const std::uint64_t prior = wire::get<wire::AtomicAckEth>(packet.frame, packet.parsed).original;
  if (op->kind == Operation::Kind::kTry || op->kind == Operation::Kind::kProbe) return settle_try(packet, *op, prior);
  if (op->kind != Operation::Kind::kLink) return;
  if (!awaits_answer(*op)) return;
  link_answered(op->subject, prior);
  // Closed by that, because committed or failed: then the answer is the truth.
  if (!is_open(*op)) op->kind = Operation::Kind::kDone;
}

// A CAS that was not watched has come back. If it surely linked nothing, its node may be tried again, wherever.
void CloverRule::settle_try(const Judged& packet, const Operation& op, std::uint64_t prior) {
  HistoryEntry& node = history_[op.subject];
  const auto awaited = node.awaited();
  const bool ours = node.state() == NodeState::kTried && awaited.connection == (packet.index & 0xFFFF) &&
                    awaited.psn.value() == op.psn && awaited.generation == (packet.connection.generation & 0xF);
  if (!ours) return;
  const bool took_effect = Operation::mark_of(prior) == op.compare_mark;
  const bool is_there = config_.layout.is_pointer(prior) && config_.layout.address_of(prior) == address_of(node.place);
  if (took_effect || is_there) {
    node.become_past(now_);
  } else {
    node.set_state(NodeState::kReady);
  }
  const bool surprised =
      took_effect && op.kind == Operation::Kind::kProbe && keys_[op.key].generation == op.key_generation;
  if (surprised) lose_tail(op.key);
}

// A fatal NAK: the responder's queue pair will do nothing more. What it had not done, others must.
void CloverRule::on_refusal(Time now, const Judged& packet, std::uint8_t server_end) {
  const Direction& requests = packet.connection.to[server_end];
  const auto behind = requests.expected.since(packet.psn());
  for (std::int32_t k = 0; k < behind && k < static_cast<std::int32_t>(operations_.ring()); ++k) {
    Operation* const op = operations_.find(packet.index, server_end, packet.psn() + static_cast<std::uint32_t>(k));
    if (op == nullptr || op->kind != Operation::Kind::kLink || !awaits_answer(*op)) continue;
    Link& link = links_[op->subject];
    link.refused = true;
    if (link.next_of_key == kNone && !link.tried_twice) {
      op->kind = Operation::Kind::kDone;
      link_failed(op->subject);
    } else {
      links_.leave_line(op->subject);
      links_.line_up(op->subject, now);
    }
  }
}

}  // namespace sluice::swordbox
