// Rule for Clover: steers CASes and READs of old nodes to the tail of their key's chain.
//
// A write:    WRITE(B) -> the history learns whose node B is. CAS(A: free -> B) -> B's key; is its tail T not A, the CAS is sent to T. T's
//             successor is B, so B is the tail.
// A read:     READ(A) -> A's key; has it a later tail T, the READ is sent to T.
// Gates:      an answer passes only when all links of its key before it are acknowledged. One that comes early is held.
// Repair:     a link that stays unacknowledged is sent again by the box, then handed to an agent with a connection of its own.
// Learning:   a tail is known from an acknowledged link. Until then CASes of the key go out one at a time, unchanged; likewise behind a
//             CAS that may yet be refused (its connection has not proved its rights, its WRITE is not acknowledged), and
//             always with Order::kStrict and Order::kPassing.
// Invariant:  a node at which a link is under way, or which one under way will make the tail, gets no CAS that is not watched: such a CAS
//             waits. So nothing comes between links that were forwarded one behind the other.
// Invariant:  a CAS is aimed elsewhere only if the node has not been tried before, the tail's next word is known to be what the CAS
//             compares with, and the tail lies in the region that the CAS names: then it cannot fail but by loss.
// Errors:     whatever contradicts the belief makes the tail unknown, never the answer.
// Threads:    the box's owner. No allocation after construction.
// Limits:     CloverConfig.
// Source:     SwordBox §4.4.2, §4.5; docs/design/swordbox.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "swordbox/chain_layout.h"
#include "swordbox/connections.h"
#include "swordbox/history.h"
#include "swordbox/keys.h"
#include "swordbox/links.h"
#include "swordbox/operations.h"
#include "swordbox/rule.h"
#include "swordbox/sketch.h"

namespace sluice::swordbox {

// Memory that holds nodes.
struct Region {
  wire::Gid server{};
  wire::RKey rkey{};
  friend bool operator==(const Region&, const Region&) = default;
};

enum class Order : std::uint8_t {
  kPipelined,  // links behind links under way
  kStrict,     // one link a key at a time; who comes meanwhile waits
  kPassing,  // the same, but who comes meanwhile goes where its client sent it: for homes that cannot hold packets (XDP)
};

struct CloverConfig {
  ChainLayout layout = ChainLayout::clover();
  std::vector<Region> regions;  // empty: every one that is seen, up to kMaxRegions
  bool mirrored = false;        // nodes are written to several regions and linked in each: not steered
  Order order = Order::kPipelined;
  bool steer_reads = true;
  // How long after a node has got a successor READs of it are steered. Less than the store's max_flight.
  Duration steer_reads_for = Duration::milliseconds(200);
  bool steer_writes = true;
  std::uint32_t tracked_keys = 1024;    // the hottest so many
  std::uint32_t most_tracked_keys = 0;  // room for so many, should tracked_keys be raised while it runs; 0: no more
  std::uint32_t history_entries = 1u << 16;
  std::uint32_t open_links = 4096;
  std::uint32_t ring = 128;    // operations a connection; at least a client's window in packets
  std::uint32_t hot_from = 2;  // appends lately, from which a key is worth a free place
  Duration repair_after = Duration::microseconds(500);
  std::uint8_t resends = 6;  // then the agent's turn
  // A steering box before this one was lost with its state: WRITEs count from `trust_writes_from` on, until `fenced_until` only those of connections
  // that were announced since, and until then no node is linked whose WRITE has not counted (docs/design/swordbox.md).
  Time trust_writes_from{};
  Time fenced_until{};
};

// A link that the box cannot bring about with the client's own connection.
struct Repair {
  LinkIndex link = kNone;
  std::uint64_t serial = 0;  // of the link: its place may have another one when the answer comes
  wire::Gid server{};
  wire::RKey rkey{};
  std::uint64_t address = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;  // the same as `compare`: the agent is only to look
};

class CloverRule final : public Rule {
 public:
  static constexpr std::uint16_t kMaxRegions = 1024;

  // Both outlive the rule.
  CloverRule(const CloverConfig& config, Connections& connections, Counters& counters);

