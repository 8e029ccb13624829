// Box: SwordBox's pipeline: parse -> connection -> retransmission? -> rule -> edit and patch -> out, over bursts, in place.
//
// Life:       process(burst) for all that crosses; on_deadline() when next_deadline() has come.
// Order:      packets of one direction of a connection leave in order. What was made or held goes to the outbox, which the caller sends
//             after the burst; nothing is let go before the burst has been judged.
// Invariant:  a packet is edited in place, grows only into room that its buffer has, and its ICRC is patched, not recomputed: damage stays visible.
// Errors:     never fails on input: a Verdict each.
// Threads:    one owner, no locks. No allocation after construction.
// Limits:     BoxConfig.
// Source:     SwordBox §4; docs/design/swordbox.md.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "port/port.h"
#include "swordbox/connections.h"
#include "swordbox/hold.h"
#include "swordbox/multiplexer.h"
#include "swordbox/rule.h"
#include "swordbox/verdict.h"

namespace sluice::swordbox {

struct Packet {
  port::Frame frame{};
  Action action =
      Action::kForward;  // after process(): kForward, or kDrop (dropped, given to others or taken to be held)
  Verdict verdict{};
};

// For status lines.
struct BusyConnection {
  wire::Gid from{};
  wire::Gid to{};
  std::uint32_t from_qpn = 0;
  std::uint32_t to_qpn = 0;
  ConnectionUse use{};
};

// A connection of which the box sees one direction only: asymmetric routing.
struct OneWay {
  wire::Gid from{};
  wire::Gid to{};
  bool answers_missing = false;  // the requests come by and not the answers; else the other way round
};

struct BoxConfig {
  ConnectionLimits connections{};
  std::uint32_t held_frames = 1024;
  bool on = true;
  // Requests that wait are dropped when nothing was heard of their connection for so long: their client may have given up, and must
  // not be surprised by their late execution. More than its time-out, less than what the store allows for flight.
  Duration stale_after = Duration::milliseconds(250);
  // Packets with a wrong ICRC pass untouched and change nothing. For links without a check of their own (FCS, UDP checksum).
  bool verify_icrc = false;
  // A steering box before this one was lost with its state: until then connections that have not been announced since may neither read
  // watched memory nor change it by atomics, nor hear of what they did. At least as long as a queue pair's retries last.
  Time fenced_until{};
  // Until then connections that have not been announced are shut out of the memory nodes that the multiplexer watches: their numbers may
  // have been translated, by a box before this one or before they were forgotten for their silence. That does not pass, so Time::never();
  // only where all connections are known to be new may it be less.
  Time numbers_fenced_until = Time::never();
  // The network is not the box's own: packets may take ways around it. See one_way().
  bool watch_paths = false;
};

class Box final : private Connections::Observer {
 public:
  // Without a rule the box only watches.
  explicit Box(const BoxConfig& config);
  ~Box() override;
  Box(const Box&) = delete;
  Box& operator=(const Box&) = delete;

  // In the place of the rule so far, if any: what that one made wait is dropped, and until `fenced_until` connections are treated as after
  // the loss of a box if they had something under way while there were links that were not acknowledged.
  void set_rule(std::unique_ptr<Rule> rule) { set_rule(std::move(rule), config_.fenced_until); }
  void set_rule(std::unique_ptr<Rule> rule, Time fenced_until);
  Rule* rule() { return rule_.get(); }
  // REQUIRES: before the first packet.
  void set_multiplexer(std::unique_ptr<Multiplexer> multiplexer) { multiplexer_ = std::move(multiplexer); }
  Multiplexer* multiplexer() { return multiplexer_.get(); }

  void process(Time now, std::span<Packet> burst, port::FrameSink& outbox);
  Time next_deadline() const;
  void on_deadline(Time now, port::FrameSink& outbox);

  // Off: nothing new is steered or held; retransmissions still go where the originals went, gates stay until they are open.
  void switch_on(bool on);
  bool on() const { return on_; }
  // Off: operations on words go on their clients' own connections; numbers stay translated until those connections end.
  void share_words(bool on) { share_words_ = on && !one_way_; }
  bool shares_words() const { return share_words_; }
  // Something: an announced connection to memory that the multiplexer watches has had packets of one direction only for kPathRounds times
  // kAgeing, and they kept coming. Nothing that depends on seeing all is done from then on, until the box is made anew: words are not shared, and
  // connections whose numbers are not translated pass untouched. What takes neither direction through the box it cannot find out.
  const std::optional<OneWay>& one_way() const { return one_way_; }
  // Whether what is usual is judged in one go; that it makes no difference but for time is for tests to show.
  void take_short_cuts(bool on) { short_cuts_ = on; }
  // So many packets may wait; at most what the box was made with. Fewer than wait now: those go on waiting.
  void set_held_frames(std::uint32_t most);
  std::uint32_t held_frames() const { return config_.held_frames; }
  Connections& connections() { return connections_; }
  const Connections& connections() const { return connections_; }
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }
  std::size_t held() const { return hold_.used(); }
  // The `most` connections with the most requests, busiest first; none that has had no packets.
  std::vector<BusyConnection> busiest(std::size_t most) const;
  // What its tables take; it takes no more while it runs.
  std::vector<MemoryUse> account() const;

