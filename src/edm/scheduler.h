// The scheduler in the switch: which host may send a chunk of which message to which other, so that no port is asked for two at once.
//
// Life:       notify(now, demand) for every /N/ and every RREQ that comes in -> when next_deadline() is due, on_deadline(now) ->
//             poll_grant() until it says no: a /G/, or the buffered RREQ, goes to each grant's source.
// Order:      a destination's waiting messages stand in its notification queue, one of each source at a time: the oldest of that pair. So
//             messages of one pair are never reordered, whatever the policy.
// Matching:   kPim is the paper's: iterations of three cycles; in each, every free destination asks the source of its most urgent message
//             whose source is free (cycle 1), every source that was asked grants the most urgent (cycle 2), both ports become busy (3).
//             In hardware, cycle 2 is a priority encoder over an array a source, ordered as `by_source_` is; the least key among the
//             requests is the same request, and cheaper in software. kGreedy is the idealised one, which matches in no time: always the
//             most urgent message of all whose ports are free.
// Release:    ports are free again after the chunk's time on the wire, l/B, counted from the grant: the next chunk's first bit then follows
//             the last of this one.
// Starvation: ports become free one at a time. If a message's two ports are always free at different instants, other messages take each of
//             them for ever, first come, first served or not; the paper does not say so. With `patience`, a port that becomes free stays
//             free for a message that has waited so long, if no other is more urgent at either of its ports: then each message goes.
// Invariant:  a port is source of one chunk at most, and destination of one at most, at any time. At rest there is no message with both ports
//             free (the matching is maximal), ports that are held apart.
// X:          of a pair's messages, X writes and X responses at most: those of the source, and the reads that the destination has asked for, each
//             of which keep to X by themselves. Counted apart, since a reader whose timers end asks anew while its old requests still wait
//             here: it can have reads of its own refused by that, never what the other host writes.
// Numbers:    those that wait are ordered by numbers, which begin anew when nothing waits. Who always has something waiting uses them up in the end
//             (in days, at a million demands a second): then those that wait are numbered anew, in their order.
// Errors:     notify() refuses with a verdict, and counts; nothing else can go wrong by input.
// Threads:    one owner, no locks. No allocation after construction, but to number anew.
// Limits:     2 * X messages a pair, so 2 * X * ports a queue (the paper's has X * ports).
// Source:     EDM §3.1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "edm/ordered_list.h"
#include "edm/port_set.h"
#include "edm/types.h"

