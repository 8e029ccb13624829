// Shared connections for longer than numbers last: sequence numbers of 24 bits come round while a client does nothing but operations
// that are replaced. And WRITEs of all extents over tracked words.
#include "swordbox/multiplexer.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "swordbox/box.h"
#include "wire/cm.h"
#include "wire/frame.h"

namespace sluice::swordbox {
namespace {

constexpr wire::RKey kKey{7};
constexpr std::uint64_t kWord = 0x10'0000;

// One client on a connection of its own, one word, one box between them; the server's answers are made by hand.
class Lane final : public port::FrameSink {
 public:
  // Regions behind one another from kWord on, of these lengths; 0: all that the key opens.
  explicit Lane(const std::vector<std::uint64_t>& lengths = {0}) {
    MultiplexerConfig config;
    std::uint64_t at = kWord;
    for (const std::uint64_t length : lengths) {
      config.regions.push_back({.server = server_, .rkey = kKey, .address = at, .length = length, .writable = true});
      at += length;
    }
    config.words = 4;
    config.ring = 64;
    box_.set_multiplexer(std::make_unique<Multiplexer>(config, box_.connections(), box_.counters()));
    box_.connections().announce(Time(), {.address = {client_, server_},
                                         .qpn = {Qpn(0x11), Qpn(0x22)},
                                         .starting_psn = {Psn(100), Psn(100)},
                                         .mtu = 1024});
  }

  Verdict add(std::uint32_t psn, std::uint64_t address = kWord) {
    return judge(to_server_, {.opcode = wire::Opcode::kRcFetchAdd, .destination = Qpn(0x22), .psn = Psn(psn)},
                 wire::AtomicEth{address, kKey, 1, 0});
  }
  // The first packet of a WRITE of `length` bytes, with a few of them; the only one when they are all.
  Verdict write(std::uint32_t psn, std::uint64_t address, std::uint32_t length) {
    constexpr std::uint32_t kPart = 64;
    const bool only = length <= kPart;
    std::vector<std::uint8_t> body(wire::Reth::kSize + std::min(length, kPart));
    wire::Reth{address, kKey, length}.write(body.data());
    return judge_bytes(to_server_,
                       {.opcode = only ? wire::Opcode::kRcWriteOnly : wire::Opcode::kRcWriteFirst,
                        .destination = Qpn(0x22),
                        .psn = Psn(psn)},
                       body);
  }
  // A connection to queue pair 0x33, by REQ and REP.
  void request() {
    manage(
        to_server_,
        wire::CmReq{.local_comm_id = wire::CommId(1), .local_qpn = Qpn(0x44), .starting_psn = Psn(500), .path_mtu = 3});
  }
  void reply(std::uint32_t starting_psn) {
    manage(to_client_, wire::CmRep{.local_comm_id = wire::CommId(2),
                                   .remote_comm_id = wire::CommId(1),
                                   .local_qpn = Qpn(0x33),
                                   .starting_psn = Psn(starting_psn)});
  }
  std::uint64_t announced() { return box_.counters().connections_announced; }
  std::optional<std::uint64_t> value_of(std::uint64_t address) { return box_.multiplexer()->value_of(address); }
  Verdict ack(std::uint32_t psn) {
    return judge(to_client_, {.opcode = wire::Opcode::kRcAcknowledge, .destination = Qpn(0x11), .psn = Psn(psn)},
                 wire::Aeth::ack(1));
  }
  Verdict swapped(std::uint32_t psn, std::uint64_t prior) {
    std::array<std::uint8_t, 12> body{};
    wire::Aeth::ack(1).write(body.data());
    wire::AtomicAckEth{prior}.write(body.data() + 4);
    return judge_bytes(to_client_,
                       {.opcode = wire::Opcode::kRcAtomicAcknowledge, .destination = Qpn(0x11), .psn = Psn(psn)}, body);
  }

  std::uint8_t* reserve(std::size_t) override { return room_.data(); }
  void commit(std::size_t length) override {
    ++answers;
    wire::ParsedFrame parsed;
    const bool sound = wire::parse({room_.data(), length}, parsed) == wire::Verdict::kOk;
    ASSERT_TRUE(sound && parsed.opcode == wire::Opcode::kRcAtomicAcknowledge);
    last_psn = parsed.psn;
    last_prior = wire::get<wire::AtomicAckEth>(room_.data(), parsed).original;
  }
  std::uint64_t answers = 0;
  Psn last_psn{};
  std::uint64_t last_prior = 0;

 private:
  template <class Message>
  void manage(const wire::HeaderTemplate& headers, const Message& message) {
    Packet packet;
    const std::size_t length = wire::write_cm_frame(frame_.data(), headers, Psn(0), {.message = message});
    packet.frame = {frame_.data(), static_cast<std::uint32_t>(length)};
    box_.process(Time(), {&packet, 1}, *this);
    ASSERT_EQ(packet.verdict, Verdict::kManagement);
  }
  template <class Body>
  Verdict judge(const wire::HeaderTemplate& headers, const wire::Bth& bth, const Body& body) {
    std::array<std::uint8_t, Body::kSize> bytes{};
    body.write(bytes.data());
    return judge_bytes(headers, bth, bytes);
  }
  Verdict judge_bytes(const wire::HeaderTemplate& headers, const wire::Bth& bth, ByteView body) {
    const std::size_t at = headers.write(frame_.data(), wire::Bth::kSize + body.size());
    bth.write(frame_.data() + at);
    std::copy(body.begin(), body.end(), frame_.begin() + static_cast<std::ptrdiff_t>(at + wire::Bth::kSize));
    const std::size_t length = headers.seal(frame_.data(), at + wire::Bth::kSize + body.size());
    Packet packet;
    packet.frame = {frame_.data(), static_cast<std::uint32_t>(length)};
    box_.process(Time(), {&packet, 1}, *this);
    return packet.verdict;
  }
  static wire::HeaderTemplate headers(const wire::Gid& from, const wire::Gid& to) {
    wire::AddressVector v;
    v.source = from;
    v.destination = to;
    return wire::HeaderTemplate(v);
  }

