// The pipeline under packets that make no sense: any order, any answer, connections that come and go. Nothing may break, no packet with a
// right ICRC may leave with a wrong one, and tables stay within their limits.
#include "swordbox/box.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/rng.h"
#include "swordbox/clover_rule.h"
#include "swordbox/test_net.h"
#include "wire/cm.h"
#include "wire/icrc.h"

namespace sluice::swordbox {
namespace {

constexpr std::uint32_t kClients = 6;
constexpr wire::RKey kKey{7};

wire::Gid host(std::uint32_t n) { return wire::Gid::from(wire::Ipv4Address{0x0A000000u + n}); }
std::uint64_t node(std::uint64_t n) { return 0x1000 + n * 64; }
std::uint64_t free_word(std::uint64_t key) { return std::uint64_t{1} << 63 | key; }

// Looks at every packet that the box makes or lets go.
class Judge final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    if (full) return nullptr;
    room_.assign(length, 0);
    return room_.data();
  }
  void commit(std::size_t length) override {
    wire::ParsedFrame parsed;
    EXPECT_EQ(wire::parse_and_verify({room_.data(), length}, parsed), wire::Verdict::kOk);
    ++frames;
  }
  bool full = false;
  std::uint64_t frames = 0;

 private:
  std::vector<std::uint8_t> room_;
};

class Noise {
 public:
  explicit Noise(std::uint64_t seed, Order order) : rng_(seed) {
    set_check_context("seed " + std::to_string(seed));
    BoxConfig config;
    config.connections.connections = kClients + 2;
    config.held_frames = 16;
    box_ = std::make_unique<Box>(config);
    CloverConfig rule;
    rule.regions = {{host(100), kKey}};
    rule.tracked_keys = 4;
    rule.history_entries = 64;
    rule.open_links = 12;
    rule.ring = 16;
    rule.hot_from = 1;
    rule.resends = 2;
    rule.order = order;
    auto made = std::make_unique<CloverRule>(rule, box_->connections(), box_->counters());
    rule_ = made.get();
    box_->set_rule(std::move(made));
  }

  void run(int packets) {
    for (int i = 0; i < packets; ++i) {
      if (rng_.below(300) == 0) announce();
      if (rng_.below(2000) == 0) box_->switch_on(!box_->on());
      if (rng_.below(50) == 0) pass_time();
      judge_.full = rng_.below(20) == 0;
      std::vector<std::uint8_t> frame = rng_.below(2) == 0 ? request() : answer();
      const std::size_t length = frame.size();
      Packet packet;
      packet.frame = {frame.data(), static_cast<std::uint32_t>(length)};
      box_->process(now_, {&packet, 1}, judge_);
      ASSERT_EQ(packet.frame.length, length);
      wire::ParsedFrame parsed;
      ASSERT_EQ(wire::parse_and_verify(packet.frame.bytes(), parsed), wire::Verdict::kOk) << row(packet.verdict).name;
      ASSERT_LE(box_->held(), 16u);
      ASSERT_LE(rule_->open_links(), 12u);
      ASSERT_LE(rule_->tracked(), 4u);
    }
  }
  const Counters& counters() const { return box_->counters(); }
  Box& box() { return *box_; }

