#include "rack/daemons/host_daemon.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "ports/host_directory.h"
#include "ports/open.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/membership.h"
#include "rack/endpoint/endpoint.h"
#include "rack/process/process.h"
#include "rack/settings/names.h"
#include "rack/settings/run_directory.h"
#include "rack/switch/switch_ports.h"
#include "switching/host_stage.h"

namespace sluice::rack {
namespace {

constexpr Duration kGrace = Duration::seconds(2);
constexpr Duration kLook = Duration::milliseconds(500);

std::string address_file(const std::string& host_directory) { return host_directory + "/address"; }

Result<void> write_address(const std::string& host_directory, const HostAddress& address) {
  std::ofstream file(address_file(host_directory));
  file << address.ip.to_string() << ' ' << address.mac.to_string() << '\n' << address.port << '\n';
  file.close();
  return file ? Result<void>() : fail(fmt::format("cannot write {}", address_file(host_directory)));
}

// Ends the loop when nobody has used the host for a while; from then on nobody can come before we are gone.
class LastOneOut final {
 public:
  LastOneOut(nic::PollLoop& loop, const ports::HostDirectory& host)
      : loop_(loop), host_(host), look_(kLook, [this](Time now) { look(now); }) {
    loop_.add(look_);
  }

 private:
  void look(Time now) {
    if (host_.has_users()) {
      idle_since_ = Time::never();
    } else if (idle_since_ == Time::never()) {
      idle_since_ = now;
    } else if (now - idle_since_ >= kGrace) {
      leave();
    }
  }
  void leave() {
    alone_ = host_.lock();
    if (!host_.has_users()) {
      host_.remove();
      return loop_.stop();
    }
    alone_.close();
    idle_since_ = Time::never();
  }

  nic::PollLoop& loop_;
  const ports::HostDirectory& host_;
  nic::Periodic look_;
  Time idle_since_ = Time::never();
  ports::Descriptor alone_;
};

// The address given, or the one that the rack gives this name.
Result<HostAddress> find_address(const HostSettings& settings, const RunDirectory& run, DirectoryClient& directory,
                                 std::unique_ptr<Membership>& membership) {
  HostAddress address{settings.ip, {}, settings.port.empty() ? run.switch_port() : settings.port};
  if (!settings.mac.empty()) address.mac = wire::MacAddress::parse(settings.mac).value();
  if (settings.port.empty()) {
    NodeDescription description;
    description.name = run.client_name(settings.name);
    description.attributes = {{"pid", std::to_string(getpid())}, {"shared", "true"}};
    auto joined = Membership::join(directory, description);
    if (!joined) return tl::unexpected(joined.error());
    membership = std::move(*joined);
    if (auto published = membership->publish(description); !published) return tl::unexpected(published.error());
    if (address.ip == wire::Ipv4Address{}) address.ip = membership->node().ip;
    if (settings.mac.empty()) address.mac = membership->node().mac;
  }
  if (address.mac == wire::MacAddress{}) address.mac = Subnet::mac_of(address.ip);
  return address;
}

switching::SwitchConfig machine_config() {
  switching::SwitchConfig config;
  config.seed = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  return config;
}

}  // namespace

void HostSettings::declare(Schema& s) {
  s.text("name", name, "name of the host on the rack", "a name")
      .text("port", port, "where frames go instead of to the switch of the run directory; needs --ip",
            "a port such as udp:HOST:PORT or packet:INTERFACE")
      .ipv4("ip", ip, "address of the NIC; without, the rack gives one")
      .text("mac", mac, "MAC of the NIC", "a MAC such as 02:00:0a:4d:00:09");
}

Result<void> HostSettings::check() const {
  if (auto sound = check_name("--name:", name); !sound) return sound;
  if (const auto parsed = wire::MacAddress::parse(mac); !mac.empty() && !parsed)
    return fail(fmt::format("--mac = \"{}\": {}", mac, parsed.error().message));
  if (!port.empty() && ip == wire::Ipv4Address{})
    return fail("--port needs --ip: an address that nobody else on that network has");
  return {};
}

Result<HostAddress> read_host_address(const std::string& host_directory) {
  std::ifstream file(address_file(host_directory));
  std::string ip_text;
  std::string mac_text;
  std::string port;
  file >> ip_text >> mac_text >> std::ws;
  std::getline(file, port);
  const auto ip = wire::Ipv4Address::parse(ip_text);
  const auto mac = wire::MacAddress::parse(mac_text);
  if (!ip || !mac) return fail(fmt::format("{}: no addresses", address_file(host_directory)));
  return HostAddress{*ip, *mac, port};
}

Result<void> run_host(const std::string& path, const HostSettings& settings) {
  if (auto sound = settings.check(); !sound) return sound;
  StopSignals signals;
  const RunDirectory run(path);
  if (auto prepared = run.prepare(); !prepared) return prepared;
  run.shield();
  const ports::HostDirectory host(run.host(settings.name));
  if (auto prepared = host.prepare(); !prepared) return prepared;

  DirectoryClient directory(run.directory_address());
  std::unique_ptr<Membership> membership;
  const auto address = find_address(settings, run, directory, membership);
  if (!address) return tl::unexpected(address.error());

  nic::PollLoop loop;
  const LastOneOut last(loop, host);
  SwitchPorts ports(machine_config(), loop);
  loop.add(ports);
  switching::HostStage stage(address->mac, [&host](std::uint32_t service) { return host.listener(service); });
  ports.machine().set_stage(&stage);
  auto port = ports::open_port(address->port);
  if (!port) return fail(fmt::format("{}: {}", address->port, port.error().message));
  if (!ports.add_port(std::move(*port))) return fail("no room for the port");
  auto listener = ports::open_listener("shm:" + host.socket());
  if (!listener) return tl::unexpected(listener.error());
  ports.add_listener(std::move(*listener));
  if (auto written = write_address(run.host(settings.name), *address); !written) return written;

  signals.stop_on_signal(loop);
  spdlog::info("host {}: ready, {} ({}) on {}", settings.name, address->ip.to_string(), address->mac.to_string(),
               address->port);
  say_ready();
  loop.run();
  std::error_code ignored;
  std::filesystem::remove(run.pid_file("host-" + settings.name), ignored);
  spdlog::info("host {}: ends", settings.name);
  return {};
}

}  // namespace sluice::rack