  wire::Gid client_ = wire::Gid::from(wire::Ipv4Address{0x0A000001});
  wire::Gid server_ = wire::Gid::from(wire::Ipv4Address{0x0A000002});
  wire::HeaderTemplate to_server_ = headers(client_, server_);
  wire::HeaderTemplate to_client_ = headers(server_, client_);
  Box box_{BoxConfig{}};
  std::array<std::uint8_t, 512> frame_{};
  std::array<std::uint8_t, 256> room_{};
};

TEST(Multiplexer, GoesOnReplacingWhenAllNumbersHaveBeenUsed) {
  Lane lane;
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 0), Verdict::kResponse);
  constexpr std::uint32_t kAll = Psn::kMask + 1;
  for (std::uint32_t i = 0; i < kAll / 2 + 1000; ++i) {
    const std::uint32_t psn = 101 + i;
    ASSERT_EQ(lane.add(psn), Verdict::kAtomicReplaced) << i;
    ASSERT_EQ(lane.ack(psn), Verdict::kSharedAnswer) << i;
    ASSERT_EQ(lane.last_psn, Psn(psn));
    ASSERT_EQ(lane.last_prior, i + 1) << "what was there before";
    ASSERT_EQ(lane.answers, i + 1);
  }
  // Asked for again, the last one is answered again.
  ASSERT_EQ(lane.add(100 + kAll / 2 + 1000), Verdict::kAnsweredAgain);
}

TEST(Multiplexer, IsNotDisturbedByAHandshakeThatComesAgainLate) {
  Lane lane;
  lane.request();
  lane.reply(900);
  EXPECT_EQ(lane.announced(), 2u);
  lane.reply(900);  // of a handshake that is over
  lane.request();
  lane.reply(900);
  EXPECT_EQ(lane.announced(), 2u);
  lane.request();
  lane.reply(901);  // another life of the same queue pairs
  EXPECT_EQ(lane.announced(), 3u);
}

// What an atomic at this address has shown is not known any more after the WRITE.
void expect_forgotten(const std::vector<std::uint64_t>& lengths, std::uint64_t word, std::uint64_t address,
                      std::uint32_t length) {
  Lane lane(lengths);
  ASSERT_EQ(lane.add(100, word), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  ASSERT_EQ(lane.value_of(word), 6u);
  EXPECT_EQ(lane.write(101, address, length), Verdict::kWordPassed);
  EXPECT_EQ(lane.value_of(word), std::nullopt) << std::hex << word << ' ' << address << ' ' << length;
}

TEST(Multiplexer, KnowsNoWordAnyMoreThatAWriteReaches) {
  expect_forgotten({0}, kWord, kWord, 64);
  expect_forgotten({0}, kWord + 8, kWord + 15, 4);
  expect_forgotten({0}, kWord + 0x2000, kWord + 0x1FF9, 8);
  expect_forgotten({0x800, 0x1000}, kWord, kWord - 16, 64);             // begins before all regions, on their page
  expect_forgotten({0x800, 0x1000}, kWord + 0x800, kWord + 0x7F0, 64);  // reaches from one into the next
  expect_forgotten({0x800, 0x1000}, kWord + 0x1000, kWord - 0x5000, 0x8000);  // over pages of none and of both
  expect_forgotten({0}, kWord, 1, 0xFFFF'FFFF);
  expect_forgotten({0}, ~std::uint64_t{7}, ~std::uint64_t{63}, 64);  // the last of all memory
}

TEST(Multiplexer, LeavesAloneWhatAWriteDoesNotReach) {
  Lane lane({0x800, 0x1000});
  ASSERT_EQ(lane.add(100, kWord + 0x800), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  EXPECT_EQ(lane.write(101, kWord + 0x7F0, 16), Verdict::kPlain);
  EXPECT_EQ(lane.write(102, kWord + 0x808, 64), Verdict::kPlain);
  EXPECT_EQ(lane.write(103, kWord - 0x1000, 0x1000), Verdict::kPlain);
  EXPECT_EQ(lane.value_of(kWord + 0x800), 6u);
}

TEST(Multiplexer, PassesAWriteThatGoesBeyondAllMemory) {
  Lane lane({0x800});
  EXPECT_EQ(lane.write(100, ~std::uint64_t{0xFFF}, 0x1010), Verdict::kPlain);
  EXPECT_EQ(lane.write(101, ~std::uint64_t{7}, 16), Verdict::kPlain);
}

TEST(Multiplexer, LetsAWriteOvertakeAGapOnlyWhereNoWordIs) {
  Lane lane({0x800});
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  EXPECT_EQ(lane.write(105, kWord - 32, 32), Verdict::kGap);
  EXPECT_EQ(lane.write(105, kWord - 32, 64), Verdict::kGapDropped);
}

}  // namespace
}  // namespace sluice::swordbox
