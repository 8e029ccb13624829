#include "wire/icrc.h"

#include <array>

#include "wire/crc32_algebra.h"

namespace sluice::wire {
namespace {

// zlib's crc32 of the eight 0xFF bytes that stand for the local route header of InfiniBand.
constexpr std::uint32_t kAfterEightOnes = 0x2144DF1C;

// What the ICRC takes for ones, as little-endian words at offsets from the IP header.
using Masks = std::array<crc32::Mask, 4>;
constexpr Masks masks_of(std::uint32_t udp, crc32::Mask first, crc32::Mask second) {
  constexpr std::uint32_t kUdpChecksum = 0xFFFF'0000;
  constexpr std::uint32_t kBthReserved = 0x0000'00FF;  // FECN, BECN and six bits
  constexpr std::uint32_t kBth = UdpHeader::kSize;
  return {first, second, crc32::Mask{udp + 4, kUdpChecksum}, crc32::Mask{udp + kBth + 4, kBthReserved}};
}
// Type of service; time to live and header checksum.
constexpr Masks kMasksOfIpv4 = masks_of(Ipv4Header::kSize, {0, 0x0000'FF00}, {8, 0xFFFF'00FF});
// Traffic class and flow label; hop limit.
constexpr Masks kMasksOfIpv6 = masks_of(Ipv6Header::kSize, {0, 0xFFFF'FF0F}, {4, 0xFF00'0000});

consteval crc32::Ones ones_of(const Masks& masks) {
  crc32::Ones ones{};
  for (const crc32::Mask& m : masks) {
    for (std::uint32_t i = 0; i < 4; ++i) ones[m.offset + i] |= static_cast<std::uint8_t>(m.mask >> 8 * i);
  }
  return ones;
}
constexpr crc32::Ones kOnesOfIpv4 = ones_of(kMasksOfIpv4);
constexpr crc32::Ones kOnesOfIpv6 = ones_of(kMasksOfIpv6);

constexpr crc32::Start kStartOfIpv4 = crc32::make_start(kAfterEightOnes, kOnesOfIpv4);

// Long packets: one pass over the bytes as they are, and what setting the masked bits changes. Copying the headers to mask them
// first costs more: two short CRCs take longer than one, and wide loads stall on narrow stores.
std::uint32_t masked_crc(const std::uint8_t* ip, std::size_t length, const Masks& masks, const crc32::Ones& ones) {
  if (length <= crc32::kShort && length % 4 == 0 && crc32::has_short()) {
    return crc32::update_short(kAfterEightOnes, ip, length, ones);
  }
  return crc32::effect_of_masks(ip, length, masks) ^ crc32::update(kAfterEightOnes, {ip, length});
}

}  // namespace

std::uint32_t icrc_ipv4(const std::uint8_t* ip, std::size_t length) {
  static_assert(EthernetHeader::kSize >= crc32::Start::kBefore);
  if (length <= crc32::kShort && length % 4 == 0 && crc32::has_short())
    return crc32::crc_short(ip, length, kStartOfIpv4);
  return masked_crc(ip, length, kMasksOfIpv4, kOnesOfIpv4);
}
std::uint32_t icrc_ipv6(const std::uint8_t* ip, std::size_t length) {
  return masked_crc(ip, length, kMasksOfIpv6, kOnesOfIpv6);
}

namespace {

std::uint32_t icrc_up_to(std::size_t end, const std::uint8_t* frame, const ParsedFrame& parsed) {
  const std::uint8_t* ip = frame + parsed.ip_offset;
  return parsed.is_v4 ? icrc_ipv4(ip, end - parsed.ip_offset) : icrc_ipv6(ip, end - parsed.ip_offset);
}

}  // namespace

std::uint32_t icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc_up_to(parsed.icrc_offset(), frame, parsed);
}

std::uint32_t icrc_of_headers(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc_up_to(parsed.extended_offset(), frame, parsed);
}

bool verify_icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc(frame, parsed) == load_le<std::uint32_t>(frame + parsed.icrc_offset());
}

}  // namespace sluice::wire
