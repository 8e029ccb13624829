// Door: where other machines come to the rack: the directory over TLS, for those who show a certificate of the rack's authority, and frames over
// UDP from where such have come of late.
//
// Life:       constructed -> open() -> destroyed, after the loop's last turn and before the ports.
// Errors:     of open(), with what to do. Who is kept out is counted.
// Threads:    open() the loop's owner's; counters any.
// Source:     docs/security.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/poll_loop.h"
#include "rack/directory/directory_http.h"
#include "rack/switch/machine_gate.h"
#include "rack/switch/switch_ports.h"

namespace sluice::rack {

class Door {
 public:
  // `tls`: the authority's folder.
  Door(std::string tls, const nic::PollLoop& loop) : tls_(std::move(tls)), loop_(loop) {}
  ~Door();

  // At HOST:PORT, TCP and UDP.
  Result<void> open(const std::string& where, DirectoryStore& directory, SwitchPorts& ports,
                    const std::function<void(telemetry::HttpServer&)>& add_more);

  // REQUIRES: open() succeeded.
  const std::string& address() const { return server_->address(); }
  std::uint64_t handshakes_failed() const;
  std::uint64_t revoked() const { return revoked_; }

 private:
  // Called in the server's threads.
  Result<void> admit(const httplib::Request& request);

  std::string tls_;
  std::string authority_;  // the certificate by which machines are told
  const nic::PollLoop& loop_;
  MachineGate gate_;
  std::atomic<std::uint64_t> revoked_{0};
  std::atomic<const DirectoryServer*> opened_{nullptr};
  std::unique_ptr<DirectoryServer> server_;  // goes first
};

}  // namespace sluice::rack
