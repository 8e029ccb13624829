// What a replayed conversation needs on our side: an adapter with one queue pair in RTS and the frames that it has sent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "golden/conversation.h"
#include "rc/adapter.h"

namespace sluice::golden {

using namespace rc;
using wire::Aeth;
using wire::Kind;

class Frames : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    buffer_.resize(length);
    return buffer_.data();
  }
  void commit(std::size_t length) override {
    Packet packet{.number = ++count_,
                  .bytes = {buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(length)}};
    EXPECT_EQ(wire::parse_and_verify(packet.bytes, packet.parsed), wire::Verdict::kOk);
    packets.push_back(std::move(packet));
  }
  std::vector<Packet> packets;

 private:
  FrameBytes buffer_;
  std::size_t count_ = 0;
};

// Where a request's addresses stand behind its BTH.
struct Target {
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};

inline std::optional<Target> target_of(const Packet& p) {
  if (p.traits().has(wire::Extended::kReth)) {
    const auto reth = p.get<wire::Reth>();
    return Target{reth.rkey.value, reth.virtual_address, reth.length};
  }
  if (p.traits().has(wire::Extended::kAtomicEth)) {
    const auto atomic = p.get<wire::AtomicEth>();
    return Target{atomic.rkey.value, atomic.virtual_address, 8};
  }
  return std::nullopt;
}

inline bool takes_receive(const Packet& p) {
  if (p.traits().kind == Kind::kSend) return p.traits().starts_message();
  return p.traits().kind == Kind::kWrite && p.traits().has(wire::Extended::kImmDt);
}

inline bool is_rnr_nak(const Packet& p) { return p.traits().kind == Kind::kAcknowledge && p.get<Aeth>().is_rnr_nak(); }
inline bool is_gap_nak(const Packet& p) {
  if (p.traits().kind != Kind::kAcknowledge) return false;
  const Aeth aeth = p.get<Aeth>();
  return aeth.is_nak() && aeth.nak_code() == wire::NakCode::kPsnSequenceError;
}

inline AdapterConfig config_of_receiver(const Packet& p) {
  AdapterConfig config;
  std::copy_n(p.bytes.begin(), 6, config.mac.bytes.begin());
  config.gids = {wire::destination_gid(p.bytes.data(), p.parsed)};
  config.coalesce_acks = false;  // rxe answers each message for itself
  return config;
}
inline AdapterConfig config_of_sender(const Packet& p) {
  AdapterConfig config = config_of_receiver(p);
  std::copy_n(p.bytes.begin() + 6, 6, config.mac.bytes.begin());
  config.gids = {wire::source_gid(p.bytes.data(), p.parsed)};
  return config;
}

struct Ready {
  Qpn own{};
  Qpn remote{};
  Psn psn{};  // of both directions: only one is used
  std::uint32_t mtu = 1024;
  std::uint8_t timeout = 0;
  std::uint8_t retry_count = 7;
  std::uint8_t min_rnr_timer = 12;
};

// An adapter with one queue pair in RTS, its peer at `peer`.
struct Endpoint {
  Endpoint(AdapterConfig config, const wire::Gid& peer, const wire::MacAddress& peer_mac, const Ready& ready)
      : adapter((config.first_qpn = ready.own, config)) {
    pd = adapter.create_domain();
    completions = adapter.create_completion_queue(1024);
    pair = adapter
               .create_queue_pair({.pd = pd,
                                   .send_completions = completions,
                                   .receive_completions = completions,
                                   .send_depth = 1024,
                                   .receive_depth = 1024})
               .value();
    EXPECT_EQ(pair->qpn(), ready.own);
    const auto move = [&](const QueuePairAttributes& attributes) {
      const auto moved = adapter.modify(now, *pair, attributes);
      EXPECT_TRUE(moved) << moved.error().message;
    };
    move({.state = QpState::kInit, .access = memory::kAllAccess});
    move({.state = QpState::kReadyToReceive,
          .remote_gid = peer,
          .remote_mac = peer_mac,
          .remote_qpn = ready.remote,
          .path_mtu = ready.mtu,
          .receive_psn = ready.psn,
          .min_rnr_timer = ready.min_rnr_timer,
          .max_reads_in = std::uint8_t{16}});
    move({.state = QpState::kReadyToSend,
          .send_psn = ready.psn,
          .timeout = ready.timeout,
          .retry_count = ready.retry_count,
          .rnr_retry_count = std::uint8_t{7},
          .max_reads_out = std::uint8_t{16}});
  }

  void receive(FrameBytes bytes) {
    adapter.on_frame(now, {bytes.data(), static_cast<std::uint32_t>(bytes.size())});
    transmit();
  }
  void transmit() {
    while (adapter.poll_transmit(now, sent)) {
    }
  }
  // Long enough for any wait after an RNR NAK in the captures.
  void tick() {
    now = now + Duration::milliseconds(10);
    adapter.on_deadline(now);
    transmit();
  }

  Time now = Time::at(Duration::seconds(1));
  Adapter adapter;
  memory::PdId pd{};
  CompletionQueue* completions = nullptr;
  QueuePair* pair = nullptr;
  Frames sent;
};

}  // namespace sluice::golden
