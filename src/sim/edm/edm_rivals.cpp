#include "sim/edm/edm_rivals.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "base/rng.h"
#include "edm/scheduler.h"
#include "sim/edm/rival_fabric.h"

namespace sluice::sim {

using namespace rivals;

namespace {

// Control packets' kinds; 0 carries a message's bytes.
enum Kind : std::uint8_t { kBytes, kAck, kToken, kAsk, kGrant, kPause, kResume, kNotify, kCredit };

constexpr std::uint32_t kSegment = 1'460;

Packet control_packet(const Fabric& fabric, Kind kind, std::uint32_t flow, std::uint32_t bytes, std::uint32_t from,
                      std::uint32_t to) {
  const std::uint32_t size = kind == kAck || kind == kNotify                    ? fabric.settings().ack_bytes
                             : kind == kToken || kind == kAsk || kind == kGrant ? fabric.settings().control_bytes
                                                                                : 0;
  return {.flow = flow,
          .bytes = bytes,
          .blocks = Fabric::blocks_of(size),
          .from = static_cast<std::uint16_t>(from),
          .to = static_cast<std::uint16_t>(to),
          .control = true,
          .kind = kind};
}

// A read's request goes at once, before data: it is no longer than a control packet.
void send_request(Fabric& fabric, Blocks now, std::uint32_t which) {
  while (fabric.flow(which).remaining() != 0) {
    Packet packet = fabric.next_packet(which);
    packet.control = true;
    fabric.send_control(now, packet);
  }
}

// The messages of a node by turns, of so many bytes each.
class Turns {
 public:
  Turns(std::size_t nodes, std::uint32_t packet_bytes) : nodes_(nodes), packet_bytes_(packet_bytes) {}
  // Once, however often it is added.
  void add(std::uint32_t node, std::uint32_t flow) {
    auto& waiting = nodes_[node].waiting;
    if (std::ranges::find(waiting, flow) == waiting.end()) waiting.push_back(flow);
  }
  // The first one for which `may(flow)`: kept at the front for its turn. Flows that have nothing left leave.
  template <class May>
  std::optional<std::uint32_t> next(std::uint32_t node, std::vector<Flow>& flows, const May& may) {
    constexpr std::uint32_t kTurn = 1'500;
    Node& n = nodes_[node];
    // Once more than there are: the first one's turn may be over, and nobody else's begin.
    for (std::size_t tries = n.waiting.size() + 1; tries != 0 && !n.waiting.empty(); --tries) {
      const std::uint32_t which = n.waiting.front();
      if (flows[which].remaining() == 0) {
        n.waiting.pop_front();
        n.used = 0;
        continue;
      }
      if (n.used < kTurn && may(which)) {
        n.used += std::min({flows[which].to_send(), packet_bytes_, kTurn});
        return which;
      }
      n.waiting.pop_front();
      n.waiting.push_back(which);
      n.used = 0;
    }
    return std::nullopt;
  }

 private:
  struct Node {
    std::deque<std::uint32_t> waiting;
    std::uint32_t used = 0;  // of the first one's turn
  };
  std::vector<Node> nodes_;
  std::uint32_t packet_bytes_;
};

// DCTCP's windows, a message each.
class Windows {
 public:
  explicit Windows(Fabric& fabric) : fabric_(fabric) {}

  void start(std::uint32_t which) {
    states_.resize(which + 1);
    states_[which].window = std::max(fabric_.settings().window_bytes, kSegment);
  }
  bool may_send(std::uint32_t which) const { return states_[which].under_way < states_[which].window; }
  void sent(const Packet& packet) { states_[packet.flow].under_way += packet.bytes; }
  // In the switch, as a packet joins a queue.
  bool marks(const Queue& queue) const { return queue.queued > fabric_.settings().mark_blocks; }
  void acknowledged(const Packet& ack) {
    State& s = states_[ack.flow];
    s.under_way -= ack.bytes;
    s.acked += ack.bytes;
    if (ack.marked) {
      s.marked += ack.bytes;
      s.slow_start = false;
    }
    // By a segment a window; in slow start by what was acknowledged.
    s.window += s.slow_start ? ack.bytes : static_cast<std::uint32_t>(std::uint64_t{kSegment} * ack.bytes / s.window);
    if (s.acked >= s.window_end) end_of_window(ack.flow);
  }
  void lost(const Packet& packet) {
    State& s = states_[packet.flow];
    s.under_way -= packet.bytes;
    s.window = kSegment;
  }

