#include "rc/neighbor_discovery.h"

#include <algorithm>

#include "wire/ethernet.h"
#include "wire/ip.h"

namespace sluice::rc {
namespace {

constexpr std::uint8_t kIcmpV6 = 58;
constexpr std::uint8_t kHopLimit = 255;  // proof that no router has forwarded it
constexpr std::uint8_t kSolicitedFlag = 0x40;
constexpr std::uint8_t kOverrideFlag = 0x20;
constexpr std::uint8_t kSourceLinkLayer = 1;
constexpr std::uint8_t kTargetLinkLayer = 2;
constexpr std::size_t kIp = wire::EthernetHeader::kSize;
constexpr std::size_t kIcmp = kIp + wire::Ipv6Header::kSize;
constexpr std::size_t kTarget = kIcmp + 8;
constexpr std::size_t kFixedSize = 24;  // of the message, before its options
constexpr std::size_t kOptions = kIcmp + kFixedSize;
constexpr std::size_t kOptionSize = 8;

std::uint32_t sum_words(const std::uint8_t* p, std::size_t length) {
  std::uint32_t sum = 0;
  for (; length > 1; p += 2, length -= 2) sum += load_be<std::uint16_t>(p);
  if (length == 1) sum += std::uint32_t{p[0]} << 8;
  return sum;
}

// Over the pseudo header and the message; 0 when the message holds its right checksum. REQUIRES: length < 2^16.
std::uint16_t icmp_checksum(const std::uint8_t* ip, const std::uint8_t* message, std::size_t length) {
  std::uint32_t sum = sum_words(ip + 8, 32) + static_cast<std::uint32_t>(length) + kIcmpV6 + sum_words(message, length);
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

template <class Address>
Address load_address(const std::uint8_t* p) {
  Address address;
  std::copy_n(p, address.bytes.size(), address.bytes.begin());
  return address;
}

// Finds the link-layer option of `type`. False when an option is broken.
bool read_options(ByteView options, std::uint8_t type, std::optional<wire::MacAddress>& link_layer) {
  while (!options.empty()) {
    if (options.size() < 2 || options[1] == 0 || options.size() < options[1] * kOptionSize) return false;
    if (options[0] == type) link_layer = load_address<wire::MacAddress>(options.data() + 2);
    options = options.subspan(options[1] * kOptionSize);
  }
  return true;
}

}  // namespace

bool NeighborMessage::is_one(ByteView frame) {
  return frame.size() > kIcmp && load_be<std::uint16_t>(frame.data() + 12) == wire::kEtherTypeIpv6 &&
         frame[kIp + 6] == kIcmpV6 && (frame[kIcmp] == 135 || frame[kIcmp] == 136);
}

std::optional<NeighborMessage> NeighborMessage::parse(ByteView frame) {
  if (!is_one(frame)) return std::nullopt;
  const auto ethernet = wire::EthernetHeader::parse(frame.data());
  const auto ip = wire::Ipv6Header::parse(frame.data() + kIp);
  const std::uint8_t* icmp = frame.data() + kIcmp;
  if (ip.version != 6 || ip.hop_limit != kHopLimit || ip.payload_length < kFixedSize) return std::nullopt;
  if (frame.size() < kIcmp + ip.payload_length) return std::nullopt;
  if (icmp[1] != 0 || icmp_checksum(frame.data() + kIp, icmp, ip.payload_length) != 0) return std::nullopt;

  NeighborMessage message{.kind = static_cast<Kind>(icmp[0]),
                          .source_mac = ethernet.source,
                          .destination_mac = ethernet.destination,
                          .source = ip.source,
                          .destination = ip.destination,
                          .target = load_address<wire::Gid>(frame.data() + kTarget)};
  const bool asks = message.kind == Kind::kSolicitation;
  const ByteView options = frame.subspan(kOptions, ip.payload_length - kFixedSize);
  if (is_multicast(message.target)) return std::nullopt;
  if (!read_options(options, asks ? kSourceLinkLayer : kTargetLinkLayer, message.link_layer)) return std::nullopt;
  if (asks &&
      is_unspecified(ip.source)) {  // address detection: addressed to all who might have it, and nobody to learn
    if (ip.destination != solicited_node(message.target) || message.link_layer) return std::nullopt;
  }
  if (!asks) {
    message.solicited = (icmp[4] & kSolicitedFlag) != 0;
    message.override_known = (icmp[4] & kOverrideFlag) != 0;
    if (message.solicited && is_multicast(ip.destination)) return std::nullopt;
  }
  return message;
}

void NeighborMessage::write(std::uint8_t* frame) const {
  constexpr std::size_t kLength = kFixedSize + kOptionSize;
  wire::EthernetHeader{.destination = destination_mac, .source = source_mac, .ether_type = wire::kEtherTypeIpv6}.write(
      frame);
  wire::Ipv6Header ip;
  ip.payload_length = kLength;
  ip.next_header = kIcmpV6;
  ip.hop_limit = kHopLimit;
  ip.source = source;
  ip.destination = destination;
  ip.write(frame + kIp);

  std::uint8_t* icmp = frame + kIcmp;
  std::fill_n(icmp, kLength, std::uint8_t{0});
  icmp[0] = static_cast<std::uint8_t>(kind);
  icmp[4] = static_cast<std::uint8_t>((solicited ? kSolicitedFlag : 0) | (override_known ? kOverrideFlag : 0));
  std::copy(target.bytes.begin(), target.bytes.end(), icmp + 8);
  icmp[kFixedSize] = kind == Kind::kSolicitation ? kSourceLinkLayer : kTargetLinkLayer;
  icmp[kFixedSize + 1] = 1;  // in units of 8 bytes
  std::copy(link_layer->bytes.begin(), link_layer->bytes.end(), icmp + kFixedSize + 2);
  store_be(icmp + 2, icmp_checksum(frame + kIp, icmp, kLength));
}

bool is_unspecified(const wire::Gid& gid) { return gid == wire::Gid{}; }

bool is_link_local(const wire::Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

bool is_multicast(const wire::Gid& gid) {
  if (!gid.is_v4()) return gid.bytes[0] == 0xFF;
  return gid.v4().value >> 28 == 0xE || gid.v4().value == 0xFFFF'FFFF;
}

wire::Gid solicited_node(const wire::Gid& gid) {
  wire::Gid group{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xFF}};
  std::copy(gid.bytes.begin() + 13, gid.bytes.end(), group.bytes.begin() + 13);
  return group;
}

wire::MacAddress multicast_mac(const wire::Gid& gid) {
  const auto& b = gid.bytes;
  if (!gid.is_v4()) return {{0x33, 0x33, b[12], b[13], b[14], b[15]}};
  if (gid.v4().value == 0xFFFF'FFFF) return wire::MacAddress::broadcast();
  return {{0x01, 0x00, 0x5E, static_cast<std::uint8_t>(b[13] & 0x7F), b[14], b[15]}};
}

}  // namespace sluice::rc