 private:
  void announce() {
    const auto c = static_cast<std::uint32_t>(rng_.below(kClients));
    psn_[c] = static_cast<std::uint32_t>(rng_.below(1u << 24));
    box_->connections().announce(now_, {.address = {host(c), host(100)},
                                        .qpn = {Qpn(0x20 + c), Qpn(0x10 + c)},
                                        .starting_psn = {Psn(psn_[c]), Psn(5)},
                                        .mtu = 256});
  }
  void pass_time() {
    now_ = now_ + Duration::microseconds(static_cast<std::int64_t>(rng_.below(2000)));
    if (box_->next_deadline() <= now_) box_->on_deadline(now_, judge_);
    Repair asked[4];
    const std::size_t n = rule_->take_repairs(asked);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t prior = rng_.below(3) == 0 ? asked[i].compare : rng_.below(2) == 0 ? asked[i].swap : node(3);
      rule_->on_repair(now_, asked[i], rng_.below(3) == 0 ? std::nullopt : std::optional(prior));
    }
  }

  template <class Body>
  std::vector<std::uint8_t> frame_of(std::uint32_t c, bool is_request, wire::Opcode opcode, std::uint32_t psn,
                                     std::size_t size, Body body) {
    wire::AddressVector route;
    route.source = host(is_request ? c : 100);
    route.destination = host(is_request ? 100 : c);
    const wire::HeaderTemplate headers(route);
    std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + size));
    const std::size_t at = headers.write(frame.data(), wire::Bth::kSize + size);
    wire::Bth{.opcode = opcode, .destination = Qpn((is_request ? 0x10u : 0x20u) + c), .psn = Psn(psn)}.write(
        frame.data() + at);
    body(frame.data() + at + wire::Bth::kSize);
    headers.seal(frame.data(), at + wire::Bth::kSize + size);
    return frame;
  }

  // Mostly the next PSN, sometimes an earlier one or one too far.
  std::uint32_t next_psn(std::uint32_t c) {
    const auto dice = rng_.below(20);
    if (dice == 0) return psn_[c] - 1 - static_cast<std::uint32_t>(rng_.below(20));
    if (dice == 1) return psn_[c] + static_cast<std::uint32_t>(rng_.below(3));
    return psn_[c]++;
  }
  std::vector<std::uint8_t> request() {
    const auto c = static_cast<std::uint32_t>(rng_.below(kClients));
    const std::uint32_t psn = next_psn(c);
    const std::uint64_t key = rng_.below(6);
    const std::uint64_t at = node(rng_.below(40));
    const std::uint64_t other = node(rng_.below(40));
    switch (rng_.below(7)) {
      case 0:
      case 1:
        return frame_of(c, true, wire::Opcode::kRcWriteOnly, psn, 16 + 64, [&](std::uint8_t* p) {
          wire::Reth{at, kKey, 64}.write(p);
          store_le(p + 16, rng_.below(8) == 0 ? std::uint64_t{1} : free_word(key));
          store_le(p + 24, key);
        });
      case 2:
      case 3:
      case 4: {
        const bool masked = rng_.below(20) == 0;
        if (masked) {
          return frame_of(c, true, wire::Opcode::kRcMaskedCompareSwap, psn, 44,
                          [&](std::uint8_t* p) { wire::MaskedAtomicEth{at, kKey, other, 1, 2, 3}.write(p); });
        }
        return frame_of(c, true, wire::Opcode::kRcCompareSwap, psn, 28, [&](std::uint8_t* p) {
          wire::AtomicEth{at, kKey, other, free_word(key)}.write(p);
        });
      }
      case 5:
        return frame_of(c, true, wire::Opcode::kRcFetchAdd, psn, 28, [&](std::uint8_t* p) {
          wire::AtomicEth{at, rng_.below(2) == 0 ? kKey : wire::RKey(8), 1, 0}.write(p);
        });
      default:
        return frame_of(c, true, wire::Opcode::kRcReadRequest, psn, 16, [&](std::uint8_t* p) {
          wire::Reth{at, kKey, static_cast<std::uint32_t>(rng_.below(10) == 0 ? 700 : 64)}.write(p);
        });
    }
  }
  std::vector<std::uint8_t> answer() {
    const auto c = static_cast<std::uint32_t>(rng_.below(kClients));
    const std::uint32_t psn = psn_[c] - static_cast<std::uint32_t>(rng_.below(8));
    switch (rng_.below(6)) {
      case 0:
        return frame_of(c, false, wire::Opcode::kRcAcknowledge, psn, 4,
                        [](std::uint8_t* p) { wire::Aeth::ack(1).write(p); });
      case 1:
        return frame_of(c, false, wire::Opcode::kRcAcknowledge, psn, 4, [&](std::uint8_t* p) {
          wire::Aeth::nak(1, static_cast<wire::NakCode>(rng_.below(5))).write(p);
        });
      case 2:
        return frame_of(c, false, wire::Opcode::kRcReadResponseOnly, psn, 4 + 64,
                        [](std::uint8_t* p) { wire::Aeth::ack(1).write(p); });
      default:
        return frame_of(c, false, wire::Opcode::kRcAtomicAcknowledge, psn, 12, [&](std::uint8_t* p) {
          wire::Aeth::ack(1).write(p);
          wire::AtomicAckEth{rng_.below(4) == 0 ? node(rng_.below(40)) : free_word(rng_.below(6))}.write(p + 4);
        });
    }
  }

  Rng rng_;
  Time now_;
  std::unique_ptr<Box> box_;
  CloverRule* rule_ = nullptr;
  Judge judge_;
  std::uint32_t psn_[kClients] = {};
};