 private:
  struct State {
    std::uint32_t window = 0;
    std::uint32_t under_way = 0;
    std::uint32_t acked = 0;
    std::uint32_t window_end = 0;
    std::uint32_t window_begin = 0;
    std::uint32_t marked = 0;    // of this window
    std::uint64_t alpha = kAll;  // share of marks
    bool slow_start = true;
  };
  static constexpr std::uint64_t kAll = std::uint64_t{1} << 24;  // of shares

  // DCTCP §3.3: alpha by g = 1/16; the window is cut by alpha / 2.
  void end_of_window(std::uint32_t which) {
    State& s = states_[which];
    const std::uint32_t acked = std::max(s.acked - s.window_begin, 1u);
    const std::uint64_t share = std::min(s.marked * kAll / acked, kAll);
    s.alpha = s.alpha - s.alpha / 16 + share / 16;
    if (s.marked != 0)
      s.window = std::max(s.window - static_cast<std::uint32_t>(s.window * s.alpha / (2 * kAll)), kSegment);
    s.marked = 0;
    s.window_begin = s.acked;
    s.window_end = fabric_.flow(which).sent;
  }

  Fabric& fabric_;
  std::vector<State> states_;
};

// What sends by windows: every packet is acknowledged, with its mark.
class Windowed : public Protocol {
 public:
  explicit Windowed(Fabric& fabric) : fabric_(fabric), windows_(fabric) {}

  void delivered(Blocks now, const Packet& packet) override {
    Packet ack = control_packet(fabric_, kAck, packet.flow, packet.bytes, packet.to, packet.from);
    ack.marked = packet.marked;
    fabric_.send_control(now, ack);
  }
  void control(Blocks now, const Packet& ack) override {
    windows_.acknowledged(ack);
    fabric_.wake_node(now, ack.to);
  }

 protected:
  Fabric& fabric_;
  Windows windows_;
};

// --- DCTCP ------------------------------------------------------------------------------------------------------------------------
class Dctcp final : public Windowed {
 public:
  explicit Dctcp(Fabric& fabric) : Windowed(fabric), turns_(fabric.settings().nodes, fabric.settings().packet_bytes) {}

  void created(Blocks now, std::uint32_t which) override {
    windows_.start(which);
    const std::uint16_t node = fabric_.flow(which).source;
    turns_.add(node, which);
    fabric_.wake_node(now, node);
  }
  bool pick(Blocks, std::uint32_t node, Packet& out, Blocks&) override {
    const auto which = turns_.next(node, fabric_.flows(), [&](std::uint32_t flow) { return windows_.may_send(flow); });
    if (!which) return false;
    out = fabric_.next_packet(*which);
    windows_.sent(out);
    return true;
  }
  bool admit(Blocks now, std::uint32_t port, Packet& packet) override {
    const Queue& queue = fabric_.port(port);
    if (queue.queued + packet.blocks > fabric_.settings().buffer_blocks) {
      fabric_.drop(now, packet);
      return false;
    }
    packet.marked = windows_.marks(queue);
    return true;
  }
  void lost(Blocks now, const Packet& packet) override {
    windows_.lost(packet);
    turns_.add(packet.from, packet.flow);
    fabric_.wake_node(now, packet.from);
  }

 private:
  Turns turns_;
};

// --- pFabric ----------------------------------------------------------------------------------------------------------------------
class Pfabric final : public Windowed {
 public:
  explicit Pfabric(Fabric& fabric) : Windowed(fabric), waiting_(fabric.settings().nodes) {}

