// What a program's NIC is: its port, its addresses, its name. Programs get it from the environment, where `sluice run` puts it.
//
//   SLUICE_PORT     where frames go, as ports/open.h spells it ("shm:/run/…/switch.sock", "udp:HOST:PORT", "packet:eth0");
//                   "loopback": nowhere, the program talks to itself. Not set: the machine has no RDMA device.
//   SLUICE_HOST     the directory of a host whose NIC several programs share (ports/host_directory.h); SLUICE_PORT leads to it
//   SLUICE_IP       our IPv4 address (a loopback's default: 10.77.0.1); SLUICE_IP6: an IPv6 address besides the link-local one
//   SLUICE_MAC      default: 02:00 and the IPv4 address
//   SLUICE_DEVICE   the device's name, default sluice0
//   SLUICE_MTU      the largest path MTU: 256 … 4096; default: 4096, or what packet:'s interface holds (1024 of an MTU of 1500)
//   SLUICE_TRACE    a pcap file that gets all frames that pass the port
//   SLUICE_COUNTERS a JSON file that gets what the NIC and its port have counted, every second and at the end (counter_file.h); "%p" in
//                   its name is the process's id
//   SLUICE_DCQCN    1: obey congestion notifications, and send them for packets that a switch has marked
//   SLUICE_LINE_RATE  Mb/s, default 40000: where DCQCN begins, and what the port is said to have then; without SLUICE_DCQCN nothing
//   SLUICE_IMPAIR   "drop=1%,reorder=1%,seed=7", see port/impairment.h
//   SLUICE_RNR      "1%": of the messages that need a receive request, so many are answered as if there were none
//   SLUICE_VERBOSE  1: say on stderr why a verb was refused
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rc/dcqcn.h"
#include "wire/address.h"

namespace sluice::verbs {

struct Settings {
  std::string device = "sluice0";
  std::string host;  // empty: the NIC is this process's alone
  std::string port;  // with recording and impairments; empty: loopback only
  wire::MacAddress mac{};
  std::vector<wire::Gid> gids{};  // the GID table: as on a ConnectX, index 1 and 3 are the IPv4 address, 0 and 2 IPv6
  std::uint32_t mtu = 4096;
  std::uint32_t feigned_rnr_ppm = 0;
  std::string counters;  // empty: they are nobody's business
  bool dcqcn = false;
  std::uint64_t line_rate = rc::DcqcnParameters{}.line_rate;  // bits a second
};

using Environment = std::function<const char*(const char* name)>;

// Nothing: the environment does not ask for a device.
std::optional<Result<Settings>> read_settings(const Environment& environment);

// The first entry of the GID table with an IPv4 address.
std::uint8_t ipv4_index(const std::vector<wire::Gid>& gids);

}  // namespace sluice::verbs
