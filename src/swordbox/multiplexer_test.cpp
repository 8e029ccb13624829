// Shared connections for longer than numbers last: sequence numbers of 24 bits come round while a client does nothing but operations
// that are replaced.
#include "swordbox/multiplexer.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "swordbox/box.h"
#include "wire/frame.h"

namespace sluice::swordbox {
namespace {

constexpr wire::RKey kKey{7};
constexpr std::uint64_t kWord = 0x10'0000;

// One client on a connection of its own, one word, one box between them; the server's answers are made by hand.
class Lane final : public port::FrameSink {
 public:
  Lane() {
    MultiplexerConfig config;
    config.regions = {{.server = server_, .rkey = kKey, .address = kWord, .length = 0, .writable = true}};
    config.words = 4;
    config.ring = 64;
    box_.set_multiplexer(std::make_unique<Multiplexer>(config, box_.connections(), box_.counters()));
    box_.connections().announce(Time(), {.address = {client_, server_},
                                         .qpn = {Qpn(0x11), Qpn(0x22)},
                                         .starting_psn = {Psn(100), Psn(100)},
                                         .mtu = 1024});
  }

  Verdict add(std::uint32_t psn) {
    return judge(to_server_, {.opcode = wire::Opcode::kRcFetchAdd, .destination = Qpn(0x22), .psn = Psn(psn)},
                 wire::AtomicEth{kWord, kKey, 1, 0});
  }
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
  std::array<std::uint8_t, 256> frame_{};
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

}  // namespace
}  // namespace sluice::swordbox
