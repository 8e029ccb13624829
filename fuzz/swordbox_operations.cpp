// Clients and a server that keep to the rules, with the box between them: what the clients are told is true, whatever the network does.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "fuzz/frame_sinks.h"
#include "fuzz/script.h"
#include "fuzz/swordbox_properties.h"
#include "fuzz/swordbox_world.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"

namespace sluice::fuzz {
namespace {

using namespace swordbox;

constexpr std::uint32_t kClients = 3;
constexpr std::size_t kMostLines = 24;
constexpr std::size_t kWindow = 5;
constexpr std::size_t kChains = 2;
constexpr Duration kTimeout = Duration::microseconds(100);
constexpr int kRetries = 60;
// What a client has not heard of is done by then or never will be.
constexpr Duration kDoubt = Duration::milliseconds(12);
constexpr std::uint64_t kKey = 100;  // of the first chain

class World {
 public:
  World(Script& script, std::uint8_t options) : script_(script), options_(options) {
    for (std::size_t c = 0; c < kChains; ++c) {
      nodes_.push_back({.chain = c, .linked = true});
      write_node(c);
    }
    make_box(Duration());
  }

  void play() {
    for (int steps = 0; !script_.empty() && steps < 3000; ++steps) step();
    finish();
  }
  const Counters& counters() const { return box_->counters(); }

 private:
  using Kind = Op::Kind;
  struct Client {
    Line* line = nullptr;
    std::array<std::uint64_t, kValues> value{};
    std::array<std::size_t, kChains> cursor{0, 1};
    std::array<std::uint64_t, kChains> free{free_word(false), free_word(false)};
    Append append{};
  };

  void make_box(Duration fence) {
    BoxConfig config;
    config.connections.connections = 32;
    config.connections.assumed_mtu = kMtu;
    config.connections.idle = Duration::milliseconds(100);
    config.held_frames = (options_ & 1) != 0 ? 4 : 64;
    config.verify_icrc = (options_ & 2) != 0;
    config.stale_after = Duration::microseconds(300);
    config.fenced_until = now_ + fence;
    box_ = std::make_unique<Box>(config);
    box_->take_short_cuts((options_ & 4) == 0);
    CloverConfig clover;
    clover.regions = {{server_gid(), kNodes}};
    clover.order = (options_ & 24) == 8 ? Order::kStrict : (options_ & 24) == 16 ? Order::kPassing : Order::kPipelined;
    clover.tracked_keys = 2;
    clover.history_entries = 64;
    clover.open_links = 8;
    clover.ring = 16;
    clover.hot_from = 1;
    clover.repair_after = Duration::microseconds(60);
    clover.resends = 2;
    if (fence > Duration()) {
      clover.trust_writes_from = now_ + kPacketLife;
      clover.fenced_until = config.fenced_until;
    }
    auto rule = std::make_unique<CloverRule>(clover, box_->connections(), box_->counters());
    rule_ = rule.get();
    box_->set_rule(std::move(rule));
    if ((options_ & 132) == 132) return;
    MultiplexerConfig words;
    words.regions = {{.server = server_gid(),
                      .rkey = kWords,
                      .address = kWordsAt,
                      .length = kWordBytes,
                      .writable = (options_ & 32) == 0}};
    words.words = (options_ & 64) != 0 ? 3 : 8;
    words.ring = 16;
    words.carriers = 2;
    words.carrier_ring = 32;
    words.passes = 8;
    words.lines = 64;
    words.long_writes = 4;
    words.repair_after = Duration::microseconds(60);
    words.give_up_after = Duration::microseconds(600);
    words.flight = Duration::milliseconds(2);
    box_->set_multiplexer(std::make_unique<Multiplexer>(words, box_->connections(), box_->counters()));
  }

  // --- the script ---

