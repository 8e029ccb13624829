// Multiplexer: what comes back from the server, and whom it concerns.
#include <array>

#include "base/bytes.h"
#include "base/check.h"
#include "swordbox/multiplexer.h"
#include "wire/frame_editor.h"
#include "wire/icrc.h"

namespace sluice::swordbox {

using wire::Aeth;
using wire::Kind;
using wire::Opcode;

namespace {

constexpr std::size_t kAtomicAnswer = wire::Bth::kSize + Aeth::kSize + wire::AtomicAckEth::kSize;

std::uint32_t newer_msn(std::uint32_t one, std::uint32_t other) {
  return one == 0 || Psn(other).since(Psn(one)) > 0 ? other : one;
}

// The responder's queue pair does nothing more.
bool is_fatal(const Aeth& aeth) { return aeth.is_nak() && aeth.nak_code() != wire::NakCode::kPsnSequenceError; }

}  // namespace

std::optional<Verdict> Multiplexer::on_response(Time now, const Judged& packet, port::FrameSink& outbox) {
  now_ = now;
  Numbering& n = numbers_[packet.index];
  if (!n.member && !n.translated) return std::nullopt;
  if (packet.end == n.server_end) return std::nullopt;  // an answer of the client to the server
  // What it says is acted upon.
  if (packet.parsed.payload_length == 0 && !wire::verify_icrc(packet.frame, packet.parsed)) return Verdict::kDamaged;
  const bool before = !n.translated || packet.psn().since(n.out_start) < 0;
  if (!before) {
    return packet.parsed.traits().kind == Kind::kAcknowledge ? on_acknowledge(now, packet, outbox)
                                                             : on_data(now, packet, outbox);
  }
  learn_from(packet);
  return n.translated ? std::optional(forward_answer(packet, packet.psn())) : std::nullopt;
}

// What an answer to a request of before translation says.
void Multiplexer::learn_from(const Judged& packet) {
  Numbering& n = numbers_[packet.index];
  if (packet.parsed.traits().has(wire::Extended::kAeth)) {
    const auto aeth = wire::get<Aeth>(packet.frame, packet.parsed);
    if (aeth.is_ack()) n.syndrome = aeth.syndrome;
    if (!n.translated) n.msn = newer_msn(n.msn, aeth.msn);
    if (is_fatal(aeth)) give_up_refused(packet.index, packet.psn());
  }
  if (packet.parsed.traits().kind != Kind::kAtomicAcknowledge) return;
  n.answer_headers = wire::HeaderTemplate([&] {
    wire::AddressVector back = wire::AddressVector::reply_to(packet.frame, packet.parsed);
    std::swap(back.source_mac, back.destination_mac);
    std::swap(back.source, back.destination);
    return back;
  }());
  n.has_answer_headers = true;
  std::array<std::uint8_t, kAtomicAnswer> transport{};
  wire::Bth{.opcode = Opcode::kRcAtomicAcknowledge, .destination = packet.parsed.destination}.write(transport.data());
  n.atomic_answer = wire::PacketTemplate(n.answer_headers, transport);
  for (std::uint32_t i = n.first_pass; i != kNone; i = passes_[i].next) {
    if (passes_[i].psn == packet.psn().value())
      passes_[i].prior = wire::get<wire::AtomicAckEth>(packet.frame, packet.parsed).original;
  }
}

// ACK, NAK and RNR NAK on a connection with numbers of its own.
std::optional<Verdict> Multiplexer::on_acknowledge(Time now, const Judged& packet, port::FrameSink& outbox) {
  Numbering& n = numbers_[packet.index];
  const Psn out = packet.psn();
  if (out.since(n.out_next) >= 0) return Verdict::kStale;
  const auto aeth = wire::get<Aeth>(packet.frame, packet.parsed);
  if (aeth.is_ack()) {
    n.syndrome = aeth.syndrome;
    const Acknowledged own = acknowledge(now, packet.index, out, outbox);
    if (own.unanswered != kNone) return ask_again(packet, Psn(own.unanswered));
    if (own.newest != kNone) return acknowledge_to_owner(packet, Psn(own.newest));
    // Nothing new of the client's own: let it have an ACK that it asked for again.
    const OutEntry* const entry = out_ring(packet.index).find_covering(out, n.longest_read);
    if (entry == nullptr || entry->went != Went::kOwnWay || entry->asks_data) return Verdict::kSharedAnswer;
    return acknowledge_to_owner(packet, Psn(entry->in) + (entry->span() - 1u));
  }
  const Acknowledged own = acknowledge(now, packet.index, out - 1, outbox);
  const bool fatal = is_fatal(aeth);
  if (n.carrier != kNone && !fatal) {
    send_again(now, n.carrier, out, outbox);
    // The owner is asked to wait, and those behind it wait with it.
    if (aeth.is_rnr_nak()) carriers_[n.carrier].progress = now + aeth.rnr_delay();
  }
  if (!fatal && own.unanswered != kNone) return ask_again(packet, Psn(own.unanswered));
  const auto ring = out_ring(packet.index);
  // The first of the client's own from there on; but for a READ that covers it, nothing that is a turn of the ring back has a place any more.
  const OutEntry* own_way = ring.find_covering(out, n.longest_read);
  const Psn oldest = n.out_next - ring.size();
  Psn at = out;
  while (own_way == nullptr || own_way->went != Went::kOwnWay) {
    at = at.since(oldest) < 0 ? oldest : at + 1;
    if (at.since(n.out_next) >= 0) break;
    own_way = ring.find(at);
  }
  std::optional<Psn> in;
  if (at.since(n.out_next) < 0) in = Psn(own_way->in) + static_cast<std::uint32_t>(at.since(Psn(own_way->psn)));
  if (fatal && in) give_up_refused(packet.index, *in);
  const OutEntry* const refused = ring.find_covering(out, n.longest_read);
  const bool is_own = refused != nullptr && refused->went == Went::kOwnWay;
  // Refused on one connection and again on the next: it is not the queue pair that lacks the right.
  const bool is_key = refused != nullptr && refused->went == Went::kCarriedOver && aeth.is_nak() &&
                      aeth.nak_code() == wire::NakCode::kRemoteAccessError;
  const std::uint16_t closed = is_key ? words_[refused->word].region : kNoRegion;
  // A NAK acknowledges what stands before it, and of that an operation that was moved may have been lost.
  const Psn next = requests_of(packet.index).acknowledged + 1;
  const bool is_next = in && in->since(next) <= 0;
  Verdict verdict = Verdict::kSharedAnswer;
  if (fatal ? is_own && is_next : in.has_value()) verdict = forward_answer(packet, is_next ? *in : next);
  if (fatal && n.carrier != kNone) lose(now, n.carrier);
  if (closed != kNoRegion) close_region(closed);
  return verdict;
}

// An ACK of the client's own, unless it is behind a READ or an atomic whose data has not come.
Verdict Multiplexer::acknowledge_to_owner(const Judged& packet, Psn in) {
  const Psn next = requests_of(packet.index).acknowledged + 1;
  const InEntry* const open = in_ring(packet.index).find_covering(next, numbers_[packet.index].longest_read);
  const bool is_behind = in.since(next) >= 0 && open != nullptr && open->went == Went::kOwnWay && !open->answered;
  return is_behind ? ask_again(packet, next) : forward_answer(packet, in);
}

// The server has answered a READ or an atomic of the client's own, and the data has been lost: the client is to send again from there on.
// An ACK would be taken for the answer by some.
Verdict Multiplexer::ask_again(const Judged& packet, Psn in) {
  wire::FrameEditor editor(packet.frame, packet.parsed);
  auto aeth = wire::get<Aeth>(packet.frame, packet.parsed);
  aeth.syndrome = Aeth::nak(0, wire::NakCode::kPsnSequenceError).syndrome;
  editor.set(aeth);
  editor.commit();
  return forward_answer(packet, in);
}

// The same, where nothing has come from the server that could be made so.
bool Multiplexer::ask_for_unanswered(ConnectionIndex connection, port::FrameSink& outbox) {
  const Numbering& n = numbers_[connection];
  const Psn next = requests_of(connection).acknowledged + 1;
  return acknowledge_to(connection, next, Aeth::nak(n.msn & Psn::kMask, wire::NakCode::kPsnSequenceError), outbox);
}

// READ responses and Atomic ACKs: always to requests of the client's own.
std::optional<Verdict> Multiplexer::on_data(Time now, const Judged& packet, port::FrameSink& outbox) {
  Numbering& n = numbers_[packet.index];
  const Psn out = packet.psn();
  InEntry* const entry = find_asking(packet.index, out);
  if (entry == nullptr) return Verdict::kStale;
  n.reading = entry->psn;
  const Psn first(entry->out);
  const auto behind = static_cast<std::uint32_t>(out.since(first));
  const Psn in = Psn(entry->psn) + behind;
  const bool last = behind + 1 == entry->span();
  // It says that all before it has been executed.
  static_cast<void>(acknowledge(now, packet.index, last ? out : first - 1, outbox));
  const Verdict verdict = forward_answer(packet, in);
  if (last) {
    entry->answered = true;
    flush_answers(packet.index, outbox);
  } else if (n.carrier != kNone && first == n.first_open) {
    // The server gets on; what comes again does not tell.
    OutEntry& open = out_ring(packet.index).place(first);
    if (behind >= open.came) {
      open.came = static_cast<std::uint16_t>(behind + 1);
      note_progress(now, carriers_[n.carrier]);
    }
  }
  if (packet.parsed.traits().kind == Kind::kAtomicAcknowledge) {
    for (std::uint32_t i = n.first_pass; i != kNone; i = passes_[i].next) {
      if (passes_[i].psn == in.value())
        passes_[i].prior = wire::get<wire::AtomicAckEth>(packet.frame, packet.parsed).original;
    }
  }
  return verdict;
}

// The client's own request that data of this number answers. Acknowledged by what others have behind it, it may have lost its place in ring
// out to them; that in ring in it has as long as its client may ask again.
InEntry* Multiplexer::find_asking(ConnectionIndex connection, Psn out) const {
  const Numbering& n = numbers_[connection];
  const auto ring = in_ring(connection);
  if (n.reading != kNone) {
    InEntry* const entry = ring.find(Psn(n.reading));
    if (entry != nullptr && entry->went == Went::kOwnWay && entry->covers(out)) return entry;
  }
  const OutEntry* const known = out_ring(connection).find_covering(out, n.longest_read);
  if (known != nullptr) return known->went == Went::kOwnWay ? ring.find(Psn(known->in)) : nullptr;
  const Psn expected = connections_[connection].to[n.server_end].expected;
  InEntry* newest = nullptr;
  for (std::uint32_t k = 0; k < ring.size(); ++k) {
    InEntry& entry = ring.place(Psn(k));
    const Psn psn(entry.psn);
    if (entry.went != Went::kOwnWay || !entry.covers(out) || psn.since(expected) >= 0) continue;
    if (newest == nullptr || psn.since(Psn(newest->psn)) > 0) newest = &entry;
  }
  return newest;
}

// All up to this out-PSN has been executed by the server.
Multiplexer::Acknowledged Multiplexer::acknowledge(Time now, ConnectionIndex connection, Psn up_to,
                                                   port::FrameSink& outbox) {
  Numbering& n = numbers_[connection];
  const auto ring = out_ring(connection);
  Acknowledged own;
  bool progress = false;
  while (up_to.since(n.first_open) >= 0) {
    const OutEntry* const entry = ring.find(n.first_open);
    SLUICE_CHECK(entry != nullptr);
    const Psn end = n.first_open + entry->span();
    if (up_to.since(end) < -1) break;  // a READ that is answered in part
    n.first_open = end;
    progress = true;
    if (entry->went == Went::kOwnWay && entry->asks_data) {
      if (own.unanswered == kNone) own.unanswered = entry->in;
    } else if (entry->went == Went::kOwnWay) {
      own.newest = (Psn(entry->in) + (entry->span() - 1u)).value();
      if (InEntry* const in = in_ring(connection).find(Psn(entry->in))) in->answered = true;
      flush_answers(connection, outbox);
    } else {
      const bool says_it_too = entry->owner == connection;
      complete(n.carrier, *entry, outbox);
      if (says_it_too) own.newest = kNone;
    }
  }
  if (progress && n.carrier != kNone) {
    Carrier& carrier = carriers_[n.carrier];
    note_progress(now, carrier);
    room_.wake(carrier.line, ready_);
  }
  return own;
}

// A replaced operation has been executed.
void Multiplexer::complete(std::uint32_t carrier, const OutEntry& entry, port::FrameSink& outbox) {
  Word& word = words_[entry.word];
  --carriers_[carrier].open;
  if (entry.went == Went::kCarriedOver) {
    std::vector<ConnectionIndex> owners;
    for (Orphan& orphan : orphans_) {
      if (orphan.word != entry.word || !orphan.under_way) continue;
      --word.open;
      orphan.word = kNone;
      if (orphan.owner == kNone) continue;
      if (InEntry* const in = in_ring(orphan.owner).find(Psn(orphan.in))) in->answered = true;
      owners.push_back(orphan.owner);
    }
    std::erase_if(orphans_, [](const Orphan& orphan) { return orphan.word == kNone; });
    for (const ConnectionIndex owner : owners) {
      flush_answers(owner, outbox);
      wake_if_done(owner);
    }
  } else {
    --word.open;
    if (entry.owner != kNone) {
      if (InEntry* const in = in_ring(entry.owner).find(Psn(entry.in))) in->answered = true;
      flush_answers(entry.owner, outbox);
      wake_if_done(entry.owner);
    }
  }
  if (word.open == 0) room_.wake(word.line, ready_);
}

// Tells a client, in the order of its own numbers, of all that is answered.
void Multiplexer::flush_answers(ConnectionIndex connection, port::FrameSink& outbox) {
  Numbering& n = numbers_[connection];
  Direction& d = requests_of(connection);
  while (d.expected.since(d.acknowledged) > 1) {
    InEntry* const entry = in_ring(connection).find_covering(d.acknowledged + 1, n.longest_read);
    if (entry == nullptr || !entry->answered) return;
    if (entry->went == Went::kReplaced && answers_wait(connection)) return;  // behind those; after_release() goes on
    d.acknowledged = Psn(entry->psn) + (entry->span() - 1u);
    n.msn = n.msn + entry->messages();
    if (entry->went != Went::kReplaced) continue;
    if (!n.cut_off) answer(connection, *entry, outbox);  // if there is no room now, the client asks again
  }
}

bool Multiplexer::answer(ConnectionIndex connection, const InEntry& entry, port::FrameSink& outbox) {
  if (entry.is_write) return answer_write(connection, entry, outbox);
  return answer_atomic(numbers_[connection], entry, outbox);
}

bool Multiplexer::answer_atomic(Numbering& n, const InEntry& entry, port::FrameSink& outbox) {
  std::uint8_t* const out = outbox.reserve(n.atomic_answer.frame_size());
  if (out == nullptr) {
    ++counters_.outbox_full;
    return false;
  }
  const auto [psn_and_aeth, prior] = atomic_answer_fields(n, entry);
  const std::array<wire::PacketTemplate::Field, 2> fields = {{{psn_and_aeth, kPsnAndAeth}, {prior, kLastWord}}};
  n.atomic_answer.write(out, fields);
  outbox.commit(n.atomic_answer.frame_size());
  n.burst = burst_;
  ++counters_.operations_answered;
  return true;
}

bool Multiplexer::answer_write(ConnectionIndex connection, const InEntry& entry, port::FrameSink& outbox) {
  const Numbering& n = numbers_[connection];
  if (!acknowledge_to(connection, Psn(entry.psn), {n.syndrome, n.msn & Psn::kMask}, outbox)) return false;
  ++counters_.operations_answered;
  return true;
}

// REQUIRES: answer_headers are there.
bool Multiplexer::acknowledge_to(ConnectionIndex connection, Psn psn, const Aeth& aeth, port::FrameSink& outbox) {
  Numbering& n = numbers_[connection];
  constexpr std::size_t kTransport = wire::Bth::kSize + Aeth::kSize;
  std::uint8_t* const out = outbox.reserve(n.answer_headers.frame_size(kTransport));
  if (out == nullptr) {
    ++counters_.outbox_full;
    return false;
  }
  const std::size_t bth = n.answer_headers.write(out, kTransport);
  const wire::Bth header{
      .opcode = Opcode::kRcAcknowledge, .destination = connections_[connection].qpn[1 - n.server_end], .psn = psn};
  header.write(out + bth);
  aeth.write(out + bth + wire::Bth::kSize);
  outbox.commit(n.answer_headers.seal(out, bth + kTransport));
  n.burst = burst_;
  return true;
}

// So many of the client's messages are answered when this request is.
std::uint32_t Multiplexer::messages_to(ConnectionIndex connection, Psn in) {
  const Numbering& n = numbers_[connection];
  std::uint32_t messages = n.msn;
  for (Psn p = requests_of(connection).acknowledged + 1; p.since(in) <= 0;) {
    const InEntry* const entry = in_ring(connection).find_covering(p, n.longest_read);
    if (entry == nullptr) break;
    messages += entry->messages();
    p = Psn(entry->psn) + entry->span();
  }
  return messages & Psn::kMask;
}

// Puts the client's number and message count into an answer to a request of its own.
Verdict Multiplexer::forward_answer(const Judged& packet, Psn in) {
  const Numbering& n = numbers_[packet.index];
  if (n.cut_off) return Verdict::kCutOff;
  wire::FrameEditor editor(packet.frame, packet.parsed);
  if (packet.psn() != in) editor.set_psn(in);
  if (packet.parsed.traits().has(wire::Extended::kAeth)) {
    auto aeth = wire::get<Aeth>(packet.frame, packet.parsed);
    const std::uint32_t msn = messages_to(packet.index, aeth.is_ack() ? in : in - 1);
    if (msn != aeth.msn) {
      aeth.msn = msn;
      editor.set(aeth);
    }
  }
  editor.commit();
  return Verdict::kResponse;  // the box goes on with it
}

bool Multiplexer::on_congestion(const port::Frame& frame, const wire::ParsedFrame& parsed, Crossing crossing,
                                port::FrameSink& outbox) {
  const Numbering& shared = numbers_[crossing.connection];
  if (shared.carrier == kNone || crossing.end == shared.server_end) return false;
  const auto ring = out_ring(crossing.connection);
  bool any_marked = false;
  bool owner_concerned = false;
  for (Psn p = shared.first_open; p.since(shared.out_next) < 0; ++p) {
    const OutEntry* const entry = ring.find(p);
    if (entry != nullptr && entry->marked) any_marked = true;
  }
  ++notifications_;
  bool others_told = false;
  for (Psn p = shared.first_open; p.since(shared.out_next) < 0; ++p) {
    const OutEntry* const entry = ring.find(p);
    if (entry == nullptr || (any_marked && !entry->marked)) continue;
    const bool is_owners = entry->went == Went::kOwnWay || entry->owner == crossing.connection;
    if (is_owners || entry->owner == kNone) {
      owner_concerned = owner_concerned || is_owners;
      continue;
    }
    Numbering& n = numbers_[entry->owner];
    if (n.told == notifications_) continue;
    n.told = notifications_;
    others_told = tell_of_congestion(entry->owner, frame, parsed, outbox) || others_told;
  }
  // With nothing under way it is about what was: the owner's to obey, as without a box.
  return others_told && !owner_concerned;
}

bool Multiplexer::tell_of_congestion(ConnectionIndex connection, const port::Frame& frame,
                                     const wire::ParsedFrame& parsed, port::FrameSink& outbox) {
  const Numbering& n = numbers_[connection];
  if (!n.has_answer_headers || n.cut_off) return false;
  const std::size_t transport = parsed.icrc_offset() - parsed.bth_offset;
  std::uint8_t* const out = outbox.reserve(n.answer_headers.frame_size(transport));
  if (out == nullptr) {
    ++counters_.outbox_full;
    return false;
  }
  const std::size_t bth = n.answer_headers.write(out, transport);
  std::copy_n(frame.data + parsed.bth_offset, transport, out + bth);
  store_be24(out + bth + 5, connections_[connection].qpn[1 - n.server_end].value);
  outbox.commit(n.answer_headers.seal(out, bth + transport));
  ++counters_.congestion_told;
  return true;
}

void Multiplexer::after_progress(Time now, const Judged& packet) {
  now_ = now;
  Numbering& n = numbers_[packet.index];
  if (!n.member || packet.end == n.server_end) return;
  const Direction& d = requests_of(packet.index);
  for (std::uint32_t i = n.first_pass, next = kNone; i != kNone; i = next) {
    next = passes_[i].next;
    if (Psn(passes_[i].psn).since(d.acknowledged) <= 0) resolve(i);
  }
  wake_if_done(packet.index);
}

// The server has refused this request of the client's, or one before it, for good: neither it nor what stands behind it will be executed.
void Multiplexer::give_up_refused(ConnectionIndex connection, Psn from) {
  const Direction& d = requests_of(connection);
  if (from.since(d.acknowledged) <= 0 || from.since(d.expected) >= 0) return;  // an old refusal, or of nothing
  for (std::size_t k = 0; k < writes_under_way_; ++k) {
    LongWrite& write = writes_[(first_write_ + k) % writes_.size()];
    const bool is_its = write.connection == connection && write.generation == connections_[connection].generation &&
                        write.end == numbers_[connection].server_end;
    if (is_its && Psn(write.psn).since(from) >= 0) write.expires = now_;
  }
  for (std::uint32_t i = numbers_[connection].first_pass, next = kNone; i != kNone; i = next) {
    next = passes_[i].next;
    if (Psn(passes_[i].psn).since(from) >= 0) resolve(i);
  }
}

void Multiplexer::after_release(Time now, ConnectionIndex connection, port::FrameSink& outbox) {
  now_ = now;
  if (!numbers_[connection].member || answers_wait(connection)) return;
  flush_answers(connection, outbox);
  wake_if_done(connection);
}

void Multiplexer::forget_waiting(ConnectionIndex connection) {
  forget_late(connection);
  for (std::uint8_t end = 0; end < 2; ++end) room_.leave(token(connection, end));
}

// The operation that passed by itself has been executed, or never will be.
void Multiplexer::resolve(std::uint32_t index) {
  Pass& pass = passes_[index];
  Word& word = words_[pass.word];
  if (pass.connection != kNone) {
    Numbering& n = numbers_[pass.connection];
    std::uint32_t* link = &n.first_pass;
    while (*link != index) link = &passes_[*link].next;
    *link = pass.next;
    const bool acknowledged = Psn(pass.psn).since(requests_of(pass.connection).acknowledged) <= 0;
    const bool writes = pass.operation.kind == WordOperation::Kind::kWrite;
    if (acknowledged && (writes || pass.prior)) {
      KnownRegion& region = regions_[word.region];
      const std::uint64_t bit = n.cut_off ? 0 : std::uint64_t{1} << word.region;
      const std::uint64_t before = n.proven & n.proven_write;
      (writes ? n.proven_write : n.proven) |= bit;
      if (n.translated && (n.proven & n.proven_write & ~before) != 0) ++region.shown_by;
      region.answered = true;
      if (pass.learns) {
        word.known = true;
        word.value = pass.operation.outcome(pass.prior.value_or(0));
        ++counters_.words_learned;
      }
    }
  }
  (pass.later == kNone ? word.pass : passes_[pass.later].earlier) = pass.earlier;
  if (pass.earlier != kNone) passes_[pass.earlier].later = pass.later;
  pass = Pass{};
  free_passes_.push_back(index);
  if (word.pass == kNone) room_.wake(word.line, ready_);
}

void Multiplexer::wake_if_done(ConnectionIndex connection) {
  Numbering& n = numbers_[connection];
  if (n.line.empty() || answers_wait(connection)) return;
  const Direction& d = requests_of(connection);
  if (d.expected.since(d.acknowledged) == 1) room_.wake(n.line, ready_);
}

}  // namespace sluice::swordbox
