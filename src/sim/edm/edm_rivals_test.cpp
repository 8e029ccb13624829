// The rivals: lone messages against arithmetic, each protocol's own mechanism alone, and what must hold under any load.
#include "sim/edm/edm_rivals.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "base/effort_test.h"
#include "sim/experiment/experiment.h"

namespace sluice::sim {
namespace {

constexpr std::array kAll{Rival::kDctcp, Rival::kReceiverDriven, Rival::kPfabric, Rival::kPfc,
                          Rival::kCxl,   Rival::kFastpass};

EdmHardware hardware() {
  auto loaded = load_edm_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_cluster.toml");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return *loaded;
}
TraceRow write_row(std::uint32_t bytes, std::int64_t slot, std::uint16_t from, std::uint16_t to) {
  return {.id = 0, .source = from, .destination = to, .bytes = bytes, .slot = slot};
}
TraceRow read_row(std::uint32_t bytes, std::int64_t slot, std::uint16_t from, std::uint16_t to) {
  return {.id = 0,
          .type = TraceRow::Type::kRead,
          .source = from,
          .destination = to,
          .bytes = 16,
          .request_bytes = bytes,
          .slot = slot};
}
// A hop is 16 blocks, the switch one, a host one.
constexpr std::int64_t kThrough = 16 + 1 + 16;

// Twenty nodes that all write to one.
std::vector<TraceRow> incast(std::uint32_t bytes) {
  std::vector<TraceRow> rows;
  for (std::uint16_t node = 1; node <= 20; ++node) rows.push_back(write_row(bytes, 0, node, 0));
  return rows;
}

TEST(EdmRivals, AMessageAloneTakesAsLongAsArithmeticSays) {
  const EdmHardware h = hardware();
  for (const Rival rival : {Rival::kDctcp, Rival::kReceiverDriven, Rival::kPfabric, Rival::kPfc, Rival::kCxl}) {
    const RivalSettings settings{.rival = rival, .packet_framing_bytes = 24};
    EXPECT_EQ(alone_blocks(h, settings, write_row(64, 0, 0, 1)), kThrough + 8 + 3 - 1);
    // Its packets follow each other: 2 blocks and the framing, then one host block and the answer.
    EXPECT_EQ(alone_blocks(h, settings, read_row(64, 0, 0, 1)), kThrough + 2 + 3 - 1 + 1 + kThrough + 8 + 3 - 1);
    // Three packets, of 1,456, 1,456 and 88 bytes.
    EXPECT_EQ(alone_blocks(h, settings, write_row(3'000, 0, 0, 1)), kThrough + 3'000 / 8 + 3 * 3 - 1);
  }
  // A request to the arbiter, and its grant, come first. Control packets are a block here.
  EXPECT_EQ(alone_blocks(h, {.rival = Rival::kFastpass}, write_row(64, 0, 0, 1)), kThrough * 3 + 7);
}

TEST(EdmRivals, AReceiverAloneKeepsItsLinkFullWithTokens) {
  const std::int64_t took = alone_blocks(hardware(), {.rival = Rival::kReceiverDriven}, write_row(1'456'000, 0, 0, 1));
  EXPECT_EQ(took, 182'000 + kThrough - 1);
}

// Of those that write to one receiver at once, each may have its first round trip in the switch, rounded up to whole packets, and no more.
TEST(EdmRivals, WhatNeedsNoTokenOfAMessageIsARoundTrip) {
  const std::int64_t packet = 1'456 / 8;
  const std::int64_t round_trip = 2 * 17 + 2 * 16 + 2 * packet + 1;
  const std::int64_t packets = (round_trip + packet - 1) / packet;
  const RivalSettings settings{.rival = Rival::kReceiverDriven, .nodes = 21};
  const auto queue = [&](std::uint32_t bytes) { return run_rival(hardware(), settings, incast(bytes)).longest_queue; };
  EXPECT_GT(queue(1'456), 18 * packet);
  EXPECT_GT(queue(100'000), 20 * (packets - 1) * packet);
  EXPECT_LE(queue(100'000), 20 * packets * packet);
}

// A node's message to a port where much is lost has one turn of its node's, as the one beside it.
TEST(EdmRivals, ALossGivesNoSecondPlaceAmongTheMessagesOfANode) {
  std::vector<TraceRow> rows;
  for (std::uint16_t node = 2; node <= 20; ++node) rows.push_back(write_row(60'000, 0, node, 0));
  rows.push_back(write_row(4'000'000, 0, 1, 0));
  rows.push_back(write_row(2'000'000, 60'000, 1, 30));
  const RivalSettings settings{.rival = Rival::kDctcp,
                               .nodes = 31,
                               .packet_bytes = 1'440,
                               .packet_framing_bytes = 98,
                               .mark_blocks = 60'000,
                               .buffer_blocks = 5'000};
  const auto outcome = run_rival(hardware(), settings, rows);
  EXPECT_GT(outcome.dropped, 0u);
  EXPECT_LT(outcome.times.back().finished - 60'000, 600'000);  // of 267,000 alone
}

// Bytes are conserved, and nothing is faster than alone: the first is checked by each run itself.
TEST(EdmRivals, KeepEveryByteUnderAnyLoad) {
  const EdmHardware h = hardware();
  for (std::uint64_t seed = 0; seed < usual_effort(1'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Rival rival = kAll[seed % kAll.size()];
    const RivalSettings settings{.rival = rival,
                                 .nodes = 2 + static_cast<std::uint32_t>(rng.below(20)),
                                 .packet_bytes = 64u << rng.below(5),
                                 .packet_framing_bytes = static_cast<std::uint32_t>(rng.below(100)),
                                 .message_framing_bytes = static_cast<std::uint32_t>(rng.below(30)),
                                 .control_bytes = static_cast<std::uint32_t>(rng.below(85)),
                                 .ack_bytes = static_cast<std::uint32_t>(rng.below(85)),
                                 .window_bytes = 1'000 + static_cast<std::uint32_t>(rng.below(20'000)),
                                 .mark_blocks = static_cast<std::uint32_t>(rng.below(200)),
                                 .buffer_blocks = 150 + static_cast<std::uint32_t>(rng.below(3'000)),
                                 .pause_blocks = 400,
                                 .resume_blocks = 200,
                                 .credit_blocks = 200 + static_cast<std::uint32_t>(rng.below(300)),
                                 .egress_blocks = 200 + static_cast<std::uint32_t>(rng.below(300))};
    const TraceSpec spec{.nodes = settings.nodes,
                         .messages = 60,
                         .bits_per_second = (1 + rng.below(150)) * 1'000'000'000,
                         .reads_per_mille = static_cast<std::uint32_t>(rng.below(1'001)),
                         .sizes = {{{1, 500}, {100, 1'000}}, 8 + static_cast<std::uint32_t>(rng.below(100))}};
    const std::vector<TraceRow> rows = generate_trace(spec, seed);
    const RivalOutcome outcome = run_rival(h, settings, rows);
    EXPECT_EQ(outcome.trace_hash, run_rival(h, settings, rows).trace_hash);
    for (std::size_t i = 0; i < rows.size(); ++i)
      ASSERT_GE(outcome.times[i].finished - rows[i].slot, ideal_blocks(h, rows[i]));
    if (rival != Rival::kDctcp && rival != Rival::kPfabric) {
      EXPECT_EQ(outcome.dropped, 0u);
    }
    if (rival == Rival::kCxl) {
      EXPECT_LE(outcome.longest_queue, settings.egress_blocks + 300);
    }
  }
}

TEST(EdmRivals, DctcpDropsAndSendsAgainWhatAQueueDoesNotHold) {
  const RivalOutcome outcome =
      run_rival(hardware(), {.rival = Rival::kDctcp, .nodes = 21, .buffer_blocks = 1'000}, incast(10'000));
  EXPECT_GT(outcome.dropped, 0u);
  EXPECT_LE(outcome.longest_queue, 1'000);
}

TEST(EdmRivals, DctcpKeepsAQueueShorterWhenItMarksEarlier) {
  const auto queue = [](std::uint32_t mark) {
    return run_rival(hardware(), {.rival = Rival::kDctcp, .nodes = 21, .mark_blocks = mark}, incast(200'000));
  };
  const RivalOutcome early = queue(500);
  const RivalOutcome never = queue(1'000'000);
  EXPECT_GT(early.marked, 0u);
  EXPECT_EQ(never.marked, 0u);
  EXPECT_LT(early.longest_queue, never.longest_queue);
}

TEST(EdmRivals, PfcPausesBeforeItQueuesMoreThanItMay) {
  const RivalSettings settings{.rival = Rival::kPfc, .nodes = 21, .pause_blocks = 1'000, .resume_blocks = 500};
  const RivalOutcome outcome = run_rival(hardware(), settings, incast(100'000));
  EXPECT_GT(outcome.pauses, 0u);
  EXPECT_EQ(outcome.dropped, 0u);
  // What a node has under way when the pause comes adds to the threshold.
  EXPECT_LE(outcome.longest_queue, 20 * (1'000 + 2 * kThrough + 200));
}

TEST(EdmRivals, APausedNodeIsHeldUpForOthersToo) {
  // Node 1 writes much to node 0, which others keep busy, and then a line to node 21.
  std::vector<TraceRow> rows = incast(100'000);
  rows.push_back(write_row(64, 5'000, 1, 21));
  const auto took = [&](std::uint32_t pause) {
    const RivalSettings settings{.rival = Rival::kPfc, .nodes = 22, .pause_blocks = pause, .resume_blocks = pause / 2};
    return run_rival(hardware(), settings, rows).times.back().finished - 5'000;
  };
  EXPECT_GT(took(500), 5 * took(1'000'000));
}

TEST(EdmRivals, PfabricSendsTheShortestFirst) {
  // A long message has the way to node 0, a short one comes later and overtakes it; by turns it would not.
  const std::vector<TraceRow> rows{write_row(100'000, 0, 1, 0), write_row(100'000, 0, 2, 0),
                                   write_row(1'456, 1'000, 3, 0)};
  const auto took = [&](Rival rival) {
    return run_rival(hardware(), {.rival = rival, .nodes = 4}, rows).times[2].finished - 1'000;
  };
  EXPECT_LE(took(Rival::kPfabric), kThrough + 182 + 182);
  EXPECT_GT(took(Rival::kDctcp), 3 * took(Rival::kPfabric));
}

TEST(EdmRivals, CxlIsHeldUpBehindAMessageWhoseWayOutIsFull) {
  // Node 1's line to idle node 21 waits behind its bytes for node 0.
  std::vector<TraceRow> rows = incast(4'000);
  rows.push_back(write_row(64, 10, 1, 21));
  const RivalSettings few{
      .rival = Rival::kCxl, .nodes = 22, .packet_bytes = 64, .credit_blocks = 64, .egress_blocks = 64};
  RivalSettings many = few;
  many.credit_blocks = many.egress_blocks = 100'000;
  const auto took = [&](const RivalSettings& s) { return run_rival(hardware(), s, rows).times.back().finished; };
  EXPECT_GT(took(few), 5 * took(many));
}

TEST(EdmRivals, ReceiversThatChooseOneSenderLeaveTheirLinksIdle) {
  // Both receivers' shortest messages come from node 0, which can serve but one; their longer ones from idle nodes wait.
  std::vector<TraceRow> rows;
  for (std::uint16_t to = 1; to <= 8; ++to) rows.push_back(write_row(14'560, 0, 0, to));
  for (std::uint16_t to = 1; to <= 8; ++to)
    rows.push_back(write_row(29'120, 0, static_cast<std::uint16_t>(8 + to), to));
  const RivalOutcome outcome = run_rival(hardware(), {.rival = Rival::kReceiverDriven, .nodes = 17}, rows);
  std::int64_t last = 0;
  for (const MessageTimes& t : outcome.times) last = std::max(last, t.finished);
  // A matching would have all of it over when node 0 has sent its eight and the last receiver its longer one at most.
  const std::int64_t matched = 8 * 14'560 / 8 + kThrough;
  EXPECT_GT(last, matched + 1'000);
}

TEST(EdmRivals, FastpassWaitsForItsArbitersLink) {
  // 2,000 messages at once, a control packet of 84 bytes each: the last request has come after 2,000 times 11 blocks.
  std::vector<TraceRow> rows;
  for (std::uint32_t i = 0; i < 2'000; ++i)
    rows.push_back(
        write_row(64, 0, static_cast<std::uint16_t>(i % 144), static_cast<std::uint16_t>((i + 1 + i / 144) % 144)));
  const RivalOutcome outcome = run_rival(hardware(), {.rival = Rival::kFastpass, .control_bytes = 84}, rows);
  std::int64_t last = 0;
  for (const MessageTimes& t : outcome.times) last = std::max(last, t.finished);
  EXPECT_GE(last, 2'000 * 11);
  EXPECT_LT(last, 2'000 * 11 + 3'000);
  // What is granted hardly queues.
  EXPECT_LE(outcome.longest_queue, 16);
}

}  // namespace
}  // namespace sluice::sim
