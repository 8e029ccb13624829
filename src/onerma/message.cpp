#include "onerma/message.h"

#include <algorithm>

#include "base/check.h"
#include "wire/crc32_algebra.h"

namespace sluice::onerma {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kPlainFlag = 1;
constexpr std::uint8_t kOfDataFlag = 2;
constexpr std::size_t kIp = wire::EthernetHeader::kSize;
constexpr std::size_t kUdp = kIp + wire::Ipv4Header::kSize;

bool body_fits(Kind kind, std::size_t length) {
  switch (kind) {
    case Kind::kReadRequest:
    case Kind::kWriteRequest: return length == kRequestBody;
    case Kind::kRekeyRequest:
    case Kind::kPull:
    case Kind::kCompletion: return length == 0;
    case Kind::kData:
    case Kind::kReadResponse: return length <= kMaxOp;
    case Kind::kRefusal: return length == kRefusalBody;
  }
  return false;
}

Verdict parse_network(ByteView frame, Message& out, std::size_t& length) {
  if (frame.size() < kNetworkSize) return Verdict::kTruncated;
  const auto ethernet = wire::EthernetHeader::parse(frame.data());
  if (ethernet.ether_type != wire::kEtherTypeIpv4) return Verdict::kNotOurs;
  const auto ip = wire::Ipv4Header::parse(frame.data() + kIp);
  const auto udp = wire::UdpHeader::parse(frame.data() + kUdp);
  if (ip.version != 4 || ip.header_words != 5) return Verdict::kBadNetworkHeader;
  if (ip.protocol != wire::kIpProtocolUdp || udp.destination_port != kUdpPort) return Verdict::kNotOurs;
  const bool fragment = (ip.fragment & (wire::Ipv4Header::kMoreFragments | wire::Ipv4Header::kFragmentOffsetMask)) != 0;
  const bool fits = ip.total_length + kIp <= frame.size() && ip.total_length == udp.length + wire::Ipv4Header::kSize;
  if (fragment || !fits || !wire::ipv4_checksum_is_right(frame.data() + kIp)) return Verdict::kBadNetworkHeader;
  length = ip.total_length + kIp;
  out.from = {ethernet.source, ip.source, udp.source_port};
  out.to = ip.destination;
  return Verdict::kOk;
}

Verdict parse_header(const std::uint8_t* p, Header& h) {
  if (p[0] != kVersion) return Verdict::kBadVersion;
  if (p[1] < static_cast<std::uint8_t>(Kind::kReadRequest) || p[1] > static_cast<std::uint8_t>(Kind::kRefusal))
    return Verdict::kUnknownKind;
  h.kind = static_cast<Kind>(p[1]);
  h.plain = (p[2] & kPlainFlag) != 0;
  h.of_data = (p[2] & kOfDataFlag) != 0;
  h.rights = {p[3]};
  h.status = static_cast<Status>(p[4]);
  h.place = load_be<std::uint16_t>(p + 6);
  h.op = OpId(load_be<std::uint64_t>(p + 8));
  h.initiator = InitiatorId(load_be<std::uint64_t>(p + 16));
  h.region = RegionId(load_be<std::uint32_t>(p + 24));
  h.generation = Generation(load_be<std::uint32_t>(p + 28));
  h.boot = Boot(load_be<std::uint32_t>(p + 32));
  h.pull_boot = Boot(load_be<std::uint32_t>(p + 36));
  h.counter = load_be<std::uint64_t>(p + 40);
  const bool has_status = h.kind == Kind::kCompletion || h.kind == Kind::kRefusal;
  const bool has_place = h.kind == Kind::kPull || h.kind == Kind::kData;
  const int flags = kPlainFlag | (h.kind == Kind::kCompletion ? kOfDataFlag : 0);
  const bool bad = (p[2] & ~flags) != 0 || p[3] > Rights::kAll || p[5] != 0 || p[4] >= kStatusCount ||
                   (!has_status && p[4] != 0) || (h.kind == Kind::kRefusal && h.status == Status::kOk) ||
                   (!has_place && h.place != 0) || h.boot.value >> 24 != 0 || h.pull_boot.value >> 24 != 0 ||
                   (h.kind != Kind::kData && h.pull_boot.value != 0) || (is_request(h.kind) && h.counter != 0);
  return bad ? Verdict::kBadField : Verdict::kOk;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kNotOurs: return "not 1RMA to this node";
    case Verdict::kTruncated: return "truncated";
    case Verdict::kBadNetworkHeader: return "bad network header";
    case Verdict::kBadVersion: return "bad version";
    case Verdict::kUnknownKind: return "unknown kind";
    case Verdict::kBadField: return "bad field";
    case Verdict::kBadLength: return "bad length";
  }
  return "?";
}

