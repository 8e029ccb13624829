#include "rack/process/daemon_http.h"

#include <spdlog/spdlog.h>

#include "base/version.h"
#include "rack/process/ask.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

using telemetry::HttpServer;
using telemetry::MetricSet;

namespace {
constexpr std::size_t kThreads = 4;
}

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
  }
  return http;
}

}  // namespace sluice::rack