  void step() {
    const std::uint8_t what = script_.next();
    const std::uint8_t whom = script_.next();
    switch (what % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: return begin_something(clients_[whom % kClients], whom / kClients);
      case 5:
      case 6:
      case 7: return cross_box(whom);
      case 8: return on_line(whom, [&](Line& line) { deliver(line, Line::kToServer, 1 + what / 16u); });
      case 9: return on_line(whom, [&](Line& line) { deliver(line, Line::kToClient, 1 + what / 16u); });
      case 10: return disturb(what / 16, whom);
      case 11: return pass(Duration::microseconds(1 + whom));
      case 12: return move_all();
      case 13: return work_of_agent(whom % 4 != 0);
      case 14: return move_all();
      default: return befall(what / 16, whom);
    }
  }

  void befall(unsigned what, std::uint8_t whom) {
    Client& client = clients_[whom % kClients];
    switch (what) {
      case 0: return box_->switch_on(whom % 2 == 0);
      case 1: return box_->share_words(whom % 2 == 0);
      case 2: outbox_.full = whom % 2 == 0; return;
      case 3:
        if (client.line != nullptr) fail(client, whom % 2 == 0);
        return;
      case 4:
        if (boxes_ < 3 && whom % 4 == 0) {
          ++boxes_;
          repairs_.clear();
          make_box(Duration::milliseconds(4));
          for (Client& c : clients_) {
            if (c.line != nullptr && script_.next() % 4 != 0) fail(c, true);
          }
        }
        return;
      case 5:
        if (whom % 4 == 0) pass(Duration::milliseconds(3));
        return;
      default: return pass(Duration::microseconds(20));
    }
  }

  template <class F>
  void on_line(std::uint8_t whom, F f) {
    if (!lines_.empty()) f(*lines_[lines_.size() - 1 - whom % std::min<std::size_t>(lines_.size(), kClients + 1)]);
  }
  void disturb(unsigned how, std::uint8_t whom) {
    on_line(static_cast<std::uint8_t>(whom / 4), [&](Line& line) {
      auto& leg = line.legs[whom % 4];
      if (leg.empty()) return;
      if (how % 4 == 0 && leg.size() > 1) std::swap(leg[0], leg[1]);
      if (how % 4 == 1) leg.push_back(leg.front());
      if (how % 4 >= 2) leg.pop_front();
    });
  }

  // --- the network ---

  void push(Line& line, Line::Leg leg, Bytes frame) {
    if (line.legs[leg].size() < 64) line.legs[leg].push_back({now_, std::move(frame)});
  }
  void route(const Bytes& frame) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    const bool to_server = NetAddress::destination_of(frame.data(), parsed) == NetAddress::from(server_gid());
    const std::uint32_t number = parsed.destination.value - (to_server ? 0x200 : 0x100);
    SLUICE_CHECK(number < lines_.size());
    Line& line = *lines_[number];
    const auto client = NetAddress::from(client_gid(line.client));
    SLUICE_CHECK((to_server ? NetAddress::source_of(frame.data(), parsed)
                            : NetAddress::destination_of(frame.data(), parsed)) == client);
    push(line, to_server ? Line::kToServer : Line::kToClient, frame);
  }
  void flush() {
    std::vector<Bytes> made;
    made.swap(outbox_.frames);
    for (const Bytes& frame : made) route(frame);
    if (rule_ == nullptr) return;
    std::array<Repair, 4> asked;
    while (const std::size_t n = rule_->take_repairs(asked))
      repairs_.insert(repairs_.end(), asked.begin(), asked.begin() + static_cast<std::ptrdiff_t>(n));
  }

