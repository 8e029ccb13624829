// Multiplexer: operations of many clients on tracked words, replaced by WRITEs of their outcome on one shared connection to the server.
//
// A request:  on a tracked word whose value is known -> the outcome is determined, the packet becomes a WRITE of it on the shared connection
//             (the carrier). On a word that is not known it passes by itself, on its client's connection; its answer tells the value.
// An answer:  the server's ACK of the WRITE becomes the Atomic ACK with the true prior value, in the client's own numbers.
// Order:      a client's operations are under way in one place at a time, its own connection or the carrier; a request for the other place
//             waits until all is answered (but an owner's own request may stand behind what was replaced on it). So RC's order holds for each
//             client, and answers come in order.
// Invariant:  on a carrier only operations travel that the box can repeat by itself: WRITEs of 8 bytes. A lost one it sends again.
// Invariant:  nobody is told an outcome that the server has not acknowledged.
// Losing one: a carrier that does not answer any more is cut off; after `flight` nothing of it can be executed late. Then the last values are
//             written over another carrier, and everybody is answered in order; without another, those operations are never answered.
// Errors:     a client that cannot be served rightly hears nothing more: its connection fails, retries exceeded.
// Threads:    the box's owner. No allocation after construction, but for the loss of a carrier.
// Limits:     MultiplexerConfig. A client's window is at most `ring` packets, or one READ of InEntry::kMostPackets.
// Source:     SwordBox §4.1-4.3, §4.5; docs/design/swordbox.md ("Multiplexing and atomic replacement").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/instructions.h"
#include "base/time.h"
#include "port/port.h"
#include "swordbox/connections.h"
#include "swordbox/numbering.h"
#include "swordbox/rule.h"
#include "swordbox/words.h"

namespace sluice::swordbox {

// Memory whose atomics the box may replace. Only atomics and WRITEs that cross the box change it.
struct WordRegion {
  wire::Gid server{};
  wire::RKey rkey{};
  std::uint64_t address = 0;
  std::uint64_t length = 0;  // 0: all that the key opens
  bool writable = false;     // the key allows remote WRITEs; else a WRITE must have shown it
};

struct MultiplexerConfig {
  std::vector<WordRegion> regions;  // at most kMaxRegions
  bool discover = false;            // every other one that is seen, too; whether it is writable has to be shown
  std::vector<wire::Gid> servers;   // … of these servers only
  std::uint32_t words = 1024;
  std::uint32_t ring = 128;           // packets of a client, a power of two, at most InEntry::kMostPackets
  std::uint32_t carriers = 16;        // at once
  std::uint32_t carrier_ring = 8192;  // packets on each
  std::uint32_t passes = 4096;        // operations that pass by themselves, at once
  std::uint32_t long_writes = 1024;   // WRITEs of more than a word that are followed, at once
  std::uint32_t lines = 1u << 14;     // a power of two: places told apart when there are more
  Duration repair_after = Duration::microseconds(500);
  Duration give_up_after = Duration::milliseconds(20);  // a carrier that has not got on for so long is lost
  // What the box has forwarded is executed sooner or never.
  Duration flight = Duration::milliseconds(100);
};

class Multiplexer {
 public:
  static constexpr std::size_t kMaxRegions = 64;

  // Both outlive it.
  Multiplexer(const MultiplexerConfig& config, Connections& connections, Counters& counters);
  // The memory besides what is discovered, all of it, at any time. What is not named any more is left alone as soon as nothing of it is under way; what
  // is new is not before all that has passed unseen, if anything, has ended. Returns how many are too many, and are not watched.
  std::size_t set_regions(Time now, std::span<const WordRegion> regions);

