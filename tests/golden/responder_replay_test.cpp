// Soft-RoCE's conversations again, with our responder in the place of rxe's: it gives the answers that rxe gave.
//
// Where we answer otherwise, and may (each is checked to be just that):
//  - After an RNR NAK rxe sends a NAK(0) for the rest of a multi-packet message. We are silent until the PSN comes again: IBTA vol. 1
//    §9.7.5.2.8 has the requester wait in either case.
//  - A SEND longer than its receive: rxe says "remote operational error", we say "invalid request" as §9.7.4.1.6 has it.
#include <deque>
#include <map>

#include "golden/replay_endpoint.h"
#include "wire/icrc.h"

namespace sluice::golden {
namespace {

// The program behind peer_*.pcap registered this much from here, as its requests just past the end tell.
constexpr std::uint64_t kPeerRegion = 0x7f8b'a8ea'2000;
constexpr std::uint64_t kPeerRegionSize = 1 << 20;
constexpr std::uint32_t kPeerKey = 0x21F;
// Longer than every message, and shorter than the first packet of the one that rxe refused.
constexpr std::uint32_t kAmpleReceive = 64 * 1024;
constexpr std::uint32_t kScantReceive = 1000;

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
    for (std::uint32_t n = 0; n < psns_of(c_.packets[i], c_.mtu()); ++n) {
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
  Delivery delivery_;
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

class RxeResponder : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(RxeResponder, IsAnsweredForByOurs) {
  const auto conversations = conversations_of(GetParam());
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

INSTANTIATE_TEST_SUITE_P(Captures, RxeResponder, testing::ValuesIn(rxe_captures()),
                         [](const auto& tested) { return tested.param.stem().string(); });

TEST(RxeCaptures, HoldTheConversationsThatTheyShould) {
  std::size_t conversations = 0;
  std::size_t lost = 0;
  for (const auto& file : rxe_captures()) {
    for (const Conversation& c : conversations_of(file)) {
      ++conversations;
      const Delivery delivery(c);
      for (std::size_t i = 0; i < c.packets.size(); ++i) {
        if (c.packets[i].traits().is_request && !delivery.reached_responder(i)) ++lost;
      }
    }
  }
  EXPECT_EQ(conversations, 20u);  // five in peer_badrkey, two in rping_cm, one in each of the others
  EXPECT_GT(lost, 10u);
}

}  // namespace
}  // namespace sluice::golden
