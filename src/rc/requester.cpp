#include "rc/requester.h"

#include <algorithm>

#include "base/check.h"
#include "wire/bth.h"

namespace sluice::rc {

using wire::Opcode;

namespace {

// Opcodes of a message by the place of its packet; UC's are RC's plus 0x20.
struct MessageOpcodes {
  Opcode first, middle, last, only;
};
constexpr MessageOpcodes opcodes_of(SendOp op) {
  using enum Opcode;
  switch (op) {
    case SendOp::kSendWithImmediate: return {kRcSendFirst, kRcSendMiddle, kRcSendLastImmediate, kRcSendOnlyImmediate};
    case SendOp::kSendWithInvalidate:
      return {kRcSendFirst, kRcSendMiddle, kRcSendLastInvalidate, kRcSendOnlyInvalidate};
    case SendOp::kWrite: return {kRcWriteFirst, kRcWriteMiddle, kRcWriteLast, kRcWriteOnly};
    case SendOp::kWriteWithImmediate:
      return {kRcWriteFirst, kRcWriteMiddle, kRcWriteLastImmediate, kRcWriteOnlyImmediate};
    default: return {kRcSendFirst, kRcSendMiddle, kRcSendLast, kRcSendOnly};
  }
}

}  // namespace

// One packet of a SEND or WRITE.
struct Requester::Segment {
  Opcode opcode{};
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  bool is_last = false;
};

Requester::Requester(Connection& connection, std::uint32_t depth, std::uint32_t max_sges, std::uint32_t max_inline,
                     bool reliable)
    : connection_(connection), queue_(depth, max_sges, max_inline), reliable_(reliable) {}

void Requester::start(Psn first) {
  next_psn_ = highest_sent_ = una_ = first;
  asked_ = first - 1;
  epoch_ = connection_.regions->epoch();
  retries_left_ = connection_.retry_count;
  rnr_retries_left_ = connection_.rnr_retry_count;
}

// What no send queue of this connection takes.
PostError Requester::check_operation(const SendRequest& request) const {
  // The peer that we connected with allows none: it would wait for ever.
  if (reads(request.op) && (!reliable_ || connection_.max_reads_out == 0)) return PostError::kUnsupportedOp;
  if (!reliable_ && request.op == SendOp::kSendWithInvalidate) return PostError::kUnsupportedOp;
  return PostError::kNone;
}

PostError Requester::check(const SendRequest& request) const {
  const PostError error = check_operation(request);
  return error == PostError::kNone ? queue_.check(request) : error;
}

PostError Requester::post(const SendRequest& request) {
  const PostError error = check_operation(request);
  return error == PostError::kNone ? queue_.push(request) : error;
}

bool Requester::window_open(std::uint32_t packets) const {
  const auto unacked = static_cast<std::uint32_t>(highest_sent_.since(una_));
  return unacked == 0 || unacked + packets <= connection_.max_unacked_packets;
}

bool Requester::credit_open(const SendWqe& wqe) const {
  // Without credit one message may go out alone: its RNR NAK or ACK tells how things stand.
  return !credit_limited_ || !wqe.takes_receive() || static_cast<std::int32_t>(credit_limit_ - next_ssn_) >= 0 ||
         highest_sent_ == una_;
}

bool Requester::may_start(const SendWqe& wqe) {
  if (wqe.flags.fence && reads_out_ != 0) return false;
  return credit_open(wqe);
}

// Gives the entry its PSNs and finds its memory. False: its memory is not ours to use.
bool Requester::begin(SendWqe& wqe) {
  if (!resolve(queue_.pieces(started_), *connection_.regions, connection_.pd, rights_for(wqe))) {
    wqe.status = CompletionStatus::kLocalProtectionError;
    return false;
  }
  wqe.first_psn = next_psn_;
  wqe.packets = wqe.is_atomic() ? 1 : packets_for(wqe.length, connection_.mtu);
  // Each piece of a READ is a message to the responder.
  next_ssn_ += wqe.op == SendOp::kRead ? (wqe.packets - 1) / kReadPiece + 1 : 1;
  next_psn_ = next_psn_ + wqe.packets;
  ++started_;
  return true;
}

// Some region has been withdrawn: finds the memory of all that has started anew.
void Requester::revalidate() {
  epoch_ = connection_.regions->epoch();
  for (std::uint32_t i = queue_.head(); i != started_; ++i) {
    SendWqe& wqe = queue_[i];
    if (!resolve(queue_.pieces(i), *connection_.regions, connection_.pd, rights_for(wqe)))
      wqe.status = CompletionStatus::kLocalProtectionError;
  }
}

bool Requester::poll_transmit(Time now, port::FrameSink& sink) {
  if (!can_transmit(now)) return false;
  rnr_deadline_ = Time::never();
  if (connection_.regions->epoch() != epoch_) revalidate();
  SendWqe& wqe = queue_[cursor_];
  if (wqe.expired(now)) [[unlikely]] {
    // What has been sent may be executed, what stands behind it never will be: all end as flushed.
    ++connection_.counters->expired;
    connection_.break_off(Breakage::kAll);
    return false;
  }
  const bool waits = cursor_ == started_ && (!may_start(wqe) || !window_open(1));
  if (waits) return false;
  if (wqe.status != CompletionStatus::kSuccess || (cursor_ == started_ && !begin(wqe))) {
    if (cursor_ == queue_.head()) fail_head(wqe.status);  // else when its turn comes
    return false;
  }
  switch (wqe.op) {
    case SendOp::kRead: return emit_read_request(now, wqe, sink);
    case SendOp::kCompareAndSwap:
    case SendOp::kFetchAndAdd: return emit_atomic(now, wqe, sink);
    default: return emit_message_packet(now, wqe, sink);
  }
}

Requester::Segment Requester::segment_at(const SendWqe& wqe, std::uint32_t packet) const {
  const MessageOpcodes opcodes = opcodes_of(wqe.op);
  const bool first = packet == 0;
  const bool last = packet + 1 == wqe.packets;
  Segment s;
  s.opcode = first ? (last ? opcodes.only : opcodes.first) : (last ? opcodes.last : opcodes.middle);
  s.offset = packet * connection_.mtu;
  s.length = std::min(connection_.mtu, wqe.length - s.offset);
  s.is_last = last;
  return s;
}

bool Requester::emit_message_packet(Time now, const SendWqe& wqe, port::FrameSink& sink) {
  const Psn psn = wqe.first_psn + cursor_packet_;
  if (psn == highest_sent_ && !window_open(1)) return false;
  const Segment segment = segment_at(wqe, cursor_packet_);
  const wire::OpcodeTraits& traits = wire::opcode_traits(segment.opcode);
  const std::uint32_t ack_every = std::max(connection_.max_unacked_packets / 4, 1u);
  const std::uint8_t pad = wire::pad_for(segment.length);
  const auto opcode =
      reliable_ ? segment.opcode : static_cast<Opcode>(static_cast<std::uint8_t>(segment.opcode) | 0x20);
  const wire::Bth bth{.opcode = opcode,
                      .solicited = segment.is_last && wqe.flags.solicited,
                      .pad_count = pad,
                      .destination = connection_.remote_qpn,
                      .ack_request = reliable_ && (segment.is_last || (cursor_packet_ + 1) % ack_every == 0),
                      .psn = psn};
  PacketWriter packet(connection_, connection_.headers, sink, bth, traits.extended_length + segment.length + pad);
  if (!packet.ok()) return false;
  std::uint8_t* at = packet.body();
  if (traits.has(wire::Extended::kReth)) {
    wire::Reth{wqe.remote_address, wire::RKey{wqe.remote_key.value}, wqe.length}.write(at);
    at += wire::Reth::kSize;
  }
  if (traits.has(wire::Extended::kImmDt) || traits.has(wire::Extended::kIeth)) {
    store_be(at, wqe.immediate);
    at += 4;
  }
  gather(queue_.pieces(cursor_), segment.offset, at, segment.length);
  std::fill_n(at + segment.length, pad, std::uint8_t{0});
  packet.finish();
  sent(now, wqe, 1, segment.length + connection_.headers.frame_size(0), bth.ack_request);
  return true;
}

bool Requester::emit_read_request(Time now, const SendWqe& wqe, port::FrameSink& sink) {
  const Psn psn = wqe.first_psn + cursor_packet_;
  // Up to the next boundary of pieces counted from the READ's start, wherever a retransmission begins.
  const std::uint32_t end = std::min(wqe.packets, (cursor_packet_ / kReadPiece + 1) * kReadPiece);
  const std::uint32_t packets = end - cursor_packet_;
  const bool is_new = psn == highest_sent_;
  if (is_new && (reads_out_ >= connection_.max_reads_out || !window_open(packets))) return false;
  const std::uint32_t offset = cursor_packet_ * connection_.mtu;
  const std::uint32_t length = end == wqe.packets ? wqe.length - offset : packets * connection_.mtu;
  const wire::Bth bth{
      .opcode = Opcode::kRcReadRequest, .destination = connection_.remote_qpn, .ack_request = true, .psn = psn};
  PacketWriter packet(connection_, connection_.headers, sink, bth, wire::Reth::kSize);
  if (!packet.ok()) return false;
  wire::Reth{wqe.remote_address + offset, wire::RKey{wqe.remote_key.value}, length}.write(packet.body());
  packet.finish();
  if (is_new) ++reads_out_;
  sent(now, wqe, packets, connection_.headers.frame_size(wire::Reth::kSize), true);
  return true;
}

bool Requester::emit_atomic(Time now, const SendWqe& wqe, port::FrameSink& sink) {
  const bool is_new = wqe.first_psn == highest_sent_;
  if (is_new && (reads_out_ >= connection_.max_reads_out || !window_open(1))) return false;
  const auto opcode = wqe.op == SendOp::kCompareAndSwap ? Opcode::kRcCompareSwap : Opcode::kRcFetchAdd;
  const wire::Bth bth{
      .opcode = opcode, .destination = connection_.remote_qpn, .ack_request = true, .psn = wqe.first_psn};
  PacketWriter packet(connection_, connection_.headers, sink, bth, wire::AtomicEth::kSize);
  if (!packet.ok()) return false;
  wire::AtomicEth{wqe.remote_address, wire::RKey{wqe.remote_key.value}, wqe.swap_or_add, wqe.compare}.write(
      packet.body());
  packet.finish();
  if (is_new) ++reads_out_;
  sent(now, wqe, 1, connection_.headers.frame_size(wire::AtomicEth::kSize), true);
  return true;
}

// The cursor's packet has left: moves the cursor on, and starts the clock if it asks for an answer. What does not ask is not answered, however long
// it takes until one can leave that does (a slow port, a pace).
void Requester::sent(Time now, const SendWqe& wqe, std::uint32_t packets, std::size_t bytes, bool asks) {
  ++connection_.counters->tx_packets;
  const Psn end = wqe.first_psn + (cursor_packet_ + packets);
  if (end.since(highest_sent_) > 0) {
    highest_sent_ = end;
  } else {
    ++connection_.counters->tx_retransmits;
  }
  connection_.on_paced(now, bytes);
  cursor_packet_ += packets;
  if (!reliable_) una_ = highest_sent_;  // nobody acknowledges: the window stays open
  if (cursor_packet_ == wqe.packets) {
    ++cursor_;
    cursor_packet_ = 0;
    if (!reliable_) return complete_head(CompletionStatus::kSuccess);
  }
  if (!reliable_ || !asks) return;
  asked_ = end - 1;
  if (deadline_ == Time::never() && connection_.timeout > Duration()) deadline_ = now + connection_.timeout;
}

void Requester::on_deadline(Time now) {
  if (rnr_deadline_ <= now) rnr_deadline_ = Time::never();
  if (now < deadline_) return;
  ++connection_.counters->timeouts;
  if (!spend_retry()) {
    fail_head(CompletionStatus::kRetryExceeded);
    return;
  }
  implied_nak_sent_ = nak_follows_rnr_ = false;
  go_back_to(una_);
}

// What waits for an answer now waits as long as it says now.
void Requester::restart_clock(Time now) {
  const bool waiting = una_ != highest_sent_ && asked_.since(una_) >= 0 && rnr_deadline_ == Time::never();
  deadline_ = waiting && connection_.timeout > Duration() ? now + connection_.timeout : Time::never();
}

void Requester::on_path_lost() {
  if (queue_.size() != 0) fail_head(CompletionStatus::kRetryExceeded);
}

void Requester::stop() {
  cursor_ = started_ = queue_.head();
  cursor_packet_ = reads_out_ = 0;
  implied_nak_sent_ = nak_follows_rnr_ = false;
  deadline_ = rnr_deadline_ = Time::never();
  rnr_until_ = Time();
}

void Requester::flush() {
  while (queue_.size() != 0) complete_head(CompletionStatus::kFlushed);
  // What was begun and not sent gives its PSNs back.
  next_psn_ = una_ = highest_sent_;
  asked_ = una_ - 1;
  stop();
}

void Requester::reset() {
  while (queue_.size() != 0) queue_.pop();
  stop();
  draining_ = credit_limited_ = false;
  next_ssn_ = 1;
}

}  // namespace sluice::rc
