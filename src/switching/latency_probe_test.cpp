#include "switching/latency_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace sluice::switching {
namespace {

using Operation = LatencyProbe::Operation;
using wire::Opcode;

const wire::Gid kClient = wire::Gid::from(wire::Ipv4Address{0x0A4D0007});
const wire::Gid kServer = wire::Gid::from(wire::Ipv4Address{0x0A4D0003});

struct Frame {
  std::vector<std::uint8_t> bytes;
  port::Frame view() { return {bytes.data(), static_cast<std::uint32_t>(bytes.size())}; }
};

struct Shape {
  Opcode opcode{};
  std::uint32_t psn = 100;
  bool ack_request = false;
  wire::Aeth aeth{};
  std::optional<std::uint16_t> tag{};
};

Frame frame(const wire::Gid& from, const wire::Gid& to, const Shape& shape) {
  wire::AddressVector address;
  address.source = from;
  address.destination = to;
  address.vlan_tci = shape.tag;
  const wire::HeaderTemplate headers(address);
  const wire::OpcodeTraits& traits = wire::opcode_traits(shape.opcode);
  const std::size_t transport = wire::Bth::kSize + traits.extended_length;
  Frame made{std::vector<std::uint8_t>(headers.frame_size(transport))};
  const std::size_t bth = headers.write(made.bytes.data(), transport);
  wire::Bth header;
  header.opcode = shape.opcode;
  header.psn = wire::Psn(shape.psn);
  header.ack_request = shape.ack_request;
  header.write(made.bytes.data() + bth);
  if (traits.has(wire::Extended::kAeth)) shape.aeth.write(made.bytes.data() + bth + wire::Bth::kSize);
  headers.seal(made.bytes.data(), bth + transport);
  return made;
}
Frame request(const Shape& shape) { return frame(kClient, kServer, shape); }
Frame answer(const Shape& shape) { return frame(kServer, kClient, shape); }

class LatencyProbeTest : public testing::Test {
 protected:
  void comes(Frame f) { probe_.comes(now_, f.view()); }
  void leaves(Frame f) { probe_.leaves(now_, f.view().bytes()); }
  void pass(Duration d) { now_ = now_ + d; }
  std::uint64_t samples(Operation operation) { return probe_.of(operation).all(); }

  Time now_ = Time::at(Duration::seconds(1));
  LatencyProbe probe_;
};

TEST_F(LatencyProbeTest, MeasuresFromARequestToItsAnswer) {
  comes(request({.opcode = Opcode::kRcReadRequest}));
  pass(Duration::microseconds(11));
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly}));
  ASSERT_EQ(samples(Operation::kRead), 1u);
  EXPECT_EQ(probe_.of(Operation::kRead).sum_ns, 11'000u);
  const auto& counts = probe_.of(Operation::kRead).counts;
  const auto at = static_cast<std::size_t>(std::ranges::find(counts, 1u) - counts.begin());
  EXPECT_GE(LatencyCounts::edges()[at], 11e-6);
  EXPECT_LT(LatencyCounts::edges()[at - 1], 11e-6);
}

TEST_F(LatencyProbeTest, TellsOperationsApart) {
  const struct {
    Opcode request, answer;
    Operation operation;
  } kCases[] = {{Opcode::kRcWriteOnly, Opcode::kRcAcknowledge, Operation::kWrite},
                {Opcode::kRcSendOnly, Opcode::kRcAcknowledge, Operation::kSend},
                {Opcode::kRcCompareSwap, Opcode::kRcAtomicAcknowledge, Operation::kAtomic},
                {Opcode::kRcFetchAdd, Opcode::kRcAtomicAcknowledge, Operation::kAtomic}};
  for (const auto& c : kCases) {
    const auto before = samples(c.operation);
    comes(request({.opcode = c.request, .ack_request = true}));
    pass(LatencyProbe::kSpacing);
    leaves(answer({.opcode = c.answer}));
    EXPECT_EQ(samples(c.operation), before + 1) << static_cast<int>(c.request);
  }
}

TEST_F(LatencyProbeTest, SeesTheShortestAnswerBehindATag) {
  comes(request({.opcode = Opcode::kRcWriteOnly, .ack_request = true, .tag = 5}));
  leaves(answer({.opcode = Opcode::kRcAcknowledge, .tag = 5}));
  EXPECT_EQ(samples(Operation::kWrite), 1u);
}

