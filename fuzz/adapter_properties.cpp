#include "fuzz/adapter_properties.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fuzz/frame_maker.h"
#include "fuzz/requester_model.h"
#include "fuzz/responder_model.h"
#include "fuzz/script.h"
#include "rc/adapter.h"
#include "rc/connection_manager.h"
#include "rc/neighbors.h"

namespace sluice::fuzz {
namespace {

using namespace rc;

constexpr std::size_t kArea = 4096;
constexpr std::size_t kGuard = 256;
constexpr std::uint16_t kPort = 7;
constexpr std::uint8_t kAboutRequests = 0xE0;  // scripts that begin so, or higher

// The program's memory: four areas between guards.
enum class Area : std::uint8_t { kOpen, kReadOnly, kForeign, kLocal };
constexpr std::size_t kAreas = 4;

class Memory {
 public:
  Memory() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    before_ = bytes_;
  }
  MutableBytes area(Area which) { return MutableBytes(bytes_).subspan(start(which), kArea); }
  bool unchanged() const { return bytes_ == before_; }
  // Whether all but the local area, and the open one if it `may`, is as it was.
  enum class Open : std::uint8_t { kMay, kMayNot };
  bool changed_locally(Open open) const {
    const std::size_t from = open == Open::kMay ? start(Area::kOpen) + kArea : 0;
    return same(0, start(Area::kOpen)) && same(from, start(Area::kLocal)) &&
           same(start(Area::kLocal) + kArea, bytes_.size());
  }
  void take_for_granted() { before_ = bytes_; }
  // From now on it is as it was, but for these bytes.
  void expect(const std::uint8_t* at, ByteView bytes) {
    std::copy(bytes.begin(), bytes.end(), before_.begin() + (at - bytes_.data()));
  }
  // As it was before, but for these bytes. Nothing: they are not in an area.
  bool changed_by(Area area, std::uint64_t offset, ByteView to) const {
    if (offset > kArea || to.size() > kArea - offset) return false;
    std::vector<std::uint8_t> due = before_;
    std::copy(to.begin(), to.end(), due.begin() + static_cast<std::ptrdiff_t>(start(area) + offset));
    return bytes_ == due;
  }
  std::uint64_t word_before(Area area, std::uint64_t offset) const {
    SLUICE_CHECK(offset + 8 <= kArea);
    return load_le<std::uint64_t>(before_.data() + start(area) + offset);
  }

 private:
  static constexpr std::size_t start(Area area) { return kGuard + static_cast<std::size_t>(area) * (kArea + kGuard); }
  bool same(std::size_t from, std::size_t to) const {
    return std::equal(bytes_.begin() + static_cast<std::ptrdiff_t>(from),
                      bytes_.begin() + static_cast<std::ptrdiff_t>(to),
                      before_.begin() + static_cast<std::ptrdiff_t>(from));
  }
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(kGuard + kAreas * (kArea + kGuard));
  std::vector<std::uint8_t> before_;
};

// Room for as many frames as a step wants.
class Outbox final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    SLUICE_CHECK(length <= port::kMaxFrame);
    reserved_ = room == 0 ? 0 : length;
    return room == 0 ? nullptr : frame_.data();
  }
  void commit(std::size_t length) override {
    SLUICE_CHECK(length <= reserved_);
    --room;
    on_frame({frame_.data(), length});
  }
  std::function<void(ByteView)> on_frame;
  std::size_t room = 0;

 private:
  std::array<std::uint8_t, port::kMaxFrame> frame_{};
  std::size_t reserved_ = 0;
};

struct Peer {
  Transport transport = Transport::kRc;
  QpState state = QpState::kReadyToSend;
  bool shares_receives = false;
  memory::Access access = memory::kAllAccess;
  QueuePair* pair = nullptr;
  Psn last_sent{};                     // of our requests, as seen on the wire
  std::uint64_t last_completed = 0;    // sends
  std::set<std::uint64_t> receives{};  // posted and not completed; of its own queue

  // What its peer has asked for, as far as it was executed.
  struct Asked {
    Psn first{};
    Area area{};
    std::uint64_t offset = 0;
    std::uint32_t length = 0;  // READ
    std::uint64_t prior = 0;   // atomic
    bool atomic = false;
  };
  std::deque<Asked> asked{};  // READs and atomics, the newest at the front
  Asked write{};              // that is under way

