// Request stream: the requests that a switch makes up towards one passive node: their PSNs, what is answered, what must be sent again.
//
// Life:       append() -> send_read(), send_write() or relayed() for what unsent() names, until it is null -> take() an answer; after kData
//             the owner looks at the packet and consume()s it. When an answer says kGap, or time is up: rewind(), then unsent() again.
// Invariant:  una <= sent <= next, in PSNs. A PSN means the same request for ever, so that a responder may take a repetition for what it is;
//             only the payload of a relayed WRITE is fetched anew. Requests are answered in order.
// Errors:     an answer that fits nothing is kIgnored.
// Threads:    one owner. No allocation after construction.
// Limits:     kMostOps requests of at most kWindow packets under way; max_reads READs without all their answers.
// Source:     IBTA vol. 1 §9.7.5 (requester); Cowbird §5.3 ("go-back-N"). Ours: PSNs are kept and not reset, which late packets would abuse.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "port/port.h"
#include "wire/frame.h"

namespace sluice::cowbird {

// A request of a stream.
struct StreamOp {
  enum class Kind : std::uint8_t {
    kRead,
    kWrite,  // of bytes that the switch has; one packet
    kRelay,  // a WRITE whose packets are made from another stream's READ responses, as they come by
  };
  Kind kind = Kind::kRead;
  std::uint8_t purpose = 0;  // the owner's
  wire::Psn first{};
  std::uint32_t packets = 1;
  std::uint64_t address = 0;
  wire::RKey key{};
  std::uint32_t length = 0;
  std::uint32_t skip = 0;                // the owner's: packets of a transfer before this READ
  std::uint64_t subject = 0;             // the owner's: index of a request
  std::array<std::uint64_t, 5> words{};  // the owner's: what a WRITE says

  wire::Psn end() const { return first + packets; }
};

struct StreamConfig {
  wire::AddressVector route{};  // from whom the requests seem to come, and to whom they go
  wire::Qpn destination{};
  wire::Psn first{};  // that the responder expects
  std::uint32_t mtu = 1024;
  std::uint32_t max_reads = 16;
  Duration timeout = Duration::milliseconds(4);
  Duration longest_timeout = Duration::milliseconds(128);
};

class RequestStream {
 public:
  static constexpr std::uint32_t kMostOps = 1024;
  static constexpr std::int32_t kWindow = 1 << 20;
  enum class Answer : std::uint8_t {
    kIgnored,
    kProgress,  // done() has been told of what is now answered
    kData,      // the next READ response: of front(), whose packet data_packet() it is
    kGap,       // something is lost: rewind to first_unanswered()
    kRefused,   // the responder has refused refused() and its connection is over
  };

  explicit RequestStream(const StreamConfig& config)
      : config_(config), headers_(config.route), una_(config.first), sent_(config.first), next_(config.first) {
    ops_.resize(kMostOps);
  }

  bool has_room() const { return tail_ - head_ < kMostOps && next_.since(una_) < kWindow; }
  bool can_read() const { return has_room() && reads_ < config_.max_reads; }
  // Everything has been sent at least once since the last rewind.
  bool all_sent() const { return sent_ == next_; }
  bool idle() const { return una_ == next_; }
  std::uint32_t mtu() const { return config_.mtu; }
  std::uint32_t packets_of(std::uint32_t length) const {
    return length == 0 ? 1 : (length + config_.mtu - 1) / config_.mtu;
  }

  // REQUIRES: has_room(), for a READ can_read(). Sets first and packets.
  StreamOp& append(StreamOp op);
  // The request that stands next to be sent; null: all are.
  StreamOp* unsent();
  wire::Psn next_to_send() const { return sent_; }
  wire::Psn first_unanswered() const { return una_; }

  // Sends unsent(). False: the sink is full; try again.
  bool send_read(Time now, port::FrameSink& sink);
  bool send_write(Time now, ByteView payload, port::FrameSink& sink);
  // Makes a packet of unsent(), a kRelay, out of a READ response: headers anew, the payload and what the ICRC says of it kept.
  // REQUIRES: the response's payload is this packet's.
  bool relay(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed, port::FrameSink& sink);

