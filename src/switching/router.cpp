#include "switching/router.h"

#include <algorithm>
#include <utility>

#include "wire/ip.h"

namespace sluice::switching {
namespace {

using wire::ArpPacket;
using wire::EthernetHeader;
using wire::Ipv4Address;
using wire::Ipv4Header;

using ArpFrame = std::array<std::uint8_t, EthernetHeader::kSize + ArpPacket::kSize>;
static_assert(std::tuple_size_v<ArpFrame> == 42);

std::optional<ArpPacket> parse_arp(ByteView frame) {
  if (frame.size() < EthernetHeader::kSize + ArpPacket::kSize) return std::nullopt;
  if (EthernetHeader::parse(frame.data()).ether_type != wire::kEtherTypeArp) return std::nullopt;
  const ArpPacket arp = ArpPacket::parse(frame.data() + EthernetHeader::kSize);
  if (!arp.is_ethernet_ipv4()) return std::nullopt;
  return arp;
}

ArpFrame write_arp(const wire::MacAddress& destination, const ArpPacket& arp) {
  ArpFrame frame;
  EthernetHeader{destination, arp.sender_mac, wire::kEtherTypeArp}.write(frame.data());
  arp.write(frame.data() + EthernetHeader::kSize);
  return frame;
}

std::uint32_t mask_of(std::uint8_t prefix_length) { return prefix_length == 0 ? 0 : ~0u << (32 - prefix_length); }

}  // namespace

Router::Router(RouterConfig config) : config_(std::move(config)) {}

void Router::snoop_arp(ByteView frame) {
  const std::optional<ArpPacket> arp = parse_arp(frame);
  if (!arp || arp->sender_ip.value == 0 || arp->sender_mac.is_multicast()) return;
  const auto known = neighbors_.find(arp->sender_ip.value);
  if (known != neighbors_.end()) {
    known->second = arp->sender_mac;
  } else if (neighbors_.size() < config_.max_neighbors && interface_to(arp->sender_ip) != nullptr) {
    neighbors_.emplace(arp->sender_ip.value, arp->sender_mac);
  }
}

std::optional<ArpFrame> Router::answer_arp(ByteView frame) const {
  const std::optional<ArpPacket> arp = parse_arp(frame);
  if (!arp || arp->operation != ArpPacket::kRequest) return std::nullopt;
  const bool ours = std::any_of(config_.interfaces.begin(), config_.interfaces.end(),
                                [&](const auto& interface) { return interface.address == arp->target_ip; });
  if (!ours) return std::nullopt;
  ArpPacket reply;
  reply.operation = ArpPacket::kReply;
  reply.sender_mac = config_.mac;
  reply.sender_ip = arp->target_ip;
  reply.target_mac = arp->sender_mac;
  reply.target_ip = arp->sender_ip;
  return write_arp(arp->sender_mac, reply);
}

Router::Outcome Router::route(MutableBytes frame, std::optional<ArpFrame>& request) {
  request.reset();
  std::uint8_t* ip = frame.data() + EthernetHeader::kSize;
  if (frame.size() < EthernetHeader::kSize + Ipv4Header::kSize) return Outcome::kMalformed;
  if (EthernetHeader::parse(frame.data()).ether_type != wire::kEtherTypeIpv4) return Outcome::kMalformed;
  Ipv4Header header = Ipv4Header::parse(ip);
  const bool sound = header.version == 4 && header.header_words == 5 && header.total_length >= Ipv4Header::kSize &&
                     header.total_length <= frame.size() - EthernetHeader::kSize && wire::ipv4_checksum_is_right(ip);
  if (!sound) return Outcome::kMalformed;
  if (header.ttl <= 1) return Outcome::kTtlExceeded;

  const RouterConfig::Interface* out = interface_to(header.destination);
  if (out == nullptr) return Outcome::kUnknown;
  const auto neighbor = neighbors_.find(header.destination.value);
  if (neighbor == neighbors_.end()) {
    ArpPacket arp;
    arp.sender_mac = config_.mac;
    arp.sender_ip = out->address;
    arp.target_ip = header.destination;
    request = write_arp(wire::MacAddress::broadcast(), arp);
    return Outcome::kUnknown;
  }
  const auto before = static_cast<std::uint16_t>(header.ttl << 8 | header.protocol);
  --header.ttl;
  const auto after = static_cast<std::uint16_t>(header.ttl << 8 | header.protocol);
  header.checksum = wire::patch_checksum(header.checksum, before, after);
  header.write(ip);
  EthernetHeader{neighbor->second, config_.mac, wire::kEtherTypeIpv4}.write(frame.data());
  return Outcome::kForward;
}

const RouterConfig::Interface* Router::interface_to(Ipv4Address destination) const {
  for (const auto& interface : config_.interfaces) {
    if (((interface.address.value ^ destination.value) & mask_of(interface.prefix_length)) == 0) return &interface;
  }
  return nullptr;
}

}  // namespace sluice::switching
