// Neighbours: who has which IP address on our link. Answers ARP and IPv6 neighbour discovery for our own addresses, and finds the
// MACs of others.
//
// Life:       lookup() -> unknown -> resolve() -> solicitations leave by poll_transmit() -> an answer comes, or the last one
//             times out -> poll_resolution() tells.
// Invariant:  only what was asked for is ever learnt; what is known is corrected when its owner says so, and then told again.
// Errors:     malformed messages are dropped and counted. An address that nobody has: a Resolution without a MAC.
// Threads:    one owner.
// Limits:     `capacity` neighbours; the one heard of longest ago makes room, while more than half are known. kMaxAnswers
//             answers in line. Every address is taken to be on our link: there is no routing. Untagged frames only.
// Source:     RFC 826, RFC 5227 (ARP; §2.1.1: probes); RFC 4861 (neighbour discovery), §10 for the timing, quickened for a rack.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "port/port.h"
#include "wire/address.h"

namespace sluice::rc {

struct NeighborsConfig {
  wire::MacAddress mac{};
  std::vector<wire::Gid> own{};  // our addresses
  std::uint32_t capacity = 1024;
  Duration first_wait = Duration::milliseconds(20);  // for an answer; each further try waits twice as long
  Duration longest_wait = Duration::seconds(1);
  std::uint8_t tries = 8;
  Duration lifetime = Duration::seconds(600);  // what has not been heard of for so long is forgotten
};

struct Resolution {
  wire::Gid gid{};
  std::optional<wire::MacAddress> mac{};  // absent: nobody answered
};

struct NeighborCounters {
  std::uint64_t answered = 0;       // requests and solicitations for our addresses
  std::uint64_t solicitations = 0;  // sent
  std::uint64_t resolved = 0;
  std::uint64_t changed = 0;  // a known neighbour took another MAC
  std::uint64_t failed = 0;
  std::uint64_t malformed = 0;
  std::uint64_t unsolicited = 0;      // told us of addresses that we never asked for
  std::uint64_t conflicts = 0;        // somebody else claims one of our addresses
  std::uint64_t answers_dropped = 0;  // more questions at once than kMaxAnswers
  std::uint64_t evicted = 0;
};

class Neighbors {
 public:
  static constexpr std::size_t kMaxAnswers = 64;

  explicit Neighbors(const NeighborsConfig& config);

  // True if the frame was ARP or neighbour discovery, whatever became of it.
  bool on_frame(Time now, ByteView frame);

  // The MAC for frames to `gid`: our own for our own, the mapped one for multicast, or what is known.
  std::optional<wire::MacAddress> lookup(const wire::Gid& gid) const;
  // Asks for it, unless that is under way. A Resolution follows in any case.
  void resolve(Time now, const wire::Gid& gid);
  // Asks, and twice more, whether another has one of our IPv4 addresses; an answer counts as a conflict.
  void probe();
  // What has been found, changed or given up since the last call; one at a time.
  std::optional<Resolution> poll_resolution();

  bool poll_transmit(Time now, port::FrameSink& sink);
  // Neither poll_transmit nor poll_resolution has anything.
  bool idle() const { return to_ask_ == 0 && answers_.empty() && probes_.empty() && resolutions_.empty(); }
  Time next_deadline() const { return next_deadline_; }
  void on_deadline(Time now);

  bool is_own(const wire::Gid& gid) const;
  std::size_t size() const { return entries_.size(); }
  const NeighborCounters& counters() const { return counters_; }

 private:
  struct Entry {
    wire::Gid gid{};
    wire::MacAddress mac{};
    bool known = false;
    bool ask = false;  // a solicitation waits to be sent
    std::uint8_t tries = 0;
    Time deadline{};  // known: is forgotten; else: next try
  };
  struct Answer {
    wire::Gid own{};
    wire::Gid to{};
    wire::MacAddress to_mac{};
    bool solicited = true;
  };

  void on_arp(Time now, ByteView frame);
  void on_discovery(Time now, ByteView frame);
  void answer(const Answer& answer);
  void learn(Time now, const wire::Gid& gid, const wire::MacAddress& mac);
  Entry* find(const wire::Gid& gid);
  const Entry* find(const wire::Gid& gid) const;
  bool make_room();
  void tell(const Resolution& resolution);
  const wire::Gid* source_for(const wire::Gid& target) const;
  bool send_answer(port::FrameSink& sink, const Answer& answer) const;
  bool send_probe(port::FrameSink& sink, const wire::Gid& own) const;
  bool send_solicitation(port::FrameSink& sink, const wire::Gid& target) const;
  void plan();

  NeighborsConfig config_;
  std::vector<Entry> entries_;  // sorted by gid; reserved, never grows
  std::deque<Answer> answers_;
  std::deque<Resolution> resolutions_;
  static constexpr std::uint32_t kProbes = 3;  // PROBE_NUM: one may be lost
  static constexpr Duration kProbeEvery = Duration::milliseconds(200);
  void queue_probes();
  std::vector<wire::Gid> probes_;  // of ours, to be asked for
  std::uint32_t probe_rounds_ = 0;
  Time next_probe_ = Time::never();
  std::uint32_t to_ask_ = 0;  // entries whose `ask` is set
  Time next_deadline_ = Time::never();
  NeighborCounters counters_;
};

}  // namespace sluice::rc