  // --- requests ---
  // The next request in order. Nothing: not the multiplexer's business, or only to be numbered.
  std::optional<Verdict> on_request(Time now, const Judged& packet, bool on);
  // A request that is forwarded and not replaced gets its number on the way to the server. `psn` is the client's.
  void number(const Judged& packet, Psn psn, std::uint32_t span);
  std::optional<Verdict> on_repeated_request(Time now, const Judged& packet, bool on, port::FrameSink& outbox);
  bool may_pass_out_of_order(const Judged& packet);
  // A WRITE of an unreliable connection. False: it covers words that are in use, and must be dropped.
  bool on_unreliable_write(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  // Whether the tables are small, so that asking for what lies in them costs more than it brings.
  bool is_near() const {
    return words_.capacity() * sizeof(Word) + connections_.size() * sizeof(Numbering) <= kNearBytes;
  }
  // Brings nearer what a packet of a connection will be judged by.
  void prefetch(const wire::ParsedFrame& parsed, ConnectionIndex connection) const {
    const Numbering& n = numbers_[connection];
    if (parsed.traits().is_request) {
      sluice::prefetch(&n);
      sluice::prefetch(&in_ring(connection).place(parsed.psn));
    } else if (n.carrier != kNone) {
      prefetch_owner(carrier_out_.ring(n.carrier).place(parsed.psn));
    }
  }
  // The same for the word of an atomic or of a WRITE, as Words does it.
  static bool names_word(const wire::ParsedFrame& parsed) {
    return parsed.traits().is_atomic() ||
           (parsed.opcode == wire::Opcode::kRcWriteOnly && parsed.payload_length == sizeof(std::uint64_t));
  }
  std::uint64_t ask_for_word(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
    const std::uint8_t* const at = frame + parsed.extended_offset();  // address and key come first in all their headers
    const wire::RKey rkey{load_be<std::uint32_t>(at + 8)};
    return words_.ask(name_of(NetAddress::destination_of(frame, parsed), rkey), load_be<std::uint64_t>(at));
  }
  WordIndex guess_word(std::uint64_t asked) const { return words_.guess(asked); }

  // --- the steady state ---
  // Judges the packet in one go: an atomic that can be replaced at once, or the ACK of the oldest replaced operation. False: it is not that
  // simple, and nothing has been changed. REQUIRES: a packet of that kind, on a connection that is not fenced; replacing is on; has_new_instructions().
  // An answer's: kForward, it has itself become the client's answer; kDrop, that one is in the outbox, because the frame has no room for it or
  // others of this client are there before it. Nothing: as above.
  // `guess`: what guess_word() said of the packet, or anything else that it has said.
  bool replace_at_once(Time now, const port::Frame& frame, wire::ParsedFrame& parsed, Connection& connection,
                       Crossing crossing, WordIndex guess);
  std::optional<Action> answer_at_once(Time now, port::Frame& frame, const wire::ParsedFrame& parsed, Crossing crossing,
                                       port::FrameSink& outbox);

  // --- answers ---
  // First: puts a packet from the server into its client's numbers, and answers those that it concerns. Something: it goes no further.
  std::optional<Verdict> on_response(Time now, const Judged& packet, port::FrameSink& outbox);
  // A congestion notification for the owner of a shared connection: told to those whose operations are under way on it, or, when among
  // these are some that came to the box with a mark, to them. True: the owner is none of them.
  bool on_congestion(const port::Frame& frame, const wire::ParsedFrame& parsed, Crossing crossing,
                     port::FrameSink& outbox);
  // Then, when the connection's progress has been noted.
  void after_progress(Time now, const Judged& packet);
  // Nothing waits on the connection any more: answers that had to come behind it may go.
  void after_release(Time now, ConnectionIndex connection, port::FrameSink& outbox);
  // What waited on the connection is gone.
  void forget_waiting(ConnectionIndex connection);
  // Whether answers to this client stand in the outbox of the burst under way.
  bool answered_in_burst(ConnectionIndex connection) const { return numbers_[connection].burst == burst_; }
  // Whether the answer is to a client whose requests have numbers of their own towards the server.
  bool translates(const Judged& answer) const {
    const Numbering& n = numbers_[answer.index];
    return n.translated && n.server_end != answer.end && answer.psn().since(n.in_start) >= 0;
  }

  // Whether this request's connection has numbers of its own towards the server.
  bool translates_request(const Judged& request) const {
    const Numbering& n = numbers_[request.index];
    return n.translated && n.server_end == request.end;
  }
  // Answers are not waited for any more: whoever waits behind an operation that passed by itself may go on. REQUIRES: nothing is replaced
  // from now on.
  void give_up_passes();

  bool watches(const NetAddress& server) const;
  void on_connection_gone(Time now, ConnectionIndex connection);
  std::vector<DirectionToken>& ready() { return ready_; }
  // Whether this one of them is no direction but the turn of a WRITE that came again late. When it comes the words are kept for it, and its client is
  // asked to send it once more.
  bool is_turn(DirectionToken token) const { return token >= first_late_; }
  void take_turn(Time now, DirectionToken token, bool on, port::FrameSink& outbox);
  Time next_deadline() const;
  void on_deadline(Time now, port::FrameSink& outbox);
  // A new burst begins: what was put into the outbox before has left.
  void begin_burst() { ++burst_; }

  // --- for tests and status lines ---
  void account(std::vector<MemoryUse>& uses) const;
  std::size_t words() const { return words_.size(); }
  std::optional<std::uint64_t> value_of(std::uint64_t address) const;
  std::size_t carriers() const;
  std::size_t open() const;

 private:
  struct KnownRegion {
    WordRegion region{};
    NetAddress server{};
    std::uint32_t carrier = kNone;
    std::uint32_t shown_by = 0;  // so many connections with numbers of their own have shown that the key allows WRITEs
    Time recovering_until{};     // its carrier was lost
    Time quiet_until{};          // what went by before it was known has been executed by then
    bool recovering = false;
    bool discovered = false;
    bool answered = false;  // an operation on a word of it has succeeded
    bool leaving = false;   // not named any more: no operation on it begins that is not its client's own business
    WaitingLine line{};     // for a carrier
  };
  // An operation on a word as it came.
  struct WordOperation {
    enum class Kind : std::uint8_t { kCompareSwap, kMaskedCompareSwap, kAdd, kWrite, kUnknown };
    Kind kind = Kind::kUnknown;
    std::uint64_t swap_or_add = 0;
    std::uint64_t compare = 0;
    std::uint64_t swap_mask = 0;
    std::uint64_t compare_mask = 0;

    std::uint64_t outcome(std::uint64_t prior) const;
  };
  // An operation that passes by itself.
  struct Pass {
    std::uint32_t word = kNone;          // kNone: unused
    ConnectionIndex connection = kNone;  // kNone: gone
    std::uint32_t psn = 0;               // of its last packet, in the client's numbers
    std::uint32_t next = kNone;          // of the same connection
    std::uint32_t earlier = kNone;       // of the same word
    std::uint32_t later = kNone;
    WordOperation operation{};
    std::optional<std::uint64_t> prior{};
    Time expires{};      // then it has been executed or never will be
    bool learns = true;  // its answer tells the word's value: no other was under way at the same time
  };
  // Memory from its first byte to its last.
  struct Stretch {
    std::uint64_t first = 0;
    std::uint64_t last = 0;

    bool meets(const Stretch& other) const { return first <= other.last && other.first <= last; }
  };
  struct LongWrite {
    ConnectionIndex connection = kNone;  // kNone: an unreliable one, which nobody follows
    std::uint32_t generation = 0;        // of the connection's place
    std::uint32_t psn = 0;               // of its last packet
    std::uint8_t end = 0;
    NetAddress server{};
    wire::RKey rkey{};
    Stretch where{};
    Time expires{};
  };
  // A WRITE, or an atomic on a word, that comes again when nobody watches for it any more.
  struct LateOperation {
    ConnectionIndex connection = kNone;  // kNone: unused
    std::uint8_t end = 0;
    std::uint32_t psn = 0;
    std::uint32_t last = 0;  // of its last packet
    wire::RKey rkey{};
    Stretch where{};
    WordOperation operation{};  // of unknown kind: more or less than a word
    Duration watched_for{};
  };
  static constexpr std::size_t kMostLate = 64;
  // Words that a WRITE covers.
  struct Covered {
    std::size_t words = 0;
    std::size_t unwatched = 0;  // so many are not under watch for it
    WordIndex busy = kNone;     // one of these, in use
  };
  struct Carrier {
    ConnectionIndex connection = kNone;
    std::uint32_t open = 0;  // replaced operations not acknowledged
    Time progress{};         // when the server last acknowledged something, or there was nothing to
    Time due{};              // when to send again what is open
    wire::Qpn server_qpn{};
    WaitingLine line;            // for room, or the end of the owner's message
    wire::PacketTemplate write;  // of a word
    std::vector<std::uint16_t> regions;
  };
  // Operations whose carrier was lost, in order.
  struct Orphan {
    ConnectionIndex owner = kNone;
    std::uint32_t in = 0;
    WordIndex word = kNone;
    std::uint16_t region = 0;
    bool under_way = false;  // its word's last value is on the new carrier
  };

  void prefetch_owner(const OutEntry& entry) const {
    if (entry.went != Went::kReplaced || entry.owner == kNone) return;
    const auto* const owner = reinterpret_cast<const char*>(&numbers_[entry.owner]);
    for (std::size_t at = 0; at < Numbering::kHot; at += kCacheLine) sluice::prefetch(owner + at);
    sluice::prefetch(&in_ring(entry.owner).place(Psn(entry.in)));
    connections_.prefetch_progress(entry.owner);
    sluice::prefetch(&words_[entry.word]);
  }

  // multiplexer_steady.cpp
  template <bool kPlain>
  [[SLUICE_FOR_NEW_MACHINES]] bool replace_at_once_in(Time now, const port::Frame& frame, wire::ParsedFrame& parsed,
                                                      Connection& connection, Crossing crossing, WordIndex guess);
  template <bool kPlain>
  [[SLUICE_FOR_NEW_MACHINES]] std::optional<Action> answer_at_once_in(Time now, port::Frame& frame,
                                                                      const wire::ParsedFrame& parsed,
                                                                      Crossing crossing, port::FrameSink& outbox);

  // multiplexer.cpp: requests
  static constexpr std::uint16_t kNoRegion = 0xFFFF;
  std::uint16_t known_region(const NetAddress& server, wire::RKey rkey, std::uint64_t address) const {
    std::uint16_t leaving = kNoRegion;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const KnownRegion& r = regions_[i];
      if (r.region.rkey != rkey || r.server != server) continue;
      if (r.region.length != 0 && address - r.region.address >= r.region.length) continue;
      if (!r.leaving) return static_cast<std::uint16_t>(i);
      leaving = static_cast<std::uint16_t>(i);
    }
    return leaving;
  }
  // What Words know a region by.
  static std::uint64_t name_of(const NetAddress& server, wire::RKey rkey) {
    return (server.low * 3 + server.high) ^ std::uint64_t{rkey.value} << 32;
  }
  // False: there is no room for it.
  bool add_region(const KnownRegion& region);
  std::uint16_t place_for_region();
  void leave_region(std::uint16_t region);
  // False: some are in use.
  bool drop_words(std::uint16_t region);
  bool discovers(const NetAddress& server) const;
  // Makes it known, if it is to be discovered.
  std::uint16_t region_of(const NetAddress& server, wire::RKey rkey, std::uint64_t address);
  std::optional<WordOperation> parse(const Judged& packet, std::uint64_t& address, wire::RKey& rkey) const;
  std::optional<Verdict> own_way(const Judged& packet);
  Verdict on_word(Time now, const Judged& packet, WordIndex word, const WordOperation& operation, bool on);
  WordIndex track(std::uint16_t region, std::uint64_t address);
  const NetAddress& server_of(ConnectionIndex connection, std::uint8_t end) const {
    return connections_[connection].address[end];
  }
  bool may_share(const Judged& packet, std::uint16_t region) const;
  // Whether no operation on the region's words can be replaced now: then nothing is gained by letting them out one at a time.
  static bool go_together(const KnownRegion& region, bool on) {
    return !on || !(region.region.writable || region.shown_by != 0);
  }
  Verdict replace(Time now, const Judged& packet, WordIndex word, const WordOperation& operation);
  Verdict wait(WaitingLine& line, const Judged& packet);
  void begin_translation(const Judged& packet);
  void learn_request_headers(const Judged& packet);
  bool under_way(const Judged& packet) const;
  bool is_on_word(const Judged& packet);
  bool has_room(const Judged& packet, std::uint32_t span) const;
  bool reads_long(const Judged& packet) const;
  bool may_overtake(const Judged& packet) const;
  bool is_answered_write(Time now, const Judged& packet, const InEntry& entry) const;
  static std::uint32_t span_of(const Judged& packet);