TEST(Box, SurvivesAnyOrderOfPacketsAndKeepsTheirIcrc) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Noise noise(seed, seed % 4 == 0 ? Order::kStrict : Order::kPipelined);
    noise.run(8'000);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    // It was no idle talk: most of what can happen did.
    EXPECT_GT(noise.counters().links_opened, 10u) << "seed " << seed;
    EXPECT_GT(noise.counters().of(Verdict::kHeldRequest), 0u) << "seed " << seed;
  }
}

// A connection that was woken, and closes before it is its turn: whoever gets its place in the same burst has to wait for something of
// its own.
class Burst {
 public:
  explicit Burst(bool words) {
    if (words) {
      MultiplexerConfig config;
      config.regions = {{.server = host(100), .rkey = kKey, .writable = true}};
      config.words = 8;
      box_.set_multiplexer(std::make_unique<Multiplexer>(config, box_.connections(), box_.counters()));
    } else {
      CloverConfig rule;
      rule.regions = {{host(100), kKey}};
      rule.hot_from = 1;
      auto made = std::make_unique<CloverRule>(rule, box_.connections(), box_.counters());
      rule_ = made.get();
      box_.set_rule(std::move(made));
    }
  }

  void connect(std::uint32_t client, std::uint32_t psn) {
    request(client, psn);
    reply(client, psn);
  }
  void request(std::uint32_t client, std::uint32_t psn) {
    manage(client, 100,
           wire::CmReq{.local_comm_id = wire::CommId(client),
                       .local_qpn = Qpn(0x20 + client),
                       .starting_psn = Psn(psn),
                       .path_mtu = 3});
  }
  void reply(std::uint32_t client, std::uint32_t psn) {
    manage(100, client,
           wire::CmRep{.local_comm_id = wire::CommId(99),
                       .remote_comm_id = wire::CommId(client),
                       .local_qpn = Qpn(0x10 + client),
                       .starting_psn = Psn(psn)});
  }
  void add(std::uint32_t client, std::uint32_t psn, std::uint64_t address) {
    send(client, 100, Qpn(0x10 + client), wire::Opcode::kRcFetchAdd, psn, bytes_of(wire::AtomicEth{address, kKey, 1}));
  }
  void write_node(std::uint32_t client, std::uint32_t psn, std::uint64_t at, std::uint64_t key) {
    std::vector<std::uint8_t> body = bytes_of(wire::Reth{at, kKey, 64});
    body.resize(body.size() + 64);
    store_le(body.data() + 16, free_word(key));
    store_le(body.data() + 24, key);
    send(client, 100, Qpn(0x10 + client), wire::Opcode::kRcWriteOnly, psn, body);
  }
  void link(std::uint32_t client, std::uint32_t psn, std::uint64_t from, std::uint64_t to, std::uint64_t key) {
    send(client, 100, Qpn(0x10 + client), wire::Opcode::kRcCompareSwap, psn,
         bytes_of(wire::AtomicEth{from, kKey, to, free_word(key)}));
  }
  void prior(std::uint32_t client, std::uint32_t psn, std::uint64_t word) {
    std::vector<std::uint8_t> body = bytes_of(wire::Aeth::ack(1));
    body.resize(body.size() + 8);
    wire::AtomicAckEth{word}.write(body.data() + 4);
    send(100, client, Qpn(0x20 + client), wire::Opcode::kRcAtomicAcknowledge, psn, body);
  }
  // Returns what became of the last one.
  Verdict pass() {
    std::vector<Packet> packets(frames_.size());
    for (std::size_t i = 0; i < packets.size(); ++i)
      packets[i].frame = {frames_[i].data(), static_cast<std::uint32_t>(frames_[i].size())};
    box_.process(Time(), packets, judge_);
    frames_.clear();
    return packets.back().verdict;
  }
  const Box& box() const { return box_; }
  const CloverRule& rule() const { return *rule_; }

