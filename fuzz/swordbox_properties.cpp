#include "fuzz/swordbox_properties.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/check.h"
#include "fuzz/script.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"
#include "wire/icrc.h"

namespace sluice::fuzz {
namespace {

using namespace swordbox;
using wire::Opcode;

constexpr std::uint32_t kClients = 4;
constexpr std::uint32_t kHeld = 8;
constexpr wire::RKey kNodes{1};
constexpr wire::RKey kWords{2};

wire::Gid server_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A4D0001u}); }
wire::Gid client_gid(std::uint32_t i) { return wire::Gid::from(wire::Ipv4Address{0x0A4D000Au + i}); }

// Every frame that the box makes or lets go is sound, unless it came damaged and had to wait.
class Outbox final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    SLUICE_CHECK(length <= port::kMaxFrame);
    return full ? nullptr : room_.data();
  }
  void commit(std::size_t length) override {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse({room_.data(), length}, parsed) == wire::Verdict::kOk);
    if (parsed.traits().is_request) last_request = parsed;
    ++frames;
  }
  bool full = false;
  std::uint64_t frames = 0;
  wire::ParsedFrame last_request{};

 private:
  std::array<std::uint8_t, port::kMaxFrame> room_{};
};

class World {
 public:
  World(Script& script, std::uint8_t options) : script_(script) {
    BoxConfig config;
    config.connections.connections = 6;
    config.connections.assumed_mtu = 256;
    config.connections.idle = Duration::milliseconds(400);
    config.held_frames = kHeld;
    config.verify_icrc = (options & 1) != 0;
    config.stale_after = Duration::microseconds(300);
    if ((options & 2) != 0) config.numbers_fenced_until = Time();
    if ((options & 4) != 0) config.fenced_until = Time::at(Duration::microseconds(200));
    box_ = std::make_unique<Box>(config);
    CloverConfig clover;
    clover.regions = {{server_gid(), kNodes}};
    clover.order = (options & 8) != 0 ? Order::kStrict : Order::kPipelined;
    clover.tracked_keys = 2;
    clover.history_entries = 16;
    clover.open_links = 4;
    clover.ring = 8;
    clover.hot_from = 1;
    clover.fenced_until = config.fenced_until;
    auto rule = std::make_unique<CloverRule>(clover, box_->connections(), box_->counters());
    rule_ = rule.get();
    if ((options & 16) == 0) {
      box_->set_rule(std::move(rule));
    } else {
      rule_ = nullptr;
    }
    MultiplexerConfig words;
    words.regions = {
        {.server = server_gid(), .rkey = kWords, .address = 0x1000, .length = 0x1000, .writable = (options & 32) == 0}};
    words.words = 3;
    words.ring = 8;
    words.carriers = 2;
    words.carrier_ring = 16;
    words.passes = 4;
    words.lines = 64;
    words.long_writes = 4;
    words.give_up_after = Duration::microseconds(600);
    words.flight = Duration::milliseconds(2);
    if ((options & 64) == 0) {
      box_->set_multiplexer(std::make_unique<Multiplexer>(words, box_->connections(), box_->counters()));
    }
    for (std::uint32_t i = 0; i < kClients; ++i) announce(i);
  }

  void play() {
    for (int steps = 0; !script_.empty() && steps < 2000; ++steps) step();
    // Whatever has happened, in the end nothing waits for ever that the box could let go by itself.
    for (int i = 0; i < 100 && box_->held() != 0; ++i) pass_time(Duration::milliseconds(50));
    SLUICE_CHECK(box_->held() == 0);
  }

 private:
  struct Peer {
    wire::Psn next{};    // of the client's next request
    wire::Psn served{};  // of the newest request that has left for its server
  };

  void announce(std::uint32_t i) {
    peers_[i].next = wire::Psn(0xFF'FFFAu);
    box_->connections().announce(now_, {.address = {client_gid(i), server_gid()},
                                        .qpn = {Qpn(0x100 + i), Qpn(0x200 + i)},
                                        .starting_psn = {peers_[i].next, peers_[i].next},
                                        .mtu = 256});
  }
  void pass_time(Duration d) {
    now_ = now_ + d;
    for (int i = 0; i < 64 && box_->next_deadline() <= now_; ++i) box_->on_deadline(now_, outbox_);
    take_repairs();
  }
  void take_repairs() {
    Repair asked[4];
    if (rule_ == nullptr) return;
    const std::size_t n = rule_->take_repairs(asked);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint8_t how = script_.next();
      rule_->on_repair(now_, asked[i],
                       how % 3 == 0   ? std::optional<std::uint64_t>()
                       : how % 3 == 1 ? asked[i].compare
                                      : asked[i].swap);
    }
    if (n != 0) box_->on_deadline(now_, outbox_);
  }

