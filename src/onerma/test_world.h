// A rack of 1RMA nodes around a hub, in virtual time: the smallest world with more than two. For tests, fuzzers and benchmarks.
//
// Life:     add_host() ... -> run_until(condition). A host dies by kill(), and lives again by revive() with another Boot.
// Time:     each round of the world takes `kRound`; when nothing moves it jumps to the next deadline.
// Network:  with an impairment, every host's cable suffers it, both ways, each by a seed of its own. A tap may see and change every frame.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "onerma/node.h"
#include "onerma/remote_onerma.h"
#include "port/impaired.h"
#include "port/memory_port.h"
#include "remote/scheduler.h"

namespace sluice::onerma {

class World {
 public:
  static constexpr Duration kRound = Duration::nanoseconds(500);

  struct Host {
    NodeConfig config;
    std::unique_ptr<Node> node;  // null: dead
    std::unique_ptr<port::Port> port;
    std::unique_ptr<port::Port> hub_end;
    std::vector<RemoteOnerma*> clients;  // turned with the host

    bool turn(Time at) {
      bool moved = false;
      port::Frame burst[32];
      while (const std::size_t n = port->receive(at, burst)) {
        for (std::size_t i = 0; i < n && node != nullptr; ++i) node->on_frame(at, burst[i]);
        moved = true;
      }
      if (node == nullptr) return moved;
      if (node->next_deadline() <= at) {
        node->on_deadline(at);
        moved = true;
      }
      for (RemoteOnerma* client : clients) moved = client->poll(at) != 0 || moved;
      while (node->poll_transmit(at, *port)) moved = true;
      port->flush(at);
      return moved;
    }
    Time next_deadline() const {
      Time next = port->next_deadline();
      if (node == nullptr) return next;
      next = std::min(next, node->next_deadline());
      for (const RemoteOnerma* client : clients) next = std::min(next, client->next_deadline());
      return next;
    }
  };

  explicit World(std::uint64_t seed = 1, const port::Impairment& impairment = {}, std::size_t cable_frames = 4096)
      : seed_(seed), impairment_(impairment), cable_frames_(cable_frames) {}

  Host& add_host(NodeConfig config = {}) {
    const auto number = static_cast<std::uint8_t>(hosts_.size() + 1);
    config.mac = wire::MacAddress{{2, 0, 0, 0, 1, number}};
    config.ip = wire::Ipv4Address{0x0A4D0100u + number};
    config.boot = Boot(number);
    auto cable = port::make_memory_cable(cable_frames_);
    auto host = std::make_unique<Host>();
    host->config = config;
    host->port = std::move(cable.a);
    host->hub_end = std::move(cable.b);
    if (impairment_.any()) {
      host->port = port::impaired(std::move(host->port),
                                  {.tx = impairment_, .rx = impairment_, .seed = Rng(seed_).fork(number).next()});
    }
    host->node = std::make_unique<Node>(config);
    hosts_.push_back(std::move(host));
    return *hosts_.back();
  }
  static void kill(Host& host) {
    host.clients.clear();
    host.node.reset();
  }
  static void revive(Host& host) {
    host.config.boot = Boot(host.config.boot.value + 0x100);
    host.node = std::make_unique<Node>(host.config);
  }

  // Sees every frame that passes the hub, may change it; false: it is lost.
  void set_tap(std::function<bool(MutableBytes frame)> tap) { tap_ = std::move(tap); }
  // A frame out of nowhere, to whom its destination MAC names.
  void inject(ByteView frame) {
    std::vector<std::uint8_t> copy(frame.begin(), frame.end());
    deliver(copy);
    for (auto& host : hosts_) host->hub_end->flush(now);
  }

  bool round() {
    bool moved = false;
    for (auto& host : hosts_) moved = host->turn(now) || moved;
    moved = carry() || moved;
    moved = scheduler.run(now) != 0 || moved;
    if (moved) {
      now = now + kRound;
      return true;
    }
    Time next = scheduler.next_deadline();
    for (auto& host : hosts_) next = std::min(next, host->next_deadline());
    if (next == Time::never()) return false;
    now = std::max(next, now + Duration::picoseconds(1));
    return true;
  }
  template <class Condition>
  bool run_until(Condition condition, int rounds = 1'000'000) {
    for (int i = 0; i < rounds; ++i) {
      if (condition()) return true;
      if (!round()) return condition();
    }
    return condition();
  }
  void run_for(Duration time) {
    const Time end = now + time;
    run_until([&] { return now >= end; });
  }
  Host& host(std::size_t i) { return *hosts_[i]; }

  remote::Scheduler scheduler;
  Time now;

 private:
  bool carry() {
    bool moved = false;
    port::Frame burst[32];
    for (auto& from : hosts_) {
      while (const std::size_t n = from->hub_end->receive(now, burst)) {
        for (std::size_t i = 0; i < n; ++i) {
          if (!tap_ || tap_(burst[i].mutable_bytes())) deliver(burst[i].bytes());
        }
        moved = true;
      }
    }
    for (auto& host : hosts_) host->hub_end->flush(now);
    return moved;
  }
  void deliver(ByteView frame) {
    for (auto& to : hosts_) {
      if (frame.size() < 6 || std::memcmp(frame.data(), to->config.mac.bytes.data(), 6) != 0) continue;
      std::uint8_t* const room = to->hub_end->reserve(frame.size());
      if (room == nullptr) continue;
      std::copy(frame.begin(), frame.end(), room);
      to->hub_end->commit(frame.size());
    }
  }

  std::uint64_t seed_;
  port::Impairment impairment_;
  std::size_t cable_frames_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::function<bool(MutableBytes)> tap_;
};

// A key for tests, different for each number.
inline Secret test_key(std::uint64_t number) {
  Rng rng(number);
  std::array<std::uint8_t, Secret::kSize> bytes;
  store_le(bytes.data(), rng.next());
  store_le(bytes.data() + 8, rng.next());
  return Secret(bytes);
}

}  // namespace sluice::onerma
