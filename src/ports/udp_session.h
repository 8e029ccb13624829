// Who is at the other end of a UDP port, and is it still the same: hello, welcome, keep-alive, goodbye. No input or output.
//
// Life:       caller:  hello (with back-off) -> welcome -> up -> silence, refusal or goodbye -> down -> hello ...
//             callee:  hello -> up, welcome -> silence, refusal or goodbye -> down for good.
// Kinds:      hello      the caller sends it until it is welcomed; its session is new for each caller's life
//             welcome    the answer; from now on data flows both ways
//             keep-alive either end, after kKeepAlive in which it sent nothing
//             goodbye    the sender ends, or does not know the session that it was addressed with
// Invariant:  data counts only when both sessions are the current ones; so a peer that started anew is noticed at once.
// Errors:     a verdict for each header; resets counts how often a peer was lost or replaced.
// Threads:    one owner, no clock, no chance.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "ports/udp_container.h"

namespace sluice::ports {

class UdpSession {
 public:
  enum class Role : std::uint8_t { kCaller, kCallee };
  // What to do with the datagram: take its frames, nothing more, or count it as not meant for us.
  enum class Verdict : std::uint8_t { kTakeFrames, kDone, kStale };

  static constexpr Duration kKeepAlive = Duration::seconds(1);
  static constexpr Duration kSilence = Duration::milliseconds(3500);
  static constexpr Duration kFirstHello = Duration::milliseconds(10);
  static constexpr Duration kLastHello = Duration::milliseconds(500);

  // REQUIRES: own is not 0.
  UdpSession(Role role, SessionId own, Time now);

  Verdict on_header(Time now, const ContainerHeader& header);
  // The host at the other end says that nobody is at that port.
  void on_refused(Time now);
  void on_deadline(Time now);
  Time next_deadline() const;
  // Frames were sent, so no keep-alive is needed.
  void on_data_sent(Time now) { last_sent_ = now; }
  // A datagram without frames to be sent now, until there is none.
  std::optional<ContainerHeader> poll_transmit(Time now);

  // What a callee says to one whose session it does not know: begin anew.
  static ContainerHeader stranger_reply(const ContainerHeader& header);

  bool up() const { return up_; }
  std::uint64_t resets() const { return resets_; }
  ContainerHeader header(ContainerKind kind) const { return {.kind = kind, .sender = own_, .receiver = peer_}; }

 private:
  Verdict on_hello(Time now, const ContainerHeader& header);
  Verdict on_welcome(Time now, const ContainerHeader& header);
  bool is_current(const ContainerHeader& header) const;
  void rise(Time now, SessionId peer);
  void fall(Time now);

  Role role_;
  SessionId own_;
  SessionId peer_;
  bool up_ = false;
  std::optional<ContainerHeader> reply_;
  Time last_heard_;
  Time last_sent_;
  Time next_hello_;
  Duration hello_interval_ = kFirstHello;
  std::uint64_t resets_ = 0;
};

}  // namespace sluice::ports
