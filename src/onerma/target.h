// Target: requests in, answers out. It needs nothing of an initiator: a read is forgotten when it is answered, a write or Rekey when its
// data have come or its time is over. Of its requests it remembers that they have come, as long as it can.
//
// Read:       request -> queued -> response, sealed under a counter that is used once.
// Write:      request -> queued -> window and a place -> kPull -> kData that carries the pull's counter, once -> memory -> kCompletion.
//             Data that come twice, late, or for another pull are refused as a replay.
//             A request whose data have been asked for, and have not come, gets no second place: replays of one hold one. If it comes from
//             another MAC, which nothing authenticates, the same pull goes there, too: who overtakes a request keeps nobody from its data.
// Again:      a sealed request is obeyed once (seen_requests.h). A copy is counted and not answered, but one of a write under way, above; one of a
//             write that still waits is told at its turn. What was shed or refused has not been obeyed.
// Sheds:      kRefusal, before any cryptography: a read that finds more than `nack_bytes` of answers before it, or half of the queue full of
//             answers; a write or Rekey when more than `nack_bytes` of data wait to be asked for and its line (Shares) has more than its part
//             of those, or has as many requests as the lines have places left. A quarter of the queue takes refusals and pulls besides, the
//             last what ends writes.
// Shares:     requests that wait to be pulled stand in kShares lines, by initiator. The line that has least of the window is next, and room for
//             one operation is left for a line that has none: who asks for much, or gives no data for all that he has asked, takes from
//             others no more than their part of what is free, and keeps who comes then waiting for a `pull_timeout` at most, where two do so
//             or the window is small. Whose numbers fall into one line share it.
// Refuses:    authentic but wrong: kCompletion, sealed (bad bounds, right missing, a key of before the Rekey). Not authentic: kRefusal.
// Errors:     never fails on input; every refusal is counted.
// Threads:    one owner; nothing is allocated after set-up.
// Limits:     TargetConfig; queues are fixed.
// Source:     1RMA §5.1 (Figure 7), §5.2, §6.1 (4); docs/design/onerma.md.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "onerma/index_fifo.h"
#include "onerma/message.h"
#include "onerma/regions.h"
#include "onerma/seen_requests.h"
#include "onerma/window.h"
#include "port/port.h"

namespace sluice::onerma {

struct TargetConfig {
  wire::MacAddress mac{};
  wire::Ipv4Address ip{};
  Boot boot{};
  bool allow_plain = false;                            // requests without any protection are obeyed
  std::uint64_t nack_bytes = 128 << 10;                // (time-out - RTT - dispatch time-out) x bandwidth, §6.1 (4)
  Duration pull_timeout = Duration::microseconds(25);  // not above the initiators' time-out
  std::uint16_t pulls = 256;                           // solicited at once
  std::uint32_t queue = 4096;                          // answers, and requests that wait to be pulled
  std::uint32_t remembered = 1024;  // initiators, for each region, whose requests are told from replays
};

struct TargetCounters {
  std::uint64_t reads = 0;  // answered
  std::uint64_t writes = 0;
  std::uint64_t rekeys = 0;
  std::uint64_t pulls = 0;
  std::uint64_t pull_timeouts = 0;
  std::uint64_t nacks = 0;
  std::uint64_t forged = 0;   // tag wrong, no such region, or of no generation that we know
  std::uint64_t old_key = 0;  // sealed under the key of before the last Rekey
  std::uint64_t plain_refused = 0;
  std::uint64_t replays = 0;         // data twice, late, or for another pull
  std::uint64_t doubled = 0;         // requests whose data had been asked for and had not come yet
  std::uint64_t requests_again = 0;  // replayed, doubled on the way, or too late to be told from those
  std::uint64_t bad_bounds = 0;
  std::uint64_t right_missing = 0;
  std::uint64_t dropped = 0;  // answers for which there was no place

  template <class Visit>
  void for_each(Visit visit) const {
    visit("reads", "reads answered", reads);
    visit("writes", "writes executed", writes);
    visit("rekeys", "keys changed", rekeys);
    visit("pulls", "data asked for", pulls);
    visit("pull_timeouts", "data asked for that did not come", pull_timeouts);
    visit("nacks", "requests shed", nacks);
    visit("forged", "messages that are not authentic", forged);
    visit("old_key", "messages under the key before the Rekey", old_key);
    visit("plain_refused", "plain messages refused", plain_refused);
    visit("replays", "data refused as replays", replays);
    visit("doubled", "requests doubled or replayed while their data were asked for", doubled);
    visit("requests_again", "requests not answered since they had been, or were too late to tell", requests_again);
    visit("bad_bounds", "requests outside their region", bad_bounds);
    visit("right_missing", "requests without the right", right_missing);
    visit("dropped", "answers dropped for want of a place", dropped);
  }
};

class Target {
 public:
  // Regions and window outlive the target.
  Target(const TargetConfig& config, Regions& regions, SolicitationWindow& window);