  void prefetch_early(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const override;
  bool prefetch(const Judged& packet, int step) const override;
  int prefetch_steps() const override {
    // Of few keys and many connections only what was done to their operations is far.
    return far_ ? 2 : connections_.size() * kBytesOfConnection > kNearBytes ? 1 : 0;
  }
  Verdict on_request(Time now, const Judged& packet) override;
  Verdict on_repeated_request(Time now, const Judged& packet) override;
  void on_renumbered(const Judged& packet, Psn psn) override;
  Verdict on_stranger_request(Time now, const Judged& packet) override;
  Verdict on_request_while_off(Time now, const Judged& packet) override;
  bool watches(const NetAddress& server, wire::RKey rkey) override;
  bool watches(const NetAddress& server) const override;
  bool may_pass_out_of_order(const Judged& packet) override;
  void observe_response(Time now, const Judged& packet) override;
  Verdict on_response(Time now, const Judged& packet) override;
  void on_connection_gone(ConnectionIndex connection) override;
  void forget_all() override;
  Time next_deadline() const override;
  void on_deadline(Time now, port::FrameSink& outbox) override;

  // What the repair agent is to do: a CAS each. Fills `out` from its start and returns how many.
  std::size_t take_repairs(std::span<Repair> out);
  // The agent's CAS found `prior`; nothing: it could not be done now, it will be asked again.
  void on_repair(Time now, const Repair& repair, std::optional<std::uint64_t> prior);

  // These may change at any time. What was steered before stays consistent: retransmissions go where the originals went.
  void set_order(Order order) { config_.order = order; }
  void set_steer_reads(bool on) { config_.steer_reads = on; }
  void set_steer_writes(bool on) { config_.steer_writes = on; }
  // At most most_tracked_keys(). Fewer than are tracked: the coldest are given up, as soon as they are idle.
  void set_tracked_keys(std::uint32_t most);
  std::uint32_t most_tracked_keys() const { return keys_.capacity(); }
  const CloverConfig& config() const { return config_; }

  std::size_t open_links() const { return links_.size(); }
  bool has_open_links() const override { return open_links() != 0; }
  std::uint32_t tracked() const { return keys_.size(); }
  void account(std::vector<MemoryUse>& uses) const override;
  // The address that CASes of the key are steered to now; nothing when its tail is not known. For tests and status lines.
  std::optional<std::uint64_t> tail_of(std::uint64_t key) const;
  struct HotKey {
    std::uint64_t key = 0;
    std::uint32_t heat = 0;   // appends lately, about
    std::uint32_t links = 0;  // since it is tracked
    std::uint64_t tail = 0;   // 0: not known
    KeyUse use{};
  };
  // The `most` hottest tracked keys, hottest first. For status lines.
  std::vector<HotKey> hottest(std::size_t most) const;

 private:
  // A CAS as it came.
  struct Cas {
    std::uint16_t region = 0;
    std::uint64_t address = 0;  // of the next word
    std::uint64_t compare = 0;
    std::uint64_t swap = 0;
    Place at = 0;  // the node whose next word it is
  };

  // clover_rule.cpp: requests
  std::optional<Place> place_to_prefetch(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const;
  Verdict on_write(Time now, const Judged& packet);
  Verdict on_cas(Time now, const Judged& packet);
  Verdict on_read(const Judged& packet);
  Verdict on_other_atomic(const Judged& packet);
  Verdict judge_tracked(Time now, const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key);
  Verdict pass_unknown_node(const Judged& packet, const Cas& cas);
  Verdict pass_untracked(const Judged& packet, const Cas& cas, std::uint32_t entry, Verdict verdict);
  Verdict probe(const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key);
  Verdict reaim(const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key);
  std::uint32_t admit(std::uint64_t key);
  void give_up(std::uint32_t key);
  std::optional<Cas> parse_cas(const Judged& packet);
  bool fenced(Time now, const Cas& cas) const;
  std::uint16_t region_index(const NetAddress& server, wire::RKey rkey) {
    return is_region(last_region_, server, rkey) ? last_region_ : find_region(server, rkey);
  }
  bool is_region(std::size_t i, const NetAddress& server, wire::RKey rkey) const {
    return i < regions_.size() && regions_[i].rkey == rkey && regions_[i].server == server;
  }
  std::uint16_t find_region(const NetAddress& server, wire::RKey rkey);
  std::optional<Place> node_place(const Cas& cas) const;
  bool write_acknowledged(const HistoryEntry& entry) const;
  // Whether an atomic that is not watched has to wait: it could get between links under way. If it may pass, the tail that it may
  // change is forgotten.
  bool must_wait(const Cas& cas, bool only_if_free, std::uint32_t& key);
  Verdict wait_for_turn(const Judged& packet, std::uint32_t key);
  // Needed of the key's links before anyone may see its tail.
  static std::uint32_t number_of_tail(const KeyState& state) {
    return state.exclusive ? state.opened - 1 : state.opened;
  }

  // clover_answers.cpp: responses
  void observe_atomic_answer(const Judged& packet, std::uint8_t server_end);
  bool is_open(const Operation& op);
  bool awaits_answer(const Operation& op) { return is_open(op) && !links_[op.subject].acknowledged; }
  Verdict gate(const Judged& packet, const Operation& op);
  void settle_try(const Judged& packet, const Operation& op, std::uint64_t prior);
  void on_refusal(Time now, const Judged& packet, std::uint8_t server_end);

  // clover_links.cpp: links, waiting, repair
  Verdict open_link(Time now, const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key,
                    std::int64_t shift, bool exclusive, Verdict verdict);
  void link_answered(LinkIndex link, std::uint64_t prior);
  void link_stands(LinkIndex link, bool tail_is_known);
  void link_failed(LinkIndex link);
  void close_link(LinkIndex link);
  void advance(std::uint32_t key);
  void lose_tail(std::uint32_t key);
  void wait(WaitingLine& line, DirectionToken direction, std::uint32_t key, bool request);
  void wake(WaitingLine& line);
  void stop_waiting(DirectionToken direction);
  bool resend(Link& link, port::FrameSink& outbox);
  bool is_node_written(const Link& link) const;

  static constexpr std::size_t kBytesOfConnection = sizeof(Connection) + 2 * kCacheLine;  // that its packets need now

  static void shift_address(const Judged& packet, std::int64_t shift);
  static bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

  struct KnownRegion {
    NetAddress server{};
    wire::RKey rkey{};
  };
  struct Waiting {
    DirectionToken next = kNone;
    std::uint32_t key = kNone;  // kNone: does not wait
    bool request = false;
  };
  // Of a connection: the region in which one of its atomics has succeeded to execute.
  static constexpr std::uint16_t kNoRegion = 0xFFFF;

  CloverConfig config_;
  Connections& connections_;
  Counters& counters_;
  std::vector<KnownRegion> regions_;
  FlatIndex regions_index_;
  bool regions_fixed_;
  std::uint16_t last_region_ = 0;  // that was asked for: most likely the next one, too
  bool far_;                       // its tables are large
  History history_;
  Keys keys_;
  Links links_;
  Operations operations_;
  Sketch sketch_;
  std::vector<std::uint16_t> proven_;  // by connection
  std::vector<Waiting> waiting_;       // by direction
  std::vector<Repair> repairs_;
  std::uint32_t eviction_hand_ = 0;
  Time now_;  // of the call under way
};

}  // namespace sluice::swordbox
