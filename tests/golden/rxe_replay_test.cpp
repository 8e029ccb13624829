// Soft-RoCE's conversations again, with us in the place of either side: our responder gives the answers that rxe gave, our requester
// sends what rxe sent and completes on what it received.
//
// Where we answer otherwise, and may (each is checked to be just that):
//  - After an RNR NAK rxe sends a NAK(0) for the rest of a multi-packet message. We are silent until the PSN comes again: IBTA vol. 1
//    §9.7.5.2.8 has the requester wait in either case.
//  - A SEND longer than its receive: rxe says "remote operational error", we say "invalid request" as §9.7.4.1.6 has it.
//  - rxe asks for an ACK on the last packet of a message and every 66th; who asks when is the requester's own affair (§9.7.3.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "golden/conversation.h"
#include "rc/adapter.h"
#include "wire/icrc.h"

namespace sluice::rc {
namespace {

using golden::Conversation;
using golden::FrameBytes;
using golden::Packet;
using wire::Aeth;
using wire::Kind;
using wire::Opcode;

// The program behind peer_*.pcap registered this much from here, as its requests just past the end tell.
constexpr std::uint64_t kPeerRegion = 0x7f8b'a8ea'2000;
constexpr std::uint64_t kPeerRegionSize = 1 << 20;
constexpr std::uint32_t kPeerKey = 0x21F;
// Longer than every message, and shorter than the first packet of the one that rxe refused.
constexpr std::uint32_t kAmpleReceive = 64 * 1024;
constexpr std::uint32_t kScantReceive = 1000;

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

std::optional<Target> target_of(const Packet& p) {
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

bool takes_receive(const Packet& p) {
  if (p.traits().kind == Kind::kSend) return p.traits().starts_message();
  return p.traits().kind == Kind::kWrite && p.traits().has(wire::Extended::kImmDt);
}

bool is_rnr_nak(const Packet& p) { return p.traits().kind == Kind::kAcknowledge && p.get<Aeth>().is_rnr_nak(); }
bool is_gap_nak(const Packet& p) {
  if (p.traits().kind != Kind::kAcknowledge) return false;
  const Aeth aeth = p.get<Aeth>();
  return aeth.is_nak() && aeth.nak_code() == wire::NakCode::kPsnSequenceError;
}

AdapterConfig config_of_receiver(const Packet& p) {
  AdapterConfig config;
  std::copy_n(p.bytes.begin(), 6, config.mac.bytes.begin());
  config.gids = {wire::destination_gid(p.bytes.data(), p.parsed)};
  config.coalesce_acks = false;  // rxe answers each message for itself
  return config;
}
AdapterConfig config_of_sender(const Packet& p) {
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

// --- our responder in the place of rxe's ---

class ResponderReplay {
 public:
  explicit ResponderReplay(const Conversation& c) : c_(c), delivery_(c), endpoint_(make_endpoint(c)) {
    find_regions();
    for (Region& region : regions_) {
      const auto added = endpoint_.adapter.regions().add(
          {.pd = endpoint_.pd, .bytes = region.bytes, .address = region.base, .access = memory::kAllAccess});
      region.our_key = added.value().value;
    }
  }

  std::vector<Packet> run() {
    for (std::size_t i = 0; i < c_.packets.size(); ++i) {
      const Packet& p = c_.packets[i];
      if (!p.traits().is_request) continue;
      const bool nobody = c_.first_answer() == nullptr;
      if (!nobody && !delivery_.reached_responder(i)) continue;
      prepare(i);
      endpoint_.receive(with_our_key(p));
      ++delivered;
    }
    return std::move(endpoint_.sent.packets);
  }
  // The first byte of a region that is not what the WRITEs and atomics make of it.
  std::optional<std::uint64_t> first_wrong_byte() const {
    for (const Region& region : regions_) {
      const auto [ours, model] = std::ranges::mismatch(region.bytes, region.model);
      if (ours != region.bytes.end()) return region.base + static_cast<std::uint64_t>(ours - region.bytes.begin());
    }
    return std::nullopt;
  }
  const AdapterCounters& counters() const { return endpoint_.adapter.counters(); }
  std::size_t delivered = 0;

 private:
  struct Region {
    std::uint32_t key = 0;
    std::uint32_t our_key = 0;
    std::uint64_t base = 0;
    std::vector<std::uint8_t> bytes{};
    std::vector<std::uint8_t> model{};
    std::vector<bool> known{};  // by a WRITE or an atomic
  };

  static Endpoint make_endpoint(const Conversation& c) {
    const Packet& first = c.first();
    const Packet* answer = c.first_answer();
    const AdapterConfig peer = config_of_sender(first);
    // Where nobody answered there was no such queue pair: ours has another number.
    const Qpn own = answer != nullptr ? first.parsed.destination : Qpn(first.parsed.destination.value + 1);
    return {config_of_receiver(first),
            peer.gids[0],
            peer.mac,
            {.own = own,
             .remote = answer != nullptr ? answer->parsed.destination : Qpn(0x99),
             .psn = first.psn(),
             .mtu = c.mtu(),
             .min_rnr_timer = c.rnr_timer().value_or(12)}};
  }

  bool refused(const Packet& p) const {
    return c_.fatal() == wire::NakCode::kRemoteAccessError && p.psn() == c_.packets.back().psn();
  }

  void find_regions() {
    std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const Packet& p : c_.packets) {
      const auto target = p.traits().is_request ? target_of(p) : std::nullopt;
      if (!target || refused(p)) continue;
      auto& [low, high] = ranges.try_emplace(target->key, target->address, target->address).first->second;
      low = std::min(low, target->address);
      high = std::max(high, target->address + target->length);
    }
    if (c_.first_answer() == nullptr) ranges.clear();
    if (c_.fatal()) ranges[kPeerKey] = {kPeerRegion, kPeerRegion + kPeerRegionSize};
    for (const auto& [key, range] : ranges) {
      const std::size_t size = std::max<std::uint64_t>(range.second - range.first, 1);
      Region region{.key = key, .base = range.first};
      region.bytes.resize(size);
      region.model.resize(size);
      region.known.resize(size);
      regions_.push_back(std::move(region));
    }
  }

  Region* region_of(std::uint32_t key) {
    const auto found = std::ranges::find(regions_, key, &Region::key);
    return found == regions_.end() ? nullptr : &*found;
  }

  FrameBytes with_our_key(const Packet& p) {
    FrameBytes bytes = p.bytes;
    const auto target = target_of(p);
    const Region* region = target ? region_of(target->key) : nullptr;
    if (region == nullptr) return bytes;
    store_be(bytes.data() + p.parsed.extended_offset() + 8, region->our_key);  // RETH and AtomicETH alike
    store_le(bytes.data() + p.parsed.icrc_offset(), wire::icrc(bytes.data(), p.parsed));
    return bytes;
  }

  // Makes the responder's world what rxe's must have been when packets[i] came.
  void prepare(std::size_t i) {
    const Packet& p = c_.packets[i];
    if (takes_receive(p) && !is_answered_not_ready(i)) {
      receives_.emplace_back(c_.fatal() ? kScantReceive : kAmpleReceive);
      const Sge sge = Sge::of(receives_.back());
      EXPECT_EQ(endpoint_.adapter.post_receive(*endpoint_.pair, {.sges = {&sge, 1}}), PostError::kNone);
    }
    const bool in_order = p.psn() == endpoint_.pair->expected_psn();
    if (!in_order) return;
    switch (p.traits().kind) {
      case Kind::kReadRequest: return fill_for_read(i);
      case Kind::kCompareSwap:
      case Kind::kFetchAdd: return prepare_atomic(i);
      case Kind::kWrite: return model_write(p);
      default: return;
    }
  }

  bool is_answered_not_ready(std::size_t i) const {
    for (std::size_t k = i + 1; k < c_.packets.size(); ++k) {
      const Packet& next = c_.packets[k];
      if (next.traits().is_request && next.psn() == c_.packets[i].psn()) return false;
      if (!next.traits().is_request && next.psn() == c_.packets[i].psn()) return is_rnr_nak(next);
    }
    return false;
  }

  const Packet* answer_to(std::size_t i, Psn psn) const {
    for (std::size_t k = i + 1; k < c_.packets.size(); ++k) {
      const Packet& next = c_.packets[k];
      if (!next.traits().is_request && next.psn() == psn && !is_gap_nak(next)) return &next;
    }
    return nullptr;
  }

  // What the responder's own program put there, as far as no WRITE of ours did.
  void set_unknown(Region& region, std::uint64_t address, ByteView bytes) {
    for (std::size_t b = 0; b < bytes.size(); ++b) {
      const std::size_t at = address - region.base + b;
      if (!region.known[at]) region.bytes[at] = region.model[at] = bytes[b];
    }
  }

  void fill_for_read(std::size_t i) {
    const Target target = *target_of(c_.packets[i]);
    Region* region = region_of(target.key);
    if (region == nullptr || refused(c_.packets[i])) return;
    std::uint64_t address = target.address;
    for (std::uint32_t n = 0; n < golden::psns_of(c_.packets[i], c_.mtu()); ++n) {
      const Packet* answer = answer_to(i, c_.packets[i].psn() + n);
      if (answer == nullptr) return;
      set_unknown(*region, address, answer->payload());
      address += answer->payload().size();
    }
  }

  void prepare_atomic(std::size_t i) {
    const Packet& p = c_.packets[i];
    const auto atomic = p.get<wire::AtomicEth>();
    const Packet* answer = answer_to(i, p.psn());
    Region* region = region_of(atomic.rkey.value);
    if (region == nullptr || answer == nullptr || answer->traits().kind != Kind::kAtomicAcknowledge) return;
    std::array<std::uint8_t, 8> word{};
    store_le(word.data(), answer->get<wire::AtomicAckEth>().original);
    set_unknown(*region, atomic.virtual_address, word);
    const std::size_t at = atomic.virtual_address - region->base;
    const auto before = load_le<std::uint64_t>(&region->model[at]);
    const bool adds = p.traits().kind == Kind::kFetchAdd;
    const std::uint64_t swapped = before == atomic.compare ? atomic.swap_or_add : before;
    store_le(&region->model[at], adds ? before + atomic.swap_or_add : swapped);
    std::fill_n(region->known.begin() + static_cast<std::ptrdiff_t>(at), 8, true);
  }

  void model_write(const Packet& p) {
    if (const auto target = target_of(p)) {
      write_region_ = refused(p) ? nullptr : region_of(target->key);
      write_address_ = target->address;
    }
    if (write_region_ == nullptr) return;
    const auto at = static_cast<std::ptrdiff_t>(write_address_ - write_region_->base);
    std::ranges::copy(p.payload(), write_region_->model.begin() + at);
    std::fill_n(write_region_->known.begin() + at, p.payload().size(), true);
    write_address_ += p.payload().size();
  }

  const Conversation& c_;
  golden::Delivery delivery_;
  Endpoint endpoint_;
  std::vector<Region> regions_;
  std::deque<std::vector<std::uint8_t>> receives_;
  Region* write_region_ = nullptr;
  std::uint64_t write_address_ = 0;
};

// rxe's answers as we would give them: see the head of this file.
std::vector<const Packet*> allowed_answers(const Conversation& c) {
  std::vector<const Packet*> answers;
  for (const Packet& p : c.packets) {
    if (p.traits().is_request) continue;
    if (is_gap_nak(p) && !answers.empty() && is_rnr_nak(*answers.back()) && answers.back()->psn() == p.psn()) continue;
    answers.push_back(&p);
  }
  return answers;
}

void expect_same_answer(const Packet& ours, const Packet& theirs) {
  SCOPED_TRACE("rxe's frame " + std::to_string(theirs.number));
  EXPECT_EQ(ours.traits().name, theirs.traits().name);
  EXPECT_EQ(ours.psn().value(), theirs.psn().value());
  EXPECT_EQ(ours.parsed.destination, theirs.parsed.destination);
  EXPECT_EQ(ours.parsed.pad_count, theirs.parsed.pad_count);
  if (ours.traits().kind != theirs.traits().kind) return;
  EXPECT_TRUE(std::ranges::equal(ours.payload(), theirs.payload()));
  if (theirs.traits().has(wire::Extended::kAeth)) {
    Aeth expected = theirs.get<Aeth>();
    const bool too_long = expected.is_nak() && expected.nak_code() == wire::NakCode::kRemoteOperationalError;
    if (too_long) expected.syndrome = Aeth::nak(0, wire::NakCode::kInvalidRequest).syndrome;
    EXPECT_EQ(ours.get<Aeth>().syndrome, expected.syndrome);
    EXPECT_EQ(ours.get<Aeth>().msn, expected.msn);
  }
  if (theirs.traits().has(wire::Extended::kAtomicAckEth)) {
    EXPECT_EQ(ours.get<wire::AtomicAckEth>().original, theirs.get<wire::AtomicAckEth>().original);
  }
}

class RxeReplay : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(RxeReplay, OurResponderAnswersAsRxeDid) {
  const auto conversations = golden::conversations_of(GetParam());
  ASSERT_FALSE(conversations.empty());
  for (const Conversation& c : conversations) {
    SCOPED_TRACE("the conversation that begins with frame " + std::to_string(c.first().number));
    ResponderReplay replay(c);
    const auto ours = replay.run();
    const auto theirs = allowed_answers(c);
    ASSERT_GT(replay.delivered, 0u);
    for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()) && !HasFailure(); ++i) {
      expect_same_answer(ours[i], *theirs[i]);
    }
    EXPECT_EQ(ours.size(), theirs.size());
    EXPECT_EQ(replay.first_wrong_byte(), std::nullopt);
    if (theirs.empty()) {
      EXPECT_EQ(replay.counters().rx_unknown_qp, replay.delivered);
    }
  }
}

// --- our requester in the place of rxe's ---

class RequesterReplay {
 public:
  explicit RequesterReplay(const Conversation& c) : c_(c), endpoint_(make_endpoint(c)) {
    for (const Packet& p : c.packets) {
      if (p.traits().is_request) first_sent_.try_emplace(p.psn().value(), &p);
    }
  }