namespace sluice::edm {

enum class Policy : std::uint8_t {
  kFirstCome,          // FCFS: for light tails
  kShortestRemaining,  // SRPT: for heavy tails
};
enum class Matching : std::uint8_t { kGreedy, kPim };
// When an iteration of PIM may begin: at every third cycle of a clock that runs on, or, when none is under way, at once.
enum class Iterations : std::uint8_t { kFreeRunning, kOnDemand };

struct SchedulerConfig {
  std::uint32_t ports = 144;
  std::uint32_t active_per_pair = 3;  // X, of writes and of responses each; at most 127
  Policy policy = Policy::kShortestRemaining;
  Matching matching = Matching::kPim;
  std::uint32_t chunk_bytes = 256;                   // a multiple of 8
  Duration block_time = Duration::picoseconds(640);  // eight bytes on the wire
  std::uint32_t framing_blocks = 0;                  // of a chunk, besides its bytes
  // Left free after a chunk, at both its ports, for /N/ and RREQs on the way up and /G/ on the way down. The paper has 0: then requests find no
  // gap behind a long message, and grants push chunks back one block each.
  std::uint32_t gap_blocks = 0;
  // A response's first bytes come so much later after its grant than others do: its RREQ is longer than a /G/, and memory takes time. Ports
  // stay taken for that time too; without it, chunks would meet in the switch.
  Duration response_lead{};
  Duration iteration = Duration::picoseconds(1'000);  // three cycles of the scheduler's clock
  Iterations iterations = Iterations::kFreeRunning;
  Duration patience{};  // see "Starvation"; 0: never hold a port, as the paper has it
  // Of software, which comes late to on_deadline(): ports that were free all that time are granted as of so long ago at most, or a port
  // would be sent at once what it would have been sent meanwhile.
  Duration most_late = Duration::seconds(1000);
  // Numbers of messages, until those that wait are numbered anew; more than can wait at once, at most 2^40.
  std::uint64_t numbers = std::uint64_t{1} << 40;
};

// The least chunk that keeps a link busy while the next maximal matching forms: log2(ports) iterations on average, rounded up to
// bursts of DDR4 (64 B). 128 B for 512 ports of 100 Gb/s at 3 GHz (EDM §3.1.3).
std::uint32_t minimum_chunk_bytes(std::uint32_t ports, Duration iteration, Duration block_time);

enum class NotifyVerdict : std::uint8_t {
  kAccepted,
  kNoSuchPort,
  kToItself,
  kEmpty,
  kTooLong,
  kTooManyActive,  // the sender has X messages of this pair and kind here already
  kCount,
};

class Scheduler {
 public:
  struct Counters {
    std::array<std::uint64_t, static_cast<std::size_t>(NotifyVerdict::kCount)> notified{};
    std::uint64_t grants = 0;
    std::uint64_t granted_bytes = 0;
    std::uint64_t rounds = 0;    // of matching; iterations of PIM
    std::uint64_t requests = 0;  // that destinations made in them
    std::uint64_t holds = 0;     // of a port, for a message that had waited too long
    std::uint64_t dropped = 0;   // messages of ports that were forgotten
    std::uint64_t withdrawn = 0;
    std::uint64_t renumbered = 0;  // all that waited
  };

  explicit Scheduler(const SchedulerConfig& config);

  NotifyVerdict notify(Time now, const Demand& demand);
  // When on_deadline() has something to do; never() when only notify() can change that.
  Time next_deadline() const;
  // Lets time pass. May stop early when grants wait to be polled; next_deadline() is then in the past.
  void on_deadline(Time now);
  bool poll_grant(Grant& out);

  // Takes back the oldest demand of a pair and kind for what is still to be granted of it; of responses one that has had no grant, for who has had one
  // has been asked. False: there is none.
  bool withdraw(Time now, PortId source, PortId destination, DemandKind kind);

  // What was granted last of a pair will not come: both its ports are free from now on. False: they were.
  bool free_early(Time now, PortId source, PortId destination);

  // Drops what waits for and from a host that is gone. Grants made stay made.
  void forget_port(Time now, PortId port);

  const SchedulerConfig& config() const { return config_; }
  const Counters& counters() const { return counters_; }
  // Bytes that were asked for and are not yet granted, of all messages; and of messages that wait, how many.
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }
  std::uint64_t waiting_messages() const { return waiting_messages_; }
  std::uint32_t active(PortId source, PortId destination, DemandKind kind) const {
    const Pair& queue = pair(source.value, destination.value);
    return kind == DemandKind::kWrite ? queue.writes : std::uint32_t{queue.count} - queue.writes;
  }
  bool source_free(PortId port) const { return free_sources_.has(port.value); }
  bool destination_free(PortId port) const { return free_destinations_.has(port.value); }
  // How long a chunk takes its ports.
  Duration time_taken(const Grant& grant) const {
    const bool leads = grant.first && grant.kind == DemandKind::kResponse;
    return wire_time(grant.bytes) + (leads ? config_.response_lead : Duration{});
  }
  Duration wire_time(std::uint32_t bytes) const {
    return config_.block_time *
           static_cast<std::int64_t>((bytes + 7) / 8 + config_.framing_blocks + config_.gap_blocks);
  }

 private:
  struct Message {
    Key key = 0;
    Time since{};
    std::uint32_t remaining = 0;
    MessageId id{};
    DemandKind kind{};
    bool granted = false;  // its first chunk
  };
  // The messages of one pair, oldest first, in a ring: both kinds, for neither overtakes the other.
  struct Pair {
    std::uint8_t head = 0;
    std::uint8_t count = 0;
    std::uint8_t writes = 0;  // of them
  };
  struct Release {
    Time at{};
    std::uint16_t source = 0;
    std::uint16_t destination = 0;

