#include "rack/switch/switch_daemon.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "ports/open.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/etcd_directory.h"
#include "rack/directory/lease_clock.h"
#include "rack/directory/membership.h"
#include "rack/directory/sqlite_directory.h"
#include "rack/endpoint/endpoint.h"
#include "rack/process/daemon_http.h"
#include "rack/settings/private_file.h"
#include "rack/switch/box_agent.h"
#include "rack/switch/box_stage.h"
#include "rack/switch/capture.h"
#include "rack/switch/cowbird_stage.h"
#include "rack/switch/door.h"
#include "rack/switch/edm_stage.h"
#include "rack/switch/sharded_box.h"
#include "rack/switch/switch_http.h"
#include "rack/switch/switch_ports.h"
#include "switching/stage_chain.h"

namespace sluice::rack {
namespace {

constexpr const char* kBoxAttribute = "box";

switching::SwitchConfig machine_config(const SwitchSettings& s) {
  switching::SwitchConfig config;
  config.max_ports = s.max_ports;
  config.mac_slots = s.mac_slots;
  config.mac_age = s.mac_age;
  config.queue_bytes = s.queue;
  config.ecn_threshold_bytes = s.ecn_threshold;
  config.flood_rate = static_cast<std::uint32_t>(s.flood_rate);
  config.seed = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  if (s.router) {
    // The last address of the rack's subnet; nodes are numbered from its start.
    const wire::Ipv4Address gateway{s.subnet.value | 0xFFFE};
    config.router.mac = Subnet::mac_of(gateway);
    config.router.interfaces = {{gateway, 16}};
  }
  return config;
}

std::string ledger_file(const SwitchSettings& settings, const RunDirectory& run) {
  return settings.tenants.empty() ? run.tenants_file() : settings.tenants;
}

// Nobody is to find out too late that the file he named is not the one that is read.
void warn_of_open_doors(const SwitchSettings& settings) {
  const bool is_there = access(settings.tenants.c_str(), F_OK) == 0;
  if (settings.tenants.empty() || !settings.etcd.empty() || is_there) return;
  spdlog::warn("switch: {} is not there: the rack has no tenants, and whoever can connect to it may do everything",
               std::filesystem::absolute(settings.tenants).string());
}

Result<std::unique_ptr<DirectoryStore>> open_directory(const SwitchSettings& settings, const RunDirectory& run,
                                                       LeaseClock& clock) {
  const Subnet subnet{settings.subnet};
  if (settings.etcd.empty()) {
    const std::string ledger = ledger_file(settings, run);
    auto opened = SqliteDirectory::open(
        run.directory_state(), subnet, [&clock] { return clock.now(); }, ledger);
    if (!opened) return tl::unexpected(opened.error());
    if (auto sound = (*opened)->tenants().check(); !sound) return fail(ledger + ": " + sound.error().message);
    return std::unique_ptr<DirectoryStore>(std::move(*opened));
  }
  EtcdSettings etcd{.addresses = settings.etcd, .prefix = settings.etcd_prefix, .user = settings.etcd_user};
  if (!settings.etcd_tls.empty()) {
    etcd.authority = settings.etcd_tls + "/authority.pem";
    if (access((settings.etcd_tls + "/certificate.pem").c_str(), F_OK) == 0) {
      etcd.certificate = settings.etcd_tls + "/certificate.pem";
      etcd.key = settings.etcd_tls + "/key.pem";
    }
  }
  if (!settings.etcd_password.empty()) {
    auto text = read_whole_file(settings.etcd_password);
    if (!text) return fail("etcd-password: " + text.error().message);
    etcd.password = text->substr(0, text->find('\n'));
  }
  auto opened = EtcdDirectory::open(std::move(etcd), subnet);
  if (!opened) return tl::unexpected(opened.error());
  if (auto sound = (*opened)->tenants().check(); !sound) return tl::unexpected(sound.error());
  return std::unique_ptr<DirectoryStore>(std::move(*opened));
}

Result<void> open_all(SwitchPorts& ports, const std::vector<std::string>& listeners,
                      const std::vector<std::string>& others) {
  for (const std::string& name : listeners) {
    auto listener = ports::open_listener(name);
    if (!listener) return fail(fmt::format("listen = \"{}\": {}", name, listener.error().message));
    ports.add_listener(std::move(*listener));
  }
  std::set<std::string> interfaces;
  for (const std::string& name : others) {
    const auto spec = ports::parse_port_spec(name);
    const std::string interface = spec ? ports::interface_of(*spec) : std::string();
    if (!interface.empty() && !interfaces.insert(interface).second)
      return fail(fmt::format("ports = \"{}\": another port is on {} already, and each frame would come in twice", name,
                              interface));
    auto port = ports::open_port(name, ports::Absent::kWait);
    if (!port) return fail(fmt::format("ports = \"{}\": {}", name, port.error().message));
    if (!ports.add_port(std::move(*port))) return fail(fmt::format("ports = \"{}\": more than max-ports", name));
  }
  return {};
}

// Whether a switch with a box that steers was here before and did not end by `sluice rack down`, which removes the directory's state.
Result<bool> steering_box_was_lost(Directory& directory) {
  const auto snapshot = directory.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  const NodeRecord* const before = snapshot->find("switch");
  return before != nullptr && before->description.attributes.contains(kBoxAttribute) &&
         before->description.attributes.at(kBoxAttribute) != "watch";
}

// One box in the switch's own thread, or several in threads of their own.
struct Boxes {
  std::unique_ptr<BoxStage> one;
  std::unique_ptr<ShardedBox> several;

