// Multiplexer: the steady state. Nearly every packet, while atomics are replaced, is an atomic that can be replaced at once or the ACK of
// the oldest replaced one: these two are judged here, in one go. Whatever is unusual goes the long way (multiplexer.cpp,
// multiplexer_answers.cpp), which would do the same with these two; multiplexer_steady_test.cpp compares.
#include "base/bytes.h"
#include "swordbox/multiplexer.h"
#include "wire/icrc_inline.h"

namespace sluice::swordbox {

using wire::Opcode;

// What both are compiled for twice: plain frames, as nearly all are, whose lengths and offsets are known beforehand, and others.
namespace {

constexpr std::size_t kAtomicTransport = wire::Bth::kSize + wire::AtomicEth::kSize;
constexpr std::size_t kAckTransport = wire::Bth::kSize + wire::Aeth::kSize;
constexpr std::size_t kAtomicAckTransport = kAckTransport + wire::AtomicAckEth::kSize;
constexpr std::size_t kWordWriteTransport = wire::Bth::kSize + wire::Reth::kSize + sizeof(std::uint64_t);

template <bool kPlain>
std::size_t extended_offset_of(const wire::ParsedFrame& parsed) {
  return kPlain ? wire::kPlainBth + wire::Bth::kSize : parsed.extended_offset();
}

// Of an atomic or an ACK: nothing follows its headers.
template <bool kPlain, std::size_t kTransport>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline bool is_icrc_right(const std::uint8_t* frame,
                                                                          const wire::ParsedFrame& parsed) {
  if constexpr (kPlain) {
    return wire::verify_plain_icrc_inline<kTransport>(frame, parsed);
  } else {
    return wire::verify_icrc_inline(frame, parsed);
  }
}

template <bool kPlain, std::size_t kTransport, std::size_t... kBehind>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline void write_packet(
    const wire::PacketTemplate& packet, std::uint8_t* out,
    const std::array<std::uint64_t, sizeof...(kBehind)>& fields) {
  if constexpr (kPlain) {
    wire::write_plain_inline<kTransport, kBehind...>(packet, out, fields);
  } else {
    wire::write_inline<kBehind...>(packet, out, fields);
  }
}

// The same in the place of the packet in `frame`, which goes on to come from where that one comes.
template <bool kPlain, std::size_t kTransport, std::size_t... kBehind>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline void overwrite_packet(
    const wire::PacketTemplate& packet, std::uint8_t* frame,
    const std::array<std::uint64_t, sizeof...(kBehind)>& fields) {
  const auto mac_high = load_le<std::uint32_t>(frame + 6);
  const auto mac_low = load_le<std::uint16_t>(frame + 10);
  write_packet<kPlain, kTransport, kBehind...>(packet, frame, fields);
  store_le(frame + 6, mac_high);
  store_le(frame + 10, mac_low);
}

}  // namespace

bool Multiplexer::replace_at_once(Time now, const port::Frame& frame, wire::ParsedFrame& parsed, Connection& connection,
                                  Crossing crossing, WordIndex guess) {
  return parsed.is_plain() ? replace_at_once_in<true>(now, frame, parsed, connection, crossing, guess)
                           : replace_at_once_in<false>(now, frame, parsed, connection, crossing, guess);
}

std::optional<Action> Multiplexer::answer_at_once(Time now, port::Frame& frame, const wire::ParsedFrame& parsed,
                                                  Crossing crossing, port::FrameSink& outbox) {
  return parsed.is_plain() ? answer_at_once_in<true>(now, frame, parsed, crossing, outbox)
                           : answer_at_once_in<false>(now, frame, parsed, crossing, outbox);
}

template <bool kPlain>
bool Multiplexer::replace_at_once_in(Time now, const port::Frame& frame, wire::ParsedFrame& parsed,
                                     Connection& connection, Crossing crossing, WordIndex guess) {
  Numbering& n = numbers_[crossing.connection];
  Direction& d = connection.to[crossing.end];
  if (parsed.psn != d.expected || d.holds() || !d.started) return false;
  // Behind a request of its own that is not answered, withheld or not, its operations are under way nowhere else.
  if (!n.replaces_for(crossing.end) || n.place == kNone) return false;
  Numbering& shared = numbers_[n.place];
  if (shared.carrier == kNone || shared.mid_message) return false;
  Carrier& carrier = carriers_[shared.carrier];
  const auto ring = carrier_out_.ring(shared.carrier);
  const bool has_room = shared.out_next.since(shared.first_open) < static_cast<std::int32_t>(ring.size()) &&
                        d.expected.since(d.acknowledged) <= static_cast<std::int32_t>(config_.ring);
  if (!has_room || connections_[n.place].closing || carrier.write.bth_offset() != parsed.bth_offset) return false;
  if (connection.mtu == 0 || parsed.ecn() == wire::Ecn::kCongestionExperienced) return false;

  const std::uint8_t* const eth = frame.data + extended_offset_of<kPlain>(parsed);
  const auto address = load_be<std::uint64_t>(eth);
  const wire::RKey rkey{load_be<std::uint32_t>(eth + 8)};
  // A word that is tracked is aligned, and lies in the region that it is tracked in.
  const auto is_in = [&](std::uint16_t r) {
    return regions_[r].carrier == shared.carrier && regions_[r].region.rkey == rkey;
  };
  if (guess == kNone) return false;
  const WordIndex index = words_.is(guess, address, is_in)
                              ? guess
                              : words_.find_named(name_of(connection.address[crossing.end], rkey), address, is_in);
  if (index == kNone) return false;
  Word& word = words_[index];
  if (!word.can_be_replaced() || regions_[word.region].recovering || (n.proven >> word.region & 1) == 0) return false;
  if (!is_icrc_right<kPlain, kAtomicTransport>(frame.data, parsed)) return false;

  // Now it is certain.
  const auto operand = load_be<std::uint64_t>(eth + 12);
  const std::uint64_t prior = word.value;
  const bool adds = parsed.opcode == Opcode::kRcFetchAdd;
  const bool swaps = prior == load_be<std::uint64_t>(eth + 20);
  word.value = adds ? prior + operand : swaps ? operand : prior;
  ++word.open;
  const Psn in = parsed.psn;
  const Psn out = shared.out_next;
  in_ring(crossing.connection).place(in) = InEntry::replaced(in, out, prior, false);
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
  parsed.length = static_cast<std::uint16_t>(carrier.write.frame_size());
  overwrite_packet<kPlain, kWordWriteTransport, kPsnAndAddress, kAddressAndKey, kLastWord>(
      carrier.write, frame.data, word_write_fields(out, address, rkey, word.value));
  return true;
}

template <bool kPlain>
std::optional<Action> Multiplexer::answer_at_once_in(Time now, port::Frame& frame, const wire::ParsedFrame& parsed,
                                                     Crossing crossing, port::FrameSink& outbox) {
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
  if (n.cut_off || owner.to[1 - n.server_end].holds()) return std::nullopt;
  const std::uint32_t aeth = load_be<std::uint32_t>(frame.data + extended_offset_of<kPlain>(parsed));
  const auto syndrome = static_cast<std::uint8_t>(aeth >> 24);
  if (!wire::Aeth{syndrome, 0}.is_ack() || !is_icrc_right<kPlain, kAckTransport>(frame.data, parsed))
    return std::nullopt;

  // Now it is certain.
  shared.syndrome = syndrome;
  shared.first_open = parsed.psn + 1;
  Carrier& carrier = carriers_[shared.carrier];
  Word& word = words_[entry.word];
  --carrier.open;
  --word.open;
  carrier.progress = now;
  carrier.due = now + config_.repair_after;
  in.answered = true;
  d.acknowledged = Psn(in.psn);
  n.msn = n.msn + 1;
  const std::size_t size = n.atomic_answer.frame_size();
  const bool in_place = size <= frame.room && n.burst != burst_;
  if (in_place) {
    overwrite_packet<kPlain, kAtomicAckTransport, kPsnAndAeth, kLastWord>(n.atomic_answer, frame.data,
                                                                          atomic_answer_fields(n, in));
    frame.length = static_cast<std::uint32_t>(size);
    ++counters_.operations_answered;
  } else if (std::uint8_t* const to = outbox.reserve(size); to != nullptr) {
    write_packet<kPlain, kAtomicAckTransport, kPsnAndAeth, kLastWord>(n.atomic_answer, to, atomic_answer_fields(n, in));
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