  // A burst of a few packets of one or two lines.
  void cross_box(std::uint8_t whom) {
    std::vector<Bytes> frames;
    const auto take = [&](Line& line, Line::Leg leg, std::size_t most) {
      for (; most != 0 && !line.legs[leg].empty(); --most) {
        frames.push_back(std::move(line.legs[leg].front().frame));
        line.legs[leg].pop_front();
      }
    };
    on_line(whom % 16,
            [&](Line& line) { take(line, (whom & 16) != 0 ? Line::kFromServer : Line::kToBox, 1 + whom / 64u); });
    if ((whom & 32) != 0)
      on_line(static_cast<std::uint8_t>(whom + 1), [&](Line& line) { take(line, Line::kToBox, 2); });
    burst(frames, whom % 3 != 0);
  }
  void burst(std::vector<Bytes>& frames, bool has_room) {
    if (frames.empty()) return;
    std::vector<Packet> packets(frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const std::size_t length = frames[i].size();
      frames[i].resize(length + 64);
      packets[i].frame = {frames[i].data(), static_cast<std::uint32_t>(length),
                          static_cast<std::uint32_t>(has_room ? length + 64 : 0)};
    }
    box_->process(now_, packets, outbox_);
    for (std::size_t i = 0; i < frames.size(); ++i) {
      SLUICE_CHECK((packets[i].action == Action::kForward) == (action_of(packets[i].verdict) == Action::kForward) ||
                   packets[i].verdict == Verdict::kSharedAnswer);
      frames[i].resize(packets[i].frame.length);
      if (packets[i].action == Action::kForward) route(frames[i]);
    }
    flush();
  }

  void deliver(Line& line, Line::Leg leg, std::size_t most) {
    for (; most != 0 && !line.legs[leg].empty(); --most) {
      const Bytes frame = std::move(line.legs[leg].front().frame);
      line.legs[leg].pop_front();
      if (leg == Line::kToClient) {
        if (!line.over) on_answer(line, frame);
      } else if (line.server_is_up) {
        line.server.on_request(store_, frame, [&](Bytes answer) { push(line, Line::kFromServer, std::move(answer)); });
      }
    }
  }
  // All that is on its way moves on.
  void move_all() {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      Line& line = *lines_[i];
      deliver(line, Line::kToClient, 64);
      deliver(line, Line::kToServer, 64);
      std::vector<Bytes> frames;
      for (const Line::Leg leg : {Line::kFromServer, Line::kToBox}) {
        for (auto& packet : line.legs[leg]) frames.push_back(std::move(packet.frame));
        line.legs[leg].clear();
      }
      burst(frames, i % 2 == 0);
    }
  }

  void pass(Duration time) {
    const Time until = now_ + time;
    for (int i = 0; i < 256 && box_->next_deadline() <= until; ++i) {
      now_ = std::max(now_, box_->next_deadline());
      box_->on_deadline(now_, outbox_);
      flush();
    }
    now_ = until;
    for (auto& line : lines_) {
      for (auto& leg : line->legs)
        std::erase_if(leg, [this](const Line::Packet& packet) { return now_ - packet.since > kPacketLife; });
    }
    while (!doubts_.empty() && doubts_.front().first + kDoubt < now_) {
      --values_[doubts_.front().second].under_way;
      doubts_.pop_front();
    }
    for (Client& client : clients_) {
      Line* const line = client.line;
      if (line == nullptr || line->open.empty() || now_ - line->last < kTimeout) continue;
      if (++line->retries > kRetries) {
        ++failures_;
        fail(client, script_.next() % 2 == 0);
      } else {
        send_again(*line);
      }
    }
  }

  void work_of_agent(bool succeeds) {
    if (repairs_.empty()) return;
    const Repair what = repairs_.front();
    repairs_.pop_front();
    rule_->on_repair(now_, what,
                     succeeds ? std::optional(store_.swap(what.address, what.compare, what.swap)) : std::nullopt);
    box_->on_deadline(now_, outbox_);
    flush();
  }

  // --- a client's end ---

