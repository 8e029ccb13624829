// A RoCEv2 frame: where its parts lie (parse), and the headers before its transport (HeaderTemplate).
//
// Life:       in:  parse -> ParsedFrame -> get<Reth>(frame, parsed) for what is needed -> icrc.h verifies.
//             out: HeaderTemplate::write -> BTH, extended headers, payload, pad by the caller -> seal.
// Invariant:  after kOk every offset and length in ParsedFrame lies inside the frame, and every header that the opcode
//             promises is there. The end of a frame is told by IP: Ethernet padding behind it is ignored.
// Units:      offsets from the first byte of the destination MAC, lengths in bytes.
// Errors:     every way to be wrong is a Verdict. parse does not look at the ICRC: parse_and_verify does.
// Limits:     kMaxFrameSize; one VLAN tag; no IPv4 options, no IPv6 extension headers (A17.3.1 forbids them).
// Source:     IBTA vol. 1 §9.2 and annex A17; ARCHITECTURE.md "What real NICs do".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "wire/bth.h"
#include "wire/crc32_algebra.h"
#include "wire/ethernet.h"
#include "wire/ip.h"
#include "wire/opcode.h"
#include "wire/types.h"

namespace sluice::wire {

inline constexpr std::size_t kMaxFrameSize = 4352;  // the same as port::kMaxFrame
inline constexpr std::size_t kMaxHeadersBeforeBth =
    EthernetHeader::kSize + VlanTag::kSize + Ipv6Header::kSize + UdpHeader::kSize;

enum class Verdict : std::uint8_t {
  kOk,
  kTruncatedEthernet,
  kNotIp,
  kTruncatedIp,
  kBadIpVersion,
  kBadIpHeaderLength,  // IPv4 options, or fewer than five words
  kBadIpLength,        // longer than the frame, or shorter than its own header
  kBadIpChecksum,
  kBadIpAddress,  // IPv6 with an IPv4 address in mapped form: on the wire that can only be a forgery (RFC 4038 §4.2)
  kFragment,
  kNotUdp,
  kTruncatedUdp,
  kNotRoce,  // UDP to another port than 4791
  kBadUdpLength,
  kOversized,  // longer than kMaxFrameSize
  kTruncatedBth,
  kBadTransportVersion,
  kUnknownOpcode,
  kTruncatedExtended,
  kUnexpectedPayload,  // bytes behind the headers of an opcode that carries none
  kBadPad,             // more pad than payload, or payload and pad together no multiple of four
  kBadIcrc,
};
inline constexpr std::size_t kVerdictCount = static_cast<std::size_t>(Verdict::kBadIcrc) + 1;
std::string_view to_string(Verdict verdict);

inline constexpr std::size_t kPlainBth = EthernetHeader::kSize + Ipv4Header::kSize + UdpHeader::kSize;

// What one pass over a frame finds. Extended headers stay in the frame until get() asks for them.
struct ParsedFrame {
  std::uint16_t length = 0;  // of the whole frame with ICRC, without Ethernet padding
  std::uint16_t ip_offset = 0;
  std::uint16_t bth_offset = 0;
  std::uint16_t payload_offset = 0;
  std::uint16_t payload_length = 0;  // without pad
  std::uint16_t vlan_tci = 0;        // 0 without a tag
  std::uint16_t pkey = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t pad_count = 0;
  Opcode opcode{};
  bool is_v4 = false;
  bool has_vlan = false;
  bool solicited = false;
  bool ack_request = false;
  bool fecn = false;
  bool becn = false;
  Qpn destination{};
  Psn psn{};

  const OpcodeTraits& traits() const { return opcode_traits(opcode); }
  Ecn ecn() const { return static_cast<Ecn>(traffic_class & 3); }
  std::size_t udp_offset() const { return bth_offset - UdpHeader::kSize; }
  std::size_t extended_offset() const { return bth_offset + Bth::kSize; }
  std::size_t icrc_offset() const { return length - kIcrcSize; }
  // Ethernet and IPv4 without tag, as nearly all are: the BTH lies at kPlainBth.
  bool is_plain() const { return is_v4 && bth_offset == kPlainBth; }
};
static_assert(sizeof(ParsedFrame) <= 32);

// Checks everything but the ICRC. `out` is unspecified unless the verdict is kOk; with kUnknownOpcode it tells addresses and where the BTH is.
Verdict parse(ByteView frame, ParsedFrame& out);
// And the ICRC.
Verdict parse_and_verify(ByteView frame, ParsedFrame& out);

// The extended header H of a parsed frame. REQUIRES: parsed.traits().has(H::kExtended).
template <class H>
H get(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return H::parse(frame + parsed.extended_offset() + parsed.traits().offset_of(H::kExtended));
}
inline Bth get_bth(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return Bth::parse(frame + parsed.bth_offset);
}
inline ByteView payload(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return {frame + parsed.payload_offset, parsed.payload_length};
}
UdpHeader get_udp(const std::uint8_t* frame, const ParsedFrame& parsed);
Gid source_gid(const std::uint8_t* frame, const ParsedFrame& parsed);
Gid destination_gid(const std::uint8_t* frame, const ParsedFrame& parsed);
// The 40 bytes that a UD receiver finds before its payload: the IPv6 header, or 20 zeros and the IPv4 one (A17.4.5.2).
void write_received_grh(const std::uint8_t* frame, const ParsedFrame& parsed, std::uint8_t* out);

// The network between two QPs, as the sender of a frame sees it.
struct AddressVector {
  MacAddress source_mac{};
  MacAddress destination_mac{};
  Gid source{};
  Gid destination{};  // REQUIRES: the same IP version as `source`
  std::optional<std::uint16_t> vlan_tci{};
  std::uint16_t source_port = 0xC000;  // for ECMP: fixed per QP, 0xC000 and above
  std::uint8_t traffic_class = 0;      // DSCP and ECN
  std::uint8_t hop_limit = 64;
  std::uint32_t flow_label = 0;  // IPv6 only