  RequesterModel model{nullptr};  // of RC and UC
  ResponderModel responder{};     // of RC
};

class World {
 public:
  explicit World(Script& script) {
    const std::uint8_t options = script.next();
    AdapterConfig config;
    config.mac = kOurMac;
    config.gids = {our_gid(false), our_gid(true)};
    config.coalesce_acks = (options & 1) == 0;
    config.advertise_credits = (options & 2) != 0;
    config.dcqcn = (options & 4) != 0;
    config.max_unacked_packets = (options & 8) != 0 ? 4 : 256;
    config.limits.max_queue_pairs = 32;
    adapter_ = std::make_unique<Adapter>(config);
    domain_ = adapter_->create_domain();
    completions_ = adapter_->create_completion_queue((options & 16) != 0 ? 4 : 1024);
    shared_ = adapter_->create_shared_receive_queue(domain_, 8, 2);
    for (std::size_t i = 0; i < kAreas; ++i) register_area(i);
    window_ = config.max_unacked_packets;
    for (Peer& peer : peers_) {
      peer.model = RequesterModel([this](const Sge& piece) { return find_local(piece); });
      make_pair(peer);
    }
    about_requests_ = options >= kAboutRequests;
    SLUICE_CHECK(adapter_->connections().listen(kPort).has_value());
    outbox_.on_frame = [this](ByteView frame) { on_sent(frame); };
    memory_.take_for_granted();
  }

  void run(Script& script) {
    while (!script.empty()) {
      if (about_requests_) {
        step_of_requests(script);
      } else {
        step(script);
      }
      take_completions();
    }
    come_to_rest();
  }
  const AdapterCounters& counters() const { return adapter_->counters(); }

 private:
  void step(Script& script) {
    const std::uint8_t what = script.next();
    switch (what & 0x0F) {
      case 7: return repeat(script.next());
      case 8: return transmit(script.next());
      case 9: return post_send(peers_[script.next() % peers_.size()], script);
      case 10: return post_receive(peers_[script.next() % peers_.size()], script);
      case 11: return wait(script.next());
      case 12: return modify(peers_[script.next() % peers_.size()], script);
      case 13: return change_region(script.next());
      case 14: return program(script);
      case 15: return deliver(maker_.odd_frame(script));
      default: return deliver(crafted(script));
    }
  }

  // What the program sends, and how it is answered, mostly well.
  void step_of_requests(Script& script) {
    const std::uint8_t what = script.next();
    Peer& peer = peers_[(what & 0x80) != 0 ? std::size_t{what} >> 4 & 7u : 0];
    switch (what & 0x0F) {
      case 0:
      case 1:
      case 2:
      case 3: return post_send(peer, script);
      case 4:
      case 5: return transmit(200);
      case 6: return transmit(script.next());
      case 7: return wait(script.next());
      case 8: return wait(0x80);
      case 9: return deliver(crafted(script));
      case 10: return (what & 0x70) == 0 ? change_region(script.next()) : repeat(1);
      case 11: return (what & 0x70) == 0 ? modify(peer, script) : deliver(crafted(script));
      default: return answer(peer, script);
    }
  }

  // --- frames in ---

  // What a peer without fault would say next, several times.
  void answer(const Peer& peer, Script& script) {
    const auto number = static_cast<std::size_t>(&peer - peers_.data());
    for (unsigned left = script.next() % 20u + 1; left != 0; --left) {
      auto next = peer.model.next_answer(script.next());
      if (!next) return;
      const wire::Bth bth{.opcode = next->opcode, .destination = peer.pair->qpn(), .psn = next->psn};
      deliver(maker_.packet(bth, number == 1, std::move(next->body), next->payload));
    }
  }

  MutableBytes crafted(Script& script) {
    const std::size_t whom = script.next() % (peers_.size() + 2);
    FrameMaker::Target to{.qpn = wire::kCmQpn, .keys = {}};
    if (whom < peers_.size()) {
      const Peer& peer = peers_[whom];
      to = {.qpn = peer.pair->qpn(), .expected = peer.pair->expected_psn(), .last_sent = peer.last_sent, .keys = {}};
    } else if (whom == peers_.size()) {
      to.qpn = Qpn{0x4242};
    }
    to.keys = keys_;
    return maker_.frame(to, script);
  }

