// One queue pair and a peer made of single frames, written by hand and looked at one by one. For tests and fuzzers.
//
// Life:       deliver(packet) -> answers(); or post -> answers() -> deliver(an answer to them).
// Invariant:  the region lies between two guards; guards_intact() says that nothing outside it has been written.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rc/adapter.h"
#include "wire/frame.h"

namespace sluice::rc {

// Frames, kept.
class FrameList final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    if (frames.size() >= room) return nullptr;
    frame_.resize(length);
    return frame_.data();
  }
  void commit(std::size_t length) override {
    frame_.resize(length);
    frames.push_back(frame_);
  }

  std::vector<std::vector<std::uint8_t>> frames;
  std::size_t room = ~std::size_t{0};

 private:
  std::vector<std::uint8_t> frame_;
};

struct CraftedOptions {
  Transport transport = Transport::kRc;
  std::uint32_t mtu = 1024;
  std::uint32_t depth = 64;
  std::uint8_t max_reads = 4;
  std::uint8_t timeout = 8;  // 1 ms
  std::uint8_t retry_count = 3;
  std::uint8_t rnr_retry_count = 3;
  Psn receive_psn{0x1000};
  Psn send_psn{0x2000};
  memory::Access access = memory::kAllAccess;
  QpState state = QpState::kReadyToSend;
  bool knows_mac = true;
};

