#include "rack/daemons/metadata_daemon.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "clover/metadata.h"
#include "rack/daemons/store_claim.h"
#include "rack/daemons/store_news.h"
#include "rack/daemons/store_repair.h"
#include "rack/daemons/store_story.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/memory_node.h"
#include "rack/endpoint/store_memory.h"
#include "rack/process/daemon_http.h"
#include "rack/process/metrics.h"
#include "rack/process/process.h"
#include "rc/remote_rc.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 16;  // calls at once of one client
constexpr Duration kWaitForMemory = Duration::seconds(10);

// The memory of the first `count` memory nodes, once there are so many.
Result<std::vector<clover::Home>> wait_for_memory(Directory& directory, std::uint64_t count, std::uint64_t space) {
  std::vector<clover::Home> homes;
  const auto found = watch_memory(directory, kWaitForMemory, [&](const Snapshot& snapshot) {
    homes.clear();
    for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
      const auto home = home_of(*node, space);
      if (home && homes.size() < count) homes.push_back(*home);
    }
    return homes.size() == count;
  });
  if (!found) return tl::unexpected(found.error());
  if (*found) return homes;
  return fail(fmt::format("memory-nodes = \"{}\": only {} are ready after {}; start more or ask for fewer", count,
                          homes.size(), duration_text(kWaitForMemory)));
}

// As it was when it died, or of a new store.
Result<std::unique_ptr<clover::MetadataServer>> make_server(StoreStory& story, Endpoint& endpoint,
                                                            const MetadataSettings& settings) {
  auto recalled = story.recall(settings, endpoint.directory(), kWaitForMemory);
  if (!recalled || *recalled) return recalled;
  const auto homes = wait_for_memory(endpoint.directory(), settings.memory_nodes, settings.space);
  if (!homes) return tl::unexpected(homes.error());
  if (auto unclaimed = check_unclaimed(endpoint, *homes, kWaitForMemory); !unclaimed)
    return tl::unexpected(unclaimed.error());
  return story.make(settings, *homes);
}

// What the one before has told of the store's memory stays told until this one knows better: where it does not find the store again, others are not to
// take the memory for free, nor is it itself the next time.
Result<void> keep_volumes(const std::string& directory, NodeDescription& description) {
  const auto known = DirectoryClient(RunDirectory(directory).directory_address()).nodes();
  if (!known) return tl::unexpected(known.error());
  const NodeRecord* before = known->find(description.name);
  if (before == nullptr || before->description.kind != NodeKind::kMetadata) return {};
  for (const char* name : {kVolumesAttribute, kReplicationAttribute, kSpaceAttribute}) {
    const auto told = before->description.attributes.find(name);
    if (told != before->description.attributes.end()) description.attributes.insert(*told);
  }
  return {};
}

void add_server(telemetry::MetricSet& set, const clover::MetadataServer& server) {
  const clover::ServerCounters& c = server.counters();
  set.gauge("clover_keys", "keys of the store", static_cast<double>(server.keys()));
  set.gauge("clover_clients", "clients with a lease on slots", static_cast<double>(server.clients()));
  set.gauge("clover_slots", "slots of all volumes", static_cast<double>(server.slots().capacity()));
  set.gauge("clover_free_slots", "slots that no version uses", static_cast<double>(server.free_slots()));
  set.gauge("clover_touched_slots", "slots that some version has used at some time",
            static_cast<double>(server.touched_slots()));
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
  set.counter("clover_views", "changes of the view", c.views);
  set.counter("clover_views_let_go", "views that ended early, since all clients had let go of them", c.let_go);
  set.gauge("clover_replicas_missing", "replicas that are lost, and may come back",
            static_cast<double>(server.missing()));
  set.gauge("clover_volumes_lost", "volumes whose keys are unavailable for good",
            static_cast<double>(server.lost_volumes()));
  set.gauge("clover_replicas_joining", "replicas that are being copied onto", static_cast<double>(server.joining()));
  set.counter("clover_copied", "versions copied onto replicas that came back", c.copied);
}

}  // namespace

