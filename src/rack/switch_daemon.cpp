#include "rack/switch_daemon.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <future>
#include <random>

#include "ports/open.h"
#include "rack/directory_http.h"
#include "rack/endpoint.h"
#include "rack/membership.h"
#include "rack/sqlite_directory.h"
#include "rack/switch_ports.h"

namespace sluice::rack {
namespace {

Result<switching::SwitchConfig> machine_config(const SwitchSettings& s) {
  if (!std::has_single_bit(s.mac_slots))
    return fail(fmt::format("mac-slots = \"{}\": must be a power of two", s.mac_slots));
  if (!std::has_single_bit(s.ring))
    return fail(fmt::format("ring = \"{}\": must be a power of two", bytes_text(s.ring)));
  switching::SwitchConfig config;
  config.max_ports = s.max_ports;
  config.mac_slots = s.mac_slots;
  config.mac_age = s.mac_age;
  config.queue_bytes = s.queue;
  config.ecn_threshold_bytes = s.ecn_threshold;
  config.flood_rate = static_cast<std::uint32_t>(s.flood_rate);
  config.seed = std::random_device{}();
  if (s.router) {
    // The last address of the rack's subnet; nodes are numbered from its start.
    const wire::Ipv4Address gateway{s.subnet.value | 0xFFFE};
    config.router.mac = Subnet::mac_of(gateway);
    config.router.interfaces = {{gateway, 16}};
  }
  return config;
}

Result<void> open_all(SwitchPorts& ports, const std::vector<std::string>& listeners,
                      const std::vector<std::string>& others) {
  for (const std::string& name : listeners) {
    auto listener = ports::open_listener(name);
    if (!listener) return fail(fmt::format("listen = \"{}\": {}", name, listener.error().message));
    ports.add_listener(std::move(*listener));
  }
  for (const std::string& name : others) {
    auto port = ports::open_port(name, ports::Absent::kWait);
    if (!port) return fail(fmt::format("ports = \"{}\": {}", name, port.error().message));
    if (!ports.add_port(std::move(*port))) return fail(fmt::format("ports = \"{}\": more than max-ports", name));
  }
  return {};
}

// The switch's own state, fetched by the HTTP server's threads.
std::string ask_status(nic::PollLoop& loop, SwitchPorts& ports) {
  auto answer = std::make_shared<std::promise<std::string>>();
  auto future = answer->get_future();
  loop.post([answer, &ports](Time now) { answer->set_value(ports.status_json(now)); });
  return future.wait_for(std::chrono::seconds(2)) == std::future_status::ready ? future.get()
                                                                               : R"({"error": "the switch is busy"})";
}

}  // namespace

Result<void> run_switch(const std::string& path, const SwitchSettings& settings, const std::function<void()>& ready) {
  StopSignals signals;
  const RunDirectory run(path);
  if (auto prepared = run.prepare(); !prepared) return prepared;
  auto config = machine_config(settings);
  if (!config) return tl::unexpected(config.error());

  nic::PollLoop loop;
  SwitchPorts ports(std::move(*config), loop);
  loop.add(ports);
  const nic::Clock clock;
  auto directory =
      SqliteDirectory::open(run.directory_state(), Subnet{settings.subnet}, [&clock] { return clock.now(); });
  if (!directory) return tl::unexpected(directory.error());
  auto server = DirectoryServer::start(**directory, {run.directory_socket()});
  if (!server) return tl::unexpected(server.error());
  (*server)->serve("/v1/switch", [&] { return ask_status(loop, ports); });
  std::unique_ptr<DirectoryServer> tcp;
  if (!settings.http.empty()) {
    auto started = DirectoryServer::start(**directory, {settings.http});
    if (!started) return fail("http: " + started.error().message);
    tcp = std::move(*started);
    tcp->serve("/v1/switch", [&] { return ask_status(loop, ports); });
  }
  std::vector<std::string> listeners{fmt::format("shm:{},ring={}", run.switch_socket(), settings.ring)};
  listeners.insert(listeners.end(), settings.listen.begin(), settings.listen.end());
  if (auto opened = open_all(ports, listeners, settings.ports); !opened) return opened;

  NodeDescription description{"switch", NodeKind::kSwitch, 0, {}, {{"pid", std::to_string(getpid())}}};
  // A lease that is left is of a switch that was killed: the socket would not have been ours otherwise.
  if (auto evicted = (*directory)->evict(description.name); !evicted) return evicted;
  auto membership = Membership::join(**directory, description);
  if (!membership) return tl::unexpected(membership.error());
  if (auto published = (*membership)->publish(description); !published) return published;

  signals.stop_on_signal(loop);
  spdlog::info("switch: ready at {}", run.switch_socket());
  ready();
  loop.run();
  spdlog::info("switch: ends after {} turns, {} of them with work, {} sleeps", loop.counters().turns,
               loop.counters().busy_turns, loop.counters().sleeps);
  return {};
}

}  // namespace sluice::rack
