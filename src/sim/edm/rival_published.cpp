#include "sim/edm/rival_published.h"

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>

#include "base/check.h"
#include "sim/edm/rival_slots.h"
#include "sim/world/trace.h"

namespace sluice::sim {

using namespace slots;

namespace {

constexpr std::int64_t kTurn = 1'500;  // bytes of a message before the next one's: the artifact's ETH_MTU

Message plain_message(const TraceRow& row) {
  if (row.reads()) return {.part = Part::kRequest, .bytes = row.bytes, .turn = row.bytes};
  return {.part = Part::kWrite, .bytes = row.bytes};
}

// --- DCTCP and pFabric --------------------------------------------------------------------------------------------------------------
class Windowed : public Rack {
 public:
  Windowed(std::int64_t window, std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Rack(hop, nodes, rows), window_(window) {}

 protected:
  void send(std::uint16_t which) override {
    Node& node = nodes_[which];
    // Looked for before the current one joins the line's end.
    const auto next = std::find_if(node.line.begin(), node.line.end(), [&](std::uint32_t m) {
      return message(m).received < message(m).bytes && !message(m).over() && room(message(m)) > 0;
    });
    const auto place = static_cast<std::size_t>(next - node.line.begin());
    const bool found = next != node.line.end();
    if (node.current && turn_is_over(message(*node.current))) {
      Message& m = message(*node.current);
      m.turn = kTurn;
      if (m.bytes - m.received > 1) node.line.push_back(*node.current);
      node.current.reset();
    }
    if (!node.current && found) begin(node, place);
    if (!node.current) return;
    const Message& m = message(*node.current);
    if (m.to_send() > 0 && room(m) > 0) send_data(*node.current, m.bytes > kShort ? kShort / 8 : kBlockBytes);
    if (m.to_send() <= 0) node.current.reset();
  }
  void at_node(const Block& block) override {
    Message& m = message(block.message);
    if (m.part == Part::kRequest && block.first == 0) answer(block.message, row(m).request_bytes, State::kGranted);
    m.acknowledged = m.received;
    take(block);
  }

 private:
  std::int64_t room(const Message& m) const { return window_ - (m.sent - m.acknowledged); }
  bool turn_is_over(const Message& m) const {
    return m.turn <= 0 || room(m) <= 0 || m.to_send() <= kBlockBytes || m.over();
  }
  std::int64_t window_;
};

class PublishedDctcp final : public Windowed {
 public:
  PublishedDctcp(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Windowed(5'120 * kShort, hop, nodes, rows) {}

 protected:
  Message message_of(const TraceRow& row) const override {
    Message m = plain_message(row);
    if (row.reads()) m.bytes = 3 * kBlockBytes;
    if (!row.reads() && row.bytes < kShort) m.bytes += 3 * kBlockBytes;
    return m;
  }
};

class PublishedPfabric final : public Windowed {
 public:
  PublishedPfabric(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Windowed(5'120 * kBlockBytes, hop, nodes, rows) {}

 protected:
  Message message_of(const TraceRow& row) const override {
    Message m = plain_message(row);
    if (row.reads() ? row.request_bytes >= kShort : row.bytes < kShort) m.bytes += 2 * kBlockBytes;
    return m;
  }
  std::size_t next_of(std::uint16_t port) override {
    const auto left = [&](const Block& b) { return message(b.message).bytes - message(b.message).received; };
    const auto shortest = std::min_element(out_[port].begin(), out_[port].end(),
                                           [&](const Block& a, const Block& b) { return left(a) < left(b); });
    return static_cast<std::size_t>(shortest - out_[port].begin());
  }
};

// --- PFC ----------------------------------------------------------------------------------------------------------------------------
class PublishedPfc final : public Rack {
 public:
  PublishedPfc(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Rack(hop, nodes, rows), pairs_(std::size_t{nodes} * nodes), windows_(rows.size()) {}

 protected:
  // A read is a write there, of as many bytes.
  Message message_of(const TraceRow& row) const override {
    Message m = plain_message(row);
    if (row.reads()) m.bytes = m.turn = row.request_bytes;
    return m;
  }
  void send(std::uint16_t which) override {
    Node& node = nodes_[which];
    const auto next =
        std::find_if(node.line.begin(), node.line.end(), [&](std::uint32_t m) { return !message(m).over(); });
    const auto place = static_cast<std::size_t>(next - node.line.begin());
    const bool found = next != node.line.end();
    if (node.current) {
      Message& m = message(*node.current);
      if (m.over()) {
        node.current.reset();
      } else if (m.turn <= 0) {
        m.turn = kTurn;
        if (m.bytes - m.received > 1) node.line.push_back(*node.current);
        node.current.reset();
      }
    }
    if (!node.current && found) begin(node, place);
    if (!node.current) return;
    const Message& m = message(*node.current);
    if (pair(m.source, m.destination).paused) return;
    const std::int64_t room = windows_[*node.current].blocks * kBlockBytes - (m.sent - m.acknowledged);
    if (m.to_send() > 0 && room > 0) send_data(*node.current, kBlockBytes);
  }
  void forward() override {
    for (auto& line : in_) {
      for (; !line.empty(); line.pop_front()) {
        Block block = line.front();
        const auto queued = static_cast<std::int64_t>(out_[block.to].size());
        if (queued > kMarkAbove) block.marked = true;
        Pair& pair = this->pair(block.from, block.to);
        if (queued >= kPauseFrom) tell(Block::Kind::kPause, pair.told_to_pause, block);
        if (queued < kResumeBelow) tell(Block::Kind::kResume, pair.told_to_resume, block);
        out_[block.to].push_back(block);
      }
    }
  }
  void at_node(const Block& block) override {
    switch (block.kind) {
      case Block::Kind::kPause: return told(block, true);
      case Block::Kind::kResume: return told(block, false);
      case Block::Kind::kAck: return acknowledged(block);
      default: break;
    }
    acknowledge(block);
    take(block);
  }

 private:
  static constexpr std::int64_t kBuffer = 200'000;
  static constexpr std::int64_t kPauseFrom = kBuffer - 32 * 144;
  static constexpr std::int64_t kResumeBelow = kBuffer / 10;
  static constexpr std::int64_t kMarkAbove = 70'000;
  // Of a sender and the port that it sends to.
  struct Pair {
    bool paused = false;
    bool told_to_pause = false;  // it is on its way
    bool told_to_resume = false;
  };
  struct Window {
    std::int64_t blocks = 5'120;
    std::int64_t acknowledged_to = 0;  // at the receiver
    std::int64_t grown = 0;            // acknowledgements since it has grown
    std::array<bool, 64> marks{};      // of the last acknowledgements
    std::size_t next_mark = 0;
  };
  Pair& pair(std::uint16_t from, std::uint16_t to) { return pairs_[std::size_t{from} * nodes() + to]; }

  void tell(Block::Kind kind, bool& told, const Block& about) {
    if (told) return;
    told = true;
    out_[about.from].push_back({.kind = kind, .message = about.message, .from = about.to, .to = about.from});
  }
  void told(const Block& block, bool pause) {
    Pair& pair = this->pair(block.to, block.from);
    pair.paused = pause;
    (pause ? pair.told_to_pause : pair.told_to_resume) = false;
  }
  void acknowledge(const Block& block) {
    Window& window = windows_[block.message];
    if (block.first - window.acknowledged_to < kTurn - kBlockBytes) return;
    window.acknowledged_to = block.first + block.bytes;
    send_up(block.to, {.kind = Block::Kind::kAck,
                       .message = block.message,
                       .from = block.to,
                       .to = block.from,
                       .first = window.acknowledged_to,
                       .marked = block.marked});
  }
  void acknowledged(const Block& ack) {
    constexpr std::int64_t kSlowStartTo = 16'384;
    Window& window = windows_[ack.message];
    window.marks[window.next_mark] = ack.marked;
    window.next_mark = (window.next_mark + 1) % window.marks.size();
    if (ack.marked) {
      const auto marked = std::count(window.marks.begin(), window.marks.end(), true);
      window.blocks = std::max<std::int64_t>(window.blocks - window.blocks * marked / 64, 1);
    } else if (window.blocks < kSlowStartTo) {
      window.blocks *= 2;
    } else if (++window.grown == window.blocks) {
      ++window.blocks;
      window.grown = 0;
    }
    Message& m = message(ack.message);
    m.acknowledged = std::max(m.acknowledged, ack.first);
  }

  std::vector<Pair> pairs_;
  std::vector<Window> windows_;
};

// --- CXL ----------------------------------------------------------------------------------------------------------------------------
class PublishedCxl final : public Rack {
 public:
  PublishedCxl(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Rack(hop, nodes, rows), host_(nodes, {kCredit}), port_(nodes, {kCredit}), stay_(nodes) {}

 protected:
  Message message_of(const TraceRow& row) const override { return plain_message(row); }
  bool over() const override { return finished_ >= kCxlOver || Rack::over(); }
  // What has credit passes what has none, of the same node too: as far as the switch looks.
  void forward() override {
    constexpr std::size_t kLooksAt = 9'999;
    for (std::size_t from = 0; from < in_.size(); ++from) {
      auto& line = in_[from];
      for (std::size_t& stays = stay_[from]; stays < std::min(line.size(), kLooksAt);) {
        const auto block = line.begin() + static_cast<std::ptrdiff_t>(stays);
        Side& port = port_[block->to];
        if (port.credit < 1) {
          ++stays;
          continue;
        }
        --port.credit;
        out_[block->to].push_back(*block);
        line.erase(block);
      }
    }
  }
  void send(std::uint16_t which) override {
    Side& port = port_[which];
    Side& host = host_[which];
    if (port.credit < kAskBelow && !port.asked) {
      port.asked = true;
      --host.credit;
      return send_up(which, credit(which, out_[which].size()));
    }
    if (host.credit < 1) return;
    Node& node = nodes_[which];
    choose(node);
    if (!node.current) return;
    const Message& m = message(*node.current);
    if (m.to_send() > 0) {
      send_data(*node.current, kBlockBytes);
      --host.credit;
    }
    if (m.to_send() < 1) node.current.reset();
  }
  bool instead(std::uint16_t which) override {
    Side& host = host_[which];
    const Block update = credit(which, in_[which].size());
    if (host.credit >= kAskBelow || host.asked || update.credit <= 0) return false;
    host.asked = true;
    --port_[which].credit;
    send_down(which, update);
    return true;
  }
  void at_switch(std::uint16_t port, const Block& block) override {
    if (block.kind != Block::Kind::kCredit) return Rack::at_switch(port, block);
    if (port_[port].credit < 1 && block.credit > 0) std::ranges::fill(stay_, 0);
    port_[port] = {block.credit};
  }
  void at_node(const Block& block) override {
    if (block.kind == Block::Kind::kCredit) {
      host_[block.to] = {block.credit};
      return;
    }
    // A request's second block asks.
    const Message& m = message(block.message);
    if (m.part == Part::kRequest && block.first != 0 && !m.answer) answer(block.message, -1, State::kGranted);
    take(block);
  }

 private:
  static constexpr std::int64_t kCredit = 2 * 8'192 * kBlockBytes;
  static constexpr std::int64_t kAskBelow = 2 * 2'048 * kBlockBytes;
  // Who may send into a queue: a node into the switch's, a port into the node's.
  struct Side {
    std::int64_t credit = 0;
    bool asked = false;  // more is on its way
  };
  static Block credit(std::uint16_t which, std::size_t queued) {
    return {.kind = Block::Kind::kCredit,
            .from = which,
            .to = which,
            .credit = kCredit - static_cast<std::int64_t>(queued)};
  }
  // Requests overtake what is being sent, if the line does not begin with one.
  void choose(Node& node) {
    if (node.line.empty()) return;
    if (!node.current) return begin(node, 0);
    const auto asks = [&](std::uint32_t m) { return message(m).part == Part::kRequest; };
    if (asks(node.line.front())) return;
    const auto request = std::find_if(node.line.begin(), node.line.end(), asks);
    if (request == node.line.end()) return;
    const std::uint32_t before = *node.current;
    begin(node, static_cast<std::size_t>(request - node.line.begin()));
    node.line.push_back(before);
  }

  std::vector<Side> host_;
  std::vector<Side> port_;
  // By where they came in: the first blocks, whose ports had no credit when looked at, and have got none since.
  std::vector<std::size_t> stay_;
};

// Of those alike, who was before stays before. Most lines are in order already, but for one that came last.
template <class Before>
void sort(std::vector<std::uint32_t>& line, const Before& before) {
  constexpr std::ptrdiff_t kFew = 4;
  auto next = std::ranges::is_sorted_until(line, before);
  if (line.end() - next > kFew) {
    std::ranges::stable_sort(line, before);
    return;
  }
  for (; next != line.end(); ++next) std::rotate(std::upper_bound(line.begin(), next, *next, before), next, next + 1);
}

// --- EDM, the receiver-driven protocol, Fastpass ------------------------------------------------------------------------------------
class PublishedGrants : public Rack {
 public:
  PublishedGrants(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : Rack(hop, nodes, rows), sender_of_(nodes), coming_(nodes), demands_(rows.size()) {}

 protected:
  Message message_of(const TraceRow& row) const override { return plain_message(row); }
  void decide() override {
    free_ports();
    sort(order_, [&](std::uint32_t a, std::uint32_t b) { return demands_[a].left < demands_[b].left; });
    std::vector<bool> busy(nodes());
    for (const auto& sender : sender_of_)
      if (sender) busy[*sender] = true;
    for (const std::uint32_t which : order_) {
      const Demand& d = demands_[which];
      if (d.granted || sender_of_[d.receiver] || (sender_must_be_free() && busy[d.sender])) continue;
      busy[d.sender] = true;
      grant(which);
    }
    std::erase_if(order_, [&](std::uint32_t which) { return demands_[which].left <= 0; });
  }
  void send(std::uint16_t which) override {
    Node& node = nodes_[which];
    sort(node.line, [&](std::uint32_t a, std::uint32_t b) { return precedes(message(a), message(b)); });
    const bool found = !node.line.empty() && message(node.line.front()).state != State::kWaiting;
    const bool nobody = node.line.empty();
    if (node.current && message(*node.current).state == State::kWaiting) {
      node.line.push_back(*node.current);
      node.current.reset();
    }
    if (!node.current && nobody) return;
    if (!node.current && found) begin(node, 0);
    if (node.current) send_current(which, node);
  }
  virtual bool may_ask(std::uint16_t) { return true; }
  virtual bool precedes(const Message& a, const Message& b) const = 0;
  virtual bool sender_must_be_free() const { return true; }
  virtual void chunk_sent(const Message&) {}
  virtual void free_ports() {
    for (std::uint16_t port = 0; port < nodes(); ++port)
      if (coming_[port] <= kShort) sender_of_[port].reset();
  }
  void left(const Block& block) override {
    const Message& m = message(block.message);
    if (block.kind != Block::Kind::kData || m.part == Part::kRequest) return;
    Demand& d = demands_[m.row];
    coming_[d.receiver] -= std::clamp<std::int64_t>(d.under_way, 0, kBlockBytes);
    d.under_way -= kBlockBytes;
    if (d.under_way < 1) d.granted = false;
  }
  void at_switch(std::uint16_t port, const Block& block) override {
    const Message& m = message(block.message);
    const bool asks = block.kind == Block::Kind::kAsk;
    if (!asks && m.part != Part::kRequest) return Rack::at_switch(port, block);
    if (!asks && block.first != 0) return;
    demands_[m.row] = {.sender = asks ? m.source : m.destination,
                       .receiver = asks ? m.destination : m.source,
                       .left = asks ? m.bytes : row(m).request_bytes,
                       .of_read = !asks};
    order_.push_back(m.row);
  }
  void at_node(const Block& block) override {
    if (block.kind != Block::Kind::kGrant) return take(block);
    const std::uint32_t which = block.message;
    if (message(which).part == Part::kWrite) return granted(which, block.credit);
    if (message(which).answer) return granted(*message(which).answer, block.credit);
    answer(which, block.credit, State::kGranted);
    take(block);
  }

  std::vector<std::optional<std::uint16_t>> sender_of_;  // by receiver: whom it has been granted to
  std::vector<std::int64_t> coming_;                     // by receiver: bytes granted that have not left the switch

 private:
  // What the switch knows of a write or a read.
  struct Demand {
    std::uint16_t sender = 0;
    std::uint16_t receiver = 0;
    std::int64_t left = 0;       // not granted yet
    std::int64_t under_way = 0;  // of the last grant
    bool granted = false;
    bool of_read = false;  // whose request has not been passed on
  };
  void grant(std::uint32_t which) {
    Demand& d = demands_[which];
    d.granted = true;
    sender_of_[d.receiver] = d.sender;
    if (d.of_read) {
      d.of_read = false;
      out_[d.sender].push_back({.message = which, .from = d.receiver, .to = d.sender, .bytes = kBlockBytes});
    }
    d.under_way = std::min(d.left, kShort);
    d.left -= d.under_way;
    coming_[d.receiver] += d.under_way;
    out_[d.sender].push_back({.kind = Block::Kind::kGrant,
                              .message = which,
                              .from = d.receiver,
                              .to = d.sender,
                              .bytes = kBlockBytes,
                              .credit = d.under_way});
  }
  void granted(std::uint32_t which, std::int64_t bytes) {
    message(which).state = State::kGranted;
    message(which).turn = bytes;
  }
  void send_current(std::uint16_t which, Node& node) {
    const std::uint32_t current = *node.current;
    Message& m = message(current);
    if (m.state == State::kNew && !may_ask(which)) return node.line.push_back(current);
    if (m.state == State::kNew && m.part != Part::kRequest) {
      m.state = State::kWaiting;
      return send_up(which, {.kind = Block::Kind::kAsk, .message = current, .from = m.source, .to = m.destination});
    }
    if (m.state == State::kWaiting) return;
    if (m.turn > 0) {
      m.state = State::kGranted;
      send_data(current, kBlockBytes);
      if (m.turn < kBlockBytes && m.part != Part::kRequest) {
        chunk_sent(m);
        if (m.to_send() > 0) {
          m.state = State::kWaiting;
          node.line.push_back(current);
          node.current.reset();
        }
      }
    }
    if (m.to_send() < 1) node.current.reset();
  }

  std::vector<Demand> demands_;       // by row of the trace
  std::vector<std::uint32_t> order_;  // of demands with something left
};

class PublishedEdm final : public PublishedGrants {
 public:
  using PublishedGrants::PublishedGrants;

 protected:
  bool precedes(const Message& a, const Message& b) const override {
    const auto key = [](const Message& m) {
      const bool asks = m.part == Part::kRequest;
      return std::tuple(m.state, !asks, asks ? 0 : m.to_send(), asks ? 0 : m.created);
    };
    return key(a) < key(b);
  }
};

class PublishedReceiverDriven final : public PublishedGrants {
 public:
  using PublishedGrants::PublishedGrants;

 protected:
  bool precedes(const Message& a, const Message& b) const override {
    return std::tuple(a.state, a.to_send()) < std::tuple(b.state, b.to_send());
  }
  bool sender_must_be_free() const override { return false; }
  void free_ports() override {}
  void chunk_sent(const Message& m) override { sender_of_[m.destination].reset(); }
};

class PublishedFastpass final : public PublishedGrants {
 public:
  PublishedFastpass(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
      : PublishedGrants(hop, nodes, rows), asks_again_(nodes) {}

 protected:
  bool over() const override { return Rack::over() && (finished_ > kFastpassOver || finished_ == all()); }
  bool precedes(const Message& a, const Message& b) const override {
    const auto part = [](const Message& m) { return m.part == Part::kRequest ? 0 : m.part == Part::kAnswer ? 1 : 2; };
    return std::tuple(a.state, part(a), a.created) < std::tuple(b.state, part(b), b.created);
  }
  bool may_ask(std::uint16_t node) override {
    constexpr std::int64_t kBetween = 128;
    if (now_ < asks_again_[node]) return false;
    asks_again_[node] = now_ + kBetween;
    return true;
  }

 private:
  std::vector<std::int64_t> asks_again_;
};

std::unique_ptr<Rack> make_rack(std::optional<Rival> protocol, std::int64_t hop, std::uint32_t nodes,
                                const std::vector<TraceRow>& rows) {
  if (!protocol) return std::make_unique<PublishedEdm>(hop, nodes, rows);
  switch (*protocol) {
    case Rival::kDctcp: return std::make_unique<PublishedDctcp>(hop, nodes, rows);
    case Rival::kReceiverDriven: return std::make_unique<PublishedReceiverDriven>(hop, nodes, rows);
    case Rival::kPfabric: return std::make_unique<PublishedPfabric>(hop, nodes, rows);
    case Rival::kPfc: return std::make_unique<PublishedPfc>(hop, nodes, rows);
    case Rival::kCxl: return std::make_unique<PublishedCxl>(hop, nodes, rows);
    case Rival::kFastpass: return std::make_unique<PublishedFastpass>(hop, nodes, rows);
  }
  SLUICE_CHECK(false);
}

}  // namespace

PublishedRun run_published(std::optional<Rival> protocol, std::int64_t hop, std::uint32_t nodes,
                           const std::vector<TraceRow>& rows) {
  for (const TraceRow& row : rows) SLUICE_CHECK(row.type != TraceRow::Type::kFrame);
  const auto rack = make_rack(protocol, hop, nodes, rows);
  rack->run();
  PublishedRun run{.rows = {}, .end = rack->now(), .blocks = rack->blocks()};
  Trace trace;
  for (const Message& m : rack->messages()) {
    run.rows.push_back({.row = m.row,
                        .part = m.part == Part::kAnswer                               ? PublishedPart::kAnswer
                                : m.part == Part::kRequest && protocol != Rival::kPfc ? PublishedPart::kRequest
                                                                                      : PublishedPart::kWrite,
                        .created = m.created,
                        .started = m.started,
                        .finished = m.finished});
    trace.note(static_cast<std::uint64_t>(m.finished) << 32 ^ m.row);
  }
  run.trace_hash = trace.hash();
  return run;
}

}  // namespace sluice::sim