void Header::write(std::uint8_t* p) const {
  p[0] = kVersion;
  p[1] = static_cast<std::uint8_t>(kind);
  p[2] = static_cast<std::uint8_t>((plain ? kPlainFlag : 0) | (of_data ? kOfDataFlag : 0));
  p[3] = rights.bits;
  p[4] = static_cast<std::uint8_t>(status);
  p[5] = 0;
  store_be(p + 6, place);
  store_be(p + 8, op.value);
  store_be(p + 16, initiator.value);
  store_be(p + 24, region.value);
  store_be(p + 28, generation.value);
  store_be(p + 32, boot.value);
  store_be(p + 36, pull_boot.value);
  store_be(p + 40, counter);
}

Verdict parse(ByteView frame, Message& out) {
  std::size_t length = 0;
  if (const Verdict network = parse_network(frame, out, length); network != Verdict::kOk) return network;
  if (length < kOverhead) return Verdict::kTruncated;
  if (const Verdict header = parse_header(frame.data() + kNetworkSize, out.header); header != Verdict::kOk)
    return header;
  const std::size_t body = length - kOverhead;
  if (!body_fits(out.header.kind, body)) return Verdict::kBadLength;
  out.body_length = static_cast<std::uint16_t>(body);
  return Verdict::kOk;
}

std::array<std::uint8_t, kAssociatedSize> associated_data(const std::uint8_t* frame) {
  std::array<std::uint8_t, kAssociatedSize> bytes;
  std::copy_n(frame + kIp + 12, 8, bytes.begin());  // source and destination address
  std::copy_n(frame + kNetworkSize, kHeaderSize, bytes.begin() + 8);
  return bytes;
}

Nonce nonce_of(const Header& h) {
  Nonce nonce;
  const bool target = !is_to_target(h.kind);
  store_be(nonce.data(), (target ? 0x80u : static_cast<std::uint32_t>(h.kind)) << 24 | h.boot.value);
  store_be(nonce.data() + 4, target ? h.counter : h.op.value);
  return nonce;
}

FrameWriter::FrameWriter(const wire::MacAddress& mac, wire::Ipv4Address ip, std::uint16_t source_port) {
  wire::EthernetHeader{.source = mac, .ether_type = wire::kEtherTypeIpv4}.write(bytes_.data());
  wire::Ipv4Header{.source = ip}.write(bytes_.data() + kIp);
  wire::UdpHeader{.source_port = source_port, .destination_port = kUdpPort}.write(bytes_.data() + kUdp);
  checksum_base_ = wire::ipv4_sum(bytes_.data() + kIp, 0);
}

void FrameWriter::write(std::uint8_t* frame, const Peer& to, const Header& header, std::size_t body) const {
  SLUICE_CHECK(body <= kMaxOp);
  std::copy(bytes_.begin(), bytes_.end(), frame);
  std::copy(to.mac.bytes.begin(), to.mac.bytes.end(), frame);
  const auto udp_length = static_cast<std::uint16_t>(wire::UdpHeader::kSize + kHeaderSize + body + kTagSize);
  std::uint8_t* const ip = frame + kIp;
  store_be(ip + 2, static_cast<std::uint16_t>(udp_length + wire::Ipv4Header::kSize));
  store_be(ip + 16, to.ip.value);
  std::uint32_t sum = checksum_base_ + load_le<std::uint16_t>(ip + 2) + load_le<std::uint16_t>(ip + 16) +
                      load_le<std::uint16_t>(ip + 18);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  store_le(ip + 10, static_cast<std::uint16_t>(~sum));
  store_be(frame + kUdp + 4, udp_length);
  header.write(frame + kNetworkSize);
}

std::uint32_t checksum(const std::uint8_t* frame, std::size_t body) {
  const auto associated = associated_data(frame);
  return wire::crc32::update(wire::crc32::update(0, associated), {frame + kBodyOffset, body});
}

Echo Echo::of(const std::uint8_t* frame, std::size_t body) {
  const std::uint8_t* const end = frame + kOverhead + body;
  return {load_be<std::uint64_t>(end - sizeof(tag_end)), onerma::checksum(frame, body + kTagSize - sizeof(tag_end))};
}

void write_checksum(std::uint8_t* frame, std::size_t body) {
  std::uint8_t* const tag = frame + kBodyOffset + body;
  std::fill_n(tag, kTagSize, std::uint8_t{0});
  store_be(tag, checksum(frame, body));
}

bool checksum_is_right(const std::uint8_t* frame, std::size_t body) {
  const std::uint8_t* const tag = frame + kBodyOffset + body;
  const bool zeros = std::all_of(tag + 4, tag + kTagSize, [](std::uint8_t b) { return b == 0; });
  return zeros && load_be<std::uint32_t>(tag) == checksum(frame, body);
}

}  // namespace sluice::onerma
