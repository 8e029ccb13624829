#include "wire/frame.h"

#include <cstring>

#include "base/check.h"
#include "wire/frame_inline.h"
#include "wire/icrc.h"

namespace sluice::wire {
namespace {

// Where the IP datagram ends and its UDP header begins; `at` is relative to the IP header, `length` that of the datagram.
struct IpExtent {
  std::size_t udp = 0;
  std::size_t length = 0;
};

Verdict parse_ipv4(const std::uint8_t* ip, std::size_t available, IpExtent& extent, ParsedFrame& out) {
  if (available < Ipv4Header::kSize) return Verdict::kTruncatedIp;
  if (ip[0] >> 4 != 4) return Verdict::kBadIpVersion;
  if ((ip[0] & 0xF) != 5) return Verdict::kBadIpHeaderLength;
  extent.length = load_be<std::uint16_t>(ip + 2);
  if (extent.length > available || extent.length < Ipv4Header::kSize) return Verdict::kBadIpLength;
  if (!ipv4_checksum_is_right(ip)) return Verdict::kBadIpChecksum;
  if ((load_be<std::uint16_t>(ip + 6) & (Ipv4Header::kMoreFragments | Ipv4Header::kFragmentOffsetMask)) != 0) {
    return Verdict::kFragment;
  }
  if (ip[9] != kIpProtocolUdp) return Verdict::kNotUdp;
  out.traffic_class = ip[1];
  out.is_v4 = true;
  extent.udp = Ipv4Header::kSize;
  return Verdict::kOk;
}

bool is_v4_mapped(const std::uint8_t* address) {
  return load_be<std::uint64_t>(address) == 0 && load_be<std::uint32_t>(address + 8) == 0xFFFF;
}

Verdict parse_ipv6(const std::uint8_t* ip, std::size_t available, IpExtent& extent, ParsedFrame& out) {
  if (available < Ipv6Header::kSize) return Verdict::kTruncatedIp;
  if (ip[0] >> 4 != 6) return Verdict::kBadIpVersion;
  extent.length = Ipv6Header::kSize + load_be<std::uint16_t>(ip + 4);
  if (extent.length > available) return Verdict::kBadIpLength;
  if (ip[6] != kIpProtocolUdp) return Verdict::kNotUdp;
  if (is_v4_mapped(ip + 8) || is_v4_mapped(ip + 24)) return Verdict::kBadIpAddress;
  out.traffic_class = static_cast<std::uint8_t>(ip[0] << 4 | ip[1] >> 4);
  out.is_v4 = false;
  extent.udp = Ipv6Header::kSize;
  return Verdict::kOk;
}

Verdict parse_udp(const std::uint8_t* udp, std::size_t available) {
  if (available < UdpHeader::kSize) return Verdict::kTruncatedUdp;
  if (load_be<std::uint16_t>(udp + 2) != kRoceUdpPort) return Verdict::kNotRoce;
  if (load_be<std::uint16_t>(udp + 4) != available) return Verdict::kBadUdpLength;
  return Verdict::kOk;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kTruncatedEthernet: return "truncated Ethernet header";
    case Verdict::kNotIp: return "not IP";
    case Verdict::kTruncatedIp: return "truncated IP header";
    case Verdict::kBadIpVersion: return "bad IP version";
    case Verdict::kBadIpHeaderLength: return "bad IPv4 header length";
    case Verdict::kBadIpLength: return "bad IP length";
    case Verdict::kBadIpChecksum: return "bad IPv4 checksum";
    case Verdict::kBadIpAddress: return "IPv4 address in an IPv6 packet";
    case Verdict::kFragment: return "IP fragment";
    case Verdict::kNotUdp: return "not UDP";
    case Verdict::kTruncatedUdp: return "truncated UDP header";
    case Verdict::kNotRoce: return "not RoCE";
    case Verdict::kBadUdpLength: return "bad UDP length";
    case Verdict::kOversized: return "oversized frame";
    case Verdict::kTruncatedBth: return "truncated BTH";
    case Verdict::kBadTransportVersion: return "bad transport version";
    case Verdict::kUnknownOpcode: return "unknown opcode";
    case Verdict::kTruncatedExtended: return "truncated extended header";
    case Verdict::kUnexpectedPayload: return "unexpected payload";
    case Verdict::kBadPad: return "bad pad";
    case Verdict::kBadIcrc: return "bad ICRC";
  }
  return "unknown verdict";
}

Verdict parse(ByteView frame, ParsedFrame& out) {
  if (detail::parse_common(frame, out)) {
    return detail::parse_transport(frame.data() + out.bth_offset, out.length - out.bth_offset, out);
  }
  if (frame.size() < EthernetHeader::kSize) return Verdict::kTruncatedEthernet;
  std::size_t ip_offset = EthernetHeader::kSize;
  auto ether_type = load_be<std::uint16_t>(frame.data() + 12);
  out.has_vlan = ether_type == kEtherTypeVlan;
  out.vlan_tci = 0;
  if (out.has_vlan) {
    if (frame.size() < EthernetHeader::kSize + VlanTag::kSize) return Verdict::kTruncatedEthernet;
    out.vlan_tci = load_be<std::uint16_t>(frame.data() + 14);
    ether_type = load_be<std::uint16_t>(frame.data() + 16);
    ip_offset += VlanTag::kSize;
  }

  const std::uint8_t* ip = frame.data() + ip_offset;
  const std::size_t available = frame.size() - ip_offset;
  IpExtent extent;
  Verdict verdict = Verdict::kNotIp;
  if (ether_type == kEtherTypeIpv4) verdict = parse_ipv4(ip, available, extent, out);
  if (ether_type == kEtherTypeIpv6) verdict = parse_ipv6(ip, available, extent, out);
  if (verdict != Verdict::kOk) return verdict;

  verdict = parse_udp(ip + extent.udp, extent.length - extent.udp);
  if (verdict != Verdict::kOk) return verdict;
  const std::size_t length = ip_offset + extent.length;
  if (length > kMaxFrameSize) return Verdict::kOversized;

  const std::size_t bth_offset = ip_offset + extent.udp + UdpHeader::kSize;
  out.ip_offset = static_cast<std::uint16_t>(ip_offset);
  out.bth_offset = static_cast<std::uint16_t>(bth_offset);
  out.length = static_cast<std::uint16_t>(length);
  return detail::parse_transport(frame.data() + bth_offset, length - bth_offset, out);
}

Verdict parse_and_verify(ByteView frame, ParsedFrame& out) {
  const Verdict verdict = parse(frame, out);
  if (verdict != Verdict::kOk) return verdict;
  return verify_icrc(frame.data(), out) ? Verdict::kOk : Verdict::kBadIcrc;
}

UdpHeader get_udp(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return UdpHeader::parse(frame + parsed.udp_offset());
}

Gid source_gid(const std::uint8_t* frame, const ParsedFrame& parsed) {
  const std::uint8_t* ip = frame + parsed.ip_offset;
  return parsed.is_v4 ? Gid::from(Ipv4Header::parse(ip).source) : Ipv6Header::parse(ip).source;
}

Gid destination_gid(const std::uint8_t* frame, const ParsedFrame& parsed) {
  const std::uint8_t* ip = frame + parsed.ip_offset;
  return parsed.is_v4 ? Gid::from(Ipv4Header::parse(ip).destination) : Ipv6Header::parse(ip).destination;
}

void write_received_grh(const std::uint8_t* frame, const ParsedFrame& parsed, std::uint8_t* out) {
  const std::size_t ip_size = parsed.is_v4 ? Ipv4Header::kSize : Ipv6Header::kSize;
  const std::size_t blank = Grh::kSize - ip_size;
  std::memset(out, 0, blank);
  std::memcpy(out + blank, frame + parsed.ip_offset, ip_size);
}

AddressVector AddressVector::reply_to(const std::uint8_t* frame, const ParsedFrame& parsed) {
  const EthernetHeader ethernet = EthernetHeader::parse(frame);
  AddressVector back{.source_mac = ethernet.destination,
                     .destination_mac = ethernet.source,
                     .source = destination_gid(frame, parsed),
                     .destination = source_gid(frame, parsed),
                     .source_port = get_udp(frame, parsed).source_port,
                     .traffic_class = parsed.traffic_class};
  if (parsed.ecn() == Ecn::kCongestionExperienced) back.traffic_class ^= 1;  // a mark is not answered by a mark
  if (parsed.has_vlan) back.vlan_tci = parsed.vlan_tci;
  return back;
}

HeaderTemplate::HeaderTemplate(const AddressVector& address) : is_v4_(address.source.is_v4()) {
  std::uint8_t* p = bytes_.data();
  const std::uint16_t ip_type = is_v4_ ? kEtherTypeIpv4 : kEtherTypeIpv6;
  EthernetHeader{address.destination_mac, address.source_mac, address.vlan_tci ? kEtherTypeVlan : ip_type}.write(p);
  p += EthernetHeader::kSize;
  if (address.vlan_tci) {
    VlanTag{*address.vlan_tci, ip_type}.write(p);
    p += VlanTag::kSize;
  }
  ip_offset_ = static_cast<std::uint8_t>(p - bytes_.data());
  if (is_v4_) {
    Ipv4Header{.traffic_class = address.traffic_class,
               .ttl = address.hop_limit,
               .source = address.source.v4(),
               .destination = address.destination.v4()}
        .write(p);
    checksum_base_ = static_cast<std::uint16_t>(~ipv4_checksum(p));
    p += Ipv4Header::kSize;
  } else {
    Ipv6Header{.traffic_class = address.traffic_class,
               .flow_label = address.flow_label,
               .hop_limit = address.hop_limit,
               .source = address.source,
               .destination = address.destination}
        .write(p);
    p += Ipv6Header::kSize;
  }
  UdpHeader{.source_port = address.source_port, .destination_port = kRoceUdpPort}.write(p);
  bth_offset_ = static_cast<std::uint8_t>(p + UdpHeader::kSize - bytes_.data());
}

std::size_t HeaderTemplate::write(std::uint8_t* out, std::size_t transport_bytes) const {
  constexpr std::size_t kShortest = EthernetHeader::kSize + Ipv4Header::kSize + UdpHeader::kSize;
  std::memcpy(out, bytes_.data(), kShortest);
  if (bth_offset_ > kShortest) std::memcpy(out + kShortest, bytes_.data() + kShortest, bth_offset_ - kShortest);

  std::uint8_t* ip = out + ip_offset_;
  const std::size_t udp_length = UdpHeader::kSize + transport_bytes + kIcrcSize;
  store_be(out + bth_offset_ - 4, static_cast<std::uint16_t>(udp_length));
  if (is_v4_) {
    const auto total = static_cast<std::uint32_t>(Ipv4Header::kSize + udp_length);
    std::uint32_t sum = checksum_base_ + total;
    sum = (sum & 0xFFFF) + (sum >> 16);
    store_be(ip + 2, static_cast<std::uint16_t>(total));
    store_be(ip + 10, static_cast<std::uint16_t>(~sum));
  } else {
    store_be(ip + 4, static_cast<std::uint16_t>(udp_length));
  }
  return bth_offset_;
}

std::size_t HeaderTemplate::seal(std::uint8_t* frame, std::size_t length) const {
  const std::uint8_t* ip = frame + ip_offset_;
  const std::size_t covered = length - ip_offset_;
  store_le(frame + length, is_v4_ ? icrc_ipv4(ip, covered) : icrc_ipv6(ip, covered));
  return length + kIcrcSize;
}

PacketTemplate::PacketTemplate(const HeaderTemplate& headers, ByteView transport)
    : bth_offset_(static_cast<std::uint8_t>(headers.bth_offset())) {
  SLUICE_CHECK(transport.size() <= kMaxTransport && transport.size() % 4 == 0);
  const std::size_t at = headers.write(bytes_.data(), transport.size());
  std::memcpy(bytes_.data() + at, transport.data(), transport.size());
  const std::size_t length = at + transport.size();
  SLUICE_CHECK(length >= kShortest);
  headers.seal(bytes_.data(), length);
  size_ = static_cast<std::uint8_t>(length);
  icrc_ = load_le<std::uint32_t>(bytes_.data() + length);
}

void mark_congestion(std::uint8_t* frame, ParsedFrame& parsed) {
  std::uint8_t* ip = frame + parsed.ip_offset;
  parsed.traffic_class |= static_cast<std::uint8_t>(Ecn::kCongestionExperienced);
  if (!parsed.is_v4) {
    ip[1] |= 0x30;
    return;
  }
  const auto before = load_be<std::uint16_t>(ip);
  ip[1] = parsed.traffic_class;
  store_be(ip + 10, patch_checksum(load_be<std::uint16_t>(ip + 10), before, load_be<std::uint16_t>(ip)));
}

}  // namespace sluice::wire
