// A star in virtual time: client adapters and one memory node around a box, every link impaired on its own; a repair agent beside it.
//
// Life:     construct -> client(i).memory is a RemoteMemory to node 0 -> round() until done. Queue pairs that fail are set up anew by
//           themselves.
// Faults:   impairments; kill(i): the host is never heard of again; restart_box(): the box and all its state are lost; restart_node(): the
//           memory node and all its queue pairs are lost and, after a while, it is there again, with its memory.
// Time:     each round takes kRound; when nothing moves it jumps to the next deadline.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "port/impaired.h"
#include "port/memory_port.h"
#include "rc/remote_rc.h"
#include "rc/two_adapters.h"
#include "remote/scheduler.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"
#include "tests/scenario/outbox.h"

namespace sluice::scenario {

struct StarOptions {
  std::uint64_t seed = 1;
  std::uint32_t clients = 8;
  std::size_t memory_bytes = 1u << 20;
  std::uint32_t client_rate = 0;  // drop, duplicate and reorder each, per million, on each client's link and direction
  std::uint32_t server_rate = 0;  // the same between box and memory node
  std::uint32_t mtu = 1024;
  std::uint8_t timeout = 7;  // 0.5 ms
  std::uint8_t retry_count = 7;
  bool with_box = true;
  bool steer = true;
  bool announce = true;  // else the box infers connections
  bool agent = true;
  std::uint32_t held_frames = 256;
  void (*trace)(Time, const swordbox::Packet&) = nullptr;  // sees what the box has judged
  swordbox::CloverConfig rule{};
  // Words that the box shares connections for; its region is set here. With `steer`: no nodes lie there.
  std::optional<swordbox::MultiplexerConfig> words{};
  std::uint64_t words_at = 0;    // offset in the memory
  std::uint64_t word_bytes = 0;  // so much of it; 0: all
  bool words_writable = true;    // the box is told so; else it has to be shown
};

class Star {
 public:
  static constexpr Duration kRound = Duration::nanoseconds(500);
  static constexpr std::uint64_t kBase = 0x10000;

  struct Client {
    rc::Host host;
    rc::CompletionQueue* completions = nullptr;
    rc::QueuePair* pair = nullptr;
    rc::QueuePair* peer = nullptr;
    std::unique_ptr<rc::RemoteRc> memory;
    bool dead = false;
    std::uint32_t reconnects = 0;
  };

  Star(remote::Scheduler& scheduler, const StarOptions& options)
      : options_(options), rng_(Rng(options.seed).fork("star")), memory_(options.memory_bytes / 8) {
    server_ = make_host(1, options.server_rate);
    server_.completions = server_.adapter->create_completion_queue(65'536);
    key_ = server_.adapter->regions()
               .add({.pd = server_.pd, .bytes = memory(), .address = kBase, .access = memory::kAllAccess})
               .value();
    for (std::uint32_t i = 0; i < options.clients; ++i) {
      Client& c = *clients_.emplace_back(std::make_unique<Client>());
      c.host = make_host(static_cast<std::uint8_t>(i + 10), options.client_rate);
      start(scheduler, c);
    }
    agent_.host = make_host(2, 0);
    agent_link_ = links_.size() - 1;
    start(scheduler, agent_);
    make_box({});
    for (auto& c : clients_) connect(*c);
    connect(agent_, false);
  }

  MutableBytes memory() { return {reinterpret_cast<std::uint8_t*>(memory_.data()), memory_.size() * 8}; }
  remote::RemoteAddress base() const { return {remote::NodeId(0), remote::RegionKey(key_.value), kBase}; }
  Client& client(std::uint32_t i) { return *clients_[i]; }
  swordbox::Box* box() { return box_.get(); }
  swordbox::CloverRule& rule() { return *rule_; }
  std::uint64_t reconnects() const {
    std::uint64_t sum = 0;
    for (const auto& c : clients_) sum += c->reconnects;
    return sum;
  }
  // Over all boxes there were.
  std::uint64_t count(swordbox::Verdict v) const { return totals_.of(v) + (box_ ? box_->counters().of(v) : 0); }
  template <class F>
  std::uint64_t event(F field) const {
    return totals_.*field + (box_ ? box_->counters().*field : 0);
  }

  void kill(std::uint32_t i) { clients_[i]->dead = true; }
  void restart_box(Duration fence) {
    if (!box_) return;
    collect();
    make_box(fence);
  }
  // Nothing that was sent to it before is executed afterwards.
  void restart_node(Duration down) {
    server_down_until_ = std::max(server_down_until_, now + down);
    for (auto& c : clients_) lose_peer(*c);
    lose_peer(agent_);
  }
  // Steers no more and forgets.
  void take_box_away() {
    if (box_) collect();
    box_.reset();
  }

  bool round() {
    bool moved = server_turn();
    for (auto& c : clients_) {
      if (!c->dead) moved |= turn(*c);
    }
    moved |= turn(agent_);
    moved |= hub();
    if (box_ && options_.agent) moved |= repair();
    return moved;
  }
  Time next_deadline() const {
    const Time server = now < server_down_until_ ? server_down_until_ : server_.next_deadline();
    Time next = std::min(server, agent_.host.next_deadline());
    for (const auto& c : clients_) {
      if (!c->dead) next = std::min(next, c->host.next_deadline());
    }
    for (const auto& link : links_) next = std::min(next, link.port->next_deadline());
    return box_ ? std::min(next, box_->next_deadline()) : next;
  }

  Time now;

 private:
  bool server_turn() {
    if (now >= server_down_until_) return server_.turn(now);
    port::Frame lost[32];
    while (server_.port->receive(now, lost) != 0) {
    }
    return false;
  }
  void lose_peer(Client& c) {
    if (c.peer != nullptr) server_.adapter->destroy(c.peer);
    c.peer = nullptr;
  }

  struct Link {
    std::unique_ptr<port::Port> port;
    wire::MacAddress mac;
  };
  rc::Host make_host(std::uint8_t number, std::uint32_t rate) {
    rc::AdapterConfig config;
    config.mac = wire::MacAddress{{2, 0, 0, 0, 0, number}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number})};
    config.seed = options_.seed * 1000 + number;
    config.first_qpn = rc::Qpn{0x1000u * number};
    rc::Host host;
    host.adapter = std::make_unique<rc::Adapter>(config);
    host.pd = host.adapter->create_domain();
    auto cable = port::make_memory_cable(8192);
    const port::Impairment each{.drop = rate, .duplicate = rate, .reorder = rate, .corrupt = 0, .delay = {}};
    const port::ImpairmentSpec spec{.tx = each, .rx = each, .seed = options_.seed * 1000 + number};
    host.port = rate != 0 ? port::impaired(std::move(cable.a), spec) : std::move(cable.a);
    links_.push_back({std::move(cable.b), config.mac});
    return host;
  }
  static void start(remote::Scheduler& scheduler, Client& c) {
    c.completions = c.host.adapter->create_completion_queue(4096);
    c.memory = std::make_unique<rc::RemoteRc>(scheduler, *c.host.adapter, *c.completions);
  }

