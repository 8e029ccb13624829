// The published simulation's rules: lone messages against arithmetic, and what each rule does.
#include "sim/edm/rival_published.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "base/effort_test.h"

namespace sluice::sim {
namespace {

using Protocol = std::optional<Rival>;
constexpr std::array<Protocol, 7> kAll{std::nullopt, Rival::kDctcp, Rival::kReceiverDriven, Rival::kPfabric,
                                       Rival::kPfc,  Rival::kCxl,   Rival::kFastpass};
constexpr std::int64_t kHop = 16;
// From a block's leaving to its coming, the switch taking a slot.
constexpr std::int64_t kThrough = 2 * kHop + 1;

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
std::vector<PublishedRow> run(Protocol protocol, const std::vector<TraceRow>& rows) {
  return run_published(protocol, protocol == Rival::kCxl ? 1 : kHop, 24, rows).rows;
}
// A run ends when all have begun: another message, later and elsewhere, so that the others are over by then.
TraceRow late() { return write_row(64, 300'000, 22, 23); }
std::vector<PublishedRow> alone(Protocol protocol, const TraceRow& row) { return run(protocol, {row, late()}); }

TEST(RivalPublished, AWriteAloneTakesAsLongAsArithmeticSays) {
  const auto took = [](Protocol protocol) { return alone(protocol, write_row(64, 0, 0, 1))[0].finished; };
  // Three blocks more, and two idle slots: after the first block and before the last.
  EXPECT_EQ(took(Rival::kDctcp), 8 + 3 + 2 - 1 + kThrough);
  EXPECT_EQ(took(Rival::kPfabric), 8 + 2 + 2 - 1 + kThrough);
  EXPECT_EQ(took(Rival::kPfc), 8 + 1 - 1 + kThrough);
  EXPECT_EQ(took(Rival::kCxl), 8 - 1 + 3);
  // A request to the switch and a grant, with a slot in the switch and one in the node, and the data.
  for (const Protocol protocol : {Protocol{}, Protocol{Rival::kReceiverDriven}, Protocol{Rival::kFastpass}})
    EXPECT_EQ(took(protocol), kThrough + 1 + 8 - 1 + kThrough);
}

TEST(RivalPublished, AReadAloneTakesAsLongAsArithmeticSays) {
  // Rows: the request, the late write, the answer.
  for (const Protocol protocol : {Protocol{Rival::kDctcp}, Protocol{Rival::kPfabric}}) {
    const auto rows = alone(protocol, read_row(64, 0, 0, 1));
    EXPECT_EQ(rows[2].created, kThrough + 1);  // the request's first block asks
    EXPECT_EQ(rows[2].finished, rows[2].created + 8 + 1 - 1 + kThrough);
  }
  const auto edm = alone(std::nullopt, read_row(64, 0, 0, 1));
  // The switch passes on the request's one block, and the grant behind it.
  EXPECT_EQ(edm[0].finished, kThrough + 1);
  EXPECT_EQ(edm[2].created, edm[0].finished + 1);
  EXPECT_EQ(edm[2].finished, edm[2].created + 8 - 1 + kThrough);
  const auto cxl = alone(Rival::kCxl, read_row(64, 0, 0, 1));
  EXPECT_EQ(cxl[0].finished, 2 - 1 + 3);
  EXPECT_EQ(cxl[2].finished, cxl[0].finished + 1 + 8 - 1 + 3);
  // A write of as many bytes, whose turn is all of them.
  const auto pfc = alone(Rival::kPfc, read_row(64, 0, 0, 1));
  EXPECT_EQ(pfc.size(), 2u);
  EXPECT_EQ(pfc[0].part, PublishedPart::kWrite);
  EXPECT_EQ(pfc[0].finished, 8 - 1 + kThrough);
}

TEST(RivalPublished, LongMessagesOfDctcpAndPfabricHaveFourTimesTheLink) {
  for (const Protocol protocol : {Protocol{Rival::kDctcp}, Protocol{Rival::kPfabric}}) {
    const std::int64_t took = alone(protocol, write_row(1'456'000, 0, 0, 1))[0].finished;
    EXPECT_GT(took, 1'456'000 / 32);
    EXPECT_LT(took, 1'456'000 / 32 * 11 / 10);
  }
  EXPECT_GT(alone(Rival::kPfc, write_row(1'456'000, 0, 0, 1))[0].finished, 1'456'000 / 8);
  EXPECT_GT(alone(Rival::kCxl, write_row(1'456'000, 0, 0, 1))[0].finished, 1'456'000 / 8);
}

TEST(RivalPublished, AMessageOfPfcKeepsItsNodeUntilItHasCome) {
  // Their first blocks are turns of their own; then the first message goes, and the second when it has come.
  const std::vector<TraceRow> rows{write_row(64, 0, 0, 1), write_row(64, 0, 0, 2), late()};
  const auto pfc = run(Rival::kPfc, rows);
  EXPECT_EQ(pfc[1].started, 1);
  EXPECT_EQ(pfc[0].finished, 2 + 7 - 1 + kThrough);
  EXPECT_EQ(pfc[1].finished, pfc[0].finished + 1 + 7 - 1 + kThrough);
  // DCTCP's leave one after the other.
  EXPECT_LT(run(Rival::kDctcp, rows)[1].finished, 30 + kThrough);
}

TEST(RivalPublished, PfcTellsWhoSendsToAShortQueueToResume) {
  // Node 0's writes have resumes come back over node 0's link down, where they stand before what comes to it.
  const auto took = [](std::int64_t other) {
    return run(Rival::kPfc, {write_row(800, 0, 0, 1), write_row(64, other, 2, 0), late()})[1].finished - other;
  };
  EXPECT_EQ(took(2'000), 8 + kThrough);
  // They go out in slots 17, 34 and so on; a block that comes with the second waits for it, and so do those behind.
  EXPECT_EQ(took(15), 8 + kThrough + 1);
}

TEST(RivalPublished, WhoIsPausedByPfcIsNeverToldToResume) {
  // 23 nodes write more to one than its queue takes. Only a block that a node sends brings it a resume: what it has for others waits for ever.
  std::vector<TraceRow> rows;
  for (int each = 0; each < 5; ++each)
    for (std::uint16_t node = 1; node < 24; ++node) rows.push_back(write_row(40'000, 0, node, 0));
  rows.push_back(write_row(64, 100'000, 1, 2));
  EXPECT_LT(run(Rival::kPfc, rows).back().started, 0);
  EXPECT_GE(run(Rival::kDctcp, rows).back().started, 100'000);
}

TEST(RivalPublished, AReceiverOfTheReceiverDrivenOneHasOneGrantUnderWay) {
  // Ten nodes write to one: the next is granted when the last one's bytes have left their node.
  std::vector<TraceRow> rows;
  for (std::uint16_t node = 1; node <= 10; ++node) rows.push_back(write_row(64, 0, node, 0));
  rows.push_back(late());
  const auto tokens = run(Rival::kReceiverDriven, rows);
  for (std::size_t i = 1; i < 10; ++i) EXPECT_EQ(tokens[i].started - tokens[i - 1].started, kHop + 1 + 8);
  // EDM grants one a slot until more than 256 B are on their way.
  const auto edm = run(std::nullopt, rows);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(edm[i].started - edm[i - 1].started, 1);
  EXPECT_GT(edm[5].started - edm[4].started, kThrough);
}

TEST(RivalPublished, RequestsOfCxlOvertakeWhatIsBeingSent) {
  const std::vector<TraceRow> rows{write_row(8'000, 0, 0, 1), write_row(64, 0, 0, 2), read_row(64, 10, 0, 3), late()};
  EXPECT_EQ(run(Rival::kCxl, rows)[2].started, 10);
}

TEST(RivalPublished, CxlEndsWhenFifteenHundredRowsAreOver) {
  std::vector<TraceRow> rows;
  for (std::uint32_t i = 0; i < 2'000; ++i)
    rows.push_back(write_row(64, i / 2, static_cast<std::uint16_t>(i % 20), static_cast<std::uint16_t>((i + 1) % 20)));
  const auto over = [](const std::vector<PublishedRow>& all) {
    return std::count_if(all.begin(), all.end(), [](const PublishedRow& row) { return row.finished >= 0; });
  };
  EXPECT_GE(over(run(Rival::kCxl, rows)), 1'500);
  EXPECT_LT(over(run(Rival::kCxl, rows)), 1'500 + 24);
  EXPECT_GT(over(run(std::nullopt, rows)), 1'900);
}

TEST(RivalPublished, ANodeOfFastpassAsksOnceIn128Slots) {
  // So many that the arbiter's program goes on until all but a few are over.
  std::vector<TraceRow> rows;
  for (std::uint32_t i = 0; i < 2'000; ++i)
    rows.push_back(write_row(64, 0, static_cast<std::uint16_t>(i % 20), static_cast<std::uint16_t>((i + 1) % 20)));
  const auto fastpass = run(Rival::kFastpass, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_GE(fastpass[i].started, static_cast<std::int64_t>(i / 20 * 128));
}

TEST(RivalPublished, MessagesThatAreNoWholeBlocksAreNeverOverWhereTheSwitchGrants) {
  const TraceRow odd = write_row(5 * 1'460, 0, 0, 1);
  const TraceRow even = write_row(4 * 1'460, 0, 0, 1);
  for (const Protocol protocol : {Protocol{}, Protocol{Rival::kReceiverDriven}}) {
    EXPECT_LT(alone(protocol, odd)[0].finished, 0);
    EXPECT_GT(alone(protocol, even)[0].finished, 0);
  }
  EXPECT_GT(alone(Rival::kPfc, odd)[0].finished, 0);
}

TEST(RivalPublished, TheEndOfARunIsWhereAllThatThereIsHasBegun) {
  for (std::uint64_t seed = 0; seed < usual_effort(60); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Protocol protocol = kAll[seed % 5];  // CXL and Fastpass have ends of their own
    Rng rng(seed);
    const auto rows = generate_trace({.nodes = 2 + static_cast<std::uint32_t>(rng.below(30)),
                                      .messages = 200,
                                      .bits_per_second = (1 + rng.below(100)) * 1'000'000'000,
                                      .reads_per_mille = static_cast<std::uint32_t>(rng.below(1'001)),
                                      .sizes = SizeDistribution::constant(64)},
                                     seed);
    const PublishedRun once = run_published(protocol, kHop, 32, rows);
    EXPECT_EQ(once.end, published_end(protocol, once.rows));
    EXPECT_EQ(once.trace_hash, run_published(protocol, kHop, 32, rows).trace_hash);
  }
}

}  // namespace
}  // namespace sluice::sim
