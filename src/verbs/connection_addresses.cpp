#include "verbs/connection_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace sluice::verbs {

sockaddr_storage socket_address(const wire::Gid& gid, std::uint16_t port) {
  sockaddr_storage storage{};
  if (gid.is_v4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(gid.v4().value);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::ranges::copy(gid.bytes, v6.sin6_addr.s6_addr);
  }
  return storage;
}

std::uint16_t port_of(const sockaddr* address) {
  if (address->sa_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

std::optional<wire::Gid> gid_of(const sockaddr* address) {
  wire::Gid gid;
  if (address->sa_family == AF_INET) {
    return wire::Gid::from({ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr)});
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  std::ranges::copy(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr.s6_addr, gid.bytes.begin());
  return gid;
}

bool is_any(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

bool is_loopback(const wire::Gid& gid) {
  if (gid.is_v4()) return gid.v4().value >> 24 == 127;
  wire::Gid one;
  one.bytes[15] = 1;
  return gid == one;
}

}  // namespace sluice::verbs
