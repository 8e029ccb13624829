// A switch engine between an application's NIC and memory nodes, RC as its specification has it in as few words as possible.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cowbird/switch_engine.h"
#include "fuzz/cowbird_properties.h"
#include "fuzz/cowbird_world.h"
#include "fuzz/frame_sinks.h"
#include "fuzz/script.h"
#include "wire/icrc.h"

namespace sluice::fuzz {
namespace {

using cowbird::ChannelLayout;
using cowbird::ConnectionEnd;
using cowbird::SwitchEngine;
using wire::Opcode;
using wire::Psn;
using wire::Qpn;

constexpr Duration kPacketLife = Duration::microseconds(800);
constexpr Duration kMaxFlight = Duration::milliseconds(1);
constexpr std::uint32_t kControlMtu = 512;

wire::Gid gid_of(std::uint8_t number) { return wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number}); }
wire::MacAddress mac_of(std::uint8_t number) { return {{2, 0, 0, 0, 0, number}}; }
constexpr std::uint8_t kSwitch = 0xFE;
constexpr std::uint8_t kNic = 1;
constexpr std::uint8_t kNode = 10;  // the first memory node's number

// A queue pair that answers: each request once, in order; what comes again is answered as before.
struct End {
  enum class Of : std::uint8_t { kControl, kHost, kPool };
  Of of{};
  Who who{};
  std::uint32_t node = 0;  // the memory node that it belongs to or is connected to
  ConnectionEnd self{};    // `expected`: of the next request
  ConnectionEnd peer{};    // whose requests it takes, as far as it knows
  std::uint32_t mtu = 1024;
  bool over = false;  // it has refused something
  bool asked_again = false;
  std::uint32_t msn = 0;
  std::uint64_t address = 0;  // of a WRITE under way
  std::uint64_t left = 0;
  std::uint32_t key = 0;
  // What the switch has said under a PSN: where that packet's bytes are, and whether they are read.
  struct Meaning {
    bool read = false;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    friend bool operator==(const Meaning&, const Meaning&) = default;
  };
  std::map<std::uint32_t, Meaning> said{};
  std::uint32_t furthest = 0;  // packets from `first` on that were ever asked for
  Psn first{};
};

class World {
 public:
  World(Script& script, std::uint8_t options)
      : script_(script), options_(options), good_(shape(), pool_, kMaxFlight), bad_(shape(), pool_) {
    make_engine();
  }

  Reached play() {
    for (int steps = 0; !script_.empty() && steps < 2000; ++steps) step();
    finish();
    good_.add_answers(reached_);
    count_engine();
    return reached_;
  }

 private:
  cowbird::Shape shape() const {
    if ((options_ & 1) != 0) return {.entries = 4, .request_bytes = 64, .response_bytes = 128};
    return {.entries = 16, .request_bytes = 2048, .response_bytes = 4096};
  }
  std::uint32_t mtu() const { return (options_ & 2) != 0 ? 256 : 512; }

  // --- the script ---

  void step() {
    const std::uint8_t what = script_.next();
    switch (what % 16) {
      case 0:
      case 1:
      case 2: good_.issue(script_, now_); return;
      case 3: return good_.take(now_, 1 + what / 16u);
      case 4: return bad_.act(script_);
      case 5:
      case 6: return deliver(what / 16u);
      case 7: return disturb(script_.next(), what / 16u);
      case 8: return pass(Duration::microseconds(1 + 2 * script_.next()));
      case 9:
      case 10:
      case 11: return move_all(1 + what / 32);
      case 12: return what < 128 ? control(script_.next() % 16u) : move_all(3);
      case 13: return what < 64 ? befall(script_.next() % 16u) : move_all(3);
      case 14: outbox_.full = what / 16u == 1; return;
      default: return spare(what % 32 < 16);
    }
  }