 private:
  template <class Header>
  static std::vector<std::uint8_t> bytes_of(const Header& header) {
    std::vector<std::uint8_t> bytes(Header::kSize);
    header.write(bytes.data());
    return bytes;
  }
  static wire::HeaderTemplate headers(std::uint32_t from, std::uint32_t to) {
    wire::AddressVector route;
    route.source = host(from);
    route.destination = host(to);
    return wire::HeaderTemplate(route);
  }
  template <class Message>
  void manage(std::uint32_t from, std::uint32_t to, const Message& message) {
    std::vector<std::uint8_t> frame(512);
    frame.resize(wire::write_cm_frame(frame.data(), headers(from, to), Psn(0), {.message = message}));
    frames_.push_back(frame);
  }
  void send(std::uint32_t from, std::uint32_t to, Qpn qpn, wire::Opcode opcode, std::uint32_t psn,
            const std::vector<std::uint8_t>& body) {
    const wire::HeaderTemplate route = headers(from, to);
    std::vector<std::uint8_t> frame(route.frame_size(wire::Bth::kSize + body.size()));
    const std::size_t at = route.write(frame.data(), wire::Bth::kSize + body.size());
    wire::Bth{.opcode = opcode, .destination = qpn, .psn = Psn(psn)}.write(frame.data() + at);
    std::ranges::copy(body, frame.data() + at + wire::Bth::kSize);
    route.seal(frame.data(), at + wire::Bth::kSize + body.size());
    frames_.push_back(frame);
  }

  std::vector<std::vector<std::uint8_t>> frames_;
  Judge judge_;
  Box box_{{.connections = {.connections = 3}}};
  CloverRule* rule_ = nullptr;
};

TEST(Box, WakesNobodyForWhoHadItsPlaceBefore) {
  Burst words(true);
  for (const std::uint32_t client : {1u, 3u, 4u}) words.connect(client, 100);
  words.add(1, 100, 0x1000);
  words.add(4, 100, 0x1008);
  words.add(3, 100, 0x1000);
  words.request(3, 500);
  EXPECT_EQ(words.pass(), Verdict::kManagement);
  words.prior(1, 100, 0);  // wakes 3
  words.reply(3, 500);     // another life of its queue pairs, in the same place
  words.add(3, 500, 0x1008);
  EXPECT_EQ(words.pass(), Verdict::kHeldRequest);
}

TEST(Box, WakesNobodyForWhoHadItsPlaceBeforeAtAChain) {
  Burst chains(false);
  for (const std::uint32_t client : {1u, 3u, 4u}) chains.connect(client, 100);
  chains.write_node(1, 100, node(1), 1);
  chains.link(1, 101, node(0), node(1), 1);
  chains.write_node(4, 100, node(3), 2);
  chains.link(4, 101, node(2), node(3), 2);
  chains.write_node(3, 100, node(4), 1);
  chains.link(3, 101, node(0), node(4), 1);
  EXPECT_EQ(chains.pass(), Verdict::kHeldRequest);
  chains.request(3, 500);
  EXPECT_EQ(chains.pass(), Verdict::kManagement);
  chains.write_node(4, 102, node(5), 2);
  chains.prior(1, 101, free_word(1));  // wakes 3
  chains.reply(3, 500);
  chains.link(3, 500, node(2), node(5), 2);
  EXPECT_EQ(chains.pass(), Verdict::kHeldRequest);
}