  void repeat(std::uint8_t times) {
    for (unsigned i = times % 80u; i != 0; --i) deliver(maker_.again());
  }

  void deliver(MutableBytes frame) {
    const AdapterCounters before = adapter_->counters();
    const std::vector<std::uint8_t> as_sent(frame.begin(), frame.end());
    const Due due = due_of(as_sent);
    adapter_->on_frame(now_, {frame.data(), static_cast<std::uint32_t>(frame.size())});
    const AdapterCounters& after = adapter_->counters();
    SLUICE_CHECK(after.rx_frames == before.rx_frames + 1);
    SLUICE_CHECK(outcomes(after) > outcomes(before));  // no silence without a reason
    const bool executed = after.rx_requests != before.rx_requests;
    const bool accepted = after.rx_responses != before.rx_responses;
    if (after.completions_lost != 0) stop_models();
    check_verdict(due, as_sent, before, after);
    if (executed) {
      SLUICE_CHECK(memory_.changed_locally(Memory::Open::kMay));
      check_executed(as_sent);
      memory_.take_for_granted();
    }
    if (accepted) take_in(as_sent);
    SLUICE_CHECK(memory_.unchanged());
    take_completions();
  }

  // A request to a reliable queue pair, and what it should come to; unless it does not reach the responder.
  struct Due {
    Peer* peer = nullptr;  // null: it is no such thing
    ResponderModel::Verdict verdict{};
    ResponderModel::Receives receives{};
    wire::ParsedFrame parsed{};
  };
  Due due_of(ByteView frame) {
    Due due;
    if (wire::parse_and_verify(frame, due.parsed) != wire::Verdict::kOk) return {};
    Peer* const peer = peer_of(due.parsed.destination);
    const wire::OpcodeTraits& traits = due.parsed.traits();
    if (peer == nullptr || !peer->responder.is_on() || !traits.is_request || traits.transport != Transport::kRc)
      return {};
    due.peer = peer;
    due.receives = ResponderModel::Receives::kUnknown;
    if (!peer->shares_receives) {
      const bool some = peer->receives.size() > (peer->responder.has_taken() ? 1 : 0);
      due.receives = some ? ResponderModel::Receives::kSome : ResponderModel::Receives::kNone;
    }
    due.verdict = peer->responder.due(frame, due.parsed, due.receives);
    return due;
  }
  static void check_verdict(const Due& due, ByteView frame, const AdapterCounters& before, const AdapterCounters& c) {
    using enum ResponderModel::Verdict;
    if (due.peer == nullptr) return;
    const std::pair<ResponderModel::Verdict, bool> come_to[] = {
        {kExecuted, c.rx_requests != before.rx_requests},
        {kDuplicate, c.rx_duplicate_requests != before.rx_duplicate_requests},
        {kGap, c.rx_out_of_sequence != before.rx_out_of_sequence},
        {kInvalid, c.rx_invalid_requests != before.rx_invalid_requests},
        {kAccess, c.rx_access_errors != before.rx_access_errors},
        {kOperation, c.rx_operation_errors != before.rx_operation_errors},
        {kNotReady, c.rx_no_receive != before.rx_no_receive},
        {kPutOff, c.rx_put_off != before.rx_put_off}};
    for (const auto& [verdict, has] : come_to) {
      if (has) due.peer->responder.on_verdict(verdict, due.verdict, frame, due.parsed, due.receives);
    }
  }

