// The completer: what the requester does with responses. In the order of IBTA vol. 1 §9.7.5 to §9.7.7.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "rc/requester.h"

namespace sluice::rc {

using wire::Aeth;
using wire::Kind;

namespace {

CompletionStatus status_of(wire::NakCode code) {
  switch (code) {
    case wire::NakCode::kRemoteAccessError: return CompletionStatus::kRemoteAccessError;
    case wire::NakCode::kRemoteOperationalError: return CompletionStatus::kRemoteOperationError;
    default: return CompletionStatus::kRemoteInvalidRequest;
  }
}

CompletionKind kind_of(SendOp op) {
  switch (op) {
    case SendOp::kRead: return CompletionKind::kRead;
    case SendOp::kCompareAndSwap: return CompletionKind::kCompareAndSwap;
    case SendOp::kFetchAndAdd: return CompletionKind::kFetchAndAdd;
    case SendOp::kWrite:
    case SendOp::kWriteWithImmediate: return CompletionKind::kWrite;
    default: return CompletionKind::kSend;
  }
}

}  // namespace

void Requester::on_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  // Only what has been sent and not yet been acknowledged can be answered.
  if (parsed.psn.since(una_) < 0 || parsed.psn.since(highest_sent_) >= 0) {
    // An ACK of the past may still bring credits.
    if (parsed.traits().kind == Kind::kAcknowledge && parsed.psn == una_ - 1) {
      ++connection_.counters->rx_responses;
      note_credits(wire::get<Aeth>(frame, parsed));
    } else {
      ++connection_.counters->rx_ignored_responses;
    }
    return;
  }
  ++connection_.counters->rx_responses;
  switch (parsed.traits().kind) {
    case Kind::kAcknowledge: {
      const Aeth aeth = wire::get<Aeth>(frame, parsed);
      if (aeth.is_ack()) return on_acknowledge(now, parsed.psn, aeth);
      if (aeth.is_rnr_nak()) return on_rnr_nak(now, parsed.psn, aeth);
      if (aeth.is_nak()) return on_nak(now, parsed.psn, aeth);
      ++connection_.counters->rx_bad_responses;
      return;
    }
    case Kind::kReadResponse: return on_read_response(now, frame, parsed);
    case Kind::kAtomicAcknowledge: return on_atomic_response(now, frame, parsed);
    default: return;
  }
}

void Requester::on_acknowledge(Time now, Psn psn, const Aeth& aeth) {
  acknowledge_through(now, psn);
  note_credits(aeth);
}

void Requester::on_rnr_nak(Time now, Psn psn, const Aeth& aeth) {
  ++connection_.counters->rx_rnr_naks;
  if (rnr_deadline_ != Time::never()) return;  // told before; nothing has been sent since
  acknowledge_through(now, psn - 1);
  if (connection_.broken()) return;
  if (rnr_retries_left_ == 0) {
    // Behind a READ or atomic whose answer is lost, and which is asked for again: that one does not end so.
    if (names_head(psn)) fail_head(CompletionStatus::kRnrRetryExceeded);
    return;
  }
  if (rnr_retries_left_ != 7) --rnr_retries_left_;
  if (names_head(psn)) {
    // The way is good and the peer alive: waiting for it has a counter of its own.
    retries_left_ = connection_.retry_count;
  } else if (!spend_retry()) {
    return fail_head(CompletionStatus::kRetryExceeded);  // a READ or atomic whose answer does not come through
  }
  nak_follows_rnr_ = highest_sent_.since(psn) > 1;
  go_back_to(una_);
  rnr_until_ = rnr_deadline_ = now + aeth.rnr_delay();
}

void Requester::on_nak(Time now, Psn psn, const Aeth& aeth) {
  acknowledge_through(now, psn - 1);
  if (connection_.broken()) return;
  if (aeth.nak_code() == wire::NakCode::kPsnSequenceError) {
    ++connection_.counters->rx_naks;
    // After an RNR NAK a responder also NAKs what had followed. That is no reason to send again: neither while we wait nor, when
    // the wait was shorter than the way, afterwards; each round would make two of itself.
    if (std::exchange(nak_follows_rnr_, false) || rnr_deadline_ != Time::never()) return;
    if (!spend_retry()) return fail_head(CompletionStatus::kRetryExceeded);
    return go_back_to(una_);  // the PSN named, or an earlier READ whose response is missing as well
  }
  if (aeth.nak_code() > wire::NakCode::kInvalidRdRequest) {
    ++connection_.counters->rx_bad_responses;
    return;
  }
  ++connection_.counters->rx_refusals;
  // Behind a READ or atomic whose answer is lost: that one has been executed. It is asked for again, and must not end as refused.
  if (names_head(psn)) fail_head(status_of(aeth.nak_code()));
}

