// Responder half of a connection: turns request packets into memory effects, ACKs and READ responses.
//
// Life:       on_request -> check_psn -> check_sequence -> check_length -> check_key -> execute -> poll_transmit
// Invariant:  expected_psn_ is the PSN of the first request not yet executed; answers leave in PSN order; an atomic is executed once.
// Errors:     never fails on input; every refusal is a NAK or silence, and a counter. After a fatal NAK has left the connection breaks.
// Threads:    one owner, no locks.
// Limits:     max_reads_in READs and atomics are kept for replay; max_answers(max_reads) answers wait to be sent.
// Source:     IBTA vol. 1 §9.7.4 (validation), §9.7.5 (responses), §9.7.4.1.4 (duplicates); ARCHITECTURE.md "What real NICs do".
#pragma once

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "rc/connection.h"
#include "rc/receive_queue.h"

namespace sluice::rc {

class Responder {
 public:
  // All that a requester that keeps to max_reads can have to be told at once: of each READ, and of the WRITE or SEND between it and the next.
  static constexpr std::uint32_t max_answers(std::uint32_t max_reads) {
    return std::max(64u, std::bit_ceil(2 * max_reads + 2));
  }

  // `receives` outlives this; `shared` says whether other queue pairs take from it too. `max_reads` is the most that max_reads_in
  // will ever be.
  Responder(Connection& connection, SharedReceiveQueue& receives, bool shared, bool reliable, std::uint8_t max_reads);

  void start(Psn expected);
  void on_request(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);

  // READ responses keep to the connection's pace. ACKs and the answers to atomics do not, but they wait behind them.
  bool can_transmit(Time now) {
    if (answers_head_ == answers_tail_ || !connection_.path_ready) return false;
    return place(answers_head_).kind != Answer::Kind::kRead || connection_.pace_allows(now);
  }
  // Writes at most one packet. False: nothing to send, or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink);

  // Completes a receive that a message has begun to fill, and all posted ones if the queue is our own, as flushed.
  void flush();
  void reset();
  // What waits to leave, or has left, as a fatal NAK; with that the connection breaks.
  std::optional<wire::NakCode> refusal() const { return refusal_; }
  bool failing() const { return refusal_.has_value(); }

  Psn expected_psn() const { return expected_psn_; }
  std::uint32_t msn() const { return msn_; }

 private:
  // A READ or atomic that may be asked for again.
  struct Record {
    enum class Kind : std::uint8_t { kNone, kRead, kAtomic };
    Kind kind = Kind::kNone;
    Psn first_psn{};
    std::uint32_t packets = 0;
    std::uint32_t length = 0;
    memory::Key key{};
    std::uint64_t address = 0;
    std::uint64_t prior = 0;  // atomics: the answer
  };
  // Something to send.
  struct Answer {
    enum class Kind : std::uint8_t { kAeth, kRead, kAtomic };
    Kind kind = Kind::kAeth;
    bool fresh = false;         // the first answer, not one to a duplicate
    std::uint8_t syndrome = 0;  // kAeth
    std::uint8_t record = 0;    // kRead, kAtomic
    Psn psn{};                  // of the next packet
    std::uint32_t msn = 0;
    std::uint32_t packet = 0;  // kRead: next packet of the record
    std::uint32_t begin = 0;   // kRead: first packet of this answer
    std::uint32_t end = 0;     // kRead: behind the last packet of this answer
  };
  enum class MessageKind : std::uint8_t { kNone, kSend, kWrite };
  // The SEND or WRITE that has begun and not ended.
  struct Message {
    MessageKind kind = MessageKind::kNone;
    memory::Key key{};
    std::uint64_t address = 0;
    std::uint32_t length = 0;  // a WRITE's promised length
    std::uint32_t done = 0;
    std::uint32_t epoch = 0;       // of the regions, when `host` was found
    std::uint8_t* host = nullptr;  // a WRITE's target
  };
  // The receive request that a message fills.
  struct Receive {
    bool taken = false;
    std::uint8_t sge_count = 0;
    std::uint32_t epoch = 0;  // of the regions, when …
    std::uint64_t found = 0;  // … the pieces up to here were found that the message still touches
    std::uint64_t id = 0;
    std::uint64_t capacity = 0;
  };

  bool check_psn(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  bool check_sequence(const wire::ParsedFrame& parsed);
  bool check_length(const wire::ParsedFrame& parsed) const;
  void execute_send(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void execute_write(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void execute_read(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void execute_atomic(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  bool begin_write(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  bool find_target();
  bool find_receive_memory(std::uint32_t length);
  void lose_receive(CompletionStatus why);
  void finish_packet(const wire::ParsedFrame& parsed, std::uint32_t packets);
  void duplicate(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void duplicate_read(const std::uint8_t* frame, const wire::ParsedFrame& parsed);

  bool take_receive(Psn psn);
  void complete_receive(const std::uint8_t* frame, const wire::ParsedFrame& parsed, CompletionKind kind,
                        CompletionStatus status, std::uint32_t length);
  std::uint8_t* translate(memory::Key key, std::uint64_t address, std::uint64_t length, memory::Access needed) const;

  Record& new_record();
  Record* find_record(Psn psn);
  bool too_many_reads() const {
    return fresh_pending_ >= std::min<std::size_t>(connection_.max_reads_in, records_.size());
  }
  Answer& place(std::uint32_t number) { return answers_[number & (answers_.size() - 1)]; }
  bool answers_full() const { return answers_tail_ - answers_head_ == answers_.size(); }
  void push(const Answer& answer);
  void push_ack(Psn psn);
  void refuse(Psn psn, wire::NakCode code);
  void put_off();
  void refuse_not_ready(Psn psn);
  std::uint8_t ack_syndrome() const;

  bool emit_aeth(const Answer& answer, port::FrameSink& sink);
  bool emit_atomic(const Answer& answer, port::FrameSink& sink);
  bool emit_read(Time now, Answer& answer, port::FrameSink& sink);

  Connection& connection_;
  SharedReceiveQueue& receives_;
  bool shared_;
  bool reliable_;
  bool nak_sent_ = false;       // one NAK a gap: silence until the expected PSN comes
  bool last_was_read_ = false;  // the request executed last was a READ or atomic
  std::optional<wire::NakCode> refusal_{};
  std::uint8_t next_record_ = 0;
  std::uint32_t fresh_pending_ = 0;  // READs and atomics executed and not yet answered for the first time
  std::uint32_t msn_ = 0;
  std::uint32_t answers_head_ = 0;
  std::uint32_t answers_tail_ = 0;
  Psn expected_psn_{};
  Message message_{};
  Receive receive_{};
  std::vector<LocalPiece> receive_pieces_;
  std::vector<Record> records_;
  std::vector<Answer> answers_;
};

}  // namespace sluice::rc
