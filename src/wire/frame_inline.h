// parse(), to be inlined where packets are many.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/bytes.h"
#include "base/instructions.h"
#include "wire/frame.h"

#if defined(__x86_64__)
#include <tmmintrin.h>
#endif

namespace sluice::wire {

namespace detail {

inline constexpr std::size_t kMinTransport = Bth::kSize + kIcrcSize;

// `available` counts from the BTH to the end of the ICRC; out.bth_offset is set.
inline Verdict parse_transport(const std::uint8_t* bth, std::size_t available, ParsedFrame& out) {
  if (available < kMinTransport) return Verdict::kTruncatedBth;
  // Taken once, for its sender may change it meanwhile: it is what it was checked for.
  const std::uint8_t code = bth[0];
  const std::uint8_t flags = bth[1];
  if ((flags & 0xF) != 0) return Verdict::kBadTransportVersion;
  const OpcodeTraits& traits = opcode_traits(code);
  if (!traits.valid) return Verdict::kUnknownOpcode;
  const std::size_t headers = Bth::kSize + traits.extended_length;
  if (available < headers + kIcrcSize) return Verdict::kTruncatedExtended;
  const std::size_t body = available - headers - kIcrcSize;
  const std::size_t pad = flags >> 4 & 3;
  if (body != 0 && !traits.has_payload) return Verdict::kUnexpectedPayload;
  if (body < pad || body % 4 != 0) return Verdict::kBadPad;

  const auto destination = load_be<std::uint32_t>(bth + 4);
  const auto sequence = load_be<std::uint32_t>(bth + 8);
  out.opcode = static_cast<Opcode>(code);
  out.solicited = (flags & 0x80) != 0;
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

// The same for machines that have_new_instructions(): what nearly every frame is, looked at and noted sixteen bytes at a time. All else is parse()'s.
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline Verdict parse_on_new_machine(ByteView frame, ParsedFrame& out) {
#if defined(__x86_64__)
  constexpr std::size_t kIp = EthernetHeader::kSize;
  constexpr std::size_t kBth = kIp + Ipv4Header::kSize + UdpHeader::kSize;
  if (frame.size() < kBth + detail::kMinTransport) return parse(frame, out);
  const std::uint8_t* const p = frame.data();
  const std::uint8_t* const bth = p + kBth;
  const auto load = [](const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };

  // From the Ethernet type on: 0x0800, version 4 and five words, no fragment of a longer packet, UDP.
  const __m128i asked = _mm_setr_epi8(-1, -1, -1, 0, 0, 0, 0, 0, 0x3F, -1, 0, -1, 0, 0, 0, 0);
  const __m128i right = _mm_setr_epi8(8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, kIpProtocolUdp, 0, 0, 0, 0);
  const auto same = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(load(p + kIp - 2), asked), right));
  const std::size_t ip_length = load_be<std::uint16_t>(p + kIp + 2);
  const std::size_t length = kIp + ip_length;
  // Taken once, as in parse_transport().
  const __m128i head = load(bth);
  const auto first = static_cast<std::uint32_t>(_mm_cvtsi128_si32(head));
  const OpcodeTraits& traits = opcode_traits(static_cast<std::uint8_t>(first));
  const std::size_t payload_at = kBth + Bth::kSize + traits.extended_length;
  const std::size_t body = length - payload_at - kIcrcSize;  // of a frame that is too short, immense
  const std::size_t pad = first >> 12 & 3;
  std::size_t odd = static_cast<unsigned>(same) ^ 0xFFFF;
  odd |= load_be<std::uint32_t>(p + kBth - 6) ^ (kRoceUdpPort << 16 | (ip_length - Ipv4Header::kSize));
  odd |= (first >> 8 & 0xF) | (body & 3) | static_cast<std::size_t>(!traits.valid);
  const std::size_t most = traits.has_payload ? kMaxFrameSize : 0;
  if (odd != 0 || body > most || body < pad || length > std::min(frame.size(), kMaxFrameSize)) return parse(frame, out);
  if (!detail::checksum_is_right(p + kIp)) return parse(frame, out);

  // As ParsedFrame lies in memory: lengths and offsets; then what the BTH says, byte by byte and in host order.
  static_assert(offsetof(ParsedFrame, payload_length) == 8 && offsetof(ParsedFrame, vlan_tci) == 10 &&
                offsetof(ParsedFrame, pkey) == 12 && offsetof(ParsedFrame, traffic_class) == 14 &&
                offsetof(ParsedFrame, pad_count) == 15 && offsetof(ParsedFrame, opcode) == 16);
  static_assert(offsetof(ParsedFrame, is_v4) == 17 && offsetof(ParsedFrame, has_vlan) == 18 &&
                offsetof(ParsedFrame, solicited) == 19 && offsetof(ParsedFrame, ack_request) == 20 &&
                offsetof(ParsedFrame, fecn) == 21 && offsetof(ParsedFrame, becn) == 22 &&
                offsetof(ParsedFrame, destination) == 24 && offsetof(ParsedFrame, psn) == 28);
  auto* const to = reinterpret_cast<std::uint8_t*>(&out);
  store_le(to, std::uint64_t{length} | kIp << 16 | kBth << 32 | payload_at << 48);
  store_le(to + 8, std::uint64_t{body - pad} | std::uint64_t{load_be<std::uint16_t>(bth + 2)} << 32 |
                       std::uint64_t{p[kIp + 1]} << 48 | std::uint64_t{pad} << 56);
  const __m128i order = _mm_setr_epi8(0, -1, -1, 1, 8, 4, 4, -1, 7, 6, 5, -1, 11, 10, 9, -1);
  const __m128i kept = _mm_setr_epi8(-1, 0, 0, -128, -128, -128, 0x40, 0, -1, -1, -1, 0, -1, -1, -1, 0);
  const __m128i flags = _mm_setr_epi8(-1, 1, 0, 1, 1, 1, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1);  // 1 at most
  const __m128i v4 = _mm_setr_epi8(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m128i said = _mm_min_epu8(_mm_and_si128(_mm_shuffle_epi8(head, order), kept), flags);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm_or_si128(said, v4));
  return Verdict::kOk;
#else
  return parse_inline(frame, out);
#endif
}

}  // namespace sluice::wire
