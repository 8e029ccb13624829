#include "sim/edm/edm_ycsb.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "sim/edm/edm_stacks.h"
#include "workload/zipf.h"

namespace sluice::sim {
namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

constexpr std::uint32_t kReadBytes = 1'024;
constexpr std::uint32_t kWriteBytes = 100;

double ns(Duration d) { return static_cast<double>(d.picoseconds()) / 1e3; }

// Which requests are writes, in order.
std::vector<bool> requests_of(const EdmYcsbWorkload& workload, std::uint64_t seed) {
  Rng rng = Rng(seed).fork("requests");
  std::vector<bool> writes(workload.requests);
  for (std::size_t i = 0; i < writes.size(); ++i) writes[i] = rng.below(1'000) < workload.writes_per_mille;
  return writes;
}

Metrics edm_throughput(const EdmTestbedHardware& hardware, const std::vector<bool>& writes) {
  constexpr std::uint64_t kActive = 3;  // X, the scheduler's
  const edm::PortId node(1);
  EdmTestbed bed(hardware, {.memory_bytes = 4'096, .read_timer = EdmTestbed::kNoTimer});
  edm::HostStack& client = bed.host(0);
  std::uint64_t reads = 0;
  std::uint64_t written = 0;  // asked for
  std::uint64_t answered = 0;
  for (std::size_t next = 0; next < writes.size() || answered < reads || bed.host(1).written().size() < written;) {
    for (; next < writes.size(); ++next) {
      const bool full = writes[next] ? written - bed.host(1).written().size() >= kActive : reads - answered >= kActive;
      if (full) break;
      SLUICE_CHECK(writes[next] ? client.write(bed.now(), node, 0, std::vector<std::uint8_t>(kWriteBytes))
                                : client.read(bed.now(), node, 0, kReadBytes, 0));
      ++(writes[next] ? written : reads);
      bed.wake(0);
    }
    bed.run_one();
    for (edm::Done done; client.poll_done(done); ++answered) SLUICE_CHECK(!done.null);
  }
  SLUICE_CHECK(bed.switch_stack().refused() == 0);
  const double up_ns = static_cast<double>(bed.blocks_over(0, 0, EdmTestbed::Way::kUp)) * ns(hardware.block());
  return {{"up_writes", static_cast<double>(written) / up_ns * 1e3},
          {"requests", static_cast<double>(writes.size()) / ns(bed.now() - Time{}) * 1e3},
          {"waited_ns", ns(bed.counts().most_waited)}};
}

Metrics rocev2_throughput(const EdmTestbedHardware& hardware, const std::vector<bool>& writes) {
  constexpr std::uint32_t kEthernet = 14 + 4 + 8 + 12;  // header, FCS, preamble, gap
  constexpr std::uint32_t kRoce = 20 + 8 + 12 + 4;      // IPv4, UDP, BTH, ICRC
  constexpr std::uint32_t kReth = 16;
  constexpr std::uint32_t kAeth = 4;
  std::uint64_t up = 0;
  std::uint64_t down = 0;
  for (const bool write : writes) {
    up += kEthernet + kRoce + kReth + (write ? kWriteBytes : 0);
    down += kEthernet + kRoce + kAeth + (write ? 0 : kReadBytes);
  }
  const auto time_ns = [&](std::uint64_t bytes) { return static_cast<double>(bytes) / 8 * ns(hardware.block()); };
  return {{"up_writes", static_cast<double>(std::ranges::count(writes, true)) / time_ns(up) * 1e3},
          {"requests", static_cast<double>(writes.size()) / time_ns(std::max(up, down)) * 1e3}};
}

// The artifact's blocks up for a request (utilization.cpp, simulation()), in halves. EDM's: a control block and an address, before a write a /N/ besides, and no
// /MT/ after it; RoCEv2's: a read is a frame of 64 B, a write its data behind 10 blocks of headers, and each has a gap of a block and a half. Of 100 B
// it counts 12 blocks.
Metrics published_throughput(const EdmTestbedHardware& hardware, const std::string& stack,
                             const std::vector<bool>& writes) {
  constexpr std::int64_t kData = 2 * (kWriteBytes / 8);
  const bool edm = stack == "edm";
  const std::int64_t write = edm ? kData + 2 * 3 : kData + 2 * 10 + 3;
  const std::int64_t read = edm ? 2 * 2 : 2 * 8 + 3;
  const auto written = std::ranges::count(writes, true);
  const auto halves = written * write + std::ranges::count(writes, false) * read;
  return {{"up_writes", static_cast<double>(written) / (static_cast<double>(halves) / 2 * ns(hardware.block())) * 1e3}};
}

Duration sum(const std::vector<Stage>& stages) {
  Duration total{};
  for (const Stage& stage : stages) total = total + stage.latency;
  return total;
}

struct Remote {
  double read_ns = 0;
  double write_ns = 0;
};
Remote remote_latency(const EdmTestbedHardware& hardware, const std::string& stack) {
  const double dram = ns(hardware.dram);
  if (stack == "cxl") {
    // Through the switch and back; a write one way.
    return {ns(hardware.cxl_switch) * 2 + 2 * dram, ns(hardware.cxl_switch) + 2 * dram};
  }
  if (stack == "rocev2") {
    return {ns(sum(stages_of(hardware, Stack::kRocev2, true))) + 2 * dram,
            ns(sum(stages_of(hardware, Stack::kRocev2, false))) + 2 * dram};
  }
  EdmTestbedWorkload one;
  one.dram = hardware.dram;
  one.operation = "read";
  const double read = run_edm_testbed(hardware, one).front().second;
  one.operation = "write";
  return {read + dram, run_edm_testbed(hardware, one).front().second + dram};
}

Metrics latency(const EdmTestbedHardware& hardware, const EdmYcsbWorkload& workload, std::uint64_t seed) {
  const Remote remote = remote_latency(hardware, workload.stack);
  // Which objects are local: a shuffle's first ones.
  Rng places = Rng(seed).fork("places");
  std::vector<bool> local(workload.objects);
  std::fill_n(local.begin(), workload.objects * workload.local_percent / 100, true);
  for (std::size_t i = local.size(); i > 1; --i) {
    const std::size_t j = places.below(i);
    const bool held = local[i - 1];
    local[i - 1] = local[j];
    local[j] = held;
  }
  const workload::Zipf zipf(workload.objects, workload::Zipf::kYcsbTheta);
  Rng keys = Rng(seed).fork("keys");
  double total = 0;
  for (const bool write : requests_of(workload, seed)) {
    const bool here = local[zipf.draw(keys)];
    total += here ? ns(hardware.dram) : write ? remote.write_ns : remote.read_ns;
  }
  return {{"mean_ns", total / static_cast<double>(workload.requests)}};
}

}  // namespace

void EdmYcsbWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("figure", figure, {"throughput", "latency"});
  f.choice("stack", stack, {"edm", "rocev2", "cxl"}, kOptional);
  f.choice("count", count, {"measured", "published"}, kOptional);
  f.integer("writes_per_mille", writes_per_mille, 0, 1'000, kOptional);
  f.integer("requests", requests, 1, 10'000'000, kOptional);
  f.integer("objects", objects, 1, 1'000'000, kOptional);
  f.integer("local_percent", local_percent, 0, 100, kOptional);
}

Metrics run_edm_ycsb(const EdmTestbedHardware& hardware, const EdmYcsbWorkload& workload, std::uint64_t seed) {
  if (workload.figure == "latency") return latency(hardware, workload, seed);
  const std::vector<bool> writes = requests_of(workload, seed);
  if (workload.count == "published") return published_throughput(hardware, workload.stack, writes);
  return workload.stack == "edm" ? edm_throughput(hardware, writes) : rocev2_throughput(hardware, writes);
}

}  // namespace sluice::sim