  void created(Blocks now, std::uint32_t which) override {
    windows_.start(which);
    add(now, fabric_.flow(which).source, which);
  }
  bool pick(Blocks, std::uint32_t node, Packet& out, Blocks&) override {
    auto& waiting = waiting_[node];
    auto best = waiting.end();
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (!windows_.may_send(*it)) continue;
      if (best == waiting.end() || fabric_.flow(*it).remaining() < fabric_.flow(*best).remaining()) best = it;
    }
    if (best == waiting.end()) return false;
    const std::uint32_t which = *best;
    out = fabric_.next_packet(which);
    windows_.sent(out);
    if (fabric_.flow(which).remaining() == 0) waiting.erase(best);
    return true;
  }
  bool admit(Blocks now, std::uint32_t port, Packet& packet) override {
    Queue& queue = fabric_.port(port);
    while (queue.queued + packet.blocks > fabric_.settings().buffer_blocks) {
      const auto longest = std::max_element(queue.data.begin(), queue.data.end(), shorter);
      if (longest == queue.data.end() || longest->remaining <= packet.remaining) {
        fabric_.drop(now, packet);
        return false;
      }
      queue.queued -= longest->blocks;
      fabric_.drop(now, *longest);
      queue.data.erase(longest);
    }
    packet.marked = windows_.marks(queue);
    return true;
  }
  std::size_t take(const Queue& queue) override {
    // The shortest message's first packet, so that no message overtakes itself (pFabric §4.2).
    const auto shortest = std::min_element(queue.data.begin(), queue.data.end(), shorter);
    const auto first =
        std::find_if(queue.data.begin(), queue.data.end(), [&](const Packet& p) { return p.flow == shortest->flow; });
    return static_cast<std::size_t>(first - queue.data.begin());
  }
  void lost(Blocks now, const Packet& packet) override {
    windows_.lost(packet);
    auto& waiting = waiting_[packet.from];
    if (std::find(waiting.begin(), waiting.end(), packet.flow) == waiting.end()) waiting.push_back(packet.flow);
    fabric_.wake_node(now, packet.from);
  }

 private:
  static bool shorter(const Packet& a, const Packet& b) { return a.remaining < b.remaining; }
  void add(Blocks now, std::uint32_t node, std::uint32_t which) {
    waiting_[node].push_back(which);
    fabric_.wake_node(now, node);
  }

  std::vector<std::vector<std::uint32_t>> waiting_;
};

// --- PFC with DCQCN -----------------------------------------------------------------------------------------------------------------
// DCQCN's constants, of its §5 (and Table 14): marks between 5 and 200 KB with at most 1 %, a notification each 50 us, alpha by 1/256, timers of 55 us,
// five rounds of fast recovery, 40 Mb/s at a time. Its byte counter (10 MB) is longer than any message here.
class Pfc final : public Protocol {
 public:
  explicit Pfc(Fabric& fabric)
      : fabric_(fabric),
        turns_(fabric.settings().nodes, fabric.settings().packet_bytes),
        held_(fabric.settings().nodes),
        paused_(fabric.settings().nodes),
        told_(fabric.settings().nodes),
        rng_(Rng(1).fork("marks")),
        line_(static_cast<std::int64_t>(fabric.hardware().bits_per_second)),
        timer_(fabric.hardware().blocks(Duration::microseconds(55))),
        notify_(fabric.hardware().blocks(Duration::microseconds(50))) {}