    friend bool operator>(const Release& a, const Release& b) { return a.at > b.at; }
  };
  // What a port that has become free could be matched with.
  struct Candidate {
    Key key = 0;
    std::uint16_t source = 0;
    std::uint16_t destination = 0;
    bool of_source = false;

    friend bool operator>(const Candidate& a, const Candidate& b) { return a.key > b.key; }
  };

  Pair& pair(std::uint32_t source, std::uint32_t destination) { return pairs_[source * config_.ports + destination]; }
  const Pair& pair(std::uint32_t source, std::uint32_t destination) const {
    return pairs_[source * config_.ports + destination];
  }
  Message& message(std::uint32_t source, std::uint32_t destination, std::uint32_t index) {
    const std::size_t which = std::size_t{source} * config_.ports + destination;
    std::uint32_t place = pairs_[which].head + index;
    if (place >= ring_) place -= ring_;
    return messages_[place * pair_count_ + which];
  }
  NotifyVerdict judge(const Demand& demand) const;
  Key key_of(std::uint32_t remaining, std::uint64_t sequence) const;
  void number_anew();
  void list_next(Time now, std::uint32_t source, std::uint32_t destination);
  void list(std::uint32_t source, std::uint32_t destination, Key key);
  void unlist(std::uint32_t source, std::uint32_t destination, Key key);
  void step(Time now);
  void release_due(Time now);
  void release(const Release& due);
  Release& whole(std::size_t index) { return whole_[(whole_head_ + index) % whole_.size()]; }
  void free_source(Time now, std::uint32_t port);
  void free_destination(Time now, std::uint32_t port);
  bool worth_waiting(Time now, std::uint32_t source, std::uint32_t destination);
  bool hold_source(const Release& due);
  bool hold_destination(const Release& due);
  void let_go_for(Time now, std::uint32_t source, std::uint32_t destination);
  void match_later(Time now);
  void match_greedily(Time now);
  void offer(std::uint32_t port, bool as_source);
  void match_once(Time now);
  void grant(Time at, std::uint32_t source, std::uint32_t destination);

  SchedulerConfig config_;
  std::uint32_t ring_;  // places of a pair
  std::size_t pair_count_;
  std::vector<Pair> pairs_;
  std::vector<Message>
      messages_;  // all pairs' first places, then their second ones: most pairs have one message at a time
  OrderedLists by_destination_;  // the notification queues
  OrderedLists by_source_;
  std::vector<PortSet> wanted_of_;  // by source: the destinations it has messages for
  PortSet free_sources_;
  PortSet free_destinations_;
  PortSet held_sources_;  // neither busy nor free
  PortSet held_destinations_;
  std::vector<std::uint16_t> source_held_for_;  // which destination
  std::vector<std::uint16_t> destination_held_for_;
  std::uint64_t sequence_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::uint64_t waiting_messages_ = 0;

  // Releases of whole chunks come in the order of their grants; those of a message's last bytes do not.
  std::vector<Release> whole_;  // a ring
  std::size_t whole_head_ = 0;
  std::size_t whole_count_ = 0;
  std::vector<Release> parts_;  // a heap, the earliest first

  Time match_at_ = Time::never();
  Time iterating_until_{};        // kPim
  PortSet touched_sources_;       // kGreedy: free, and perhaps matchable since the last match
  PortSet touched_destinations_;  // both
  std::vector<Candidate> candidates_;
  std::vector<Candidate> best_of_;  // kPim: by source, the most urgent request of this iteration
  PortSet asked_;

  std::vector<Grant> grants_;  // a ring
  std::size_t grants_head_ = 0;
  std::size_t grants_count_ = 0;
  Counters counters_;
};

}  // namespace sluice::edm