  Line* line_of(Client& client) {
    if (client.line == nullptr && lines_.size() < kMostLines) {
      const auto number = static_cast<std::uint32_t>(lines_.size());
      const Psn psn(0xFF'FFFAu);
      lines_.push_back(std::make_unique<Line>(number, static_cast<std::uint32_t>(&client - clients_.data()), psn));
      client.line = lines_.back().get();
      const bool known = box_->connections().announce(now_, {.address = {client_gid(client.line->client), server_gid()},
                                                             .qpn = {Line::near(number), Line::far(number)},
                                                             .starting_psn = {psn, psn},
                                                             .mtu = kMtu});
      SLUICE_CHECK(known);
    }
    return client.line;
  }

  void begin_something(Client& client, unsigned what) {
    Line* const line = line_of(client);
    if (line == nullptr || line->open.size() >= kWindow) return;
    const std::uint8_t which = script_.next();
    const std::size_t v = which % kValues;
    const auto unique = ++unique_;
    switch (what % 12) {
      case 0:
      case 1:
      case 2: return begin(client, {.kind = Kind::kAdd, .address = ticket_at(which % kTickets), .operand = 1});
      case 3:
      case 4: {
        const auto& given = values_[v].given;
        const std::uint64_t compare = which % 8 == 7 ? *given.begin() : client.value[v];
        return begin(client, {.kind = Kind::kSwap, .address = value_at(v), .operand = unique, .compare = compare});
      }
      case 5:
        return begin(client, {.kind = which % 4 < 2 ? Kind::kSet : Kind::kAlways,
                              .address = value_at(v),
                              .operand = unique,
                              .ask = which % 16 < 8});
      case 6:
        ++unique_;
        if (which % 2 == 0)
          return begin(client, {.kind = Kind::kPair, .address = value_at(0), .operand = unique, .ask = which % 16 < 8});
        return begin(client, {.kind = Kind::kLong, .address = kWrittenAt, .ask = which % 16 < 8, .span = 2});
      case 7:
        if (which % 2 == 0)
          return begin(client,
                       {.kind = Kind::kRead, .address = kReadAt + which * 2u, .span = which % 4 == 0 ? 3u : 1u});
        return begin(client,
                     {.kind = Kind::kSeeWord,
                      .address = which % 4 == 1 ? value_at(which / 4 % kValues) : ticket_at(which / 4 % kTickets)});
      case 8:
      case 9: return append(client, which);
      case 10:
        return begin(client,
                     {.kind = Kind::kSeeNode,
                      .address = node_at(which % 2 == 0 ? client.cursor[which / 2 % kChains] : which / 2 % kChains)});
      default: return link(client);
    }
  }

  void begin(Client& client, Op op) {
    Line& line = *client.line;
    op.first = line.next;
    op.message = ++line.messages;
    op.began = ++clock_;
    line.next = line.next + op.span;
    if (op.kind == Kind::kAdd || (op.kind == Kind::kSeeWord && !has_values(op))) {
      Ticket& ticket = ticket_of(op);
      op.compare = ticket.done;  // at least so many were drawn before
      if (op.kind == Kind::kAdd) ++ticket.begun;
    }
    for_each_value(op, [&](Value& value, std::uint64_t given) {
      op.alone = value.under_way++ == 0;
      op.beginning = ++value.begun;
      if (op.kind != Kind::kPair) op.expects = std::exchange(value.certain, std::nullopt);
      value.certain.reset();
      if (op.kind != Kind::kSeeWord) value.given.insert(given);
    });
    if (line.open.empty()) line.last = now_;
    line.open.push_back(op);
    send(line, line.open.back());
  }
  static bool has_values(const Op& op) { return op.address >= value_at(0) && op.address < value_at(kValues); }
  Ticket& ticket_of(const Op& op) { return tickets_[(op.address - kWordsAt) / 64]; }
  // f(word, the value that the operation would give it).
  template <class F>
  void for_each_value(const Op& op, F f) {
    if (!has_values(op)) return;
    const auto first = (op.address - value_at(0)) / 8;
    f(values_[first], op.operand);
    if (op.kind == Kind::kPair) f(values_[first + 1], op.operand + 1);
  }

  void send(Line& line, const Op& op) {
    const auto out = [&](Opcode opcode, Psn psn, bool ask, const Bytes& body) {
      push(line, Line::kToBox,
           frame_of(client_gid(line.client), server_gid(), Line::far(line.number), opcode, psn, ask, body));
    };
    const wire::RKey key = op.kind >= Kind::kNode ? kNodes : kWords;
    const auto write = [&](const Bytes& bytes) {
      Bytes body = body_of(wire::Reth{op.address, key, static_cast<std::uint32_t>(bytes.size())});
      body.insert(body.end(), bytes.begin(), bytes.end());
      out(Opcode::kRcWriteOnly, op.first, op.ask, body);
    };
    switch (op.kind) {
      case Kind::kAdd:
        return out(Opcode::kRcFetchAdd, op.first, true, body_of(wire::AtomicEth{op.address, key, op.operand, 0}));
      case Kind::kSwap:
      case Kind::kLink:
        return out(Opcode::kRcCompareSwap, op.first, true,
                   body_of(wire::AtomicEth{op.address, key, op.operand, op.compare}));
      case Kind::kAlways:
        return out(Opcode::kRcMaskedCompareSwap, op.first, true,
                   body_of(wire::MaskedAtomicEth{op.address, key, op.operand, 0, ~std::uint64_t{0}, 0}));
      case Kind::kSet: return write(words({op.operand}));
      case Kind::kPair: return write(words({op.operand, op.operand + 1}));
      case Kind::kNode: {
        const Node& node = nodes_[node_of(op.address)];
        Bytes bytes = words({free_word(node.kind), kKey + node.chain, node_of(op.address)});
        bytes.resize(kNodeBytes);
        return write(bytes);
      }
      case Kind::kLong: {
        Bytes body = body_of(wire::Reth{op.address, key, kMtu + 64});
        body.resize(body.size() + kMtu);
        out(Opcode::kRcWriteFirst, op.first, false, body);
        return out(Opcode::kRcWriteLast, op.first + 1, op.ask, Bytes(64));
      }
      default: return out(Opcode::kRcReadRequest, op.first, true, body_of(wire::Reth{op.address, key, length_of(op)}));
    }
  }
  static std::uint32_t length_of(const Op& op) {
    if (op.kind == Kind::kSeeNode) return kNodeBytes;
    return op.kind == Kind::kSeeWord ? 8 : (op.span - 1) * kMtu + 88;
  }
  static Bytes words(std::initializer_list<std::uint64_t> all) {
    Bytes bytes(all.size() * 8);
    std::size_t at = 0;
    for (const std::uint64_t word : all) store_le(bytes.data() + 8 * at++, word);
    return bytes;
  }
  void send_again(Line& line) {
    line.last = now_;
    for (Op& op : line.open) {
      op.got = 0;
      op.ask = true;
      send(line, op);
    }
  }

  // Everything under way ends as unknown; perhaps the server's end lives on.
  void fail(Client& client, bool server_too) {
    Line& line = *client.line;
    line.over = true;
    if (server_too) line.server_is_up = false;
    for (const Op& op : line.open) {
      for_each_value(op, [&](Value& value, std::uint64_t) {
        doubts_.emplace_back(now_, static_cast<std::size_t>(&value - values_.data()));
      });
    }
    Append& append = client.append;
    if (append.active) {
      nodes_[append.node].unknown = true;
      append.waits = true;
      // It may try the very same again, or leave it. It must not when its WRITE may not have been done.
      const bool wrote = std::ranges::none_of(line.open, [](const Op& op) { return op.kind == Kind::kNode; });
      if (!wrote || script_.next() % 2 == 0) append = {};
    }
    line.open.clear();
    client.line = nullptr;
    const Crossing crossing = box_->connections().find(NetAddress::from(client_gid(line.client)),
                                                       NetAddress::from(server_gid()), Line::far(line.number));
    if (crossing && server_too) box_->connections().close(crossing.connection);
  }

  void on_answer(Line& line, const Bytes& frame) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    SLUICE_CHECK(!parsed.traits().is_request);
    const Psn psn = parsed.psn;
    const bool is_plain = parsed.opcode == Opcode::kRcAcknowledge;
    const auto aeth =
        parsed.traits().has(wire::Extended::kAeth) ? wire::get<wire::Aeth>(frame.data(), parsed) : wire::Aeth{};
    SLUICE_CHECK(aeth.is_ack() || (is_plain && aeth.is_nak() && aeth.nak_code() == wire::NakCode::kPsnSequenceError));
    SLUICE_CHECK(psn.since(line.next) < (aeth.is_ack() ? 0 : 1));
    const auto op = std::ranges::find_if(line.open, [&](const Op& o) {
      return psn.since(o.first) >= 0 && psn.since(o.first) < static_cast<std::int32_t>(o.span);
    });
    if (parsed.traits().has(wire::Extended::kAeth)) SLUICE_CHECK(aeth.msn <= line.messages);
    if (!aeth.is_ack()) {
      if (op == line.open.end()) return;
      SLUICE_CHECK(aeth.msn + 1 >= op->message);
      acknowledge(line, op - line.open.begin());
      return send_again(line);
    }
    if (op == line.open.end()) return;  // it has its answer
    if (is_plain) {
      const bool whole = psn == op->first + (op->span - 1);
      SLUICE_CHECK(aeth.msn + (whole ? 0 : 1) >= op->message);
      return acknowledge(line, op - line.open.begin() + (whole ? 1 : 0));
    }
    // Data: what others brought before it has been lost if it is not there.
    const auto before =
        std::ranges::find_if(line.open.begin(), op, [](const Op& o) { return o.is_atomic() || o.reads(); });
    if (before != op) return;
    if (parsed.traits().has(wire::Extended::kAeth)) SLUICE_CHECK(aeth.msn >= op->message);
    const auto part = static_cast<std::uint32_t>(psn.since(op->first));
    if (op->is_atomic()) {
      SLUICE_CHECK(parsed.opcode == Opcode::kRcAtomicAcknowledge);
      op->seen = wire::get<wire::AtomicAckEth>(frame.data(), parsed).original;
    } else {
      SLUICE_CHECK(op->reads() && parsed.traits().kind == wire::Kind::kReadResponse);
      if (part != op->got) return;
      see(*op, part, wire::payload(frame.data(), parsed));
    }
    if (++op->got < op->span) {
      line.retries = 0;
      line.last = now_;
      return acknowledge(line, op - line.open.begin());
    }
    acknowledge(line, op - line.open.begin() + 1);
  }
  void see(Op& op, std::uint32_t part, ByteView bytes) {
    SLUICE_CHECK(bytes.size() == std::min(kMtu, length_of(op) - part * kMtu));
    if (op.kind == Kind::kRead) {
      for (std::size_t i = 0; i < bytes.size(); ++i)
        SLUICE_CHECK(bytes[i] == Store::data(op.address - kReadAt + part * kMtu + i));
      return;
    }
    op.seen = load_le<std::uint64_t>(bytes.data());
    if (op.kind != Kind::kSeeNode) return;
    const std::size_t asked = node_of(op.address);
    const auto id = load_le<std::uint64_t>(bytes.data() + 16);
    SLUICE_CHECK(id < nodes_.size() && load_le<std::uint64_t>(bytes.data() + 8) == kKey + nodes_[asked].chain);
    SLUICE_CHECK(nodes_[id].chain == nodes_[asked].chain);
    SLUICE_CHECK(id == asked || is_behind(asked, id));
    op.compare = id;
  }

