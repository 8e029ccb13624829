#include "swordbox/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/frame.h"

namespace sluice::swordbox {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A request of 10.0.0.2's QP 0x21 to 10.0.0.1's QP 0x11, or an answer to it.
template <class Body>
std::vector<std::uint8_t> frame_of(bool request, wire::Opcode opcode, std::uint32_t psn, std::size_t size, Body body) {
  wire::AddressVector route;
  route.source = wire::Gid::from(wire::Ipv4Address{request ? 0x0A000002u : 0x0A000001u});
  route.destination = wire::Gid::from(wire::Ipv4Address{request ? 0x0A000001u : 0x0A000002u});
  const wire::HeaderTemplate headers(route);
  std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + size));
  const std::size_t at = headers.write(frame.data(), wire::Bth::kSize + size);
  wire::Bth{.opcode = opcode, .destination = Qpn(request ? 0x11 : 0x21), .psn = Psn(psn)}.write(frame.data() + at);
  body(frame.data() + at + wire::Bth::kSize);
  headers.seal(frame.data(), at + wire::Bth::kSize + size);
  return frame;
}
std::uint64_t free_word(std::uint64_t key) { return std::uint64_t{1} << 63 | key; }
std::vector<std::uint8_t> write_node(std::uint32_t psn, std::uint64_t address) {
  return frame_of(true, wire::Opcode::kRcWriteOnly, psn, 16 + 64, [&](std::uint8_t* p) {
    wire::Reth{address, wire::RKey(7), 64}.write(p);
    store_le(p + 16, free_word(3));
    store_le(p + 24, std::uint64_t{3});
  });
}
std::vector<std::uint8_t> ack(std::uint32_t psn) {
  return frame_of(false, wire::Opcode::kRcAcknowledge, psn, 4, [](std::uint8_t* p) { wire::Aeth::ack(1).write(p); });
}
std::vector<std::uint8_t> cas(std::uint32_t psn, std::uint64_t at, std::uint64_t node) {
  return frame_of(true, wire::Opcode::kRcCompareSwap, psn, 28, [&](std::uint8_t* p) {
    wire::AtomicEth{at, wire::RKey(7), node, free_word(3)}.write(p);
  });
}
std::vector<std::uint8_t> prior(std::uint32_t psn, std::uint64_t word) {
  return frame_of(false, wire::Opcode::kRcAtomicAcknowledge, psn, 12, [&](std::uint8_t* p) {
    wire::Aeth::ack(1).write(p);
    wire::AtomicAckEth{word}.write(p + 4);
  });
}

TEST(Explain, SaysWhatBecomesOfAPacketAndWhy) {
  CloverConfig rule;
  rule.hot_from = 1;
  Explainer explainer(BoxConfig{}, rule);
  Time now;
  EXPECT_THAT(explainer.explain(now, write_node(10, 0x2000)), HasSubstr("passes: Unknown: of a connection"));
  EXPECT_THAT(explainer.explain(now, ack(10)), HasSubstr("passes: Response"));
  EXPECT_THAT(explainer.explain(now, cas(11, 0x1000, 0x2000)), HasSubstr("passes: CasLearning"));
  EXPECT_THAT(explainer.explain(now, prior(11, free_word(3))), Not(HasSubstr("as:")));
  explainer.explain(now, write_node(12, 0x3000));
  explainer.explain(now, ack(12));
  const std::string steered = explainer.explain(now, cas(13, 0x1000, 0x3000));
  EXPECT_THAT(steered, HasSubstr("passes: CasSteered: a CAS aimed at an old node"));
  EXPECT_THAT(steered, HasSubstr("va 0x1000"));
  EXPECT_THAT(steered, HasSubstr("as:"));
  EXPECT_THAT(steered, HasSubstr("va 0x2000"));
  EXPECT_THAT(steered, HasSubstr("icrc ok"));
}

// As where a box that replaces atomics has answered with numbers of its own.
TEST(Explain, TellsApartWhatLooksRepeatedAndHasNotComeBefore) {
  Explainer explainer(BoxConfig{});
  const Time now;
  const auto read = [](std::uint32_t psn, std::uint32_t length) {
    return frame_of(true, wire::Opcode::kRcReadRequest, psn, 16, [length](std::uint8_t* p) {
      wire::Reth{0x2000, wire::RKey(7), length}.write(p);
    });
  };
  explainer.explain(now, cas(10, 0x1000, 0x2000));
  explainer.explain(now, ack(10));
  EXPECT_THAT(explainer.summary(), Not(HasSubstr("had not come before")));
  explainer.explain(now, ack(20));  // of what nobody has asked here
  const auto alleged = AllOf(HasSubstr("passes: Repeated"), HasSubstr("but:   nothing of this number has come before"));
  const auto repeated = AllOf(HasSubstr("passes: Repeated"), Not(HasSubstr("but:")));
  EXPECT_THAT(explainer.explain(now, cas(11, 0x1000, 0x2000)), alleged);
  EXPECT_THAT(explainer.explain(now, cas(11, 0x1000, 0x2000)), repeated);
  EXPECT_THAT(explainer.summary(), HasSubstr("Retransmissions of numbers that had not come before: 1."));
  EXPECT_THAT(explainer.explain(now, read(21, 16'384)), Not(HasSubstr("Repeated")));
  explainer.explain(now, ack(23));
  EXPECT_THAT(explainer.explain(now, read(23, 8'192)), repeated);  // goes on in the middle
}

TEST(Explain, TellsOfPacketsThatTheBoxMakes) {
  CloverConfig rule;
  rule.hot_from = 1;
  Explainer explainer(BoxConfig{}, rule);
  Time now;
  explainer.explain(now, write_node(10, 0x2000));
  explainer.explain(now, ack(10));
  explainer.explain(now, cas(11, 0x1000, 0x2000));
  now = now + Duration::milliseconds(1);
  EXPECT_THAT(explainer.explain(now, ack(10)), HasSubstr("  sent:  10.0.0.2 > 10.0.0.1 RC COMPARE_SWAP"));
  EXPECT_THAT(explainer.summary(), HasSubstr("links_resent"));
}

TEST(Explain, TakesAnyBytes) {
  Explainer explainer(BoxConfig{});
  EXPECT_THAT(explainer.explain(Time(), {}), HasSubstr("passes: Malformed"));
  const std::vector<std::uint8_t> noise(100, 0x5A);
  EXPECT_THAT(explainer.explain(Time(), noise), HasSubstr("passes: NotRoce"));
}

}  // namespace
}  // namespace sluice::swordbox