  void created(Blocks now, std::uint32_t which) override {
    states_.resize(which + 1);
    states_[which].rate = states_[which].target = line_;
    const std::uint16_t node = fabric_.flow(which).source;
    turns_.add(node, which);
    fabric_.wake_node(now, node);
  }
  bool pick(Blocks now, std::uint32_t node, Packet& out, Blocks& again) override {
    if (paused_[node]) return false;
    const auto which = turns_.next(node, fabric_.flows(), [&](std::uint32_t flow) {
      if (states_[flow].next <= now) return true;
      again = std::min(again, states_[flow].next);
      return false;
    });
    if (!which) return false;
    out = fabric_.next_packet(*which);
    State& s = states_[*which];
    recover(now, s);
    s.next = now + out.blocks * line_ / s.rate;
    return true;
  }
  bool admit(Blocks now, std::uint32_t port, Packet& packet) override {
    constexpr Blocks kLeast = 5'000 / 8;
    constexpr Blocks kMost = 200'000 / 8;
    const Blocks queued = fabric_.port(port).queued;
    packet.marked = queued > kMost ||
                    (queued > kLeast && static_cast<Blocks>(rng_.below(100 * (kMost - kLeast))) < queued - kLeast);
    held_[packet.from] += packet.blocks;
    if (held_[packet.from] > fabric_.settings().pause_blocks && !told_[packet.from]) {
      told_[packet.from] = true;
      ++fabric_.outcome().pauses;
      tell(now, kPause, packet.from);
    }
    return true;
  }
  void left(Blocks now, std::uint32_t, const Packet& packet) override {
    held_[packet.from] -= packet.blocks;
    if (told_[packet.from] && held_[packet.from] < fabric_.settings().resume_blocks) {
      told_[packet.from] = false;
      tell(now, kResume, packet.from);
    }
  }
  void delivered(Blocks now, const Packet& packet) override {
    State& s = states_[packet.flow];
    if (!packet.marked || now < s.notify_from) return;
    s.notify_from = now + notify_;
    fabric_.send_control(now, control_packet(fabric_, kNotify, packet.flow, 0, packet.to, packet.from));
  }
  void control(Blocks now, const Packet& packet) override {
    State& s = states_[packet.flow];
    recover(now, s);
    s.target = s.rate;
    s.rate = std::max<std::int64_t>(s.rate - (s.rate >> 10) * s.alpha / (kAll >> 9), kStep);
    s.alpha = s.alpha - s.alpha / 256 + kAll / 256;
    s.stage = 0;
    s.cut = true;
    s.recover_at = now + timer_;
  }
  void timer(Blocks now, std::uint32_t what) override {
    const std::uint32_t node = what / 2;
    paused_[node] = what % 2 != 0;
    if (!paused_[node]) fabric_.wake_node(now, node);
  }

 private:
  static constexpr std::int64_t kStep = 40'000'000;
  static constexpr std::int64_t kAll = std::int64_t{1} << 24;  // of alpha: fine enough to fall to nothing
  struct State {
    std::int64_t rate = 0;
    std::int64_t target = 0;
    std::int64_t alpha = kAll;
    Blocks next = 0;
    Blocks notify_from = 0;
    Blocks recover_at = 0;
    int stage = 0;
    bool cut = false;
  };
  void recover(Blocks now, State& s) const {
    for (; s.cut && now >= s.recover_at; s.recover_at += timer_) {
      if (++s.stage > 5) s.target = std::min(s.target + kStep, line_);
      s.rate = (s.rate + s.target) / 2;
      s.alpha -= s.alpha / 256;
    }
  }
  void tell(Blocks now, Kind kind, std::uint32_t node) {
    fabric_.set_timer(now + fabric_.hop(), node * 2 + (kind == kPause ? 1 : 0));
  }

  Fabric& fabric_;
  Turns turns_;
  std::vector<Blocks> held_;  // in the switch, by where they came from
  std::vector<bool> paused_;
  std::vector<bool> told_;
  std::vector<State> states_;
  Rng rng_;
  std::int64_t line_;
  Blocks timer_;
  Blocks notify_;
};

// --- CXL --------------------------------------------------------------------------------------------------------------------------
class Cxl final : public Protocol {
 public:
  explicit Cxl(Fabric& fabric)
      : fabric_(fabric),
        waiting_(fabric.settings().nodes),
        credits_(fabric.settings().nodes, fabric.settings().credit_blocks),
        coming_(fabric.settings().nodes),
        wanted_by_(fabric.settings().nodes + 1) {}