  // The first `n` of what is open have been executed, but what asked for data is to be asked for again.
  void acknowledge(Line& line, std::ptrdiff_t n) {
    Client& client = clients_[line.client];
    for (; n > 0 && !line.over; --n) {
      const Op op = line.open.front();
      if ((op.is_atomic() || op.reads()) && op.got < op.span) return;
      line.open.pop_front();
      line.retries = 0;
      line.last = now_;
      done(client, op);
    }
  }

  // --- what is true ---

  void done(Client& client, const Op& op) {
    ++clock_;
    if (op.kind == Kind::kAdd || (op.kind == Kind::kSeeWord && !has_values(op))) {
      Ticket& ticket = ticket_of(op);
      SLUICE_CHECK(op.seen >= op.compare);
      const std::uint64_t drawn = op.seen + (op.kind == Kind::kAdd ? 1u : 0u);
      SLUICE_CHECK(drawn <= ticket.begun);
      SLUICE_CHECK(store_.word(op.address) >= drawn);  // nobody is told before it is done
      if (op.kind == Kind::kSeeWord) return;
      SLUICE_CHECK(ticket.drawn.insert(op.seen).second);
      ++ticket.done;
    }
    for_each_value(op, [&](Value& value, std::uint64_t given) { value_done(client, op, value, given); });
    if (op.kind == Kind::kLink) link_answered(client, op);
    if (op.kind == Kind::kSeeNode) {
      const std::size_t id = op.compare;
      SLUICE_CHECK(is_there(id));
      client.cursor[nodes_[id].chain] = id;
      client.free[nodes_[id].chain] = free_word(nodes_[id].kind);
    }
  }

