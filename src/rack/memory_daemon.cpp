#include "rack/memory_daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "rack/daemon_http.h"
#include "rack/endpoint.h"
#include "rack/memory_node.h"
#include "rack/metrics.h"
#include "rack/process.h"
#include "rack/tenants.h"

namespace sluice::rack {

Result<void> run_memory(const std::string& directory, const MemorySettings& settings) {
  StopSignals signals;
  EndpointConfig config;
  config.directory = directory;
  config.description = {settings.name, NodeKind::kMemory, 0, {}, {{"pid", std::to_string(getpid())}}};
  config.port = settings.port;
  config.dcqcn = settings.dcqcn;
  auto opened = Endpoint::open(config);
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;

  auto node = MemoryNode::make(endpoint.connector(), settings.size, settings.connections, endpoint.node().incarnation);
  if (!node) return tl::unexpected(node.error());
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
  auto http =
      DaemonHttp::start(directory, settings.name, settings.http, endpoint.loop(), [&](Time, telemetry::MetricSet& set) {
        add_endpoint(set, endpoint);
        add_acceptor(set, (*node)->acceptor());
        set.gauge("exported_bytes", "memory that the node exports", static_cast<double>((*node)->bytes().size()));
        set.gauge("tenants_bytes", "memory of tenants' regions", static_cast<double>((*node)->tenants_bytes()));
      });
  if (!http) return tl::unexpected(http.error());
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  description.attributes[kLifeAttribute] = (*node)->life();
  endpoint.on_fence([&](Time now) {
    (*node)->fence(now);
    spdlog::warn("{}: the lease was lost; all connections end, the key of the memory is another now", settings.name);
    description.regions = (*node)->regions();
    return description;
  });
  if (auto published = endpoint.publish(description); !published) return published;
  endpoint.on_change([&](Time now, const Snapshot& snapshot) {
    if (!(*node)->follow(now, snapshot, settings.name)) return;
    description.regions = (*node)->regions();
    endpoint.publish_soon(description);
  });

  signals.stop_on_signal(endpoint.loop());
  spdlog::info("{}: ready, {} at {}, {}", settings.name, bytes_text(settings.size), endpoint.node().ip.to_string(),
               endpoint.shard().port().name());
  say_ready();
  endpoint.loop().run();
  spdlog::info("{}: ends; {} connections accepted, {} refused", settings.name, (*node)->acceptor().accepted(),
               (*node)->acceptor().refused());
  return {};
}

}  // namespace sluice::rack