  void run() {
    for (const Packet& p : c_.packets) {
      if (p.traits().is_request) {
        const bool fresh = first_sent_.at(p.psn().value()) == &p;
        if (fresh && p.traits().starts_message()) post(p);
      } else {
        endpoint_.receive(p.bytes);
      }
      endpoint_.tick();
    }
    for (int i = 0; i < 100 && c_.first_answer() == nullptr; ++i) endpoint_.tick();
  }

  void expect_same_requests() const {
    std::map<std::uint32_t, const Packet*> ours;
    for (const Packet& p : endpoint_.sent.packets) ours.try_emplace(p.psn().value(), &p);
    for (const auto& [psn, theirs] : first_sent_) {
      SCOPED_TRACE("rxe's frame " + std::to_string(theirs->number));
      ASSERT_TRUE(ours.contains(psn));
      expect_same_request(*ours[psn], *theirs);
    }
    // A refusal reaches rxe before it has sent all of a message; us it may reach later.
    if (c_.fatal()) return;
    for (const auto& [psn, packet] : ours) EXPECT_TRUE(first_sent_.contains(psn)) << "rxe never sent PSN " << psn;
  }

  void expect_completions() const {
    std::vector<Completion> completions(endpoint_.completions->size());
    endpoint_.completions->poll(completions);
    ASSERT_EQ(completions.size(), operations_.size());
    for (std::size_t i = 0; i < completions.size(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      EXPECT_EQ(completions[i].id, i);
      const bool last = i + 1 == completions.size();
      EXPECT_EQ(to_string(completions[i].status), to_string(last ? last_status() : CompletionStatus::kSuccess));
      if (completions[i].status == CompletionStatus::kSuccess) expect_result(operations_[i]);
    }
  }
  // How often the requester sent its last PSN.
  std::size_t transmissions_of_last() const {
    const Psn last = endpoint_.sent.packets.back().psn();
    return static_cast<std::size_t>(std::ranges::count(endpoint_.sent.packets, last, &Packet::psn));
  }

 private:
  struct Operation {
    const Packet* first = nullptr;
    std::vector<std::uint8_t> local{};  // what is sent, or where the answer goes
  };

  static Endpoint make_endpoint(const Conversation& c) {
    const Packet& first = c.first();
    const Packet* answer = c.first_answer();
    const AdapterConfig peer = config_of_receiver(first);
    const bool nobody = answer == nullptr;
    // Where nobody answers, as often as rxe tried; elsewhere only what is said counts, not the time.
    return {config_of_sender(first),
            peer.gids[0],
            peer.mac,
            {.own = nobody ? first.parsed.destination : answer->parsed.destination,
             .remote = first.parsed.destination,
             .psn = first.psn(),
             .mtu = c.mtu(),
             .timeout = static_cast<std::uint8_t>(nobody ? 8 : 0),
             .retry_count = static_cast<std::uint8_t>(nobody ? c.packets.size() - 1 : 7)}};
  }

  CompletionStatus last_status() const {
    if (c_.first_answer() == nullptr) return CompletionStatus::kRetryExceeded;
    const auto fatal = c_.fatal();
    if (!fatal) return CompletionStatus::kSuccess;
    switch (*fatal) {
      case wire::NakCode::kInvalidRequest: return CompletionStatus::kRemoteInvalidRequest;
      case wire::NakCode::kRemoteAccessError: return CompletionStatus::kRemoteAccessError;
      default: return CompletionStatus::kRemoteOperationError;
    }
  }

  // The message that begins with `first`, as a work request.
  void post(const Packet& first) {
    const Kind kind = first.traits().kind;
    Operation operation{.first = &first};
    SendRequest request{.id = operations_.size()};
    const auto target = target_of(first);
    if (target) {
      request.remote_address = target->address;
      request.remote_key = memory::Key(target->key);
    }
    const Packet* last = &first;
    if (kind == Kind::kSend || kind == Kind::kWrite) {
      for (Psn psn = first.psn();; ++psn) {
        const auto found = first_sent_.find(psn.value());
        if (found == first_sent_.end()) break;  // cut short by a refusal
        last = found->second;
        operation.local.insert(operation.local.end(), last->payload().begin(), last->payload().end());
        if (last->traits().ends_message()) break;
      }
      if (kind == Kind::kWrite) operation.local.resize(target->length);
      const bool immediate = last->traits().has(wire::Extended::kImmDt);
      if (immediate) request.immediate = last->get<wire::ImmDt>().immediate;
      if (kind == Kind::kSend) request.op = immediate ? SendOp::kSendWithImmediate : SendOp::kSend;
      if (kind == Kind::kWrite) request.op = immediate ? SendOp::kWriteWithImmediate : SendOp::kWrite;
    } else if (kind == Kind::kReadRequest) {
      request.op = SendOp::kRead;
      operation.local.resize(target->length);
    } else {
      const auto atomic = first.get<wire::AtomicEth>();
      request.op = kind == Kind::kFetchAdd ? SendOp::kFetchAndAdd : SendOp::kCompareAndSwap;
      request.compare = atomic.compare;
      request.swap_or_add = atomic.swap_or_add;
      operation.local.resize(8);
    }
    request.flags.solicited = last->parsed.solicited;
    operations_.push_back(std::move(operation));
    const Sge sge = Sge::of(operations_.back().local);
    request.sges = {&sge, 1};
    ASSERT_EQ(endpoint_.adapter.post_send(endpoint_.now, *endpoint_.pair, request), PostError::kNone);
    endpoint_.transmit();
  }

  void expect_same_request(const Packet& ours, const Packet& theirs) const {
    EXPECT_EQ(ours.traits().name, theirs.traits().name);
    EXPECT_EQ(ours.parsed.destination, theirs.parsed.destination);
    EXPECT_EQ(ours.parsed.pad_count, theirs.parsed.pad_count);
    EXPECT_EQ(ours.parsed.solicited, theirs.parsed.solicited);
    EXPECT_EQ(ours.parsed.pkey, theirs.parsed.pkey);
    if (theirs.traits().ends_message()) {
      EXPECT_TRUE(ours.parsed.ack_request);
    }
    if (ours.traits().kind != theirs.traits().kind) return;
    const auto extended = [](const Packet& p) {
      return ByteView(p.bytes).subspan(p.parsed.extended_offset(), p.traits().extended_length);
    };
    EXPECT_TRUE(std::ranges::equal(extended(ours), extended(theirs)));
    EXPECT_TRUE(std::ranges::equal(ours.payload(), theirs.payload()));
  }

  // READs and atomics: what came back.
  void expect_result(const Operation& operation) const {
    const Kind kind = operation.first->traits().kind;
    std::vector<std::uint8_t> expected;
    if (kind == Kind::kReadRequest) {
      for (std::uint32_t n = 0; n < golden::psns_of(*operation.first, c_.mtu()); ++n) {
        const Packet* answer = answer_to(operation.first->psn() + n);
        ASSERT_NE(answer, nullptr);
        expected.insert(expected.end(), answer->payload().begin(), answer->payload().end());
      }
    } else if (operation.first->traits().is_atomic()) {
      const Packet* answer = answer_to(operation.first->psn());
      ASSERT_NE(answer, nullptr);
      expected.resize(8);
      store_le(expected.data(), answer->get<wire::AtomicAckEth>().original);
    } else {
      return;
    }
    EXPECT_EQ(operation.local, expected);
  }

  const Packet* answer_to(Psn psn) const {
    for (const Packet& p : c_.packets) {
      if (!p.traits().is_request && p.traits().kind != Kind::kAcknowledge && p.psn() == psn) return &p;
    }
    return nullptr;
  }

  const Conversation& c_;
  Endpoint endpoint_;
  std::map<std::uint32_t, const Packet*> first_sent_;  // by PSN
  std::deque<Operation> operations_;
};

TEST_P(RxeReplay, OurRequesterSendsWhatRxeSentAndCompletesOnWhatItReceived) {
  for (const Conversation& c : golden::conversations_of(GetParam())) {
    SCOPED_TRACE("the conversation that begins with frame " + std::to_string(c.first().number));
    RequesterReplay replay(c);
    replay.run();
    replay.expect_same_requests();
    replay.expect_completions();
    if (c.first_answer() == nullptr) {
      EXPECT_EQ(replay.transmissions_of_last(), c.packets.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Captures, RxeReplay, testing::ValuesIn(golden::rxe_captures()),
                         [](const auto& tested) { return tested.param.stem().string(); });

TEST(RxeCaptures, HoldTheConversationsThatTheyShould) {
  std::size_t conversations = 0;
  std::size_t lost = 0;
  for (const auto& file : golden::rxe_captures()) {
    for (const Conversation& c : golden::conversations_of(file)) {
      ++conversations;
      const golden::Delivery delivery(c);
      for (std::size_t i = 0; i < c.packets.size(); ++i) {
        if (c.packets[i].traits().is_request && !delivery.reached_responder(i)) ++lost;
      }
    }
  }
  EXPECT_EQ(conversations, 20u);  // five in peer_badrkey, two in rping_cm, one in each of the others
  EXPECT_GT(lost, 10u);
}

}  // namespace
}  // namespace sluice::rc