  // multiplexer_passes.cpp
  // What a WRITE covers. Nothing: no bytes, or such as no memory has.
  static std::optional<Stretch> stretch_of(const wire::Reth& reth);
  static Stretch stretch_of(const KnownRegion& region);
  bool reaches_region(const NetAddress& server, wire::RKey rkey, const Stretch& where) const;
  // f(word) for each tracked one in there, until one returns false.
  template <class F>
  void for_each_word(const NetAddress& server, wire::RKey rkey, const Stretch& where, F&& f) const;
  Verdict pass(Time now, const Judged& packet, WordIndex word, const WordOperation& operation, std::uint32_t packets);
  Verdict pass_with_others(Time now, const Judged& packet, WordIndex word, const WordOperation& operation);
  void let_pass(Time now, const Judged& packet, const Pass& pass);
  void let_pass_unwatched(Time now, WordIndex word);
  bool let_pass_again(Time now, const Judged& packet, bool on);
  bool prolong_pass(Time now, const Judged& packet);
  void take_pass(const Pass& pass);
  bool is_done(Time now, const LongWrite& write) const;
  bool is_written_to(Time now, const Word& word, Pass& until) const;
  void follow_write(Time now, const LongWrite& write);
  void note_write(Time now, const Judged& packet, wire::RKey rkey, const Stretch& where);
  std::optional<Verdict> on_long_write(Time now, const Judged& packet);
  // Of a WRITE of several packets what is watched is given more time so often, not at every packet.
  Duration prolonged_each() const { return config_.flight / 4; }
  Duration watched_for(const Judged& packet) const;
  void prolong_writes(Time now, const Judged& packet);
  std::size_t line_of(std::uint16_t region, std::uint64_t address) const {
    return mix(address / kLineBytes ^ std::uint64_t{region} << 48) & (lines_.size() - 1);
  }
  std::optional<Verdict> watch_again(Time now, const Judged& packet, bool on);
  Covered look_at(const LateOperation& write, bool on) const;
  std::uint32_t pass_of(const Word& word, const LateOperation& write) const;
  void watch(Time now, const LateOperation& write);
  bool is_behind_withheld(Time now, const Judged& packet);
  Verdict wait_for_turn(const Judged& packet, const LateOperation& write, WordIndex word);
  void forget_late(ConnectionIndex connection);

