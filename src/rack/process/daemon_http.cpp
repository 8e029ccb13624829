#include "rack/process/daemon_http.h"

#include <fmt/core.h>
#include <netdb.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string_view>

#include "base/version.h"
#include "ports/descriptor.h"
#include "rack/process/ask.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

using telemetry::HttpServer;
using telemetry::MetricSet;

namespace {

constexpr std::size_t kThreads = 4;

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// This machine's address on the way to `other`; empty: there is no way, or it is this machine.
std::string own_address_towards(const telemetry::HttpAddress& other) {
  if (other.is_unix()) return {};
  const auto [host, port] = other.host_and_port();
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;  // connecting it sends nothing
  addrinfo* all = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &all) != 0) return {};
  const std::unique_ptr<addrinfo, FreeAddresses> found(all);
  const ports::Descriptor probe(socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text{};
  if (probe.get() < 0 || connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(probe.get(), address, &size) != 0 ||
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return own.ss_family == AF_INET6 ? fmt::format("[{}]", text.data()) : std::string(text.data());
}

// What others can ask for: nobody reaches 0.0.0.0.
std::string reached_at(const std::string& listening, const telemetry::HttpAddress& directory) {
  for (const std::string_view any : {"0.0.0.0:", "[::]:"}) {
    if (!listening.starts_with(any)) continue;
    const std::string own = own_address_towards(directory);
    if (!own.empty()) return own + ":" + listening.substr(any.size());
  }
  return listening;
}

}  // namespace

std::string scrape(const std::string& daemon, nic::PollLoop& loop, const Look& look) {
  using Tell = std::function<void(MetricSet&)>;
  const auto tell = ask<Tell>(loop, [look](Time now) -> Result<Tell> { return look(now); });
  MetricSet set;
  if (tell) (*tell)(set);
  set.gauge("daemon_responsive", "0 when the daemon's loop did not answer this scrape in time", tell ? 1 : 0);
  set.process(kVersion, daemon);
  return set.text();
}

Result<std::unique_ptr<DaemonHttp>> DaemonHttp::start(const std::string& run_directory, const std::string& daemon,
                                                      const std::string& tcp, nic::PollLoop& loop, Collect collect) {
  auto http = std::make_unique<DaemonHttp>();
  const Look look = [shared = std::make_shared<Collect>(std::move(collect))](Time now) {
    auto made = std::make_shared<MetricSet>();
    (*shared)(now, *made);
    return [made](MetricSet& set) { set = std::move(*made); };
  };
  const auto routes = [&](HttpServer& server) {
    server.serve("/metrics", MetricSet::kContentType, [&loop, look, daemon] { return scrape(daemon, loop, look); });
  };
  auto socket = HttpServer::start({RunDirectory(run_directory).http_socket(daemon)}, routes, kThreads);
  if (socket) {
    http->socket_ = std::move(*socket);
  } else {
    spdlog::warn("{}: no metrics in the run directory: {}", daemon, socket.error().message);
  }
  if (!tcp.empty()) {
    auto listening = HttpServer::start({tcp}, routes, kThreads);
    if (!listening) return fail("http: " + listening.error().message);
    http->tcp_ = std::move(*listening);
    http->address_ = reached_at(http->tcp_->address(), RunDirectory(run_directory).directory_address());
  }
  return http;
}

}  // namespace sluice::rack