TEST_F(LatencyProbeTest, OnlyItsOwnAnswerEndsASample) {
  comes(request({.opcode = Opcode::kRcReadRequest}));
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly, .psn = 101}));
  leaves(frame(kClient, kServer, {.opcode = Opcode::kRcReadResponseOnly}));  // the same numbers, the other way
  EXPECT_EQ(samples(Operation::kRead), 0u);
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly}));
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly}));  // once more: of a retransmission
  EXPECT_EQ(samples(Operation::kRead), 1u);
}

TEST_F(LatencyProbeTest, ARefusalIsNoAnswer) {
  comes(request({.opcode = Opcode::kRcWriteOnly, .ack_request = true}));
  leaves(answer({.opcode = Opcode::kRcAcknowledge, .aeth = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError)}));
  leaves(answer({.opcode = Opcode::kRcAcknowledge, .aeth = wire::Aeth::rnr_nak(0, 3)}));
  EXPECT_EQ(samples(Operation::kWrite), 0u);
}

TEST_F(LatencyProbeTest, WhatIsSentAgainCountsFromTheFirstTime) {
  comes(request({.opcode = Opcode::kRcReadRequest}));
  pass(Duration::milliseconds(1));
  comes(request({.opcode = Opcode::kRcReadRequest}));
  pass(Duration::milliseconds(1));
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly}));
  EXPECT_EQ(probe_.of(Operation::kRead).sum_ns, 2'000'000u);
}

TEST_F(LatencyProbeTest, SamplesAtMostOneASpacing) {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    comes(request({.opcode = Opcode::kRcReadRequest, .psn = i}));
    pass(Duration::microseconds(1));
    leaves(answer({.opcode = Opcode::kRcReadResponseOnly, .psn = i}));
  }
  EXPECT_EQ(samples(Operation::kRead), 50u);
}

TEST_F(LatencyProbeTest, WritesThatAskForNoAnswerAndPartsOfMessagesAreNoSamples) {
  comes(request({.opcode = Opcode::kRcWriteOnly}));
  leaves(answer({.opcode = Opcode::kRcAcknowledge}));
  pass(LatencyProbe::kSpacing);
  comes(request({.opcode = Opcode::kRcWriteLast, .ack_request = true}));
  leaves(answer({.opcode = Opcode::kRcAcknowledge}));
  EXPECT_EQ(samples(Operation::kWrite), 0u);
}

TEST_F(LatencyProbeTest, AnswersThatNeverComeGiveWay) {
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    comes(request({.opcode = Opcode::kRcReadRequest, .psn = i}));
    pass(LatencyProbe::kSpacing);
  }
  leaves(answer({.opcode = Opcode::kRcReadResponseOnly, .psn = 9'999}));
  EXPECT_EQ(samples(Operation::kRead), 1u);
}

TEST_F(LatencyProbeTest, WhateverComesIsLookedAtWithoutHarm) {
  for (std::size_t length = 0; length < 90; ++length) {
    Frame noise{std::vector<std::uint8_t>(length, 0x11)};
    comes(noise);
    leaves(noise);
    pass(LatencyProbe::kSpacing);
  }
  SUCCEED();
}

TEST(LatencyCounts, EdgesAreHalvesOfOctavesAndTheLastCountHasNone) {
  LatencyCounts counts;
  counts.add(Duration());
  counts.add(Duration::microseconds(1));
  counts.add(Duration::seconds(3));
  EXPECT_EQ(counts.counts.front(), 2u);
  EXPECT_EQ(counts.counts.back(), 1u);
  EXPECT_EQ(counts.all(), 3u);
  EXPECT_NEAR(LatencyCounts::edges().back(), 1.048576, 1e-9);
}

TEST(LatencyCounts, SumUpMoreThanAnyDurationHolds) {
  LatencyCounts counts;
  for (int i = 0; i < 2; ++i) counts.add(Duration::seconds(5'000'000));
  EXPECT_EQ(counts.sum_ns, 10'000'000'000'000'000u);
}

}  // namespace
}  // namespace sluice::switching