  void value_done(Client& client, const Op& op, Value& value, std::uint64_t given) {
    --value.under_way;
    const bool tells = op.kind == Kind::kSwap || op.kind == Kind::kAlways || op.kind == Kind::kSeeWord;
    const bool took = op.kind != Kind::kSeeWord && (op.kind != Kind::kSwap || op.seen == op.compare);
    const std::uint64_t now_there = took ? given : op.seen;
    if (tells) {
      SLUICE_CHECK(value.given.contains(op.seen));
      const auto gone = value.gone.find(op.seen);
      SLUICE_CHECK(gone == value.gone.end() || gone->second > op.began);
    }
    if (tells && took) {
      SLUICE_CHECK(value.followed.insert(op.seen).second);
      value.gone.emplace(op.seen, clock_);
    }
    const bool alone = op.alone && value.begun == op.beginning && op.kind != Kind::kPair;
    if (alone) {
      SLUICE_CHECK(!tells || !op.expects || *op.expects == op.seen);
      SLUICE_CHECK(store_.word(op.address) == now_there);
      value.certain = now_there;
    }
    client.value[static_cast<std::size_t>(&value - values_.data())] = now_there;
  }

  // --- chains ---

  void write_node(std::size_t n) {
    const Bytes bytes = words({free_word(nodes_[n].kind), kKey + nodes_[n].chain, n});
    std::ranges::copy(bytes, store_.at(node_at(n), bytes.size()).begin());
  }
  // Whether the chain leads from one to the other.
  bool is_behind(std::size_t from, std::size_t node) {
    for (std::size_t steps = 0; from != node; ++steps) {
      SLUICE_CHECK(steps < kMostNodes);  // no ring
      const std::uint64_t next = store_.word(node_at(from));
      if (is_free(next)) return false;
      from = node_of(next);
      SLUICE_CHECK(from < nodes_.size());
    }
    return true;
  }
  bool is_there(std::size_t node) { return is_behind(nodes_[node].chain, node); }