 private:
  static constexpr Duration kAgeing = Duration::milliseconds(100);
  static constexpr std::uint8_t kPathRounds = 2;
  // In which nobody is let go: more than there are shared connections that may be left.
  static constexpr int kIdleRounds = 64;
  // How a connection stood when its paths were looked at last.
  struct Path {
    std::uint32_t generation = 0;
    std::uint32_t packets = 0;  // all of one direction; 0: of both, or none
    std::uint8_t rounds = 0;    // in which more came
  };

  // What is found out about a whole burst before its first packet is judged, so that memory is on its way meanwhile.
  struct Prepared {
    wire::ParsedFrame parsed;
    wire::Verdict verdict{};
    bool reliable = false;
    Connections::EndKey key;
    Crossing crossing;
    bool names_word = false;
    WordIndex word_guess = kNone;
    std::uint64_t word_asked = 0;
    std::optional<Judged> judged;
    bool needs_step = false;  // the rule has more to ask for
  };
  static constexpr std::size_t kStage = 32;

  void process_stage(Time now, std::span<Packet> packets, port::FrameSink& outbox);
  void process_stage_on_new_machine(Time now, std::span<Packet> packets, port::FrameSink& outbox);
  void do_stage(Time now, std::span<Packet> packets, port::FrameSink& outbox);
  void look_up(const port::Frame& frame, Prepared& prepared);
  bool judge_at_once(Time now, Packet& packet, Prepared& prepared, bool fenced, port::FrameSink& outbox);
  void account(ConnectionIndex connection, bool is_request, Verdict verdict);
  Verdict judge(Time now, const port::Frame& frame, Prepared& prepared, port::FrameSink& outbox);
  Verdict judge_other(Time now, const port::Frame& frame, const Prepared& prepared, port::FrameSink& outbox);
  Verdict judge_unknown_opcode(const port::Frame& frame, const wire::ParsedFrame& parsed) const;
  bool is_fenced(const std::uint8_t* frame, const wire::ParsedFrame& parsed, Crossing crossing);
  Verdict judge_homeless(const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  bool has_strange_numbers(const std::uint8_t* frame, const wire::ParsedFrame& parsed, Crossing crossing) const;
  Verdict judge_known(Time now, const port::Frame& frame, const Judged& packet, port::FrameSink& outbox);
  Verdict judge_request(Time now, const Judged& packet, port::FrameSink& outbox);
  Verdict judge_repeated(Time now, const Judged& packet, port::FrameSink& outbox);
  Verdict judge_next(Time now, const Judged& packet, bool complete);
  bool is_apart(const Judged& request) const {
    return one_way_ && multiplexer_ && !multiplexer_->translates_request(request);
  }
  void look_at_paths();
  void note_progress(Time now, const Judged& packet);
  Verdict judge_response(Time now, const Judged& packet);
  static Verdict judge_behind_held(const Judged& packet);
  Verdict hold(const port::Frame& frame, const Judged& packet, Verdict verdict);
  void release(Time now, port::FrameSink& outbox);
  bool release_ready(Time now, std::vector<DirectionToken>& ready, port::FrameSink& outbox);
  void release_direction(Time now, DirectionToken direction, port::FrameSink& outbox);
  bool send(const port::Frame& frame, port::FrameSink& outbox);
  void on_connection_gone(ConnectionIndex connection) override;

  BoxConfig config_;
  bool on_;
  bool share_words_ = true;
  bool short_cuts_ = true;
  Counters counters_;
  Connections connections_;
  HoldBuffer hold_;
  std::unique_ptr<Rule> rule_;
  std::unique_ptr<Multiplexer> multiplexer_;
  int steps_ = 0;  // of the rule's prefetching, in this burst
  Time now_;       // of the call under way
  std::vector<DirectionToken> releasing_;
  bool awake_ = false;       // some of those that were woken have not had their turn
  std::vector<Path> paths_;  // empty: nobody looks
  std::optional<OneWay> one_way_;
  std::vector<Prepared> prepared_ = std::vector<Prepared>(kStage);
  Time next_ageing_{};
};

}  // namespace sluice::swordbox
