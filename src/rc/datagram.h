// Datagram half of a UD queue pair: one packet a message, to anyone, without promises.
//
// Life:       post (with a destination) -> poll_transmit -> completion at once;  on_datagram -> receive completion.
// Invariant:  a datagram with a wrong Q_Key or without a receive buffer is dropped and counted.
// Errors:     a message to an address that nobody has ends with kRetryExceeded; so does every other to it within kAbsence. What waits
//             behind it waits once: the next kAhead destinations are looked for at the same time. Local memory that is not ours
//             stops the send queue (SQE).
// Units:      messages of at most one path MTU; a receive buffer holds 40 bytes of GRH before the message.
// Threads:    one owner.
// Source:     IBTA vol. 1 §9.8.3 (UD), A17.4.5 (GRH of RoCEv2).
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "rc/connection.h"
#include "rc/receive_queue.h"
#include "rc/send_queue.h"

namespace sluice::rc {

class DatagramHalf {
 public:
  DatagramHalf(Connection& connection, SharedReceiveQueue& receives, std::uint32_t depth, std::uint32_t max_sges,
               std::uint32_t max_inline);

  // `source` is who we are; its destination fields are filled for each message.
  void start(const wire::AddressVector& source, Psn first);
  // Counts from RTR on: one who only receives never starts.
  void set_qkey(wire::QKey qkey) { qkey_ = qkey; }
  // What resolves a destination without MAC; returns nothing while unknown (and has it resolved).
  using Resolve = std::function<std::optional<wire::MacAddress>(Time, const wire::Gid&)>;
  void set_resolver(Resolve resolve) { resolve_ = std::move(resolve); }

  PostError post(const SendRequest& request);
  // What that would return.
  PostError check(const SendRequest& request) const;
  bool can_transmit(Time now) const { return queue_.size() != 0 && now >= retry_at_; }
  bool poll_transmit(Time now, port::FrameSink& sink);
  void on_datagram(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  // What the oldest message waits for; never() while it does not.
  Time next_deadline() const { return retry_at_ == Time() ? Time::never() : retry_at_; }
  void on_deadline(Time now) {
    if (retry_at_ <= now) retry_at_ = Time();
  }
  // Where `gid` is has become known, or that nobody is there. True: there may be something to send now.
  bool on_resolution(Time now, const wire::Gid& gid, bool found);

  void flush();
  void reset();
  std::uint32_t queue_length() const { return queue_.size(); }

 private:
  const wire::Gid& source_of(const UdDestination& to) const {
    return to.source == wire::Gid{} ? source_.source : to.source;
  }
  // An address that nobody had, and until when that is believed.
  struct Absent {
    wire::Gid gid{};
    Time until{};
  };
  const UdDestination& destination_of(std::uint32_t index) const {
    return destinations_[index & (destinations_.size() - 1)];
  }
  void complete_head(CompletionStatus status);
  void await_head(Time now);
  bool find_route(Time now, const UdDestination& to, wire::AddressVector& route);
  bool is_absent(Time now, const wire::Gid& gid) const;
  void fail_absent(Time now);

  Connection& connection_;
  SharedReceiveQueue& receives_;
  SendQueue queue_;
  std::vector<UdDestination> destinations_;  // beside queue_
  std::vector<LocalPiece> receive_pieces_;
  wire::AddressVector source_;
  wire::QKey qkey_{};
  Psn next_psn_{};
  Resolve resolve_;
  Time retry_at_{};  // the head's destination is being resolved; zero: it is not
  static constexpr std::uint32_t kAhead = 16;
  static constexpr Duration kAbsence = Duration::seconds(1);
  std::array<Absent, kAhead> absent_{};
  std::uint32_t next_absent_ = 0;  // the place in absent_ that is written next
};

}  // namespace sluice::rc
