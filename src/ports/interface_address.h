// What the kernel calls itself on an interface, and how a NIC of ours shares that address with it.
//
// Sharing:  the NIC has the interface's MAC and IPv4 address; ARP says the same of both. TCP and the rest stay the kernel's. It would
//           answer RoCEv2 with ICMP "port unreachable", since nothing is bound to port 4791: so something is, and takes nothing.
// Threads:  any.
#pragma once

#include <string>

#include "base/result.h"
#include "ports/descriptor.h"
#include "wire/address.h"

namespace sluice::ports {

struct InterfaceAddress {
  wire::Ipv4Address ip{};
  wire::MacAddress mac{};
};

// The first IPv4 address that the kernel has on the interface. Fails when there is no such interface, or it has none.
Result<InterfaceAddress> address_of_interface(const std::string& name);

// As long as the result is kept, the kernel does not answer RoCEv2 packets to `ip`. Empty: it would not anyway, because the address is
// not one of its own, or another (rxe, a NIC of ours) has the port.
Descriptor keep_kernel_quiet(const wire::Ipv4Address& ip);

}  // namespace sluice::ports
