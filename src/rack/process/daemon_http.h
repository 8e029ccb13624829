// Daemon HTTP: what a daemon that is no directory answers: /metrics, at a socket in the run directory and, if it is told to, at a TCP address.
//
// Life:       start() once the loop's parts are there -> destroyed before they are.
// Errors:     a TCP address that cannot be listened at is an error; the socket only a warning: the rack works without it.
// Threads:    the server's own; what is counted is asked of the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nic/poll_loop.h"
#include "telemetry/http_server.h"
#include "telemetry/metric_set.h"

namespace sluice::rack {

class DaemonHttp {
 public:
  using Collect = std::function<void(Time, telemetry::MetricSet&)>;  // called in the loop's thread

  // `tcp`: HOST:PORT; empty: none.
  static Result<std::unique_ptr<DaemonHttp>> start(const std::string& run_directory, const std::string& daemon,
                                                   const std::string& tcp, nic::PollLoop& loop, Collect collect);

  // For the node's description; empty: none. Of one that listens at every address of its machine, that by which it reaches the directory.
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<telemetry::HttpServer> socket_;
  std::unique_ptr<telemetry::HttpServer> tcp_;
  std::string address_;
};

// The scrape of this daemon; little when the loop does not answer. `look` is called in the loop's thread, and what it returns in the caller's: where
// there is much, counts are copied in the one and made text of in the other.
using Look = std::function<std::function<void(telemetry::MetricSet&)>(Time)>;
std::string scrape(const std::string& daemon, nic::PollLoop& loop, const Look& look);

}  // namespace sluice::rack
