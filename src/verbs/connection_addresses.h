// Socket addresses of programs as GIDs, and the way back.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "wire/address.h"

namespace sluice::verbs {

sockaddr_storage socket_address(const wire::Gid& gid, std::uint16_t port);
// REQUIRES: IPv4 or IPv6.
std::uint16_t port_of(const sockaddr* address);
// Nothing: of a family without GIDs.
std::optional<wire::Gid> gid_of(const sockaddr* address);
// REQUIRES: IPv4 or IPv6.
bool is_any(const sockaddr* address);
// 127.0.0.0/8 and ::1 mean this host.
bool is_loopback(const wire::Gid& gid);

}  // namespace sluice::verbs