  // multiplexer_answers.cpp
  std::optional<Verdict> on_acknowledge(Time now, const Judged& packet, port::FrameSink& outbox);
  std::optional<Verdict> on_data(Time now, const Judged& packet, port::FrameSink& outbox);
  InEntry* find_asking(ConnectionIndex connection, Psn out) const;
  // What is acknowledged anew of the client's own requests, in its numbers; kNone: nothing.
  struct Acknowledged {
    std::uint32_t newest = kNone;
    std::uint32_t unanswered = kNone;  // the first one that asked for data, which did not come
  };
  Acknowledged acknowledge(Time now, ConnectionIndex connection, Psn up_to, port::FrameSink& outbox);
  void complete(std::uint32_t carrier, const OutEntry& entry, port::FrameSink& outbox);
  void flush_answers(ConnectionIndex connection, port::FrameSink& outbox);
  bool answer(ConnectionIndex connection, const InEntry& entry, port::FrameSink& outbox);
  bool answer_atomic(Numbering& n, const InEntry& entry, port::FrameSink& outbox);
  bool answer_write(ConnectionIndex connection, const InEntry& entry, port::FrameSink& outbox);
  bool acknowledge_to(ConnectionIndex connection, Psn psn, const wire::Aeth& aeth, port::FrameSink& outbox);
  bool tell_of_congestion(ConnectionIndex connection, const port::Frame& frame, const wire::ParsedFrame& parsed,
                          port::FrameSink& outbox);
  Verdict forward_answer(const Judged& packet, Psn in);
  std::uint32_t messages_to(ConnectionIndex connection, Psn in);
  void learn_from(const Judged& answer);
  Verdict acknowledge_to_owner(const Judged& packet, Psn in);
  Verdict ask_again(const Judged& packet, Psn in);
  bool ask_for_unanswered(ConnectionIndex connection, port::FrameSink& outbox);
  void resolve(std::uint32_t pass);
  void give_up_refused(ConnectionIndex connection, Psn from);
  void wake_if_done(ConnectionIndex connection);