  // The frame is edited in place. REQUIRES: parse() said kOk and a kind that is to a target.
  void on_message(Time now, MutableBytes frame, const Message& message);
  // One frame; false: nothing to send now, or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink);
  Time next_deadline() const;
  void on_deadline(Time now);

  // Bytes of answers that wait to be sent.
  std::uint64_t queued_bytes() const { return queued_bytes_; }
  // Writes and Rekeys that are under way: all that there is besides regions.
  std::size_t open_pulls() const { return places_.size() - free_.size(); }
  const TargetCounters& counters() const { return counters_; }

 private:
  // A request that has been believed, or its answer.
  struct Job {
    Kind kind{};  // of the answer
    Status status = Status::kOk;
    OpKind op{};
    Rights rights{};
    bool plain = false;
    bool of_data = false;  // kCompletion
    bool again = false;    // a copy of a request that has come before
    std::uint16_t place = 0;
    std::uint32_t length = 0;
    Peer to{};
    OpId id{};
    InitiatorId initiator{};
    RegionId region{};
    Generation generation{};
    std::uint64_t address = 0;
    std::uint64_t counter = 0;  // kPull
    Echo echo{};                // kRefusal
  };
  struct Ring {
    explicit Ring(std::size_t size) : jobs(size) {}
    bool empty() const { return in == out; }
    std::size_t size() const { return static_cast<std::size_t>(in - out); }
    bool full() const { return size() == jobs.size(); }
    Job& front() { return jobs[out % jobs.size()]; }
    void push(const Job& job) { jobs[in++ % jobs.size()] = job; }
    void pop() { ++out; }

    std::vector<Job> jobs;
    std::uint64_t in = 0;
    std::uint64_t out = 0;
  };
  struct Waiting {
    Job job{};
    std::uint16_t next = kNoIndex;
    std::uint16_t previous = kNoIndex;
  };
  static constexpr std::uint32_t kShares = 32;
  // Of the initiators whose numbers fall together.
  struct Share {
    IndexFifo<Waiting> line{};
    std::uint32_t waiting = 0;
    std::uint64_t waiting_bytes = 0;
    std::uint64_t held = 0;  // of the window, by pulls under way
  };
  // What is left free for a share that holds nothing.
  struct Spare {
    std::size_t places = 0;
    std::uint32_t bytes = 0;
  };
  // Data that have been asked for.
  struct Place {
    Job job{};
    Time expires;
    bool open = false;
    std::uint16_t next = kNoIndex;
    std::uint16_t previous = kNoIndex;
    std::uint16_t alike = kNoIndex;  // the next open one in its bucket
  };
  enum class Sent : std::uint8_t { kYes, kFull, kDropped };
  enum class Seal : std::uint8_t { kGood, kOldKey, kForged };

  static Job job_of(const Message& message, Kind answer);
  Seal check(MutableBytes frame, const Message& message);
  void on_request(Time now, MutableBytes frame, const Message& message);
  void on_data(Time now, MutableBytes frame, const Message& message);
  Status judge(const Job& job);
  bool is_first(const Message& message);
  Status execute(const Job& job, MutableBytes body);
  void refuse(MutableBytes frame, const Message& message, Status status);
  std::size_t room_for(Kind answer) const;
  void answer(const Job& job);
  void complete(Job job, Status status);
  void complete_data(Job job, Status status);
  void close(std::uint16_t place);
  void start_pulls(Time now);
  void pull(Time now, Job& job);
  static std::uint32_t share_of(InitiatorId initiator);
  std::uint32_t next_share() const;
  bool is_crowded(const Message& message) const;
  void wait(const Job& job);
  Job take_waiting(std::uint32_t share);
  std::size_t bucket_of(const Job& job) const;
  Place* asked_as(const Job& job);
  void on_double(const Job& job, const Place& first);
  Sent send(Job job, port::FrameSink& sink);
  bool is_over(Time now, const Job& job) const;
  bool prepare(Job& job, Sealer*& sealer);

  TargetConfig config_;
  Regions& regions_;
  SolicitationWindow& window_;
  FrameWriter writer_;
  SeenRequests seen_;
  Ring answers_;
  std::vector<Waiting> waiting_;  // to be pulled
  std::vector<std::uint16_t> free_waiting_;
  std::array<Share, kShares> shares_{};
  std::uint32_t lines_ = 0;  // a bit for each share in which somebody waits
  std::uint32_t turn_ = 0;   // the share that comes first where several have as little
  std::vector<Place> places_;
  std::vector<std::uint16_t> free_;
  Spare spare_;
  std::vector<std::uint16_t> alike_;  // open places by initiator and operation: buckets
  IndexFifo<Place> asked_;            // those that are open, in the order of asking
  std::uint64_t counter_ = 0;
  std::uint64_t queued_bytes_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  TargetCounters counters_;
};

}  // namespace sluice::onerma
