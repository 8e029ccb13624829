// IPv6 neighbour solicitations and advertisements as whole frames: read and written.
//
// Errors:  parse returns nothing for what is no solicitation or advertisement, or breaks a rule of RFC 4861 §7.1.
// Source:  RFC 4861 §4.3, §4.4, §4.6.1, §7.1; RFC 4443 §2.3 (checksum); RFC 4291 §2.7.1; RFC 2464 §7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "wire/address.h"

namespace sluice::rc {

struct NeighborMessage {
  enum class Kind : std::uint8_t { kSolicitation = 135, kAdvertisement = 136 };
  static constexpr std::size_t kFrameSize = 14 + 40 + 24 + 8;  // as written: always with the link-layer option

  Kind kind{};
  wire::MacAddress source_mac{};  // of the frame
  wire::MacAddress destination_mac{};
  wire::Gid source{};
  wire::Gid destination{};
  wire::Gid target{};                            // whose MAC is asked for, or told
  std::optional<wire::MacAddress> link_layer{};  // of the source (solicitation) or the target (advertisement)
  bool solicited = false;                        // advertisements: an answer
  bool override_known = false;                   // advertisements: replaces what is known

  // True for any frame that is ICMPv6 135 or 136, valid or not: nobody else's business.
  static bool is_one(ByteView frame);
  static std::optional<NeighborMessage> parse(ByteView frame);
  // REQUIRES: room for kFrameSize bytes; link_layer is there.
  void write(std::uint8_t* frame) const;
};

bool is_unspecified(const wire::Gid& gid);
bool is_link_local(const wire::Gid& gid);
// IPv4 224.0.0.0/4 and 255.255.255.255, IPv6 ff00::/8.
bool is_multicast(const wire::Gid& gid);
// ff02::1:ffXX:XXXX of an IPv6 address.
wire::Gid solicited_node(const wire::Gid& gid);
// The MAC that a multicast address maps to (RFC 1112 §6.4, RFC 2464 §7). REQUIRES: is_multicast(gid).
wire::MacAddress multicast_mac(const wire::Gid& gid);

}  // namespace sluice::rc
