// A host's NIC as a process: one address on the rack, or on a network, that several programs share. `sluice run --host` starts it.
//
// Life:       run_host(): until nobody has used it for kGrace, or SIGTERM.
// Threads:    one turns the frames; the membership has its own.
// Source:     switching/host_stage.h: which frames go to whom; ports/host_directory.h: who is there.
#pragma once

#include <string>

#include "base/result.h"
#include "rack/settings/schema.h"

namespace sluice::rack {

// [host]
struct HostSettings {
  std::string name = "host";
  std::string port;  // empty: the run directory's switch
  wire::Ipv4Address ip{};
  std::string mac;

  void declare(Schema& schema);
  // Of what cannot be checked one by one.
  Result<void> check() const;
};

Result<void> run_host(const std::string& directory, const HostSettings& settings);

// What run_host() tells those who wait for it: the addresses of its NIC, and where its frames go.
struct HostAddress {
  wire::Ipv4Address ip{};
  wire::MacAddress mac{};
  std::string port{};
};
Result<HostAddress> read_host_address(const std::string& host_directory);

}  // namespace sluice::rack
