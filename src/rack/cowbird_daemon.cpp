#include "rack/cowbird_daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "rack/cowbird_host.h"
#include "rack/endpoint.h"
#include "rack/process.h"
#include "rack/remote_nodes.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 1024;  // operations at once to a memory node
constexpr Duration kFarewell = Duration::seconds(2);

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
  nic::PollLoop& loop = endpoint.loop();

  auto scheduler = std::make_unique<remote::Scheduler>();
  auto nodes = std::make_unique<RemoteNodes>(endpoint.connector(), *scheduler, RemoteNodes::Options{.depth = kDepth});
  nic::SchedulerPoll coroutines(*scheduler);
  const std::string socket = settings.socket.empty() ? RunDirectory(directory).cowbird_socket() : settings.socket;
  auto host = CowbirdHost::open(socket, loop, *scheduler, nodes->memory(),
                                {.engine = {.probe_least = settings.probe,
                                            .probe_most = std::max(settings.probe, settings.idle_probe),
                                            .batch_size = static_cast<std::uint32_t>(settings.batch_size),
                                            .patience = settings.patience},
                                 .instances = settings.instances});
  if (!host) return tl::unexpected(host.error());
  const auto set_nodes = [&](Time now, const Snapshot& snapshot) {
    nodes->set_nodes(now, snapshot);
    (*host)->set_nodes(snapshot);
  };
  auto snapshot = endpoint.directory().nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  set_nodes(loop.now(), *snapshot);
  endpoint.on_change(set_nodes);
  if (auto published = endpoint.publish(config.description); !published) return published;
  loop.add(*nodes);
  loop.add(coroutines);
  loop.add(**host);

  signals.stop_on_signal(loop);
  spdlog::info("{}: ready at {}, {} memory nodes", settings.name, socket, nodes->nodes());
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
  nodes->set_nodes(loop.now(), {});
  loop.remove(**host);
  loop.remove(coroutines);
  loop.remove(*nodes);
  scheduler.reset();  // coroutines before what they use
  return {};
}

}  // namespace sluice::rack
