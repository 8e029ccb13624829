#include "rack/cowbird_daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

#include "rack/cowbird_host.h"
#include "rack/cowbird_offload.h"
#include "rack/cowbird_spot.h"
#include "rack/daemon_http.h"
#include "rack/endpoint.h"
#include "rack/metrics.h"
#include "rack/process.h"
#include "rack/remote_nodes.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 1024;  // operations at once to a memory node
constexpr Duration kFarewell = Duration::seconds(2);

void add_host(telemetry::MetricSet& set, const CowbirdHost& host) {
  set.gauge("cowbird_applications", "applications that the engine serves", static_cast<double>(host.instances()));
  set.counter("cowbird_applications_accepted", "applications taken", host.counters().accepted);
  set.counter("cowbird_applications_refused", "applications refused", host.counters().refused);
  set.counter("cowbird_channels_broken", "channels whose rings made no sense", host.counters().broken);
}

// Engines in this process.
class Spot {
 public:
  Spot(Endpoint& endpoint, const CowbirdSettings& settings)
      : loop_(endpoint.loop()),
        scheduler_(std::make_unique<remote::Scheduler>()),
        nodes_(endpoint.connector(), *scheduler_, RemoteNodes::Options{.depth = kDepth}),
        coroutines_(*scheduler_),
        service_(*scheduler_, nodes_.memory(),
                 {.probe_least = settings.probe,
                  .probe_most = std::max(settings.probe, settings.idle_probe),
                  .batch_size = static_cast<std::uint32_t>(settings.batch_size),
                  .patience = settings.patience}) {
    loop_.add(nodes_);
    loop_.add(coroutines_);
  }
  Spot(const Spot&) = delete;
  Spot& operator=(const Spot&) = delete;

  CowbirdService& service() { return service_; }
  void set_nodes(Time now, const Snapshot& snapshot) { nodes_.set_nodes(now, snapshot); }
  // Once all that it serves has ended, or is given up: coroutines go before what they use.
  void end() {
    nodes_.set_nodes(loop_.now(), {});
    loop_.remove(coroutines_);
    loop_.remove(nodes_);
    scheduler_.reset();
  }

 private:
  nic::PollLoop& loop_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  RemoteNodes nodes_;
  nic::SchedulerPoll coroutines_;
  CowbirdSpot service_;
};

// The engine in the switch.
class Offload {
 public:
  Offload(Endpoint& endpoint, const std::string& directory)
      : loop_(endpoint.loop()), service_(endpoint, RunDirectory(directory).directory_address()) {
    loop_.add(service_);
  }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  CowbirdService& service() { return service_; }
  void set_nodes(Time now, const Snapshot& snapshot) { service_.set_nodes(now, snapshot); }
  void end() { loop_.remove(service_); }

 private:
  nic::PollLoop& loop_;
  CowbirdOffload service_;
};

template <class Engine>
Result<void> serve(Endpoint& endpoint, Engine& engine, const std::string& directory, const CowbirdSettings& settings,
                   StopSignals& signals) {
  nic::PollLoop& loop = endpoint.loop();
  const std::string socket = settings.socket.empty() ? RunDirectory(directory).cowbird_socket() : settings.socket;
  auto host = CowbirdHost::open(socket, loop, engine.service(), settings.instances);
  if (!host) return tl::unexpected(host.error());
  const auto set_nodes = [&](Time now, const Snapshot& snapshot) {
    engine.set_nodes(now, snapshot);
    (*host)->set_nodes(snapshot);
  };
  auto snapshot = endpoint.directory().nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  set_nodes(loop.now(), *snapshot);
  endpoint.on_change(set_nodes);
  auto http = DaemonHttp::start(directory, settings.name, settings.http, loop, [&](Time, telemetry::MetricSet& set) {
    add_endpoint(set, endpoint);
    add_host(set, **host);
  });
  if (!http) return tl::unexpected(http.error());
  NodeDescription description = endpoint.node().description;
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  if (auto published = endpoint.publish(description); !published) return published;
  loop.add(**host);

  signals.stop_on_signal(loop);
  spdlog::info("{}: ready at {}, {} memory nodes", settings.name, socket, snapshot->ready(NodeKind::kMemory).size());
  say_ready();
  loop.run();

  // What is under way is finished and published; the next engine does the rest.
  (*host)->stop();
  const Time give_up = loop.now() + kFarewell;
  while ((*host)->instances() != 0 && loop.now() < give_up) loop.turn();
  const auto& counters = (*host)->counters();
  spdlog::info("{}: ends; {} applications served, {} refused, {} channels broken", settings.name, counters.accepted,
               counters.refused, counters.broken);
  endpoint.on_change({});
  loop.remove(**host);
  engine.end();
  return {};
}

}  // namespace

Result<void> run_cowbird_engine(const std::string& directory, const CowbirdSettings& settings) {
  StopSignals signals;
  EndpointConfig config;
  config.directory = directory;
  config.description = {settings.name, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  config.port = settings.port;
  auto opened = Endpoint::open(config);
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;
  if (settings.engine == "switch") {
    Offload offload(endpoint, directory);
    return serve(endpoint, offload, directory, settings, signals);
  }
  Spot spot(endpoint, settings);
  return serve(endpoint, spot, directory, settings, signals);
}

}  // namespace sluice::rack
