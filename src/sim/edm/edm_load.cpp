#include "sim/edm/edm_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/check.h"
#include "sim/edm/published_trace.h"
#include "sim/edm/rival_published.h"

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
  std::uint64_t mega = cluster.mega_bytes;
  std::string matching = "pim";
  std::string policy = "srpt";
  std::string model = "protocol";
  std::string messages = "drawn";
  f.integer("nodes", nodes, 2, edm::kMaxPorts, kOptional);
  f.integer("messages", trace.messages, 1, 100'000'000, kOptional);
  f.integer("skip", skip, 0, 50'000'000, kOptional);
  f.rate("rate", trace.bits_per_second);
  f.integer("reads_per_mille", reads, 0, 1'000, kOptional);
  f.byte_count("bytes", bytes, 1, edm::kMaxMessageBytes, kOptional);
  f.byte_count("request_bytes", request_bytes, 1, 64, kOptional);
  f.byte_count("chunk_bytes", chunk_bytes, 8, 65'536, kOptional);
  if (chunk_bytes % 8 != 0 && !f.failed()) f.fail(*f.node("chunk_bytes"), "chunk_bytes", "must be a multiple of 8 B");
  f.integer("framing_blocks", framing_blocks, 0, 8, kOptional);
  f.integer("gap_blocks", gap_blocks, 0, 8, kOptional);
  f.integer("active_per_pair", active, 1, 127, kOptional);
  f.byte_count("mega_bytes", mega, 0, 1u << 20, kOptional);
  f.duration("patience", cluster.patience, kOptional);
  f.choice("matching", matching, {"pim", "greedy"}, kOptional);
  f.choice("policy", policy, {"srpt", "fcfs"}, kOptional);
  f.choice("model", model, {"protocol", "published"}, kOptional);
  as_published = model == "published";
  if (as_published && skip != 0 && !f.failed()) {
    f.fail(*f.node("skip"), "skip", "is nothing that model = \"published\" knows: it counts what is over when it ends");
  }
  if (skip != 0 && skip * 2 >= trace.messages && !f.failed())
    f.fail(*f.node("skip"), "skip", fmt::format("leaves none of {} messages: so many at either end", trace.messages));
  f.choice("trace", messages, {"drawn", "published"}, kOptional);
  trace.published = messages == "published";
  if (trace.published && nodes != kPublishedNodes && !f.failed())
    f.fail(*f.node("trace"), "trace", fmt::format("\"published\" has {} nodes", kPublishedNodes));
  trace.sizes = SizeDistribution::constant(static_cast<std::uint32_t>(bytes));
  read_sizes(f, trace.sizes);
  trace.nodes = cluster.nodes = static_cast<std::uint32_t>(nodes);
  trace.reads_per_mille = static_cast<std::uint32_t>(reads);
  trace.request_bytes = static_cast<std::uint32_t>(request_bytes);
  cluster.chunk_bytes = static_cast<std::uint32_t>(chunk_bytes);
  cluster.framing_blocks = static_cast<std::uint32_t>(framing_blocks);
  cluster.gap_blocks = static_cast<std::uint32_t>(gap_blocks);
  cluster.active_per_pair = static_cast<std::uint32_t>(active);
  cluster.mega_bytes = static_cast<std::uint32_t>(mega);
  cluster.matching = matching == "pim" ? edm::Matching::kPim : edm::Matching::kGreedy;
  cluster.policy = policy == "srpt" ? edm::Policy::kShortestRemaining : edm::Policy::kFirstCome;
  read_rival(f);
  if (!f.failed() && lasts_too_long(trace)) f.fail(*f.node("rate"), "rate", kLastsTooLong);
}

void EdmWorkload::read_rival(Fields& f) {
  constexpr std::array kNames{"dctcp", "receiver_driven", "pfabric", "pfc", "cxl", "fastpass"};
  std::string protocol = "edm";
  std::uint64_t packet = rival.packet_bytes;
  std::uint64_t packet_framing = rival.packet_framing_bytes;
  std::uint64_t message_framing = rival.message_framing_bytes;
  std::uint64_t control = rival.control_bytes;
  std::uint64_t ack = rival.ack_bytes;
  std::uint64_t window = rival.window_bytes;
  std::uint64_t mark = std::uint64_t{rival.mark_blocks} * 8;
  std::uint64_t buffer = std::uint64_t{rival.buffer_blocks} * 8;
  std::uint64_t credit = std::uint64_t{rival.credit_blocks} * 8;
  std::uint64_t egress = std::uint64_t{rival.egress_blocks} * 8;
  Duration hop{};
  f.choice("protocol", protocol, {"edm", "dctcp", "receiver_driven", "pfabric", "pfc", "cxl", "fastpass"}, kOptional);
  f.duration("propagation", hop, kOptional);
  constexpr std::uint64_t kMostFraming = 1'024;
  constexpr std::uint64_t kMostQueued = 1u << 30;
  f.byte_count("packet_bytes", packet, 8, 65'536, kOptional);
  f.byte_count("packet_framing", packet_framing, 0, kMostFraming, kOptional);
  f.byte_count("message_framing", message_framing, 0, kMostFraming, kOptional);
  f.byte_count("control_bytes", control, 0, kMostFraming, kOptional);
  f.byte_count("ack_bytes", ack, 0, kMostFraming, kOptional);
  f.byte_count("window", window, 0, kMostQueued, kOptional);
  f.byte_count("mark_above", mark, 8, kMostQueued, kOptional);
  f.byte_count("buffer", buffer, 8, kMostQueued, kOptional);
  f.byte_count("credit", credit, 8, kMostQueued, kOptional);
  f.byte_count("egress", egress, 8, kMostQueued, kOptional);
  f.duration("retransmit_after", rival.retransmit_after, kOptional);
  const auto found = std::ranges::find(kNames, protocol);
  is_rival = found != kNames.end();
  if (is_rival) rival.rival = static_cast<Rival>(found - kNames.begin());
  if (hop != Duration{}) propagation = hop;
  rival.nodes = cluster.nodes;
  rival.packet_bytes = static_cast<std::uint32_t>(packet);
  rival.packet_framing_bytes = static_cast<std::uint32_t>(packet_framing);
  rival.message_framing_bytes = static_cast<std::uint32_t>(message_framing);
  rival.control_bytes = static_cast<std::uint32_t>(control);
  rival.ack_bytes = static_cast<std::uint32_t>(ack);
  rival.window_bytes = static_cast<std::uint32_t>(window);
  rival.mark_blocks = static_cast<std::uint32_t>(mark / 8);
  rival.buffer_blocks = static_cast<std::uint32_t>(buffer / 8);
  rival.credit_blocks = static_cast<std::uint32_t>(credit / 8);
  rival.egress_blocks = static_cast<std::uint32_t>(egress / 8);
  // A packet that nothing has room for would never come.
  const std::uint64_t longest = trace.sizes.points.back().units * trace.sizes.unit_bytes + message_framing;
  const std::uint64_t needs =
      (std::min(std::max<std::uint64_t>(longest, trace.request_bytes), packet) + packet_framing + 7) / 8;
  const bool drops = protocol == "dctcp" || protocol == "pfabric";
  const bool no_buffer = drops && rival.buffer_blocks < needs;
  const bool no_credit = protocol == "cxl" && rival.credit_blocks < needs;
  if (f.failed() || (!no_buffer && !no_credit)) return;
  const char* const key = no_buffer ? "buffer" : "credit";
  const toml::node* const own = f.node(key, kOptional);
  f.fail(own != nullptr ? *own : *f.node("packet_bytes"), key,
         fmt::format("must have room for a packet, {} B", needs * 8));
}

namespace {

// What the metrics are made of, message by message.
struct Count {
  double took = 0;
  double common = 0;
  double wire = 0;
  std::vector<double> slowdowns;

  void message(const TraceRow& row, std::int64_t blocks, std::int64_t alone, std::int64_t ideal) {
    SLUICE_CHECK(blocks >= alone && alone >= ideal);  // nothing is faster than a message alone
    took += static_cast<double>(blocks);
    common += static_cast<double>(blocks) / static_cast<double>(ideal);
    wire += static_cast<double>(blocks) * 8 / static_cast<double>(row.data_bytes());
    slowdowns.push_back(static_cast<double>(blocks) / static_cast<double>(alone));
  }
  std::vector<std::pair<std::string, double>> metrics(const EdmHardware& hardware, double published) {
    const auto count = static_cast<double>(slowdowns.size());
    const double slowdown = std::reduce(slowdowns.begin(), slowdowns.end());
    const auto p99 = slowdowns.begin() + static_cast<std::ptrdiff_t>((slowdowns.size() - 1) * 99 / 100);
    std::nth_element(slowdowns.begin(), p99, slowdowns.end());
    return {{"published", published},   {"slowdown", slowdown / count}, {"p99", *p99},
            {"common", common / count}, {"wire", wire / count},         {"took_ns", took / count * block_ns(hardware)}};
  }
  static double block_ns(const EdmHardware& hardware) {
    return static_cast<double>(hardware.block().picoseconds()) / 1e3;
  }
};

std::uint32_t index(std::size_t i) { return static_cast<std::uint32_t>(i); }

double published(std::optional<Rival> protocol, std::int64_t hop, const std::vector<TraceRow>& rows,
                 const std::vector<PublishedRow>& lines) {
  return published_mean(protocol, hop, rows, lines, published_end(protocol, lines));
}

EdmResult run_edm(const EdmHardware& hardware, const EdmWorkload& workload, const std::vector<TraceRow>& rows) {
  const ClusterOutcome outcome = run_cluster(hardware, workload.cluster, rows);
  Count count;
  std::vector<PublishedRow> lines;
  double waited = 0;
  for (std::size_t i = workload.first(rows); i < workload.end(rows); ++i) {
    const TraceRow& row = rows[i];
    const MessageTimes& times = outcome.times[i];
    if (row.reads()) {
      lines.push_back(
          {index(i), PublishedPart::kRequest, row.slot, times.requested, times.started - hardware.answer_blocks()});
      lines.push_back({index(i), PublishedPart::kAnswer, times.started, times.started, times.finished});
    } else {
      lines.push_back({index(i), PublishedPart::kWrite, row.slot, times.started, times.finished});
    }
    count.message(row, times.finished - row.slot, alone_blocks(hardware, workload.cluster, row),
                  ideal_blocks(hardware, row));
    waited += static_cast<double>(times.granted - times.demanded);
  }
  EdmResult result{.metrics = count.metrics(hardware, published(std::nullopt, hardware.hop_blocks(), rows, lines)),
                   .events = outcome.events,
                   .chunks = outcome.chunks,
                   .trace_hash = outcome.trace_hash};
  const double block_ns = Count::block_ns(hardware);
  result.metrics.emplace_back("wait_ns", waited / static_cast<double>(count.slowdowns.size()) * block_ns);
  result.metrics.emplace_back("batched_percent",
                              100 * static_cast<double>(outcome.batched) / static_cast<double>(rows.size()));
  result.metrics.emplace_back("displaced_ns", static_cast<double>(outcome.most_displaced) * block_ns);
  return result;
}

EdmResult run_one_of_its_rivals(const EdmHardware& hardware, const EdmWorkload& workload,
                                const std::vector<TraceRow>& rows) {
  EdmHardware own = hardware;
  own.request_latency = own.notify_latency = own.answer_latency = own.receive_latency = {};  // stages of EDM's alone
  if (workload.propagation) own.propagation = *workload.propagation;
  const RivalOutcome outcome = run_rival(own, workload.rival, rows);
  Count count;
  const Rival rival = workload.rival.rival;
  std::vector<PublishedRow> lines;
  std::map<std::pair<bool, std::uint32_t>, std::int64_t> alone;  // by size: each is a simulation
  for (std::size_t i = workload.first(rows); i < workload.end(rows); ++i) {
    const TraceRow& row = rows[i];
    const MessageTimes& times = outcome.times[i];
    const std::int64_t asked = row.reads() ? times.demanded + own.host_blocks() : row.slot;
    // A read is one row in the published simulation of PFC.
    const bool two = row.reads() && rival != Rival::kPfc;
    if (two) lines.push_back({index(i), PublishedPart::kRequest, row.slot, times.requested, times.demanded});
    lines.push_back(
        {index(i), two ? PublishedPart::kAnswer : PublishedPart::kWrite, asked, times.started, times.finished});
    const auto [known, is_new] = alone.try_emplace({row.reads(), row.data_bytes()});
    if (is_new) known->second = alone_blocks(own, workload.rival, row);
    count.message(row, times.finished - row.slot, known->second, ideal_blocks(own, row));
  }
  EdmResult result{.metrics = count.metrics(hardware, published(rival, own.hop_blocks(), rows, lines)),
                   .events = outcome.events,
                   .chunks = outcome.packets,
                   .trace_hash = outcome.trace_hash};
  result.metrics.emplace_back("dropped", static_cast<double>(outcome.dropped));
  result.metrics.emplace_back("pauses", static_cast<double>(outcome.pauses));
  result.metrics.emplace_back("queue_ns", static_cast<double>(outcome.longest_queue) * Count::block_ns(hardware));
  return result;
}

// As the published simulation has it, until that ends: the other metrics want all messages.
EdmResult run_as_published(const EdmHardware& hardware, const EdmWorkload& workload,
                           const std::vector<TraceRow>& rows) {
  const std::int64_t hop = hardware.blocks(workload.propagation.value_or(hardware.propagation));
  std::optional<Rival> protocol;
  if (workload.is_rival) protocol = workload.rival.rival;
  const PublishedRun run = run_published(protocol, hop, workload.rival.nodes, rows);
  double took = 0;
  std::uint64_t over = 0;
  for (const PublishedRow& row : run.rows) {
    if (row.finished < 0) continue;
    took += static_cast<double>(row.finished - row.created);
    ++over;
  }
  return {.metrics = {{"published", published_mean(protocol, hop, rows, run.rows, run.end)},
                      {"took_ns", took / static_cast<double>(over) * Count::block_ns(hardware)},
                      {"over_percent", 100 * static_cast<double>(over) / static_cast<double>(run.rows.size())}},
          .events = static_cast<std::uint64_t>(run.end),
          .chunks = run.blocks,
          .trace_hash = run.trace_hash};
}

}  // namespace

EdmResult run_edm_load(const EdmHardware& hardware, const EdmWorkload& workload, std::uint64_t seed) {
  TraceSpec spec = workload.trace;
  spec.slot_ps = hardware.block().picoseconds();
  const std::vector<TraceRow> rows = generate_trace(spec, seed);
  if (workload.as_published) return run_as_published(hardware, workload, rows);
  return workload.is_rival ? run_one_of_its_rivals(hardware, workload, rows) : run_edm(hardware, workload, rows);
}

}  // namespace sluice::sim
