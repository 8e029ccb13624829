#include "ports/interface_address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "ports/spec.h"

namespace sluice::ports {
namespace {

constexpr std::uint16_t kRocePort = 4791;
constexpr std::uint32_t kMostHeaders =
    96;  // IPv6 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28, ICRC 4: more than meets in one packet

}  // namespace

Result<InterfaceAddress> address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return fail(fmt::format("interface {}: {}", name, std::strerror(errno)));
  std::optional<wire::Ipv4Address> ip;
  InterfaceAddress found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (name != one->ifa_name || one->ifa_addr == nullptr) continue;
    if (one->ifa_addr->sa_family == AF_INET && !ip) {
      sockaddr_in address;
      std::memcpy(&address, one->ifa_addr, sizeof address);
      ip = wire::Ipv4Address{ntohl(address.sin_addr.s_addr)};
    } else if (one->ifa_addr->sa_family == AF_PACKET) {
      sockaddr_ll address;
      std::memcpy(&address, one->ifa_addr, sizeof address);
      std::copy_n(address.sll_addr, found.mac.bytes.size(), found.mac.bytes.begin());
    }
  }
  freeifaddrs(all);
  if (!ip) return fail(fmt::format("interface {} has no IPv4 address", name));
  found.ip = *ip;
  return found;
}

Result<std::uint32_t> path_mtu_of_interface(const std::string& name) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!socket || ioctl(socket.get(), SIOCGIFMTU, &request) != 0)
    return fail(fmt::format("interface {}: {}", name, std::strerror(errno)));
  const auto mtu = static_cast<std::uint32_t>(std::max(request.ifr_mtu, 0));
  for (const std::uint32_t path_mtu : {4096u, 2048u, 1024u, 512u, 256u}) {
    if (mtu >= path_mtu + kMostHeaders) return path_mtu;
  }
  return fail(fmt::format("interface {} has an MTU of {}, and RoCE needs {}: `ip link set {} mtu 1500`", name, mtu,
                          256 + kMostHeaders, name));
}

Result<std::uint32_t> path_mtu_of_port(std::string_view port) {
  const auto spec = parse_port_spec(port);
  if (!spec) return tl::unexpected(spec.error());
  const std::string interface = interface_of(*spec);
  return interface.empty() ? Result<std::uint32_t>(4096) : path_mtu_of_interface(interface);
}

Descriptor keep_kernel_quiet(const wire::Ipv4Address& ip) {
  Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog filter{1, &nothing};
  const int shared = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kRocePort);
  address.sin_addr.s_addr = htonl(ip.value);
  const bool bound = socket && setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0 &&
                     setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &shared, sizeof shared) == 0 &&
                     bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!bound) socket.close();
  return socket;
}

}  // namespace sluice::ports
