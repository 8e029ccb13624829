#include "rack/cowbird/cowbird_daemon.h"

#include <fmt/core.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "ports/unix_socket.h"
#include "rack/cowbird/cowbird_away.h"
#include "rack/cowbird/cowbird_host.h"
#include "rack/cowbird/cowbird_offload.h"
#include "rack/cowbird/cowbird_spot.h"
#include "rack/directory/tenants.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/remote_nodes.h"
#include "rack/process/daemon_http.h"
#include "rack/process/metrics.h"
#include "rack/process/process.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 1024;  // operations at once to a memory node
constexpr std::string_view kAt = "at:";
constexpr Duration kFarewell = Duration::seconds(2);
constexpr NodeKinds kWatched{NodeKind::kMemory};

// Engines in this process.
class Spot {
 public:
  Spot(Endpoint& endpoint, const CowbirdSettings& settings)
      : loop_(endpoint.loop()),
        tenant_(tenant_of(endpoint.node().description)),
        scheduler_(std::make_unique<remote::Scheduler>()),
        nodes_(endpoint.connector(), *scheduler_, RemoteNodes::Options{.depth = kDepth}),
        coroutines_(*scheduler_),
        service_(*scheduler_, nodes_.memory(),
                 {.probe_least = settings.probe,
                  .probe_most = std::max(settings.probe, settings.idle_probe),
                  .batch_size = static_cast<std::uint32_t>(settings.batch_size),
                  .patience = settings.patience,
                  .exports = &exports_}) {
    loop_.add(nodes_);
    loop_.add(coroutines_);
  }
  Spot(const Spot&) = delete;
  Spot& operator=(const Spot&) = delete;

  CowbirdService& service() { return service_; }
  void set_nodes(Time now, const Snapshot& snapshot) {
    nodes_.set_nodes(now, snapshot);
    exports_.set(exports_of(snapshot, tenant_));
  }
  // Once all that it serves has ended, or is given up: coroutines go before what they use.
  void end() {
    nodes_.set_nodes(loop_.now(), {});
    loop_.remove(coroutines_);
    loop_.remove(nodes_);
    scheduler_.reset();
  }

 private:
  nic::PollLoop& loop_;
  std::string tenant_;  // whose token we have shown
  std::unique_ptr<remote::Scheduler> scheduler_;
  RemoteNodes nodes_;
  nic::SchedulerPoll coroutines_;
  cowbird::Exports exports_;
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

// The engine of a memory node.
class Away {
 public:
  Away(Endpoint& endpoint, const std::string& node)
      : loop_(endpoint.loop()),
        service_(loop_, endpoint.connector(), node, [&endpoint, node](const std::string& offers) -> Result<void> {
          NodeDescription description = endpoint.published();
          description.cm_port = kConnectionPort;
          description.attributes[kCowbirdAtAttribute] = node;
          description.attributes[kCowbirdOffersAttribute] = offers;
          // The directory would refuse it, and the application wait for ever.
          std::size_t said = 0;
          for (const auto& [name, value] : description.attributes) said += name.size() + value.size();
          if (!tenant_of(endpoint.node().description).empty() && said > Tenants::kMostAttributes) {
            return fail(
                fmt::format("{} offers as many applications as a tenant's client may; start another "
                            "`sluice cowbird engine` (--name, --socket) for more",
                            description.name));
          }
          endpoint.publish_soon(description);
          return {};
        }) {}
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

  Result<void> listen() { return service_.listen(kConnectionPort); }
  CowbirdService& service() { return service_; }
  void set_nodes(Time now, const Snapshot& snapshot) { service_.set_nodes(now, snapshot); }
  // What the engine is told of the end has to leave.
  void end() { loop_.turn(); }