Result<void> run_metadata(const std::string& directory, const MetadataSettings& settings) {
  StopSignals signals;
  EndpointConfig endpoint_config;
  endpoint_config.directory = directory;
  endpoint_config.description = {settings.name, NodeKind::kMetadata, 0, {}, {{"pid", std::to_string(getpid())}}};
  endpoint_config.port = settings.port;
  if (auto kept = keep_volumes(directory, endpoint_config.description); !kept) return kept;
  auto opened = Endpoint::open(endpoint_config);
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;
  StoreStory story(RunDirectory(directory).journal(settings.name));
  auto owned = make_server(story, endpoint, settings);
  if (!owned) return tl::unexpected(owned.error());
  clover::MetadataServer& server = **owned;
  if (auto begun = story.begin(endpoint.loop().now(), server); !begun) return begun;
  nic::Periodic waking(settings.cursor_lifetime / 8, [&](Time now) { server.awake(now); });
  endpoint.loop().add(waking);
  StoreNews news;
  nic::Periodic keeping(Duration::seconds(1), [&](Time now) {
    story.keep(now, server);
    const auto line = news.look(now, server);
    if (line)
      spdlog::log(line->is_good ? spdlog::level::info : spdlog::level::warn, "{}: {}", settings.name, line->text);
  });
  endpoint.loop().add(keeping);
  StoreRepair repair(endpoint, server, settings.cursor_lifetime / 8, settings.space);
  rc::CompletionQueue* completions =
      endpoint.adapter().create_completion_queue(static_cast<std::uint32_t>(settings.connections * 2 * kDepth));
  rc::MessageServerRc messages(endpoint.adapter(), server, *completions, kDepth);
  const rc::QueuePairConfig pair{.pd = endpoint.adapter().create_domain(),
                                 .send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = kDepth,
                                 .receive_depth = kDepth};
  // Tenants are let in where the store's memory is theirs to use.
  ClientsByAddress clients;
  bool is_shared = false;
  const auto domain_for = [&](Time, const rc::ConnectionEvent& event) -> std::optional<memory::PdId> {
    const auto owner = clients.owner(event.remote);
    if (owner && (is_shared || owner->empty())) return pair.pd;
    return std::nullopt;
  };
  Acceptor acceptor(endpoint.connector(), pair, settings.connections,
                    {.on_made = [&](rc::QueuePair& made) { messages.add(made); },
                     .on_gone = [&](rc::QueuePair& gone) { messages.remove(gone); },
                     .greeting = {},
                     .domain_for = domain_for});
  nic::Polled<rc::MessageServerRc> polled(messages);
  endpoint.loop().add(polled);
  const auto follow = [&](Time now, const Snapshot& snapshot) {
    acceptor.drop_gone(now, snapshot);
    clients.learn(snapshot);
    is_shared = has_shared_memory(snapshot);
    repair.set_nodes(now, snapshot);
  };
  const auto known = endpoint.directory().nodes();
  if (!known) return tl::unexpected(known.error());
  follow(endpoint.loop().now(), *known);
  if (auto listening = acceptor.listen(kConnectionPort); !listening) return listening;
  endpoint.on_change(follow);
  NodeDescription description = endpoint_config.description;
  description.cm_port = kConnectionPort;
  description.attributes["value-size"] = std::to_string(settings.value_size);
  description.attributes[kReplicationAttribute] = std::to_string(settings.replication);
  description.attributes[kSpaceAttribute] = std::to_string(settings.space);
  description.attributes[kVolumesAttribute] = volumes_attribute(server.volumes());
  auto http =
      DaemonHttp::start(directory, settings.name, settings.http, endpoint.loop(), [&](Time, telemetry::MetricSet& set) {
        add_endpoint(set, endpoint);
        add_acceptor(set, acceptor);
        add_server(set, server);
      });
  if (!http) return tl::unexpected(http.error());
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  if (auto published = endpoint.publish(description); !published) return published;
  // A memory node that had to change its key: whoever looks into the store's memory without asking it must know.
  nic::Periodic telling(Duration::milliseconds(100), [&](Time) {
    const std::string volumes = volumes_attribute(server.volumes());
    if (volumes == description.attributes[kVolumesAttribute]) return;
    description.attributes[kVolumesAttribute] = volumes;
    endpoint.publish_soon(description);  // until the directory has taken it, and without waiting for that
  });
  endpoint.loop().add(telling);

  signals.stop_on_signal(endpoint.loop());
  spdlog::info("{}: ready at {}, {} volumes, values up to {} bytes; {}", settings.name, endpoint.node().ip.to_string(),
               server.volumes().size(), settings.value_size, server.summary());
  say_ready();
  // Whoever has our name serves the store, and has it further than we.
  if (auto ran = endpoint.run(); !ran) return ran;
  spdlog::info("{}: ends; {}", settings.name, server.summary());
  return {};
}

}  // namespace sluice::rack
