// The cluster: lone messages against arithmetic, bursts against properties, traces against their format, Figure 8a against the paper.
#include "sim/edm/edm_cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/effort_test.h"
#include "sim/experiment/experiment.h"

namespace sluice::sim {
namespace {

EdmHardware hardware() {
  auto loaded = load_edm_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_cluster.toml");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return *loaded;
}
TraceRow write_row(std::uint32_t bytes, std::int64_t slot = 0, std::uint16_t from = 0, std::uint16_t to = 1) {
  return {.id = 0, .source = from, .destination = to, .bytes = bytes, .slot = slot};
}
TraceRow read_row(std::uint32_t bytes, std::int64_t slot = 0, std::uint16_t from = 0, std::uint16_t to = 1) {
  return {.id = 0,
          .type = TraceRow::Type::kRead,
          .source = from,
          .destination = to,
          .bytes = 8,
          .request_bytes = bytes,
          .slot = slot};
}

TEST(EdmCluster, AWriteAloneTakesARoundTripOfItsNotificationAndThenItsBytes) {
  const std::vector<TraceRow> rows{write_row(64, 5)};
  const ClusterOutcome outcome = run_cluster(hardware(), {.nodes = 2, .matching = edm::Matching::kGreedy}, rows);
  const MessageTimes& t = outcome.times[0];
  EXPECT_EQ(t.requested, 5);
  EXPECT_EQ(t.demanded, 5 + 16 + 1);
  EXPECT_EQ(t.granted, t.demanded);
  EXPECT_EQ(t.started, t.granted + 16 + 1);
  EXPECT_EQ(t.finished, t.started + 16 + 1 + 16 + 7);
}

TEST(EdmCluster, AMessageAloneTakesAsLongAsArithmeticSays) {
  const EdmHardware h = hardware();
  for (const std::uint32_t bytes : {1u, 8u, 64u, 256u, 257u, 1460u, 100'000u}) {
    for (const TraceRow& row : {write_row(bytes, 3), read_row(bytes, 3)}) {
      for (const std::uint32_t framing : {0u, 2u}) {
        const ClusterSettings settings{.nodes = 2, .framing_blocks = framing, .matching = edm::Matching::kGreedy};
        const ClusterOutcome outcome = run_cluster(h, settings, {row});
        EXPECT_EQ(outcome.times[0].finished - row.slot, alone_blocks(h, settings, row)) << bytes << " " << row.reads();
      }
    }
  }
}

// The published ideal of less than a block is nothing there.
TEST(EdmCluster, OverLinksOfNoLengthAMessageOfAFewBytesIsSlowedDownByANumber) {
  EdmHardware h = hardware();
  h.propagation = {};
  for (const TraceRow& row : {write_row(4), read_row(4)}) {
    const ClusterOutcome outcome = run_cluster(h, {.nodes = 2}, {row});
    const PublishedSlowdown slowdown = published_slowdown(h, row, outcome.times[0]);
    EXPECT_GE(slowdown.data, 1);
    EXPECT_LT(slowdown.data, 100);
    EXPECT_LT(slowdown.request, 100);
  }
}

TEST(EdmCluster, PimTakesIterationsMore) {
  const ClusterOutcome outcome =
      run_cluster(hardware(), {.nodes = 2, .matching = edm::Matching::kPim}, {write_row(64)});
  // Known at 10.88 ns; the iteration from 11 to 12 ns; the next block begins at 12.16 ns.
  EXPECT_EQ(outcome.times[0].demanded, 17);
  EXPECT_EQ(outcome.times[0].granted, 19);
}

TEST(EdmCluster, TwoWritesToOneNodeFollowEachOtherWithoutAGapOrAQueue) {
  const ClusterOutcome outcome = run_cluster(hardware(), {.nodes = 3, .matching = edm::Matching::kGreedy},
                                             {write_row(64, 0, 0, 2), write_row(64, 0, 1, 2)});
  EXPECT_EQ(outcome.times[1].finished - outcome.times[0].finished, 8);
  EXPECT_EQ(outcome.times[1].granted - outcome.times[0].granted, 8);
}

TEST(EdmCluster, HostsKeepTheirRequestsBackBeyondX) {
  std::vector<TraceRow> rows;
  for (std::uint32_t i = 0; i < 5; ++i) rows.push_back(write_row(64));
  const ClusterOutcome outcome =
      run_cluster(hardware(), {.nodes = 2, .active_per_pair = 2, .matching = edm::Matching::kGreedy}, rows);
  EXPECT_EQ(outcome.times[0].requested, 0);
  EXPECT_EQ(outcome.times[1].requested, 1);
  EXPECT_EQ(outcome.times[2].requested, outcome.times[0].granted + 16);  // when the grant came
}

// All that the run itself checks (no chunk finds another one, every byte is granted) holds for whatever comes; and nothing is faster than
// alone, and pairs stay in order.
TEST(EdmCluster, KeepsPairsInOrderAndChunksApartUnderAnyLoad) {
  const EdmHardware h = hardware();
  for (std::uint64_t seed = 0; seed < usual_effort(300); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const ClusterSettings settings{
        .nodes = 2 + static_cast<std::uint32_t>(rng.below(30)),
        .active_per_pair = 1 + static_cast<std::uint32_t>(rng.below(4)),
        .chunk_bytes = 64u << rng.below(4),
        .framing_blocks = static_cast<std::uint32_t>(rng.below(3)),
        .gap_blocks = static_cast<std::uint32_t>(rng.below(2)),
        .policy = rng.below(2) == 0 ? edm::Policy::kFirstCome : edm::Policy::kShortestRemaining,
        .matching = rng.below(2) == 0 ? edm::Matching::kGreedy : edm::Matching::kPim,
        .patience = Duration::nanoseconds(static_cast<std::int64_t>(rng.below(3) * 50)),
        .mega_bytes = static_cast<std::uint32_t>(rng.below(2) * (64u << rng.below(7)))};
    TraceSpec spec{.nodes = settings.nodes,
                   .messages = 500,
                   .bits_per_second = (1 + rng.below(150)) * 1'000'000'000,
                   .reads_per_mille = static_cast<std::uint32_t>(rng.below(1'001)),
                   .sizes = {{{1, 500}, {100, 1'000}}, 8 + static_cast<std::uint32_t>(rng.below(100))}};
    const std::vector<TraceRow> rows = generate_trace(spec, seed);
    const ClusterOutcome outcome = run_cluster(h, settings, rows);
    std::map<std::tuple<std::uint16_t, std::uint16_t, bool>, std::int64_t> last;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const TraceRow& row = rows[i];
      ASSERT_GE(outcome.times[i].finished - row.slot, alone_blocks(h, settings, row));
      std::int64_t& before = last[{row.source, row.destination, row.reads()}];
      ASSERT_GT(outcome.times[i].finished, before);
      before = outcome.times[i].finished;
    }
  }
}

// Twenty lines from one host to another at once: three notifications go, then one for all that fit.
TEST(EdmCluster, WhatXKeepsBackAsksAsOneMessage) {
  const std::vector<TraceRow> rows(20, write_row(64));
  ClusterSettings settings{.nodes = 2, .framing_blocks = 3, .matching = edm::Matching::kGreedy};
  const ClusterOutcome apart = run_cluster(hardware(), settings, rows);
  settings.mega_bytes = 4'096;
  const ClusterOutcome together = run_cluster(hardware(), settings, rows);
  EXPECT_EQ(apart.batched, 0u);
  EXPECT_EQ(apart.chunks, 20u);
  EXPECT_EQ(together.batched, 17u);
  EXPECT_EQ(together.chunks, 3u + 6u);  // three lines of 64 B and their framing in a chunk of 256 B
  EXPECT_LT(together.times.back().finished, apart.times.back().finished);
  for (std::size_t i = 1; i < rows.size(); ++i)
    EXPECT_GT(together.times[i].finished, together.times[i - 1].finished) << i;
  for (std::size_t i = 4; i < rows.size(); ++i) EXPECT_EQ(together.times[i].demanded, together.times[3].demanded) << i;
}

TEST(EdmCluster, DependsOnItsSeedAlone) {
  TraceSpec spec{.messages = 1'000, .bits_per_second = 50'000'000'000, .sizes = SizeDistribution::constant(64)};
  const auto run = [&](std::uint64_t seed) {
    return run_cluster(hardware(), {}, generate_trace(spec, seed)).trace_hash;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(EdmTrace, ReadsWhatItWrites) {
  TraceSpec spec{.messages = 500,
                 .bits_per_second = 40'000'000'000,
                 .reads_per_mille = 500,
                 .sizes = {{{4, 0}, {4, 700}, {88, 1'000}}, 1460}};
  const std::vector<TraceRow> rows = generate_trace(spec, 7);
  const auto parsed = parse_trace(format_trace(rows), spec.nodes, hardware().last_slot());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(*parsed, rows);
}

TEST(EdmTrace, TakesThePublishedFormat) {
  const auto parsed = parse_trace("0,3,87,110,64,-1,1\n1,1,5,143,16,64,1\r\n\n2, 100, 1, 2, 1500, -1, 9\n", 144,
                                  hardware().last_slot());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ((*parsed)[1].request_bytes, 64u);
  EXPECT_EQ((*parsed)[1].source, 5u);
  EXPECT_EQ((*parsed)[2].type, TraceRow::Type::kFrame);
}

TEST(EdmTrace, TakesTheNamesOfItsColumnsInTheFirstLine) {
  const auto parsed = parse_trace("id,type,src,dst,size_bytes,request_bytes,timeslot\r\n0,3,87,110,64,-1,1\n", 144,
                                  hardware().last_slot());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_EQ(parsed->size(), 1u);
  EXPECT_EQ(parsed->front().source, 87u);
}

TEST(EdmTrace, SaysWhichLineIsWrongAndWhy) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"0,3,1,2,64,-1", "line 1 = \"0,3,1,2,64,-1\": must be id,type,src,dst,size_bytes,request_bytes,timeslot"},
           {"0,3,1,2,64,-1,0\n0,3,1,2,64,-1,x", "line 2 = \"0,3,1,2,64,-1,x\": must be"},
           {"0,3,1,2,64,-1,0,9", "must be"},
           {"id,type,source,dst,size_bytes,request_bytes,timeslot\n", "line 1 = \"id,type,source,"},
           {"0,3,1,2,64,-1,0\nid,type,src,dst,size_bytes,request_bytes,timeslot", "line 2 = \"id,"},
           {"0,2,1,2,64,-1,0", "type = 2: must be 1"},
           {"0,3,1,2,64,-1,0\n0,3,144,2,64,-1,0", "line 2: src = 144: must be a node from 0 to 143"},
           {"0,3,1,-2,64,-1,0", "dst = -2: must be a node from 0 to 143"},
           {"0,3,2,2,64,-1,0", "src and dst = 2"},
           {"0,3,1,2,0,-1,0", "size_bytes = 0: must be 1 to 16777215"},
           {"0,1,1,2,16,-1,0", "request_bytes = -1: must be 1 to"},
           {"0,3,1,2,64,64,0", "only an RREQ"},
           {"0,3,1,2,64,-1,7205759403792794", "timeslot = 7205759403792794: must be at most 7205759403792793"},
           {"0,3,1,2,64,-1,5\n1,3,1,2,64,-1,4", "line 2: timeslot = 4: must be 5 or more"}}) {
    const auto parsed = parse_trace(text, 144, hardware().last_slot());
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().message.find(why), std::string::npos) << parsed.error().message;
  }
}

// What comes after it must be told in picoseconds, whatever a link's blocks take.
TEST(EdmTrace, EndsWhereALinksTimeDoes) {
  EdmHardware slow = hardware();
  slow.bits_per_second = 1'000'000'000;
  slow.propagation = Duration::nanoseconds(100);
  const std::string late = fmt::format("0,3,1,2,64,-1,{}\n", slow.last_slot());
  const auto rows = parse_trace(late, 3, slow.last_slot());
  ASSERT_TRUE(rows.has_value()) << rows.error().message;
  const ClusterOutcome outcome = run_cluster(slow, {.nodes = 3}, *rows);
  EXPECT_GT(outcome.times[0].finished, slow.last_slot());
  const auto later = parse_trace(fmt::format("0,3,1,2,64,-1,{}\n", hardware().last_slot()), 3, slow.last_slot());
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().message,
            fmt::format("line 1: timeslot = 7205759403792793: must be at most {}", slow.last_slot()));
}

TEST(EdmTrace, TakesThePublishedFilesOfSizes) {
  for (const char* const text : {"4 1 0.00\n4 1 0.70\n88 1 0.80\n920 1 1.00\n",
                                 "size_pkts_1460B,count_col,cdf\r\n4,1,0.0\r\n4,1,0.7\r\n88,1,0.8\r\n920,1,1",
                                 "4\t1\t0\n\n4 1 0.700\n88 1 0.8\n920 1 1.000"}) {
    const auto sizes = parse_sizes(text, 1460);
    ASSERT_TRUE(sizes.has_value()) << sizes.error().message;
    ASSERT_EQ(sizes->points.size(), 4u);
    EXPECT_EQ(sizes->points[1].up_to_per_mille, 700u);
    EXPECT_EQ(sizes->points[3].units, 920u);
    EXPECT_EQ(sizes->mean_bytes(), (SizeDistribution{{{4, 0}, {4, 700}, {88, 800}, {920, 1'000}}, 1460}.mean_bytes()));
  }
}

TEST(EdmTrace, SaysWhatIsWrongWithAFileOfSizes) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "the last line's share must be 1"},
           {"4 1 0.5", "the last line's share must be 1"},
           {"names of columns\nnames again 1", "line 2 = \"names again 1\""},
           {"4 1 1.5", "line 1 = \"4 1 1.5\": must be a size of 1 to 11491 units"},
           {"4,1,.7", "line 1 = \"4,1,.7\""},
           {"4 1 0.1234", "three decimals at most"},
           {"0 1 1", "line 1"},
           {"4 1", "line 1"},
           {"4 1 0.5 9", "line 1"},
           {"8 1 0.5\n4 1 1", "line 2"},
           {"4 1 0.5\n8 1 0.4", "line 2"},
           {"99999 1 1", "line 1"}}) {
    const auto sizes = parse_sizes(text, 1460);
    ASSERT_FALSE(sizes.has_value()) << text;
    EXPECT_NE(sizes.error().message.find(why), std::string::npos) << sizes.error().message;
  }
}

TEST(EdmTrace, DrawsExponentialsAndSizesWithTheirMeans) {
  Rng rng(1);
  constexpr std::uint64_t kMean = 1'000'000;
  constexpr int kDraws = 200'000;
  double sum = 0;
  int beyond = 0;  // of three means: e^-3
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t drawn = draw_exponential(rng, kMean);
    sum += static_cast<double>(drawn);
    if (drawn > 3 * kMean) ++beyond;
  }
  EXPECT_NEAR(sum / kDraws / kMean, 1.0, 0.01);
  EXPECT_NEAR(static_cast<double>(beyond) / kDraws, std::exp(-3.0), 0.002);

  const SizeDistribution hadoop{{{4, 0}, {4, 700}, {88, 800}, {167, 900}, {920, 1'000}}, 1460};
  EXPECT_EQ(hadoop.mean_bytes(), 108'770u);  // (4 * 0.7 + 46 * 0.1 + 127.5 * 0.1 + 543.5 * 0.1) * 1460, cut down
  double bytes = 0;
  std::uint32_t least = ~0u;
  for (int i = 0; i < kDraws; ++i) {
    const std::uint32_t drawn = hadoop.draw(rng);
    EXPECT_LE(drawn, 920u * 1460);
    least = std::min(least, drawn);
    bytes += drawn;
  }
  EXPECT_EQ(least, 4u * 1460);
  EXPECT_NEAR(bytes / kDraws / 108'770, 1.0, 0.02);
}

// The means of the points that a figure has promises for, but for lines known to miss them; rivals over three repetitions.
using Place = std::tuple<std::size_t, std::size_t, std::size_t>;
template <class Misses>
std::size_t hold_to_its_promises(const std::string& name, const Misses& misses) {
  const auto loaded = load_experiment(SLUICE_SOURCE_DIR "/experiments/" + name + ".toml");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  std::map<Place, std::vector<double>> by_place;
  for (const Point& point : loaded->points) {
    const PaperPoints* const line = loaded->paper_of(point, loaded->y);
    if (line == nullptr || !line->within.promised() || misses(line->panel, line->series)) continue;
    if (point.repetition >= 3 && line->within.percent != 10) continue;
    by_place[{point.panel, point.series, point.x}].push_back(run_point(*loaded, point).metric(loaded->y));
  }
  for (const Point& point : loaded->points) {
    const auto found = by_place.find({point.panel, point.series, point.x});
    if (found == by_place.end() || point.repetition != 0) continue;
    const double ours =
        std::reduce(found->second.begin(), found->second.end()) / static_cast<double>(found->second.size());
    const double paper = loaded->paper_at(point, loaded->y);
    EXPECT_TRUE(loaded->paper_of(point, loaded->y)->within.holds(ours, paper))
        << loaded->panels[point.panel] << " " << loaded->series[point.series] << " " << loaded->xs[point.x] << " "
        << ours;
  }
  return by_place.size();
}

TEST(EdmFigures, Figure8aIsAsNearThePaperAsItPromises) {
  EXPECT_EQ(hold_to_its_promises("edm-fig8a", [](const std::string&, const std::string&) { return false; }), 80u);
}

// What does not follow from the protocols, and why, is in docs/edm.md; `sluice experiment --check` tells it, too.
TEST(EdmFigures, TheProtocolsThemselvesAreAsNearFigure8aAsTheyPromise) {
  const auto misses = [](const std::string& panel, const std::string& series) {
    return series == "Receiver-driven" || (panel == "writes" && series == "PFC with DCQCN");
  };
  EXPECT_EQ(hold_to_its_promises("edm-fig8a-protocols", misses), 35u);
}

}  // namespace
}  // namespace sluice::sim