  // What differs from one WRITE of a word to the next, and from one Atomic ACK to the next: eight bytes each, as they lie in the packet,
  // and how many stand between them and the ICRC.
  static constexpr std::size_t kPsnAndAddress = 20;
  static constexpr std::size_t kAddressAndKey = 12;
  static constexpr std::size_t kPsnAndAeth = 8;
  static constexpr std::size_t kLastWord = 0;
  static std::array<std::uint64_t, 3> word_write_fields(Psn psn, std::uint64_t address, wire::RKey rkey,
                                                        std::uint64_t value) {
    const std::uint64_t asking = std::uint64_t{1} << 31 | psn.value();  // an ACK is asked for
    return {swap_bytes(asking << 32 | address >> 32), swap_bytes(address << 32 | rkey.value), value};
  }
  static std::array<std::uint64_t, 2> atomic_answer_fields(const Numbering& n, const InEntry& entry) {
    const std::uint32_t aeth = std::uint32_t{n.syndrome} << 24 | (n.msn & Psn::kMask);
    return {swap_bytes(std::uint64_t{entry.psn} << 32 | aeth), swap_bytes(entry.prior)};
  }

  // carriers.cpp
  std::uint32_t make_carrier(Time now, ConnectionIndex connection);
  std::size_t compose(const Carrier& carrier, const OutEntry& entry, std::uint8_t* out) const;
  bool send_again(Time now, std::uint32_t carrier, Psn from, port::FrameSink& outbox);
  void note_progress(Time now, Carrier& carrier) const {
    carrier.progress = now;
    carrier.due = now + config_.repair_after;
  }
  void lose(Time now, std::uint32_t carrier);
  void cut_off(ConnectionIndex connection);
  // Whether others wait for the end of a message that its owner has begun, and nothing else is under way.
  bool waits_for_owner(const Carrier& carrier) const {
    return carrier.open == 0 && !carrier.line.empty() && numbers_[carrier.connection].mid_message;
  }
  bool is_silent(Time now, ConnectionIndex connection) const;
  void leave_if_silent(Time now, std::uint32_t carrier);
  void forget_words_of_last(ConnectionIndex connection);
  void retire(std::uint32_t carrier);
  void recover(Time now, std::uint16_t region, port::FrameSink& outbox);
  void carry_over(Time now, std::uint16_t region, std::uint32_t carrier, port::FrameSink& outbox);
  void abandon(std::uint16_t region);
  void close_region(std::uint16_t region);
  // No connection has shown that it may operate there.
  void forget_rights(std::uint16_t region);
  ConnectionIndex find_carrier_for(std::uint16_t region) const;

