// A rack in virtual time around Cowbird's switch engine: an application's NIC and memory nodes, all passive, each on a link that may be
// bad; the engine in the switch between them; the application's rings in memory that the NIC serves.
//
// Life:     construct -> start() sets all up -> channel() issues, run_until() lets time pass.
// Faults:   impairments; restart_engine(): the switch and all its state are lost, everything is set up anew; kill(i), revive(i): a memory
//           node and its queue pairs go, its memory stays.
// Time:     each round takes kRound; when nothing moves it jumps to the next deadline.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cowbird/channel.h"
#include "cowbird/switch_engine.h"
#include "port/impaired.h"
#include "port/memory_port.h"
#include "rc/two_adapters.h"
#include "tests/scenario/outbox.h"

namespace sluice::scenario {

struct CowbirdRackOptions {
  std::uint64_t seed = 1;
  std::uint32_t rate = 0;  // drop, duplicate and reorder each, per million, on each link and direction
  std::uint32_t corrupt = 0;
  std::uint32_t pools = 1;
  std::uint32_t channels = 1;
  std::uint32_t mtu = 1024;
  cowbird::Shape shape{.entries = 16, .request_bytes = 1024, .response_bytes = 1024};
  cowbird::SwitchEngineConfig engine{};
};

class CowbirdRack {
 public:
  static constexpr Duration kRound = Duration::nanoseconds(500);
  static constexpr std::size_t kPoolBytes = 1 << 16;
  static constexpr std::uint64_t kBlockBase = 0x10'0000;
  static constexpr std::uint64_t kPoolBase = 0x7000'0000;

  explicit CowbirdRack(const CowbirdRackOptions& options)
      : layout{.shape = options.shape, .channels = options.channels},
        options_(options),
        rng_(Rng(options.seed).fork("rack")) {
    host_ = make_host(1);
    block_.resize(layout.bytes() / 8);
    layout.write(block().data());
    block_key_ = register_memory(host_, block(), kBlockBase);
    for (std::uint32_t i = 0; i < options.pools; ++i) {
      auto& pool = *pools_.emplace_back(std::make_unique<Pool>());
      pool.host = make_host(static_cast<std::uint8_t>(10 + i));
      pool.memory.resize(kPoolBytes / 8);
      pool.key = register_memory(pool.host, this->pool(i), kPoolBase);
      regions.push_back({.node = i, .key = pool.key.value, .base = kPoolBase, .length = kPoolBytes});
    }
    for (std::uint32_t i = 0; i < options.channels; ++i) {
      channels.push_back(
          std::make_unique<cowbird::Channel>(block().subspan(layout.channel_at(i)), layout.channel(), regions));
    }
    pairs_.resize(options.channels);
    for (auto& pairs : pairs_) pairs.data.resize(options.pools);
  }

  MutableBytes block() { return bytes_of(block_); }
  MutableBytes pool(std::size_t i = 0) { return bytes_of(pools_[i]->memory); }
  cowbird::Channel& channel(std::size_t i = 0) { return *channels[i]; }
  cowbird::SwitchEngine& engine() { return *engine_; }
  const cowbird::SwitchChannel& engine_channel(std::uint32_t i = 0) { return *engine_->channel(pairs_[i].id); }

  // A switch comes up: what an application's host does then.
  void start() {
    engine_ = std::make_unique<cowbird::SwitchEngine>(engine_mac(), engine_gid(), options_.engine, rng_.next());
    for (std::uint32_t i = 0; i < options_.channels; ++i) {
      attach(i);
      check(engine_->set_regions(now, pairs_[i].id, 1, regions));
      for (std::uint32_t p = 0; p < options_.pools; ++p) {
        if (pools_[p]->alive) connect(i, p);
      }
      channels[i]->set_regions_generation(1);
    }
  }
  void restart_engine() {
    engine_.reset();
    start();
  }
  void kill(std::uint32_t p) {
    pools_[p]->alive = false;
    for (auto& pairs : pairs_) drop_peer(pairs.data[p], *pools_[p]);
  }
  void revive(std::uint32_t p) {
    pools_[p]->alive = true;
    for (std::uint32_t i = 0; i < options_.channels; ++i) connect(i, p);
  }

