// What the kernel calls itself on an interface, and how a NIC of ours shares that address with it.
//
// Sharing:  the NIC has the interface's MAC and IPv4 address; ARP says the same of both. TCP and the rest stay the kernel's. It would
//           answer RoCEv2 with ICMP "port unreachable", since nothing is bound to port 4791: so something is, and takes nothing.
// Threads:  any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

// The largest path MTU (256 … 4096) of which every packet fits the interface's MTU, with all headers: as Linux has it, 96 bytes of them.
// Fails when there is no such interface, or it holds not even 256.
Result<std::uint32_t> path_mtu_of_interface(const std::string& name);
// The same of a port's, as ports/open.h spells it: 4096 unless it stands on an interface.
Result<std::uint32_t> path_mtu_of_port(std::string_view port);

// As long as the result is kept, the kernel does not answer RoCEv2 packets to `ip`. Empty: it would not anyway, because the address is
// not one of its own, or another (rxe, a NIC of ours) has the port.
Descriptor keep_kernel_quiet(const wire::Ipv4Address& ip);

}  // namespace sluice::ports
