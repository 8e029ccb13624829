// The kernel's interface under af_packet and af_xdp: what such a driver needs of it, and how it is now.
//
// Errors:     no such interface, or one that is down; for af_xdp more than one receive channel, an MTU that is too large, an XDP program
//             that is not a dead process's: a sentence that says what to do.
// Threads:    any.
// Source:     ethtool(8) --set-channels; DPDK 22.11, "AF_XDP Poll Mode Driver"; libxdp's xsk_def_prog.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::dpdk {

// What an XDP socket's buffer of 2,048 bytes holds behind the kernel's headroom.
inline constexpr std::uint32_t kXdpFrame = 1792;

// Of "KEY=VALUE,...": that of iface=, for drivers that stand on one of the kernel's interfaces. Empty: none.
std::string interface_of(const std::string& driver, const std::string& arguments);

struct InterfaceNow {
  unsigned number = 0;  // 0: there is none of that name
  bool up = false;
};
InterfaceNow look_at(const std::string& interface);

// REQUIRES: before the driver has it. DPDK takes whatever XDP program is there off the interface when a start fails.
Result<void> check_interface(const std::string& driver, const std::string& arguments);

// This process's XDP sockets, ascending.
std::vector<int> xdp_sockets();

}  // namespace sluice::dpdk
