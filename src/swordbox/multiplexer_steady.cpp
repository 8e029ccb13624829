// Multiplexer: the steady state. Nearly every packet, while atomics are replaced, is an atomic that can be replaced at once or the ACK of
// the oldest replaced one: these two are judged here, in one go. Whatever is unusual goes the long way (multiplexer.cpp,
// multiplexer_answers.cpp), which would do the same with these two; multiplexer_steady_test.cpp compares.
#include "base/bytes.h"
#include "base/instructions.h"
#include "swordbox/multiplexer.h"
#include "wire/icrc_inline.h"

namespace sluice::swordbox {

using wire::Opcode;

[[SLUICE_FOR_NEW_MACHINES]] bool Multiplexer::replace_at_once(Time now, const port::Frame& frame,
                                                              wire::ParsedFrame& parsed, Connection& connection,
                                                              Crossing crossing) {
  Numbering& n = numbers_[crossing.connection];
  Direction& d = connection.to[crossing.end];
  if (parsed.psn != d.expected || d.held != 0 || !d.started) return false;
  if (!n.replaces_for(crossing.end) || n.place == kNone) return false;
  Numbering& shared = numbers_[n.place];
  if (shared.carrier == kNone || shared.mid_message) return false;
  Carrier& carrier = carriers_[shared.carrier];
  const auto ring = carrier_out_.ring(shared.carrier);
  const bool has_room = shared.out_next.since(shared.first_open) < static_cast<std::int32_t>(ring.size()) &&
                        d.expected.since(d.acknowledged) <= static_cast<std::int32_t>(config_.ring);
  if (!has_room || connections_[n.place].closing || carrier.write.bth_offset() != parsed.bth_offset) return false;
  if (connection.mtu == 0 || parsed.ecn() == wire::Ecn::kCongestionExperienced) return false;

  const std::uint8_t* const eth = frame.data + parsed.extended_offset();
  const auto address = load_be<std::uint64_t>(eth);
  const wire::RKey rkey{load_be<std::uint32_t>(eth + 8)};
  const std::uint16_t r = known_region(connection.address[crossing.end], rkey, address);
  if (r == kNoRegion || address % sizeof(std::uint64_t) != 0) return false;
  const KnownRegion& region = regions_[r];
  if (region.carrier != shared.carrier || region.recovering || (n.proven >> r & 1) == 0) return false;
  const WordIndex index = words_.find(r, address);
  if (index == kNone) return false;
  Word& word = words_[index];
  if (!word.can_be_replaced()) return false;
  if (!wire::verify_icrc_inline(frame.data, parsed)) return false;

  // Now it is certain.
  const auto operand = load_be<std::uint64_t>(eth + 12);
  const std::uint64_t prior = word.value;
  const bool adds = parsed.opcode == Opcode::kRcFetchAdd;
  const bool swaps = prior == load_be<std::uint64_t>(eth + 20);
  word.value = adds ? prior + operand : swaps ? operand : prior;
  ++word.open;
  const Psn in = parsed.psn;
  const Psn out = shared.out_next;
  in_ring(crossing.connection).place(in) = {
      .psn = in.value(), .out = out.value(), .prior = prior, .span = 1, .went = Went::kReplaced};
  ring.place(out) = {out.value(), in.value(), crossing.connection, index, word.value, 1, Went::kReplaced, false};
  shared.out_next = out + 1;
  shared.out_start = followed(shared.out_start, out);
  n.in_start = followed(n.in_start, in);
  d.expected = in + 1;
  d.loose = 0;
  if (carrier.open++ == 0) {
    carrier.progress = now;
    carrier.due = now + config_.repair_after;
  }
  const auto mac_high = load_le<std::uint32_t>(frame.data + 6);  // the frame comes from where it comes
  const auto mac_low = load_le<std::uint16_t>(frame.data + 10);
  const auto fields = word_write_fields(out, address, rkey, word.value);
  wire::write_inline<kPsnAndAddress, kAddressAndKey, kLastWord>(carrier.write, frame.data, fields);
  parsed.length = static_cast<std::uint16_t>(carrier.write.frame_size());
  store_le(frame.data + 6, mac_high);
  store_le(frame.data + 10, mac_low);
  return true;
}

[[SLUICE_FOR_NEW_MACHINES]] std::optional<Action> Multiplexer::answer_at_once(Time now, port::Frame& frame,
                                                                              const wire::ParsedFrame& parsed,
                                                                              Crossing crossing,
                                                                              port::FrameSink& outbox) {
  Numbering& shared = numbers_[crossing.connection];
  if (shared.carrier == kNone || crossing.end == shared.server_end) return std::nullopt;
  if (parsed.psn != shared.first_open || parsed.psn == shared.out_next || shared.first_pass != kNone)
    return std::nullopt;
  const OutEntry& entry = carrier_out_.ring(shared.carrier).place(parsed.psn);
  if (entry.psn != parsed.psn.value() || entry.went != Went::kReplaced || entry.owner == kNone) return std::nullopt;
  Numbering& n = numbers_[entry.owner];
  Connection& owner = connections_[entry.owner];
  Direction& d = owner.to[n.server_end];
  const auto ring = in_ring(entry.owner);
  InEntry& in = ring.place(Psn(entry.in));
  const bool is_next = in.psn == entry.in && Psn(entry.in) == d.acknowledged + 1 && d.expected != Psn(entry.in);
  if (!is_next || in.went != Went::kReplaced || in.is_write) return std::nullopt;
  if (n.cut_off || owner.to[1 - n.server_end].held != 0) return std::nullopt;
  const std::uint32_t aeth = load_be<std::uint32_t>(frame.data + parsed.extended_offset());
  const auto syndrome = static_cast<std::uint8_t>(aeth >> 24);
  if (!wire::Aeth{syndrome, 0}.is_ack() || !wire::verify_icrc_inline(frame.data, parsed)) return std::nullopt;

  // Now it is certain.
  shared.syndrome = syndrome;
  shared.first_open = parsed.psn + 1;
  shared.msn_shift = shared.msn_shift - 1;
  Carrier& carrier = carriers_[shared.carrier];
  Word& word = words_[entry.word];
  --carrier.open;
  --word.open;
  carrier.progress = now;
  carrier.due = now + config_.repair_after;
  in.answered = true;
  d.acknowledged = Psn(in.psn);
  n.msn_shift = n.msn_shift + 1;
  n.msn = n.msn + 1;
  const std::size_t size = n.atomic_answer.frame_size();
  const bool in_place = size <= frame.room && n.burst != burst_;
  if (in_place) {
    const auto mac_high = load_le<std::uint32_t>(frame.data + 6);
    const auto mac_low = load_le<std::uint16_t>(frame.data + 10);
    wire::write_inline<kPsnAndAeth, kLastWord>(n.atomic_answer, frame.data, atomic_answer_fields(n, in));
    store_le(frame.data + 6, mac_high);
    store_le(frame.data + 10, mac_low);
    frame.length = static_cast<std::uint32_t>(size);
    ++counters_.operations_answered;
  } else if (std::uint8_t* const to = outbox.reserve(size); to != nullptr) {
    wire::write_inline<kPsnAndAeth, kLastWord>(n.atomic_answer, to, atomic_answer_fields(n, in));
    outbox.commit(size);
    n.burst = burst_;
    ++counters_.operations_answered;
  } else {
    ++counters_.outbox_full;
  }
  // Others of this client may have been answered before, on another connection. Whether it has others at all cannot be foreseen, but that
  // none of them is: so one question, not two.
  const bool more = d.expected.since(d.acknowledged) > 1;
  const bool answered = (n.longest_read > 1) | ring.place(d.acknowledged + 1).answered;
  if (more & answered) flush_answers(entry.owner, outbox);
  if (!n.line.empty()) wake_if_done(entry.owner);
  if ((word.open == 0) & !word.line.empty()) room_.wake(word.line, ready_);
  if (!carrier.line.empty()) room_.wake(carrier.line, ready_);
  if (!shared.line.empty()) wake_if_done(crossing.connection);
  return in_place ? Action::kForward : Action::kDrop;
}

}  // namespace sluice::swordbox
