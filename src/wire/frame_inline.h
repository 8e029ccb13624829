// parse(), to be inlined where packets are many.
#pragma once

#include "base/bytes.h"
#include "wire/frame.h"

namespace sluice::wire {

namespace detail {

inline constexpr std::size_t kMinTransport = Bth::kSize + kIcrcSize;

// `available` counts from the BTH to the end of the ICRC; out.bth_offset is set.
inline Verdict parse_transport(const std::uint8_t* bth, std::size_t available, ParsedFrame& out) {
  if (available < kMinTransport) return Verdict::kTruncatedBth;
  if ((bth[1] & 0xF) != 0) return Verdict::kBadTransportVersion;
  const OpcodeTraits& traits = opcode_traits(bth[0]);
  if (!traits.valid) return Verdict::kUnknownOpcode;
  const std::size_t headers = Bth::kSize + traits.extended_length;
  if (available < headers + kIcrcSize) return Verdict::kTruncatedExtended;
  const std::size_t body = available - headers - kIcrcSize;
  const std::size_t pad = bth[1] >> 4 & 3;
  if (body != 0 && !traits.has_payload) return Verdict::kUnexpectedPayload;
  if (body < pad || body % 4 != 0) return Verdict::kBadPad;

  const auto destination = load_be<std::uint32_t>(bth + 4);
  const auto sequence = load_be<std::uint32_t>(bth + 8);
  out.opcode = static_cast<Opcode>(bth[0]);
  out.solicited = (bth[1] & 0x80) != 0;
  out.pad_count = static_cast<std::uint8_t>(pad);
  out.pkey = load_be<std::uint16_t>(bth + 2);
  out.fecn = (destination & 0x8000'0000) != 0;
  out.becn = (destination & 0x4000'0000) != 0;
  out.destination = Qpn(destination & 0xFF'FFFF);
  out.ack_request = (sequence & 0x8000'0000) != 0;
  out.psn = Psn(sequence);
  out.payload_offset = static_cast<std::uint16_t>(out.bth_offset + headers);
  out.payload_length = static_cast<std::uint16_t>(body - pad);
  return Verdict::kOk;
}

// As ipv4_checksum_is_right(): the words' sum, taken eight bytes at a time with carries wrapped round, is a multiple of 0xFFFF. It is one if
// its product with the inverse is as small as a quotient; the version makes it more than zero.
inline bool checksum_is_right(const std::uint8_t* ip) {
  constexpr std::uint64_t kInverse = 0xFFFEFFFEFFFEFFFF;  // of 0xFFFF modulo 2^64
  static_assert(kInverse * 0xFFFF == 1);
  std::uint64_t sum = load_le<std::uint64_t>(ip);
  const auto add = [&sum](std::uint64_t v) { return std::uint64_t{__builtin_add_overflow(sum, v, &sum)}; };
  const std::uint64_t carry = add(load_le<std::uint64_t>(ip + 8));
  sum += add(load_le<std::uint32_t>(ip + 16) + carry);
  return sum * kInverse <= ~std::uint64_t{0} / 0xFFFF;
}

// What nearly every frame is: IPv4 without tag, options, fragments or faults, UDP to RoCE's port. All that says so stands in a few
// words. False: look closer.
inline bool parse_common(ByteView frame, ParsedFrame& out) {
  constexpr std::size_t kIp = EthernetHeader::kSize;
  constexpr std::size_t kBth = kIp + Ipv4Header::kSize + UdpHeader::kSize;
  constexpr std::uint32_t kTypeAndVersion = 0x45'0008;  // little-endian: 0x0800, version 4, five words
  constexpr std::uint32_t kAnyFragment = Ipv4Header::kMoreFragments | Ipv4Header::kFragmentOffsetMask;
  if (frame.size() < kBth + kMinTransport) return false;
  const std::uint8_t* const p = frame.data();
  const std::uint32_t ip_length = load_be<std::uint16_t>(p + kIp + 2);
  const std::size_t length = kIp + ip_length;
  std::uint32_t odd = (load_le<std::uint32_t>(p + kIp - 2) & 0xFF'FFFF) ^ kTypeAndVersion;
  odd |= load_be<std::uint16_t>(p + kIp + 6) & kAnyFragment;
  odd |= p[kIp + 9] ^ std::uint32_t{kIpProtocolUdp};
  odd |= load_be<std::uint32_t>(p + kBth - 6) ^
         (std::uint32_t{kRoceUdpPort} << 16 | (ip_length - std::uint32_t{Ipv4Header::kSize}));
  if (odd != 0 || length > frame.size() || length > kMaxFrameSize || length < kBth + kMinTransport) return false;
  if (!checksum_is_right(p + kIp)) return false;
  out.has_vlan = false;
  out.is_v4 = true;
  out.vlan_tci = 0;
  out.traffic_class = p[kIp + 1];
  out.ip_offset = kIp;
  out.bth_offset = kBth;
  out.length = static_cast<std::uint16_t>(length);
  return true;
}

}  // namespace detail

// As parse().
inline Verdict parse_inline(ByteView frame, ParsedFrame& out) {
  if (!detail::parse_common(frame, out)) return parse(frame, out);
  return detail::parse_transport(frame.data() + out.bth_offset, out.length - out.bth_offset, out);
}

}  // namespace sluice::wire