  void created(Blocks now, std::uint32_t which) override {
    const Flow& flow = fabric_.flow(which);
    auto& waiting = waiting_[flow.source];
    // Requests go before data, as in CXL.mem, where they have channels of their own.
    if (flow.request) {
      const auto first = std::find_if(waiting.begin(), waiting.end(), [&](std::uint32_t other) {
        return !fabric_.flow(other).request && fabric_.flow(other).sent == 0;
      });
      waiting.insert(first, which);
    } else {
      waiting.push_back(which);
    }
    fabric_.wake_node(now, flow.source);
  }
  bool pick(Blocks, std::uint32_t node, Packet& out, Blocks&) override {
    auto& waiting = waiting_[node];
    if (waiting.empty()) return false;
    const std::uint32_t which = waiting.front();
    const Blocks needs = fabric_.data_blocks(std::min(fabric_.flow(which).to_send(), fabric_.settings().packet_bytes));
    if (credits_[node] < needs) return false;
    out = fabric_.next_packet(which);
    credits_[node] -= needs;
    if (fabric_.flow(which).remaining() == 0) waiting.pop_front();
    return true;
  }
  bool admit(Blocks now, std::uint32_t, Packet& packet) override {
    coming_[packet.from].push_back(packet);
    if (coming_[packet.from].size() == 1) forward(now, packet.from);
    return false;
  }
  void left(Blocks now, std::uint32_t port, const Packet&) override {
    // Whoever has waited longest for room here goes first.
    while (!wanted_by_[port].empty()) {
      const std::uint32_t node = wanted_by_[port].front();
      if (!fits(coming_[node].front())) return;
      wanted_by_[port].pop_front();
      forward(now, node);
    }
  }
  // Credits that have come back, in `what`: node and blocks.
  void timer(Blocks now, std::uint32_t what) override {
    const std::uint32_t node = what & 0x3FF;
    credits_[node] += what >> 10;
    fabric_.wake_node(now, node);
  }

 private:
  bool fits(const Packet& packet) {
    const Blocks queued = fabric_.port(packet.to).queued;
    return queued == 0 || queued + packet.blocks <= fabric_.settings().egress_blocks;
  }
  // A line of one node: the first one that does not fit holds up all behind it.
  void forward(Blocks now, std::uint32_t node) {
    auto& line = coming_[node];
    while (!line.empty()) {
      const Packet packet = line.front();
      if (!fits(packet)) {
        wanted_by_[packet.to].push_back(node);
        return;
      }
      line.pop_front();
      fabric_.enqueue(now, packet.to, packet);
      fabric_.set_timer(now + fabric_.hop(), node | static_cast<std::uint32_t>(packet.blocks) << 10);
    }
  }

  Fabric& fabric_;
  std::vector<std::deque<std::uint32_t>> waiting_;
  std::vector<Blocks> credits_;
  std::vector<std::deque<Packet>> coming_;
  std::vector<std::deque<std::uint32_t>> wanted_by_;  // by port: nodes whose first packet waits for room there
};

// --- Receiver-driven ----------------------------------------------------------------------------------------------------------------
class ReceiverDriven final : public Protocol {
 public:
  explicit ReceiverDriven(Fabric& fabric) : fabric_(fabric), nodes_(fabric.settings().nodes) {
    const Blocks packet = fabric.data_blocks(fabric.settings().packet_bytes);
    // A round trip: of a token and its packet, so that a receiver alone has its link full.
    most_ = fabric.through() * 2 + fabric.hop() * 2 + packet * 2 + Fabric::blocks_of(fabric.settings().control_bytes);
  }

  void created(Blocks now, std::uint32_t which) override {
    granted_.resize(which + 1);
    const Flow& flow = fabric_.flow(which);
    if (flow.request) return send_request(fabric_, now, which);
    begin(now, which);
    if (without_token(which) != 0) nodes_[flow.destination].expected.push_back(which);
    give(now, flow.destination);
  }
  bool pick(Blocks, std::uint32_t node, Packet& out, Blocks&) override {
    auto& tokens = nodes_[node].tokens;
    if (tokens.empty()) return false;
    const auto shortest = std::min_element(tokens.begin(), tokens.end(), [&](const Packet& a, const Packet& b) {
      return fabric_.flow(a.flow).remaining() < fabric_.flow(b.flow).remaining();
    });
    out = fabric_.next_packet(shortest->flow);
    tokens.erase(shortest);
    return true;
  }
  void delivered(Blocks now, const Packet& packet) override {
    if (fabric_.flow(packet.flow).request) return;
    nodes_[packet.to].outstanding -= packet.blocks;
    give(now, packet.to);
  }
  void control(Blocks now, const Packet& token) override {
    nodes_[token.to].tokens.push_back(token);
    fabric_.wake_node(now, token.to);
  }
  void timer(Blocks now, std::uint32_t node) override {
    if (nodes_[node].timer == now) give(now, node);
  }

