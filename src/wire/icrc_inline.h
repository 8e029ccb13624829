// What icrc.h and PacketTemplate do, to be inlined into functions for new machines (base/instructions.h): there a call costs as much as
// the work.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/instructions.h"
#include "wire/crc32_clmul.h"
#include "wire/frame.h"
#include "wire/icrc.h"

namespace sluice::wire {

namespace detail {

// zlib's crc32 of the eight 0xFF bytes that stand for the local route header of InfiniBand.
inline constexpr std::uint32_t kAfterEightOnes = 0x2144DF1C;

// What the ICRC takes for ones, as little-endian words at offsets from the IP header.
using Masks = std::array<crc32::Mask, 4>;
constexpr Masks masks_of(std::uint32_t udp, crc32::Mask first, crc32::Mask second) {
  constexpr std::uint32_t kUdpChecksum = 0xFFFF'0000;
  constexpr std::uint32_t kBthReserved = 0x0000'00FF;  // FECN, BECN and six bits
  constexpr std::uint32_t kBth = UdpHeader::kSize;
  return {first, second, crc32::Mask{udp + 4, kUdpChecksum}, crc32::Mask{udp + kBth + 4, kBthReserved}};
}
// Type of service; time to live and header checksum.
inline constexpr Masks kMasksOfIpv4 = masks_of(Ipv4Header::kSize, {0, 0x0000'FF00}, {8, 0xFFFF'00FF});

consteval crc32::Ones ones_of(const Masks& masks) {
  crc32::Ones ones{};
  for (const crc32::Mask& m : masks) {
    for (std::uint32_t i = 0; i < 4; ++i) ones[m.offset + i] |= static_cast<std::uint8_t>(m.mask >> 8 * i);
  }
  return ones;
}
inline constexpr crc32::Ones kOnesOfIpv4 = ones_of(kMasksOfIpv4);
inline constexpr crc32::Start kStartOfIpv4 = crc32::make_start(kAfterEightOnes, kOnesOfIpv4);

}  // namespace detail

// As verify_icrc().
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline bool verify_icrc_inline(const std::uint8_t* frame,
                                                                               const ParsedFrame& parsed) {
#if defined(__x86_64__)
  const std::size_t length = parsed.icrc_offset() - parsed.ip_offset;  // whole words, for parse() has said so
  if (parsed.is_v4 && length <= crc32::kShort) {
    const std::uint32_t right = crc32::crc_short_inline(frame + parsed.ip_offset, length, detail::kStartOfIpv4);
    return right == load_le<std::uint32_t>(frame + parsed.icrc_offset());
  }
#endif
  return verify_icrc(frame, parsed);
}

// The same of a plain frame with kTransport bytes from its BTH to the ICRC. REQUIRES: parsed.is_plain() said so, and its length.
template <std::size_t kTransport>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline bool verify_plain_icrc_inline(
    const std::uint8_t* frame, [[maybe_unused]] const ParsedFrame& parsed) {
#if defined(__x86_64__)
  constexpr std::size_t kLength = kPlainBth - EthernetHeader::kSize + kTransport;
  return crc32::crc_of_inline<kLength>(frame + EthernetHeader::kSize, detail::kStartOfIpv4) ==
         load_le<std::uint32_t>(frame + kPlainBth + kTransport);
#else
  return verify_icrc(frame, parsed);
#endif
}

// As PacketTemplate::write(), of fields with kBehind bytes between them and the ICRC.
template <std::size_t... kBehind>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline void write_inline(
    const PacketTemplate& packet, std::uint8_t* out, const std::array<std::uint64_t, sizeof...(kBehind)>& fields) {
#if defined(__x86_64__)
  packet.copy_to(out);
  std::uint8_t* const end = out + packet.frame_size() - kIcrcSize;
  std::size_t i = 0;
  (store_le(end - kBehind - 8, fields[i++]), ...);
  store_le(end, load_le<std::uint32_t>(end) ^ crc32::effect_inline<kBehind...>(fields));
#else
  std::size_t i = 0;
  packet.write(out, std::array{PacketTemplate::Field{fields[i++], kBehind}...});
#endif
}

// The same of a plain frame with kTransport bytes from its BTH to the ICRC. REQUIRES: the template is of such a one.
template <std::size_t kTransport, std::size_t... kBehind>
[[SLUICE_FOR_NEW_MACHINES, gnu::always_inline]] inline void write_plain_inline(
    const PacketTemplate& packet, std::uint8_t* out, const std::array<std::uint64_t, sizeof...(kBehind)>& fields) {
#if defined(__x86_64__)
  constexpr std::size_t kEnd = kPlainBth + kTransport;
  constexpr bool kEndsInField = ((kBehind == 0) || ...);
  packet.copy_to<kEndsInField ? kEnd - 8 : kEnd>(out);
  std::size_t i = 0;
  (store_le(out + kEnd - kBehind - 8, fields[i++]), ...);
  store_le(out + kEnd, packet.icrc() ^ crc32::effect_inline<kBehind...>(fields));
#else
  write_inline<kBehind...>(packet, out, fields);
#endif
}

}  // namespace sluice::wire