  void step() {
    const std::uint8_t what = script_.next();
    if (what < 0x70) return request(what);
    if (what < 0xD8) return answer(what);
    const std::uint8_t more = script_.next();
    switch (what % 8) {
      case 0:
      case 1: return pass_time(Duration::microseconds(more * 4));
      case 2: return announce(more % kClients);
      case 3: return box_->switch_on((more & 1) != 0);
      case 4: {
        const Crossing crossing =
            box_->connections().find(NetAddress::from(client_gid(more % kClients)), NetAddress::from(server_gid()),
                                     Qpn(0x200 + more % kClients));
        if (crossing) box_->connections().close(crossing.connection);
        return;
      }
      case 5: outbox_.full = (more & 1) != 0; return;
      case 6: return noise(more);
      default: return pass_time(Duration::milliseconds(more));
    }
  }

  void request(std::uint8_t what) {
    const std::uint32_t client = what % kClients;
    const std::uint8_t how = script_.next();
    Peer& peer = peers_[client];
    const std::int32_t step = how < 0xC0 ? 0 : how % 8 - 5;
    const wire::Psn psn = peer.next + static_cast<std::uint32_t>(step);
    std::vector<std::uint8_t> body;
    const Opcode opcode = request_body(how, body);
    std::uint32_t span = 1;
    if (opcode == Opcode::kRcReadRequest) span = std::max(1u, (wire::Reth::parse(body.data()).length + 255) / 256);
    if (step == 0) peer.next = psn + span;
    send(true, client, opcode, psn, (how & 8) != 0, body);
  }
  template <class H>
  static void put(std::vector<std::uint8_t>& body, const H& header) {
    body.resize(body.size() + H::kSize);
    header.write(body.data() + body.size() - H::kSize);
  }
  Opcode request_body(std::uint8_t how, std::vector<std::uint8_t>& body) {
    const std::uint8_t where = script_.next();
    const std::uint8_t value = script_.next();
    const bool on_words = (where & 0x80) != 0;
    const wire::RKey key = on_words ? kWords : kNodes;
    const std::uint64_t address = on_words ? 0x1000 + (where & 7u) * 8 : 0x10000 + (where & 7u) * 0x100;
    const std::uint64_t free_word = std::uint64_t{1} << 63 | (value & 1);
    switch (how % 8) {
      case 0:
      case 1: {  // a CAS of a node's next word, or of a word
        const std::uint64_t to = 0x10000 + (value >> 1 & 7u) * 0x100;
        put(body, wire::AtomicEth{address, key, on_words ? value : std::uint64_t{1} << 48 | to,
                                  on_words ? where >> 3 & 3u : free_word});
        return Opcode::kRcCompareSwap;
      }
      case 2: put(body, wire::AtomicEth{address + (value == 255 ? 1u : 0u), key, value, 0}); return Opcode::kRcFetchAdd;
      case 3:
        put(body, wire::MaskedAtomicEth{address, key, value, where, 0xF, value});
        return Opcode::kRcMaskedCompareSwap;
      case 4: {  // a WRITE of a node, of a word, or of more
        const std::uint32_t length = on_words && value % 4 != 0 ? 8 : 64;
        put(body, wire::Reth{address, key, length + (value == 254 ? 256u : 0u)});
        body.resize(body.size() + (value == 254 ? 256 : length), value);
        if (!on_words) {
          store_le(body.data() + 16, free_word);
          store_le(body.data() + 24, std::uint64_t{value} >> 1 & 3);
        }
        return value == 254 ? Opcode::kRcWriteFirst : Opcode::kRcWriteOnly;
      }
      case 5: put(body, wire::Reth{address, key, value % 3 == 0 ? 64u * value : 64u}); return Opcode::kRcReadRequest;
      case 6: body.resize(64, value); return value % 2 == 0 ? Opcode::kRcWriteLast : Opcode::kRcSendOnly;
      default: body.resize(256, value); return Opcode::kRcWriteMiddle;
    }
  }

