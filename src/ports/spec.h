// The text that names a port: kind, address, options.
//
// Text:   KIND:ADDRESS[,KEY=VALUE...][,impair(...)], such as "udp:10.0.0.2:7471,datagram=1400,impair(drop=1%,seed=7)".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "port/impairment.h"
#include "ports/udp_socket.h"

namespace sluice::ports {

struct PortSpec {
  std::string kind;
  std::string address;
  std::vector<std::pair<std::string, std::string>> options;
  std::optional<port::ImpairmentSpec> impairment;
};

// Only the shape and the impairment are checked; kinds and options are their users'.
Result<PortSpec> parse_port_spec(std::string_view text);

// The kernel's interface that such a port stands on (packet:, some of dpdk:). Empty: none.
std::string interface_of(const PortSpec& spec);

// "HOST:PORT" or "[IPV6]:PORT".
Result<HostPort> parse_host_port(std::string_view text);

}  // namespace sluice::ports
