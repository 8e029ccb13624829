#include "rack/process/metrics.h"

#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/memory_node.h"
#include "swordbox/verdict.h"

namespace sluice::rack {

using telemetry::MetricSet;

void add_loop(MetricSet& set, const nic::PollLoopCounters& counters) {
  set.counter("loop_turns", "turns of the daemon's poll loop", counters.turns);
  set.counter("loop_busy_turns", "turns in which there was something to do", counters.busy_turns);
  set.counter("loop_yields", "times that it let others run", counters.yields);
  set.counter("loop_stops", "times that it was stopped amid a turn, and discarded what it was about to send",
              counters.stops);
  set.counter("loop_sleeps", "times that it slept until something came", counters.sleeps);
}

void add_nic(MetricSet& set, const rc::AdapterCounters& counters) {
  counters.for_each([&](const char* name, const char* meaning, std::uint64_t value) {
    set.counter(fmt::format("nic_{}", name), meaning, value);
  });
}

void add_uplink(MetricSet& set, const port::Port& port) {
  const port::PortCounters& c = port.counters();
  set.gauge("uplink_up", "1 while the daemon's port is connected", port.state() == port::PortState::kUp ? 1 : 0);
  set.counter("uplink_receive_packets", "frames that came through the daemon's port", c.rx_frames);
  set.counter("uplink_receive_bytes", "bytes of them", c.rx_bytes);
  set.counter("uplink_transmit_packets", "frames sent through the daemon's port", c.tx_frames);
  set.counter("uplink_transmit_bytes", "bytes of them", c.tx_bytes);
  set.counter("uplink_transmit_full", "times that the port had no room", c.tx_full);
  set.counter("uplink_transmit_dropped", "frames given to the port and lost there", c.tx_dropped);
  set.counter("uplink_transmit_discarded", "frames that the daemon, stopped while it sent them, sent no more",
              c.tx_discarded);
  set.counter("uplink_receive_malformed", "what arrived and was no frame", c.rx_malformed);
  set.counter("uplink_receive_lost", "frames that arrived and were lost for want of room", c.rx_lost);
  set.counter("uplink_resets", "times that the other end was lost", c.resets);
}

void add_endpoint(MetricSet& set, Endpoint& endpoint) {
  add_loop(set, endpoint.loop().counters());
  add_nic(set, endpoint.adapter().counters());
  add_uplink(set, endpoint.shard().port());
}

void add_acceptor(MetricSet& set, const Acceptor& acceptor) {
  set.gauge("connections", "reliable connections that are open", static_cast<double>(acceptor.connections()));
  set.counter("connections_accepted", "reliable connections accepted", acceptor.accepted());
  set.counter("connections_refused", "reliable connections refused", acceptor.refused());
}

void add_cowbird(MetricSet& set, const CowbirdCounts& counts) {
  set.gauge("cowbird_applications", "applications that the engine serves", static_cast<double>(counts.applications));
  set.counter("cowbird_applications_accepted", "applications taken", counts.accepted);
  set.counter("cowbird_applications_refused", "applications refused", counts.refused);
  set.counter("cowbird_channels_broken", "channels whose rings made no sense", counts.broken);
}

void add_cowbird_engines(MetricSet& set, const cowbird::EngineCounters& counters) {
  set.counter("cowbird_probes", "looks at an issuer line", counters.probes);
  set.counter("cowbird_fetches", "READs of requests that did not come with a probe", counters.fetches);
  set.counter("cowbird_reads", "reads completed, with success or not", counters.reads);
  set.counter("cowbird_writes", "writes completed, with success or not", counters.writes);
  set.counter("cowbird_publications", "times that applications were told what is complete", counters.publications);
  set.counter("cowbird_response_writes", "WRITEs of what reads have brought", counters.response_writes);
  set.counter("cowbird_waited", "requests that waited for one that they overlap", counters.waited);
  set.counter("cowbird_retries", "operations that were begun again", counters.retries);
  set.counter("cowbird_refused", "operations that a memory node has refused", counters.refused);
  set.counter("cowbird_failed", "requests reported as failed", counters.failed);
  set.counter("cowbird_denied", "of them, those that their memory node does not export, or refuses", counters.denied);
  set.counter("cowbird_malformed", "of them, those that made no sense", counters.malformed);
}

void add_latency(MetricSet& set, const switching::LatencyProbe::Counts& latency) {
  using Operation = switching::LatencyProbe::Operation;
  for (std::size_t i = 0; i < latency.size(); ++i) {
    const auto operation = static_cast<Operation>(i);
    const switching::LatencyCounts& counts = latency[i];
    set.histogram("operation_latency_seconds",
                  "from the switch to the memory and back, of a sample of the operations that pass",
                  switching::LatencyCounts::edges(), counts.counts, static_cast<double>(counts.sum_ns) / 1e9,
                  {{"operation", std::string(switching::LatencyProbe::name_of(operation))}});
  }
}

void add_box(MetricSet& set, const nlohmann::json& status) {
  const auto& counts = status["counters"];
  for (const swordbox::VerdictRow& row : swordbox::kVerdictTable) {
    const char* const action = row.action == swordbox::Action::kForward ? "forward"
                               : row.action == swordbox::Action::kDrop  ? "drop"
                                                                        : "hold";
    set.counter("box_packets", "packets that the box has judged, by verdict",
                counts.value(std::string(row.name), std::uint64_t{0}),
                {{"verdict", std::string(row.name)}, {"action", action}});
  }
#define X(name, meaning) set.counter("box_" #name, meaning, counts.value(#name, std::uint64_t{0}));
  SLUICE_BOX_EVENTS(X)
#undef X
  for (const auto& [key, way] : {std::pair{"shard_rings_full", "in"}, {"shard_rings_back_full", "back"}}) {
    if (status.contains(key))
      set.counter("box_rings_full", "packets lost since the ring to one of the box's cores, or back, was full",
                  status[key].get<std::uint64_t>(), {{"way", way}});
  }
  set.gauge("box_on", "1 while the box acts", status["on"].get<bool>() ? 1 : 0);
  set.gauge("box_steering", "1 while it knows the store and steers", status["steering"].get<bool>() ? 1 : 0);
  struct Gauge {
    const char* name;
    const char* key;
    const char* meaning;
  };
  constexpr Gauge kGauges[] = {{"box_connections", "connections", "connections that it follows"},
                               {"box_tracked_keys", "tracked_keys", "keys that it steers"},
                               {"box_open_links", "open_links", "links under way"},
                               {"box_tracked_words", "tracked_words", "words whose value it knows"},
                               {"box_shared_connections", "shared_connections", "connections that clients share"},
                               {"box_replaced_under_way", "replaced_under_way", "replaced operations not answered yet"},
                               {"box_held_packets", "held", "packets that wait in it"}};
  for (const Gauge& gauge : kGauges) set.gauge(gauge.name, gauge.meaning, status[gauge.key].get<double>());
}

void add_directory(MetricSet& set, const Snapshot& snapshot) {
  std::map<std::pair<std::string, std::string>, int> nodes;
  // All that there may be, so that a series does not vanish with its last node.
  for (const NodeKind kind : {NodeKind::kSwitch, NodeKind::kMemory, NodeKind::kMetadata, NodeKind::kClient}) {
    for (const char* const state : {"joining", "ready", "gone", "left"})
      nodes[{std::string(to_string(kind)), state}] = 0;
  }
  double exported = 0;
  for (const NodeRecord& node : snapshot.nodes) {
    ++nodes[{std::string(to_string(node.description.kind)), std::string(shown_state(node))}];
    if (node.state != NodeState::kReady) continue;
    for (const RegionRecord& region : node.description.regions) exported += static_cast<double>(region.length);
  }
  for (const auto& [key, count] : nodes)
    set.gauge("directory_nodes", "nodes that the directory knows", count, {{"kind", key.first}, {"state", key.second}});
  set.gauge("directory_exported_bytes", "memory that nodes which are ready export", exported);
  set.counter("directory_revisions", "changes that the directory has seen", snapshot.revision);
}

void add_tenants(MetricSet& set, const Tenants& tenants, const std::vector<Tenants::Standing>& all) {
  for (const auto refusal : {Tenants::Refusal::kMissing, Tenants::Refusal::kWrong, Tenants::Refusal::kRevoked,
                             Tenants::Refusal::kForbidden, Tenants::Refusal::kOverQuota})
    set.counter("tenant_refused", "requests to the directory that were refused, by reason", tenants.refused(refusal),
                {{"reason", std::string(Tenants::to_string(refusal))}});
  for (const Tenants::Standing& tenant : all) {
    if (tenant.is_operator) continue;
    set.gauge("tenant_bytes", "memory of the tenant's regions", static_cast<double>(tenant.used.bytes),
              {{"tenant", tenant.name}});
    set.gauge("tenant_quota_bytes", "memory that the tenant is allowed", static_cast<double>(tenant.quota.bytes),
              {{"tenant", tenant.name}});
    set.gauge("tenant_regions", "regions of the tenant", static_cast<double>(tenant.used.regions),
              {{"tenant", tenant.name}});
  }
}

}  // namespace sluice::rack