  void control(unsigned what) {
    const Who who = what % 2 == 0 ? Who::kGood : Who::kBad;
    const std::uint32_t node = what / 2 % kNodes;
    switch (what / 4) {
      case 0: return tell_regions(who);
      case 1: return connect(who, node);
      case 2: {
        if (at(who).id != 0) SLUICE_CHECK(engine_->disconnect(now_, at(who).id, kFirstNode + node).has_value());
        return;
      }
      default: return good_.renew();
    }
  }

  void befall(unsigned what) {
    MemoryNode& node = pool_[what % kNodes];
    switch (what / 2) {
      case 0: up_[what % kNodes] = !up_[what % kNodes]; return;
      case 1:  // started anew: it knows no connection, its regions have other keys
        ++node.epoch;
        return drop_ends(what % kNodes);
      case 2:  // it refuses whatever comes next, and the refusal is lost
        for (auto& [key, end] : ends_) {
          if (end.of == End::Of::kPool && end.node == what % kNodes) end.over = true;
        }
        return;
      case 3:
        if (engines_ < 4) make_engine();
        return;
      case 4: now_ = now_ + Duration::milliseconds(250); return;  // the switch stood still
      case 5: return pass(Duration::milliseconds(3));
      default: return pass(Duration::milliseconds(12));
    }
  }

  // --- what hosts do ---