  NumberRing<InEntry> in_ring(ConnectionIndex c) const { return in_.ring(c); }
  NumberRing<OutEntry> out_ring(ConnectionIndex c) const {
    const std::uint32_t carrier = numbers_[c].carrier;
    return carrier == kNone ? out_.ring(c) : carrier_out_.ring(carrier);
  }
  // Whether answers to this client wait in the box for somebody else's say.
  bool answers_wait(ConnectionIndex c) const { return connections_[c].to[1 - numbers_[c].server_end].holds(); }
  Direction& requests_of(ConnectionIndex c) { return connections_[c].to[numbers_[c].server_end]; }

  MultiplexerConfig config_;
  std::vector<NetAddress> servers_;
  Connections& connections_;
  Counters& counters_;
  std::vector<KnownRegion> regions_;
  Words words_;
  RingMemory<InEntry> in_;
  RingMemory<OutEntry> out_;
  RingMemory<OutEntry> carrier_out_;
  Table<Numbering> numbers_;
  std::vector<Carrier> carriers_;
  std::vector<Pass> passes_;
  std::vector<std::uint32_t> free_passes_;
  std::vector<Orphan> orphans_;
  // WRITEs of more or less than a word that are under way, oldest first; and for those that did not fit, by a hash of 64 bytes of memory,
  // until when one may still be executed there. A word must not be judged before.
  std::vector<LongWrite> writes_;
  std::size_t first_write_ = 0;
  std::size_t writes_under_way_ = 0;
  static constexpr std::uint64_t kLineBytes = 64;
  std::vector<Time> lines_;
  std::vector<LateOperation> late_;
  DirectionToken first_late_;  // in lines those stand behind all directions
  WaitingRoom room_;
  std::vector<DirectionToken> ready_;
  std::uint32_t burst_ = 1;
  std::uint32_t notifications_ = 0;  // of congestion on shared connections, so far
  Time now_;                         // of the call under way
  Time next_look_{};                 // at passes that may have expired and at regions that recover
  bool may_have_written_ = false;    // something that has gone by
  Time next_discovery_{};            // before it no place is looked for, because there was none
  Time overflowed_until_{};          // WRITEs that lines_ tells of have been executed by then
};

}  // namespace sluice::swordbox