  // What a response that was accepted brings.
  void take_in(ByteView frame) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    Peer* const peer = peer_of(parsed.destination);
    SLUICE_CHECK(peer != nullptr);
    if (peer->model.is_on()) {
      peer->model.on_response(now_, frame, parsed, [this](auto* at, ByteView bytes) { memory_.expect(at, bytes); });
    } else {
      SLUICE_CHECK(memory_.changed_locally(Memory::Open::kMayNot));
      memory_.take_for_granted();
    }
  }
  // A completion has been lost: what the program should hear is not to be told any more.
  void stop_models() {
    for (Peer& peer : peers_) peer.model.stop();
  }

  // What a request that was executed has done to memory.
  void check_executed(ByteView frame) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    Peer* const peer = peer_of(parsed.destination);
    SLUICE_CHECK(peer != nullptr && parsed.traits().is_request);
    const wire::OpcodeTraits& traits = parsed.traits();
    if (traits.kind == wire::Kind::kSend) return;  // into what was posted
    if (traits.kind == wire::Kind::kWrite) return check_written(*peer, frame, parsed);
    Peer::Asked asked;
    if (traits.is_atomic()) {
      const auto atomic = wire::AtomicEth::parse(frame.data() + parsed.extended_offset());
      asked = place_of(atomic.rkey, atomic.virtual_address);
      asked.atomic = true;
      asked.prior = memory_.word_before(asked.area, asked.offset);
      std::array<std::uint8_t, 8> after;
      store_le(after.data(), swapped(asked.prior, frame, parsed));
      SLUICE_CHECK(memory_.changed_by(asked.area, asked.offset, after));
    } else {
      const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
      if (reth.length != 0) asked = place_of(reth.rkey, reth.virtual_address);
      asked.length = reth.length;
      SLUICE_CHECK(memory_.unchanged());
    }
    asked.first = parsed.psn;
    peer->asked.push_front(asked);
    if (peer->asked.size() > 16) peer->asked.pop_back();
  }
  static std::uint64_t swapped(std::uint64_t prior, ByteView frame, const wire::ParsedFrame& parsed) {
    const auto atomic = wire::AtomicEth::parse(frame.data() + parsed.extended_offset());
    if (parsed.traits().kind == wire::Kind::kFetchAdd) return prior + atomic.swap_or_add;
    if (parsed.traits().kind == wire::Kind::kCompareSwap) return prior == atomic.compare ? atomic.swap_or_add : prior;
    const auto masked = wire::get<wire::MaskedAtomicEth>(frame.data(), parsed);
    if (((prior ^ masked.compare) & masked.compare_mask) != 0) return prior;
    return (prior & ~masked.swap_mask) | (masked.swap & masked.swap_mask);
  }
  void check_written(Peer& peer, ByteView frame, const wire::ParsedFrame& parsed) {
    const ByteView bytes = wire::payload(frame.data(), parsed);
    if (parsed.traits().starts_message()) {
      const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
      peer.write = reth.length == 0 ? Peer::Asked{} : place_of(reth.rkey, reth.virtual_address);
      SLUICE_CHECK(parsed.traits().ends_message() ? reth.length == bytes.size() : reth.length > bytes.size());
    }
    SLUICE_CHECK(memory_.changed_by(peer.write.area, peer.write.offset, bytes));
    peer.write.offset += bytes.size();
  }
  Peer::Asked place_of(wire::RKey rkey, std::uint64_t address) const {
    const auto key = std::ranges::find(keys_, memory::Key{rkey.value});
    SLUICE_CHECK(key != keys_.end());
    const auto i = static_cast<std::size_t>(key - keys_.begin());
    return {.area = static_cast<Area>(i), .offset = address - FrameMaker::address_of(i)};
  }

  static std::uint64_t outcomes(const AdapterCounters& c) {
    return c.rx_not_ours + c.rx_malformed + c.rx_bad_icrc + c.rx_neighbor + c.rx_mads + c.rx_bad_pkey +
           c.rx_unknown_qp + c.rx_wrong_transport + c.rx_wrong_state + c.rx_wrong_source + c.rx_requests +
           c.rx_responses + c.rx_duplicate_requests + c.rx_out_of_sequence + c.rx_invalid_requests +
           c.rx_access_errors + c.rx_operation_errors + c.rx_no_receive + c.rx_put_off + c.rx_ignored_responses +
           c.rx_cnp + c.rx_ud_dropped;
  }

  // --- frames out ---

  void transmit(std::size_t room) {
    outbox_.room = room;
    while (adapter_->poll_transmit(now_, outbox_)) {
    }
    SLUICE_CHECK(memory_.unchanged());
    const AdapterCounters& c = adapter_->counters();
    SLUICE_CHECK(c.tx_naks == naks_ && c.tx_rnr_naks == rnr_naks_);
    SLUICE_CHECK(c.rx_out_of_sequence >= sequence_naks_ && c.rx_no_receive >= rnr_naks_);
    SLUICE_CHECK(c.rx_invalid_requests + c.rx_access_errors + c.rx_operation_errors >= naks_ - sequence_naks_);
  }

  void on_sent(ByteView frame) {
    wire::ParsedFrame parsed;
    const wire::Verdict verdict = wire::parse_and_verify(frame, parsed);
    if (verdict == wire::Verdict::kNotIp || verdict == wire::Verdict::kNotUdp) return;  // ARP, neighbour discovery
    SLUICE_CHECK(verdict == wire::Verdict::kOk);
    if (parsed.opcode == wire::Opcode::kRcAcknowledge)
      return check_acknowledge(parsed, wire::get<wire::Aeth>(frame.data(), parsed));
    check_answer(frame, parsed);
    if (!parsed.traits().is_request) return;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (parsed.destination != peer_qpn(i)) continue;
      peers_[i].last_sent = parsed.psn;
      if (peers_[i].model.is_on()) peers_[i].model.on_packet(now_, frame, parsed);
    }
  }

  // READ responses bring what is in memory, atomics' answers what was there before.
  void check_answer(ByteView frame, const wire::ParsedFrame& parsed) {
    const bool atomic = parsed.traits().kind == wire::Kind::kAtomicAcknowledge;
    if (!atomic && parsed.traits().kind != wire::Kind::kReadResponse) return;
    Peer* peer = nullptr;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (parsed.destination == peer_qpn(i)) peer = &peers_[i];
    }
    if (peer == nullptr) return;  // a queue pair that a script has led to its path
    peer->responder.on_answer(parsed.psn);
    const std::uint32_t mtu = peer->pair->attributes().path_mtu.value_or(4096);
    const auto asked = std::ranges::find_if(peer->asked, [&](const Peer::Asked& a) {
      const auto distance = parsed.psn.since(a.first);
      const std::uint32_t packets = a.atomic ? 1 : std::max(1u, (a.length + mtu - 1) / mtu);
      return distance >= 0 && static_cast<std::uint32_t>(distance) < packets;
    });
    SLUICE_CHECK(asked != peer->asked.end() && asked->atomic == atomic);
    if (atomic) {
      SLUICE_CHECK(wire::get<wire::AtomicAckEth>(frame.data(), parsed).original == asked->prior);
      return;
    }
    const std::uint32_t offset = static_cast<std::uint32_t>(parsed.psn.since(asked->first)) * mtu;
    const std::uint32_t length = std::min(mtu, asked->length - offset);
    const ByteView there = ByteView(memory_.area(asked->area)).subspan(asked->offset + offset, length);
    SLUICE_CHECK(std::ranges::equal(wire::payload(frame.data(), parsed), there));
  }

  void check_acknowledge(const wire::ParsedFrame& parsed, const wire::Aeth& aeth) {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (parsed.destination != peer_qpn(i)) continue;
      // Nothing is acknowledged that has not been executed; and refused at most what is next.
      SLUICE_CHECK(parsed.psn.since(peers_[i].pair->expected_psn()) < (aeth.is_ack() ? 0 : 1));
    }
    if (aeth.is_rnr_nak()) ++rnr_naks_;
    if (!aeth.is_nak()) return;
    ++naks_;
    if (aeth.nak_code() == wire::NakCode::kPsnSequenceError) ++sequence_naks_;
  }

  // --- the program ---

  std::array<Sge, 2> sges(Script& script) {
    std::array<Sge, 2> pieces;
    for (Sge& sge : pieces) {
      const std::uint8_t where = script.next();
      const std::uint8_t length = script.next();
      const memory::Key key = where < 0xF0 ? keys_[static_cast<std::size_t>(Area::kLocal)] : keys_[where % kAreas];
      sge = {.address = FrameMaker::address_of(static_cast<std::size_t>(Area::kLocal)) + where * 8u,
             .length = (length & 0x80) != 0 ? (length & 0x7Fu) * 16u : length & 0x1Fu,
             .key = key};
    }
    return pieces;
  }

  void post_send(Peer& peer, Script& script) {
    const std::uint8_t op = script.next();
    const std::uint8_t flags = script.next();
    auto pieces = sges(script);
    const bool atomic = op % 8 >= 6;
    const bool inlined = !atomic && (flags & 24) == 24;
    if (inlined) {  // from the program's own memory, without a key
      for (Sge& sge : pieces) sge = Sge::of(memory_.area(Area::kLocal).first(sge.length));
    }
    const Sge word{.address = FrameMaker::address_of(static_cast<std::size_t>(Area::kLocal)) + (flags & 0xF8u),
                   .length = 8,
                   .key = keys_[static_cast<std::size_t>(Area::kLocal)]};
    const UdDestination to{.gid = peer_gid((flags & 64) != 0),
                           .mac = (flags & 128) != 0 ? wire::MacAddress{} : kPeerMac,
                           .qpn = Qpn{0x55},
                           .qkey = wire::QKey{0x1111}};
    const SendRequest request{
        .id = next_id_,
        .op = static_cast<SendOp>(op % 8),
        .flags = {.signaled = (flags & 1) == 0,
                  .fence = (flags & 2) != 0,
                  .solicited = (flags & 4) != 0,
                  .inline_data = inlined},
        .sges = atomic ? std::span<const Sge>(&word, 1) : std::span<const Sge>(pieces).first(op >> 3 & 1u ? 2 : 1),
        .immediate = 0x1234,
        .invalidate_key = keys_[0],
        .remote_address = FrameMaker::address_of(0) + flags * 8u,
        .remote_key = keys_[0],
        .compare = op,
        .swap_or_add = flags,
        .destination = peer.transport == Transport::kUd ? &to : nullptr,
        .not_after = op >> 4 == 15 ? now_ + Duration::milliseconds(10) : Time::never()};
    if (adapter_->post_send(now_, *peer.pair, request) != PostError::kNone) return;
    ++next_id_;
    peer.model.post(request);
  }
  // Local memory that the program's work requests may name.
  std::uint8_t* find_local(const Sge& piece) {
    constexpr auto kHere = static_cast<std::size_t>(Area::kLocal);
    if (piece.key == memory::kReservedKey) return reinterpret_cast<std::uint8_t*>(piece.address);
    const std::uint64_t offset = piece.address - FrameMaker::address_of(kHere);
    const bool inside = offset <= kArea && piece.length <= kArea - offset;
    return inside && piece.key == keys_[kHere] ? memory_.area(Area::kLocal).data() + offset : nullptr;
  }

  void post_receive(Peer& peer, Script& script) {
    const auto pieces = sges(script);
    if (peer.shares_receives) {
      if (adapter_->post_receive(*shared_, {.id = next_id_, .sges = pieces}) == PostError::kNone)
        shared_receives_.insert(next_id_++);
    } else if (peer.receives.insert(next_id_);
               adapter_->post_receive(*peer.pair, {.id = next_id_, .sges = pieces}) == PostError::kNone) {
      ++next_id_;
    } else {
      peer.receives.erase(next_id_);
    }
  }

  void modify(Peer& peer, Script& script) {
    ask_for(peer, script);
    if (!peer.model.is_on() && peer.pair->state() == QpState::kReadyToSend) begin_model(peer);
  }
  void ask_for(Peer& peer, Script& script) {
    const std::uint8_t what = script.next();
    switch (what % 6) {
      case 0: return reset(peer);
      case 1: static_cast<void>(adapter_->modify(now_, *peer.pair, {.state = QpState::kError})); return;
      case 2: static_cast<void>(adapter_->modify(now_, *peer.pair, {.state = QpState::kSendQueueDrained})); return;
      case 3: static_cast<void>(adapter_->modify(now_, *peer.pair, {.state = QpState::kReadyToSend})); return;
      case 4: adapter_->destroy(peer.pair); return make_pair(peer);
      default:
        static_cast<void>(adapter_->modify(now_, *peer.pair,
                                           {.state = static_cast<QpState>(script.next() % 7),
                                            .path_mtu = 256u << script.next() % 6,
                                            .timeout = script.next(),
                                            .retry_count = script.next(),
                                            .max_reads_in = script.next()}));
    }
  }
  void begin_model(Peer& peer) {
    const bool is_modelled = peer.transport != Transport::kUd && adapter_->counters().completions_lost == 0;
    if (is_modelled) peer.model.start(*peer.pair, window_);
  }

  void reset(Peer& peer) {
    peer.model.stop();
    peer.responder.stop();
    SLUICE_CHECK(adapter_->modify(now_, *peer.pair, {.state = QpState::kReset}).has_value());
    take_completions();  // of before
    peer.receives.clear();
    move_on(peer, QpState::kReadyToSend);
  }

  void register_area(std::size_t i) {
    const auto area = static_cast<Area>(i);
    const memory::PdId domain = area == Area::kForeign ? memory::PdId{domain_.value + 1} : domain_;
    const memory::Access access = area == Area::kReadOnly ? memory::kRemoteRead
                                  : area == Area::kLocal  ? memory::kLocalWrite
                                                          : memory::kAllAccess;
    keys_[i] = adapter_->regions()
                   .add({.pd = domain,
                         .bytes = memory_.area(area),
                         .address = FrameMaker::address_of(i),
                         .access = access,
                         .invalidated_by_peers = true})
                   .value();
  }

  void change_region(std::uint8_t what) {
    const std::size_t i = what % kAreas;
    if ((what & 0x10) != 0) {
      adapter_->regions().invalidate(keys_[i], domain_);
    } else {
      SLUICE_CHECK(adapter_->regions().remove(keys_[i]));
      register_area(i);
    }
  }

  // Connections by RDMA-CM: what has come is accepted, refused, ended or forgotten.
  void program(Script& script) {
    ConnectionManager& manager = adapter_->connections();
    while (const auto event = manager.poll_event()) connections_.insert(event->id);
    const std::uint8_t what = script.next();
    if (what % 4 == 0 && connections_.size() < 16) {
      const auto id = manager.connect(now_, peer_gid((what & 0x40) != 0), kPort, {.qpn = Qpn{0x99}, .max_retries = 1});
      if (id) connections_.insert(*id);
      return;
    }
    if (connections_.empty()) return;
    const ConnectionId id = *connections_.begin();
    switch (what % 4) {
      case 1: static_cast<void>(manager.accept(now_, id, {.qpn = Qpn{0x99}, .max_retries = 1})); return;
      case 2: return manager.disconnect(now_, id);
      default: manager.release(now_, id); connections_.erase(id);
    }
  }

  // --- queue pairs ---

  void make_pair(Peer& peer) {
    peer.model.stop();
    peer.responder.stop();
    peer.pair = adapter_
                    ->create_queue_pair({.transport = peer.transport,
                                         .pd = domain_,
                                         .send_completions = completions_,
                                         .receive_completions = completions_,
                                         .shared_receives = peer.shares_receives ? shared_ : nullptr,
                                         .send_depth = 8,
                                         .receive_depth = 8,
                                         .max_send_sges = 2,
                                         .max_receive_sges = 2})
                    .value();
    peer.receives.clear();
    move_on(peer, peer.state);
  }

  void move_on(Peer& peer, QpState to) {
    peer.asked.clear();
    peer.write = {};
    const auto number = static_cast<std::size_t>(&peer - peers_.data());
    const bool by_v6 = number == 1;
    if (to == QpState::kReset) return;
    must(adapter_->modify(now_, *peer.pair,
                          {.state = QpState::kInit, .access = peer.access, .qkey = wire::QKey{0x1111}}));
    if (to == QpState::kInit) return;
    must(adapter_->modify(now_, *peer.pair,
                          {.state = QpState::kReadyToReceive,
                           .remote_gid = peer_gid(by_v6),
                           .remote_mac = number == 2 ? wire::MacAddress{} : kPeerMac,
                           .source_gid_index = by_v6 ? 1 : 0,
                           .remote_qpn = peer_qpn(number),
                           .path_mtu = 256,
                           .receive_psn = Psn{0xFF'FFF8},
                           .min_rnr_timer = 1,
                           .max_reads_in = 4}));
    if (peer.transport == Transport::kRc) peer.responder.start(*peer.pair, domain_, adapter_->regions());
    if (to == QpState::kReadyToReceive) return;
    peer.last_sent = Psn{0x2000};
    must(adapter_->modify(now_, *peer.pair,
                          {.state = QpState::kReadyToSend,
                           .send_psn = peer.last_sent,
                           .timeout = 8,
                           .retry_count = 2,
                           .rnr_retry_count = 2,
                           .max_reads_out = 4}));
    begin_model(peer);
    if (to == QpState::kError) must(adapter_->modify(now_, *peer.pair, {.state = QpState::kError}));
  }
  static void must(const Result<void>& result) { SLUICE_CHECK(result.has_value()); }
  static Qpn peer_qpn(std::size_t number) { return Qpn{static_cast<std::uint32_t>(0x1000 + number)}; }

  Peer* peer_of(Qpn qpn) {
    const auto found = std::ranges::find_if(peers_, [&](const Peer& peer) { return peer.pair->qpn() == qpn; });
    return found == peers_.end() ? nullptr : &*found;
  }

  void take_completions() {
    if (adapter_->counters().completions_lost != 0) stop_models();
    std::array<Completion, 64> some;
    while (const std::size_t n = completions_->poll(some)) {
      for (std::size_t i = 0; i < n; ++i) on_completion(some[i]);
    }
    for (Peer& peer : peers_) peer.model.check_settled();
  }
  void on_completion(const Completion& c) {
    Peer* const peer = peer_of(c.qpn);
    if (peer == nullptr) return;  // destroyed meanwhile
    const bool receive = c.kind == CompletionKind::kReceive || c.kind == CompletionKind::kReceiveWithImmediate;
    if (!receive) {
      SLUICE_CHECK(c.id > peer->last_completed && c.id < next_id_);
      peer->last_completed = c.id;
      peer->model.on_completion(c);
    } else {
      auto& posted = peer->shares_receives ? shared_receives_ : peer->receives;
      SLUICE_CHECK(posted.erase(c.id) == 1);
    }
  }

  // --- time ---

  void wait(std::uint8_t how_long) {
    const Time next = adapter_->next_deadline();
    if ((how_long & 0x80) == 0) {
      now_ = now_ + Duration::microseconds(std::int64_t{1} << how_long % 24);
    } else if (next != Time::never()) {
      now_ = std::max(now_, next);
    }
    const std::uint64_t timeouts = adapter_->counters().timeouts;
    adapter_->on_deadline(now_);
    for (Peer& peer : peers_) peer.model.on_time(now_, adapter_->counters().timeouts - timeouts);
    SLUICE_CHECK(adapter_->next_deadline() > now_);
    SLUICE_CHECK(memory_.unchanged());
  }

  // No peer says anything any more: all that waits gives up.
  void come_to_rest() {
    for (const ConnectionId id : connections_) adapter_->connections().release(now_, id);
    for (int turn = 0; turn < 20'000; ++turn) {
      while (const auto event = adapter_->connections().poll_event()) adapter_->connections().release(now_, event->id);
      transmit(1'000'000);
      take_completions();
      if (adapter_->next_deadline() == Time::never()) return check_idle();
      wait(0x80);
    }
    constexpr bool kComesToRest = false;
    SLUICE_CHECK(kComesToRest);
  }
  void check_idle() {
    for (const Peer& peer : peers_) {
      const bool sends = peer.pair->state() == QpState::kReadyToSend || peer.pair->state() == QpState::kError;
      SLUICE_CHECK(!sends || peer.pair->attributes().timeout == 0 || peer.pair->send_queue_length() == 0);
    }
  }

  Time now_;
  Memory memory_;
  FrameMaker maker_;
  std::unique_ptr<Adapter> adapter_;
  memory::PdId domain_{};
  CompletionQueue* completions_ = nullptr;
  SharedReceiveQueue* shared_ = nullptr;
  std::set<std::uint64_t> shared_receives_;
  std::array<memory::Key, kAreas> keys_{};
  std::array<Peer, 9> peers_{Peer{},
                             Peer{},
                             Peer{},
                             Peer{.shares_receives = true, .access = memory::kRemoteRead},
                             Peer{.state = QpState::kReadyToReceive},
                             Peer{.state = QpState::kInit},
                             Peer{.state = QpState::kError},
                             Peer{.transport = Transport::kUc},
                             Peer{.transport = Transport::kUd}};
  Outbox outbox_;
  std::set<ConnectionId> connections_;
  std::uint32_t window_ = 0;
  bool about_requests_ = false;
  std::uint64_t next_id_ = 1;
  std::uint64_t naks_ = 0;
  std::uint64_t sequence_naks_ = 0;
  std::uint64_t rnr_naks_ = 0;
};

}  // namespace

rc::AdapterCounters check_adapter(ByteView input) {
  Script script(input);
  World world(script);
  world.run(script);
  return world.counters();
}

}  // namespace sluice::fuzz
