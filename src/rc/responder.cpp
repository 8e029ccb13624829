#include "rc/responder.h"

#include <algorithm>

#include "base/check.h"
#include "memory/access.h"
#include "wire/bth.h"

namespace sluice::rc {

using wire::Aeth;
using wire::Kind;
using wire::NakCode;
using wire::Opcode;

Responder::Responder(Connection& connection, SharedReceiveQueue& receives, bool shared, bool reliable,
                     std::uint8_t max_reads)
    : connection_(connection),
      receives_(receives),
      shared_(shared),
      reliable_(reliable),
      receive_pieces_(receives.queue.max_sges()),
      records_(reliable ? max_reads : 0),
      answers_(reliable ? max_answers(max_reads) : 0) {}

void Responder::start(Psn expected) { expected_psn_ = expected; }

void Responder::on_request(Time, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  if (failing()) {
    ++connection_.counters->rx_wrong_state;
    return;
  }
  if (!check_psn(frame, parsed)) return;
  nak_sent_ = false;
  if (!check_sequence(parsed) || !check_length(parsed)) return refuse(parsed.psn, NakCode::kInvalidRequest);
  switch (parsed.traits().kind) {
    case Kind::kSend: return execute_send(frame, parsed);
    case Kind::kWrite: return execute_write(frame, parsed);
    case Kind::kReadRequest: return execute_read(frame, parsed);
    case Kind::kCompareSwap:
    case Kind::kFetchAdd:
    case Kind::kMaskedCompareSwap: return execute_atomic(frame, parsed);
    default: return;
  }
}

// True when this is the packet awaited.
bool Responder::check_psn(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const auto ahead = parsed.psn.since(expected_psn_);
  if (ahead == 0) return true;
  if (!reliable_) {
    // UC: a gap ends the message that had begun; the next message begins wherever it begins (§9.8.2).
    if (message_.kind != MessageKind::kNone) message_ = {};
    if (!parsed.traits().starts_message()) {
      ++connection_.counters->rx_out_of_sequence;
      return false;
    }
    expected_psn_ = parsed.psn;
    return true;
  }
  if (ahead < 0) {
    duplicate(frame, parsed);
    return false;
  }
  ++connection_.counters->rx_out_of_sequence;
  if (!nak_sent_ && !answers_full()) {
    nak_sent_ = true;
    push({.syndrome = Aeth::nak(0, NakCode::kPsnSequenceError).syndrome, .psn = expected_psn_, .msn = msn_});
  }
  return false;
}

bool Responder::check_sequence(const wire::ParsedFrame& parsed) {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (traits.starts_message()) {
    if (!reliable_) message_.kind = MessageKind::kNone;  // UC: the one before has been given up (§9.8.2.2.6)
    return message_.kind == MessageKind::kNone;
  }
  const auto kind = traits.kind == Kind::kSend ? MessageKind::kSend : MessageKind::kWrite;
  return message_.kind == kind;
}

bool Responder::check_length(const wire::ParsedFrame& parsed) const {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (!traits.has_payload) return true;
  switch (traits.position) {
    case wire::Position::kFirst:
    case wire::Position::kMiddle: return parsed.payload_length == connection_.mtu;
    case wire::Position::kLast: return parsed.payload_length >= 1 && parsed.payload_length <= connection_.mtu;
    case wire::Position::kOnly: return parsed.payload_length <= connection_.mtu;
  }
  return false;
}

void Responder::execute_send(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  if (parsed.traits().starts_message()) {
    if (!take_receive(parsed.psn)) return;
    message_ = {.kind = MessageKind::kSend};
    receive_.found = 0;
  }
  if (!find_receive_memory(parsed.payload_length)) return refuse(parsed.psn, NakCode::kRemoteOperationalError);
  if (message_.done + std::uint64_t{parsed.payload_length} >
      std::min<std::uint64_t>(receive_.capacity, kLongestMessage)) {
    lose_receive(CompletionStatus::kLocalLengthError);
    return refuse(parsed.psn, NakCode::kInvalidRequest);
  }
  if (parsed.traits().has(wire::Extended::kIeth)) {
    const memory::Key key{wire::get<wire::Ieth>(frame, parsed).rkey.value};
    if (!connection_.regions->invalidate(key, connection_.pd)) return refuse(parsed.psn, NakCode::kRemoteAccessError);
  }
  if (parsed.payload_length != 0) {
    const std::span<const LocalPiece> pieces{receive_pieces_.data(), receive_.sge_count};
    scatter(pieces, message_.done, frame + parsed.payload_offset, parsed.payload_length);
  }
  message_.done += parsed.payload_length;
  if (parsed.traits().ends_message()) {
    complete_receive(frame, parsed, CompletionKind::kReceive, CompletionStatus::kSuccess, message_.done);
    message_.kind = MessageKind::kNone;
  }
  finish_packet(parsed, 1);
}

// Checks what a WRITE's first packet promises.
bool Responder::begin_write(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const auto reth = wire::get<wire::Reth>(frame, parsed);
  if (reth.length > kLongestMessage) {
    refuse(parsed.psn, NakCode::kInvalidRequest);
    return false;
  }
  message_ = {.kind = MessageKind::kWrite,
              .key = memory::Key{reth.rkey.value},
              .address = reth.virtual_address,
              .length = reth.length};
  if (find_target()) return true;
  refuse(parsed.psn, NakCode::kRemoteAccessError);
  return false;
}

// Where the WRITE goes. Of no bytes at all nothing is checked (§9.7.4.1.5).
bool Responder::find_target() {
  message_.epoch = connection_.regions->epoch();
  if (message_.length == 0) return true;
  message_.host = translate(message_.key, message_.address, message_.length, memory::kRemoteWrite);
  return message_.host != nullptr;
}

void Responder::execute_write(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (!connection_.access.allows(memory::kRemoteWrite)) return refuse(parsed.psn, NakCode::kInvalidRequest);
  const bool notifies = traits.has(wire::Extended::kImmDt);
  if (notifies && !receive_.taken && !take_receive(parsed.psn)) return;
  if (traits.starts_message() && !begin_write(frame, parsed)) return;
  const std::uint32_t left = message_.length - message_.done;
  const bool fits = traits.ends_message() ? parsed.payload_length == left : parsed.payload_length < left;
  if (!fits) return refuse(parsed.psn, NakCode::kInvalidRequest);
  // The region may have been withdrawn since the message began.
  if (message_.epoch != connection_.regions->epoch() && !find_target()) {
    return refuse(parsed.psn, NakCode::kRemoteAccessError);
  }
  if (parsed.payload_length != 0) {
    memory::copy_in(message_.host + message_.done, frame + parsed.payload_offset, parsed.payload_length);
    message_.done += parsed.payload_length;
  }
  if (traits.ends_message()) {
    if (notifies) {
      complete_receive(frame, parsed, CompletionKind::kReceiveWithImmediate, CompletionStatus::kSuccess,
                       message_.length);
    }
    message_.kind = MessageKind::kNone;
  }
  finish_packet(parsed, 1);
}

void Responder::execute_read(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const auto reth = wire::get<wire::Reth>(frame, parsed);
  if (answers_full()) return put_off();
  if (reth.length > kLongestMessage || too_many_reads() || !connection_.access.allows(memory::kRemoteRead)) {
    return refuse(parsed.psn, NakCode::kInvalidRequest);
  }
  const memory::Key key{reth.rkey.value};
  if (reth.length != 0 && translate(key, reth.virtual_address, reth.length, memory::kRemoteRead) == nullptr) {
    return refuse(parsed.psn, NakCode::kRemoteAccessError);
  }
  Record& record = new_record();
  record = {.kind = Record::Kind::kRead,
            .first_psn = parsed.psn,
            .packets = packets_for(reth.length, connection_.mtu),
            .length = reth.length,
            .key = key,
            .address = reth.virtual_address};
  finish_packet(parsed, record.packets);
  ++fresh_pending_;
  push({.kind = Answer::Kind::kRead,
        .fresh = true,
        .record = static_cast<std::uint8_t>(&record - records_.data()),
        .psn = parsed.psn,
        .msn = msn_,
        .end = record.packets});
}

void Responder::execute_atomic(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const bool masked = parsed.traits().kind == Kind::kMaskedCompareSwap;
  // Both layouts begin with address and key.
  const auto target = wire::AtomicEth::parse(frame + parsed.extended_offset());
  if (answers_full()) return put_off();
  if (target.virtual_address % 8 != 0 || too_many_reads() || !connection_.access.allows(memory::kRemoteAtomic)) {
    return refuse(parsed.psn, NakCode::kInvalidRequest);
  }
  const memory::Key key{target.rkey.value};
  std::uint8_t* const host = translate(key, target.virtual_address, 8, memory::kRemoteAtomic);
  // A region whose memory is itself misaligned cannot hold atomic words.
  if (host == nullptr || reinterpret_cast<std::uintptr_t>(host) % 8 != 0) {
    return refuse(parsed.psn, NakCode::kRemoteAccessError);
  }
  Record& record = new_record();
  record = {.kind = Record::Kind::kAtomic, .first_psn = parsed.psn, .packets = 1};
  if (masked) {
    const auto m = wire::get<wire::MaskedAtomicEth>(frame, parsed);
    record.prior = memory::masked_compare_and_swap(host, m.compare, m.compare_mask, m.swap, m.swap_mask);
  } else if (parsed.traits().kind == Kind::kCompareSwap) {
    record.prior = memory::compare_and_swap(host, target.compare, target.swap_or_add);
  } else {
    record.prior = memory::fetch_and_add(host, target.swap_or_add);
  }
  finish_packet(parsed, 1);
  ++fresh_pending_;
  push({.kind = Answer::Kind::kAtomic,
        .fresh = true,
        .record = static_cast<std::uint8_t>(&record - records_.data()),
        .psn = parsed.psn,
        .msn = msn_});
}

// The request is executed: moves on, counts the message, acknowledges if asked to.
void Responder::finish_packet(const wire::ParsedFrame& parsed, std::uint32_t packets) {
  const wire::OpcodeTraits& traits = parsed.traits();
  ++connection_.counters->rx_requests;
  expected_psn_ = expected_psn_ + packets;
  if (traits.ends_message()) msn_ = (msn_ + 1) & Psn::kMask;
  last_was_read_ = traits.kind == Kind::kReadRequest || traits.is_atomic();
  if (reliable_ && !last_was_read_ && parsed.ack_request) push_ack(parsed.psn);
}

void Responder::duplicate(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  ++connection_.counters->rx_duplicate_requests;
  switch (parsed.traits().kind) {
    case Kind::kSend:
    case Kind::kWrite:
      // All that has been executed may be acknowledged, unless that would promise a READ response which may be lost.
      if (parsed.ack_request) push_ack(last_was_read_ ? parsed.psn : expected_psn_ - 1);
      return;
    case Kind::kReadRequest: return duplicate_read(frame, parsed);
    case Kind::kCompareSwap:
    case Kind::kFetchAdd:
    case Kind::kMaskedCompareSwap: {
      Record* const record = find_record(parsed.psn);
      if (record == nullptr || record->kind != Record::Kind::kAtomic || answers_full()) {
        ++connection_.counters->rx_stale_duplicates;
        return;
      }
      push({.kind = Answer::Kind::kAtomic,
            .record = static_cast<std::uint8_t>(record - records_.data()),
            .psn = parsed.psn,
            .msn = msn_});
      return;
    }
    default: return;
  }
}

// A READ asked for again, wholly or from some packet on: it is executed again (§9.7.4.1.4).
void Responder::duplicate_read(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const auto reth = wire::get<wire::Reth>(frame, parsed);
  Record* const record = find_record(parsed.psn);
  const auto begin = record == nullptr ? 0 : static_cast<std::uint32_t>(parsed.psn.since(record->first_psn));
  const std::uint64_t skipped = std::uint64_t{begin} * connection_.mtu;
  const bool same =
      record != nullptr && record->kind == Record::Kind::kRead && record->key.value == reth.rkey.value &&
      record->address + skipped == reth.virtual_address &&
      (reth.length == record->length - skipped ||
       (reth.length < record->length - skipped && reth.length != 0 && reth.length % connection_.mtu == 0));
  if (!same || answers_full()) {
    ++connection_.counters->rx_stale_duplicates;
    return;
  }
  push({.kind = Answer::Kind::kRead,
        .record = static_cast<std::uint8_t>(record - records_.data()),
        .psn = parsed.psn,
        .msn = msn_,
        .packet = begin,
        .begin = begin,
        .end = begin + packets_for(reth.length, connection_.mtu)});
}

// Takes a buffer for the message that begins or ends with `psn`; without one the requester is told to wait.
bool Responder::take_receive(Psn psn) {
  if (!reliable_ && receive_.taken) return true;  // left over from a message that a gap ended
  const bool feigned = reliable_ && connection_.feigned_rnr != nullptr && connection_.feigned_rnr->strikes();
  if (receives_.queue.empty() || feigned) {
    ++connection_.counters->rx_no_receive;
    if (reliable_) refuse_not_ready(psn);
    return false;
  }
  const auto taken = receives_.take(receive_pieces_);
  receive_ = {.taken = true, .sge_count = taken.sge_count, .id = taken.id};
  const std::span<LocalPiece> pieces{receive_pieces_.data(), receive_.sge_count};
  receive_.capacity = total_length(pieces);
  return true;
}

// A receive request whose memory is not ours to use, or too small, ends so, and with it the queue pair: at once where no NAK is to leave
// before.
void Responder::lose_receive(CompletionStatus why) {
  connection_.complete_receive(
      {.id = receive_.id, .status = why, .kind = CompletionKind::kReceive, .qpn = connection_.qpn});
  receive_ = {};
  if (!reliable_) connection_.break_off(Breakage::kAll);
}

// Of the pieces that the next `length` bytes of the message touch: the others need not be anybody's memory, as with real NICs. Regions may have
// been withdrawn since the last packet.
bool Responder::find_receive_memory(std::uint32_t length) {
  const std::uint32_t epoch = connection_.regions->epoch();
  const bool known = receive_.epoch == epoch && message_.done + std::uint64_t{length} <= receive_.found;
  if (length == 0 || known) return true;
  const Stretch stretch = stretch_of({receive_pieces_.data(), receive_.sge_count}, message_.done, length);
  receive_.epoch = epoch;
  receive_.found = stretch.end;
  if (resolve(stretch.pieces, *connection_.regions, receives_.pd, memory::kLocalWrite)) return true;
  lose_receive(CompletionStatus::kLocalProtectionError);
  return false;
}

void Responder::complete_receive(const std::uint8_t* frame, const wire::ParsedFrame& parsed, CompletionKind kind,
                                 CompletionStatus status, std::uint32_t length) {
  const wire::OpcodeTraits& traits = parsed.traits();
  Completion completion{.id = receive_.id,
                        .status = status,
                        .kind = kind,
                        .solicited = parsed.solicited,
                        .length = length,
                        .qpn = connection_.qpn};
  if (traits.has(wire::Extended::kImmDt)) {
    completion.has_immediate = true;
    completion.immediate = wire::get<wire::ImmDt>(frame, parsed).immediate;
  }
  if (traits.has(wire::Extended::kIeth)) {
    completion.has_invalidate = true;
    completion.immediate = wire::get<wire::Ieth>(frame, parsed).rkey.value;
  }
  connection_.complete_receive(completion);
  receive_ = {};
}

std::uint8_t* Responder::translate(memory::Key key, std::uint64_t address, std::uint64_t length,
                                   memory::Access needed) const {
  if (!connection_.access.allows(needed)) return nullptr;
  return connection_.regions->translate(key, connection_.pd, address, length, needed).host;
}

Responder::Record& Responder::new_record() {
  Record& record = records_[next_record_];
  next_record_ = static_cast<std::uint8_t>((next_record_ + 1u) % records_.size());
  return record;
}

// The newest that covers `psn`: an old one may still lie where PSNs have come round to.
Responder::Record* Responder::find_record(Psn psn) {
  const auto count = static_cast<std::uint32_t>(records_.size());
  for (std::uint32_t age = 1; age <= count; ++age) {
    Record& record = records_[(next_record_ + count - age) % count];
    if (record.kind == Record::Kind::kNone) return nullptr;
    const auto distance = psn.since(record.first_psn);
    if (distance >= 0 && static_cast<std::uint32_t>(distance) < record.packets) return &record;
  }
  return nullptr;
}

void Responder::push(const Answer& answer) { place(answers_tail_++) = answer; }

void Responder::push_ack(Psn psn) {
  const Answer ack{.syndrome = ack_syndrome(), .psn = psn, .msn = msn_};
  // The last places are for READs and atomics, whose answers are one each.
  const std::size_t left = answers_.size() - (answers_tail_ - answers_head_);
  if (answers_head_ != answers_tail_ && (connection_.coalesce_acks || left <= records_.size())) {
    Answer& last = place(answers_tail_ - 1);
    if (last.kind == Answer::Kind::kAeth && Aeth{last.syndrome, 0}.is_ack()) {
      ++connection_.counters->tx_acks_coalesced;
      if (psn.since(last.psn) > 0) last = ack;
      return;
    }
  }
  if (answers_full()) return;  // a later ACK will cover it, or the requester asks again
  push(ack);
}

std::uint8_t Responder::ack_syndrome() const {
  if (!connection_.advertise_credits || shared_) return Aeth::kNoCredits;
  return wire::credit_code_of(receives_.queue.size());
}

// A fatal NAK: nothing more is executed; the connection breaks when it has left.
void Responder::refuse(Psn psn, NakCode code) {
  switch (code) {
    case NakCode::kRemoteAccessError: ++connection_.counters->rx_access_errors; break;
    case NakCode::kRemoteOperationalError: ++connection_.counters->rx_operation_errors; break;
    default: ++connection_.counters->rx_invalid_requests; break;
  }
  if (!reliable_) {
    message_ = {};
    return;
  }
  refusal_ = code;
  if (answers_full()) --answers_tail_;  // the NAK matters more than the youngest answer, which it makes moot
  push({.syndrome = Aeth::nak(0, code).syndrome, .psn = psn, .msn = msn_});
}

// No room for its answer, which happens only after many duplicates: the requester asks again.
void Responder::put_off() { ++connection_.counters->rx_put_off; }

void Responder::refuse_not_ready(Psn psn) {
  nak_sent_ = true;
  if (answers_full()) return;
  push({.syndrome = Aeth::rnr_nak(0, connection_.min_rnr_timer).syndrome, .psn = psn, .msn = msn_});
}

bool Responder::poll_transmit(Time now, port::FrameSink& sink) {
  if (!can_transmit(now)) return false;
  Answer& answer = place(answers_head_);
  switch (answer.kind) {
    case Answer::Kind::kAeth:
      if (!emit_aeth(answer, sink)) return false;
      break;
    case Answer::Kind::kAtomic:
      // A record is used again once its requester has seen the answer: a duplicate that still waits is then moot.
      if (records_[answer.record].first_psn == answer.psn && !emit_atomic(answer, sink)) return false;
      break;
    case Answer::Kind::kRead:
      if (records_[answer.record].first_psn + answer.packet != answer.psn) break;  // moot likewise
      if (!emit_read(now, answer, sink)) return false;
      if (answer.packet != answer.end) return true;
      break;
  }
  if (answer.fresh) --fresh_pending_;
  ++answers_head_;
  return true;
}

bool Responder::emit_aeth(const Answer& answer, port::FrameSink& sink) {
  const wire::PacketTemplate& packet = connection_.acknowledge;
  std::uint8_t* const frame = sink.reserve(packet.frame_size());
  connection_.sink_full = frame == nullptr;
  if (frame == nullptr) return false;
  const Aeth aeth{answer.syndrome, answer.msn};
  const std::uint32_t word = std::uint32_t{aeth.syndrome} << 24 | (aeth.msn & Psn::kMask);
  const wire::PacketTemplate::Field psn_and_aeth{swap_bytes(std::uint64_t{answer.psn.value()} << 32 | word), 0};
  packet.write(frame, {&psn_and_aeth, 1});
  sink.commit(packet.frame_size());
  ++connection_.counters->tx_packets;
  if (aeth.is_ack()) ++connection_.counters->tx_acks;
  if (aeth.is_rnr_nak()) ++connection_.counters->tx_rnr_naks;
  if (aeth.is_nak()) ++connection_.counters->tx_naks;
  if (failing() && aeth.is_nak() && aeth.nak_code() != NakCode::kPsnSequenceError)
    connection_.break_off(Breakage::kAll);
  return true;
}

bool Responder::emit_atomic(const Answer& answer, port::FrameSink& sink) {
  const wire::Bth bth{.opcode = Opcode::kRcAtomicAcknowledge, .destination = connection_.remote_qpn, .psn = answer.psn};
  PacketWriter packet(connection_, connection_.headers, sink, bth, Aeth::kSize + wire::AtomicAckEth::kSize);
  if (!packet.ok()) return false;
  Aeth{ack_syndrome(), answer.msn}.write(packet.body());
  wire::AtomicAckEth{records_[answer.record].prior}.write(packet.body() + Aeth::kSize);
  packet.finish();
  ++connection_.counters->tx_packets;
  return true;
}

bool Responder::emit_read(Time now, Answer& answer, port::FrameSink& sink) {
  const Record& record = records_[answer.record];
  const bool first = answer.packet == answer.begin;
  const bool last = answer.packet + 1 == answer.end;
  const std::uint32_t offset = answer.packet * connection_.mtu;
  const std::uint32_t length = std::min(connection_.mtu, record.length - offset);
  const std::uint8_t* host = nullptr;
  if (length != 0) {
    host = translate(record.key, record.address + offset, length, memory::kRemoteRead);
    if (host == nullptr && !answer.fresh) {
      // The region was there when the READ was executed, and has been withdrawn since: to the requester, which has had its answer or
      // asks again, this is no error. What has followed is answered as ever.
      ++connection_.counters->rx_stale_duplicates;
      answer.packet = answer.end;
      return true;
    }
    if (host == nullptr) {
      // The region has been withdrawn meanwhile. Whatever was to follow this answer must not overtake the refusal.
      answers_tail_ = answers_head_ + 1;
      answer.packet = answer.end;
      refuse(answer.psn, NakCode::kRemoteAccessError);
      return true;
    }
  }
  using enum Opcode;
  const Opcode opcode = first ? (last ? kRcReadResponseOnly : kRcReadResponseFirst)
                              : (last ? kRcReadResponseLast : kRcReadResponseMiddle);
  const std::size_t aeth_size = first || last ? Aeth::kSize : 0;
  const std::uint8_t pad = wire::pad_for(length);
  const wire::Bth bth{.opcode = opcode, .pad_count = pad, .destination = connection_.remote_qpn, .psn = answer.psn};
  PacketWriter packet(connection_, connection_.headers, sink, bth, aeth_size + length + pad);
  if (!packet.ok()) return false;
  if (aeth_size != 0) Aeth{ack_syndrome(), answer.msn}.write(packet.body());
  memory::copy_out(packet.body() + aeth_size, host, length);
  std::fill_n(packet.body() + aeth_size + length, pad, std::uint8_t{0});
  packet.finish();
  ++connection_.counters->tx_packets;
  connection_.on_paced(now, length + connection_.headers.frame_size(0));
  ++answer.packet;
  ++answer.psn;
  return true;
}

void Responder::flush() {
  const auto flushed = [&](std::uint64_t id) {
    connection_.complete_receive(
        {.id = id, .status = CompletionStatus::kFlushed, .kind = CompletionKind::kReceive, .qpn = connection_.qpn});
  };
  if (receive_.taken) flushed(receive_.id);
  receive_ = {};
  while (!shared_ && !receives_.queue.empty()) flushed(receives_.queue.take(receive_pieces_).id);
  answers_head_ = answers_tail_;
  fresh_pending_ = 0;
  message_ = {};
}

void Responder::reset() {
  while (!shared_ && !receives_.queue.empty()) receives_.queue.take(receive_pieces_);
  std::fill(records_.begin(), records_.end(), Record{});
  receive_ = {};
  message_ = {};
  answers_head_ = answers_tail_;
  next_record_ = 0;
  fresh_pending_ = msn_ = 0;
  nak_sent_ = last_was_read_ = false;
  refusal_.reset();
}

}  // namespace sluice::rc
