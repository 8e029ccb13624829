// Messages against those that the published program has drawn.
#include "sim/edm/published_trace.h"

#include <gtest/gtest.h>

namespace sluice::sim {
namespace {

TraceSpec spec_of(std::vector<SizeDistribution::Point> points) {
  return {.bits_per_second = 38'933'333'333, .sizes = {.points = std::move(points)}, .published = true};
}

// FNV-1a over source, destination, size and slot of each.
std::uint64_t digest(const std::vector<TraceRow>& rows) {
  std::uint64_t hash = 14'695'981'039'346'656'037u;
  for (const TraceRow& row : rows) {
    for (const std::uint64_t value : {std::uint64_t{row.source}, std::uint64_t{row.destination},
                                      std::uint64_t{row.bytes}, static_cast<std::uint64_t>(row.slot)})
      hash = (hash ^ value) * 1'099'511'628'211u;
  }
  return hash;
}

// The first numbers of `srand(1)` in the GNU C library, as everybody knows them.
TEST(PublishedTrace, DrawsAsTheGnuLibraryDoes) {
  GlibcRand chance(1);
  EXPECT_EQ(chance.next(), 1'804'289'383u);
  EXPECT_EQ(chance.next(), 846'930'886u);
  EXPECT_EQ(GlibcRand(0).next(), 1'804'289'383u);
}

// Digests of the files that wegul/EDM-tracegen writes, before its second step draws which of the messages are reads.
TEST(PublishedTrace, HasTheMessagesOfTheAuthorsFiles) {
  const auto of = [](std::vector<SizeDistribution::Point> points) {
    return published_messages(spec_of(std::move(points)));
  };
  const auto hadoop = of({{4, 0}, {4, 700}, {88, 800}, {167, 900}, {920, 1000}});
  ASSERT_EQ(hadoop.size(), 2000u);
  EXPECT_EQ(hadoop[1], (TraceRow{.id = 1, .source = 120, .destination = 127, .bytes = 534'360, .slot = 387}));
  EXPECT_EQ(digest(hadoop), 0x4ffa'fc60'e102'5ec4);
  EXPECT_EQ(digest(of({{4, 0}, {4, 700}, {13, 800}, {220, 900}, {930, 1000}})), 0x94a5'5da3'44e8'7a93);
  EXPECT_EQ(digest(of({{4, 0}, {4, 500}, {7, 600}, {7, 700}, {83, 800}, {140, 900}, {980, 1000}})),
            0xc7eb'ac9c'3750'1572);
  EXPECT_EQ(digest(of({{4, 0}, {4, 700}, {88, 800}, {167, 900}, {1080, 1000}})), 0xb639'f9ab'307e'3544);
  EXPECT_EQ(digest(of({{4, 0}, {4, 700}, {64, 800}, {296, 900}, {1216, 1000}})), 0xbe80'238a'649d'3280);
}

TEST(PublishedTrace, ASeedDrawsTheReadsAlone) {
  TraceSpec spec = spec_of({{4, 0}, {4, 700}, {88, 800}, {167, 900}, {920, 1000}});
  spec.reads_per_mille = 455;
  const auto one = generate_trace(spec, 1);
  const auto other = generate_trace(spec, 2);
  ASSERT_EQ(one.size(), other.size());
  std::size_t reads = 0;
  std::size_t differ = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].data_bytes(), other[i].data_bytes());
    EXPECT_EQ(one[i].slot, other[i].slot);
    EXPECT_EQ(one[i].source, other[i].source);
    reads += one[i].reads() ? 1u : 0u;
    differ += one[i].type != other[i].type ? 1u : 0u;
  }
  EXPECT_NEAR(static_cast<double>(reads), 910, 90);
  EXPECT_GT(differ, 800u);
}

}  // namespace
}  // namespace sluice::sim