  void answer(std::uint8_t what) {
    const std::uint32_t client = what % kClients;
    const std::uint8_t how = script_.next();
    const std::uint8_t value = script_.next();
    const wire::Psn psn = peers_[client].served + static_cast<std::uint32_t>(how < 0xC0 ? 0 : how % 8 - 5);
    std::vector<std::uint8_t> body;
    Opcode opcode = Opcode::kRcAcknowledge;
    switch (how % 8) {
      case 0:
      case 1: put(body, wire::Aeth::ack(value)); break;
      case 2:
      case 3: {
        opcode = Opcode::kRcAtomicAcknowledge;
        put(body, wire::Aeth::ack(value));
        const std::uint64_t word = value % 3 == 0   ? std::uint64_t{1} << 63 | (value & 1)
                                   : value % 3 == 1 ? std::uint64_t{1} << 48 | (0x10000 + (value >> 2 & 7u) * 0x100u)
                                                    : value;
        put(body, wire::AtomicAckEth{word});
        break;
      }
      case 4: put(body, wire::Aeth::nak(value, static_cast<wire::NakCode>(value % 5))); break;
      case 5: put(body, wire::Aeth::rnr_nak(value, value & 31)); break;
      case 6:
        opcode = value % 2 == 0 ? Opcode::kRcReadResponseOnly : Opcode::kRcReadResponseFirst;
        put(body, wire::Aeth::ack(value));
        body.resize(body.size() + (value % 2 == 0 ? 64 : 256), value);
        break;
      default:
        opcode = value % 2 == 0 ? Opcode::kRcReadResponseMiddle : Opcode::kRcReadResponseLast;
        if (value % 2 != 0) put(body, wire::Aeth::ack(value));
        body.resize(body.size() + 256, value);
        break;
    }
    send(false, client, opcode, psn, false, body);
  }

  void send(bool is_request, std::uint32_t client, Opcode opcode, wire::Psn psn, bool ask,
            const std::vector<std::uint8_t>& body) {
    wire::AddressVector route;
    route.source_mac = {{2, 0, 0, 0, 0, static_cast<std::uint8_t>(is_request ? client + 10 : 1)}};
    route.destination_mac = {{2, 0, 0, 0, 0, static_cast<std::uint8_t>(is_request ? 1 : client + 10)}};
    route.source = is_request ? client_gid(client) : server_gid();
    route.destination = is_request ? server_gid() : client_gid(client);
    const wire::HeaderTemplate headers(route);
    std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + body.size()));
    const std::size_t at = headers.write(frame.data(), wire::Bth::kSize + body.size());
    wire::Bth{
        .opcode = opcode, .destination = Qpn((is_request ? 0x200u : 0x100u) + client), .ack_request = ask, .psn = psn}
        .write(frame.data() + at);
    std::ranges::copy(body, frame.begin() + static_cast<std::ptrdiff_t>(at + wire::Bth::kSize));
    headers.seal(frame.data(), at + wire::Bth::kSize + body.size());
    const std::uint8_t damage = script_.next();
    if (damage > 0xF0) {
      frame[script_.next16() % frame.size()] ^= static_cast<std::uint8_t>(damage << 1 | 1);
      if (damage > 0xF8) repair_icrc(frame);
    }
    judge(frame);
  }
  static void repair_icrc(std::vector<std::uint8_t>& frame) {
    wire::ParsedFrame parsed;
    if (wire::parse(frame, parsed) == wire::Verdict::kOk)
      store_le(frame.data() + parsed.icrc_offset(), wire::icrc(frame.data(), parsed));
  }
  void noise(std::uint8_t more) {
    std::vector<std::uint8_t> frame(more);
    for (auto& byte : frame) byte = script_.next();
    judge(frame);
  }

  void judge(std::vector<std::uint8_t>& frame) {
    wire::ParsedFrame before;
    const bool was_roce = wire::parse(frame, before) == wire::Verdict::kOk;
    const bool was_sound = was_roce && wire::verify_icrc(frame.data(), before);
    const std::vector<std::uint8_t> original = frame;
    Packet packet;
    packet.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())};
    box_->process(now_, {&packet, 1}, outbox_);
    take_repairs();
    SLUICE_CHECK(box_->held() <= kHeld);
    SLUICE_CHECK((packet.action == Action::kForward) == (action_of(packet.verdict) == Action::kForward));
    if (packet.action != Action::kForward) return;
    SLUICE_CHECK(packet.frame.length <= original.size());
    frame.resize(packet.frame.length);
    if (!was_roce) {
      SLUICE_CHECK(frame == original);
      return;
    }
    wire::ParsedFrame after;
    SLUICE_CHECK(wire::parse(frame, after) == wire::Verdict::kOk);
    // What was right stays right, what was wrong stays wrong.
    SLUICE_CHECK(wire::verify_icrc(frame.data(), after) == was_sound);
    const std::uint32_t client = after.destination.value - 0x200;
    if (after.traits().is_request && client < kClients) peers_[client].served = after.psn;
  }

  Script& script_;
  Time now_;
  std::unique_ptr<Box> box_;
  CloverRule* rule_ = nullptr;
  Outbox outbox_;
  std::array<Peer, kClients> peers_{};
};

}  // namespace

void check_swordbox(ByteView bytes) {
  Script script(bytes);
  World world(script, script.next());
  world.play();
}

}  // namespace sluice::fuzz