  bool round() {
    bool moved = host_.turn(now);
    for (auto& pool : pools_) {
      if (pool->alive) {
        moved |= pool->host.turn(now);
      } else {
        port::Frame lost[32];
        while (pool->host.port->receive(now, lost) != 0) {
        }
      }
    }
    moved |= hub();
    now = now + kRound;
    if (!moved) {
      Time next = std::min(engine_->next_deadline(), host_.next_deadline());
      for (const auto& pool : pools_) next = std::min(next, pool->alive ? pool->host.next_deadline() : Time::never());
      for (const auto& link : links_) next = std::min(next, link.port->next_deadline());
      now = std::max(now, std::min(next, now + Duration::milliseconds(1)));
    }
    return moved;
  }
  void step(int rounds) {
    for (int i = 0; i < rounds; ++i) round();
  }
  template <class Condition>
  bool run_until(Condition condition, int rounds = 2'000'000) {
    for (int i = 0; i < rounds; ++i) {
      if (condition()) return true;
      round();
    }
    return condition();
  }
  std::vector<cowbird::Completion> wait_for(std::size_t count, std::size_t channel = 0) {
    std::vector<cowbird::Completion> all;
    run_until([&] {
      cowbird::Completion out[8];
      const auto n = channels[channel]->collect(out);
      all.insert(all.end(), out, out + n);
      return all.size() >= count;
    });
    return all;
  }

  cowbird::InstanceLayout layout;
  std::vector<cowbird::Region> regions;
  std::vector<std::unique_ptr<cowbird::Channel>> channels;
  Time now;
  // Frames for which it says true are lost. Whither: "to" is the MAC's last byte, 0xFE the switch itself.
  std::function<bool(ByteView frame)> lose;
  // Sees every frame in the switch: those that came, and those that the engine made.
  std::function<void(ByteView frame, bool made)> watch;