  void append(Client& client, std::uint8_t which) {
    if (client.append.active || nodes_.size() == kMostNodes) return link(client);
    const std::size_t chain = which % kChains;
    const bool kind = which % 32 == 31;
    client.append = {.active = true,
                     .waits = true,
                     .node = nodes_.size(),
                     .at = client.cursor[chain],
                     .compare = client.free[chain]};
    nodes_.push_back({.chain = chain, .kind = kind});
    begin(client, {.kind = Kind::kNode, .address = node_at(client.append.node), .ask = which % 8 < 4});
    if (which % 8 != 5) link(client);
  }
  void link(Client& client) {
    Append& append = client.append;
    if (!append.active || !append.waits || client.line->open.size() >= kWindow + 1) return;
    append.waits = false;
    ++append.tries;
    begin(client, {.kind = Kind::kLink,
                   .address = node_at(append.at),
                   .operand = pointer_to(append.node, nodes_[append.node].kind),
                   .compare = append.compare});
  }
  void link_answered(Client& client, const Op& op) {
    Append& append = client.append;
    const std::size_t node = node_of(op.operand);
    SLUICE_CHECK(append.active && append.node == node);
    const std::size_t chain = nodes_[node].chain;
    if (op.seen == op.compare || op.seen == op.operand) {
      SLUICE_CHECK(is_there(node));
      nodes_[node].linked = true;
      client.cursor[chain] = node;
      client.free[chain] = free_word(nodes_[node].kind);
      append = {};
      return;
    }
    if (is_free(op.seen)) {
      append.compare = op.seen;
    } else {
      const std::size_t next = node_of(op.seen);
      SLUICE_CHECK(next < nodes_.size() && nodes_[next].chain == chain && is_there(next));
      append.at = client.cursor[chain] = next;
      append.compare = client.free[chain] = free_word(nodes_[next].kind);
    }
    append.waits = true;
    if (append.tries > 8) {
      append = {};
    } else {
      link(client);
    }
  }