  rc::QueuePair* make_pair(rc::Host& host, rc::CompletionQueue* completions) {
    return host.adapter
        ->create_queue_pair({.pd = host.pd,
                             .send_completions = completions,
                             .receive_completions = completions,
                             .send_depth = 64,
                             .receive_depth = 1})
        .value();
  }
  void to_ready(rc::Host& host, rc::QueuePair& pair, const rc::Host& other, const rc::QueuePair& peer, rc::Psn send,
                rc::Psn receive) {
    const auto check = [](const Result<void>& result) {
      if (!result) throw std::runtime_error(result.error().message);
    };
    check(host.adapter->modify(now, pair, {.state = rc::QpState::kInit, .access = memory::kAllAccess}));
    check(host.adapter->modify(now, pair,
                               {.state = rc::QpState::kReadyToReceive,
                                .remote_gid = other.adapter->config().gids[0],
                                .remote_mac = other.adapter->config().mac,
                                .remote_qpn = peer.qpn(),
                                .path_mtu = options_.mtu,
                                .receive_psn = receive,
                                .min_rnr_timer = 1,
                                .max_reads_in = 16}));
    check(host.adapter->modify(now, pair,
                               {.state = rc::QpState::kReadyToSend,
                                .send_psn = send,
                                .timeout = options_.timeout,
                                .retry_count = options_.retry_count,
                                .rnr_retry_count = 7,
                                .max_reads_out = 16}));
  }
  void connect(Client& c, bool through_box = true) {
    if (c.pair != nullptr) {
      c.memory->remove_node(remote::NodeId(0));
      c.host.adapter->destroy(c.pair);
      lose_peer(c);
      ++c.reconnects;
    }
    const rc::Psn mine(static_cast<std::uint32_t>(rng_.next()));
    const rc::Psn theirs(static_cast<std::uint32_t>(rng_.next()));
    c.pair = make_pair(c.host, c.completions);
    c.peer = make_pair(server_, server_.completions);
    to_ready(c.host, *c.pair, server_, *c.peer, mine, theirs);
    to_ready(server_, *c.peer, c.host, *c.pair, theirs, mine);
    if (box_ && through_box && options_.announce) {
      box_->connections().announce(now,
                                   {.address = {c.host.adapter->config().gids[0], server_.adapter->config().gids[0]},
                                    .qpn = {c.pair->qpn(), c.peer->qpn()},
                                    .starting_psn = {mine, theirs},
                                    .mtu = static_cast<std::uint16_t>(options_.mtu)});
    }
    c.memory->add_node(remote::NodeId(0), *c.pair);
  }
  void make_box(Duration fence) {
    if (!options_.with_box) return;
    swordbox::BoxConfig config;
    config.connections.connections = 256;
    config.connections.assumed_mtu = static_cast<std::uint16_t>(options_.mtu);
    config.held_frames = options_.held_frames;
    config.fenced_until = now + fence;
    if (options_.words) {
      config.numbers_fenced_until = Time::never();
      config.connections.idle = Duration::milliseconds(500);
      config.stale_after = Duration::milliseconds(2);
    }
    box_ = std::make_unique<swordbox::Box>(config);
    if (options_.words) {
      auto words = *options_.words;
      words.regions = {{.server = server_.adapter->config().gids[0],
                        .rkey = wire::RKey(key_.value),
                        .address = kBase + options_.words_at,
                        .length = options_.word_bytes,
                        .writable = options_.words_writable}};
      box_->set_multiplexer(std::make_unique<swordbox::Multiplexer>(words, box_->connections(), box_->counters()));
    }
    if (!options_.steer) return;
    auto rule = options_.rule;
    rule.regions = {{server_.adapter->config().gids[0], wire::RKey(key_.value)}};
    if (fence > Duration()) {
      rule.trust_writes_from = now + Duration::milliseconds(1);
      rule.fenced_until = now + fence;
    }
    auto made = std::make_unique<swordbox::CloverRule>(rule, box_->connections(), box_->counters());
    rule_ = made.get();
    box_->set_rule(std::move(made));
  }
  void collect() {
    const auto& c = box_->counters();
    for (std::size_t i = 0; i < swordbox::kVerdicts; ++i) totals_.verdicts[i] += c.verdicts[i];
#define X(name, meaning) totals_.name += c.name;
    SLUICE_BOX_EVENTS(X)
#undef X
  }

