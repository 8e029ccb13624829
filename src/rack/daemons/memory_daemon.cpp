#include "rack/daemons/memory_daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

#include "rack/cowbird/cowbird_near.h"
#include "rack/directory/tenants.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/memory_node.h"
#include "rack/process/daemon_http.h"
#include "rack/process/metrics.h"
#include "rack/process/process.h"

namespace sluice::rack {
namespace {

constexpr Duration kFarewell = Duration::seconds(2);

// Cowbird's engines in this process; null: none are wanted.
std::unique_ptr<CowbirdNear> make_engines(Endpoint& endpoint, MemoryNode& node, const MemorySettings& settings) {
  if (!settings.cowbird) return nullptr;
  CowbirdNear::Config config;
  config.engine.probe_least = settings.cowbird_probe;
  config.engine.probe_most = std::max(settings.cowbird_probe, settings.cowbird_idle_probe);
  config.engine.patience = settings.cowbird_patience;
  config.most_bytes = settings.cowbird_rings;
  auto engines = std::make_unique<CowbirdNear>(endpoint.connector(), node, endpoint.node().id, settings.name, config);
  endpoint.loop().add(*engines);
  return engines;
}

// What is under way is finished and published; the next engine does the rest.
void end_engines(nic::PollLoop& loop, CowbirdNear& engines) {
  engines.stop();
  const Time give_up = loop.now() + kFarewell;
  while (engines.blocks() != 0 && loop.now() < give_up) loop.turn();
  loop.remove(engines);
}

}  // namespace

Result<void> run_memory(const std::string& directory, const MemorySettings& settings) {
  StopSignals signals;
  EndpointConfig config;
  config.directory = directory;
  config.description = {settings.name, NodeKind::kMemory, 0, {}, {{"pid", std::to_string(getpid())}}};
  config.port = settings.port;
  config.dcqcn = settings.dcqcn;
  config.line_rate = settings.line_rate * 1'000'000;
  auto opened = Endpoint::open(config);
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;

  auto node = MemoryNode::make(endpoint.connector(), settings.size, settings.connections, endpoint.node().incarnation);
  if (!node) return tl::unexpected(node.error());
  const auto known = endpoint.directory().nodes();
  if (!known) return tl::unexpected(known.error());
  (*node)->follow(endpoint.loop().now(), *known, settings.name);
  if (auto serving = (*node)->serve(kConnectionPort); !serving) return serving;
  NodeDescription description = config.description;
  description.cm_port = kConnectionPort;
  description.regions = (*node)->regions();
  if (settings.shared) {
    (*node)->share_with_all();
    description.attributes[kSharedAttribute] = "true";
  } else {
    description.attributes[kTenantBytesAttribute] = std::to_string(settings.tenant_size);
  }
  const auto engines = make_engines(endpoint, **node, settings);
  if (engines) description.attributes[kCowbirdAttribute] = "true";
  auto http =
      DaemonHttp::start(directory, settings.name, settings.http, endpoint.loop(), [&](Time, telemetry::MetricSet& set) {
        add_endpoint(set, endpoint);
        add_acceptor(set, (*node)->acceptor());
        set.gauge("exported_bytes", "memory that the node exports", static_cast<double>((*node)->bytes().size()));
        set.gauge("tenants_bytes", "memory of tenants' regions", static_cast<double>((*node)->tenants_bytes()));
        if (!engines) return;
        const auto& counters = engines->counters();
        add_cowbird(set, {engines->serving(), counters.served, counters.refused, counters.broken});
        add_cowbird_engines(set, engines->engines());
      });
  if (!http) return tl::unexpected(http.error());
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  description.attributes[kLifeAttribute] = (*node)->life();
  endpoint.on_fence([&](Time now) {
    (*node)->fence(now);
    if (engines) engines->fence(now);
    spdlog::warn("{}: the lease was lost; all connections end, the key of the memory is another now", settings.name);
    description.regions = (*node)->regions();
    return description;
  });
  if (auto published = endpoint.publish(description); !published) return published;
  endpoint.on_change([&](Time now, const Snapshot& snapshot) {
    const bool is_changed = (*node)->follow(now, snapshot, settings.name);
    if (engines) engines->set_nodes(now, snapshot);
    if (!is_changed) return;
    description.regions = (*node)->regions();
    endpoint.publish_soon(description);
  });

  signals.stop_on_signal(endpoint.loop());
  spdlog::info("{}: ready, {} at {}, {}", settings.name, bytes_text(settings.size), endpoint.node().ip.to_string(),
               endpoint.shard().port().name());
  say_ready();
  auto ran = endpoint.run();
  endpoint.on_change({});
  if (engines) end_engines(endpoint.loop(), *engines);
  if (!ran) return ran;
  spdlog::info("{}: ends; {} connections accepted, {} refused", settings.name, (*node)->acceptor().accepted(),
               (*node)->acceptor().refused());
  return {};
}

}  // namespace sluice::rack