  struct Attachment {
    SwitchEngine::ChannelId id = 0;
  };
  Attachment& at(Who who) { return attachments_[who == Who::kGood ? 0 : 1]; }
  Rings& rings(Who who) { return who == Who::kGood ? good_.rings : bad_.rings; }
  static std::uint32_t block_key(Who who) { return who == Who::kGood ? 0xB1 : 0xB2; }
  static std::uint64_t block_at(Who who) { return kBlockBase + (who == Who::kGood ? 0 : 0x1000'0000); }

  // A switch comes up, the last one is lost. What it has sent to memory nodes may still arrive; the NIC has let go of its queue pairs.
  void make_engine() {
    count_engine();
    ++engines_;
    cowbird::SwitchEngineConfig config;
    config.timeout = Duration::microseconds(200);
    config.longest_timeout = Duration::microseconds(800);
    config.max_flight = kMaxFlight;
    config.silence = Duration::milliseconds(2);
    config.patience = Duration::milliseconds(8);
    config.heartbeat = Duration::milliseconds(2);
    config.probe_most = Duration::microseconds(50);
    config.awake = Duration::microseconds(200);
    engine_ = std::make_unique<SwitchEngine>(mac_of(kSwitch), gid_of(kSwitch), config, engines_);
    outbox_.frames.clear();
    std::erase_if(ends_, [](const auto& entry) { return entry.second.of != End::Of::kPool; });
    for (const Who who : {Who::kGood, Who::kBad}) {
      const ConnectionEnd host = new_end(kNic);
      const auto attached = engine_->attach(now_, {.layout = rings(who).layout,
                                                   .address = block_at(who),
                                                   .key = wire::RKey(block_key(who)),
                                                   .host = host,
                                                   .mtu = kControlMtu,
                                                   .max_reads = 1u + (options_ >> 2) % 4});
      SLUICE_CHECK(attached.has_value());
      at(who).id = attached->id;
      End& end =
          add_end({.of = End::Of::kControl, .who = who, .self = host, .peer = attached->engine, .mtu = kControlMtu});
      end.self.expected = end.first = attached->engine.expected;
      tell_regions(who);
      for (std::uint32_t n = 0; n < kNodes; ++n) connect(who, n);
    }
  }
  ConnectionEnd new_end(std::uint8_t number) {
    // Near the end of the PSNs' circle.
    return {mac_of(number), gid_of(number), Qpn(0x100 + qpns_++), Psn(0xFF'FFF0u + qpns_ % 16)};
  }
  End& add_end(End end) {
    end.first = end.self.expected;
    return ends_[{end.self.gid.to_string(), end.self.qpn.value}] = std::move(end);
  }
  void connect(Who who, std::uint32_t node) {
    if (!up_[node]) return;
    std::erase_if(ends_, [&](const auto& e) {
      return e.second.of == End::Of::kHost && e.second.who == who && e.second.node == node;
    });
    const ConnectionEnd host = new_end(kNic);
    const ConnectionEnd pool = new_end(static_cast<std::uint8_t>(kNode + node));
    const auto reads = 1u + (options_ >> 4) % 4;
    SLUICE_CHECK(engine_
                     ->connect(now_, at(who).id,
                               {.node = kFirstNode + node,
                                .host = host,
                                .pool = pool,
                                .mtu = mtu(),
                                .host_reads = reads,
                                .pool_reads = reads})
                     .has_value());
    add_end({.of = End::Of::kHost, .who = who, .node = node, .self = host, .peer = pool, .mtu = mtu()});
    add_end({.of = End::Of::kPool, .who = who, .node = node, .self = pool, .peer = host, .mtu = mtu()});
  }
  void tell_regions(Who who) {
    std::vector<cowbird::Region> regions = rings(who).regions();
    auto& told = told_[who == Who::kGood ? 0 : 1];
    for (const cowbird::Region& region : regions) {
      if (region.length != 0 && std::ranges::find(told, region) == told.end()) told.push_back(region);
    }
    SLUICE_CHECK(engine_->set_regions(now_, at(who).id, rings(who).generation(), std::move(regions)).has_value());
  }
  void drop_ends(std::uint32_t node) {
    std::erase_if(ends_, [&](const auto& e) { return e.second.of == End::Of::kPool && e.second.node == node; });
  }
  // What hosts and nodes are for: all that is closed is connected anew.
  void mend() {
    for (const Who who : {Who::kGood, Who::kBad}) {
      const auto connections = engine_->channel(at(who).id)->connections();
      for (std::uint32_t n = 0; n < kNodes; ++n) {
        const bool open =
            std::ranges::any_of(connections, [&](const auto& c) { return c.node == kFirstNode + n && c.open; });
        if (!open) connect(who, n);
      }
    }
  }

  // --- the network ---

  struct Packet {
    Time since;
    bool to_switch = false;
    Bytes frame;
  };

  void flush() {
    std::vector<Bytes> made;
    made.swap(outbox_.frames);
    for (Bytes& frame : made) {
      check_made(frame);
      if (packets_.size() < 256) packets_.push_back({now_, false, std::move(frame)});
    }
  }
  void deliver_one() {
    Packet packet = std::move(packets_.front());
    packets_.pop_front();
    if (now_ - packet.since > kPacketLife) return;
    if (!packet.to_switch) return answer(packet.frame);
    const port::Frame frame{packet.frame.data(), static_cast<std::uint32_t>(packet.frame.size())};
    static_cast<void>(engine_->on_frame(now_, frame, outbox_));
    flush();
  }
  void deliver(std::size_t most) {
    for (std::size_t i = 0; i <= most && !packets_.empty(); ++i) deliver_one();
  }
  void move_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      deliver(64);
      pass(Duration::microseconds(3));
    }
    spare(true);
  }
  void disturb(std::uint8_t which, unsigned how) {
    if (packets_.empty()) return;
    const auto it = packets_.begin() + which % static_cast<std::ptrdiff_t>(packets_.size());
    switch (how % 8) {
      case 0: std::swap(packets_.front(), *it); return;
      case 1: packets_.push_back(*it); return;
      case 2: it->frame[it->frame.size() - 1 - which % 8u] ^= 1; return;  // damaged
      case 3: packets_.clear(); return;
      default: packets_.erase(it); return;
    }
  }
  void pass(Duration time) {
    const Time until = now_ + time;
    for (int i = 0; i < 256 && engine_->next_deadline() <= until; ++i) {
      now_ = std::max(now_, engine_->next_deadline());
      engine_->on_deadline(now_, outbox_);
      spare(true);
      flush();
      if (i % 16 == 15) now_ = std::min(until, now_ + Duration::microseconds(1));
    }
    now_ = std::max(now_, until);
  }
  void spare(bool idle) {
    engine_->on_spare(
        now_, [idle](const wire::MacAddress&) { return idle; }, outbox_);
    flush();
  }

  // --- those who answer ---

  End* end_at(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
    const auto it = ends_.find({wire::destination_gid(frame, parsed).to_string(), parsed.destination.value});
    return it == ends_.end() ? nullptr : &it->second;
  }
  MutableBytes bytes_at(const End& end, std::uint32_t key, std::uint64_t address, std::uint64_t length) {
    if (end.of == End::Of::kPool) return pool_[end.node].at(key, address, length);
    if (key != block_key(end.who)) return {};
    const MutableBytes block = rings(end.who).block();
    const std::uint64_t start = block_at(end.who);
    if (address < start || address - start > block.size() || length > block.size() - (address - start)) return {};
    return block.subspan(address - start, length);
  }
  void send(const End& end, Opcode opcode, Psn psn, const std::optional<wire::Aeth>& aeth, ByteView payload) {
    const wire::HeaderTemplate headers({.source_mac = end.self.mac,
                                        .destination_mac = end.peer.mac,
                                        .source = end.self.gid,
                                        .destination = end.peer.gid,
                                        .source_port = 0xC123});
    const std::uint8_t pad = wire::pad_for(payload.size());
    const std::size_t body = (aeth ? 4u : 0u) + payload.size() + pad;
    Bytes frame(headers.frame_size(wire::Bth::kSize + body));
    std::size_t to = headers.write(frame.data(), wire::Bth::kSize + body);
    wire::Bth{.opcode = opcode, .pad_count = pad, .destination = end.peer.qpn, .psn = psn}.write(frame.data() + to);
    to += wire::Bth::kSize;
    if (aeth) aeth->write(frame.data() + to);
    to += aeth ? 4u : 0u;
    std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<std::ptrdiff_t>(to));
    headers.seal(frame.data(), to + payload.size() + pad);
    if (packets_.size() < 256) packets_.push_back({now_, true, std::move(frame)});
  }
  void answer(const Bytes& frame) {
    wire::ParsedFrame parsed;
    if (wire::parse_and_verify(frame, parsed) != wire::Verdict::kOk) return;  // damaged on the way
    End* const end = end_at(frame.data(), parsed);
    if (end == nullptr || end->over || (end->of == End::Of::kPool && !up_[end->node])) return;
    const auto ahead = parsed.psn.since(end->self.expected);
    if (ahead > 0) {
      if (!std::exchange(end->asked_again, true))
        send(*end, Opcode::kRcAcknowledge, end->self.expected,
             wire::Aeth::nak(end->msn, wire::NakCode::kPsnSequenceError), {});
      return;
    }
    end->asked_again = false;
    if (parsed.traits().kind == wire::Kind::kReadRequest) return answer_read(*end, frame, parsed);
    if (ahead == 0 && !write(*end, frame, parsed)) return;
    if (ahead != 0 || parsed.ack_request)
      send(*end, Opcode::kRcAcknowledge, end->self.expected - 1, wire::Aeth::ack(end->msn), {});
  }
  void refuse(End& end, Psn psn) {
    send(end, Opcode::kRcAcknowledge, psn, wire::Aeth::nak(end.msn, wire::NakCode::kRemoteAccessError), {});
    end.over = true;
  }
  void answer_read(End& end, const Bytes& frame, const wire::ParsedFrame& parsed) {
    const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
    const MutableBytes bytes = bytes_at(end, reth.rkey.value, reth.virtual_address, reth.length);
    if (bytes.empty()) return refuse(end, parsed.psn);
    const std::uint32_t packets = (reth.length + end.mtu - 1) / end.mtu;
    SLUICE_CHECK(end.left == 0 || parsed.psn != end.self.expected);  // no READ amid a WRITE
    const Psn after = parsed.psn + packets;
    if (after.since(end.self.expected) > 0) {
      end.self.expected = after;
      ++end.msn;
    }
    for (std::uint32_t i = 0; i < packets; ++i) {
      const bool ends = i + 1 == packets;
      const bool middle = i != 0 && !ends;
      const Opcode opcode = packets == 1 ? Opcode::kRcReadResponseOnly
                            : i == 0     ? Opcode::kRcReadResponseFirst
                            : ends       ? Opcode::kRcReadResponseLast
                                         : Opcode::kRcReadResponseMiddle;
      send(end, opcode, parsed.psn + i, middle ? std::nullopt : std::optional(wire::Aeth::ack(end.msn)),
           bytes.subspan(std::size_t{i} * end.mtu, ends ? reth.length - i * end.mtu : end.mtu));
    }
  }
  bool write(End& end, const Bytes& frame, const wire::ParsedFrame& parsed) {
    const auto bytes = wire::payload(frame.data(), parsed);
    SLUICE_CHECK(parsed.traits().starts_message() == (end.left == 0));
    if (end.left == 0) {
      const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
      if (bytes_at(end, reth.rkey.value, reth.virtual_address, reth.length).empty()) {
        refuse(end, parsed.psn);
        return false;
      }
      end.address = reth.virtual_address;
      end.key = reth.rkey.value;
      end.left = reth.length;
    }
    SLUICE_CHECK(bytes.size() == std::min<std::uint64_t>(end.left, end.mtu));
    const MutableBytes to = bytes_at(end, end.key, end.address, bytes.size());
    if (to.empty()) {  // its key has gone meanwhile
      refuse(end, parsed.psn);
      return false;
    }
    std::copy(bytes.begin(), bytes.end(), to.begin());
    end.address += bytes.size();
    end.left -= bytes.size();
    SLUICE_CHECK(parsed.traits().ends_message() == (end.left == 0));
    if (end.left == 0) ++end.msn;
    end.self.expected = end.self.expected + 1;
    return true;
  }

  // --- what the engine may say ---

  // Whether so many bytes lie in the part.
  static bool lies_in(std::uint64_t at, std::uint64_t length, std::uint64_t start, std::uint64_t bytes) {
    return at >= start && at - start <= bytes && length <= bytes - (at - start);
  }
  void check_made(const Bytes& frame) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    SLUICE_CHECK(parsed.traits().is_request);
    End* const end = end_at(frame.data(), parsed);
    if (end == nullptr) return;  // a node that has been started anew
    SLUICE_CHECK(wire::source_gid(frame.data(), parsed) == end->peer.gid);
    SLUICE_CHECK(std::equal(end->self.mac.bytes.begin(), end->self.mac.bytes.end(), frame.begin()));
    const bool read = parsed.traits().kind == wire::Kind::kReadRequest;
    const auto payload = static_cast<std::uint32_t>(wire::payload(frame.data(), parsed).size());
    End::Meaning meaning{.read = read};
    std::uint32_t length = payload;
    std::uint32_t packets = 1;
    if (parsed.traits().starts_message()) {
      const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
      meaning.address = reth.virtual_address;
      meaning.key = reth.rkey.value;
      length = reth.length;
      check_place(*end, read, reth);
      if (read) packets = (length + end->mtu - 1) / end->mtu;
    } else {
      const auto before = end->said.find((parsed.psn - 1).value());
      SLUICE_CHECK(!read && before != end->said.end() && !before->second.read);
      meaning.address = before->second.address + end->mtu;
      meaning.key = before->second.key;
    }
    for (std::uint32_t i = 0; i < packets; ++i) {
      const auto [place, is_new] = end->said.try_emplace((parsed.psn + i).value(), meaning);
      SLUICE_CHECK(is_new || place->second == meaning);
      meaning.address += end->mtu;
    }
    // None is left out.
    const auto first = static_cast<std::uint32_t>(parsed.psn.since(end->first));
    SLUICE_CHECK(first <= end->furthest);
    end->furthest = std::max(end->furthest, first + packets);
  }
  void check_place(const End& end, bool read, const wire::Reth& reth) {
    const cowbird::ChannelLayout layout = rings(end.who).layout.channel();
    const std::uint64_t start = block_at(end.who) + rings(end.who).layout.channel_at(0);
    const auto is_at = [&](std::size_t offset, std::size_t length) {
      return reth.virtual_address == start + offset && reth.length == length;
    };
    if (end.of == End::Of::kPool) {
      SLUICE_CHECK(std::ranges::any_of(told_[end.who == Who::kGood ? 0 : 1], [&](const cowbird::Region& r) {
        return r.node == kFirstNode + end.node && r.key == reth.rkey.value && (read || r.writable) &&
               reth.virtual_address - r.base <= r.length && reth.length <= r.length - (reth.virtual_address - r.base);
      }));
      return;
    }
    SLUICE_CHECK(reth.rkey.value == block_key(end.who));
    if (end.of == End::Of::kHost) {
      const std::size_t ring = start + (read ? layout.requests : layout.responses);
      SLUICE_CHECK(lies_in(reth.virtual_address, reth.length, ring,
                           read ? layout.shape.request_bytes : layout.shape.response_bytes));
    } else if (read) {
      const bool entries = reth.length % cowbird::kEntryBytes == 0 && reth.length != 0 &&
                           lies_in(reth.virtual_address, reth.length, start + ChannelLayout::kMetadata,
                                   std::uint64_t{layout.shape.entries} * cowbird::kEntryBytes);
      SLUICE_CHECK(
          entries || is_at(ChannelLayout::kIssuer, cowbird::kLine) ||
          is_at(ChannelLayout::kProgress, ChannelLayout::kErrorLog + cowbird::kErrorBlock - ChannelLayout::kProgress));
    } else {
      SLUICE_CHECK(is_at(ChannelLayout::kProgress, 48) || is_at(ChannelLayout::kErrorLog, 8) ||
                   is_at(ChannelLayout::kErrorLog + cowbird::kErrorBytes, cowbird::kErrors * cowbird::kErrorBytes));
    }
  }