// Whether `psn` belongs to the oldest work.
bool Requester::names_head(Psn psn) const {
  if (idle()) return false;
  const SendWqe& head = queue_[queue_.head()];
  return psn.since(head.first_psn) >= 0 && psn.since(head.last_psn()) <= 0;
}

// The READ or atomic whose next response packet has this PSN; everything before it is thereby acknowledged. Null when the packet
// is not the one awaited.
SendWqe* Requester::awaited_read(Time now, Psn psn) {
  acknowledge_through(now, psn - 1);
  if (connection_.broken() || idle()) return nullptr;
  SendWqe& wqe = queue_[queue_.head()];
  if (!wqe.reads() || wqe.first_psn + wqe.received != psn) {
    // Either a response before this one is missing (and asked for again), or this one contradicts what was asked.
    ++connection_.counters->rx_ignored_responses;
    return nullptr;
  }
  return &wqe;
}

void Requester::on_read_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  SendWqe* const wqe = awaited_read(now, parsed.psn);
  if (wqe == nullptr) return;
  // Which of FIRST, MIDDLE, LAST and ONLY it is depends on where the responder took up again: lengths decide.
  const std::uint32_t offset = wqe->received * connection_.mtu;
  const std::uint32_t wanted = std::min(connection_.mtu, wqe->length - offset);
  if (wqe->op != SendOp::kRead || parsed.payload_length != wanted) {
    ++connection_.counters->rx_bad_responses;
    return fail_head(CompletionStatus::kBadResponse);
  }
  if (!memory_is_there(*wqe)) return;
  const wire::OpcodeTraits& traits = parsed.traits();
  if (traits.has(wire::Extended::kAeth)) note_credits(wire::get<Aeth>(frame, parsed));
  scatter(queue_.pieces(queue_.head()), offset, frame + parsed.payload_offset, wanted);
  read_progressed(now, *wqe);
}

void Requester::on_atomic_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  SendWqe* const wqe = awaited_read(now, parsed.psn);
  if (wqe == nullptr) return;
  if (!wqe->is_atomic()) {
    ++connection_.counters->rx_bad_responses;
    return fail_head(CompletionStatus::kBadResponse);
  }
  if (!memory_is_there(*wqe)) return;
  note_credits(wire::get<Aeth>(frame, parsed));
  const std::uint64_t prior = wire::get<wire::AtomicAckEth>(frame, parsed).original;
  std::uint8_t bytes[8];
  store_le(bytes, prior);
  scatter(queue_.pieces(queue_.head()), 0, bytes, 8);
  read_progressed(now, *wqe);
}

// The oldest work's; fails it when it is not.
bool Requester::memory_is_there(SendWqe& wqe) {
  if (connection_.regions->epoch() != epoch_) revalidate();
  if (wqe.status == CompletionStatus::kSuccess) return true;
  fail_head(wqe.status);
  return false;
}

// One more response packet has come in order.
void Requester::read_progressed(Time now, SendWqe& wqe) {
  ++wqe.received;
  una_ = wqe.first_psn + wqe.received;
  implied_nak_sent_ = false;
  const bool complete = wqe.received == wqe.packets;
  if (complete || wqe.received % kReadPiece == 0) {
    SLUICE_CHECK(reads_out_ > 0);
    --reads_out_;
  }
  if (complete) complete_head(CompletionStatus::kSuccess);
  progressed(now);
}