  // --- the end ---

  // A whole network, and time: what is under way ends, nothing waits, and what clients were told stands.
  void finish() {
    outbox_.full = false;
    const auto given_up = [this] {
      const Counters& c = counters();
      return c.of(Verdict::kCutOff) + c.of(Verdict::kFenced) + c.carriers_lost;
    };
    const auto before = given_up();
    for (Client& client : clients_) {
      if (client.line != nullptr) client.line->retries = 0;
    }
    const auto failures = failures_;
    const auto is_busy = [](const Client& client) { return client.line != nullptr && !client.line->open.empty(); };
    for (int i = 0; i < 1000 && std::ranges::any_of(clients_, is_busy); ++i) {
      for (int k = 0; k < 4; ++k) move_all();
      while (!repairs_.empty()) work_of_agent(true);
      pass(Duration::microseconds(20));
    }
    SLUICE_CHECK(std::ranges::none_of(clients_, is_busy));
    SLUICE_CHECK(failures_ == failures || given_up() != before);  // … fails, and says why
    // What clients that are gone have left goes with their connections.
    for (int i = 0; i < 200; ++i) {
      move_all();
      while (!repairs_.empty()) work_of_agent(true);
      pass(i < 60 ? Duration::microseconds(250) : Duration::milliseconds(5));
      if (i > 60 && box_->held() == 0) break;
    }
    SLUICE_CHECK(box_->held() == 0 && (box_->multiplexer() == nullptr || box_->multiplexer()->open() == 0));
    SLUICE_CHECK(rule_->open_links() == 0 && counters().chains_broken == 0 && counters().releases_cut_short == 0);
    for (std::size_t i = 0; i < kTickets; ++i) {
      const std::uint64_t drawn = store_.word(ticket_at(i));
      SLUICE_CHECK(drawn >= tickets_[i].done && drawn <= tickets_[i].begun);
    }
    for (std::size_t i = 0; i < kValues; ++i) {
      const std::uint64_t value = store_.word(value_at(i));
      SLUICE_CHECK(values_[i].given.contains(value) && !values_[i].gone.contains(value));
      SLUICE_CHECK(values_[i].under_way == 0);
      SLUICE_CHECK(!values_[i].certain || *values_[i].certain == value);
    }
    check_chains();
  }
  void check_chains() {
    std::vector<bool> seen(nodes_.size());
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      for (std::size_t n = chain;;) {
        SLUICE_CHECK(!seen[n] && nodes_[n].chain == chain);
        seen[n] = true;
        const std::uint64_t next = store_.word(node_at(n));
        if (is_free(next)) break;
        n = node_of(next);
        SLUICE_CHECK(n < nodes_.size());
      }
    }
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      SLUICE_CHECK(seen[n] || !nodes_[n].linked);
      SLUICE_CHECK(!seen[n] || nodes_[n].linked || nodes_[n].unknown);
    }
  }

  Script& script_;
  std::uint8_t options_;
  Time now_;
  Store store_;
  std::unique_ptr<Box> box_;
  CloverRule* rule_ = nullptr;
  int boxes_ = 0;     // that were lost
  int failures_ = 0;  // connections that clients gave up
  AllFrames outbox_;
  std::deque<Repair> repairs_;
  std::array<Client, kClients> clients_{};
  std::vector<std::unique_ptr<Line>> lines_;
  std::array<Ticket, kTickets> tickets_{};
  std::array<Value, kValues> values_{};
  std::deque<std::pair<Time, std::size_t>> doubts_;
  std::vector<Node> nodes_;
  std::uint64_t unique_ = 1000;
  std::uint64_t clock_ = 0;
};

}  // namespace

swordbox::Counters check_operations_through_swordbox(ByteView bytes) {
  Script script(bytes);
  World world(script, script.next());
  world.play();
  return world.counters();
}

}  // namespace sluice::fuzz
