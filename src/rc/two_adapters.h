// Two adapters on one cable in virtual time: the smallest world a connection can live in. For tests, fuzzers and benchmarks.
//
// Life:     connect() makes a pair of connected queue pairs -> post -> run_until(condition).
// Time:     each round of the world takes `kRound`; when nothing moves it jumps to the next deadline.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "port/impaired.h"
#include "port/memory_port.h"
#include "rc/adapter.h"

namespace sluice::rc {

struct Host {
  std::unique_ptr<Adapter> adapter;
  std::unique_ptr<port::Port> port;
  memory::PdId pd{};
  CompletionQueue* completions = nullptr;

  // Moves frames both ways once. True if anything moved.
  bool turn(Time now) {
    bool moved = false;
    port::Frame burst[32];
    while (const std::size_t n = port->receive(now, burst)) {
      for (std::size_t i = 0; i < n; ++i) adapter->on_frame(now, burst[i]);
      moved = true;
    }
    if (adapter->next_deadline() <= now) {
      adapter->on_deadline(now);
      moved = true;
    }
    while (adapter->poll_transmit(now, *port)) moved = true;
    port->flush(now);
    return moved;
  }
  Time next_deadline() const { return std::min(adapter->next_deadline(), port->next_deadline()); }
};

struct PairOptions {
  Transport transport = Transport::kRc;
  std::uint32_t depth = 256;
  std::uint32_t mtu = 1024;
  std::uint8_t timeout = 8;  // 1 ms
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;
  std::uint8_t max_reads = 16;
  std::uint32_t max_sges = 4;
  std::uint32_t max_inline = 256;
  Psn a_psn{0x1000};
  Psn b_psn{0xFF'FFF0};  // wraps soon
  memory::Access access = memory::kAllAccess;
  SharedReceiveQueue* b_shared_receives = nullptr;
};

class TwoAdapters {
 public:
  static constexpr Duration kRound = Duration::nanoseconds(500);

  // With an impairment, both directions suffer it.
  explicit TwoAdapters(const port::ImpairmentSpec* impairment = nullptr, const AdapterConfig& base = {}) {
    auto cable = port::make_memory_cable(4096);
    a = make_host(1, base);
    b = make_host(2, base);
    a.port = std::move(cable.a);
    b.port = std::move(cable.b);
    if (impairment != nullptr) a.port = port::impaired(std::move(a.port), *impairment);
  }

  struct Pair {
    QueuePair* a = nullptr;
    QueuePair* b = nullptr;
  };
  Pair connect(const PairOptions& o = {}) {
    Pair pair{make_pair(a, o, nullptr), make_pair(b, o, o.b_shared_receives)};
    to_ready(a, *pair.a, *pair.b, b, o, o.a_psn, o.b_psn);
    to_ready(b, *pair.b, *pair.a, a, o, o.b_psn, o.a_psn);
    return pair;
  }

  // One round; false when nothing moved and nothing is due ever.
  bool round() {
    const bool moved = static_cast<int>(a.turn(now)) + static_cast<int>(b.turn(now)) != 0;
    if (moved) {
      now = now + kRound;
      return true;
    }
    const Time next = std::min(a.next_deadline(), b.next_deadline());
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
  void settle() {
    run_until([] { return false; });
  }

  memory::Key region(Host& host, MutableBytes bytes, std::uint64_t address,
                     memory::Access access = memory::kAllAccess) {
    return host.adapter->regions()
        .add({.pd = host.pd, .bytes = bytes, .address = address, .access = access, .invalidated_by_peers = true})
        .value();
  }
  static std::vector<Completion> take(Host& host) {
    std::vector<Completion> out(host.completions->size());
    host.completions->poll(out);
    return out;
  }

  Host a;
  Host b;
  Time now;

 private:
  static Host make_host(std::uint8_t number, const AdapterConfig& base) {
    AdapterConfig config = base;
    config.mac = wire::MacAddress{{2, 0, 0, 0, 0, number}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number})};
    config.seed = base.seed * 2 + number;
    config.first_qpn = Qpn{0x100u * number};
    Host host;
    host.adapter = std::make_unique<Adapter>(config);
    host.pd = host.adapter->create_domain();
    host.completions = host.adapter->create_completion_queue(65'536);
    return host;
  }
  static QueuePair* make_pair(Host& host, const PairOptions& o, SharedReceiveQueue* shared) {
    return host.adapter
        ->create_queue_pair({.transport = o.transport,
                             .pd = host.pd,
                             .send_completions = host.completions,
                             .receive_completions = host.completions,
                             .shared_receives = shared,
                             .send_depth = o.depth,
                             .receive_depth = o.depth,
                             .max_send_sges = o.max_sges,
                             .max_receive_sges = o.max_sges,
                             .max_inline = o.max_inline})
        .value();
  }
  void to_ready(Host& host, QueuePair& pair, const QueuePair& peer, const Host& other, const PairOptions& o, Psn send,
                Psn receive) {
    Adapter& adapter = *host.adapter;
    const auto check = [](const Result<void>& result) {
      if (!result) throw std::runtime_error(result.error().message);
    };
    check(adapter.modify(now, pair, {.state = QpState::kInit, .access = o.access, .qkey = wire::QKey{0x1111}}));
    check(adapter.modify(now, pair,
                         {.state = QpState::kReadyToReceive,
                          .remote_gid = other.adapter->config().gids[0],
                          .remote_qpn = peer.qpn(),
                          .path_mtu = o.mtu,
                          .receive_psn = receive,
                          .min_rnr_timer = 1,
                          .max_reads_in = o.max_reads}));
    check(adapter.modify(now, pair,
                         {.state = QpState::kReadyToSend,
                          .send_psn = send,
                          .timeout = o.timeout,
                          .retry_count = o.retry_count,
                          .rnr_retry_count = o.rnr_retry_count,
                          .max_reads_out = o.max_reads}));
  }
};

}  // namespace sluice::rc