 private:
  struct Node {
    std::vector<std::uint32_t> expected;  // messages with bytes that have no token
    Blocks outstanding = 0;               // that have tokens and have not come
    Blocks next = 0;                      // when the next token may go
    Blocks timer = -1;
    std::deque<Packet> tokens;  // as a sender
  };
  std::uint32_t without_token(std::uint32_t flow) const { return fabric_.flow(flow).bytes - granted_[flow]; }
  std::uint32_t next_bytes(std::uint32_t flow) const {
    return std::min(without_token(flow), fabric_.settings().packet_bytes);
  }
  // For a message's next packet.
  Packet next_token(std::uint32_t which) {
    const Flow& flow = fabric_.flow(which);
    const std::uint32_t bytes = next_bytes(which);
    granted_[which] += bytes;
    nodes_[flow.destination].outstanding += fabric_.data_blocks(bytes);
    return control_packet(fabric_, kToken, which, bytes, flow.destination, flow.source);
  }
  // A message's first packets need nobody's leave, as many as leave its node until a token could have come; its receiver counts them.
  void begin(Blocks now, std::uint32_t which) {
    const Flow& flow = fabric_.flow(which);
    for (Blocks begun = 0; without_token(which) != 0 && begun < most_;) {
      begun += fabric_.data_blocks(next_bytes(which));
      nodes_[flow.source].tokens.push_back(next_token(which));
    }
    fabric_.wake_node(now, flow.source);
  }
  void give(Blocks now, std::uint32_t which) {
    Node& node = nodes_[which];
    while (!node.expected.empty()) {
      const auto shortest =
          std::min_element(node.expected.begin(), node.expected.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return without_token(a) < without_token(b); });
      const std::uint32_t flow = *shortest;
      const Blocks blocks = fabric_.data_blocks(next_bytes(flow));
      if (node.outstanding + blocks > most_) return;  // until something comes
      if (node.next > now) {
        node.timer = node.next;
        return fabric_.set_timer(node.next, which);
      }
      node.next = now + blocks;
      fabric_.send_control(now, next_token(flow));
      if (without_token(flow) == 0) node.expected.erase(shortest);
    }
  }

  Fabric& fabric_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> granted_;
  Blocks most_ = 0;
};

// --- Fastpass ---------------------------------------------------------------------------------------------------------------------
class Fastpass final : public Protocol {
 public:
  explicit Fastpass(Fabric& fabric)
      : fabric_(fabric),
        granted_(fabric.settings().nodes),
        scheduler_({.ports = fabric.settings().nodes,
                    .active_per_pair = kActive,
                    .policy = edm::Policy::kShortestRemaining,
                    .matching = edm::Matching::kGreedy,
                    .chunk_bytes = std::max(fabric.settings().packet_bytes / 8 * 8, 8u),
                    .block_time = fabric.hardware().block(),
                    .framing_blocks = (fabric.settings().packet_framing_bytes + 7) / 8,
                    .response_lead = {},
                    .iteration = fabric.hardware().iteration,
                    .patience = {}}) {}

  void created(Blocks now, std::uint32_t which) override {
    const Flow& flow = fabric_.flow(which);
    if (flow.request) return send_request(fabric_, now, which);
    fabric_.send_control(now, control_packet(fabric_, kAsk, which, flow.bytes, flow.source, fabric_.arbiter()));
  }
  bool pick(Blocks, std::uint32_t node, Packet& out, Blocks&) override {
    if (granted_[node].empty()) return false;
    const Packet grant = granted_[node].front();
    granted_[node].pop_front();
    fabric_.flow(grant.flow).sent += grant.bytes;
    out = fabric_.packet_of(grant.flow, grant.bytes);
    return true;
  }
  void control(Blocks now, const Packet& packet) override {
    if (packet.kind == kGrant) {
      granted_[packet.to].push_back(packet);
      return fabric_.wake_node(now, packet.to);
    }
    ask(now, packet.flow);
    schedule(now);
  }
  void timer(Blocks now, std::uint32_t) override { schedule(now); }