// What another connection wrote is not acknowledged by an answer to the one that has its place.
TEST(Box, TrustsNoNodeThatWhoHadItsPlaceBeforeHasWritten) {
  Burst chains(false);
  for (const std::uint32_t client : {1u, 3u, 4u}) chains.connect(client, 100);
  chains.write_node(1, 100, node(1), 1);
  chains.write_node(3, 100, node(2), 2);
  chains.connect(1, 500);
  chains.link(1, 500, node(0), node(1), 1);
  chains.prior(1, 500, free_word(1));
  chains.link(3, 101, node(0), node(2), 2);
  chains.prior(3, 101, free_word(2));
  EXPECT_EQ(chains.pass(), Verdict::kResponse);
  EXPECT_EQ(chains.rule().tail_of(1), std::nullopt);
  EXPECT_EQ(chains.rule().tail_of(2), node(2));
}

// A rule whose packets wait for ever and are woken all the time.
class Sleepless final : public Rule {
 public:
  Verdict on_request(Time, const Judged& packet) override {
    ++asked;
    if (!is_asleep) return Verdict::kPlain;
    ready_.push_back(token(packet.index, packet.end));
    return Verdict::kHeldRequest;
  }
  Verdict on_repeated_request(Time, const Judged&) override { return Verdict::kRepeated; }
  Verdict on_stranger_request(Time, const Judged&) override { return Verdict::kUnknown; }
  bool watches(const NetAddress&, wire::RKey) override { return true; }
  bool watches(const NetAddress&) const override { return true; }
  bool may_pass_out_of_order(const Judged&) override { return true; }
  void observe_response(Time, const Judged&) override {}
  Verdict on_response(Time, const Judged&) override { return Verdict::kResponse; }
  void on_connection_gone(ConnectionIndex) override {}
  void forget_all() override {}
  void on_deadline(Time, port::FrameSink&) override {}

  bool is_asleep = true;
  int asked = 0;
};

TEST(Box, ATurnEndsWhateverWakesWhom) {
  Net net({});
  net.now = Time::at(Duration::seconds(1));
  auto made = std::make_unique<Sleepless>();
  Sleepless& rule = *made;
  net.box.set_rule(std::move(made));
  const Net::Line line = net.connect(1, 2);
  EXPECT_EQ(net.read(line, 100, kKey, 0x1000, 8), Verdict::kHeldRequest);
  EXPECT_EQ(net.box.counters().releases_cut_short, 1u);
  EXPECT_LE(rule.asked, 100);
  EXPECT_LE(net.box.next_deadline(), net.now) << "it goes on in the next turn";
  rule.is_asleep = false;
  net.box.on_deadline(net.now, net);
  EXPECT_EQ(net.box.held(), 0u);
  EXPECT_EQ(net.made, 1u);
  EXPECT_EQ(net.box.counters().releases_cut_short, 1u);
}

TEST(Box, NamesNoConnectionThatHasHadNoPackets) {
  Burst burst(true);
  burst.connect(1, 100);
  burst.connect(3, 100);
  EXPECT_EQ(burst.pass(), Verdict::kManagement);
  EXPECT_TRUE(burst.box().busiest(10).empty());
  burst.add(3, 100, 0x1000);
  EXPECT_EQ(burst.pass(), Verdict::kWordPassed);
  ASSERT_EQ(burst.box().busiest(10).size(), 1u);
  EXPECT_EQ(burst.box().busiest(10)[0].from, host(3));
}

}  // namespace
}  // namespace sluice::swordbox
