// What daemons tell Prometheus: each part of one, put into a scrape.
//
// Threads:  where the part's own numbers may be read: its loop's thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cowbird/engine.h"
#include "nic/poll_loop.h"
#include "port/port.h"
#include "rack/directory/directory.h"
#include "rack/directory/tenants.h"
#include "rc/counters.h"
#include "switching/latency_probe.h"
#include "telemetry/metric_set.h"

namespace sluice::rack {

class Acceptor;
class Endpoint;
class SwitchPorts;

void add_loop(telemetry::MetricSet& set, const nic::PollLoopCounters& counters);
void add_nic(telemetry::MetricSet& set, const rc::AdapterCounters& counters);
// A daemon's own port, not one of the switch.
void add_uplink(telemetry::MetricSet& set, const port::Port& port);
// Loop, NIC and port of a process on the rack.
void add_endpoint(telemetry::MetricSet& set, Endpoint& endpoint);
void add_acceptor(telemetry::MetricSet& set, const Acceptor& acceptor);
// Of a process with Cowbird's engines, or that stands in for applications towards them.
struct CowbirdCounts {
  std::size_t applications = 0;
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t broken = 0;
};
void add_cowbird(telemetry::MetricSet& set, const CowbirdCounts& counts);
// Of all Cowbird engines in this process.
void add_cowbird_engines(telemetry::MetricSet& set, const cowbird::EngineCounters& counters);
void add_latency(telemetry::MetricSet& set, const switching::LatencyProbe::Counts& latency);
// `status`: BoxControl::status_json().
void add_box(telemetry::MetricSet& set, const nlohmann::json& status);
void add_directory(telemetry::MetricSet& set, const Snapshot& snapshot);
void add_tenants(telemetry::MetricSet& set, const Tenants& tenants, const std::vector<Tenants::Standing>& all);

}  // namespace sluice::rack