 private:
  struct Pool {
    rc::Host host;
    std::vector<std::uint64_t> memory;
    memory::Key key{};
    bool alive = true;
  };
  struct Data {
    rc::QueuePair* host = nullptr;
    rc::QueuePair* pool = nullptr;
  };
  struct Pairs {
    cowbird::SwitchEngine::ChannelId id = 0;
    rc::QueuePair* control = nullptr;
    std::vector<Data> data;
  };
  struct Link {
    std::unique_ptr<port::Port> port;
    wire::MacAddress mac;
  };
  static MutableBytes bytes_of(std::vector<std::uint64_t>& words) {
    return {reinterpret_cast<std::uint8_t*>(words.data()), words.size() * 8};
  }
  static wire::MacAddress engine_mac() { return {{2, 0, 0, 0, 0, 0xFE}}; }
  static wire::Gid engine_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A4D00FE}); }

  rc::Host make_host(std::uint8_t number) {
    rc::AdapterConfig config;
    config.mac = wire::MacAddress{{2, 0, 0, 0, 0, number}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number})};
    config.seed = options_.seed * 1000 + number;
    config.first_qpn = rc::Qpn{0x1000u * number};
    rc::Host host;
    host.adapter = std::make_unique<rc::Adapter>(config);
    host.pd = host.adapter->create_domain();
    host.completions = host.adapter->create_completion_queue(64);
    auto cable = port::make_memory_cable(8192);
    const port::Impairment each{.drop = options_.rate,
                                .duplicate = options_.rate,
                                .reorder = options_.rate,
                                .corrupt = options_.corrupt,
                                .delay = {}};
    const port::ImpairmentSpec spec{.tx = each, .rx = each, .seed = options_.seed * 1000 + number};
    host.port = each.any() ? port::impaired(std::move(cable.a), spec) : std::move(cable.a);
    links_.push_back({std::move(cable.b), config.mac});
    return host;
  }
  static memory::Key register_memory(rc::Host& host, MutableBytes bytes, std::uint64_t address) {
    return host.adapter->regions()
        .add({.pd = host.pd, .bytes = bytes, .address = address, .access = memory::kAllAccess})
        .value();
  }
  static rc::QueuePair* make_pair(rc::Host& host) {
    return host.adapter
        ->create_queue_pair({.pd = host.pd,
                             .send_completions = host.completions,
                             .receive_completions = host.completions,
                             .send_depth = 1,
                             .receive_depth = 1})
        .value();
  }
  static void check(const Result<void>& result) {
    if (!result) throw std::runtime_error(result.error().message);
  }
  void to_receive(rc::Host& host, rc::QueuePair& pair, const cowbird::ConnectionEnd& peer, rc::Psn expected) {
    check(host.adapter->modify(now, pair, {.state = rc::QpState::kInit, .access = memory::kAllAccess}));
    check(host.adapter->modify(now, pair,
                               {.state = rc::QpState::kReadyToReceive,
                                .remote_gid = peer.gid,
                                .remote_mac = peer.mac,
                                .remote_qpn = peer.qpn,
                                .path_mtu = options_.mtu,
                                .receive_psn = expected,
                                .min_rnr_timer = 1,
                                .max_reads_in = 16}));
  }
  cowbird::ConnectionEnd end_of(const rc::Host& host, const rc::QueuePair& pair) {
    return {host.adapter->config().mac, host.adapter->config().gids[0], pair.qpn(),
            rc::Psn(static_cast<std::uint32_t>(rng_.next()))};
  }
  void attach(std::uint32_t i) {
    Pairs& pairs = pairs_[i];
    if (pairs.control != nullptr) host_.adapter->destroy(pairs.control);
    pairs.control = make_pair(host_);
    const auto attached = engine_
                              ->attach(now, {.layout = layout,
                                             .channel = i,
                                             .address = kBlockBase,
                                             .key = wire::RKey(block_key_.value),
                                             .host = end_of(host_, *pairs.control),
                                             .mtu = options_.mtu})
                              .value();
    pairs.id = attached.id;
    to_receive(host_, *pairs.control, attached.engine, attached.engine.expected);
  }
  void drop_peer(Data& data, Pool& pool) {
    if (data.pool != nullptr) pool.host.adapter->destroy(data.pool);
    data.pool = nullptr;
  }
  void connect(std::uint32_t i, std::uint32_t p) {
    Data& data = pairs_[i].data[p];
    Pool& pool = *pools_[p];
    if (data.host != nullptr) host_.adapter->destroy(data.host);
    drop_peer(data, pool);
    data.host = make_pair(host_);
    data.pool = make_pair(pool.host);
    const cowbird::DataConnection ends{
        .node = p, .host = end_of(host_, *data.host), .pool = end_of(pool.host, *data.pool), .mtu = options_.mtu};
    to_receive(host_, *data.host, ends.pool, ends.host.expected);
    to_receive(pool.host, *data.pool, ends.host, ends.pool.expected);
    check(engine_->connect(now, pairs_[i].id, ends));
  }

  void forward(port::Frame frame) {
    if (lose && lose(frame.bytes())) return;
    for (auto& link : links_) {
      if (!std::equal(link.mac.bytes.begin(), link.mac.bytes.end(), frame.data)) continue;
      std::uint8_t* const out = link.port->reserve(frame.length);
      if (out == nullptr) return;
      std::copy_n(frame.data, frame.length, out);
      link.port->commit(frame.length);
    }
  }
  bool hub() {
    bool moved = false;
    const auto send = [&](port::Frame frame) {
      moved = true;
      if (watch) watch(frame.bytes(), true);
      forward(frame);
    };
    port::Frame frames[32];
    for (auto& link : links_) {
      while (const std::size_t n = link.port->receive(now, frames)) {
        moved = true;
        for (std::size_t i = 0; i < n; ++i) {
          if (watch) watch(frames[i].bytes(), false);
          if (lose && lose(frames[i].bytes())) continue;
          if (!engine_->on_frame(now, frames[i], outbox_)) forward(frames[i]);
          outbox_.drain(send);
        }
      }
    }
    engine_->on_deadline(now, outbox_);
    engine_->on_spare(
        now, [](const wire::MacAddress&) { return true; }, outbox_);
    outbox_.drain(send);
    for (auto& link : links_) link.port->flush(now);
    return moved;
  }

  CowbirdRackOptions options_;
  Rng rng_;
  std::vector<Link> links_;
  rc::Host host_;
  std::vector<std::uint64_t> block_;
  memory::Key block_key_{};
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<Pairs> pairs_;
  std::unique_ptr<cowbird::SwitchEngine> engine_;
  Outbox outbox_;
};

}  // namespace sluice::scenario