  bool turn(Client& c) {
    bool moved = c.host.turn(now);
    moved |= c.memory->poll(now) != 0;
    if (!c.memory->connected(remote::NodeId(0))) {
      connect(c, &c != &agent_);
      moved = true;
    }
    return moved;
  }
  void forward(port::Frame frame) {
    for (auto& link : links_) {
      if (!std::equal(link.mac.bytes.begin(), link.mac.bytes.end(), frame.data)) continue;
      std::uint8_t* const out = link.port->reserve(frame.length);
      if (out == nullptr) return;
      std::copy_n(frame.data, frame.length, out);
      link.port->commit(frame.length);
    }
  }
  // The agent stands beside the box, not behind it.
  bool is_agents(const port::Frame& frame, std::size_t link) const {
    const auto& mac = links_[agent_link_].mac.bytes;
    return link == agent_link_ || std::equal(mac.begin(), mac.end(), frame.data);
  }
  bool hub() {
    bool moved = false;
    const auto send = [this](port::Frame frame) { forward(frame); };
    if (box_ && box_->next_deadline() <= now) {
      box_->on_deadline(now, outbox_);
      outbox_.drain(send);
      moved = true;
    }
    port::Frame frames[32];
    for (std::size_t l = 0; l < links_.size(); ++l) {
      while (const std::size_t n = links_[l].port->receive(now, frames)) {
        moved = true;
        swordbox::Packet packets[32];
        std::size_t seen = 0;
        for (std::size_t i = 0; i < n; ++i) {
          if (is_agents(frames[i], l)) {
            forward(frames[i]);
          } else {
            packets[seen++].frame = frames[i];
          }
        }
        if (box_) box_->process(now, {packets, seen}, outbox_);
        for (std::size_t i = 0; i < seen; ++i) {
          if (options_.trace != nullptr && box_) options_.trace(now, packets[i]);
          if (packets[i].action == swordbox::Action::kForward) forward(packets[i].frame);
        }
        outbox_.drain(send);
      }
    }
    for (auto& link : links_) link.port->flush(now);
    return moved;
  }
  // The agent's work: a CAS on a connection of its own for each link that the box asks for.
  bool repair() {
    if (rule_ == nullptr) return false;
    swordbox::Repair asked[8];
    bool moved = false;
    while (const std::size_t n = rule_->take_repairs(asked)) {
      moved = true;
      for (std::size_t i = 0; i < n; ++i) agent_.memory->scheduler().spawn(repair_one(box_.get(), asked[i]));
    }
    return moved;
  }
  remote::Task<void> repair_one(swordbox::Box* for_box, swordbox::Repair what) {
    const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(what.rkey.value), what.address};
    const auto result = co_await agent_.memory->compare_and_swap(at, what.compare, what.swap);
    if (box_.get() != for_box) co_return;
    rule_->on_repair(now, what, result.status == remote::Status::kOk ? std::optional(result.prior) : std::nullopt);
  }

  StarOptions options_;
  Rng rng_;
  std::vector<std::uint64_t> memory_;
  memory::Key key_{};
  std::vector<Link> links_;
  rc::Host server_;
  Time server_down_until_;
  std::vector<std::unique_ptr<Client>> clients_;
  Client agent_;
  std::size_t agent_link_ = 0;
  std::unique_ptr<swordbox::Box> box_;
  swordbox::CloverRule* rule_ = nullptr;
  swordbox::Counters totals_;
  Outbox outbox_;
};

}  // namespace sluice::scenario
