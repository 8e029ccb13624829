// Rule: what the box knows about one application's packets. One class, one file, fixtures of its own.
//
// Life:       the box has parsed a packet, knows its connection and has put it in order; the rule judges it, may edit it, and may say
//             that it has to wait. What waits is judged anew after the rule has named its direction in `ready`.
// Invariant:  a rule answers kPlain, kRepeated or kResponse to what is none of its business, and has then changed nothing.
// Threads:    the box's owner. No allocation after construction.
// Source:     docs/design/swordbox.md: rules per application.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"
#include "port/port.h"
#include "swordbox/connections.h"
#include "swordbox/memory_use.h"
#include "swordbox/verdict.h"
#include "swordbox/waiting.h"
#include "wire/frame.h"

namespace sluice::swordbox {

// One packet of a known connection.
struct Judged {
  Judged(std::uint8_t* the_frame, wire::ParsedFrame& the_parsed, Connection& the_connection, Crossing crossing,
         bool there_is_room)
      : frame(the_frame),
        parsed(the_parsed),
        connection(the_connection),
        index(crossing.connection),
        end(crossing.end),
        can_hold(there_is_room) {}

  std::uint8_t* frame;
  wire::ParsedFrame& parsed;
  Connection& connection;
  ConnectionIndex index;
  std::uint8_t end;  // that it goes to
  bool can_hold;     // there is room for it to wait

  wire::Psn psn() const { return parsed.psn; }
  // REQUIRES: a READ request, or the first packet of a WRITE.
  wire::Reth reth() const {
    const std::uint8_t* const p = frame + parsed.extended_offset();
    return {load_be<std::uint64_t>(p), wire::RKey(load_be<std::uint32_t>(p + 8)), load_be<std::uint32_t>(p + 12)};
  }
};

// Tables up to so large are near anyhow, most of the time: asking for them beforehand costs more than it saves.
inline constexpr std::size_t kNearBytes = std::size_t{1} << 19;

constexpr DirectionToken token(ConnectionIndex connection, std::uint8_t end) { return connection * 2 + end; }

class Rule {
 public:
  virtual ~Rule() = default;

  // Brings what judging a packet will look at nearer, before it is known whose it is. Asked when prefetch_steps() is more than one.
  virtual void prefetch_early(const std::uint8_t*, const wire::ParsedFrame&) const {}
  // The same when its connection is known, in steps: each needs what the one before has asked for. At most prefetch_steps(); false: this was
  // the last.
  virtual bool prefetch(const Judged&, int) const { return false; }
  virtual int prefetch_steps() const { return 0; }
  // The next request in order.
  virtual Verdict on_request(Time now, const Judged& packet) = 0;
  // A request that was forwarded before.
  virtual Verdict on_repeated_request(Time now, const Judged& packet) = 0;
  // The request that it has just let go leaves with another number than its client gave it, `psn`.
  virtual void on_renumbered(const Judged&, Psn) {}
  // A request of a connection whose other end is not known yet: its answer will not be recognised.
  virtual Verdict on_stranger_request(Time now, const Judged& packet) = 0;
  // The next request in order, while the box is off: nothing new begins, but what has begun must not be disturbed.
  virtual Verdict on_request_while_off(Time, const Judged&) { return Verdict::kOff; }
  // Whether the rule watches this memory.
  virtual bool watches(const NetAddress& server, wire::RKey rkey) = 0;
  // Whether it watches any memory of this node.
  virtual bool watches(const NetAddress& server) const = 0;
  // Whether a request that is out of order may pass untouched.
  virtual bool may_pass_out_of_order(const Judged& packet) = 0;
  // ACK, NAK, READ response, Atomic ACK. `packet.end` is the requester's. Each is observed when it comes, even if it then has to wait
  // behind others; whether it may pass is asked when it is its turn, perhaps again and again.
  virtual void observe_response(Time now, const Judged& packet) = 0;
  virtual Verdict on_response(Time now, const Judged& packet) = 0;
  virtual void on_connection_gone(ConnectionIndex connection) = 0;
  // Whether anything under way depends on something else that is: when the rule goes, who is answered then must not be told.
  virtual bool has_open_links() const { return false; }
  // The box is switched off, or on again: what passed meanwhile was not seen.
  virtual void forget_all() = 0;

  // Directions whose waiting packets may now go; taken and cleared by the box.
  std::vector<DirectionToken>& ready() { return ready_; }

  virtual void account(std::vector<MemoryUse>&) const {}

  virtual Time next_deadline() const { return Time::never(); }
  // Packets that the rule itself makes go into `outbox`.
  virtual void on_deadline(Time now, port::FrameSink& outbox) = 0;

 protected:
  std::vector<DirectionToken> ready_;
};

}  // namespace sluice::swordbox
