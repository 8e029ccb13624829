#include "sim/edm_load.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr auto kOptional = Fields::Need::kOptional;

// [[units, per mille of messages that are no longer], …]
void read_sizes(Fields& f, SizeDistribution& out) {
  const toml::node* const node = f.node("sizes", kOptional);
  if (node == nullptr) return;
  const char* const allowed =
      "must be a list of [packets of 1460 B, per mille of messages up to that size], both rising, to 1000 per mille";
  const toml::array* const list = node->as_array();
  if (list == nullptr || list->empty()) return f.fail(*node, "sizes", allowed);
  out = {};
  for (const toml::node& one : *list) {
    const toml::array* const pair = one.as_array();
    const auto number = [&](std::size_t i) {
      return pair != nullptr && pair->size() == 2 ? (*pair)[i].value_exact<std::int64_t>().value_or(-1) : -1;
    };
    const std::int64_t units = number(0);
    const std::int64_t per_mille = number(1);
    const bool rises =
        out.points.empty() || (units >= static_cast<std::int64_t>(out.points.back().units) &&
                               per_mille >= static_cast<std::int64_t>(out.points.back().up_to_per_mille));
    if (units < 1 || units > 10'000 || per_mille < 0 || per_mille > 1'000 || !rises)
      return f.fail(one, "sizes", allowed);
    out.points.push_back({static_cast<std::uint64_t>(units), static_cast<std::uint64_t>(per_mille)});
  }
  if (out.points.back().up_to_per_mille != 1'000) f.fail(*node, "sizes", allowed);
}

}  // namespace

void EdmWorkload::read(Fields& f) {
  std::uint64_t nodes = trace.nodes;
  std::uint64_t bytes = 64;
  std::uint64_t reads = 0;
  std::uint64_t request_bytes = trace.request_bytes;
  std::uint64_t chunk_bytes = cluster.chunk_bytes;
  std::uint64_t framing_blocks = cluster.framing_blocks;
  std::uint64_t gap_blocks = cluster.gap_blocks;
  std::uint64_t active = cluster.active_per_pair;
  std::string matching = "pim";
  std::string policy = "shortest";
  f.integer("nodes", nodes, 2, edm::kMaxPorts, kOptional);
  f.integer("messages", trace.messages, 1, 100'000'000, kOptional);
  f.integer("skip", skip, 0, 50'000'000, kOptional);
  f.rate("rate", trace.bits_per_second);
  f.integer("reads_per_mille", reads, 0, 1'000, kOptional);
  f.byte_count("bytes", bytes, kOptional);
  f.byte_count("request_bytes", request_bytes, kOptional);
  f.byte_count("chunk_bytes", chunk_bytes, kOptional);
  f.integer("framing_blocks", framing_blocks, 0, 8, kOptional);
  f.integer("gap_blocks", gap_blocks, 0, 8, kOptional);
  f.integer("active_per_pair", active, 1, 127, kOptional);
  f.duration("patience", cluster.patience, kOptional);
  f.choice("matching", matching, {"pim", "greedy"}, kOptional);
  f.choice("policy", policy, {"shortest", "first_come"}, kOptional);
  trace.sizes =
      SizeDistribution::constant(static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, edm::kMaxMessageBytes)));
  read_sizes(f, trace.sizes);
  trace.nodes = cluster.nodes = static_cast<std::uint32_t>(nodes);
  trace.reads_per_mille = static_cast<std::uint32_t>(reads);
  trace.request_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(request_bytes, 64));
  cluster.chunk_bytes = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(chunk_bytes / 8 * 8, 8, 65'536));
  cluster.framing_blocks = static_cast<std::uint32_t>(framing_blocks);
  cluster.gap_blocks = static_cast<std::uint32_t>(gap_blocks);
  cluster.active_per_pair = static_cast<std::uint32_t>(active);
  cluster.matching = matching == "pim" ? edm::Matching::kPim : edm::Matching::kGreedy;
  cluster.policy = policy == "shortest" ? edm::Policy::kShortestRemaining : edm::Policy::kFirstCome;
}

EdmResult run_edm_load(const EdmHardware& hardware, const EdmWorkload& workload, std::uint64_t seed) {
  TraceSpec spec = workload.trace;
  spec.slot_ps = hardware.block().picoseconds();
  const std::vector<TraceRow> rows = generate_trace(spec, seed);
  const ClusterOutcome outcome = run_cluster(hardware, workload.cluster, rows);
  double published = 0;
  std::uint64_t published_rows = 0;
  double slowdown = 0;
  double took = 0;
  double waited = 0;
  std::vector<double> slowdowns;
  const std::size_t skip = std::min<std::size_t>(workload.skip, (rows.size() - 1) / 2);
  for (std::size_t i = skip; i < rows.size() - skip; ++i) {
    const TraceRow& row = rows[i];
    const MessageTimes& times = outcome.times[i];
    const PublishedSlowdown as_published = published_slowdown(hardware, row, times);
    published += as_published.request + as_published.data;
    published_rows += row.reads() ? 2u : 1u;
    const std::int64_t alone = alone_blocks(hardware, workload.cluster, row);
    SLUICE_CHECK(times.finished - row.slot >= alone);  // nothing is faster than a message alone
    const double one = static_cast<double>(times.finished - row.slot) / static_cast<double>(alone);
    slowdowns.push_back(one);
    slowdown += one;
    took += static_cast<double>(times.finished - row.slot);
    waited += static_cast<double>(times.granted - times.demanded);
  }
  const auto count = static_cast<double>(slowdowns.size());
  const auto p99 = slowdowns.begin() + static_cast<std::ptrdiff_t>((slowdowns.size() - 1) * 99 / 100);
  std::nth_element(slowdowns.begin(), p99, slowdowns.end());
  const double block_ns = static_cast<double>(hardware.block().picoseconds()) / 1e3;
  return {.metrics = {{"published", published / static_cast<double>(published_rows)},
                      {"slowdown", slowdown / count},
                      {"p99", *p99},
                      {"took_ns", took / count * block_ns},
                      {"wait_ns", waited / count * block_ns},
                      {"displaced_ns", static_cast<double>(outcome.most_displaced) * block_ns}},
          .events = outcome.events,
          .chunks = outcome.chunks,
          .trace_hash = outcome.trace_hash};
}

}  // namespace sluice::sim