 private:
  nic::PollLoop& loop_;
  CowbirdAway service_;
};

std::string socket_of(const std::string& directory, const CowbirdSettings& settings) {
  return settings.socket.empty() ? RunDirectory(directory).cowbird_socket() : settings.socket;
}

template <class Engine>
Result<void> serve(Endpoint& endpoint, Engine& engine, const std::string& directory, const CowbirdSettings& settings,
                   StopSignals& signals) {
  nic::PollLoop& loop = endpoint.loop();
  const std::string socket = socket_of(directory, settings);
  auto host = CowbirdHost::open(socket, loop, engine.service(), settings.instances);
  if (!host) return tl::unexpected(host.error());
  const auto set_nodes = [&](Time now, const Snapshot& snapshot) {
    engine.set_nodes(now, snapshot);
    (*host)->set_nodes(snapshot);
  };
  auto snapshot = endpoint.directory().watch(0, Duration(), kWatched);
  if (!snapshot) return tl::unexpected(snapshot.error());
  set_nodes(loop.now(), *snapshot);
  endpoint.on_change(set_nodes);
  auto http = DaemonHttp::start(directory, settings.name, settings.http, loop, [&](Time, telemetry::MetricSet& set) {
    add_endpoint(set, endpoint);
    const auto counters = (*host)->counters();
    add_cowbird(set, {(*host)->served(), counters.accepted, counters.refused, counters.broken});
    if constexpr (std::is_same_v<Engine, Spot>) add_cowbird_engines(set, (*host)->engines());
  });
  if (!http) return tl::unexpected(http.error());
  NodeDescription description = endpoint.published();
  if (!(*http)->address().empty()) description.attributes[kHttpAttribute] = (*http)->address();
  if (auto published = endpoint.publish(description); !published) return published;
  loop.add(**host);

  signals.stop_on_signal(loop);
  const std::size_t nodes = snapshot->ready(NodeKind::kMemory).size();
  spdlog::info("{}: ready at {}, {} memory node{}", settings.name, socket, nodes, nodes == 1 ? "" : "s");
  say_ready();
  auto ran = endpoint.run();

  // What is under way is finished and published; the next engine does the rest. Unless that one is there already: our addresses are its own.
  if (ran) {
    (*host)->stop();
    const Time give_up = loop.now() + kFarewell;
    while ((*host)->instances() != 0 && loop.now() < give_up) loop.turn();
  }
  const auto counters = (*host)->counters();
  spdlog::info("{}: ends; {} applications served, {} refused, {} channels broken", settings.name, counters.accepted,
               counters.refused, counters.broken);
  endpoint.on_change({});
  loop.remove(**host);
  engine.end();
  return ran;
}

// What it lacks to serve us. Empty: nothing, or it cannot be asked.
std::string complaint_about_switch(DirectoryClient& directory) {
  if (directory.get("/v1/cowbird") || !directory.nodes()) return "";
  return "the switch has no engine for us; applications wait for one: is it `sluice switch --cowbird`?";
}

// While another engine has our name: says so once, and what we would lack, then waits to take over.
class StandBy {
 public:
  StandBy(const RunDirectory& run, std::string socket, const CowbirdSettings& settings, const StopSignals& signals)
      : run_(run), socket_(std::move(socket)), name_(settings.name), engine_(settings.engine), signals_(signals) {}

  // For as long as somebody listens at our socket: who is only stopped loses the name, and still has the applications. False: told to end.
  bool wait() {
    if (!told_) {
      if (const std::string complaint = lacks(); !complaint.empty()) spdlog::warn("{}: {}", name_, complaint);
      spdlog::info("{}: {}; standing by to take over, Ctrl-C gives up", name_, who());
    }
    told_ = true;
    do {
      pollfd signal{signals_.descriptor(), POLLIN, 0};
      ended_ = poll(&signal, 1, kLook) == 1;
    } while (!ended_ && ports::is_listened_at(socket_, ports::UnixKind::kMessages));
    return !ended_;
  }
  bool ended() const { return ended_; }

 private:
  static constexpr int kLook = 100;  // milliseconds

  std::string lacks() const {
    DirectoryClient directory(run_.directory_address(), Duration{});
    if (engine_.starts_with(kAt)) {
      const auto nodes = directory.nodes();
      return nodes ? complaint_about(*nodes, engine_.substr(kAt.size())) : "";
    }
    return engine_ == "switch" ? complaint_about_switch(directory) : "";
  }
  std::string who() const {
    const auto nodes = DirectoryClient(run_.directory_address()).nodes();
    const NodeRecord* const node = nodes ? nodes->find(run_.client_name(name_)) : nullptr;
    const bool known = node != nullptr && node->description.attributes.contains("pid");
    const std::string pid = known ? node->description.attributes.at("pid") : "";
    if (!known) return "another engine of this name is on the rack";
    if (!std::filesystem::exists("/proc/" + pid))
      return fmt::format("the engine before this one, process {}, has died and is still on the rack for some seconds",
                         pid);
    return fmt::format(
        "process {} is the rack's engine of this name already (one beside it needs another --name and "
        "--socket)",
        pid);
  }

  RunDirectory run_;
  std::string socket_;
  std::string name_;
  std::string engine_;
  const StopSignals& signals_;
  bool told_ = false;
  bool ended_ = false;
};

}  // namespace

Result<void> run_cowbird_engine(const std::string& directory, const CowbirdSettings& settings) {
  StopSignals signals;
  StandBy stand_by(RunDirectory(directory), socket_of(directory, settings), settings, signals);
  EndpointConfig config;
  config.directory = directory;
  config.description = {settings.name, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  config.port = settings.port;
  config.kinds = kWatched;
  config.has_successors = true;
  config.on_taken = [&stand_by](const Error&) { return stand_by.wait(); };
  auto opened = Endpoint::open(config);
  if (stand_by.ended()) return {};
  if (!opened) return tl::unexpected(opened.error());
  Endpoint& endpoint = **opened;
  if (settings.engine == "switch") {
    if (const std::string tenant = tenant_of(endpoint.node().description); !tenant.empty()) {
      return fail(fmt::format(
          "the engine in the switch is for the rack's operator, not for tenant '{}'; leave out --engine, or "
          "say --engine at:NODE",
          tenant));
    }
    if (const std::string complaint = complaint_about_switch(endpoint.directory()); !complaint.empty())
      spdlog::warn("{}: {}", settings.name, complaint);
    Offload offload(endpoint, directory);
    return serve(endpoint, offload, directory, settings, signals);
  }
  if (settings.engine.starts_with(kAt)) {
    Away away(endpoint, settings.engine.substr(kAt.size()));
    if (auto listening = away.listen(); !listening) return listening;
    return serve(endpoint, away, directory, settings, signals);
  }
  Spot spot(endpoint, settings);
  return serve(endpoint, spot, directory, settings, signals);
}

}  // namespace sluice::rack
