#include "rack/metadata_daemon.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "clover/metadata.h"
#include "rack/daemon_http.h"
#include "rack/endpoint.h"
#include "rack/memory_node.h"
#include "rack/metrics.h"
#include "rack/process.h"
#include "rack/store_memory.h"
#include "rc/remote_rc.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 16;  // calls at once of one client
constexpr Duration kWaitForMemory = Duration::seconds(10);

// The main regions of the first `count` memory nodes, once there are so many.
Result<std::vector<clover::Region>> wait_for_regions(Directory& directory, std::uint64_t count, std::uint64_t space) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWaitForMemory.nanoseconds());
  for (std::uint64_t seen = 0;;) {
    const auto snapshot = directory.watch(seen, Duration::milliseconds(500));
    if (!snapshot) return tl::unexpected(snapshot.error());
    seen = snapshot->revision;
    std::vector<clover::Region> regions;
    for (const NodeRecord* node : snapshot->ready(NodeKind::kMemory)) {
      if (node->description.regions.empty() || regions.size() == count) continue;
      const RegionRecord& region = node->description.regions.front();
      regions.push_back({{node->id, remote::RegionKey(region.key), region.address},
                         space == 0 ? region.length : std::min(space, region.length)});
    }
    if (regions.size() == count) return regions;
    if (std::chrono::steady_clock::now() >= give_up) {
      return fail(fmt::format("memory-nodes = \"{}\": only {} are ready after {}; start more or ask for fewer", count,
                              regions.size(), duration_text(kWaitForMemory)));
    }
  }
}

Result<clover::ServerConfig> server_config(Directory& directory, const MetadataSettings& settings) {
  auto regions = wait_for_regions(directory, settings.memory_nodes, settings.space);
  if (!regions) return tl::unexpected(regions.error());
  auto volumes = clover::spread(*regions, static_cast<std::uint32_t>(settings.replication));
  if (!volumes) return tl::unexpected(volumes.error());
  clover::ServerConfig config;
  config.volumes = std::move(*volumes);
  config.value_bytes = static_cast<std::uint32_t>(settings.value_size);
  config.cursor_lifetime = settings.cursor_lifetime;
  if (auto sound = clover::check(config); !sound) return tl::unexpected(sound.error());
  return config;
}

void add_server(telemetry::MetricSet& set, const clover::MetadataServer& server) {
  const clover::ServerCounters& c = server.counters();
  set.gauge("clover_keys", "keys of the store", static_cast<double>(server.keys()));
  set.gauge("clover_clients", "clients with a lease on slots", static_cast<double>(server.clients()));
  set.gauge("clover_free_slots", "slots that no version uses", static_cast<double>(server.free_slots()));
  set.counter("clover_requests", "requests of clients", c.requests);
  set.counter("clover_malformed", "requests that could not be understood", c.malformed);
  set.counter("clover_refused", "requests refused", c.refused);
  set.counter("clover_lookups", "keys looked up", c.lookups);
  set.counter("clover_created", "keys created", c.created);
  set.counter("clover_links", "new versions reported", c.links);
  set.counter("clover_retired", "versions whose slots went back", c.retired);
  set.counter("clover_granted_slots", "slots given to clients", c.grants);
  set.counter("clover_expired_clients", "clients whose lease ended", c.expired_clients);
  set.counter("clover_sealed", "keys forgotten", c.sealed);
}

}  // namespace

Result<void> run_metadata(const std::string& directory, const MetadataSettings& settings) {
  StopSignals signals;
  EndpointConfig endpoint_config;
  endpoint_config.directory = directory;
  endpoint_config.description = {settings.name, NodeKind::kMetadata, 0, {}, {{"pid", std::to_string(getpid())}}};
  endpoint_config.port = settings.port;
  auto opened = Endpoint::open(endpoint_config);
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;
  auto config = server_config(endpoint.directory(), settings);
  if (!config) return tl::unexpected(config.error());

  clover::MetadataServer server(*config);
  rc::CompletionQueue* completions = endpoint.adapter().create_completion_queue(65'536);
  rc::MessageServerRc messages(endpoint.adapter(), server, *completions, kDepth);
  const rc::QueuePairConfig pair{.pd = endpoint.adapter().create_domain(),
                                 .send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = kDepth,
                                 .receive_depth = kDepth};
  const std::size_t most = std::min<std::size_t>(settings.connections, completions->depth() / (2 * kDepth));
  Acceptor acceptor(endpoint.connector(), pair, most,
                    {.on_made = [&](rc::QueuePair& made) { messages.add(made); },
                     .on_gone = [&](rc::QueuePair& gone) { messages.remove(gone); }});
  nic::Polled<rc::MessageServerRc> polled(messages);
  endpoint.loop().add(polled);
  if (auto listening = acceptor.listen(kConnectionPort); !listening) return listening;
  endpoint.on_change([&](Time now, const Snapshot& snapshot) { acceptor.drop_gone(now, snapshot); });
  NodeDescription description = endpoint_config.description;
  description.cm_port = kConnectionPort;
  description.attributes["value-size"] = std::to_string(settings.value_size);
  description.attributes[kReplicationAttribute] = std::to_string(settings.replication);
  description.attributes[kSpaceAttribute] = std::to_string(settings.space);
  description.attributes[kVolumesAttribute] = volumes_attribute(config->volumes);
  auto http =
      DaemonHttp::start(directory, settings.name, settings.http, endpoint.loop(), [&](Time, telemetry::MetricSet& set) {
        add_endpoint(set, endpoint);
        add_acceptor(set, acceptor);
        add_server(set, server);
      });
  if (!http) return tl::unexpected(http.error());
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  if (auto published = endpoint.publish(description); !published) return published;

  signals.stop_on_signal(endpoint.loop());
  spdlog::info("{}: ready at {}, {} volumes, values up to {} bytes", settings.name, endpoint.node().ip.to_string(),
               config->volumes.size(), settings.value_size);
  say_ready();
  endpoint.loop().run();
  spdlog::info("{}: ends; {}", settings.name, server.summary());
  return {};
}

}  // namespace sluice::rack