class CraftedPeer {
 public:
  static constexpr std::uint64_t kBase = 0x10'0000;
  static constexpr std::size_t kSize = 16'384;
  static constexpr std::size_t kGuard = 4096;
  static constexpr Qpn kPeerQpn{0x77};
  static constexpr wire::MacAddress kOurMac{{2, 0, 0, 0, 0, 1}};
  static constexpr wire::MacAddress kPeerMac{{2, 0, 0, 0, 0, 2}};
  static wire::Gid our_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A000001}); }
  static wire::Gid peer_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A000002}); }

  explicit CraftedPeer(const CraftedOptions& o = {}, const AdapterConfig& base = {}) : options(o) {
    AdapterConfig config = base;
    config.mac = kOurMac;
    config.gids = {our_gid()};
    adapter = std::make_unique<Adapter>(config);
    adapter->set_event_handler([this](const AsyncEvent& event) { events.push_back(event.kind); });
    pd = adapter->create_domain();
    completions = adapter->create_completion_queue(256);
    for (std::size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    untouched = storage;
    key = adapter->regions()
              .add({.pd = pd,
                    .bytes = region(),
                    .address = kBase,
                    .access = memory::kAllAccess,
                    .invalidated_by_peers = true})
              .value();
    pair = adapter
               ->create_queue_pair({.transport = o.transport,
                                    .pd = pd,
                                    .send_completions = completions,
                                    .receive_completions = completions,
                                    .send_depth = o.depth,
                                    .receive_depth = o.depth,
                                    .max_send_sges = 4,
                                    .max_receive_sges = 4})
               .value();
    if (o.state != QpState::kReset) make_ready();
  }

  void must(const Result<void>& result) {
    if (!result) throw std::runtime_error(result.error().message);
  }
  Result<void> modify(const QueuePairAttributes& attributes) { return adapter->modify(now, *pair, attributes); }
  void make_ready() {
    must(modify({.state = QpState::kInit, .access = options.access, .qkey = wire::QKey{0x1111}}));
    if (options.state == QpState::kInit) return;
    must(modify({.state = QpState::kReadyToReceive,
                 .remote_gid = peer_gid(),
                 .remote_mac = options.knows_mac ? kPeerMac : wire::MacAddress{},
                 .remote_qpn = kPeerQpn,
                 .path_mtu = options.mtu,
                 .receive_psn = options.receive_psn,
                 .min_rnr_timer = 1,
                 .max_reads_in = options.max_reads}));
    if (options.state == QpState::kReadyToReceive) return;
    must(modify({.state = QpState::kReadyToSend,
                 .send_psn = options.send_psn,
                 .timeout = options.timeout,
                 .retry_count = options.retry_count,
                 .rnr_retry_count = options.rnr_retry_count,
                 .max_reads_out = options.max_reads}));
  }

  MutableBytes region() { return MutableBytes(storage).subspan(kGuard, kSize); }
  bool guards_intact() const {
    return std::equal(storage.begin(), storage.begin() + kGuard, untouched.begin()) &&
           std::equal(storage.end() - kGuard, storage.end(), untouched.end() - kGuard);
  }
  bool memory_untouched() const { return storage == untouched; }

  // --- the peer's frames ---

  struct Packet {
    wire::Opcode opcode{};
    Psn psn{};
    bool ack_request = true;
    bool solicited = false;
    std::vector<std::uint8_t> extended{};
    std::vector<std::uint8_t> payload{};
  };
  static std::vector<std::uint8_t> reth(std::uint64_t address, memory::Key key, std::uint32_t length) {
    return written(wire::Reth{address, wire::RKey{key.value}, length});
  }
  static std::vector<std::uint8_t> atomic(std::uint64_t address, memory::Key key, std::uint64_t swap_or_add,
                                          std::uint64_t compare = 0) {
    return written(wire::AtomicEth{address, wire::RKey{key.value}, swap_or_add, compare});
  }
  static std::vector<std::uint8_t> aeth(const wire::Aeth& header) { return written(header); }
  template <class Header>
  static std::vector<std::uint8_t> written(const Header& header) {
    std::vector<std::uint8_t> bytes(Header::kSize);
    header.write(bytes.data());
    return bytes;
  }

  // Whole and sealed; the address and the BTH may be varied.
  std::vector<std::uint8_t> frame_of(const Packet& p, const wire::AddressVector& way, wire::Bth bth) const {
    bth.opcode = p.opcode;
    bth.psn = p.psn;
    bth.ack_request = p.ack_request;
    bth.solicited = p.solicited;
    bth.pad_count = wire::pad_for(p.payload.size());
    const wire::HeaderTemplate headers(way);
    const std::size_t transport = wire::Bth::kSize + p.extended.size() + p.payload.size() + bth.pad_count;
    std::vector<std::uint8_t> frame(headers.frame_size(transport));
    std::uint8_t* at = frame.data() + headers.write(frame.data(), transport);
    bth.write(at);
    at = std::copy(p.extended.begin(), p.extended.end(), at + wire::Bth::kSize);
    std::copy(p.payload.begin(), p.payload.end(), at);
    headers.seal(frame.data(), headers.bth_offset() + transport);
    return frame;
  }
  std::vector<std::uint8_t> frame_of(const Packet& p) const {
    return frame_of(p, way_to_us(), {.destination = pair->qpn()});
  }
  static wire::AddressVector way_to_us() {
    return {.source_mac = kPeerMac, .destination_mac = kOurMac, .source = peer_gid(), .destination = our_gid()};
  }
  void deliver(std::vector<std::uint8_t> frame) {
    adapter->on_frame(now, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  }
  void deliver(const Packet& packet) { deliver(frame_of(packet)); }

  // --- ours ---

  struct Answer {
    std::vector<std::uint8_t> frame;
    wire::ParsedFrame parsed;

    wire::Opcode opcode() const { return parsed.opcode; }
    Psn psn() const { return parsed.psn; }
    template <class Header>
    Header get() const {
      return wire::get<Header>(frame.data(), parsed);
    }
    wire::Aeth aeth() const { return get<wire::Aeth>(); }
    ByteView payload() const { return wire::payload(frame.data(), parsed); }
  };
  // All that may be sent now, parsed and verified. Frames that are not RoCE (ARP) go to `others`.
  std::vector<Answer> answers() {
    FrameList sink;
    while (adapter->poll_transmit(now, sink)) {
    }
    std::vector<Answer> out;
    for (auto& frame : sink.frames) {
      Answer answer{.frame = frame, .parsed = {}};
      if (wire::parse_and_verify(answer.frame, answer.parsed) == wire::Verdict::kOk) {
        out.push_back(std::move(answer));
      } else {
        others.push_back(frame);
      }
    }
    return out;
  }
  std::vector<Completion> completed() {
    std::vector<Completion> out(completions->size());
    completions->poll(out);
    return out;
  }
  PostError post(const SendRequest& request) { return adapter->post_send(now, *pair, request); }
  PostError post_receive(std::uint64_t id, std::span<const Sge> sges = {}) {
    return adapter->post_receive(*pair, {.id = id, .sges = sges});
  }
  // To the next deadline, and beyond it if it is past.
  bool wait() {
    const Time next = adapter->next_deadline();
    if (next == Time::never()) return false;
    now = std::max(now, next);
    adapter->on_deadline(now);
    return true;
  }
  const AdapterCounters& counters() const { return adapter->counters(); }

  CraftedOptions options;
  Time now;
  std::vector<std::uint8_t> storage = std::vector<std::uint8_t>(kSize + 2 * kGuard);
  std::vector<std::uint8_t> untouched;
  std::unique_ptr<Adapter> adapter;
  memory::PdId pd{};
  CompletionQueue* completions = nullptr;
  QueuePair* pair = nullptr;
  memory::Key key{};
  std::vector<std::vector<std::uint8_t>> others;
  std::vector<AsyncEvent::Kind> events;
};

}  // namespace sluice::rc