 private:
  static constexpr std::uint32_t kActive = 16;
  Time time_of(Blocks blocks) const { return Time::at(fabric_.hardware().block() * blocks); }

  void ask(Blocks now, std::uint32_t which) {
    const Flow& flow = fabric_.flow(which);
    auto& line = lines_[{flow.source, flow.destination}];
    line.push_back(which);
    if (line.size() <= kActive) notify(now, which);
  }
  void notify(Blocks now, std::uint32_t which) {
    const Flow& flow = fabric_.flow(which);
    const auto verdict = scheduler_.notify(time_of(now), {.source = edm::PortId(flow.source),
                                                          .destination = edm::PortId(flow.destination),
                                                          .id = edm::MessageId(static_cast<std::uint8_t>(which)),
                                                          .kind = edm::DemandKind::kWrite,
                                                          .bytes = flow.bytes});
    SLUICE_CHECK(verdict == edm::NotifyVerdict::kAccepted);
  }
  void schedule(Blocks now) {
    while (scheduler_.next_deadline() <= time_of(now)) {
      scheduler_.on_deadline(time_of(now));
      for (edm::Grant grant; scheduler_.poll_grant(grant);) granted(now, grant);
    }
    const Time next = scheduler_.next_deadline();
    if (next == Time::never()) return;
    const std::int64_t block = fabric_.hardware().block().picoseconds();
    const Blocks when = std::max((next.since_start().picoseconds() + block - 1) / block, now + 1);
    if (when >= next_timer_ && next_timer_ > now) return;
    next_timer_ = when;
    fabric_.set_timer(when, 0);
  }
  void granted(Blocks now, const edm::Grant& grant) {
    auto& line = lines_.at({grant.source.value, grant.destination.value});
    const std::uint32_t which = line.front();
    fabric_.send_control(now,
                         control_packet(fabric_, kGrant, which, grant.bytes, fabric_.arbiter(), grant.source.value));
    if (!grant.last) return;
    line.pop_front();
    if (line.size() >= kActive) notify(now, line[kActive - 1]);
  }

  Fabric& fabric_;
  std::vector<std::deque<Packet>> granted_;
  edm::Scheduler scheduler_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::deque<std::uint32_t>> lines_;  // by pair, oldest first
  Blocks next_timer_ = -1;
};

std::unique_ptr<Protocol> make_protocol(Rival rival, Fabric& fabric) {
  switch (rival) {
    case Rival::kDctcp: return std::make_unique<Dctcp>(fabric);
    case Rival::kReceiverDriven: return std::make_unique<ReceiverDriven>(fabric);
    case Rival::kPfabric: return std::make_unique<Pfabric>(fabric);
    case Rival::kPfc: return std::make_unique<Pfc>(fabric);
    case Rival::kCxl: return std::make_unique<Cxl>(fabric);
    case Rival::kFastpass: return std::make_unique<Fastpass>(fabric);
  }
  SLUICE_CHECK(false);
}

}  // namespace

RivalOutcome run_rival(const EdmHardware& hardware, const RivalSettings& settings, const std::vector<TraceRow>& rows) {
  for (const TraceRow& row : rows) SLUICE_CHECK(row.type != TraceRow::Type::kFrame);
  Fabric fabric(hardware, settings, rows);
  const auto protocol = make_protocol(settings.rival, fabric);
  return fabric.run(*protocol);
}

std::int64_t alone_blocks(const EdmHardware& hardware, const RivalSettings& settings, const TraceRow& row) {
  RivalSettings two = settings;
  two.nodes = 2;
  TraceRow one = row;
  one.source = 0;
  one.destination = 1;
  one.slot = 0;
  return run_rival(hardware, two, {one}).times.front().finished;
}

}  // namespace sluice::sim