// Completes what `psn` acknowledges. A READ or atomic is not completed by an ACK: when one stands in the way, its response is lost.
void Requester::acknowledge_through(Time now, Psn psn) {
  bool moved = false;
  while (queue_.head() != started_) {
    // All distances from una_, which lies within this work: its first PSN may be 2^23 behind, where serial numbers turn over.
    const std::int32_t acknowledged = psn.since(una_);
    if (acknowledged < 0) break;
    SendWqe& wqe = queue_[queue_.head()];
    if (wqe.reads()) {
      implied_nak();
      break;
    }
    const bool whole = acknowledged >= wqe.last_psn().since(una_);
    una_ = whole ? wqe.last_psn() + 1 : psn + 1;
    moved = true;
    if (!whole) break;
    complete_head(CompletionStatus::kSuccess);
    if (connection_.broken()) return;
  }
  if (moved) progressed(now);
}

// Something acknowledged: time-outs and retries begin anew, and a cursor that had gone back too far comes forward.
void Requester::progressed(Time now) {
  retries_left_ = connection_.retry_count;
  rnr_retries_left_ = connection_.rnr_retry_count;
  nak_follows_rnr_ = false;
  restart_clock(now);
  skip_to_unacked();
  // Work whose memory is not to be had waited for its turn to fail.
  if (queue_.size() != 0 && queue_.head() == cursor_ && queue_[cursor_].status != CompletionStatus::kSuccess) {
    fail_head(queue_[cursor_].status);
  }
}

void Requester::skip_to_unacked() {
  const bool behind = cursor_ != started_ && una_.since(queue_[cursor_].first_psn + cursor_packet_) > 0;
  const bool popped = static_cast<std::int32_t>(cursor_ - queue_.head()) < 0;
  if (popped || behind) go_back_to(una_);
}

// A response is missing from an otherwise live stream: ask again, once until it comes.
void Requester::implied_nak() {
  if (implied_nak_sent_) return;
  implied_nak_sent_ = true;
  ++connection_.counters->implied_naks;
  const SendWqe& wqe = queue_[queue_.head()];
  go_back_to(wqe.first_psn + wqe.received);
}

// The clock stands still until what is sent again has left, and asks.
void Requester::go_back_to(Psn psn) {
  asked_ = psn - 1;
  deadline_ = Time::never();
  for (std::uint32_t i = queue_.head(); i != started_; ++i) {
    const SendWqe& wqe = queue_[i];
    if (psn.since(wqe.last_psn()) > 0) continue;
    cursor_ = i;
    cursor_packet_ = static_cast<std::uint32_t>(std::max(psn.since(wqe.first_psn), 0));
    return;
  }
  cursor_ = started_;
  cursor_packet_ = 0;
}

void Requester::note_credits(const Aeth& aeth) {
  if (!aeth.is_ack()) return;
  credit_limited_ = aeth.has_credits();
  if (!credit_limited_) return;
  // MSN counts 24 bits: take the SSN nearest to where we are.
  const std::uint32_t limit = aeth.msn + aeth.credits();
  const auto distance = static_cast<std::int32_t>((limit - next_ssn_) << 8) >> 8;
  credit_limit_ = next_ssn_ + static_cast<std::uint32_t>(distance);
}

bool Requester::spend_retry() {
  if (retries_left_ == 0) return false;
  --retries_left_;
  return true;
}

void Requester::complete_head(CompletionStatus status) {
  const SendWqe& wqe = queue_[queue_.head()];
  const bool failed = status != CompletionStatus::kSuccess;
  if (wqe.flags.signaled || connection_.signal_all || failed) {
    const bool never_sent = failed && (queue_.head() == started_ || wqe.first_psn == highest_sent_);
    connection_.complete_send({.id = wqe.id,
                               .status = status,
                               .kind = kind_of(wqe.op),
                               .never_sent = never_sent,
                               .begun = failed && !never_sent && !wqe.reads() && una_.since(wqe.first_psn) > 0,
                               .length = wqe.reads() ? wqe.length : 0,
                               .qpn = connection_.qpn});
  }
  queue_.pop();
  if (static_cast<std::int32_t>(started_ - queue_.head()) < 0) started_ = queue_.head();
}

void Requester::fail_head(CompletionStatus status) {
  if (status == CompletionStatus::kRetryExceeded || status == CompletionStatus::kRnrRetryExceeded) {
    ++connection_.counters->retries_exceeded;
  }
  if (queue_.size() != 0) complete_head(status);
  connection_.break_off(reliable_ ? Breakage::kAll : Breakage::kSendQueue);
}

}  // namespace sluice::rc