  BoxControl* control() const {
    return several ? static_cast<BoxControl*>(several.get()) : static_cast<BoxControl*>(one.get());
  }
  switching::Stage* stage() const {
    return several ? static_cast<switching::Stage*>(several.get()) : static_cast<switching::Stage*>(one.get());
  }
};

// Cowbird's engine, which takes what is its own before the box, if there is one, sees the rest.
struct Cowbird {
  std::unique_ptr<CowbirdStage> stage;
  std::unique_ptr<switching::StageChain> chain;

  switching::Stage* first() const {
    return chain ? static_cast<switching::Stage*>(chain.get()) : static_cast<switching::Stage*>(stage.get());
  }
};

Cowbird make_cowbird(const SwitchSettings& settings, const Boxes& boxes, SwitchPorts& ports) {
  Cowbird cowbird;
  if (!settings.cowbird) return cowbird;
  cowbird::SwitchEngineConfig config;
  config.probe_slot = config.probe_least = settings.cowbird_probe;
  config.probe_most = std::max(settings.cowbird_probe, settings.cowbird_idle_probe);
  config.patience = settings.cowbird_patience;
  const std::uint64_t seed = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  // The last address but one of the rack's subnet; the last is the router's.
  const wire::Ipv4Address address{settings.subnet.value | 0xFFFD};
  cowbird.stage = std::make_unique<CowbirdStage>(Subnet::mac_of(address), wire::Gid::from(address), config, seed);
  if (boxes.stage() != nullptr) {
    cowbird.chain = std::make_unique<switching::StageChain>(*cowbird.stage, *boxes.stage());
    ports.machine().set_stage(cowbird.chain.get());
  } else {
    ports.machine().set_stage(cowbird.stage.get());
  }
  return cowbird;
}

// EDM's grants, behind all others: what they change is what is granted.
struct Edm {
  std::unique_ptr<EdmStage> stage;
  std::unique_ptr<switching::StageChain> chain;
};

Edm make_edm(const SwitchSettings& settings, switching::Stage* before, SwitchPorts& ports) {
  Edm edm;
  if (!settings.edm) return edm;
  edm.stage = std::make_unique<EdmStage>(EdmStageSettings{
      .bits_per_second = settings.edm_rate * 1'000'000,
      .chunk = settings.edm_chunk,
      .hold = settings.edm_hold,
      .policy = settings.edm_policy == "fcfs" ? edm::Policy::kFirstCome : edm::Policy::kShortestRemaining,
      .router = machine_config(settings).router.mac});
  if (before != nullptr) edm.chain = std::make_unique<switching::StageChain>(*before, *edm.stage);
  ports.machine().set_stage(edm.chain ? static_cast<switching::Stage*>(edm.chain.get()) : edm.stage.get());
  return edm;
}

Result<Boxes> make_boxes(const BoxSettings& settings, const RunDirectory& run, Directory& directory,
                         nic::PollLoop& loop, SwitchPorts& ports) {
  Boxes boxes;
  if (!settings.wanted()) return boxes;
  auto lost = steering_box_was_lost(directory);
  if (!lost) return tl::unexpected(lost.error());
  if (*lost)
    spdlog::warn("box: one before this was lost: connections from before are shut out for {}",
                 duration_text(settings.fence));
  if (settings.cores == 1) {
    boxes.one = std::make_unique<BoxStage>(settings, *lost ? loop.now() + settings.fence : Time());
    ports.machine().set_stage(boxes.one.get());
    return boxes;
  }
  auto several = ShardedBox::start(run.path(), settings, *lost ? settings.fence : Duration(), loop, ports.machine());
  if (!several) return tl::unexpected(several.error());
  boxes.several = std::move(*several);
  ports.machine().set_stage(boxes.several.get());
  return boxes;
}

Result<std::unique_ptr<Membership>> join_as_switch(const SwitchSettings& settings, const RunDirectory& run,
                                                   DirectoryStore& directory, const NodeDescription& description,
                                                   std::function<void()> on_superseded) {
  if (settings.etcd.empty()) {
    // A lease that is left is of a switch that was killed: the socket would not have been ours otherwise.
    if (auto evicted = directory.evict(description.name); !evicted) return tl::unexpected(evicted.error());
    return Membership::join(directory, description);
  }
  // Here it may be of a switch elsewhere, which lives as long as it renews its lease.
  MembershipConfig config;
  config.lease_file = run.lease_file("switch-in-etcd");
  config.on_superseded = std::move(on_superseded);
  auto joined = Membership::join(directory, description, std::move(config));
  if (!joined)
    return fail(fmt::format("{}; is there a switch with the etcd-prefix \"{}\" already?", joined.error().message,
                            settings.etcd_prefix));
  return joined;
}

}  // namespace

Result<void> run_switch(const std::string& path, const SwitchSettings& settings, const std::function<void()>& ready) {
  StopSignals signals;
  const RunDirectory run(path);
  if (auto prepared = run.prepare(); !prepared) return prepared;
  run.shield();
  if (auto sound = settings.check(); !sound) return sound;
  // Whatever starts here would go to that rack, and nothing to this switch.
  if (run.is_joined())
    return fail(
        fmt::format("{} has joined the rack at {}; run a switch in another run directory, with --dir, or `sluice "
                    "rack leave` first",
                    run.path(), run.directory_address().text));
  const auto alone = RunLock::of_switch(run);
  if (!alone) return tl::unexpected(alone.error());
  nic::PollLoop loop;
  SwitchPorts ports(machine_config(settings), loop);
  loop.add(ports);
  const nic::Clock real_clock;
  LeaseClock clock([&real_clock] { return real_clock.now(); });
  std::optional<RunLock> ledger_alone;
  if (settings.etcd.empty()) {
    auto taken = RunLock::of_tenants(ledger_file(settings, run));
    if (!taken) return tl::unexpected(taken.error());
    ledger_alone.emplace(std::move(*taken));
  }
  warn_of_open_doors(settings);
  auto directory = open_directory(settings, run, clock);
  if (!directory) return tl::unexpected(directory.error());
  auto boxes = make_boxes(settings.box, run, **directory, loop, ports);
  if (!boxes) return tl::unexpected(boxes.error());
  BoxControl* const box = boxes->control();
  const Cowbird cowbird = make_cowbird(settings, *boxes, ports);
  const Edm edm = make_edm(settings, cowbird.stage ? cowbird.first() : boxes->stage(), ports);
  // What servers ask until they end.
  Captures captures(loop, ports.machine());
  PortLabels port_labels;
  std::unique_ptr<Door> door;
  if (!settings.serve.empty()) door = std::make_unique<Door>(settings.tls.empty() ? run.tls() : settings.tls, loop);
  const SwitchParts parts{
      run, loop, ports, captures, **directory, port_labels, box, cowbird.stage.get(), edm.stage.get(), door.get()};
  const auto add_more = [&parts](telemetry::HttpServer& server) { add_switch_routes(server, parts); };
  auto server = DirectoryServer::start(**directory, {run.directory_socket()}, add_more);
  if (!server) return tl::unexpected(server.error());
  std::unique_ptr<DirectoryServer> tcp;
  if (!settings.http.empty()) {
    auto started = DirectoryServer::start(**directory, {settings.http}, add_more);
    if (!started) return fail("http: " + started.error().message);
    tcp = std::move(*started);
  }
  if (door) {
    if (auto opened = door->open(settings.serve, **directory, ports, add_more); !opened)
      return fail("serve: " + opened.error().message);
  }
  std::vector<std::string> listeners{fmt::format("shm:{},ring={}", run.switch_socket(), settings.ring)};
  listeners.insert(listeners.end(), settings.listen.begin(), settings.listen.end());
  if (auto opened = open_all(ports, listeners, settings.ports); !opened) return opened;

  NodeDescription description{"switch", NodeKind::kSwitch, 0, {}, {{"pid", std::to_string(getpid())}}};
  if (box) description.attributes[kBoxAttribute] = settings.box.box;
  if (tcp) description.attributes[kHttpAttribute] = tcp->address();
  if (door) description.attributes["serve"] = door->address();
  bool is_superseded = false;  // the loop's thread
  auto membership = join_as_switch(settings, run, **directory, description, [&loop, &is_superseded] {
    loop.post([&loop, &is_superseded](Time) {
      is_superseded = true;
      loop.stop();
    });
  });
  if (!membership) return tl::unexpected(membership.error());
  // What had this name was the box of a switch that is no more.
  if (auto evicted = (*directory)->evict(BoxAgent::kName); !evicted) return evicted;
  if (auto published = (*membership)->publish(description); !published) return published;

  signals.stop_on_signal(loop);
  spdlog::info("switch: ready at {}", run.switch_socket());
  if (door) spdlog::info("switch: machines join at {}", door->address());
  if (tcp) spdlog::info("switch: the live view is at http://{}/", tcp->address());
  ready();
  const auto agent = box ? std::make_unique<BoxAgent>(path, loop, *box, settings.box.flight) : nullptr;
  loop.run();
  spdlog::info("switch: ends after {} turns, {} of them with work, {} sleeps", loop.counters().turns,
               loop.counters().busy_turns, loop.counters().sleeps);
  if (is_superseded)
    return fail(
        fmt::format("stopped for longer than its lease, and another switch serves the etcd-prefix \"{}\" now; this one "
                    "ends, and can take its place again once that one has ended",
                    settings.etcd_prefix));
  return {};
}

}  // namespace sluice::rack