  // The way back to whoever sent `frame`, with its source port and traffic class.
  static AddressVector reply_to(const std::uint8_t* frame, const ParsedFrame& parsed);
  friend bool operator==(const AddressVector&, const AddressVector&) = default;
};

// Ethernet, IP and UDP of one connection, made once; a frame costs a copy, three lengths and an addition.
// Written as NICs do: don't fragment, identification 0, UDP checksum 0.
class HeaderTemplate {
 public:
  HeaderTemplate() = default;
  explicit HeaderTemplate(const AddressVector& address);

  std::size_t bth_offset() const { return bth_offset_; }
  // Of a frame whose BTH, extended headers, payload and pad take `transport_bytes`.
  std::size_t frame_size(std::size_t transport_bytes) const { return bth_offset_ + transport_bytes + kIcrcSize; }

  // Writes the headers before the BTH of such a frame and returns the BTH's offset.
  // REQUIRES: room for frame_size(transport_bytes), which is at most kMaxFrameSize.
  std::size_t write(std::uint8_t* out, std::size_t transport_bytes) const;

  // Appends the ICRC to the `length` bytes written so far and returns the length of the whole frame.
  // REQUIRES: write() was told this length; BTH and all that follows are final.
  std::size_t seal(std::uint8_t* frame, std::size_t length) const;

 private:
  std::array<std::uint8_t, kMaxHeadersBeforeBth> bytes_{};
  std::uint32_t checksum_base_ = 0;  // sum over the IPv4 header without its length, in network byte order
  std::uint8_t bth_offset_ = 0;
  std::uint8_t ip_offset_ = 0;
  bool is_v4_ = true;
};

// A packet of which only a few words differ from one to the next, its ICRC included: a frame costs a copy and a carry-less
// multiplication a field, none of which reads what has just been written.
class PacketTemplate {
 public:
  static constexpr std::size_t kMaxTransport = 48;
  // Eight bytes of the packet, as loaded little-endian, with `behind` bytes between them and the ICRC.
  using Field = crc32::WideChange;

  PacketTemplate() = default;
  // `transport`: BTH and all behind it, with zeros where fields will be. REQUIRES: whole words; the frame without its ICRC is at least
  // kShortest long.
  PacketTemplate(const HeaderTemplate& headers, ByteView transport);

  std::size_t bth_offset() const { return bth_offset_; }
  std::size_t frame_size() const { return size_ + kIcrcSize; }
  // REQUIRES: room for frame_size().
  void write(std::uint8_t* out, std::span<const Field> fields) const {
    copy_to(out);
    for (const Field& field : fields) store_le(out + size_ - field.distance - 8, field.bytes);
    store_le(out + size_, icrc_ ^ crc32::effect_of_wide(fields));
  }
  // The packet with zeros where fields will be, its ICRC to match. Pieces of fixed size: they cost a few instructions, a call would cost more.
  [[gnu::always_inline]] void copy_to(std::uint8_t* out) const {
    const std::uint8_t* const from = bytes_.data();
    std::memcpy(out, from, 32);
    std::memcpy(out + 32, from + 32, 16);
    std::memcpy(out + kShortest - 16, from + kShortest - 16, 16);
    const std::size_t tail = size_ - kTail;
    std::memcpy(out + tail, from + tail, 32);
    if (tail > kShortest) std::memcpy(out + kShortest, from + kShortest, tail - kShortest);
    store_le(out + size_, icrc_);
  }
  // The same of the first kSize bytes.
  template <std::size_t kSize>
  [[gnu::always_inline]] void copy_to(std::uint8_t* out) const {
    static_assert(kSize >= 16 && kSize <= sizeof(bytes_));
    for (std::size_t at = 0; at + 16 <= kSize; at += 16) std::memcpy(out + at, bytes_.data() + at, 16);
    if (kSize % 16 != 0) std::memcpy(out + kSize - 16, bytes_.data() + kSize - 16, 16);
  }
  // Of the packet with zeros where fields will be.
  std::uint32_t icrc() const { return icrc_; }

 private:
  static constexpr std::size_t kShortest = 58;  // an ACK over IPv4
  static constexpr std::size_t kTail = 32;

  std::uint32_t icrc_ = 0;
  std::uint8_t size_ = 0;  // without ICRC
  std::uint8_t bth_offset_ = 0;
  std::array<std::uint8_t, kMaxHeadersBeforeBth + kMaxTransport + kIcrcSize> bytes_{};
};

// Bytes of pad that bring a payload to a multiple of four.
constexpr std::uint8_t pad_for(std::size_t payload_length) {
  return static_cast<std::uint8_t>((4 - payload_length % 4) % 4);
}

// Marks the frame as having met congestion, checksum included; the ICRC does not cover the mark.
// REQUIRES: parsed.ecn() is not kNotCapable.
void mark_congestion(std::uint8_t* frame, ParsedFrame& parsed);

}  // namespace sluice::wire
