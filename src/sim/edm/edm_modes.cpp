#include "sim/edm/edm_modes.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr std::uint32_t kAnswerFramingBlocks = 2;   // no address
constexpr std::uint32_t kLongestRequestBlocks = 5;  // a compare-and-swap's: the testbed's scheduler allows for it
constexpr std::uint32_t kLineRequestBytes = 8;      // as a trace has it: one block
constexpr std::uint32_t kReadRequestBytes = 16;     // two

Duration up_to_blocks(Duration duration, Duration block) {
  const std::int64_t each = block.picoseconds();
  return block * ((duration.picoseconds() + each - 1) / each);
}

TraceSpec spec_of(const EdmModesWorkload& workload) {
  return {.nodes = workload.bed.hosts,
          .messages = workload.messages,
          .bits_per_second = workload.bits_per_second,
          .reads_per_mille = workload.reads_per_mille,
          .sizes = {{{1, 0}, {workload.write_bytes, 1'000}}, 1}};
}

std::vector<TraceRow> rows_of(const EdmTestbedHardware& hardware, const EdmModesWorkload& workload,
                              std::uint64_t seed) {
  TraceSpec spec = spec_of(workload);
  spec.slot_ps = hardware.block().picoseconds();
  std::vector<TraceRow> rows = generate_trace(spec, seed);
  Rng rng = Rng(seed).fork("reads");
  Rng pairs = Rng(seed).fork("pairs");
  std::vector<bool> reads(std::size_t{workload.bed.hosts} * workload.bed.hosts);
  for (std::size_t i = 0; i < reads.size(); ++i) reads[i] = pairs.below(1'000) < workload.reads_per_mille;
  for (TraceRow& row : rows) {
    if (workload.pairs == EdmModesWorkload::Pairs::kApart) {
      const bool read = reads[row.source * workload.bed.hosts + row.destination];
      if (row.reads() && !read) row.bytes = row.request_bytes;
      row.type = read ? TraceRow::Type::kRead : TraceRow::Type::kWrite;
    }
    if (!row.reads()) continue;
    const bool line = workload.read_bytes == 0;
    row.bytes = line ? kLineRequestBytes : kReadRequestBytes;
    row.request_bytes = line ? edm::kLineBytes : static_cast<std::uint32_t>(1 + rng.below(workload.read_bytes));
  }
  return rows;
}

// Block by block: when the last block of each message's data had been processed.
class OnTestbed {
 public:
  OnTestbed(const EdmTestbedHardware& hardware, const EdmModesWorkload& workload, const std::vector<TraceRow>& rows)
      : rows_(rows), block_(hardware.block()), written_by_(workload.bed.hosts), bed_(hardware, settings_of(workload)) {}

  std::vector<Time> run() {
    std::vector<Time> ends(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Time now = Time::at(block_ * rows_[i].slot);
      bed_.run(now - Duration::picoseconds(1));
      ask(now, i);
      bed_.wake_at(rows_[i].source, now);
    }
    while (bed_.run_one()) continue;
    SLUICE_CHECK(bed_.switch_stack().refused() == 0);
    for (std::uint32_t host = 0; host < written_by_.size(); ++host) collect(host, ends);
    return ends;
  }
  const EdmTestbed::Counts& counts() const { return bed_.counts(); }

 private:
  // Each write has bytes of its own at its memory node, by which it is known again.
  EdmTestbed::Settings settings_of(const EdmModesWorkload& workload) {
    std::vector<std::uint64_t> used(workload.bed.hosts, kReadFrom + std::max(workload.read_bytes, edm::kLineBytes));
    at_.resize(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].reads()) continue;
      at_[i] = used[rows_[i].destination];
      used[rows_[i].destination] += rows_[i].bytes;
    }
    EdmTestbed::Settings settings = workload.bed;
    settings.memory_bytes = std::ranges::max(used);
    return settings;
  }
  void ask(Time now, std::size_t row) {
    const TraceRow& r = rows_[row];
    const edm::PortId node(r.destination);
    edm::HostStack& host = bed_.host(r.source);
    if (r.reads()) {
      const bool line = r.bytes == kLineRequestBytes;
      SLUICE_CHECK(host.read(now, node, line ? 0 : kReadFrom, r.request_bytes, row));
    } else {
      written_by_[r.destination][at_[row]] = row;
      SLUICE_CHECK(host.write(now, node, at_[row], std::vector<std::uint8_t>(r.bytes)));
    }
  }
  void collect(std::uint32_t host, std::vector<Time>& ends) {
    for (edm::Done done; bed_.host(host).poll_done(done);) {
      SLUICE_CHECK(!done.null);
      ends[done.tag] = done.last_block;
    }
    for (const auto& chunk : bed_.host(host).written()) {
      const std::size_t row = std::prev(written_by_[host].upper_bound(chunk.address))->second;
      ends[row] = std::max(ends[row], chunk.last_block);
    }
  }

  static constexpr std::uint64_t kReadFrom = 8;  // not a line's address, so that a request has two blocks

  const std::vector<TraceRow>& rows_;
  Duration block_;
  std::vector<std::uint64_t> at_;
  std::vector<std::map<std::uint64_t, std::size_t>> written_by_;  // by memory node and address: the row
  EdmTestbed bed_;
};

ClusterSettings cluster_settings(const EdmTestbed::Settings& bed) {
  return {.nodes = bed.hosts,
          .active_per_pair = bed.active_per_pair,
          .framing_blocks = edm::kWriteFramingBlocks,
          .gap_blocks = bed.gap_blocks,
          .policy = bed.policy,
          .matching = bed.matching,
          .patience = bed.patience,
          .answer_framing_blocks = kAnswerFramingBlocks,
          .longest_request_blocks = kLongestRequestBlocks,
          .iterations = edm::Iterations::kOnDemand,
          .mega_bytes = bed.mega_bytes};
}

double ns(Duration d) { return static_cast<double>(d.picoseconds()) / 1e3; }

}  // namespace

EdmHardware cluster_of(const EdmTestbedHardware& hardware) {
  return {.name = hardware.name + ", chunk by chunk",
          .text = hardware.text,
          .bits_per_second = hardware.bits_per_second,
          .propagation = hardware.link(),
          .host_latency = hardware.cycle * (edm::kGrantCycles + edm::kGrantQueueCycles + edm::kDataCycles),
          .switch_latency = hardware.cycle * (edm::kIdentifyCycles + edm::kForwardCycles),
          .iteration = hardware.iteration(),
          .request_latency = hardware.cycle * edm::kRequestCycles,
          .notify_latency = hardware.cycle * (edm::kIdentifyCycles + edm::kInsertCycles),
          .answer_latency = hardware.cycle * (edm::kRequestTakenCycles + edm::kGrantQueueCycles + edm::kDataCycles),
          .receive_latency = hardware.cycle * edm::kDataTakenCycles};
}

bool can_be_whole_blocks(const EdmTestbedHardware& hardware) {
  return hardware.cycle.picoseconds() % hardware.block().picoseconds() == 0;
}

EdmTestbedHardware in_whole_blocks(EdmTestbedHardware hardware) {
  const Duration block = hardware.block();
  SLUICE_CHECK(can_be_whole_blocks(hardware));
  hardware.propagation = hardware.propagation + (up_to_blocks(hardware.link(), block) - hardware.link());
  if (hardware.clock != Duration{}) hardware.clock = up_to_blocks(hardware.clock, block);
  return hardware;
}

void EdmModesWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  std::uint64_t hosts = bed.hosts;
  std::uint64_t reads = reads_per_mille;
  std::uint64_t write_most = write_bytes;
  std::uint64_t read_most = read_bytes;
  std::uint64_t gap_blocks = bed.gap_blocks;
  std::uint64_t active = bed.active_per_pair;
  std::uint64_t mega = bed.mega_bytes;
  std::string matching = "pim";
  std::string policy = "srpt";
  std::string times = "whole_blocks";
  std::string pairs_are = "mixed";
  f.integer("nodes", hosts, 2, edm::kMaxPorts, kOptional);
  f.integer("messages", messages, 1, 1'000'000, kOptional);
  f.rate("rate", bits_per_second);
  f.integer("reads_per_mille", reads, 0, 1'000, kOptional);
  f.byte_count("write_bytes", write_most, 1, 100'000, kOptional);
  f.byte_count("read_bytes", read_most, 0, 100'000, kOptional);
  f.integer("gap_blocks", gap_blocks, 0, 8, kOptional);
  f.integer("active_per_pair", active, 1, 127, kOptional);
  f.byte_count("mega_bytes", mega, 0, 1u << 20, kOptional);
  f.duration("patience", bed.patience, kOptional);
  f.choice("matching", matching, {"pim", "greedy"}, kOptional);
  f.choice("policy", policy, {"srpt", "fcfs"}, kOptional);
  f.choice("pairs", pairs_are, {"mixed", "apart"}, kOptional);
  f.choice("times", times, {"whole_blocks", "as_they_are"}, kOptional);
  bed.hosts = static_cast<std::uint32_t>(hosts);
  bed.gap_blocks = static_cast<std::uint32_t>(gap_blocks);
  bed.active_per_pair = static_cast<std::uint32_t>(active);
  bed.mega_bytes = static_cast<std::uint32_t>(mega);
  bed.matching = matching == "pim" ? edm::Matching::kPim : edm::Matching::kGreedy;
  bed.policy = policy == "srpt" ? edm::Policy::kShortestRemaining : edm::Policy::kFirstCome;
  reads_per_mille = static_cast<std::uint32_t>(reads);
  write_bytes = static_cast<std::uint32_t>(write_most);
  read_bytes = static_cast<std::uint32_t>(read_most);
  pairs = pairs_are == "mixed" ? Pairs::kMixed : Pairs::kApart;
  whole_blocks = times == "whole_blocks";
  if (!f.failed() && lasts_too_long(spec_of(*this))) f.fail(*f.node("rate"), "rate", kLastsTooLong);
}

EdmModesOutcome run_both_modes(const EdmTestbedHardware& hardware, const EdmModesWorkload& workload,
                               std::uint64_t seed) {
  const EdmTestbedHardware own = workload.whole_blocks ? in_whole_blocks(hardware) : hardware;
  const std::vector<TraceRow> rows = rows_of(own, workload, seed);
  OnTestbed testbed(own, workload, rows);
  const std::vector<Time> ends = testbed.run();
  const ClusterOutcome cluster = run_cluster(cluster_of(own), cluster_settings(workload.bed), rows);
  EdmModesOutcome outcome{.messages = {}, .counts = testbed.counts()};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    outcome.messages.push_back({.row = rows[i],
                                .on_testbed = ends[i] - Time::at(own.block() * rows[i].slot),
                                .in_cluster = own.block() * (cluster.times[i].finished - rows[i].slot)});
  }
  return outcome;
}

std::vector<std::pair<std::string, double>> run_edm_modes(const EdmTestbedHardware& hardware,
                                                          const EdmModesWorkload& workload, std::uint64_t seed) {
  const EdmModesOutcome outcome = run_both_modes(hardware, workload, seed);
  std::uint64_t differ = 0;
  Duration most{};
  double testbed = 0;
  double cluster = 0;
  for (const auto& message : outcome.messages) {
    if (message.on_testbed != message.in_cluster) ++differ;
    const Duration more = message.in_cluster - message.on_testbed;
    most = std::max({most, more, Duration{} - more});
    testbed += ns(message.on_testbed);
    cluster += ns(message.in_cluster);
  }
  const auto count = static_cast<double>(outcome.messages.size());
  return {{"all_same", differ == 0 ? 1.0 : 0.0},
          {"differ", static_cast<double>(differ)},
          {"testbed_ns", testbed / count},
          {"cluster_ns", cluster / count},
          {"difference_percent", (cluster / testbed - 1) * 100},
          {"most_ns", ns(most)},
          {"held", static_cast<double>(outcome.counts.held_requests)},
          {"met", static_cast<double>(outcome.counts.met)},
          {"waited_ns", ns(outcome.counts.most_waited)}};
}

}  // namespace sluice::sim
