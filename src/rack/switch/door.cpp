#include "rack/switch/door.h"

#include <fmt/core.h>
#include <httplib.h>
#include <spdlog/spdlog.h>

#include "ports/spec.h"
#include "ports/udp_port.h"
#include "rack/directory/authority.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {

Door::~Door() { opened_ = nullptr; }

Result<void> Door::open(const std::string& where, DirectoryStore& directory, SwitchPorts& ports,
                        const std::function<void(telemetry::HttpServer&)>& add_more) {
  if (!Authority::is_there(tls_))
    return fail(fmt::format("{} has no authority; `sluice rack init ADDRESS` makes one", tls_));
  const auto parsed = ports::parse_host_port(where);
  if (!parsed) return tl::unexpected(parsed.error());
  // It may be another name that machines use, through a router; what `sluice rack invite` writes is looked at there.
  if (auto named = Authority::check_host(tls_, parsed->host);
      !named && parsed->host != "0.0.0.0" && parsed->host != "::")
    spdlog::warn("switch: {}", named.error().message);
  auto authority = read_whole_file(Authority::server_files(tls_).authority);
  if (!authority) return tl::unexpected(authority.error());
  authority_ = std::move(*authority);
  auto server =
      DirectoryServer::start(directory, {where, Authority::server_files(tls_)}, [&](telemetry::HttpServer& http) {
        http.admit([this](const httplib::Request& request) { return admit(request); });
        add_more(http);
      });
  if (!server) return tl::unexpected(server.error());
  const int port =
      telemetry::HttpAddress{server.value()->address()}.host_and_port().second;  // port 0 was any that is free
  auto listener = ports::UdpListener::listen({parsed->host, static_cast<std::uint16_t>(port)});
  if (!listener) return tl::unexpected(listener.error());
  (*listener)->admit_only([this](Time now, const std::string& host) { return gate_.admits(now, host); });
  ports.add_listener(std::move(*listener));
  server_ = std::move(*server);
  opened_ = server_.get();
  return {};
}

std::uint64_t Door::handshakes_failed() const {
  const DirectoryServer* const server = opened_;
  return server == nullptr ? 0 : server->handshakes_failed();
}

Result<void> Door::admit(const httplib::Request& request) {
  const telemetry::TlsPeer peer = telemetry::peer_of(request.ssl);
  // Who was shut out by it cannot be told any more.
  if (!Authority::is_still(tls_, authority_)) {
    ++revoked_;
    gate_.forget(request.remote_addr);
    return fail("the rack's authority has been removed or made anew; its switch lets nobody in until it is restarted");
  }
  if (Authority::is_revoked(tls_, peer.serial)) {
    ++revoked_;
    gate_.forget(request.remote_addr);
    return fail(fmt::format("the invitation of machine '{}' was revoked; ask for a new one", peer.name));
  }
  gate_.seen(loop_.now(), request.remote_addr);
  return {};
}

}  // namespace sluice::rack
