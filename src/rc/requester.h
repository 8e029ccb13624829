// Requester half of a connection: turns posted work into request packets, responses into completions, silence into retries.
//
// Life:       post -> poll_transmit (a packet a call) -> on_response -> completion; on_deadline retries.
// Invariant:  una_ <= PSN of the cursor <= highest_sent_ <= next_psn_ (serial order); work completes in posting order;
//             a new READ or atomic starts only while fewer than max_reads_out are unanswered; a deadline is never left in the past.
// Units:      PSNs in packets; a READ takes one PSN for each response packet.
// Errors:     a fatal NAK or exhausted retries complete the oldest work with the reason and break the connection.
//             Work whose memory cannot be had (any more) fails when it is the oldest.
// Threads:    one owner, no locks.
// Limits:     at most max_unacked_packets PSNs unacknowledged; a READ is asked for in pieces of kReadPiece packets, so that no
//             more is solicited than the window allows.
// Source:     IBTA vol. 1 §9.7.3 to §9.7.7 (requester), §9.7.5.2.8 (RNR), §9.7.7.2 (credits); ARCHITECTURE.md "What real NICs do".
#pragma once

#include <algorithm>

#include "rc/connection.h"
#include "rc/send_queue.h"

namespace sluice::rc {

class Requester {
 public:
  static constexpr std::uint32_t kReadPiece = 64;

  Requester(Connection& connection, std::uint32_t depth, std::uint32_t max_sges, std::uint32_t max_inline,
            bool reliable);

  void start(Psn first);
  PostError post(const SendRequest& request);
  // What that would return.
  PostError check(const SendRequest& request) const;
  // While draining no new work starts; what has started finishes.
  void set_draining(bool draining) { draining_ = draining; }

  Psn next_psn() const { return next_psn_; }

  // Whether poll_transmit would try to send.
  bool can_transmit(Time now) {
    if (cursor_ == (draining_ ? started_ : queue_.tail()) || !connection_.path_ready || now < rnr_until_) return false;
    return connection_.pace_allows(now);
  }
  // Writes at most one packet. False: nothing may be sent now, or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink);

  void on_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);

  // When poll_transmit or on_deadline has something to do without a response.
  Time next_deadline() const { return std::min(deadline_, rnr_deadline_); }
  void on_deadline(Time now);

  // The time-out is another from now on.
  void restart_clock(Time now);

  // Nobody knows the way to the peer.
  void on_path_lost();

  // Completes all work as flushed.
  void flush();
  // Forgets all work.
  void reset();

  std::uint32_t queue_length() const { return queue_.size(); }
  // Nothing has started that has not completed.
  bool idle() const { return queue_.head() == started_; }

 private:
  struct Segment;

  // Transmit (requester.cpp).
  PostError check_operation(const SendRequest& request) const;
  bool may_start(const SendWqe& wqe);
  bool begin(SendWqe& wqe);
  void revalidate();
  bool window_open(std::uint32_t packets) const;
  bool credit_open(const SendWqe& wqe) const;
  Segment segment_at(const SendWqe& wqe, std::uint32_t packet) const;
  bool emit_message_packet(Time now, const SendWqe& wqe, port::FrameSink& sink);
  bool emit_read_request(Time now, const SendWqe& wqe, port::FrameSink& sink);
  bool emit_atomic(Time now, const SendWqe& wqe, port::FrameSink& sink);
  void sent(Time now, const SendWqe& wqe, std::uint32_t packets, std::size_t bytes, bool asks);
  void skip_to_unacked();
  void stop();
  static memory::Access rights_for(const SendWqe& wqe) {
    return wqe.reads() ? memory::kLocalWrite : memory::kLocalRead;
  }

  // Responses (completer.cpp).
  void on_acknowledge(Time now, Psn psn, const wire::Aeth& aeth);
  void on_nak(Time now, Psn psn, const wire::Aeth& aeth);
  void on_rnr_nak(Time now, Psn psn, const wire::Aeth& aeth);
  void on_read_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void on_atomic_response(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  SendWqe* awaited_read(Time now, Psn psn);
  bool memory_is_there(SendWqe& wqe);
  void read_progressed(Time now, SendWqe& wqe);
  void acknowledge_through(Time now, Psn psn);
  void implied_nak();
  void note_credits(const wire::Aeth& aeth);
  void complete_head(CompletionStatus status);
  void fail_head(CompletionStatus status);
  bool names_head(Psn psn) const;
  bool spend_retry();
  void progressed(Time now);
  void go_back_to(Psn psn);

  Connection& connection_;
  SendQueue queue_;
  bool reliable_;
  bool draining_ = false;
  bool implied_nak_sent_ = false;  // until the awaited response comes
  bool nak_follows_rnr_ = false;   // of packets that were on their way when the RNR NAK came
  bool credit_limited_ = false;
  std::uint8_t retries_left_ = 7;
  std::uint8_t rnr_retries_left_ = 7;
  std::uint32_t started_ = 0;        // first entry without PSNs
  std::uint32_t cursor_ = 0;         // entry to send from
  std::uint32_t cursor_packet_ = 0;  // … and which of its packets
  Psn next_psn_{};
  Psn highest_sent_{};
  Psn una_{};
  Psn asked_{};  // the last that a packet has asked to be answered, of those sent since the cursor went back
  std::uint32_t reads_out_ = 0;        // READ pieces and atomics asked for and unanswered
  std::uint32_t epoch_ = 0;            // of the regions, when the memory of what has started was found
  std::uint32_t next_ssn_ = 1;         // send sequence number of the next message, as the responder counts them
  std::uint32_t credit_limit_ = 0;     // greatest SSN that has a receive buffer
  Time deadline_ = Time::never();      // of the answer that has been asked for
  Time rnr_until_{};                   // nothing is sent before
  Time rnr_deadline_ = Time::never();  // the same while we wait, never otherwise
};

}  // namespace sluice::rc
