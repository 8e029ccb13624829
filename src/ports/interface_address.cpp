#include "ports/interface_address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace sluice::ports {
namespace {

constexpr std::uint16_t kRocePort = 4791;

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
