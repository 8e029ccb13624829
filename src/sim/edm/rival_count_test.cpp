// What the published simulation counts: ideals by its formulas, the lines that it takes, and where it ends.
#include "sim/edm/rival_count.h"

#include <gtest/gtest.h>

namespace sluice::sim {
namespace {

constexpr std::int64_t kHop = 16;

TraceRow write_row(std::uint32_t bytes) { return {.source = 0, .destination = 1, .bytes = bytes}; }
TraceRow read_row(std::uint32_t bytes) {
  return {.type = TraceRow::Type::kRead, .source = 0, .destination = 1, .bytes = 16, .request_bytes = bytes};
}

TEST(RivalCount, TheIdealsAreThoseOfTheArtifact) {
  const TraceRow write = write_row(64);
  EXPECT_EQ(published_ideal(Rival::kDctcp, 16, write).data, 40);
  EXPECT_EQ(published_ideal(Rival::kPfabric, 16, write).data, 40);
  EXPECT_EQ(published_ideal(Rival::kPfc, 16, write).data, 152);
  EXPECT_EQ(published_ideal(Rival::kReceiverDriven, 16, write).data, 126);
  EXPECT_EQ(published_ideal(Rival::kCxl, 1, write).data, 14);
  EXPECT_EQ(published_ideal(Rival::kFastpass, 16, write).data, 96);
  EXPECT_EQ(published_ideal(Rival::kDctcp, 16, read_row(64)).request, 34);
  EXPECT_EQ(published_ideal(Rival::kCxl, 1, read_row(64)).data, 14);
  EXPECT_EQ(published_ideal(Rival::kPfc, 16, read_row(64)).request, 0);
  // Some requests are not counted.
  EXPECT_EQ(published_ideal(Rival::kPfabric, 16, read_row(64)).request, 0);
  EXPECT_EQ(published_ideal(Rival::kReceiverDriven, 16, read_row(64)).request, 80);
  EXPECT_EQ(published_ideal(Rival::kReceiverDriven, 16, read_row(5'840)).request, 0);
  EXPECT_EQ(published_ideal(Rival::kPfc, 16, read_row(5'840)).data, 2 + 3 * 730 + 64);
  // EDM's own.
  EXPECT_EQ(published_ideal(16, write).data, 8 + 64 + 8);
  EXPECT_EQ(published_ideal(16, read_row(64)).request, 2 + 64);
  EXPECT_EQ(published_ideal(16, read_row(64)).data, 8 + 32);
}

TEST(RivalCount, TheMeanLeavesOutWhatIsNotOverAndRequestsOfPfabric) {
  const std::vector<TraceRow> trace{read_row(64), write_row(64)};
  const std::vector<PublishedRow> rows{{0, PublishedPart::kRequest, 0, 0, 68},
                                       {1, PublishedPart::kWrite, 0, 0, 80},
                                       {0, PublishedPart::kAnswer, 69, 69, 150}};
  EXPECT_DOUBLE_EQ(published_mean(Rival::kDctcp, kHop, trace, rows, 100), (68.0 / 34 + 80.0 / 40) / 2);
  EXPECT_DOUBLE_EQ(published_mean(Rival::kDctcp, kHop, trace, rows, 150), (68.0 / 34 + 80.0 / 40 + 81.0 / 41) / 3);
  EXPECT_DOUBLE_EQ(published_mean(Rival::kPfabric, kHop, trace, rows, 150), (80.0 / 40 + 81.0 / 40) / 2);
}

TEST(RivalCount, AnswersThatThereAreByTheEndMustHaveBegun) {
  const auto end = [](std::int64_t last_write) {
    return published_end(Rival::kDctcp, {{0, PublishedPart::kRequest, 0, 0, 68},
                                         {1, PublishedPart::kWrite, 0, last_write, 80},
                                         {0, PublishedPart::kAnswer, 69, 90, 150}});
  };
  EXPECT_EQ(end(67), 67);  // there is none yet
  EXPECT_EQ(end(68), 90);
}

TEST(RivalCount, CxlEndsByHowManyAreOverAndFastpassNotBefore) {
  std::vector<PublishedRow> rows;
  for (std::uint32_t i = 0; i < 2'000; ++i) rows.push_back({i, PublishedPart::kWrite, 0, i, 100 + i});
  EXPECT_EQ(published_end(Rival::kDctcp, rows), 1'999);
  EXPECT_EQ(published_end(Rival::kCxl, rows), 100 + 1'499);
  for (PublishedRow& row : rows) row.started = 0;
  EXPECT_EQ(published_end(Rival::kCxl, rows), 0);
  EXPECT_EQ(published_end(Rival::kFastpass, rows), 100 + 1'800);
}

TEST(RivalCount, FastpassMeanIsThreeLessTimesANumberThatGrowsWithTheLoad) {
  std::vector<TraceRow> trace(1'001, write_row(64));
  trace[1'000].slot = 60;
  const std::vector<PublishedRow> rows{{0, PublishedPart::kWrite, 0, 0, 96 * 5}};
  EXPECT_DOUBLE_EQ(published_mean(Rival::kFastpass, kHop, trace, rows, 1'000), (5 - 3) * 4);
  trace[1'000].slot = 300;
  EXPECT_DOUBLE_EQ(published_mean(Rival::kFastpass, kHop, trace, rows, 1'000), (5 - 3) * 1);
  trace.pop_back();
  EXPECT_DOUBLE_EQ(published_mean(Rival::kFastpass, kHop, trace, rows, 1'000), 5);
}

}  // namespace
}  // namespace sluice::sim