  // --- the end ---

  // A whole network and hosts that do their work: all is answered.
  void finish() {
    outbox_.full = false;
    up_.fill(true);
    good_.renew();
    tell_regions(Who::kGood);
    for (int i = 0; i < 4000 && !good_.all_done(); ++i) {
      if (i % 8 == 0) mend();
      move_all(4);
      if (i > 40) pass(Duration::microseconds(50));
      good_.take(now_, 16);
      tell_regions(Who::kGood);
    }
    SLUICE_CHECK(!engine_->channel(at(Who::kGood).id)->broken());
    SLUICE_CHECK(good_.all_done());
    packets_.clear();
    good_.check_pool();
    reached_["broken"] += engine_->channel(at(Who::kBad).id)->broken() ? 1u : 0u;
  }
  void count_engine() {
    if (!engine_) return;
    const auto c = engine_->counters();
    for (const auto& [name, n] : {std::pair{"relayed", c.relayed},
                                  {"unwanted", c.unwanted},
                                  {"paused", c.paused},
                                  {"rewinds", c.rewinds},
                                  {"timeouts", c.timeouts},
                                  {"closed", c.closed},
                                  {"malformed", c.malformed}})
      reached_[name] += n;
    reached_["damaged"] += engine_->damaged();
  }

  Script& script_;
  std::uint8_t options_;
  Time now_;
  Pool pool_;
  std::array<bool, kNodes> up_{true, true};
  GoodApplication good_;
  BadApplication bad_;
  std::array<Attachment, 2> attachments_{};
  std::array<std::vector<cowbird::Region>, 2> told_{};
  std::unique_ptr<SwitchEngine> engine_;
  std::uint64_t engines_ = 0;
  AllFrames outbox_;
  std::deque<Packet> packets_;
  std::map<std::pair<std::string, std::uint32_t>, End> ends_;
  std::uint32_t qpns_ = 0;
  Reached reached_;
};

}  // namespace

Reached check_cowbird_switch(ByteView bytes) {
  Script script(bytes);
  World world(script, script.next());
  return world.play();
}

}  // namespace sluice::fuzz
