// What a send queue owes its program, and the wire, by the rules of IBTA vol. 1 §9.7.3 to §9.7.7, written once more from there: it is told what is
// posted, what leaves, what is answered and what completes, and judges the last three.
//
// Judged:   each packet is the next one, or one that is not acknowledged, of what was posted, in order: opcode, address, length and bytes;
//           windows, fences, READs in flight, waits for a receiver, and times after which nothing leaves, are kept;
//           an answer completes exactly what it is for, and brings its bytes to where they belong;
//           each completion has its turn and its reason; what succeeds without being signaled leaves none.
// Not:      when something is sent again, which is for the machine to choose; credits.
// Errors:   a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "rc/queue_pair.h"
#include "wire/frame.h"

namespace sluice::fuzz {

class RequesterModel {
 public:
  // Where a piece of the program's memory is in this process; null: it may not be used (any more).
  using Find = std::function<std::uint8_t*(const rc::Sge& piece)>;
  using Write = std::function<void(std::uint8_t* to, ByteView bytes)>;

  explicit RequesterModel(Find find) : find_(std::move(find)) {}

  // The queue pair has come to RTS, with nothing in its send queue.
  void start(const rc::QueuePair& pair, std::uint32_t window);
  // It has gone, or been reset.
  void stop() {
    pair_ = nullptr;
    works_.clear();
  }
  bool is_on() const { return pair_ != nullptr; }

  void post(const rc::SendRequest& request);
  void on_packet(Time now, ByteView frame, const wire::ParsedFrame& parsed);
  // A response that was accepted. Calls write() for what it brings.
  void on_response(Time now, ByteView frame, const wire::ParsedFrame& parsed, const Write& write);
  void on_time(Time now, std::uint64_t timeouts);
  void on_completion(const rc::Completion& completion);
  // All completions have been taken: none is missing.
  void check_settled();

  // What a peer without fault may say next: `how` decides under which opcode, and whether it refuses or puts off. None: it owes nothing.
  struct Answer {
    wire::Opcode opcode{};
    rc::Psn psn{};
    std::vector<std::uint8_t> body{};  // behind the BTH, without pad
    std::size_t payload = 0;
  };
  std::optional<Answer> next_answer(std::uint8_t how) const;

 private:
  struct Work {
    std::uint64_t id = 0;
    rc::SendOp op{};
    rc::SendFlags flags{};
    std::vector<rc::Sge> pieces{};
    std::vector<std::uint8_t> copied{};  // inline data
    std::uint32_t length = 0;
    std::uint32_t immediate = 0;  // or the key to invalidate
    std::uint64_t address = 0;
    memory::Key key{};
    std::uint64_t compare = 0;
    std::uint64_t swap_or_add = 0;
    Time not_after;
    rc::Psn first{};
    std::uint32_t packets = 0;  // 0: none has left
    std::uint32_t sent = 0;
    std::uint32_t received = 0;  // READs and atomics
    bool done = false;
    std::optional<rc::CompletionStatus> failed{};

    bool holds(rc::Psn psn) const {
      return packets != 0 && psn.since(first) >= 0 && psn.since(first) < static_cast<std::int32_t>(packets);
    }
    bool copies() const { return flags.inline_data; }
  };

  bool reliable() const { return pair_->config().transport == rc::Transport::kRc; }
  std::uint32_t mtu() const { return pair_->attributes().path_mtu.value_or(1024); }
  Work* head();  // the oldest that has not been answered; null: there is none
  const Work* head() const { return const_cast<RequesterModel*>(this)->head(); }
  Work& sender_of(rc::Psn psn);
  void begin(Work& work);
  bool is_usable(const Work& work) const;
  std::vector<std::uint8_t> bytes_of(const Work& work, std::uint32_t offset, std::size_t length) const;
  std::uint32_t check_message(const Work& work, std::uint32_t index, ByteView frame, const wire::ParsedFrame& p) const;
  std::uint32_t check_read(const Work& work, std::uint32_t index, ByteView frame, const wire::ParsedFrame& p) const;
  std::uint32_t check_atomic(const Work& work, ByteView frame, const wire::ParsedFrame& p) const;
  void on_acknowledge(Time now, rc::Psn psn, const wire::Aeth& aeth);
  void on_not_ready(Time now, rc::Psn psn, const wire::Aeth& aeth);
  void on_data(rc::SendOp op, rc::Psn psn, ByteView bytes, const Write& write);
  void acknowledge_through(rc::Psn psn);
  void progressed();
  void check_reason(const Work& work, rc::CompletionStatus status) const;
  void drop_silent();

  Find find_;
  const rc::QueuePair* pair_ = nullptr;
  std::uint32_t window_ = 0;
  std::deque<Work> works_;
  rc::Psn una_{};
  rc::Psn highest_{};          // behind all that has left
  std::deque<rc::Psn> reads_;  // behind the last packet of the answer to each READ or atomic in flight
  Time rnr_until_;
  bool rnr_waits_ = false;
  std::uint32_t rnr_left_ = 0;
  std::uint32_t retries_ = 0;
  std::uint64_t strikes_ = 0;  // what may have cost a retry, since there was progress
};

}  // namespace sluice::fuzz