  // `done(op)` for every WRITE that is answered now.
  template <class Done>
  Answer take(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed, Done&& done);
  StreamOp& front() { return op(head_); }
  std::uint32_t data_packet() { return static_cast<std::uint32_t>(una_.since(front().first)); }
  // The packet of front() that came with kData is used. True: it was its last, and front() is another one now.
  bool consume(Time now);
  wire::NakCode refusal() const { return refusal_; }
  // Null: of none that is known.
  StreamOp* refused() { return find(refused_); }

  // All from first_unanswered() on is sent again.
  void rewind();
  // True once: no answer for too long.
  bool timed_out(Time now);
  Time deadline() const { return deadline_; }
  // Since when nothing has been answered though a whole request was sent; never: all is well.
  Time silent_since() const { return silent_since_; }
  // Nobody listened for so long.
  void forgive(Duration gone) {
    if (silent_since_ != Time::never()) silent_since_ = silent_since_ + gone;
  }

 private:
  StreamOp& op(std::uint32_t index) { return ops_[index % kMostOps]; }
  StreamOp* find(wire::Psn psn);
  void pop();
  void on_sent(Time now, wire::Psn sent);
  void on_progress(Time now);
  bool owed_an_answer() { return head_ != tail_ && sent_.since(front().end()) >= 0; }
  bool note_gap();
  std::uint8_t* begin_packet(port::FrameSink& sink, wire::Bth bth, std::size_t body);
  void end_packet(port::FrameSink& sink, std::uint8_t* frame, std::size_t body);

  StreamConfig config_;
  wire::HeaderTemplate headers_;
  std::vector<StreamOp> ops_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  std::uint32_t sending_ = 0;  // of the op that holds sent_, or where one may be found
  std::uint32_t reads_ = 0;
  wire::Psn una_{};
  wire::Psn sent_{};
  wire::Psn next_{};
  wire::Psn refused_{};
  wire::NakCode refusal_{};
  bool gap_noted_ = false;  // since una_ moved last: one loss brings many signs of it
  std::uint32_t tries_ = 0;
  Time deadline_ = Time::never();
  Time silent_since_ = Time::never();
};

template <class Done>
RequestStream::Answer RequestStream::take(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed,
                                          Done&& done) {
  const bool data = parsed.traits().kind == wire::Kind::kReadResponse;
  const auto aeth = data ? wire::Aeth{} : wire::get<wire::Aeth>(frame, parsed);
  if (aeth.type() == wire::Aeth::Type::kReserved || aeth.is_rnr_nak()) return Answer::kIgnored;
  if (parsed.psn.since(una_) < 0 || parsed.psn.since(next_) >= 0) return Answer::kIgnored;
  // Everything before this PSN has been executed; of WRITEs that is all there is to know.
  const wire::Psn executed = !data && aeth.is_ack() ? parsed.psn + 1 : parsed.psn;
  const wire::Psn before = una_;
  bool lost = false;
  while (head_ != tail_ && executed.since(una_) > 0) {
    StreamOp& first = front();
    if (first.kind == StreamOp::Kind::kRead) {
      lost = true;  // its responses have been sent, and are not here
      break;
    }
    if (executed.since(first.end()) < 0) {
      una_ = executed;
      break;
    }
    una_ = first.end();
    const StreamOp answered = first;
    pop();
    done(answered);
  }
  if (una_ != before) on_progress(now);
  if (sent_.since(una_) < 0) sent_ = una_;
  // (What is lost before it is not sent again: the connection is over.)
  if (!data && aeth.is_nak() && aeth.nak_code() != wire::NakCode::kPsnSequenceError) {
    refused_ = parsed.psn;
    refusal_ = aeth.nak_code();
    return Answer::kRefused;
  }
  if (lost) return note_gap() ? Answer::kGap : Answer::kIgnored;
  if (data) {
    const bool wanted = head_ != tail_ && front().kind == StreamOp::Kind::kRead && parsed.psn == una_;
    return wanted ? Answer::kData : una_ != before ? Answer::kProgress : Answer::kIgnored;
  }
  if (aeth.is_nak()) return note_gap() ? Answer::kGap : Answer::kIgnored;
  return una_ != before ? Answer::kProgress : Answer::kIgnored;
}

}  // namespace sluice::cowbird
