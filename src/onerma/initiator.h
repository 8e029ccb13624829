// Initiator: commands become requests, answers become completions. All state of an operation is here; the target keeps none.
//
// Life:       add_grant() -> issue() -> poll_transmit() -> on_message() / on_deadline() -> the command's ring has a completion.
// Believes:   what was sealed under the operation's derived key, for an operation that is open, from the node that it went to. A kRefusal,
//             which nobody can seal, must carry the end of the request's tag: whoever could forge it could as well have dropped the request.
// Writes:     a target may take the bytes of an open write, once; nothing else of this node's memory is ever sent.
// Errors:     never fails on input: what is not believed is counted and dropped.
// Threads:    one owner; nothing is allocated after set-up.
// Limits:     SlotParameters; grants are kept until the initiator goes.
// Source:     1RMA §3, §5; docs/design/onerma.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.h"
#include "onerma/command_slots.h"
#include "onerma/keys.h"
#include "onerma/message.h"
#include "port/port.h"

namespace sluice::onerma {

enum class Protection : std::uint8_t { kSealed, kPlain };

struct InitiatorConfig {
  wire::MacAddress mac{};
  wire::Ipv4Address ip{};
  Boot boot{};
  SlotParameters slots{};
  Protection protection =
      Protection::kSealed;  // kPlain: no secrecy, no authenticity; targets must have been told to allow it
};

struct InitiatorCounters {
  std::uint64_t requests = 0;
  std::uint64_t data = 0;
  std::uint64_t completed = 0;    // with an answer, of whatever status
  std::uint64_t stray = 0;        // no such operation open: late, doubled, replayed
  std::uint64_t stray_pulls = 0;  // of these, a target's asking for data
  std::uint64_t unauthentic = 0;  // tag or checksum wrong
  std::uint64_t mismatched = 0;   // not of the operation's node, region, key or form
  std::uint64_t refused_in_clear = 0;

  template <class Visit>
  void for_each(Visit visit) const {
    visit("requests", "requests sent", requests);
    visit("data", "data of writes sent", data);
    visit("completed", "operations that an answer ended", completed);
    visit("stray", "answers to no open operation", stray);
    visit("stray_pulls", "of these, pulls", stray_pulls);
    visit("unauthentic", "answers that were forged or damaged", unauthentic);
    visit("mismatched", "answers that do not fit their operation", mismatched);
    visit("refused_in_clear", "refusals in clear", refused_in_clear);
  }
};

class Initiator {
 public:
  // The window outlives the initiator.
  Initiator(const InitiatorConfig& config, SolicitationWindow& window);
  ~Initiator();

  // What is to be asked of `peer` under this grant.
  GrantId add_grant(const Peer& peer, const Grant& grant);
  // After a Rekey: operations issued from now on use the new key; those under way are still believed under the old one.
  void replace_grant(GrantId id, const Grant& grant);
  const Grant& grant(GrantId id) const;

  // False: no slot or no place in the ring now.
  bool issue(Time now, const Command& command) { return slots_.issue(now, command); }

  // The frame is edited in place. REQUIRES: parse() said kOk and a kind that is not to a target.
  void on_message(Time now, MutableBytes frame, const Message& message);
  // One frame; false: nothing to send now, or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink);
  Time next_deadline() const { return slots_.next_deadline(); }
  void on_deadline(Time now) { slots_.expire(now); }

  CommandSlots& slots() { return slots_; }
  const InitiatorCounters& counters() const { return counters_; }

 private:
  struct Held;

  Header header_of(const Slot& slot, const Grant& grant, Kind kind) const;
  bool send_request(Time now, Slot& slot, port::FrameSink& sink);
  bool send_data(Time now, Slot& slot, port::FrameSink& sink);
  void on_refusal(Time now, MutableBytes frame, const Message& message, Slot& slot);
  void on_pull(Time now, const Message& message, Slot& slot);
  void forget_pulled();
  void on_answer(Time now, MutableBytes frame, const Message& message, Slot& slot);

  InitiatorConfig config_;
  FrameWriter writer_;
  CommandSlots slots_;
  std::vector<std::unique_ptr<Held>> grants_;
  std::vector<OpId> pulled_;  // asked for their data, in turn: a ring
  std::uint64_t pulled_in_ = 0;
  std::uint64_t pulled_out_ = 0;
  InitiatorCounters counters_;
};

}  // namespace sluice::onerma
