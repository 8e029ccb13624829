// What a reliable connection's responder makes of each request, by the rules of IBTA vol. 1 §9.7.4, written once more from there: executed, old,
// too early, refused with which NAK, or put off for want of a receive.
//
// Judged:   which of these it is; what the next PSN is then; how many READs and atomics wait for their first answer.
// Not:      whether a SEND fits into its receive; READs and atomics that are put off since too many answers wait.
// Errors:   a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include <deque>

#include "rc/queue_pair.h"
#include "wire/frame.h"

namespace sluice::fuzz {

class ResponderModel {
 public:
  enum class Verdict : std::uint8_t { kExecuted, kDuplicate, kGap, kInvalid, kAccess, kOperation, kNotReady, kPutOff };
  enum class Receives : std::uint8_t { kNone, kSome, kUnknown };

  // The queue pair has come to RTR.
  void start(const rc::QueuePair& pair, memory::PdId domain, const memory::RegionTable& regions);
  // It has gone, or been reset.
  void stop() { pair_ = nullptr; }
  bool is_on() const { return pair_ != nullptr; }
  // A receive that has been taken, and has not completed.
  bool has_taken() const { return taken_; }

  // What a request comes to. `receives`: what is posted, beside what has been taken.
  Verdict due(ByteView frame, const wire::ParsedFrame& parsed, Receives receives) const;
  // It has come to that.
  void on_verdict(Verdict verdict, Verdict due, ByteView frame, const wire::ParsedFrame& parsed, Receives receives);
  // A READ response or an atomic's answer has left.
  void on_answer(rc::Psn psn);

 private:
  struct Write {
    memory::Key key{};
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    std::uint32_t left = 0;
  };

  bool may_be(Verdict verdict, Verdict due, const wire::ParsedFrame& p, Receives receives) const;
  bool is_well_formed(const wire::ParsedFrame& p) const;
  Verdict due_write(ByteView frame, const wire::ParsedFrame& p, Receives receives) const;
  Verdict due_read(const wire::Reth& reth) const;
  Verdict due_atomic(const wire::AtomicEth& atomic) const;
  Write write_of(ByteView frame, const wire::ParsedFrame& p) const;
  std::uint8_t* find(memory::Key key, std::uint64_t address, std::uint64_t length, memory::Access right) const;
  bool allows(memory::Access right) const {
    return pair_->attributes().access.value_or(memory::Access{}).allows(right);
  }
  bool has_room() const { return waiting_.size() < pair_->attributes().max_reads_in.value_or(16); }
  std::uint32_t mtu() const { return pair_->attributes().path_mtu.value_or(1024); }

  const rc::QueuePair* pair_ = nullptr;
  const memory::RegionTable* regions_ = nullptr;
  memory::PdId domain_{};
  rc::Psn expected_{};
  bool refuses_ = false;  // nothing is executed any more
  bool taken_ = false;
  bool in_message_ = false;
  wire::Kind message_{};
  Write write_{};
  std::deque<rc::Psn> waiting_;  // READs and atomics without their first answer, by its last PSN
};

}  // namespace sluice::fuzz
